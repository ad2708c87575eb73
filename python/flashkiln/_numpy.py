"""attention() without PyTorch: arrays of NumPy, which the emulator computes with, and arrays of CuPy, JAX, Numba and
whoever speaks DLPack or __cuda_array_interface__, on the GPU that they are on. Results are arrays of q's library."""
from __future__ import annotations

from operator import index

import numpy

from . import _heads, _problem, _runtime
from ._arguments import EXTRAS, NUMPY_DTYPES, ask, check_element, dtype_name, is_tensor, names_of, padded, refuse_unknown
from ._arrays import library_of
from ._device_array import itemsize
from ._dlpack import contiguous
from .errors import BadArgument, NoCompiler, NoJit, Unsupported

OF_TENSORS = {"q_descale": "float8_e4m3fn", "k_descale": "float8_e4m3fn", "v_descale": "float8_e4m3fn",
              "fast": "float8_e4m3fn or bfloat16"}  # dtypes that arguments of attention are for
_launches = {}


def attention(q, k, v, *, deterministic=False, return_lse=False, generator=None, **options):
    """softmax(mask(score(softmax_scale * q k^T))) v, exactly, in memory linear in the lengths.

    Arrays: float16, bfloat16 (ml_dtypes) or float32. Those of NumPy, and of JAX on the CPU, are computed by an emulator of
    the GPU, which is slow; those of CuPy, JAX and Numba on a GPU by that GPU. JAX: outside jit, grad and vmap. Head dims 1
    to 576, of v 512 (filled up to a multiple of 8, above 256 of 64); strides are free, and what the kernels cannot read as it is (rows that are not 16-byte aligned) is copied.
    Gradients: attention_backward. Tensors of PyTorch have gradients of their own, and take the same arguments.

        q                [batch, seqlen_q, heads, dim]
        k, v             [batch, seqlen_k, heads_kv, dim or dim_v]; heads is a multiple of heads_kv (GQA, MQA)
        result           [batch, seqlen_q, heads, dim_v]; with return_lse, (result, lse)
        lse              float32 [batch, heads, seqlen_q]: log of the sum of exp of a row's scores

    A query that sees no key has the result 0 and the lse -inf.

    causal, window   query i sees key j up to i + diag; and within window = (left, right) of i + diag, where an int w is
                     (w, 0) with causal and (w, w) without it, and -1 is unbounded. diag is seqlen_k - seqlen_q, or 0
                     with align="top-left"
    mask, score      an expression, the name of a built-in term ("prefix", "relative(128)", ...), a function of symbols
                     (b, h, q, k), for scores (s, b, h, q, k), or a list of these: docs/expressions.md,
                     docs/masks-and-scores.md. Masks are joined by and; a mask may be a block mask, too
    sparsity         one more mask, of blocks: a pattern ("butterfly(128)", "bigbird(64)", 'blocks(64)="i >= j"', ...), a
                     block mask, or a list of these: docs/block-sparse.md
    arrays           {name: array} that masks and scores read: ints as int32, floats as float32, or of 16 bits as they
                     are. Ints beyond int32 raise on the CPU, and count as its ends on a GPU, which only lengths
                     ("length", "first", "prefix") mean. Axes of 1 are repeated.
                     What an axis runs over follows from plain indices, as in slope[h]; a name such as
                     "slope:float[b][h]" says it
    bias             added to the scores: [batch or 1, heads or 1, seqlen_q or 1, seqlen_k or 1], or the last of these
    softcap          c: scores become c tanh(score / c)
    alibi_slopes     [heads] or [batch, heads]: slope * abs(i + diag - j) is taken from the scores
    sink             [heads]: one more column of scores, without key and value
                     Scores apply in the order softcap, alibi_slopes, bias, score
    dropout_p        the share of weights dropped, to 1/256 (docs/dropout.md): which ones is a function of `generator`, a
                     seed, (seed, offset), or a NumPy Generator, from which both are drawn
    softmax_scale    1 / sqrt(dim) unless given
    deterministic    of the gradients only
    layout           "bshd" as above, or "bhsd": [batch, heads, seqlen, dim] for q, k, v and the result

    Sequences of different lengths (docs/sequences.md), all int32, else converted, beyond it to its ends:

    cu_seqlens_q, _k   [batch + 1]: where packed sequences begin. q is [total_q, heads, dim], k and v likewise, lse
                       [heads, total_q]; rows of no sequence have the result 0. max_seqlen_q, _k: upper bounds of lengths
    seqused_k          [batch]: only the first keys are there
    page_table         [batch, columns]: k and v are [pages, page_size, heads_kv, dim]; without gradients
    num_splits         CTAs that share a row's keys, for few queries and many keys: 0 as many as are fastest, 1 one;
                       None decides by the lengths

    Raises BadProblem, BadArgument (both are ValueErrors), Unsupported, and the other exceptions of flashkiln.errors.

        >>> import numpy as np, flashkiln
        >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 32), np.float32)
        >>> o = flashkiln.attention(q, k, v, causal=True, score="s - slope[h] * abs(q - k)", arrays={"slope": [0.5, 0.25]})
        >>> o.shape
        (1, 64, 2, 32)
    """
    if is_tensor(q):  # this function was imported before PyTorch was
        from ._torch import attention as of_tensors
        return of_tensors(q, k, v, deterministic=deterministic, return_lse=return_lse, generator=generator, **options)
    call = Call(q, k, v, of_arrays("attention", options))
    state = seeds(call.asked.dropout_p, generator)
    o, lse = call.new(call.shape_o(), call.q, 0), None
    if return_lse:
        lse = call.new(call.asked.sizes.lse(call.asked.layout), "float32", float("-inf"))
    if call.computes:
        forward = call.asked.forward(call.library.device)
        try:
            call.run_forward(forward, o, lse, state)
        except (NoJit, NoCompiler):  # who may not compile may have shipped splits alone
            if not forward.group:
                raise
            call.run_forward(call.asked.forward(), o, lse, state)
    o = call.library.result(o, cut(call.dims[2]))
    return (o, call.library.result(lse)) if return_lse else o


