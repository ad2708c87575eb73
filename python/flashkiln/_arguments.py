"""attention's arguments for arrays of any library: what of them can be known without computing."""
from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional

from . import _heads, _problem
from .errors import BadArgument, BadProblem

EXTRAS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table")
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


class Forward(NamedTuple):
    spelling: str
    num_splits: Optional[int]  # that its launch asks for: None where it may not ask
    sizes: _problem.Shapes
    group: int  # query heads that are queries of one head, or 0


class Asked(NamedTuple):
    terms: _problem.Terms
    arrays: Any  # those that terms.names lists
    sizes: _problem.Shapes  # as the kernel sees them: head dims are multiples of 8
    layout: str
    scale: float
    dropout_p: float
    num_splits: int  # -1: as the lengths suggest
    dtype: str  # "fp16", ...

    def forward(self, device=None):
        """Of the forward pass, on a GPU by its key, "cuda:N", "emu" or one that is not known."""
        found = self.num_splits < 0 and _heads.is_hopper(device) and _heads.as_queries(self.terms, self.dtype, self.sizes, device)
        if found:
            terms, sizes = found
            return Forward(terms.spelling("fwd", self.dtype, sizes), None, sizes, sizes.seqlen_q)
        split = _problem.wants_split(self.num_splits, self.sizes)
        return Forward(self.terms.spelling("fwd", self.dtype, self.sizes, *["split"] * split), max(self.num_splits, 0) if split else None,
                       self.sizes, 0)

    def backward(self, grad, deterministic):
        """The spelling of the backward pass, with the gradients of the arrays of these names."""
        words = [f"grad={name}" for name in self.terms.names if name in grad]
        return self.terms.spelling("bwd", self.dtype, self.sizes, *words, *["deterministic"] * deterministic)


def dtype_name(x):
    """"float16" of numpy.float16, torch.float16, ..."""
    dtype = x.dtype
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def element_of(x):
    """How an array's elements are passed on: as they are if they are floats of 16 bits, else as floats or ints of 32."""
    name = dtype_name(x)
    if "complex" in name:
        raise BadArgument(f"an array is of {name}; it must be of floats, ints or bools")
    return {"float16": "fp16", "bfloat16": "bf16"}.get(name, "float" if "float" in name else "int")


def check_element(name, x, element):
    if element == "int" and element_of(x) != "int":
        raise BadArgument(f"'{name}' is of {dtype_name(x)}; it must be of ints")


def brought(named):
    """(name, element) of arrays of arguments of their own: floats, whatever they are given as."""
    return tuple([(name, "float" if element_of(x) == "int" else element_of(x)) for name, x in named.items()])


NUMPY_DTYPES = {"float": "float32", "int": "int32", "fp16": "float16", "bf16": "bfloat16"}


def is_array(x):
    return hasattr(x, "shape") and hasattr(x, "dtype")


