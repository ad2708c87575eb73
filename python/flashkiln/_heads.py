"""One query's heads as so many queries of one head: how one query is computed on Hopper at head dims above 256, where the kernel for queries,
whose tiles come in parts of their keys, asks more of HBM than that of splits does, by TMA (docs/sequences.md)."""
from __future__ import annotations

import functools
from ctypes import byref

from . import _problem
from ._capi import library


@functools.lru_cache(maxsize=None)
def is_hopper(device):
    """Of a key of the library's table of GPUs, "cuda:N", or what is none: "emu", None."""
    if device in (None, "emu"):
        return False
    info = library().make("fk_device_info")
    library()("fk_device_find", device.encode(), byref(info))
    return info.sm == 90


def as_queries(terms, sizes):
    """(terms, sizes) of the query's heads as queries of their kv heads; None where that is something else, or gains nothing. The last query sees
    all keys, so that `causal` says nothing."""
    words = [word for word in terms.words.split() if word != "causal"]
    group = sizes.heads_q // max(sizes.heads_kv, 1)
    if (sizes.seqlen_q != 1 or sizes.heads_q != group * sizes.heads_kv or not group
            or max(sizes.dim, sizes.dim_v) <= _problem.NARROW_HEAD_DIM or set(words) - {"seqused_k", "paged"}
            or "paged" in words and not _problem.page_rows(sizes.page_size)):
        return None
    return _problem.Terms.of(" ".join(words)), sizes._replace(seqlen_q=group, heads_q=sizes.heads_kv)


def turned(strides, group):
    """The strides of q, k, v and o, those of q and o with a head of the group for a row."""
    return {name: (batch, head, head * group) if name in ("q", "o") else (batch, row, head) for name, (batch, row, head) in strides.items()}
