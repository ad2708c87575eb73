"""PyTorch: from tensors to a launch, forward and backward, and the autograd function of eager calls. Everything that a call says but
for its pointers is looked up once (Call)."""
from __future__ import annotations

import functools
from ctypes import byref

import torch

from . import _heads, _problem, _runtime, _torch_e4m3
from .errors import BadArgument, Unsupported

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
ELEMENTS = {"float": torch.float32, "int": torch.int32, "fp16": torch.float16, "bf16": torch.bfloat16}  # of arrays
E4M3 = getattr(torch, "float8_e4m3fn", None)  # which other rules hold for: _torch_e4m3.py
NO_EXTRAS = (None,) * 5  # dropout_state, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


@functools.lru_cache(maxsize=None)
def adds_tiles(device):
    """Whether kernels there add tiles to gradients of arrays, which wants rows that begin at multiples of 16 bytes."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


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
           q.get_device(), k.get_device(), v.get_device(), k.data_ptr() == v.data_ptr())
    if not terms.bare:
        key += tuple((x.shape, x.stride(), x.dtype, x.get_device()) for x in (*arrays, *extras[1:]) if x is not None)
        key += tuple([x.data_ptr() % _runtime.ALIGNMENT for x in arrays])
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
    _, cu_q, cu_k, used, pages = extras
    check(terms, q, k, v, arrays, extras)
    _problem.check_ranks(*[None if x is None else x.shape for x in (cu_q, cu_k, used, pages)])
    if cu_q is None and (cu_k is not None or layout == "packed"):
        raise BadArgument("cu_seqlens_q is missing; cu_seqlens_k, and packed sequences, need it")
    call = Call()
    e4m3, kv_e4m3 = q.dtype is E4M3, k.dtype is E4M3 and q.dtype is not E4M3
    call.dtype, call.index, call.layout = "e4m3" if e4m3 else DTYPES[q.dtype], q.get_device(), layout
    call.o_dtype = torch.bfloat16 if e4m3 else q.dtype
    unit = _runtime.UNITS[call.dtype]
    kv_unit = _torch_e4m3.KV_UNIT if kv_e4m3 else unit
    call.copies = not all(_problem.suits(x.shape, x.stride(), n) for x, n in ((q, unit), (k, kv_unit), (v, kv_unit)))
    sizes = call.sizes = _problem.shapes(q.shape, k.shape, v.shape, layout, None if cu_q is None else len(cu_q) - 1,
                                         max_q, max_k, None if pages is None else pages.shape)
    _problem.check_lengths(sizes, *[None if x is None else x.shape for x in (cu_q, cu_k, used)], max_q, max_k)
    call.o, call.lse, call.backward, call.launch = sizes.o(layout), sizes.lse(layout), {}, None
    call.grads = (sizes.o(layout, sizes.dim), sizes.k(layout, sizes.dim), sizes.k(layout, sizes.dim_v))
    for decl, array in zip(terms.arrays, arrays):
        _problem.check_array(decl, array.shape, sizes)
    if call.copies:
        return call
    if not (q.numel() and k.numel() and v.numel()):
        _problem.check_heads(sizes)
        return call
    kv_layout = layout if pages is None else "bshd" if layout == "packed" else layout
    strides = call.strides = {"q": _problem.triple(q.shape, q.stride(), layout), "o": _problem.triple(*call.o, layout)}
    strides.update({n: _problem.triple(x.shape, x.stride(), kv_layout) for n, x in (("k", k), ("v", v))})
    call.on = _runtime.device("emu" if call.index < 0 else f"cuda:{call.index}", "h200" if e4m3 and call.index < 0 else None)
    call.arrays = [(a.shape, a.stride(), a.data_ptr() % _runtime.ALIGNMENT) for a in arrays]
    call.fields = {"softmax_scale": scale, "dropout_p": dropout_p}
    of_16_bits = call.dtype in ("fp16", "bf16") and not kv_e4m3
    more = {} if pages is None else {"page_table_stride": pages.stride(0)}

    def launch(terms, sizes, strides, split, **more):
        words = ["latent"] * (not split and of_16_bits and values_are_keys(k, v)) + ["split"] * split + ["kv_e4m3"] * kv_e4m3
        return _runtime.prepare(call.on, terms.spelling("fwd", call.dtype, sizes, *words), sizes, strides, call.arrays, **call.fields, **more)

    if num_splits < 0 and of_16_bits and has_wgmma(call.index):
        call.launch = _heads.launch_of_queries(terms, call.dtype, sizes, f"cuda:{call.index}" if call.index >= 0 else "h200",
                                               lambda terms, sizes: launch(terms, sizes, _heads.turned(strides, sizes.seqlen_q), False, **more))
    if call.launch is None:
        split = _problem.wants_split(num_splits, sizes, kv_e4m3)
        call.launch = launch(terms, sizes, strides, split, **more, **{"num_splits": max(num_splits, 0)} if split else {})
    return call


def has_wgmma(index):
    return index >= 0 and torch.cuda.get_device_capability(index) == (9, 0)


def values_are_keys(k, v):
    """Whether v is the first columns of k, as in absorbed latent attention, which at head dims above 256 need not be fetched twice."""
    return (k.data_ptr() == v.data_ptr() and k.stride() == v.stride() and k.shape[:-1] == v.shape[:-1]
            and _problem.NARROW_HEAD_DIM < k.shape[-1] >= v.shape[-1])


def check(terms, q, k, v, arrays, extras):
    """Dtypes and devices, of which the library sees nothing but pointers."""
    if q.dtype not in DTYPES and q.dtype is not E4M3:
        raise BadArgument(f"q is of {q.dtype}; it must be of {', '.join(map(str, (*DTYPES, E4M3)))}")
    kv_e4m3 = k.dtype is E4M3 and q.dtype in (torch.float16, torch.bfloat16)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != (E4M3 if kv_e4m3 else q.dtype):
            raise BadArgument(f"{name} is of {x.dtype} and q of {q.dtype}; they must be equal, or k and v of {E4M3} and q of 16 bits")
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
    status = launch.run(launch.handle, byref(args), at, launch.workspace, None if call.index < 0 else raw_stream(call.index))
    if status:
        launch.fail(status)


def forward(terms, how, q, k, v, arrays=(), extras=NO_EXTRAS, with_lse=True, descales=(), condition=None, into=None):
    """(o, lse or None, Call, q, k, v); the latter three as the kernel read them. condition: (number on the device, what it must be for
    anything to be computed), or None; into: (o, lse or None) that are there already."""
    call, q, k, v = find(terms, how, q, k, v, arrays, extras)
    if into is None:
        o = q.new_empty_strided(*call.o, dtype=call.o_dtype)
        lse = q.new_empty(call.lse, dtype=torch.float32) if with_lse else None
    else:
        o, lse = into
    launch = call.launch
    if launch is None:
        o.zero_()
        if with_lse:
            lse.fill_(float("-inf"))
    else:
        args = launch.args()
        args.clear_rest = call.layout == "packed"
        fill(args, q, k, v, o, lse, arrays, extras)
        if descales:
            _torch_e4m3.fill(args, descales)
        if condition:
            args.condition, args.condition_value = condition[0].data_ptr(), condition[1]
        execute(call, launch, args, q)
    return o, lse, call, q, k, v


def backward(terms, call, dout, dlse, q, k, v, o, lse, arrays=(), extras=NO_EXTRAS, wanted=(), deterministic=False, condition=None,
             into=None):
    """[dq, dk, dv, *gradients of arrays], None for arrays that are not `wanted`. `call`, q, k, v: as forward gave them. condition: as
    forward's; into: [dq, dk, dv] that are there already."""
    out = list(into) if into else [q.new_empty_strided(*shape) for shape in call.grads]
    if arrays:
        tiles = adds_tiles(q.device)
        out += [None if not want else in_wide_rows(array, array.shape, torch.float32)
                if tiles and axis is not None and array.shape[axis] > 1 else array.new_empty(array.shape, dtype=torch.float32)
                for array, want, axis in zip(arrays, wanted, terms.rows)]
    if call.launch is None:
        for x in filter(lambda x: x is not None, out):
            x.zero_()
        return rounded(out, arrays)
    dout = o.new_zeros(o.shape) if dout is None else dout
    launch = call.backward.get((dout.stride(), o.stride(), wanted, deterministic))
    if launch is None or dout.data_ptr() & 15:
        dout = suitable(dout)
        key = (dout.stride(), o.stride(), wanted, deterministic)
        launch = call.backward.get(key) or call.backward.setdefault(
            key, describe_backward(terms, call, dout, o, out, arrays, wanted, deterministic))
    args = launch.args()
    args.clear_rest = call.layout == "packed"
    fill(args, q, k, v, o, lse, arrays, extras)
    args.dout, args.dq, args.dk, args.dv = dout.data_ptr(), out[0].data_ptr(), out[1].data_ptr(), out[2].data_ptr()
    if dlse is not None:
        dlse = dlse.resolve_neg().contiguous()
        args.dlse = dlse.data_ptr()
    for i in range(len(arrays)):
        if wanted[i]:
            args.array_grad[i].data = out[3 + i].data_ptr()
    if condition:
        args.condition, args.condition_value = condition[0].data_ptr(), condition[1]
    execute(call, launch, args, q)
    return rounded(out, arrays)


