"""PyTorch: attention() on tensors, with autograd. Eager calls go straight to the kernels; compiled ones, and those under
dispatch modes, go through the operators of _torch_ops.py, which call the same functions."""
from __future__ import annotations

import functools
from ctypes import byref
from typing import NamedTuple, Tuple

import torch
from torch._C import _len_torch_dispatch_stack
from torch.compiler import is_compiling

from . import _problem, _runtime, _torch_e4m3
from .errors import BadArgument, Unsupported

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
ELEMENTS = {"float": torch.float32, "int": torch.int32, "fp16": torch.float16, "bf16": torch.bfloat16}  # of arrays
E4M3 = getattr(torch, "float8_e4m3fn", None)  # which other rules hold for: _torch_e4m3.py
PLAIN = (torch.Tensor, torch.nn.Parameter)  # other classes may do something of their own with operators
NO_EXTRAS = (None,) * 5  # dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table
_any_autocast = torch._C._is_any_autocast_enabled
_transforms = torch._C._are_functorch_transforms_active
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


# ---- launches --------------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=None)
def copies_tiles(device):
    """Whether kernels there copy tiles of arrays, which wants rows that begin at multiples of 16 bytes."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def with_tiles(terms, arrays):
    """The arrays, those of which tiles could be copied in rows that allow it: one pass over memory, which spares the kernels
    several."""
    if not any([axis is not None for axis in terms.rows]) or not copies_tiles(arrays[0].device):
        return arrays
    return [x if axis is None else aligned(x, axis) for x, axis in zip(arrays, terms.rows)]


def aligned(x, rows):
    unit, strides = 16 // x.element_size(), x.stride()
    if strides[rows] == 0 or 1 in (x.shape[rows], x.shape[-1]):  # one row for all queries
        return x
    odd = [n > 1 and s % unit for s, n in zip(strides[:-1], x.shape)]
    if strides[-1] == 1 and not x.data_ptr() & 15 and not any(odd):
        return x
    once = x[tuple([slice(0, 1) if s == 0 else slice(None) for s in strides])]
    return in_wide_rows(once, once.shape, x.dtype).copy_(once).expand(x.shape)


def in_wide_rows(like, shape, dtype):
    """An empty tensor whose rows begin at multiples of 16 bytes."""
    unit = 16 // dtype.itemsize
    return like.new_empty((*shape[:-1], -(-shape[-1] // unit) * unit), dtype=dtype)[..., :shape[-1]]


class Call:
    """What is known of a call but for its pointers."""
    __slots__ = ("launch", "index", "copies", "sizes", "layout", "o", "lse", "grads", "backward", "fields",
                 "strides", "arrays", "on", "dtype", "o_dtype")


def find(terms, how, q, k, v, arrays, extras):
    """The Call of these tensors, and q, k, v as it takes them: copied where 16-byte copies are impossible.
    how: (layout, scale, dropout_p, num_splits, max_seqlen_q, max_seqlen_k), num_splits -1 if it is not given."""
    key = (how, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype,
           q.get_device(), k.get_device(), v.get_device())
    if not terms.bare:
        key += tuple((x.shape, x.stride(), x.dtype, x.get_device()) for x in (*arrays, *extras[1:]) if x is not None)
    call = terms.calls.get(key)
    if call is None:
        call = _runtime.remember(terms.calls, key, describe(terms, how, q, k, v, arrays, extras))
    if call.copies or (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
        return find(terms, how, suitable(q), suitable(k), suitable(v), arrays, extras)
    return call, q, k, v


def suitable(x):
    """x, or a copy that 16-byte copies can read."""
    if _problem.suits(x.shape, x.stride(), 16 // x.element_size()) and not x.data_ptr() & 15:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def describe(terms, how, q, k, v, arrays, extras):
    layout, scale, dropout_p, num_splits, max_q, max_k = how
    _, cu_q, _, _, pages = extras
    check(terms, q, k, v, arrays, extras)
    call = Call()
    e4m3 = q.dtype is E4M3
    call.dtype, call.index, call.layout = "e4m3" if e4m3 else DTYPES[q.dtype], q.get_device(), layout
    call.o_dtype = torch.bfloat16 if e4m3 else q.dtype
    call.copies = not all(_problem.suits(x.shape, x.stride(), _runtime.UNITS[call.dtype]) for x in (q, k, v))
    sizes = call.sizes = _problem.shapes(q.shape, k.shape, v.shape, layout, None if cu_q is None else len(cu_q) - 1,
                                         max_q, max_k, None if pages is None else pages.shape)
    call.o, call.lse, call.backward, call.launch = sizes.o(layout), sizes.lse(layout), {}, None
    call.grads = (sizes.o(layout, sizes.dim), sizes.k(layout, sizes.dim), sizes.k(layout, sizes.dim_v))
    for decl, array in zip(terms.arrays, arrays):
        _problem.check_array(decl, array.shape, sizes)
    if call.copies or not (q.numel() and k.numel() and v.numel()):
        return call
    kv_layout = layout if pages is None else "bshd" if layout == "packed" else layout
    strides = call.strides = {"q": _problem.triple(q.shape, q.stride(), layout), "o": _problem.triple(*call.o, layout)}
    strides.update({n: _problem.triple(x.shape, x.stride(), kv_layout) for n, x in (("k", k), ("v", v))})
    call.on = _runtime.device("emu" if call.index < 0 else f"cuda:{call.index}", "h200" if e4m3 and call.index < 0 else None)
    call.arrays = [(a.shape, a.stride()) for a in arrays]
    call.fields = {"softmax_scale": scale, "dropout_p": dropout_p}
    split = _problem.wants_split(num_splits, sizes)
    more = {"num_splits": max(num_splits, 0)} if split else {}
    if pages is not None:
        more["page_table_stride"] = pages.stride(0)
    call.launch = _runtime.prepare(call.on, terms.spelling("fwd", call.dtype, sizes, *["split"] * split), sizes, strides,
                                   call.arrays, **call.fields, **more)
    return call


def check(terms, q, k, v, arrays, extras):
    """Dtypes and devices, of which the library sees nothing but pointers."""
    if q.dtype not in DTYPES and q.dtype is not E4M3:
        raise BadArgument(f"q is of {q.dtype}; it must be of {', '.join(map(str, (*DTYPES, E4M3)))}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise BadArgument(f"{name} is of {x.dtype} and q of {q.dtype}; they must be equal")
    names = ("k", "v", "dropout_state", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table", *terms.names)
    for name, x in zip(names, (k, v, *extras, *arrays)):
        if x is not None and x.device != q.device:
            raise BadArgument(f"{name} is on {x.device} and q on {q.device}; they must be equal")
    for name, element, x in zip(terms.names, terms.elements, arrays):
        if x.dtype is not ELEMENTS[element]:
            raise BadArgument(f"'{name}' is of {x.dtype}; it must be of {ELEMENTS[element]}")
    if q.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"q is on {q.device}; it must be on a CUDA device, or on the CPU for the emulator")


def fill(args, q, k, v, o, lse, arrays, extras):
    args.q, args.k, args.v, args.o = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
    if lse is not None:
        args.lse = lse.data_ptr()
    if extras is not NO_EXTRAS:
        for name, x in zip(("dropout_state", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table"), extras):
            if x is not None:
                setattr(args, name, x.data_ptr())
    if arrays:
        for i, array in enumerate(arrays):
            args.array[i].data = array.data_ptr()


def execute(call, launch, args, like):
    """Enqueues on the current stream of the tensors' device, with a workspace of its own, aligned to 256 bytes."""
    at = None
    if launch.workspace:
        workspace = like.new_empty(launch.workspace + 255, dtype=torch.uint8)
        at = workspace.data_ptr() + 255 & -256
    status = launch.run(launch.handle, byref(args), at, launch.workspace, None if call.index < 0 else _raw_stream(call.index))
    if status:
        launch.fail(status)


