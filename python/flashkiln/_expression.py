"""Symbols: values of the expression language (docs/expressions.md), as text that grows with each operation. Types,
precedence and rounding are Python's where they are put in, and the language's where they come out."""
import math
from typing import Any

MAX_INT, MAX_FLOAT = 2**31 - 1, 3.4028234663852886e38  # what the device holds

# How tightly operators bind, loosest first: C's order.
SELECT, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUAL, ORDER, SHIFT, SUM, PRODUCT, UNARY, PRIMARY = range(13)
BINDS = {"||": OR, "&&": AND, "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "==": EQUAL, "!=": EQUAL, "<": ORDER, "<=": ORDER,
         ">": ORDER, ">=": ORDER, "<<": SHIFT, ">>": SHIFT, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "%": PRODUCT}
ALL = (-math.inf, math.inf)
COUNT = (0, math.inf)


class TraceError(TypeError):
    """What a function does to its symbols has no form in the expression language; the message says what has."""


class Symbol:
    """An int, float or bool whose value is known in the kernel alone: a name, or what was computed from names."""

    __slots__ = ("text", "kind", "binds", "range", "value", "hides")
    device = None  # tensor.new_ones((), device=q.device) and the like

    def __init__(self, text, kind, binds=PRIMARY, range=ALL, value=None, hides=None):
        self.text, self.kind, self.binds = text, kind, binds
        self.range = (0, 1) if kind == "bool" else range  # of ints: holds every value
        self.value = value  # of literals
        self.hides = hides  # of scores: (shown, score) where the others are -inf

    def __repr__(self):
        return f"Symbol({self.text})"

    # What asks a symbol for its value cannot be traced.
    def __bool__(self):
        raise TraceError(f"`{self.text}` has no value while it is traced, so `if`, `and`, `or`, `not`, min(), max() and "
                         "`a < b < c` cannot ask for it: use flashkiln.where(), &, |, ~, flashkiln.minimum(), "
                         "flashkiln.maximum() and `(a < b) & (b < c)`")

    def __index__(self):
        raise TraceError(f"`{self.text}` has no value while it is traced: to read an array at it, write "
                         "flashkiln.array(x)[...] (tensors of PyTorch need no wrapper)")

    def _no_number(self):
        raise TraceError(f"`{self.text}` has no value while it is traced: use flashkiln's or PyTorch's functions on it")

    __int__ = __float__ = __complex__ = __len__ = __iter__ = __round__ = item = tolist = _no_number

    def __array__(self, *args, **kwargs):
        self.__index__()

    # Functions and methods of PyTorch and NumPy, by name.
    def __getattr__(self, name):
        from ._symbol_names import METHODS
        if name not in METHODS:
            raise AttributeError(f"symbols have no attribute '{name}'")
        return lambda *args, **options: METHODS[name](self, *args, **options)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        from ._symbol_names import call_named
        return call_named(function.__name__, args, kwargs or {})

    def __array_ufunc__(self, function, method, *args, **kwargs):
        from ._symbol_names import call_named
        return call_named(function.__name__ if method == "__call__" else method, args, kwargs)

    def __array_function__(self, function, types, args, kwargs):
        from ._symbol_names import call_named
        return call_named(function.__name__, args, kwargs)


# ---- values and text ----


def lift(x):
    """A symbol, number, bool or array of no dimensions, as a symbol."""
    if isinstance(x, Symbol):
        return x
    if isinstance(x, bool):
        return Symbol("true" if x else "false", "bool", value=x)
    if isinstance(x, int):
        if not -MAX_INT <= x <= MAX_INT:
            raise TraceError(f"literal {x}: must be from -{MAX_INT} to {MAX_INT}")
        return Symbol(str(x), "int", UNARY if x < 0 else PRIMARY, (x, x), x)
    if isinstance(x, float):
        return lift_float(x)
    if hasattr(x, "__array_interface__") and not x.shape:  # NumPy's scalars; as short as they print
        return lift(float(str(x)) if str(x.dtype) == "float32" else x.item())
    from ._symbols import element
    return element(x)


