"""The functions of FlashAttention 2.8, as calls of attention().

What all have in common:
- dropout_p: the share of weights dropped; 0 in evaluation.
- softmax_scale: the factor of q.k; None is 1 / sqrt(dim).
- causal: query i sees key j where j <= i + seqlen_k - seqlen_q: the mask ends in the bottom right corner.
- window_size: (left, right); query i sees keys i + seqlen_k - seqlen_q - left to i + seqlen_k - seqlen_q + right. A
  negative side is unbounded; with causal, right is 0.
- softcap: above 0, scores s become softcap * tanh(s / softcap).
- alibi_slopes: [heads] or [batch, heads] float32; |i + seqlen_k - seqlen_q - j| times the slope is taken off the scores,
  after softcap.
- deterministic: gradients are bitwise equal from run to run.
- return_attn_probs: for tests. The result is then (out, softmax_lse, S_dmask): lse is the natural logarithm of each row's
  sum, [batch, heads, seqlen_q] or [heads, total_q], +inf for a row without keys; S_dmask holds the softmax, negative where
  dropout struck, [batch, heads, seqlen_q, seqlen_k], and is empty without dropout.

Heads of q are a multiple of those of k and v: head h reads head h // (heads_q // heads_kv). A row without keys gives 0. Any
head dim to 512, any strides. Errors are those of attention()."""
from __future__ import annotations

import torch

from .. import _torch
from ..errors import BadArgument, Unsupported
from ._kvcache import flash_attn_with_kvcache
from ._probabilities import probabilities
from ._words import sides, with_infinity

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]


# ---- sequences of one length -----------------------------------------------------------------------------------------

def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """Attention of q [batch, seqlen_q, heads_q, dim] to k and v [batch, seqlen_k, heads_kv, dim]: of q's shape.

        >>> q, k, v = (torch.randn(2, 32, 4, 16, dtype=torch.float16) for _ in range(3))
        >>> out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    """
    return attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                  return_attn_probs)


def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                             alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash_attn_func with k and v in one tensor, kv [batch, seqlen_k, 2, heads_kv, dim].

        >>> q, kv = torch.randn(2, 32, 4, 16).half(), torch.randn(2, 32, 2, 4, 16).half()
        >>> out = flash_attn_kvpacked_func(q, kv)
    """
    k, v = unpacked("kv", kv, 2, "batch, seqlen")
    return attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                  return_attn_probs)


def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                              alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash_attn_func with q, k and v in one tensor, qkv [batch, seqlen, 3, heads, dim].

        >>> out = flash_attn_qkvpacked_func(torch.randn(2, 32, 3, 4, 16).half(), causal=True)
    """
    q, k, v = unpacked("qkv", qkv, 3, "batch, seqlen")
    return attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                  return_attn_probs)


# ---- sequences of different lengths ----------------------------------------------------------------------------------

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """Attention within each of the sequences that lie one after another in q [total_q, heads_q, dim] and in k and v
    [total_k, heads_kv, dim]: of q's shape. cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], where they begin, and the
    end of the last; max_seqlen_q, max_seqlen_k: the longest, or more.

    block_table: int32 [batch, blocks]; k and v are [num_blocks, block_size, heads_kv, dim], and row j of sequence b is row
    j % block_size of block block_table[b, j // block_size]. block_size is any number. There are no gradients then.

        >>> q, k, v = (torch.randn(40, 4, 16, dtype=torch.float16) for _ in range(3))
        >>> begin = torch.tensor([0, 8, 40], dtype=torch.int32)     # of 8 and 32 rows
        >>> out = flash_attn_varlen_func(q, k, v, begin, begin, 32, 32, causal=True)
    """
    return attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                  return_attn_probs, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), block_table)


def flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
                                    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """flash_attn_varlen_func with k and v in one tensor, kv [total_k, 2, heads_kv, dim].

        >>> q, kv = torch.randn(40, 4, 16).half(), torch.randn(40, 2, 4, 16).half()
        >>> begin = torch.tensor([0, 8, 40], dtype=torch.int32)
        >>> out = flash_attn_varlen_kvpacked_func(q, kv, begin, begin, 32, 32)
    """
    k, v = unpacked("kv", kv, 2, "total")
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                                  softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                     window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
                                     return_attn_probs=False):
    """flash_attn_varlen_func with q, k and v in one tensor, qkv [total, 3, heads, dim].

        >>> begin = torch.tensor([0, 8, 40], dtype=torch.int32)
        >>> out = flash_attn_varlen_qkvpacked_func(torch.randn(40, 3, 4, 16).half(), begin, 32)
    """
    q, k, v = unpacked("qkv", qkv, 3, "total")
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale,
                                  causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


# ---- what they share -------------------------------------------------------------------------------------------------

def unpacked(name, x, count, axes):
    """The `count` tensors that lie in x along the axis before heads. Their gradients are put together in one copy."""
    axis = x.dim() - 3
    if axis != len(axes.split()) or x.shape[axis] != count:
        raise BadArgument(f"{name} has shape {tuple(x.shape)}; it must be [{axes}, {count}, heads, dim]")
    return x.unbind(axis)


def attend(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
           cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, block_table=None):
    asked = dict(softmax_scale=softmax_scale, causal=bool(causal), window=sides(window_size),
                 softcap=softcap if softcap and softcap > 0 else None, alibi_slopes=alibi_slopes, dropout_p=dropout_p,
                 cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q,
                 max_seqlen_k=max_seqlen_k, page_table=block_table)
    # Drawn again for S_dmask, so that asking for it changes nothing.
    replay = generator_as_it_is(q) if return_attn_probs and dropout_p > 0 else None
    if block_table is not None and torch.is_grad_enabled():
        with torch.no_grad():
            out, lse = _torch.attention(q, k, v, **asked, return_lse=True)
        out, lse = WithoutGradients.apply(q, k, v, out, lse)
    else:
        out = _torch.attention(q, k, v, **asked, deterministic=deterministic, return_lse=return_attn_probs)
        if not return_attn_probs:
            return out
        out, lse = out
    if not return_attn_probs:
        return out
    if replay is None:
        return out, with_infinity(lse), q.new_empty(0)
    return out, with_infinity(lse), probabilities(q, k, lse, _torch.draw(q, replay), **asked)


def generator_as_it_is(x):
    """A copy of the generator that dropout on x's device draws from."""
    live = torch.cuda.default_generators[x.get_device()] if x.is_cuda else torch.default_generator
    copy = torch.Generator(x.device)
    copy.set_state(live.get_state())
    return copy


class WithoutGradients(torch.autograd.Function):
    """Results of keys in pages: a program may compute them while gradients are recorded, but not ask for them."""

    @staticmethod
    def forward(ctx, q, k, v, *results):
        return tuple(x.view_as(x) for x in results)

    @staticmethod
    def backward(ctx, *grads):
        raise Unsupported("block_table: keys in blocks have no gradients")
