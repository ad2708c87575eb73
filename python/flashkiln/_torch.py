"""PyTorch: attention() on tensors, with autograd. Eager calls go straight to the kernels (_torch_launch.py); compiled ones, and those
under dispatch modes, go through the operators of _torch_ops.py, which call the same functions."""
from __future__ import annotations

from typing import NamedTuple, Tuple

import torch
from torch.autograd import forward_ad
from torch._C import _len_torch_dispatch_stack
from torch.compiler import is_compiling

from . import _problem, _torch_e4m3, _torch_ops  # noqa: F401  the latter registers the operators
from ._arguments import BOOL_BIAS, refuse_bools
from ._torch_launch import DTYPES, E4M3, ELEMENTS, NO_EXTRAS, apply, converted, forward
from .errors import BadArgument, Unsupported

PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may do something of their own with operators
_any_autocast = torch._C._is_any_autocast_enabled
_transforms = torch._C._are_functorch_transforms_active
_is_tracing = torch._C._is_tracing  # torch.jit.trace, which records what the dispatcher sees


def attention(q, k, v, *, causal=False, window=None, mask=None, sparsity=None, score=None, bias=None, softcap=None,
              alibi_slopes=None, sink=None, arrays=None, dropout_p=0.0, softmax_scale=None, deterministic=False,
              align="bottom-right", layout="bshd", cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
              max_seqlen_k=None, seqused_k=None, page_table=None, num_splits=None, return_lse=False, generator=None, q_descale=None, k_descale=None,
              v_descale=None, fast=False):
    """softmax(mask(score(softmax_scale * q k^T))) v, exactly, in memory linear in the lengths, with gradients.

    Tensors: float16, bfloat16, float32, or (k and v, or all three) float8_e4m3fn (below), on a CUDA device; on the CPU an emulator computes, which is slow. Head dims 1 to
    576, of v 512 (what is no multiple of 8, above 256 of 64, is filled up); strides are free, and what the kernels cannot read as it is (rows that are not 16-byte aligned) is copied.
    Under autocast q, k and v take its dtype.

        q                [batch, seqlen_q, heads, dim]
        k, v             [batch, seqlen_k, heads_kv, dim or dim_v]; heads is a multiple of heads_kv (GQA, MQA)
        result           [batch, seqlen_q, heads, dim_v]; with return_lse, (result, lse)
        lse              float32 [batch, heads, seqlen_q]: log of the sum of exp of a row's scores, differentiable

    A query that sees no key has the result 0 and the lse -inf.

    causal, window   query i sees key j up to i + diag; and within window = (left, right) of i + diag, where an int w is
                     (w, 0) with causal and (w, w) without it, and -1 is unbounded. diag is seqlen_k - seqlen_q, or 0
                     with align="top-left"
    mask, score      an expression, the name of a built-in term ("prefix", "relative(128)", ...), a function of symbols
                     (b, h, q, k), for scores (s, b, h, q, k), or a list of these: docs/expressions.md,
                     docs/masks-and-scores.md. Masks are joined by and; a mask may be a block mask, too
    sparsity         one more mask, of blocks: a pattern ("butterfly(128)", "bigbird(64)", 'blocks(64)="i >= j"', ...), a
                     block mask, FlexAttention's BlockMask, or a list of these: docs/block-sparse.md
    arrays           {name: tensor} that masks and scores read: ints as int32, floats as float32, or of 16 bits as they are,
                     with gradients. Ints beyond int32 raise on the CPU, and count as its ends on a GPU, which only lengths
                     ("length", "first", "prefix") mean. Axes of 1 are repeated. What an axis runs over follows from plain indices, as in
                     slope[h]; a name such as "slope:float[b][h]" says it
    bias             added to the scores: [batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1], or the last of these
    softcap          c: scores become c tanh(score / c)
    alibi_slopes     [heads] or [batch, heads]: slope * abs(i + diag - j) is taken from the scores
    sink             [heads]: one more column of scores, without key and value
                     Scores apply in the order softcap, alibi_slopes, bias, score
    dropout_p        the share of weights dropped, to 1/256 (docs/dropout.md); two int64 are drawn from `generator`, or
                     PyTorch's own, on q's device for each call
    softmax_scale    1 / sqrt(dim) unless given
    deterministic    gradients are bitwise equal from run to run; torch.use_deterministic_algorithms asks for it, too
    layout           "bshd" as above, or "bhsd": [batch, heads, seqlen, dim] for q, k, v and the result. In memory, result
                     and gradients are [batch, seqlen, heads, dim] in either case

    Sequences of different lengths (docs/sequences.md), all int32 on q's device, else converted, beyond it to its ends:

    cu_seqlens_q, _k   [batch + 1]: where packed sequences begin. q is [total_q, heads, dim], k and v likewise, lse
                       [heads, total_q]; rows of no sequence have the result 0. max_seqlen_q, _k: upper bounds of lengths
    seqused_k          [batch]: only the first keys are there
    page_table         [batch, columns]: k and v are [pages, page_size, heads_kv, dim]; without gradients
    num_splits         CTAs that share a row's keys, for few queries and many keys: 0 as many as are fastest, 1 one;
                       None decides by the lengths

    float8_e4m3fn: k and v beside q of float16 or bfloat16, as in caches of 8 bits, whose result is of q's dtype; or q, k and v, whose
    result is bfloat16. Without gradients (docs/e4m3.md).

    q_descale, k_descale, v_descale   (q_descale: of q of float8_e4m3fn) float32, of a shape that broadcasts to [batch, heads_kv]: q counts for q_descale q of
                       the query heads that read that kv head, k for k_descale k, v for v_descale v; 1 unless given

    fast             what saves instructions on sm_90 may be rounded once more, without gradients. float8_e4m3fn: weights, in the logarithm, for a
                     third to two thirds more speed and 1.2 times the error, and an lse of the rounded weights; without dropout. bfloat16: queries
                     times the scale, for 5 % (docs/precision.md); without scores

    Raises BadProblem, BadArgument (both are ValueErrors), Unsupported, and the other exceptions of flashkiln.errors.

        >>> q, k, v = (torch.randn(1, 64, 2, 32, requires_grad=True) for _ in range(3))
        >>> slope = torch.tensor([0.5, 0.25], requires_grad=True)
        >>> o = attention(q, k, v, causal=True, score="s - slope[h] * abs(q - k)", arrays={"slope": slope})
        >>> o.sum().backward()
        >>> slope.grad.shape
        torch.Size([2])
    """
    if not isinstance(q, torch.Tensor):
        return of_arrays(**locals())
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        raise BadArgument(f"k is a {type(k).__name__} and v a {type(v).__name__}; they must be tensors, as q is")
    traced, named, brought, given, patterns = is_compiling(), {}, (), (), ()
    dropout_p = _problem.dropout_of(dropout_p)
    if sparsity is not None:
        mask, patterns = _problem.joined(mask, sparsity)
    if mask.__class__ is not str and mask is not None:
        mask, arrays = _problem.read("mask", mask, arrays, known_lengths(
            q, k, layout, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, page_table))
    if score.__class__ is not str and score is not None:
        score, arrays = _problem.read("score", score, arrays)
    if bias is not None or alibi_slopes is not None or sink is not None or arrays:
        named, brought, given = name_arrays(q, bias, alibi_slopes, sink, arrays)
    if sink is not None and q.numel() and not k.numel():
        k, v, seqused_k = with_a_key(q, k, v, layout, cu_seqlens_q is not None, page_table, seqused_k)
    if traced:
        window = tuple(window) if isinstance(window, list) else window
    else:
        window, softcap = _problem.window_of(window), None if softcap is None else number("softcap", softcap)
    said = (causal, window, mask, score, softcap, align, brought, given, dropout_p > 0, cu_seqlens_q is not None,
            seqused_k is not None, page_table is not None, bool(fast), patterns)
    terms = traced_terms(fixed(said)) if traced else _problem.terms(*said)
    tensors = ()
    if named or terms.names:
        tensors = tuple([element_as(name, x, ELEMENTS[element], traced)
                         for name, x, element in zip(terms.names, _problem.in_order(terms.names, named), terms.elements)])
        if "bits" in named and "bits" in terms.words.split() and cu_seqlens_q is None and page_table is None and k.dim() == 4:
            _problem.check_words(named["bits"].shape[-1], k.shape[_problem.rows_axis(layout)])
        if any([x.requires_grad for x in tensors]):
            tensors = tuple([x if scored else x.detach() for x, scored in zip(tensors, terms.scored)])
    e4m3 = k.dtype is E4M3
    if not e4m3 and (q_descale is not None or k_descale is not None or v_descale is not None):
        raise BadArgument(f"q_descale, k_descale and v_descale are those of float8_e4m3fn; k is of {k.dtype}")
    if traced or _any_autocast():
        if not e4m3:
            q, k, v = autocast(q, k, v)
        elif q.dtype is not E4M3:
            q, = autocast(q)
    dim, dim_v, unit, pad = q.shape[-1], v.shape[-1], 8, padded
    _problem.check_head_dims(dim, dim_v)
    scale = _problem.scale_of(softmax_scale if softmax_scale is None else number("softmax_scale", softmax_scale), dim)
    if e4m3:
        unit, pad = (_torch_e4m3.UNIT, _torch_e4m3.padded) if q.dtype is E4M3 else (_torch_e4m3.KV_UNIT, _torch_e4m3.padded_beside)
    if dim % unit or dim > _problem.NARROW_HEAD_DIM:
        q, k = pad(q), pad(k)
    if dim_v % unit or dim_v > _problem.NARROW_HEAD_DIM:
        v = pad(v)
    extras = NO_EXTRAS
    if dropout_p > 0 or cu_seqlens_q is not None or seqused_k is not None or page_table is not None:
        extras = (draw(q, generator) if dropout_p > 0 else None, int32("cu_seqlens_q", cu_seqlens_q, q),
                  int32("cu_seqlens_k", cu_seqlens_k, q), int32("seqused_k", seqused_k, q), int32("page_table", page_table, q))
        if cu_seqlens_q is not None:
            layout = _problem.packed_layout(layout)
            if cu_seqlens_k is None:
                raise BadArgument("cu_seqlens_k is missing; cu_seqlens_q needs it")
    elif cu_seqlens_k is not None:
        raise BadArgument("cu_seqlens_q is missing; cu_seqlens_k needs it")
    if forward_ad._current_level >= 0:
        raise Unsupported("forward-mode derivatives: there are gradients alone")
    by_operator = traced or _len_torch_dispatch_stack() or _transforms() or _is_tracing() or q.__class__ not in PLAIN
    if by_operator and not traced and _transforms():
        refuse_transforms(q, k, v, *tensors, *[x for x in extras if x is not None])
    if e4m3:
        _torch_e4m3.check(q, k, v, fast, q_descale, (*tensors, k_descale, v_descale))
        how = (layout, scale, dropout_p, _problem.splits_of(num_splits), max_seqlen_q or 0, max_seqlen_k or 0)
        given = q_descale, k_descale, v_descale
        if by_operator:
            given = [_torch_e4m3.as_float32(x, q) for x in given]
            o, lse = torch.ops.flashkiln.attention_e4m3(q, k, v, list(tensors), *extras, *given, terms.words, *how)
        else:
            o, lse, *_ = forward(terms, how, q, k, v, tensors, extras, return_lse,
                                 _torch_e4m3.descales(q, k, layout, extras, given))
        return (o[..., :dim_v], lse) if return_lse else o[..., :dim_v]
    differentiable = ((q.requires_grad or k.requires_grad or v.requires_grad or (
        tensors and any([x.requires_grad for x in tensors]))) and torch.is_grad_enabled())
    if differentiable or (by_operator and not traced and _is_tracing()):  # whose check traces again, without gradients
        num_splits = 1 if num_splits is None else num_splits
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    if differentiable:
        if page_table is not None:
            raise Unsupported("page_table: keys in pages have no gradients; use torch.no_grad()")
        if fast:
            raise Unsupported("fast: what is rounded once more has no gradients; use torch.no_grad()")
    how = (layout, scale, dropout_p, _problem.splits_of(num_splits), max_seqlen_q or 0, max_seqlen_k or 0)
    if by_operator:
        o, lse = torch.ops.flashkiln.attention_forward(q, k, v, list(tensors), *extras, terms.words, *how,
                                                       bool(deterministic))
    elif differentiable:
        o = apply(terms, how, deterministic, return_lse, extras, q, k, v, *tensors)
        if return_lse:
            o, lse = o
    else:
        o, lse, *_ = forward(terms, how, q, k, v, tensors, extras, return_lse)
    if o.shape[-1] != dim_v:
        o = o[..., :dim_v]
    return (o, lse) if return_lse else o