def lift_float(x):
    if math.isnan(x):
        raise TraceError("literal nan: must be a number")
    if math.fabs(x) <= MAX_FLOAT:
        return Symbol(repr(x), "float", UNARY if math.copysign(1, x) < 0 else PRIMARY, value=x)
    endless = math.copysign(math.inf, x)  # as float32 has it; the language has no literal for it
    return Symbol("log(0.0)" if x < 0 else "-log(0.0)", "float", PRIMARY if x < 0 else UNARY, value=endless)


def within(x, binds):
    return x.text if x.binds >= binds else f"({x.text})"


def binary(op, x, y, kind, range=ALL):
    binds = BINDS[op]
    right = within(y, binds if op in ("&&", "||") else binds + 1)
    return Symbol(f"{within(x, binds)} {op} {right}", kind, binds, range)


def unary(op, x, range=ALL):
    text = within(x, UNARY)
    return Symbol(op + (f"({text})" if text[0] in "+-" else text), x.kind, UNARY, range)


def call(name, args, kind, range=ALL):
    return Symbol(f"{name}({', '.join(x.text for x in args)})", kind, PRIMARY, range)


def number(x):
    """Bools count as 0 and 1 where they meet numbers."""
    x = lift(x)
    if x.kind != "bool":
        return x
    return lift(int(x.value)) if x.value is not None else Symbol(f"{within(x, OR)} ? 1 : 0", "int", SELECT, (0, 1))


def numbers(x, y):
    x, y = number(x), number(y)
    return x, y, "float" if "float" in (x.kind, y.kind) else "int"


def to_float(x):
    x = number(x)
    if x.kind == "float":
        return x
    return lift(float(x.value)) if x.value is not None else call("float", [x], "float")


def to_int(x):
    x = number(x)
    if x.kind == "float":
        raise TraceError(f"`{x.text}` is a float: the language has no conversion to int")
    return x


def to_bool(x):
    x = lift(x)
    if x.kind == "bool":
        return x
    return lift(bool(x.value)) if x.value is not None else compare("!=", x, 0)


def condition(x, what):
    x = lift(x)
    if x.kind != "bool":
        raise TraceError(f"{what} is {x.kind} `{x.text}`: must be bool, such as `{within(x, EQUAL)} != 0`")
    return x


# ---- functions of the language ----


def where(condition_: Any, x: Any, y: Any) -> Symbol:
    """x where the condition holds, else y: `where(k <= q, s, 2 * s)`."""
    c, x, y = condition(condition_, "the condition of where()"), lift(x), lift(y)
    if c.value is not None:
        return x if c.value else y
    if not x.kind == y.kind == "bool":
        x, y, kind = numbers(x, y)
    else:
        kind = "bool"
    hides = (c, x) if y.value == -math.inf else (invert(c), y) if x.value == -math.inf else None
    range = (min(x.range[0], y.range[0]), max(x.range[1], y.range[1]))
    return Symbol(f"{within(c, OR)} ? {x.text} : {within(y, SELECT)}", kind, SELECT, range, hides=hides)


def minimum(x: Any, y: Any) -> Symbol:
    """The smaller of two numbers; of two bools whether both hold."""
    if both_bools(x, y):
        return logical_and(x, y)
    x, y, kind = numbers(x, y)
    return call("min", [x, y], kind, (min(x.range[0], y.range[0]), min(x.range[1], y.range[1])))


def maximum(x: Any, y: Any) -> Symbol:
    """The larger of two numbers; of two bools whether one holds."""
    if both_bools(x, y):
        return logical_or(x, y)
    x, y, kind = numbers(x, y)
    return call("max", [x, y], kind, (max(x.range[0], y.range[0]), max(x.range[1], y.range[1])))