def attention_backward(q, k, v, o, lse, dout, *, dlse=None, grad=(), deterministic=False, generator=None, **options):
    """The gradients of attention(q, k, v, **options): (dq, dk, dv), then one for each name in `grad`.

        o, lse           what attention(..., return_lse=True) returned
        dout             gradient of o, of its shape and dtype; dlse: gradient of lse, 0 unless given
        grad             names of float arrays whose gradients are wanted: "bias", "sink", "alibi_slopes", or of `arrays`;
                         float32, of the array's shape
        deterministic    gradients are bitwise equal from run to run
        generator        with dropout, what attention was given; a NumPy Generator must be in the same state

    `options` are those of attention. Tensors of PyTorch: attention(...) has gradients by autograd.

        >>> import numpy as np, flashkiln
        >>> q, k, v, dout = np.random.default_rng(0).standard_normal((4, 1, 64, 2, 32), np.float32)
        >>> slopes = [0.5, 0.25]
        >>> o, lse = flashkiln.attention(q, k, v, causal=True, alibi_slopes=slopes, return_lse=True)
        >>> dq, dk, dv, dslopes = flashkiln.attention_backward(q, k, v, o, lse, dout, causal=True, alibi_slopes=slopes,
        ...                                                    grad=["alibi_slopes"])
        >>> dslopes.shape
        (2,)
    """
    if is_tensor(q):
        raise Unsupported("q is a tensor of PyTorch: attention(...) has gradients by autograd")
    if options.get("page_table") is not None:
        raise Unsupported("page_table: keys in pages have no gradients")
    call = Call(q, k, v, of_arrays("attention_backward", options))
    asked = call.asked
    names = names_of(grad, asked.terms)
    o, dout, lse, dlse = (None if x is None else call.library.array(x) for x in (o, dout, lse, dlse))
    of_o, of_lse = call.shape_o(call.dims[2]), asked.sizes.lse(asked.layout)
    call.check("o", o, of_o, dtype_name(call.q))
    call.check("dout", dout, of_o, dtype_name(call.q))
    call.check("lse", lse, of_lse, "float32")
    if dlse is not None:
        call.check("dlse", dlse, of_lse, "float32")
    out = {"d" + name: call.new(tuple(view.shape), call.q, 0) for name, view in call.views.items()}
    grads = {name: call.new(tuple(x.shape), "float32", 0) for name, x in zip(asked.terms.names, call.arrays) if name in names}
    if call.computes:
        tensors = {"o": call.tensor(o), "dout": call.tensor(dout), **out}
        more = {} if dlse is None else {"dlse": call.plain(dlse)}
        call.run(asked.backward(names, deterministic), tensors, call.plain(lse), seeds(asked.dropout_p, generator),
                 {}, grads, more)
    out = [x if shape[:-1] == tuple(x.shape[:-1]) else call.library.new(shape, x, 0) for x, shape in zip(out.values(), call.shapes)]
    found = [call.library.result(x, cut(dim)) for x, dim in zip(out, call.dims)]
    given = call.shapes_given(options)
    return (*found, *(call.library.result(grads[name].reshape(given.get(name, tuple(grads[name].shape)))) for name in names))