def of_arrays(**arguments):
    """attention() of arrays that are no tensors."""
    from ._numpy import attention
    return attention(**arguments)


def name_arrays(q, bias, alibi_slopes, sink, arrays):
    """({name: tensor}, (name, element) of those that arguments of their own bring, (key, element, rank) of the others)."""
    named = {}
    if alibi_slopes is not None:
        alibi_slopes = tensor_of(alibi_slopes, q)
        named["slope" if alibi_slopes.dim() == 1 else "batch_slope"] = alibi_slopes
    if bias is not None:
        bias = tensor_of(bias, q)
        if bias.dtype is torch.bool:
            raise BadArgument(BOOL_BIAS)
        named["bias"] = bias[(None,) * (4 - bias.dim())] if bias.dim() < 4 else bias
    if sink is not None:
        named["sink"] = tensor_of(sink, q)
    own, given = tuple([(name, float_element(x.dtype)) for name, x in named.items()]), []
    for key, x in (arrays or {}).items():
        refuse_bools(key, x)
        x = torch.as_tensor(tensor_of(x, q), device=q.device)
        given.append((key, float_element(x.dtype) if x.is_floating_point() else "int", x.dim()))
        named[_problem.bare(key)] = x
    return named, own, tuple(given)


def tensor_of(x, q):
    """A tensor as it is; of anything else one on q's device."""
    if isinstance(x, torch.Tensor):
        return x
    if min(getattr(x, "strides", None) or (0,)) < 0 or not getattr(getattr(x, "dtype", None), "isnative", True):
        x = x.astype(x.dtype.newbyteorder("="), order="C")  # NumPy's, which PyTorch does not take
    return torch.as_tensor(x, device=q.device)