def abs(x: Any) -> Symbol:
    """The absolute value of a number; Python's abs() does, too."""
    x = number(x)
    return x if x.range[0] >= 0 else call("abs", [x], x.kind, COUNT)


def exp(x: Any) -> Symbol:
    """e to the power of x, a float."""
    return call("exp", [number(x)], "float")


def log(x: Any) -> Symbol:
    """The natural logarithm of x, a float."""
    return call("log", [number(x)], "float")


def tanh(x: Any) -> Symbol:
    """The hyperbolic tangent of x, a float."""
    return call("tanh", [number(x)], "float")


def popcount(x: Any) -> Symbol:
    """The number of bits that are set in the low 32 of an int."""
    return call("popcount", [to_int(x)], "int", (0, 32))


def bit(word: Any, n: Any) -> Symbol:
    """Is bit n % 32 of an int set?"""
    return call("bit", [to_int(word), to_int(n)], "bool")


# ---- operators ----


def both_bools(x, y):
    """Their sums and products are bools, as PyTorch, NumPy and FlexAttention have it; Python's own are ints."""
    return lift(x).kind == lift(y).kind == "bool"


def add(x, y):
    if both_bools(x, y):
        return logical_or(x, y)
    x, y, kind = numbers(x, y)
    return binary("+", x, y, kind, (x.range[0] + y.range[0], x.range[1] + y.range[1]))


def subtract(x, y):
    if both_bools(x, y):
        x, y = lift(x), lift(y)
        raise TraceError(f"`{x.text}` - `{y.text}` of bools, which PyTorch refuses, too: write x & ~y or x ^ y, or make ints of "
                         "them by flashkiln.where(x, 1, 0)")
    x, y, kind = numbers(x, y)
    return binary("-", x, y, kind, (x.range[0] - y.range[1], x.range[1] - y.range[0]))


def multiply(x, y):
    if both_bools(x, y):
        return logical_and(x, y)
    x, y, kind = numbers(x, y)
    natural = x.range[0] >= 0 and y.range[0] >= 0
    return binary("*", x, y, kind, COUNT if natural else ALL)


def negative(x):
    x = number(x)
    return lift(-x.value) if x.value is not None else unary("-", x, (-x.range[1], -x.range[0]))


def true_divide(x, y):
    x, y, kind = numbers(x, y)
    if kind == "int" and y.value == 0:
        raise ZeroDivisionError(f"`{x.text}` / 0")
    return binary("/", to_float(x) if kind == "int" else x, y, "float")


def divide(x, y):
    """Toward zero: C's division of ints."""
    return binary("/", x, y, "int", COUNT if x.range[0] >= 0 and y.range[0] >= 0 else ALL)


def whole(x, y, op):
    x, y, kind = numbers(x, y)
    if kind == "float":
        raise TraceError(f"`{x.text}` {op} `{y.text}` of floats: the language rounds ints only")
    if y.value == 0:
        raise ZeroDivisionError(f"`{x.text}` {op} 0")
    return x, y


def rounds_up(x, y):
    """Where C's division toward zero gives one more than Python's, and so a remainder of the other sign."""
    remainder = binary("%", x, y, "int")
    if y.range[0] >= 0:
        return compare("<", remainder, 0)
    return logical_and(compare("!=", remainder, 0), compare("!=", compare("<", x, 0), compare("<", y, 0)))


def floor_divide(x, y):
    x, y = whole(x, y, "//")
    if y.value is not None and y.value < 0:
        return floor_divide(negative(x), -y.value)
    if y.value == 1:
        return x
    if x.range[0] >= 0 and y.range[0] >= 0:
        return divide(x, y)
    if y.value is not None and y.value & (y.value - 1) == 0:
        return shift(">>", x, y.value.bit_length() - 1)  # rounds down
    return subtract(divide(x, y), where(rounds_up(x, y), 1, 0))


