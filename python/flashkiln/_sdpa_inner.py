"""The operators that nested tensors and attention.bias.causal_lower_right call on CUDA in place of
scaled_dot_product_attention. Each function has an operator's arguments, and returns (why FlashKiln cannot serve it or "",
what find_case of _sdpa.py is asked, what attention is called with, what makes the operator's results of (out, lse))."""
from __future__ import annotations

import torch


def unserved(**given):
    """The first argument that is not None, as a reason."""
    return next((f"{name} is given" for name, value in given.items() if value is not None), "")


def scaled_flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """_scaled_dot_product_flash_attention, where causal is bottom-right: of causal_lower_right."""
    why = unserved(dropout_p=dropout_p or None, return_debug_mask=return_debug_mask or None)
    lengths = q.shape[-2], k.shape[-2]
    return why, {"causal": is_causal}, {"layout": "bhsd", "causal": is_causal, "softmax_scale": scale}, lambda out, lse: (
        out, lse, None, None, *lengths, *nothing(q, 3))


def flash_forward(q, k, v, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
                  window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None):
    """_flash_attention_forward: of nested tensors."""
    why = unserved(dropout_p=dropout_p or None, return_debug_mask=return_debug_mask or None, seqused_k=seqused_k,
                   window_size_left=window_size_left, window_size_right=window_size_right, alibi_slopes=alibi_slopes)
    asked, arguments = sequences(cum_seq_q, cum_seq_k, max_q, max_k, is_causal, "bottom-right", scale)
    return why, asked, arguments, lambda out, lse: (out, lse, *nothing(q, 3))


def efficient_forward(q, k, v, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type,
                      compute_log_sumexp=False, *, scale=None, seqlen_k=None, window_size=None):
    """_efficient_attention_forward: of both, where flash does not apply. Packed tensors have a leading axis of 1 here."""
    why = unserved(dropout_p=dropout_p or None, bias=bias, window_size=window_size, seqlen_k=seqlen_k)
    align = "top-left" if custom_mask_type == 1 else "bottom-right"
    asked, arguments = sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, custom_mask_type != 0, align, scale)
    return why, asked, arguments, lambda out, lse: (out, lse, *nothing(q, 2), q.shape[1], k.shape[1])


def sequences(cu_q, cu_k, max_q, max_k, causal, align, scale):
    asked = {"causal": causal, "align": align if causal else "bottom-right", "packed": cu_q is not None}
    arguments = {"causal": causal, "align": asked["align"], "softmax_scale": scale}
    if cu_q is not None:
        arguments.update(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=int(max_q), max_seqlen_k=int(max_k))
    return asked, arguments


def nothing(q, n):
    """Outputs that say how dropout was drawn, of calls without."""
    return [q.new_empty(0, dtype=torch.int64) for _ in range(n)]


INNER = {"_scaled_dot_product_flash_attention": scaled_flash, "_flash_attention_forward": flash_forward,
         "_efficient_attention_forward": efficient_forward}
