"""A Python function of symbols becomes an expression of docs/expressions.md: for masks f(b, h, q, k) and scores
f(s, b, h, q, k), which are also FlexAttention's mask_mod and score_mod.

The function runs once. What it does to its arguments is written down as text, and arrays that it reads at symbols are
captured under generated names:

    >>> trace_mask(lambda b, h, q, k: (k <= q) & (q - k < 256))
    ('k <= q && q - k < 256', {})

Values are those of Python: `/` divides truly, `//` and `%` round down, ints and floats meet as floats. Only +, * and - of
two bools are PyTorch's: or, and, an error. Beyond it holds what docs/expressions.md says: x // 0 is 0, floats are
float32, and an index outside an array reads the nearest element (a negative literal counts from the end, a negative value
does not)."""
import itertools
import threading
from typing import Any, Callable, Dict, Optional, Tuple

from ._expression import (ALL, COUNT, Symbol, TraceError, abs, binary, bit, condition, exp, lift, log, logical_and, maximum,
                          minimum, popcount, tanh, to_float, where, with_operators)
from ._symbol_names import torch_mode

__all__ = ["Symbol", "TraceError", "abs", "array", "bit", "diag", "exp", "log", "maximum", "minimum", "popcount", "seqlen_k",
           "seqlen_q", "tanh", "trace_mask", "trace_score", "trace_score_and_mask", "where"]

MAX_EXPR = 240  # FK_MAX_EXPR: bytes of an expression, with its terminating zero
MAX_RANK = 4  # FK_MAX_RANK

diag = Symbol("diag", "int")  # seqlen_k - seqlen_q, or 0 where the diagonal starts in the upper left
seqlen_q = Symbol("seqlen_q", "int", range=COUNT)
seqlen_k = Symbol("seqlen_k", "int", range=COUNT)

# ---- captured arrays ----


class Trace:
    """The arrays that one function reads: {name: array}, besides those that have names already."""

    def __init__(self, named, prefix):
        self.named, self.prefix, self.arrays, self.known = named, prefix, {}, {}

    def name(self, source):
        """Of an array, bools as ints; one without dimensions is an array of one element."""
        if id(source) not in self.known:
            array = source if len(source.shape) else source.reshape(1)
            if element_kind(source) == "bool":
                array = as_ints(array)
            name = next((name for name, other in self.named.items() if other is array), None)
            if name is None:
                taken = self.named.keys() | self.arrays.keys()
                name = next(name for name in map(f"{self.prefix}{{}}".format, itertools.count()) if name not in taken)
            self.arrays[name] = array
            self.known[id(source)] = name, source  # held, so that no other array gets its id
        return self.known[id(source)][0]


_current = threading.local()


def element_kind(source):
    dtype = str(source.dtype).rpartition(".")[2]
    for prefix, kind in (("bool", "bool"), ("bfloat", "float"), ("float", "float"), ("int", "int"), ("uint", "int")):
        if dtype.startswith(prefix):
            return kind
    raise TraceError(f"a captured array has dtype {source.dtype}: must be bool, int or float")


def as_ints(source):
    return source.astype("int32") if hasattr(source, "astype") else source.int()


def is_array(x):
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, Symbol)


@with_operators
class array:
    """An array that may be read at symbols: `flashkiln.array(x)[b, q]`. It has up to 4 dimensions, of ints (int32 in the
    kernel), floats (float32) or bools. Tensors of PyTorch need no wrapper: `x[b, q]`.

    >>> import numpy as np, flashkiln
    >>> document = flashkiln.array(np.array([0, 0, 1, 1]))
    >>> mask = lambda b, h, q, k: document[q] == document[k]"""

    __array_ufunc__ = None  # NumPy leaves its operators to this class

    def __init__(self, source: Any, index: Tuple = ()):
        if not is_array(source):
            raise TypeError(f"flashkiln.array: {type(source).__name__}: must be an array with shape and dtype")
        self.source, self.index = source, index

    def __bool__(self):
        return bool(lift(self))

    def __getitem__(self, index: Any) -> Any:
        whole = self.index + (index if isinstance(index, tuple) else (index,))
        shape = self.source.shape
        if len(shape) > MAX_RANK or len(whole) > len(shape):
            raise TraceError(f"an array of shape {tuple(shape)} is read at {len(whole)} indices: must have at most "
                             f"{MAX_RANK} dimensions, with an index for each")
        if len(whole) < len(shape):
            return array(self.source, whole)
        return read(self.source, [as_index(i, size) for i, size in zip(whole, shape)])