def number(name, x):
    """A number that may be given as a tensor, whose gradient would be lost."""
    if x.__class__ is float:
        return x
    if isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled():
        term = "s * scale" if name == "softmax_scale" else "cap * torch.tanh(s / cap)"
        raise Unsupported(f"{name} requires a gradient, and is a number here; a score has one: score=lambda s, b, h, q, k: {term}")
    return float(x)


def element_as(name, x, dtype, traced=False):
    if x.is_complex() or (dtype is torch.int32 and x.is_floating_point()):
        raise BadArgument(f"'{name}' is of {x.dtype}; it must be of {'ints' if dtype is torch.int32 else 'floats'}")
    if x.dtype is torch.int64 and dtype is torch.int32 and name not in _problem.LENGTHS and can_look(x):
        _problem.check_ints(name, *map(int, x.aminmax()))
    x = in_int32(x) if dtype is torch.int32 else converted(x, dtype)
    return x if traced or not x.is_neg() else x.resolve_neg()  # kernels read memory, which z.conj().imag negates


def can_look(x):
    """Whether Python may read elements here: it does where nothing waits for a GPU, and nothing is traced or transformed."""
    return not (is_compiling() or _len_torch_dispatch_stack() or _transforms() or _is_tracing()) and (
        x.__class__ in PLAIN and x.device.type == "cpu" and x.numel() > 0)


