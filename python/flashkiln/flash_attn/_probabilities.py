"""S_dmask of return_attn_probs: the softmax, negative where dropout struck. Made by PyTorch from the scores' definition, at
the cost of the whole matrix; the signs are the kernels' own."""
from __future__ import annotations

from ctypes import byref, c_void_p

import torch

from .. import _problem, _runtime, _torch
from .._capi import library


@torch.no_grad()
def probabilities(q, k, lse, state, *, softmax_scale, causal, window, softcap, alibi_slopes, dropout_p, cu_seqlens_q,
                  cu_seqlens_k, max_seqlen_q, max_seqlen_k, page_table):
    """[batch, heads, max_seqlen_q, max_seqlen_k], of q's dtype; 0 beyond a sequence's end. state: {seed, offset} of the
    dropout; the rest are arguments of attention()."""
    left, right = (-1, -1) if window is None else window
    how = (_problem.scale_of(softmax_scale, q.shape[-1]), left, 0 if causal else right, softcap)
    if cu_seqlens_q is None:
        rows = list(zip(q, k, lse))
        max_seqlen_q, max_seqlen_k = q.shape[1], k.shape[1]
    else:
        rows = packed_rows(q, k, lse, cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), page_table)
    out = q.new_zeros(len(rows), q.shape[-2], max_seqlen_q, max_seqlen_k)
    for b, (q_b, k_b, lse_b) in enumerate(rows):
        slopes = None if alibi_slopes is None else alibi_slopes if alibi_slopes.dim() == 1 else alibi_slopes[b]
        out[b, :, :len(q_b), :len(k_b)] = softmax(q_b, k_b, lse_b, slopes, *how)
    return torch.where(keep_mask(out, dropout_p, state), out, -out)


def packed_rows(q, k, lse, begin_q, begin_k, page_table):
    """q, k and lse of each sequence."""
    rows = []
    for b, (q0, q1, k0, k1) in enumerate(zip(begin_q, begin_q[1:], begin_k, begin_k[1:])):
        k_b = k[k0:k1]
        if page_table is not None:
            used = -((k0 - k1) // k.shape[1])  # rounded up
            k_b = k[page_table[b, :used].long()].flatten(0, 1)[:k1 - k0]
        rows.append((q[q0:q1], k_b, lse[:, q0:q1]))
    return rows


def softmax(q, k, lse, slopes, scale, left, right, softcap):
    """[heads, seqlen_q, seqlen_k] of one sequence."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i, j = torch.arange(len(q), device=q.device), torch.arange(len(k), device=q.device)
    distance = i[:, None] + len(k) - len(q) - j
    if slopes is not None:
        s = s - slopes[:, None, None] * distance.abs()
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    hidden |= distance > left if left >= 0 else hidden
    hidden |= -distance > right if right >= 0 else hidden
    return (s - lse[..., None]).exp().masked_fill(hidden, 0.0)


def keep_mask(like, dropout_p, state):
    """Which weights kernels keep. It depends on neither lengths nor packing: a plain problem of any head dim has it."""
    on = _runtime.device(f"cuda:{like.get_device()}" if like.is_cuda else "emu")
    handle = on.kernel(f"fwd {_torch.DTYPES[like.dtype]} d64 dropout")[0]
    batch, heads, seqlen_q, seqlen_k = like.shape
    args = library().make("fk_args", batch=batch, num_heads_q=heads, num_heads_kv=heads, seqlen_q=seqlen_q,
                          seqlen_k=seqlen_k, dropout_p=dropout_p, dropout_state=state.data_ptr())
    out = torch.empty(like.shape, dtype=torch.uint8, device=like.device)
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else None
    library()("fk_keep_mask", c_void_p(handle), byref(args), c_void_p(out.data_ptr()), c_void_p(stream))
    return out.bool()