def forward(terms, how, q, k, v, arrays=(), extras=NO_EXTRAS, with_lse=True, descales=()):
    """(o, lse or None, Call, q, k, v); the latter three as the kernel read them."""
    call, q, k, v = find(terms, how, q, k, v, arrays, extras)
    o = q.new_empty_strided(*call.o, dtype=call.o_dtype)
    lse = q.new_empty(call.lse, dtype=torch.float32) if with_lse else None
    launch = call.launch
    if launch is None or call.layout == "packed":  # rows of no sequence are not written
        o.zero_()
        if with_lse:
            lse.fill_(float("-inf"))
    if launch is not None:
        args = launch.args()
        fill(args, q, k, v, o, lse, arrays, extras)
        if descales:
            _torch_e4m3.fill(args, descales)
        execute(call, launch, args, q)
    return o, lse, call, q, k, v


def backward(terms, call, dout, dlse, q, k, v, o, lse, arrays=(), extras=NO_EXTRAS, wanted=(), deterministic=False):
    """[dq, dk, dv, *gradients of arrays], None for arrays that are not `wanted`. `call`, q, k, v: as forward gave them."""
    of_q, of_k, of_v = call.grads
    out = [q.new_empty_strided(*of_q), q.new_empty_strided(*of_k), q.new_empty_strided(*of_v)]
    if arrays:
        tiles = copies_tiles(q.device)
        out += [None if not want else in_wide_rows(array, array.shape, torch.float32)
                if tiles and axis is not None and array.shape[axis] > 1 else array.new_empty(array.shape, dtype=torch.float32)
                for array, want, axis in zip(arrays, wanted, terms.rows)]
    if call.layout == "packed" or call.launch is None:  # rows of no sequence are not written
        for x in out[:3] if call.launch is not None else filter(lambda x: x is not None, out):
            x.zero_()
    if call.launch is None:
        return rounded(out, arrays)
    dout = o.new_zeros(o.shape) if dout is None else dout
    launch = call.backward.get((dout.stride(), o.stride(), wanted, deterministic))
    if launch is None or dout.data_ptr() & 15:
        dout = suitable(dout)
        key = (dout.stride(), o.stride(), wanted, deterministic)
        launch = call.backward.get(key) or call.backward.setdefault(
            key, describe_backward(terms, call, dout, o, out, arrays, wanted, deterministic))
    args = launch.args()
    fill(args, q, k, v, o, lse, arrays, extras)
    args.dout, args.dq, args.dk, args.dv = dout.data_ptr(), out[0].data_ptr(), out[1].data_ptr(), out[2].data_ptr()
    if dlse is not None:
        dlse = dlse.contiguous()
        args.dlse = dlse.data_ptr()
    for i in range(len(arrays)):
        if wanted[i]:
            args.array_grad[i].data = out[3 + i].data_ptr()
    execute(call, launch, args, q)
    return rounded(out, arrays)


