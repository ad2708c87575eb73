"""One query's heads as so many queries of one head: how one query is computed on Hopper where the kernel for queries, which reads keys by TMA
and may take tiles in parts of their keys, is faster than that of splits (docs/sequences.md)."""
from __future__ import annotations

import functools
from ctypes import byref

from . import _problem
from ._capi import library
from .errors import NoCompiler, NoJit


@functools.lru_cache(maxsize=None)
def device_info(key):
    """Of a key of the library's table of GPUs, or "cuda:N"."""
    info = library().make("fk_device_info")
    library()("fk_device_find", key.encode(), byref(info))
    return info


def is_hopper(device):
    """Of a key of the library's table of GPUs, "cuda:N", or what is none: "emu", None."""
    return device not in (None, "emu") and device_info(device).sm == 90


@functools.lru_cache(maxsize=1024)
def gains(spelling, device, batch, heads_q, heads_kv):
    shape = library().make("fk_shape", batch=batch, num_heads_q=heads_q, num_heads_kv=heads_kv, seqlen_q=1, seqlen_k=1)
    return bool(library().lib.fk_problem_heads_are_queries(byref(library().problem(spelling)), byref(device_info(device)), byref(shape), None))


def as_queries(terms, dtype, sizes, device):
    """(terms, sizes) of the query's heads as queries of their kv head on a GPU by its key; None where that is something else, or gains nothing.
    The last query sees all keys, so that `causal` says nothing."""
    if (sizes.seqlen_q != 1 or terms.arrays or not (sizes.batch and sizes.heads_q and sizes.heads_kv) or sizes.heads_q % sizes.heads_kv
            or not gains(terms.spelling("fwd", dtype, sizes), device, sizes.batch, sizes.heads_q, sizes.heads_kv)):
        return None
    words = " ".join(word for word in terms.words.split() if word != "causal")
    return _problem.Terms.of(words), sizes._replace(seqlen_q=sizes.heads_q // sizes.heads_kv, heads_q=sizes.heads_kv)


def launch_of_queries(terms, dtype, sizes, device, launch):
    """launch(terms, sizes) of what as_queries gives; None where it gives nothing, or a program that may not compile ships splits alone."""
    found = as_queries(terms, dtype, sizes, device)
    try:
        return launch(*found) if found else None
    except (NoJit, NoCompiler):
        return None


def turned(strides, group):
    """The strides of q, k, v and o, those of q and o with a head of the group for a row."""
    return {name: (batch, head, head * group) if name in ("q", "o") else (batch, row, head) for name, (batch, row, head) in strides.items()}