def known_lengths(q, k, layout, cu_q, cu_k, max_q, max_k, used, pages):
    """batch, query heads, queries and keys of a call, as far as they are known; None and 0 for what is not."""
    if cu_q is not None:
        return None, None, max_q or longest(cu_q), max_k or longest(cu_k)
    pages = None if pages is None else getattr(pages, "shape", ())
    if q.dim() != 4 or k.dim() != 4 or layout not in _problem.LAYOUTS or (pages is not None and len(pages) != 2):
        return None, None, max_q or 0, max_k or 0
    return _problem.lengths(q.shape, k.shape, layout, pages, used is not None, max_k)


def longest(starts):
    """The longest of packed sequences that begin there; 0: not known."""
    there = isinstance(starts, torch.Tensor) and starts.dim() == 1 and can_look(starts[1:])
    return int(starts.diff().max()) if there else 0


def refuse_transforms(*tensors):
    """What operators have no rules for. functionalize has one, and so have tensors that a transform does not ask about."""
    if any(map(torch._C._functorch.is_batchedtensor, tensors)):
        raise Unsupported("torch.func.vmap: attention has no batching rule; it has batches, heads and sequences of different lengths")
    grads = torch.is_grad_enabled() and any(x.requires_grad and torch._C._functorch.is_gradtrackingtensor(x) for x in tensors)
    if grads:
        raise Unsupported("torch.func.grad, vjp and jacrev: attention has gradients by autograd alone: requires_grad_() and backward()")