def rounded(grads, arrays):
    """Gradients of arrays, which are float32, as the arrays' own dtype."""
    for i, array in enumerate(arrays, 3):
        if grads[i] is not None:
            grads[i] = converted(grads[i], array.dtype)
    return grads


def describe_backward(terms, call, dout, o, out, arrays, wanted, deterministic):
    words = [f"grad={name}" for name, want in zip(terms.names, wanted) if want]
    words += ["deterministic"] if deterministic else []
    strides = {**call.strides, **{name: _problem.triple(x.shape, x.stride(), call.layout)
                                  for name, x in zip(("dout", "o", "dq", "dk", "dv"), (dout, o, *out))}}
    grads = {i: _runtime.broadcast(x.shape, x.stride()) for i, x in enumerate(out[3:]) if x is not None}
    return _runtime.prepare(call.on, terms.spelling("bwd", call.dtype, call.sizes, *words), call.sizes, strides,
                            call.arrays, grads, **call.fields)


class Attention(torch.autograd.Function):
    """Eager calls of which something requires a gradient: (o, lse), or o."""

    @staticmethod
    def forward(ctx, terms, how, deterministic, with_lse, extras, q, k, v, *arrays):
        arrays = with_tiles(terms, arrays)
        o, lse, call, q, k, v = forward(terms, how, q, k, v, arrays, extras)
        if extras is NO_EXTRAS:
            ctx.save_for_backward(q, k, v, o, lse, *arrays)
        else:
            ctx.save_for_backward(q, k, v, o, lse, *arrays, *extras)
        ctx.set_materialize_grads(False)
        ctx.rest = terms, call, deterministic, len(arrays)
        return (o, lse) if with_lse else o

    @staticmethod
    def backward(ctx, dout, dlse=None):
        needs = ctx.needs_input_grad
        if dout is None and dlse is None:
            return (None,) * len(needs)
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                return refuse_second(Attention.backward(ctx, dout, dlse))
        terms, call, deterministic, count = ctx.rest
        q, k, v, o, lse, *rest = ctx.saved_tensors
        arrays, extras = rest[:count], rest[count:] or NO_EXTRAS
        grads = backward(terms, call, dout, dlse, q, k, v, o, lse, arrays, extras, needs[8:], deterministic)
        if not all(needs[5:8]):
            grads[:3] = [g if need else None for g, need in zip(grads, needs[5:8])]
        return (None, None, None, None, None, *grads)


