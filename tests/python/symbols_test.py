"""Traced functions mean what Python makes of them: every expression is evaluated by the library, pair by pair, and by
calling the function with numbers."""
import math
import operator
import re

import numpy as np
import pytest
from evaluation import shown, weights
from flashkiln import _symbols as fk
from flashkiln._capi import library

N = 16  # queries and keys


def agrees(function, x0=-8, y0=-8, tolerance=0):
    """Is function(q + x0, k + y0) the same number for every pair?"""
    expected = np.array([[function(q + x0, k + y0) for k in range(N)] for q in range(N)])
    if expected.dtype == bool:
        expected = expected.astype(int)
    expected = expected.astype(np.float32 if expected.dtype.kind == "f" else np.int32)
    table = fk.array(expected)

    def mask(b, h, q, k):
        value = function(q + x0 if x0 else q, k + y0 if y0 else k)
        error = fk.abs(value - table[q, k] if not tolerance else (value - table[q, k]) / (1 + fk.abs(table[q, k])))
        return error <= tolerance
    text, arrays = fk.trace_mask(mask)
    return shown(text, arrays), text


INTS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "min": lambda x, y: fk.minimum(x, y) if symbolic(x, y) else min(x, y),
    "max": lambda x, y: fk.maximum(x, y) if symbolic(x, y) else max(x, y), "abs": lambda x, y: abs(x - y),
    "neg": lambda x, y: -x - -y, "invert": lambda x, y: ~x ^ -(~y), "pow": lambda x, y: x**3 - y**2 + x**0,
    "shift": lambda x, y: (x << 2) - (y >> 1), "nested": lambda x, y: (x - (y - (x - 3))) * (2 - y) - -(x + y),
    "bits": lambda x, y: (x & 5 | y ^ 3) + (x & (y | 1)), "bools": lambda x, y: (x < y) + (x == y) * 2 - (x >= -y),
    "bit": lambda x, y: fk.bit(x, y) + 0 if symbolic(x, y) else x >> (y & 31) & 1,
    "popcount": lambda x, y: fk.popcount(x) if symbolic(x) else bin(x & 0xffffffff).count("1"),
}
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def symbolic(*values):
    return any(isinstance(x, fk.Symbol) for x in values)


@pytest.mark.parametrize("name", INTS)
def test_ints(name):
    same, text = agrees(INTS[name])
    assert same.all(), text


def test_sums_and_products_of_bools_are_bools():
    """As PyTorch and NumPy have it; beside a number they count as 0 and 1."""
    def text(function):
        return fk.trace_mask(function)[0]
    q, k = np.ix_(range(N), range(N))
    for function in (lambda b, h, q, k: ((q < k) + (k < 10)) > 1, lambda b, h, q, k: (q < k) * (k < 10) + (q == k) == 1,
                     lambda b, h, q, k: (q < k) + (k < 10) + 0 == 1, lambda b, h, q, k: 2 * (q < k) - (k < 10) == 1,
                     lambda b, h, q, k: np.multiply(q < k, np.add(k < 10, q == 3)),
                     lambda b, h, q, k: np.maximum(q < k, k < 10) + (q == k) > 1, lambda b, h, q, k: np.minimum(q < k, k < 10) + (q == k) > 1):
        assert (shown(text(function))[0, 0] == function(0, 0, q, k)).all(), text(function)
    assert text(lambda b, h, q, k: (q < k) + (k < 10)) == "q < k || k < 10"
    assert text(lambda b, h, q, k: (q < k) * (k < 10)) == "q < k && k < 10"
    assert text(lambda b, h, q, k: True * (q < k)) == "q < k"
    assert text(lambda b, h, q, k: np.sign(q - k) == 1) == "(q - k > 0 ? 1 : 0) - (q - k < 0 ? 1 : 0) == 1"


def test_a_wrong_expression_is_noticed():
    calls = []
    same, _ = agrees(lambda x, y: x + y + (1 if symbolic(x) and not calls.append(x) else 0))
    assert calls and not same.any()


@pytest.mark.parametrize("op", COMPARISONS, ids=lambda op: op.__name__)
def test_comparisons(op):
    for function in (lambda x, y: op(x, y), lambda x, y: op(3, y), lambda x, y: op(x * 0.5, y)):
        same, text = agrees(function)
        assert same.all(), text


