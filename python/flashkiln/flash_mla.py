"""FlashMLA's functions, with their signatures and meaning, by this library's kernels: decoding of absorbed multi-head latent attention
(DeepSeek-V2, arXiv 2405.04434), of a cache that holds keys whose first columns are the values.

    >>> import torch
    >>> from flashkiln.flash_mla import flash_mla_with_kvcache, get_mla_metadata
    >>> q, cache = torch.randn(2, 1, 4, 96), torch.randn(6, 16, 1, 96)      # [batch, seqlen_q, heads, dim]; blocks of 16 rows
    >>> blocks, filled = torch.randperm(6).int().view(2, 3), torch.tensor([40, 17], dtype=torch.int32)
    >>> metadata, splits = get_mla_metadata(filled, 4, 1)
    >>> o, lse = flash_mla_with_kvcache(q, cache, blocks, filled, 64, metadata, splits, causal=True)
    >>> o.shape, lse.shape
    (torch.Size([2, 1, 4, 64]), torch.Size([2, 4, 1]))
"""
from __future__ import annotations

import torch

from . import _problem, _torch, _torch_launch
from .errors import BadArgument, Unsupported
from .flash_attn._words import with_infinity

__all__ = ["flash_mla_with_kvcache", "get_mla_metadata"]


def get_mla_metadata(*args, **kwargs):
    """(None, None): kernels find their shares of the keys themselves, and lengths may change between launches of a captured graph."""
    return None, None


@torch.no_grad()
def flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata=None, num_splits=None,
                           softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None):
    """(o [batch, seqlen_q, heads_q, head_dim_v], lse [batch, heads_q, seqlen_q], natural logarithms, +inf of a row without keys).

    - q: [batch, seqlen_q, heads_q, head_dim]; on Hopper one query of 64 heads and more of a kv head is fastest.
    - k_cache: [blocks, block_size, heads_kv, head_dim]. Blocks of any size; on Hopper multiples of 8 are faster.
    - block_table: int32 [batch, blocks of a sequence]: row j of sequence b is row j % block_size of block block_table[b, j // block_size].
    - cache_seqlens: int32 [batch], the rows of each sequence, new ones among them.
    - softmax_scale: head_dim ** -0.5 unless given. causal: the last query sees the last row.
    - tile_scheduler_metadata, num_splits: of get_mla_metadata, and not looked at. Without gradients.

    Caches of 8 bits and sparse attention (is_fp8_kvcache, indices): Unsupported.
    """
    if is_fp8_kvcache or indices is not None:
        raise Unsupported(f"{'is_fp8_kvcache' if is_fp8_kvcache else 'indices'} is given: there is neither a cache of 8 bits nor a choice of rows")
    if not 0 < head_dim_v <= k_cache.shape[-1]:
        raise BadArgument(f"head_dim_v is {head_dim_v}; it must be from 1 to k_cache's last dimension, {k_cache.shape[-1]}")
    batch, seqlen_q, heads = q.shape[:3]
    how = {"softmax_scale": softmax_scale, "page_table": block_table, "seqused_k": cache_seqlens, "return_lse": True}
    if not are_queries(q, k_cache, causal):
        o, lse = _torch.attention(q, k_cache, k_cache[..., :head_dim_v], causal=bool(causal), **how)
        return o, with_infinity(lse)
    mask = f"k <= q / {heads} + seqlen_k - {seqlen_q}" if causal else None
    o, lse = _torch.attention(q.reshape(batch, seqlen_q * heads, 1, q.shape[3]), k_cache, k_cache[..., :head_dim_v], mask=mask, **how)
    return o.view(batch, seqlen_q, heads, head_dim_v), with_infinity(lse).view(batch, seqlen_q, heads).transpose(1, 2)


FEW_TILES = 16  # a quarter of a round on 132 SMs: with fewer the keys are better shared among CTAs, which kernels of expressions are not


def are_queries(q, k_cache, causal):
    """Whether several queries' heads are given as so many queries of one head, as attention() does with those of one query: by the rates of
    docs/measured.md, 596 TFLOP/s beside 145 where there are tiles for all CTAs."""
    batch, seqlen_q, heads, dim = q.shape
    rows = seqlen_q * heads
    return (seqlen_q > 1 and k_cache.shape[2] == 1 and rows >= _torch_launch.MANY_HEADS and dim > _problem.NARROW_HEAD_DIM
            and q.dtype in (torch.float16, torch.bfloat16) and _torch_launch.has_wgmma(q.get_device())
            and bool(_problem.page_rows(k_cache.shape[1])) and (not causal or batch * -(-rows // 128) >= FEW_TILES))