def as_index(i, size):
    if i is None or i is Ellipsis or isinstance(i, slice):
        raise TraceError(f"an array that is read at a symbol has index {i}: must be ints and symbols")
    i = lift(i)
    if i.kind != "int":
        raise TraceError(f"index `{i.text}` is {i.kind}: must be int")
    if i.value is None:
        return i
    if not -size <= i.value < size:
        raise IndexError(f"index {i.value} of a captured array: its dimension has {size} elements")
    return lift(i.value % size)


def element(x):
    """Of what is no symbol and no number: an array without dimensions."""
    if isinstance(x, array):
        if not x.source.shape:
            return lift(x.source)
        raise TraceError(f"an array of shape {tuple(x.source.shape)} is read at {len(x.index)} indices: must have an index for "
                         "each dimension")
    if not is_array(x):
        raise TraceError(f"{type(x).__name__} {x!r} meets a symbol: must be a number, a bool or an array element")
    if len(x.shape):
        raise TraceError(f"an array of shape {tuple(x.shape)} meets a symbol: read one element of it, x[...]")
    return read(x, [lift(0)])


def read(source, index):
    trace = getattr(_current, "trace", None)
    if trace is None:
        raise TraceError("an array is read at a symbol, but no function is being traced")
    kind = element_kind(source)
    text = trace.name(source) + "".join(f"[{i.text}]" for i in index)
    return binary("!=", Symbol(text, "int"), lift(0), "bool") if kind == "bool" else Symbol(text, kind)


# ---- tracing ----


def trace(function, names, named):
    """(what it returns, the arrays that it reads)"""
    symbols = [Symbol(name, "float" if name == "s" else "int", range=COUNT if name != "s" else ALL) for name in names]
    outer, _current.trace = getattr(_current, "trace", None), Trace(named or {}, "s" if "s" in names else "m")
    try:
        with torch_mode():
            result = lift(function(*symbols))
        return result, _current.trace.arrays
    finally:
        _current.trace = outer


def checked(function, symbol):
    size = len(symbol.text)
    if size >= MAX_EXPR:
        name = getattr(function, "__name__", type(function).__name__)
        raise ValueError(f"the expression of {name} has {size} bytes: must be at most {MAX_EXPR - 1}: {symbol.text}")
    return symbol.text


def trace_mask(function: Callable, named: Optional[Dict[str, Any]] = None) -> Tuple[str, Dict[str, Any]]:
    """The predicate of f(b, h, q, k) as text, and {name: array} of the arrays that it reads. `named` are arrays that have
    names already: these are not given again, and the same array keeps its name.

    Raises TraceError (a TypeError) for what the language lacks, ValueError for a text that is too long."""
    result, arrays = trace(function, "bhqk", named)
    return checked(function, condition(result, "what a mask returns")), arrays


def trace_score(function: Callable, named: Optional[Dict[str, Any]] = None) -> Tuple[str, Dict[str, Any]]:
    """The new score of f(s, b, h, q, k), a float, likewise."""
    result, arrays = trace(function, "sbhqk", named)
    return checked(function, to_float(result)), arrays


def trace_score_and_mask(function: Callable, named: Optional[Dict[str, Any]] = None
                         ) -> Tuple[Optional[str], Optional[str], Dict[str, Any]]:
    """As trace_score, but a score of where(c, x, -inf) is the score x and the mask c, so that tiles without any c are
    skipped: (score or None, mask or None, arrays)."""
    result, arrays = trace(function, "sbhqk", named)
    score, mask = to_float(result), lift(True)
    while score.hides:
        mask, score = logical_and(mask, score.hides[0]), to_float(score.hides[1])
    return (checked(function, score) if score.text != "s" else None,
            checked(function, mask) if mask.value is None else None, arrays)