def of_arrays(function, options):
    """The options without those that are for tensors of PyTorch, which must be off."""
    for name, dtypes in OF_TENSORS.items():
        value = options.pop(name, None)
        if value is not None and (name != "fast" or value):
            raise BadArgument(f"{name} is that of tensors of PyTorch, of {dtypes}")
    refuse_unknown(function, options)
    return options


def is_aligned(view):
    return not view.pointer % itemsize(view.dtype)


def cut(dim):
    """What is left of a head dim that was padded; None where it was not."""
    return dim if _problem.padding(dim) else None


def seeds(dropout_p, generator):
    """(seed, offset), of which the dropped weights are a function."""
    if not dropout_p:
        return 0, 0
    if generator is None:
        raise BadArgument(f"dropout_p is {dropout_p}; these arrays have no generator of their own, so that it needs "
                          "generator=SEED, (SEED, OFFSET) or a NumPy Generator")
    if hasattr(generator, "integers"):
        generator = generator.integers(0, 2**64, 2, "uint64")
    try:
        seed, offset = map(index, generator if hasattr(generator, "__len__") else (generator, 0))
    except (TypeError, ValueError):
        raise BadArgument(f"generator is {generator!r}; it must be SEED, (SEED, OFFSET) or a NumPy Generator, of ints") from None
    for name, x in (("seed", seed), ("offset", offset)):
        if not -2**63 <= x < 2**64:  # those below 0: as PyTorch draws them
            raise BadArgument(f"generator: the {name} is {x}; it must have 64 bits, from -2**63 to 2**64 - 1")
    return seed % 2**64, offset % 2**64