def is_tensor(x):
    """Of PyTorch, which is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def padded(dim):
    return dim + _problem.padding(dim)


def ask(q, k, v, *, convert, causal=False, window=None, mask=None, sparsity=None, score=None, bias=None, softcap=None,
        alibi_slopes=None, sink=None, arrays=None, dropout_p=0.0, softmax_scale=None, align="bottom-right", layout="bshd",
        cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_k=None, page_table=None,
        num_splits=None):
    """convert(x): x as an array of q's library, or anything with shape, dtype and reshape."""
    for name, x in (("k", k), ("v", v)):
        if dtype_name(x) != dtype_name(q):
            raise BadArgument(f"{name} is of {dtype_name(x)} and q of {dtype_name(q)}; they must be equal")
    if dtype_name(q) not in DTYPES:
        raise BadArgument(f"q is of {dtype_name(q)}; it must be of {', '.join(DTYPES)}")
    _problem.check_ranks(*[None if x is None else x.shape for x in (cu_seqlens_q, cu_seqlens_k, seqused_k, page_table)])
    if cu_seqlens_q is not None:
        layout = _problem.packed_layout(layout)
        if cu_seqlens_k is None:
            raise BadArgument("cu_seqlens_k is missing; cu_seqlens_q needs it")
    elif cu_seqlens_k is not None or layout == "packed":
        raise BadArgument("cu_seqlens_q is missing; cu_seqlens_k, and packed sequences, need it")
    dropout_p = _problem.dropout_of(dropout_p)
    shapes, (mask, patterns) = [tuple(x.shape) for x in (q, k, v)], _problem.joined(mask, sparsity)
    if not isinstance(mask, str) and mask is not None:
        alike = layout in ("bshd", "bhsd") and all(len(shape) == 4 for shape in shapes)
        pages = None if page_table is None else page_table.shape
        known = _problem.lengths(*shapes[:2], layout, pages, seqused_k is not None, max_seqlen_k) if alike else (
            None, None, max_seqlen_q or 0, max_seqlen_k or 0)
        mask, arrays = _problem.read("mask", mask, arrays, known)
    if not isinstance(score, str) and score is not None:
        score, arrays = _problem.read("score", score, arrays)
    named, own, given = name_arrays(convert, bias, alibi_slopes, sink, arrays)
    terms = _problem.terms(bool(causal), _problem.window_of(window), mask, score, None if softcap is None else float(softcap),
                           align, own, given, dropout_p > 0, layout == "packed", seqused_k is not None, page_table is not None,
                           patterns=patterns)
    sequences = cu_seqlens_q.shape[0] - 1 if layout == "packed" else None
    sizes = _problem.shapes(*shapes, layout, sequences, max_seqlen_q, max_seqlen_k,
                            None if page_table is None else tuple(page_table.shape))
    _problem.check_lengths(sizes, *[None if x is None else x.shape for x in (cu_seqlens_q, cu_seqlens_k, seqused_k)],
                           max_seqlen_q, max_seqlen_k)
    _problem.check_head_dims(sizes.dim, sizes.dim_v)
    scale = _problem.scale_of(softmax_scale, sizes.dim)
    if "bits" in named and "bits" in terms.words.split() and layout != "packed" and page_table is None:  # else keys are bounds
        _problem.check_words(named["bits"].shape[-1], sizes.seqlen_k)
    return Asked(terms, _problem.in_order(terms.names, named), sizes._replace(dim=padded(sizes.dim), dim_v=padded(sizes.dim_v)),
                 layout, scale, dropout_p, _problem.splits_of(num_splits), DTYPES[dtype_name(q)])


def refuse_unknown(function, options):
    """As Python refuses keywords, by the name of the function that was called."""
    for name in options:
        if name not in ask.__kwdefaults__:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def refuse_bools(key, x):
    """A table of blocks, or of keys, has a bit for each; a bool taken for its word would show one of 32."""
    name = _problem.bare(key)
    if name in ("block_bits", "bits") and str(getattr(x, "dtype", "")).endswith("bool"):
        raise BadArgument(f"array {name} has bools; it must have ints, of 32 {'blocks' if name == 'block_bits' else 'keys'} each: "
                          "create_block_mask(blocks=...) takes bools")


BOOL_BIAS = 'bias is of bool: a mask is mask=..., such as mask="keep[b][h][q][k] != 0", arrays={"keep": x}'


def name_arrays(convert, bias, alibi_slopes, sink, arrays):
    """({name: array}, (name, element) of those that arguments of their own bring, (key, element, rank) of the others)."""
    named = {}
    if alibi_slopes is not None:
        slopes = convert(alibi_slopes)
        named["slope" if len(slopes.shape) == 1 else "batch_slope"] = slopes
    if bias is not None:
        bias = convert(bias)
        if dtype_name(bias) == "bool":
            raise BadArgument(BOOL_BIAS)
        named["bias"] = bias.reshape(*(1,) * (4 - len(bias.shape)), *bias.shape)
    if sink is not None:
        named["sink"] = convert(sink)
    own, given = brought(named), []
    for key, x in (arrays or {}).items():
        refuse_bools(key, x)
        x = convert(x)
        given.append((key, element_of(x), len(x.shape)))
        named[_problem.bare(key)] = x
    return named, own, tuple(given)


ARGUMENTS = {"bias": ("bias",), "sink": ("sink",), "alibi_slopes": ("slope", "batch_slope")}


def names_of(grad, terms):
    """The arrays' own names of those whose gradients are asked for, which may be named by argument."""
    out = []
    for asked in (grad,) if isinstance(grad, str) else grad:
        name = next((name for name in ARGUMENTS.get(asked, (asked,)) if name in terms.names), None)
        if name is None or terms.elements[terms.names.index(name)] == "int":
            floats = [name for name, element in zip(terms.names, terms.elements) if element != "int"]
            raise BadProblem(f"grad: '{asked}' is no array of floats that masks or scores read; they read: "
                             f"{_problem.listed(floats)}")
        out.append(name)
    return out
