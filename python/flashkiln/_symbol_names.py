"""The names by which PyTorch's and NumPy's functions and methods are known, as operations on symbols: neither library
is imported for that."""
import contextlib
import functools
import math
import sys

from . import _expression as ops
from ._expression import Symbol, TraceError


def where(condition, x, y):
    return ops.where(condition, x, y)


def method_where(score, condition, other):  # tensor.where(condition, other)
    return ops.where(condition, score, other)


def masked_fill(x, mask, value):
    x = ops.lift(x)
    return ops.where(mask, ops.to_bool(value) if x.kind == "bool" else value, x)


def clamp(x, min=None, max=None, a_min=None, a_max=None):
    low, high = a_min if min is None else min, a_max if max is None else max
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


def detach(x):
    x = ops.lift(x)
    if x.kind == "float":
        raise TraceError(f"`{x.text}`.detach(): the kernel knows one gradient of a score; detach the tensor that is read: a.detach()[h]")
    return x


def div(x, y, rounding_mode=None):
    if rounding_mode == "floor":
        return ops.floor_divide(x, y)
    if rounding_mode == "trunc":
        return ops.divide(*ops.whole(x, y, "/"))
    return ops.true_divide(x, y)


def fmod(x, y):
    return ops.binary("%", *ops.whole(x, y, "%"), "int")


def logical_xor(x, y):
    return ops.compare("!=", ops.to_bool(x), ops.to_bool(y))


def sigmoid(x):
    return ops.true_divide(1.0, ops.add(1.0, ops.exp(ops.negative(x))))


def sign(x):
    return ops.subtract(ops.number(ops.compare(">", x, 0)), ops.compare("<", x, 0))


def add(x, y, alpha=1):
    return ops.add(x, y if alpha == 1 else ops.multiply(y, alpha))


def sub(x, y, alpha=1):
    return ops.subtract(x, y if alpha == 1 else ops.multiply(y, alpha))


def reverse_sub(x, y, alpha=1):
    return sub(y, x, alpha)


def getitem(x, index):
    from ._symbols import array
    return array(x)[index]


def to(x, dtype=None, *ignored, **options):
    if dtype is None or type(dtype).__name__ == "device":
        return x
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]
    for prefix, convert in (("bool", ops.to_bool), ("float", ops.to_float), ("bfloat", ops.to_float), ("half", ops.to_float),
                            ("double", ops.to_float), ("int", ops.to_int), ("long", ops.to_int), ("short", ops.to_int)):
        if name.startswith(prefix):
            return convert(x)
    raise TraceError(f"`{x.text}` to {dtype}: must be a bool, int or float type")


def filled(value):
    """tensor.new_ones(()) and the like: a literal of the type that is asked for."""
    def make(x, size=(), dtype=None, device=None, **options):
        if len(size):
            raise TraceError(f"an array of shape {tuple(size)} is made of `{x.text}`: must be an element, of shape ()")
        return to(ops.lift(value), dtype or x.kind)
    return make


def scaled(function, factor):
    return lambda x: function(ops.multiply(x, factor))


def comparison(op):
    return lambda x, y: ops.compare(op, x, y)


def shift(op):
    return lambda x, count: ops.shift(op, x, count)


def same(x, *ignored, **options):
    return x


ALIASES = {
    "add": add, "sub subtract": sub, "rsub": reverse_sub, "mul multiply": ops.multiply, "div divide true_divide truediv": div,
    "floor_divide floordiv": ops.floor_divide, "remainder mod": ops.remainder, "fmod": fmod, "pow power float_power": ops.power,
    "neg negative": ops.negative, "positive pos": ops.number, "abs absolute fabs": ops.abs, "square": lambda x: ops.power(x, 2),
    "and bitwise_and": ops.bitwise_and, "or bitwise_or": ops.bitwise_or, "xor bitwise_xor": ops.bitwise_xor,
    "invert bitwise_not": ops.invert, "logical_and": ops.logical_and, "logical_or": ops.logical_or,
    "logical_not": ops.logical_not, "logical_xor": logical_xor, "bitwise_left_shift left_shift lshift": shift("<<"),
    "bitwise_right_shift right_shift rshift": shift(">>"), "eq equal": comparison("=="), "ne not_equal": comparison("!="),
    "lt less": comparison("<"), "le less_equal": comparison("<="), "gt greater": comparison(">"),
    "ge greater_equal": comparison(">="), "where": where, "masked_fill": masked_fill, "minimum min fmin": ops.minimum,
    "maximum max fmax": ops.maximum, "clamp clip": clamp, "clamp_min": ops.maximum, "clamp_max": ops.minimum,
    "exp": ops.exp, "log": ops.log, "tanh": ops.tanh, "exp2": scaled(ops.exp, math.log(2)),
    "log2": lambda x: ops.multiply(ops.log(x), 1 / math.log(2)), "sqrt": lambda x: ops.power(x, 0.5),
    "rsqrt": lambda x: ops.exp(ops.multiply(-0.5, ops.log(x))), "sigmoid": sigmoid, "sign": sign, "relu": lambda x: ops.maximum(x, 0),
    "getitem": getitem, "to type astype": to, "float double half bfloat16": ops.to_float, "int long short": ops.to_int,
    "bool": ops.to_bool, "new_ones ones_like": filled(1), "new_zeros zeros_like": filled(0),
    "clone contiguous": same, "detach": detach,
}
NAMES = {name: function for names, function in ALIASES.items() for name in names.split()}
METHODS = {**NAMES, "where": method_where}
ARGUMENTS = {"input": "x", "self": "x", "other": "y", "exponent": "n"}  # PyTorch's names of arguments
SWAPPED = "radd rmul rdiv rtruediv rfloordiv rmod rpow rand ror rxor rlshift rrshift".split()


def call_named(name, args, kwargs):
    """function `name` of PyTorch or NumPy, called with a symbol among its arguments."""
    plain = name.strip("_")
    if plain in SWAPPED:
        plain, args = plain[1:], args[::-1]
    if plain not in NAMES:
        raise TraceError(f"{name}() of a symbol: the expression language has no such function; it has +, -, *, /, //, %, "
                         "comparisons, &, |, ^, ~, <<, >>, where, minimum, maximum, abs, exp, log, tanh")
    return NAMES[plain](*args, **{ARGUMENTS.get(key, key): value for key, value in kwargs.items()})


def has_symbol(args):
    return any(isinstance(x, Symbol) or isinstance(x, (tuple, list)) and has_symbol(x) for x in args)


@functools.lru_cache(maxsize=None)
def mode_class(base):
    """PyTorch asks an index for nothing, so that `tensor[symbol]` is seen by a mode alone."""
    class SymbolMode(base):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if has_symbol(args) or has_symbol(kwargs.values()):
                return call_named(function.__name__, args, kwargs)
            return function(*args, **kwargs)
    return SymbolMode


def torch_mode():
    """While it is entered, tensors of PyTorch, if there are any in this process, may be read at symbols."""
    torch = sys.modules.get("torch")
    return mode_class(torch.overrides.TorchFunctionMode)() if torch else contextlib.nullcontext()