class Call:
    """Arrays and options of one call, as the kernel takes them."""

    def __init__(self, q, k, v, options):
        library = self.library = library_of(q)
        q, k, v = (library.array(x) for x in (q, k, v))
        options = {**options, **{name: self.lengths(name, options[name]) for name in EXTRAS if options.get(name) is not None}}
        self.shapes = [tuple(x.shape) for x in (q, k, v)]
        if options.get("sink") is not None:
            k, v = self.with_a_key(q, k, v, options)
        self.extras = {name: options[name] for name in EXTRAS if options.get(name) is not None}
        if library.device == "emu":
            bound(options)
        asked = self.asked = ask(q, k, v, convert=library.array, **options)
        for name, x, element in zip(asked.terms.names, asked.arrays, asked.terms.elements):
            check_element(name, x, element)
            if element == "int" and library.device == "emu" and name not in _problem.LENGTHS and x.size:
                _problem.check_ints(name, x.min(), x.max())
        self.arrays = [self.whole(x, NUMPY_DTYPES[element]) for x, element in zip(asked.arrays, asked.terms.elements)]
        for decl, array in zip(asked.terms.arrays, self.arrays):
            _problem.check_array(decl, tuple(array.shape), asked.sizes)
        self.dims = [x.shape[-1] for x in (q, k, v)]
        self.computes = all(0 not in x.shape for x in (q, k, v))
        if not self.computes:
            _problem.check_heads(asked.sizes)
        self.q, self.k, self.v = (self.tensor(x) if self.computes else x for x in (q, k, v))
        self.views = {name: library.view(x) for name, x in (("q", self.q), ("k", self.k), ("v", self.v))}

    def with_a_key(self, q, k, v, options):
        """k and v; where there are no keys, but a sink, which is a column of its own, one that no query sees."""
        packed = options.get("cu_seqlens_q") is not None
        row = _problem.rows_axis("packed" if packed else options.get("layout", "bshd"))
        if 0 in q.shape or options.get("page_table") is not None or len(k.shape) != len(q.shape) or k.shape[row] or v.shape[row]:
            return k, v
        if not packed:
            options["seqused_k"] = self.library.new((q.shape[0],), "int32", 0)
        return [self.library.new((*x.shape[:row], 1, *x.shape[row + 1:]), x, 0) for x in (k, v)]

    def new(self, shape, like, value):
        """Filled where the kernel may leave rows as they are: those of no sequence, and all if nothing is computed."""
        return self.library.new(shape, like, value if self.asked.layout == "packed" or not self.computes else None)

    def shape_o(self, dim_v=None):
        return self.asked.sizes.o(self.asked.layout, dim_v)[0]

    @staticmethod
    def check(name, x, shape, dtype):
        if tuple(x.shape) != shape or dtype_name(x) != dtype:
            raise BadArgument(f"{name} is {list(x.shape)} of {dtype_name(x)}; it must be {list(shape)} of {dtype}")

    def tensor(self, x):
        """q, k, v, o or dout: as it is, or a copy that the kernel's 16-byte copies can read."""
        library = self.library
        x = library.array(x)
        dim, unit = x.shape[-1], _runtime.UNITS[self.asked.dtype]
        view = None if _problem.padding(dim) else library.view(x)
        if view and not view.pointer & 15 and min(view.strides) >= 0 and _problem.suits(view.shape, view.strides, unit):
            return x
        return library.copy(x, padded(dim))

    def whole(self, x, dtype):
        """An array that masks and scores read, of which strides must not be negative."""
        x = self.library.array(x, None if dtype_name(x) == dtype else dtype)
        view = self.library.view(x)
        return x if min(view.strides, default=0) >= 0 and is_aligned(view) else self.library.copy(x)

    def plain(self, x, dtype=None):
        """A contiguous array, of this dtype."""
        x = self.library.array(x, dtype)
        view = self.library.view(x)
        return x if view.strides == contiguous(x.shape) and is_aligned(view) else self.library.copy(x)

    def lengths(self, name, x):
        """cu_seqlens_q and the like, which are ints."""
        x = self.library.array(x)
        if 0 not in x.shape:
            check_element(name, x, "int")
        return self.plain(x, "int32")

    def shapes_given(self, options):
        """{name: shape} of the caller's arrays whose dimensions were added to."""
        bias = options.get("bias")
        return {} if bias is None else {"bias": tuple(self.library.array(bias).shape)}

    def run_forward(self, forward, o, lse, state):
        self.run(forward.spelling, {"o": o}, lse, state, {} if forward.num_splits is None else {"num_splits": forward.num_splits}, of=forward)

    def run(self, spelling, tensors, lse, state, fields, grads=None, more=None, of=None):
        """Launches. tensors: o and, backward, dout and the gradients; grads: {array: its gradient}; more: pointers besides; of: the Forward."""
        view, asked, names = self.library.view, self.asked, self.asked.terms.names
        views = {**self.views, **{name: view(x) for name, x in tensors.items()}}
        arrays, grads = [view(x) for x in self.arrays], {names.index(name): view(x) for name, x in (grads or {}).items()}
        pages = self.extras.get("page_table")
        launch = self.launch(spelling, views, arrays, grads, {
            "softmax_scale": asked.scale, "dropout_p": asked.dropout_p, **fields,
            **({} if pages is None else {"page_table_stride": view(pages).strides[0]})}, of.sizes if of else asked.sizes, of.group if of else 0)
        args = launch.args()
        for name, x in views.items():
            setattr(args, name, x.pointer)
        for name, x in {"lse": lse, **self.extras, **(more or {})}.items():
            if x is not None:
                setattr(args, name, view(x).pointer)
        for i, x in enumerate(arrays):
            args.array[i].data = x.pointer
        for i, x in grads.items():
            args.array_grad[i].data = x.pointer
        args.dropout_seed, args.dropout_offset = state
        workspace = self.library.new((launch.workspace + 255,), "uint8") if launch.workspace else None
        launch.execute(args, view(workspace).pointer + 255 & -256 if launch.workspace else None, self.library.stream)

    def launch(self, spelling, views, arrays, grads, fields, sizes, group):
        """The prepared launch of these shapes. group: query heads that are queries of one head, or 0."""
        asked, device = self.asked, self.library.device
        shapes = [(x.shape, x.strides) for x in views.values()]
        of_arrays = [(x.shape, x.strides, x.pointer % _runtime.ALIGNMENT) for x in arrays]
        key = (spelling, device, sizes, asked.layout, *shapes, *of_arrays, *grads, *fields.items())
        found = _launches.get(key)
        if found is None:
            paged = "page_table" in self.extras
            layouts = {name: "bshd" if paged and asked.layout == "packed" and name in "kv" else asked.layout for name in views}
            strides = {name: _problem.triple(x.shape, x.strides, layouts[name]) for name, x in views.items()}
            if group:
                strides = _heads.turned(strides, group)
            steps = {i: _runtime.broadcast(x.shape, x.strides) for i, x in grads.items()}
            found = _runtime.prepare(_runtime.device(device), spelling, sizes, strides, of_arrays, steps, **fields)
            _runtime.remember(_launches, key, found)
        return found


def bound(options):
    """On the emulator, whose time goes with the bounds: the lengths of the longest packed sequences, unless given."""
    for side in "qk":
        starts = options.get(f"cu_seqlens_{side}")
        if starts is not None and len(starts.shape) == 1 and starts.shape[0] > 1 and options.get(f"max_seqlen_{side}") is None:
            options[f"max_seqlen_{side}"] = max(1, int(numpy.diff(starts).max()))
