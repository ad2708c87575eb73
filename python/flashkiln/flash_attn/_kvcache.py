"""Attention to a cache of keys and values, which new ones are appended to."""
from __future__ import annotations

import torch

from .. import _torch
from ..errors import BadArgument
from ._words import sides, with_infinity
from .layers.rotary import rotate


@torch.no_grad()
def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False):
    """Attention of q [batch, seqlen_q, heads_q, dim] to a cache of keys and values, of q's shape; with return_softmax_lse,
    also lse [batch, heads_q, seqlen_q]. Without gradients. What is not named here is as in flash_attn_func.

    - k_cache, v_cache: [batch_cache, capacity, heads_kv, dim], or with block_table [num_blocks, block_size, heads_kv, dim].
    - k, v: [batch, seqlen_new, heads_kv, dim], written into the cache in place, behind the first cache_seqlens rows, before
      attention reads it. The cache must have room: that is not checked, since lengths are on the device.
    - rotary_cos, rotary_sin: [at least capacity, rotary_dim / 2]. New keys are turned by their places in the cache; queries
      by places from cache_seqlens on with causal or a window, else all by cache_seqlens. Needs k. rotary_interleaved: pairs
      are dims 2i and 2i + 1; otherwise i and i + rotary_dim / 2.
    - cache_seqlens: int32 [batch] or an int, the rows of each cache that are filled before this call; None: all are.
    - cache_batch_idx: int32 [batch], the entry of the cache of each sequence; None: 0, 1, ...
    - cache_leftpad: int32 [batch], the rows that each cache begins with and that do not count.
    - block_table: int32 [batch, blocks]: row j of sequence b is row j % block_size of block block_table[b, j // block_size].
    - num_splits: CTAs that share the keys of a query; 0: as many as are of use.

        >>> cache = torch.zeros(2, 2, 64, 4, 16, dtype=torch.float16)          # keys and values of 64 places
        >>> q, k, v = (torch.randn(2, 1, 4, 16, dtype=torch.float16) for _ in range(3))
        >>> filled = torch.zeros(2, dtype=torch.int32)
        >>> out = flash_attn_with_kvcache(q, cache[0], cache[1], k, v, cache_seqlens=filled, causal=True)
    """
    check(k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table)
    batch, capacity = q.shape[0], k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    window = sides(side if side < capacity else -1 for side in window_size)
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    if k is not None:
        places = steps(cache_seqlens, k.shape[1])
        if rotary_cos is not None:
            check_rotary(rotary_cos, rotary_sin, q.shape[-1], capacity)
            at = steps(cache_seqlens, q.shape[1]) if causal or window else cache_seqlens.long()[:, None]
            q = rotate(q, rotary_cos[at], rotary_sin[at], rotary_interleaved)
            k = rotate(k, rotary_cos[places], rotary_sin[places], rotary_interleaved)
        rows = cache_rows(places, k_cache.shape[1], cache_batch_idx, block_table)
        k_cache[rows], v_cache[rows] = k, v
        cache_seqlens = cache_seqlens + k.shape[1]
    if cache_batch_idx is not None:  # an entry of the cache is a page
        block_table = cache_batch_idx[:, None]
    elif block_table is None:
        k_cache, v_cache = k_cache[:batch], v_cache[:batch]
    # Places count from the cache's begin. Those to the left do not count, but distances and the diagonal stay the same.
    left = {} if cache_leftpad is None else {"mask": "left_padding", "arrays": {"first": cache_leftpad}}
    out = _torch.attention(q, k_cache, v_cache, causal=bool(causal), window=window,
                           softcap=softcap if softcap and softcap > 0 else None, alibi_slopes=alibi_slopes,
                           softmax_scale=softmax_scale, seqused_k=cache_seqlens, page_table=block_table,
                           num_splits=num_splits or None, return_lse=return_softmax_lse, **left)
    return (out[0], with_infinity(out[1])) if return_softmax_lse else out


def steps(begin, count):
    """[batch, count]: begin, begin + 1, ..."""
    return begin.long()[:, None] + torch.arange(count, device=begin.device)


def cache_rows(places, rows, cache_batch_idx, block_table):
    """Indices into a cache of the places of each sequence: (entry or block, row in it). rows: of an entry or block."""
    if block_table is not None:
        return block_table.gather(1, places // rows).long(), places % rows
    if cache_batch_idx is not None:
        return cache_batch_idx.long()[:, None], places
    return torch.arange(len(places), device=places.device)[:, None], places


def check(k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, block_table):
    together = (("k", k, "v", v), ("rotary_cos", rotary_cos, "rotary_sin", rotary_sin))
    for name, x, other, y in together:
        if (x is None) != (y is None):
            missing, given = (name, other) if x is None else (other, name)
            raise BadArgument(f"{missing} is missing; {given} needs it")
    if k is not None and cache_seqlens is None:
        raise BadArgument("cache_seqlens is missing; it says where k and v go")
    if rotary_cos is not None and k is None:
        raise BadArgument("k and v are missing; rotary_cos and rotary_sin turn new keys and queries")
    if cache_batch_idx is not None and block_table is not None:
        raise BadArgument("cache_batch_idx and block_table are both given; one says where a sequence's keys are")


def check_rotary(cos, sin, dim, capacity):
    for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
        if x.dim() != 2 or x.shape != cos.shape or x.shape[0] < capacity or 2 * x.shape[1] > dim:
            raise BadArgument(f"{name} has shape {tuple(x.shape)}; it must be [at least {capacity}, at most {dim // 2}], "
                              "and of the other's shape")