def in_int32(x):
    """Ints beyond int32 as its ends: as lengths they mean what they did."""
    if x.dtype is torch.int64:
        x = x.clamp(-2 ** 31, 2 ** 31 - 1)
    return converted(x, torch.int32)


def with_a_key(q, k, v, layout, packed, page_table, seqused_k):
    """k, v, seqused_k; where there are no keys, but a sink, which is a column of its own, with one that no query sees."""
    row = _problem.rows_axis("packed" if packed else layout)
    if page_table is not None or k.dim() != q.dim() or v.dim() != q.dim() or k.shape[row] or v.shape[row]:
        return k, v, seqused_k
    pad = (0, 0) * (k.dim() - 1 - row) + (0, 1)
    k, v = (torch.nn.functional.pad(x, pad) for x in (k, v))
    return k, v, seqused_k if packed else torch.zeros(q.shape[0], dtype=torch.int32, device=q.device)


def float_element(dtype):
    """How floats of a dtype are passed on: of 16 bits as they are, others as float32."""
    return DTYPES[dtype] if dtype is torch.float16 or dtype is torch.bfloat16 else "float"


def fixed(value):
    """While tracing: numbers that the compiler holds as symbols, as the constants that they are in this call."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar
    if isinstance(value, tuple):
        return tuple([fixed(x) for x in value])
    return value if value is None or isinstance(value, str) else guard_scalar(value)


@torch.compiler.assume_constant_result
def traced_terms(said):
    """What a traced call needs of its Terms, as a constant: the compiler does not look inside."""
    terms = _problem.terms(*said)
    return TracedTerms(terms.words, terms.names, terms.elements, terms.scored)


class TracedTerms(NamedTuple):
    words: str
    names: Tuple[str, ...]
    elements: Tuple[str, ...]
    scored: Tuple[bool, ...]


def autocast(*tensors):
    """As scaled_dot_product_attention: under autocast, floats take its dtype."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]


def padded(x):
    """With zeros behind, to a head dim that the kernels know."""
    missing = _problem.padding(x.shape[-1])
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def int32(name, x, q):
    if x is None or (x.__class__ is torch.Tensor and x.dtype is torch.int32 and x.dim() and x.stride(-1) == 1):
        return x
    x = tensor_of(x, q)
    if x.numel() and (x.is_floating_point() or x.is_complex()):
        raise BadArgument(f"{name} is of {x.dtype}; it must be of ints")
    return in_int32(x).contiguous()


def draw(q, generator):
    """{seed, offset} of a call's dropout, in device memory: what a captured graph replays draws anew."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise BadArgument(f"generator is {generator!r}; it must be a torch.Generator")
    return torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=q.device, generator=generator)
