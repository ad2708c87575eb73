"""flashkiln::attention_forward and flashkiln::attention_backward, and flashkiln::attention_e4m3 of elements of 8 bits: what
torch.compile, torch.export and dispatch modes see of attention(). They call the functions that eager calls take."""
from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _problem, _torch_e4m3, _torch_launch

EXTRAS = slice(4, 9)  # of attention_forward's arguments; likewise its arrays, and those from layout to max_seqlen_k
ARRAYS, HOW = 3, slice(10, 16)


def forward(q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], dropout_state: Optional[Tensor],
            cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor], seqused_k: Optional[Tensor],
            page_table: Optional[Tensor], words: str, layout: str, scale: float, dropout_p: float, num_splits: int,
            max_seqlen_q: int, max_seqlen_k: int, deterministic: bool) -> Tuple[Tensor, Tensor]:
    extras = (dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table)
    how = (layout, scale, dropout_p, num_splits, max_seqlen_q, max_seqlen_k)
    terms = _problem.Terms.of(words)
    return _torch_launch.forward(terms, how, q, k, v, arrays, extras)[:2]


def backward(dout: Optional[Tensor], dlse: Optional[Tensor], o: Tensor, lse: Tensor, wanted: Sequence[int], q: Tensor,
             k: Tensor, v: Tensor, arrays: Sequence[Tensor], dropout_state: Optional[Tensor],
             cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor], seqused_k: Optional[Tensor],
             page_table: Optional[Tensor], words: str, layout: str, scale: float, dropout_p: float, num_splits: int,
             max_seqlen_q: int, max_seqlen_k: int, deterministic: bool) -> List[Tensor]:
    """[dq, dk, dv, *gradients of the arrays with these numbers]"""
    extras = (dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table)
    how = (layout, scale, dropout_p, num_splits, max_seqlen_q, max_seqlen_k)
    terms = _problem.Terms.of(words)
    call, q, k, v = _torch_launch.find(terms, how, q, k, v, arrays, extras)
    mask = tuple(i in wanted for i in range(len(arrays)))
    grads = _torch_launch.backward(terms, call, dout, dlse, q, k, v, o, lse, arrays, extras, mask, deterministic)
    return [*grads[:3], *[g.contiguous() for g in grads[3:] if g is not None]]


def forward_e4m3(q: Tensor, k: Tensor, v: Tensor, arrays: Sequence[Tensor], dropout_state: Optional[Tensor],
                 cu_seqlens_q: Optional[Tensor], cu_seqlens_k: Optional[Tensor], seqused_k: Optional[Tensor],
                 page_table: Optional[Tensor], q_descale: Optional[Tensor], k_descale: Optional[Tensor],
                 v_descale: Optional[Tensor], words: str, layout: str, scale: float, dropout_p: float, num_splits: int,
                 max_seqlen_q: int, max_seqlen_k: int) -> Tuple[Tensor, Tensor]:
    """The descales have any shape that broadcasts to [batch, heads_kv]."""
    extras = (dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table)
    how = (layout, scale, dropout_p, num_splits, max_seqlen_q, max_seqlen_k)
    terms = _problem.Terms.of(words)
    given = _torch_e4m3.descales(q, k, layout, extras, (q_descale, k_descale, v_descale))
    return _torch_launch.forward(terms, how, q, k, v, arrays, extras, True, given)[:2]


attention_forward = torch.library.custom_op("flashkiln::attention_forward", forward, mutates_args=())
attention_backward = torch.library.custom_op("flashkiln::attention_backward", backward, mutates_args=())
attention_e4m3 = torch.library.custom_op("flashkiln::attention_e4m3", forward_e4m3, mutates_args=())


def in_memory(like, layout, heads_of, dim, dtype=None):
    """An empty tensor of like's batch and seqlen, and heads_of's heads: as Shapes.o lays it out."""
    _, row, head = _problem.LAYOUTS[layout]
    if layout == "packed":
        return like.new_empty((like.shape[0], heads_of.shape[head], dim), dtype=dtype)
    out = like.new_empty((like.shape[0], like.shape[row], heads_of.shape[head], dim), dtype=dtype)
    return out if layout == "bshd" else out.transpose(1, 2)


def forward_fake(q, v, layout):
    _, row, head = _problem.LAYOUTS[layout]
    lead = (q.shape[head], q.shape[row]) if layout == "packed" else (q.shape[0], q.shape[head], q.shape[row])
    o_dtype = torch.bfloat16 if q.dtype is _torch_e4m3.DTYPE else q.dtype
    return in_memory(q, layout, q, v.shape[-1], o_dtype), q.new_empty(lead, dtype=torch.float32)


@attention_forward.register_fake
def _(q, k, v, arrays, dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, words, layout, *rest):
    return forward_fake(q, v, layout)


@attention_e4m3.register_fake
def _(q, k, v, arrays, dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, q_descale, k_descale, v_descale, words,
      layout, *rest):
    return forward_fake(q, v, layout)


@attention_backward.register_fake
def _(dout, dlse, o, lse, wanted, q, k, v, arrays, dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, words,
      layout, *rest):
    grads = [in_memory(x, layout, x, x.shape[-1]) for x in (q, k, v)]
    return grads + [arrays[i].new_empty(arrays[i].shape) for i in wanted]


def setup_context(ctx, inputs, output):
    q, k, v, arrays = inputs[:4]
    ctx.save_for_backward(q, k, v, *output, *inputs[EXTRAS], *arrays)
    ctx.set_materialize_grads(False)
    ctx.rest = inputs[9:]


def differentiate(ctx, dout, dlse):
    q, k, v, o, lse, *rest = ctx.saved_tensors
    extras, arrays = rest[:5], rest[5:]
    needs = ctx.needs_input_grad
    wanted = [i for i, need in enumerate(needs[ARRAYS]) if need]
    if dout is None and dlse is None:
        return (None,) * len(needs)
    grads = torch.ops.flashkiln.attention_backward(dout, dlse, o, lse, wanted, q, k, v, arrays, *extras, *ctx.rest)
    of_arrays = dict(zip(wanted, grads[3:]))
    return (*grads[:3], [of_arrays.get(i) for i in range(len(arrays))], *(None,) * (len(needs) - 4))


attention_forward.register_autograd(differentiate, setup_context=setup_context)
