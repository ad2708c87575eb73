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

    - q: [batch, seqlen_q, heads_q, head_dim]; several queries of a speculative decoder, too, on Hopper at head dims above 256 of one kv head.
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
    batch, seqlen_q, heads, dim = q.shape
    how = {"softmax_scale": softmax_scale, "page_table": block_table, "seqused_k": cache_seqlens, "return_lse": True}
    values = k_cache[..., :head_dim_v]
    if seqlen_q == 1 or block_table is None or cache_seqlens is None or not have_one_kernel(q, k_cache):
        o, lse = _torch.attention(q, k_cache, values, causal=bool(causal), **how)
        return o, with_infinity(lse)
    cache_seqlens, block_table = of_batch("cache_seqlens", cache_seqlens, q, 1), of_batch("block_table", block_table, q, 2)
    if not causal or batch * -(-seqlen_q * heads // TILE_ROWS) >= FEW_TILES:
        mask = f"k <= q / {heads} + seqlen_k - {seqlen_q}" if causal else None
        o, lse = _torch.attention(q.reshape(batch, seqlen_q * heads, 1, dim), k_cache, values, mask=mask, **how)
    else:  # each query as a sequence of its own, which sees keys up to its own
        behind = torch.arange(1 - seqlen_q, 1, device=q.device, dtype=torch.int32)
        how["seqused_k"] = (cache_seqlens[:, None] + behind).clamp_(min=0).view(-1)
        how["page_table"] = block_table.repeat_interleave(seqlen_q, 0)
        o, lse = _torch.attention(q.reshape(batch * seqlen_q, 1, heads, dim), k_cache, values, **how)
    return o.view(batch, seqlen_q, heads, head_dim_v), with_infinity(lse).view(batch, seqlen_q, heads).transpose(1, 2)


# A quarter of a round on 132 SMs: with fewer tiles the keys are better shared among CTAs, which kernels of expressions do not.
FEW_TILES, TILE_ROWS = 16, 128


def of_batch(name, x, q, rank):
    """Ints of that rank, a row for each sequence, in 32 bits."""
    x = _torch.int32(name, x, q)
    if x.dim() != rank or x.shape[0] != q.shape[0]:
        raise BadArgument(f"{name} has shape {tuple(x.shape)}; it must have {rank} dimension{'s' * (rank > 1)}, the first of q's batch, {q.shape[0]}")
    if x.device != q.device:
        raise BadArgument(f"{name} is on {x.device} and q on {q.device}; they must be equal")
    return x


def have_one_kernel(q, k_cache):
    """Whether several queries' heads are given to Hopper's kernel of head dims above 256 as so many queries of one head, as attention() does
    with those of one query: 1.1 to 4.2 times as fast as splits (docs/measured.md)."""
    return (k_cache.shape[2] == 1 and q.shape[3] > _problem.NARROW_HEAD_DIM and q.dtype in (torch.float16, torch.bfloat16)
            and _torch_launch.has_wgmma(q.get_device()) and bool(_problem.page_rows(k_cache.shape[1])))