def remainder(x, y):
    x, y = whole(x, y, "%")
    if y.value is not None and y.value < 0:
        return negative(remainder(negative(x), -y.value))
    least = (0, max(y.range[1] - 1, 0)) if y.range[0] >= 0 else ALL
    plain = binary("%", x, y, "int", least)
    if x.range[0] >= 0 and y.range[0] >= 0:
        return plain
    if y.value is not None and y.value & (y.value - 1) == 0:
        return binary("&", x, lift(y.value - 1), "int", least)
    if y.value is not None and y.value <= 2**30:  # the sum stays within 32 bits
        return binary("%", add(plain, y), y, "int", least)
    result = add(plain, where(rounds_up(x, y), y, 0))
    return Symbol(result.text, "int", result.binds, least)


def power(x, n):
    """By a literal from 0 to 4: a product; by 0.5: a square root."""
    x, exponent = number(x), lift(n)
    n = exponent.value
    if n == 0.5:
        return exp(multiply(0.5, log(x)))
    if n not in (0, 1, 2, 3, 4):
        raise TraceError(f"`{x.text}` ** {exponent.text}: must be a literal from 0 to 4, or 0.5; exp(n * log(x)) is general")
    x = to_float(x) if exponent.kind == "float" else x
    result = lift(1 if x.kind == "int" else 1.0) if n == 0 else x
    for _ in range(int(n) - 1):
        result = multiply(result, x)
    return result


def shift(op, x, count):
    x, count = to_int(x), to_int(count)
    return binary(op, x, count, "int", COUNT if x.range[0] >= 0 and op == ">>" else ALL)


def compare(op, x, y):
    x, y = lift(x), lift(y)
    if not (x.kind == y.kind == "bool" and op in ("==", "!=")):
        x, y, _ = numbers(x, y)
    return binary(op, x, y, "bool")


def logical_and(x, y):
    x, y = to_bool(x), to_bool(y)
    for constant, other in ((x, y), (y, x)):
        if constant.value is not None:
            return other if constant.value else constant
    return binary("&&", x, y, "bool")


def logical_or(x, y):
    x, y = to_bool(x), to_bool(y)
    for constant, other in ((x, y), (y, x)):
        if constant.value is not None:
            return constant if constant.value else other
    return binary("||", x, y, "bool")


def logical_not(x):
    x = to_bool(x)
    return lift(not x.value) if x.value is not None else unary("!", x)


def bits(op, on_bools):
    def apply(x, y):
        x, y = lift(x), lift(y)
        if x.kind == y.kind == "bool":
            return on_bools(x, y)
        x, y = to_int(x), to_int(y)
        natural = [a.range[0] >= 0 for a in (x, y)]
        return binary(op, x, y, "int", COUNT if all(natural) or op == "&" and any(natural) else ALL)
    return apply


bitwise_and = bits("&", logical_and)
bitwise_or = bits("|", logical_or)
bitwise_xor = bits("^", lambda x, y: compare("!=", x, y))


def invert(x):
    x = lift(x)
    return logical_not(x) if x.kind == "bool" else unary("~", to_int(x))


def swapped(function):
    return lambda x, y: function(y, x)


ARITHMETIC = {"add": add, "sub": subtract, "mul": multiply, "truediv": true_divide, "floordiv": floor_divide,
              "mod": remainder, "pow": power, "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor,
              "lshift": lambda x, count: shift("<<", x, count), "rshift": lambda x, count: shift(">>", x, count)}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def with_operators(kind):
    """Gives a class Python's operators."""
    for name, function in ARITHMETIC.items():
        setattr(kind, f"__{name}__", function)
        setattr(kind, f"__r{name}__", swapped(function))
    for name, op in COMPARISONS.items():
        setattr(kind, f"__{name}__", lambda x, y, op=op: compare(op, x, y))
    for name, function in {"neg": negative, "pos": number, "abs": abs, "invert": invert}.items():
        setattr(kind, f"__{name}__", function)
    kind.__hash__ = None
    return kind


with_operators(Symbol)