def converted(x, dtype):
    return x if x.dtype is dtype else x.to(dtype)


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


def restored(terms, how, q, k, v, o, lse, arrays, extras):
    """(Call, q, k, v, o, lse) of saved tensors, which hooks, as those that keep them on the host, may have given other strides."""
    return *find(terms, how, q, k, v, arrays, extras), suitable(o), lse.contiguous()


class Attention(torch.autograd.Function):
    """Eager calls of which something requires a gradient: (o, lse), or o."""

    @staticmethod
    def forward(ctx, terms, how, deterministic, with_lse, extras, q, k, v, *arrays):
        o, lse, call, q, k, v = forward(terms, how, q, k, v, arrays, extras)
        if extras is NO_EXTRAS:
            ctx.save_for_backward(q, k, v, o, lse, *arrays)
        else:
            ctx.save_for_backward(q, k, v, o, lse, *arrays, *extras)
        ctx.set_materialize_grads(False)
        ctx.rest = terms, how, deterministic, len(arrays)
        return (o, lse) if with_lse else o

    @staticmethod
    def backward(ctx, dout, dlse=None):
        needs = ctx.needs_input_grad
        if dout is None and dlse is None:
            return (None,) * len(needs)
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                return refuse_second(Attention.backward(ctx, dout, dlse))
        terms, how, deterministic, count = ctx.rest
        q, k, v, o, lse, *rest = ctx.saved_tensors
        arrays, extras = rest[:count], rest[count:] or NO_EXTRAS
        call, q, k, v, o, lse = restored(terms, how, q, k, v, o, lse, arrays, extras)
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
    there = error(*there)
    there = iter((there,) if isinstance(there, torch.Tensor) else there)
    return tuple(None if g is None else next(there) for g in grads)
