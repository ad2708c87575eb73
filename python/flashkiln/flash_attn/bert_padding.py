"""From padded batches to rows one after another, and back."""
from __future__ import annotations

import torch


class Take(torch.autograd.Function):
    """Rows of x by index. No index may come twice: so gradients are put, not added."""

    @staticmethod
    def forward(ctx, x, indices):
        ctx.save_for_backward(indices)
        ctx.rows = x.shape[0]
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx, grad):
        return Put.apply(grad, *ctx.saved_tensors, ctx.rows), None


class Put(torch.autograd.Function):
    """`rows` rows, of which those at indices are x's and the others 0: the converse of Take."""

    @staticmethod
    def forward(ctx, x, indices, rows):
        ctx.save_for_backward(indices)
        return x.new_zeros(rows, *x.shape[1:]).index_copy_(0, indices.long(), x)

    @staticmethod
    def backward(ctx, grad):
        return Take.apply(grad, *ctx.saved_tensors), None, None


index_first_axis = Take.apply  # (x [rows, ...], indices [n], each at most once) -> [n, ...]
index_put_first_axis = Put.apply  # (x [n, ...], indices [n], rows) -> [rows, ...]


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """The rows of hidden_states [batch, seqlen, ...] that masks [batch, seqlen] show, one after another:
    (rows [total, ...], indices [total] into [batch * seqlen], cu_seqlens int32 [batch + 1], the longest as an int,
    seqused int32 [batch]). unused_mask: rows that are kept in memory but do not count in seqused.

        >>> x, mask = torch.randn(2, 8, 16), torch.arange(8) < torch.tensor([[5], [8]])
        >>> rows, indices, cu_seqlens, longest, seqused = unpad_input(x, mask)
    """
    seqused = attention_mask.sum(-1, dtype=torch.int32)
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    indices = kept.flatten().nonzero().flatten()
    lengths = kept.sum(-1, dtype=torch.int32)
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, *beginnings(lengths), seqused)


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """As unpad_input, without seqused, where several sequences lie in a row of the batch: attention_mask_in_length [batch,
    seqlen] has the lengths of these in its first places and 0 behind them.

        >>> x, lengths = torch.randn(2, 4, 16), torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0]])
        >>> rows, indices, cu_seqlens, longest = unpad_input_for_concatenated_sequences(x, lengths)
    """
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    place = torch.arange(attention_mask_in_length.shape[-1], device=filled.device)
    indices = (place < filled).flatten().nonzero().flatten()
    lengths = attention_mask_in_length[attention_mask_in_length > 0].to(torch.int32)
    return (index_first_axis(hidden_states.flatten(0, 1), indices), indices, *beginnings(lengths))


def beginnings(lengths):
    """(cu_seqlens int32 [n + 1], the longest as an int)."""
    ends = lengths.cumsum(0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0)), lengths.max().item()


def pad_input(hidden_states, indices, batch, seqlen):
    """The converse of unpad_input: [batch, seqlen, ...] from rows [total, ...], 0 where there is no row.

        >>> pad_input(torch.ones(3, 16), torch.tensor([0, 1, 4]), 2, 4).shape
        torch.Size([2, 4, 16])
    """
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
