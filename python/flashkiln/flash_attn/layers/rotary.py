"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), in PyTorch's own operations."""
from __future__ import annotations

import torch

from ...errors import BadArgument


def apply_rotary_emb(x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None):
    """x [batch, seqlen, heads, dim] with its first rotary_dim dims turned by their positions; of x's shape.

    - cos, sin: [positions, rotary_dim / 2].
    - interleaved: pairs are dims 2i and 2i + 1; otherwise i and i + rotary_dim / 2.
    - inplace: the result is written into x, which is returned.
    - seqlen_offsets: an int or [batch]: the position of each sequence's first row.
    - cu_seqlens: [batch + 1]: x is [total, heads, dim], sequences one after another. max_seqlen is not needed for that.

        >>> angle = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(8) / 8))
        >>> y = apply_rotary_emb(torch.randn(2, 32, 4, 16), angle.cos(), angle.sin())
    """
    if cu_seqlens is None and isinstance(seqlen_offsets, int):
        if seqlen_offsets < 0 or seqlen_offsets + x.shape[1] > cos.shape[0]:
            raise BadArgument(f"cos has {cos.shape[0]} rows; positions {seqlen_offsets} to {seqlen_offsets + x.shape[1] - 1} are needed")
        at = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
    elif cu_seqlens is None:
        at = seqlen_offsets.long()[:, None] + torch.arange(x.shape[1], device=x.device)
    else:
        row = torch.arange(len(x), device=x.device)
        sequence = torch.searchsorted(cu_seqlens[1:].long(), row, right=True).clamp(max=len(cu_seqlens) - 2)
        begin = seqlen_offsets if isinstance(seqlen_offsets, int) else seqlen_offsets[sequence]
        at = row - cu_seqlens[sequence] + begin
    out = rotate(x, cos[at], sin[at], interleaved)
    return x.copy_(out) if inplace else out


apply_rotary_emb_func = apply_rotary_emb  # its older name


def rotate(x, cos, sin, interleaved):
    """x [..., seqlen, heads, dim] turned by the angles of cos and sin [..., seqlen, rotary_dim / 2], computed in float32 at
    least."""
    exact = torch.promote_types(x.dtype, torch.float32)
    cos, sin, half = cos.unsqueeze(-2).to(exact), sin.unsqueeze(-2).to(exact), cos.shape[-1]
    turned, rest = x[..., :2 * half].to(exact), x[..., 2 * half:]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.split(half, -1)
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)