# Function.apply is this and a search for functorch's wrappers, which take another way here.
apply = super(torch.autograd.Function, Attention).apply


def refuse_second(grads):
    """The gradients, whose own gradients are an error: to leave them out silently would be wrong."""
    there = [g.detach().requires_grad_() for g in grads if g is not None]
    error = torch._C._functions.DelayedError(b"flashkiln: gradients of attention have no gradients themselves", len(there))
    there = iter(error(*there))
    return tuple(None if g is None else next(there) for g in grads)


# ---- attention -------------------------------------------------------------------------------------------------------

def attention(q, k, v, *, causal=False, window=None, mask=None, sparsity=None, score=None, bias=None, softcap=None,
              alibi_slopes=None, sink=None, arrays=None, dropout_p=0.0, softmax_scale=None, deterministic=False,
              align="bottom-right", layout="bshd", cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
              max_seqlen_k=None, seqused_k=None, page_table=None, num_splits=None, return_lse=False, generator=None, q_descale=None, k_descale=None,
              v_descale=None):
    """softmax(mask(score(softmax_scale * q k^T))) v, exactly, in memory linear in the lengths, with gradients.

    Tensors: float16, bfloat16, float32, or float8_e4m3fn (below), on a CUDA device; on the CPU an emulator computes, which is slow. Head dims 1 to
    256; strides are free, and what the kernels cannot read as it is (rows that are not 16-byte aligned) is copied.
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
                     with gradients. Axes of 1 are repeated. What an axis runs over follows from plain indices, as in
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

    Sequences of different lengths (docs/sequences.md), all int32 on q's device, else converted:

    cu_seqlens_q, _k   [batch + 1]: where packed sequences begin. q is [total_q, heads, dim], k and v likewise, lse
                       [heads, total_q]; rows of no sequence have the result 0. max_seqlen_q, _k: upper bounds of lengths
    seqused_k          [batch]: only the first keys are there
    page_table         [batch, columns]: k and v are [pages, page_size, heads_kv, dim]; without gradients
    num_splits         CTAs that share a row's keys, for few queries and many keys: 0 as many as fill the GPU, 1 one;
                       None decides by the lengths

    float8_e4m3fn: q, k and v on sm_90, without gradients; the result is bfloat16 (docs/e4m3.md).

    q_descale, k_descale, v_descale   float32, of a shape that broadcasts to [batch, heads_kv]: q counts for q_descale q of
                       the query heads that read that kv head, k for k_descale k, v for v_descale v; 1 unless given

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
    traced, named, brought, given = is_compiling(), {}, (), ()
    if sparsity is not None:
        mask = _problem.joined(mask, sparsity)
    if mask.__class__ is not str and mask is not None:
        whole = cu_seqlens_q is None and page_table is None and q.dim() == 4 and layout in _problem.LAYOUTS
        mask, arrays = _problem.read("mask", mask, arrays, _problem.lengths(q.shape, k.shape, layout) if whole else None)
    if score.__class__ is not str and score is not None:
        score, arrays = _problem.read("score", score, arrays)
    if bias is not None or alibi_slopes is not None or sink is not None or arrays:
        named, brought, given = name_arrays(q, bias, alibi_slopes, sink, arrays)
    if window.__class__ is list:
        window = tuple(window)
    said = (causal, window, mask, score, softcap, align, brought, given, dropout_p > 0, cu_seqlens_q is not None,
            seqused_k is not None, page_table is not None)
    terms = traced_terms(fixed(said)) if traced else _problem.terms(*said)
    tensors = ()
    if named or terms.names:
        tensors = tuple([converted(x, ELEMENTS[element])
                         for x, element in zip(_problem.in_order(terms.names, named), terms.elements)])
    e4m3 = q.dtype is E4M3
    if not e4m3 and (q_descale is not None or k_descale is not None or v_descale is not None):
        raise BadArgument(f"q_descale, k_descale and v_descale are those of float8_e4m3fn; q is of {q.dtype}")
    if (traced or _any_autocast()) and not e4m3:
        q, k, v = autocast(q, k, v)
    dim, dim_v, unit, pad = q.shape[-1], v.shape[-1], 8, padded
    scale = _problem.scale_of(softmax_scale, dim)
    if e4m3:
        unit, pad = _torch_e4m3.UNIT, _torch_e4m3.padded
    if dim % unit:
        q, k = pad(q), pad(k)
    if dim_v % unit:
        v = pad(v)
    extras = NO_EXTRAS
    if dropout_p > 0 or cu_seqlens_q is not None or seqused_k is not None or page_table is not None:
        extras = (draw(q, generator) if dropout_p > 0 else None, int32(cu_seqlens_q), int32(cu_seqlens_k),
                  int32(seqused_k), int32(page_table))
        if cu_seqlens_q is not None:
            layout = "packed"
            if cu_seqlens_k is None:
                raise BadArgument("cu_seqlens_k is missing; cu_seqlens_q needs it")
    if e4m3:
        _torch_e4m3.check(q, k, v, traced or _len_torch_dispatch_stack() or _transforms() or q.__class__ not in PLAIN)
        how = (layout, scale, float(dropout_p), 1 if num_splits is None else num_splits, max_seqlen_q or 0, max_seqlen_k or 0)
        o, lse, *_ = forward(terms, how, q, k, v, tensors, extras, return_lse,
                             _torch_e4m3.descales(q, k, layout, extras, (q_descale, k_descale, v_descale)))
        return (o[..., :dim_v], lse) if return_lse else o[..., :dim_v]
    differentiable = ((q.requires_grad or k.requires_grad or v.requires_grad or (
        tensors and any([x.requires_grad for x in tensors]))) and torch.is_grad_enabled())
    if differentiable:
        num_splits = 1 if num_splits is None else num_splits
        deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
        if page_table is not None:
            raise Unsupported("page_table: keys in pages have no gradients; use torch.no_grad()")
    how = (layout, scale, float(dropout_p), -1 if num_splits is None else num_splits, max_seqlen_q or 0, max_seqlen_k or 0)
    if traced or _len_torch_dispatch_stack() or _transforms() or q.__class__ not in PLAIN:
        o, lse = torch.ops.flashkiln.attention_forward(q, k, v, list(tensors), *extras, terms.words, *how,
                                                       bool(deterministic))
    elif differentiable:
        o = apply(terms, how, deterministic, return_lse, extras, q, k, v, *tensors)
        if return_lse:
            o, lse = o
    else:
        o, lse, *_ = forward(terms, how, q, k, v, with_tiles(terms, tensors), extras, return_lse)
    if dim_v % 8:
        o = o[..., :dim_v]
    return (o, lse) if return_lse else o


def of_arrays(**arguments):
    """attention() of arrays that are no tensors."""
    from ._numpy import attention
    for name in ("q_descale", "k_descale", "v_descale"):
        if arguments.pop(name) is not None:
            raise BadArgument(f"{name} is that of tensors of PyTorch, of float8_e4m3fn")
    return attention(**arguments)


def name_arrays(q, bias, alibi_slopes, sink, arrays):
    """({name: tensor}, (name, element) of those that arguments of their own bring, (key, element, rank) of the others)."""
    named = {}
    if alibi_slopes is not None:
        named["slope" if alibi_slopes.dim() == 1 else "batch_slope"] = alibi_slopes
    if bias is not None:
        named["bias"] = bias[(None,) * (4 - bias.dim())] if bias.dim() < 4 else bias
    if sink is not None:
        named["sink"] = sink
    own, given = tuple([(name, float_element(x.dtype)) for name, x in named.items()]), []
    for key, x in (arrays or {}).items():
        x = torch.as_tensor(x, device=q.device)
        given.append((key, float_element(x.dtype) if x.is_floating_point() else "int", x.dim()))
        named[key.partition(":")[0].strip()] = x
    return named, own, tuple(given)


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
    return TracedTerms(terms.words, terms.names, terms.elements)


class TracedTerms(NamedTuple):
    words: str
    names: Tuple[str, ...]
    elements: Tuple[str, ...]


def autocast(*tensors):
    """As scaled_dot_product_attention: under autocast, floats take its dtype."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors]


def padded(x):
    """With zeros behind, to a head dim that the kernels know: a multiple of 8."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))


def converted(x, dtype):
    return x if x.dtype is dtype else x.to(dtype)


def int32(x):
    if x is None or (x.dtype is torch.int32 and x.stride(-1) == 1):
        return x
    return x.to(torch.int32).contiguous()


def draw(q, generator):
    """{seed, offset} of a call's dropout, in device memory: what a captured graph replays draws anew."""
    return torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64, device=q.device, generator=generator)


from . import _torch_ops  # noqa: E402,F401  registers the operators, which call the functions above