@pytest.mark.parametrize("op", [operator.floordiv, operator.mod], ids=["floordiv", "mod"])
@pytest.mark.parametrize("y", [1, 2, 3, 5, 8, 64, -1, -2, -3, -8])
def test_rounding_by_literals(op, y):
    for x0 in (-8, 0):  # operands of either sign, and operands known not to be negative
        same, text = agrees(lambda x, _: op(x, y), x0)
        assert same.all(), text


@pytest.mark.parametrize("op,c_op", [(operator.floordiv, "/"), (operator.mod, "%")], ids=["floordiv", "mod"])
def test_rounding_by_values(op, c_op):
    def guarded(x, y):  # by 0: 0, as in the language
        return op(x, y) if symbolic(y) or y else 0
    for x0 in (-8, 0):
        for y0 in (-8, 0):
            same, text = agrees(guarded, x0, y0)
            assert same.all(), text
    for literal in (-7, 7):
        same, text = agrees(lambda x, y: guarded(literal, y))
        assert same.all(), text
    with pytest.raises(ZeroDivisionError):
        fk.trace_mask(lambda b, h, q, k: op(q, 0) == k)


def test_values_that_are_not_negative_need_no_correction():
    """So that the intervals of tiles stay sharp."""
    def text(function):
        return fk.trace_mask(function)[0]
    assert text(lambda b, h, q, k: q // 64 == k // 64) == "q / 64 == k / 64"
    assert text(lambda b, h, q, k: (q + 3) % 5 * (h // 2) > abs(k)) == "(q + 3) % 5 * (h / 2) > k"
    assert text(lambda b, h, q, k: fk.maximum(q - k, 0) // 3 == 0) == "max(q - k, 0) / 3 == 0"
    assert text(lambda b, h, q, k: q // (k + 1) == 0) == "q / (k + 1) == 0"
    assert text(lambda b, h, q, k: (q - k) // 64 == 0) == "q - k >> 6 == 0"
    assert text(lambda b, h, q, k: fk.where(q < k, k, q) % 3 == 0) == "(q < k ? k : q) % 3 == 0"
    assert text(lambda b, h, q, k: (fk.seqlen_k - 1 - k) // 4 <= fk.diag).startswith("seqlen_k - 1 - k >> 2 <=")


FLOATS = {
    "divide": lambda x, y: x / 4 + 1 / (abs(y) + 1), "reverse": lambda x, y: 2.5 - x * y, "half": lambda x, y: (x * x) ** 2.0 * 0.25,
    "tanh": lambda x, y: of("tanh", x) * y, "exp": lambda x, y: of("exp", 0.1 * x) - y, "log": lambda x, y: of("log", y * y + 1.5) + x,
    "nested": lambda x, y: (x - (0.5 - y)) / (3.0 / (x * x + 1)), "small": lambda x, y: x * 1e-7 - -2e-3 * y,
    "where": lambda x, y: (fk.where(x < y, x, 0.5) if symbolic(x) else x if x < y else 0.5),
    "root": lambda x, y: (x * x + 0.5) ** 0.5,
}


def of(name, x):
    return getattr(fk if symbolic(x) else math, name)(x)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name):
    same, text = agrees(FLOATS[name], tolerance=1e-6)
    assert same.all(), text


def test_random_expressions():
    rng = np.random.default_rng(1)
    ops = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor]

    def draw(depth):
        if depth == 0:
            leaf = rng.integers(3)
            literal = int(rng.choice([-5, -4, -3, -1, 1, 2, 3, 7, 8]))
            return (lambda x, y: x, lambda x, y: y, lambda x, y: literal)[leaf], leaf == 2
        op = ops[rng.integers(len(ops))]
        (a, _), (b, literal) = draw(depth - 1), draw(rng.integers(depth))
        if op in (operator.floordiv, operator.mod) and not literal:
            return lambda x, y: op(a(x, y), b(x, y) * b(x, y) + 1), False
        if op is operator.mul and not literal:
            op = operator.sub
        return lambda x, y: op(a(x, y), b(x, y)), False
    tried = 0
    for _ in range(300):
        function, _ = draw(3)
        try:
            same, text = agrees(function, int(rng.choice([-8, 0])), int(rng.choice([-8, 0])))
        except ValueError as error:
            assert "must be at most 239" in str(error)
            continue
        tried += 1
        assert same.all(), text
    assert tried > 200


def test_logic():
    def function(x, y, yes=True):
        return (x < y) & ~(x == 3) | (y > 5) ^ (x > y) | (yes & (x == y))
    same, text = agrees(function)
    assert same.all(), text
    assert fk.trace_mask(lambda b, h, q, k: True)[0] == "true"
    assert fk.trace_mask(lambda b, h, q, k: (k <= q) & True | False)[0] == "k <= q"
    assert fk.trace_mask(lambda b, h, q, k: ~((k <= q) & False))[0] == "true"


def test_parentheses_are_the_language_s_own():
    """Texts come back unchanged from the library's printer, so their length is what the limit counts."""
    def mask(b, h, q, k):
        return (((q - (k - 1)) * 2 & 7) == 0) & ((k <= q) | ~(q < 4)) & (fk.where(q < k, q, k) + (q ^ k) < -k * -2)
    text, _ = fk.trace_mask(mask)
    lib = library()
    assert f'keep="{text}"' in lib.spell(lib.problem(f'fwd fp32 d8 keep="{text}"'))


def test_arrays():
    rng = np.random.default_rng(2)
    table, row, flags = rng.integers(0, 5, (2, 3, N, N)), rng.integers(0, N, N), rng.random((2, N)) < 0.5
    t, r, f = fk.array(table), fk.array(row), fk.array(flags)

    def mask(b, h, q, k):
        return (t[b, h][q, r[k]] > 1) & f[b, k] | (t[-1, 0, q][k] == r[-1])
    text, arrays = fk.trace_mask(mask)
    assert sorted(arrays) == ["m0", "m1", "m2"] and [x for x in arrays.values() if x is table]
    b, h, q, k = np.ix_(range(2), range(3), range(N), range(N))
    expected = (table[b, h, q, row[k]] > 1) & flags[b, k] | (table[-1, 0, q, k] == row[-1])
    assert (shown(text, arrays, (2, 3, N, N)) == expected).all()


def test_named_arrays_keep_their_names():
    x, y = np.arange(3), np.arange(3)
    text, arrays = fk.trace_mask(lambda b, h, q, k: fk.array(x)[q] == fk.array(y)[k], {"mine": x, "m0": np.zeros(1)})
    assert text == "mine[q] == m1[k]" and arrays["mine"] is x and arrays["m1"] is y
    assert fk.trace_score(lambda s, b, h, q, k: s + fk.array(x)[k])[0] == "s + s0[k]"


def test_numpy_functions():
    def mask(b, h, q, k):
        near = np.logical_and(np.abs(q - k) <= np.int32(3), np.minimum(q, 9) > np.float32(0.1))
        return np.where(q < 5, near, np.logical_not(near)) & np.greater_equal(np.clip(k, 2, 7), np.floor_divide(q - k, 3))
    q, k = np.ix_(range(N), range(N))
    text, arrays = fk.trace_mask(mask)
    assert not arrays and "0.1" in text and "0.10" not in text
    assert (shown(text)[0, 0] == mask(0, 0, q, k)).all()


def test_scores():
    rng = np.random.default_rng(3)
    s, slope = rng.standard_normal((2, 3, N, N)).astype(np.float32), rng.random(3).astype(np.float32)
    cut = 7

    def score(s, b, h, q, k):
        far = q - k
        return np.where(far >= -cut, np.tanh(s / 2) * 3 - fk.array(slope)[h] * abs(far) + far / 3, -np.inf)
    h, q, k = np.ix_(range(3), range(N), range(N))
    expected = np.where(q - k >= -cut, np.tanh(s / 2) * 3 - slope[h] * abs(q - k) + (q - k) / 3, -np.inf)
    expected = np.exp(expected - expected.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    text, arrays = fk.trace_score(score)
    assert np.abs(weights("score", text, arrays, s.shape, s) - expected).max() < 1e-6
    rest, mask, _ = fk.trace_score_and_mask(score)
    assert mask == "q - k >= -7" and text == f"{mask} ? {rest} : log(0.0)"
    assert fk.trace_score_and_mask(lambda s, b, h, q, k: np.where(q < k, -np.inf, s))[:2] == (None, "!(q < k)")
    assert fk.trace_score(lambda s, b, h, q, k: q)[0] == "float(q)"


ERRORS = {
    "if": (lambda b, h, q, k: q if q < k else k, TypeError, r"`q < k`.*flashkiln.where"),
    "chain": (lambda b, h, q, k: 0 <= k < q, TypeError, r"\(a < b\) & \(b < c\)"),
    "and": (lambda b, h, q, k: k <= q and q < 5, TypeError, "&"),
    "min": (lambda b, h, q, k: min(q, k) == 0, TypeError, "flashkiln.minimum"),
    "list": (lambda b, h, q, k: [1, 2][q] == 1, TypeError, r"flashkiln.array\(x\)"),
    "int": (lambda b, h, q, k: int(q) == 1, TypeError, "no value while it is traced"),
    "math": (lambda b, h, q, k: math.exp(q) == 1, TypeError, "flashkiln's"),
    "no bool": (lambda b, h, q, k: q & 1, TypeError, r"int `q & 1`: must be bool, such as `\(q & 1\) != 0`"),
    "float floor": (lambda b, h, q, k: q * 0.5 // 2 == k, TypeError, "rounds ints only"),
    "bools": (lambda b, h, q, k: (q < k) - (k < 10), TypeError, r"`q < k` - `k < 10` of bools.*x & ~y"),
    "string": (lambda b, h, q, k: q == "1", TypeError, "str '1' meets a symbol"),
    "literal": (lambda b, h, q, k: q == 2**31, TypeError, "2147483648: must be from -2147483647"),
    "nan": (lambda b, h, q, k: q < math.nan, TypeError, "nan"),
    "too few": (lambda b, h, q, k: fk.array(np.zeros((2, 2)))[q] == 1, TypeError, r"shape \(2, 2\) is read at 1 indices"),
    "too many": (lambda b, h, q, k: fk.array(np.zeros(2))[q, k] == 1, TypeError, r"shape \(2,\) is read at 2 indices"),
    "bool of an array": (lambda b, h, q, k: fk.array(np.zeros((2, 2)))[q] and k, TypeError, "shape"),
    "slice": (lambda b, h, q, k: fk.array(np.zeros((2, 2)))[q, :] == 1, TypeError, "slice"),
    "float index": (lambda b, h, q, k: fk.array(np.zeros(2))[q * 0.5] == 1, TypeError, r"index `q \* 0.5` is float: must be int"),
    "outside": (lambda b, h, q, k: fk.array(np.zeros((2, 2)))[q, 2] == 1, IndexError, "index 2 .* 2 elements"),
    "complex": (lambda b, h, q, k: fk.array(np.zeros(2, complex))[q] == 1, TypeError, "complex128"),
    "whole array": (lambda b, h, q, k: q == np.zeros(3), TypeError, r"shape \(3,\) meets a symbol"),
    "power": (lambda b, h, q, k: q**k == 1, TypeError, r"`q` \*\* k"),
    "function": (lambda b, h, q, k: np.sin(q) > 0, TypeError, r"sin\(\) of a symbol"),
    "method": (lambda b, h, q, k: q.sin() > 0, AttributeError, "sin"),
    "long": (lambda b, h, q, k: (q + k) ** 4 * (q - k) ** 4 * (q + k) ** 4 * (q - k) ** 4 * (q - k) ** 4 * (q + k) ** 4
             * (q + k) ** 4 > 0, ValueError, "bytes: must be at most 239"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    function, kind, message = ERRORS[name]
    with pytest.raises(kind) as error:
        fk.trace_mask(function)
    assert re.search(message, str(error.value)), str(error.value)


def test_limits_are_the_library_s():
    assert (fk.MAX_EXPR, fk.MAX_RANK) == (library().values["FK_MAX_EXPR"], library().values["FK_MAX_RANK"])
