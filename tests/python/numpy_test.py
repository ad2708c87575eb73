"""attention() and attention_backward() on NumPy arrays, by the emulator, against float64; arrays of other libraries by
DLPack; explain and spell. Needs NumPy alone."""
import ast
import os
import subprocess
import sys

import numpy as np
import pytest

import flashkiln
from flashkiln import BadArgument, BadProblem, FlashKilnError, _device_array, _problem, attention, attention_backward

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
BUILD_PACK = """
import sys
from ctypes import byref, c_char_p, c_size_t
from flashkiln._capi import library
lib, path, *spellings = library(), *map(str.encode, sys.argv[1:])
options = lib.make("fk_pack_options", emulate=1)
lib("fk_pack_build", path, (c_char_p * len(spellings))(*spellings), c_size_t(len(spellings)), (c_char_p * 1)(b"a100"), c_size_t(1),
    byref(options), None, None, None)
"""
USE_PACK = """
import sys
import numpy as np
import flashkiln
flashkiln.load_pack(sys.argv[1])
q = np.ones((1, 20, 2, 16), np.float16)
assert np.abs(flashkiln.attention(q, q, q, causal=True) - 1).max() < 1e-2
try:
    flashkiln.attention(q, q, q)
except flashkiln.NoJit as e:
    print(e)
"""
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def tensors(batch=1, sq=20, sk=24, heads=2, heads_kv=None, dim=16, dim_v=None, dtype=np.float16):
    heads_kv, dim_v = heads_kv or heads, dim_v or dim
    shapes = (batch, sq, heads, dim), (batch, sk, heads_kv, dim), (batch, sk, heads_kv, dim_v)
    return [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


def definition(q, k, v, keep=None, added=0, do=None, dlse=0, weights=1):
    """(o, lse) of [batch, seqlen, heads, dim], and with do the gradients of q, k, v and of the scores. weights: factors of
    the attention weights, as of dropout."""
    q, k, v = (np.asarray(x, np.float64).swapaxes(1, 2) for x in (q, k, v))
    group, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    k_all, v_all = k.repeat(group, 1), v.repeat(group, 1)
    s = scale * q @ k_all.swapaxes(-1, -2) + added
    s = s if keep is None else np.where(keep, s, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(s).sum(-1))
        p = np.where(np.isneginf(lse)[..., None], 0, np.exp(s - lse[..., None]))
    o = (p * weights) @ v_all
    if do is None:
        return o.swapaxes(1, 2), lse
    do = np.asarray(do, np.float64).swapaxes(1, 2)
    ds = p * (weights * (do @ v_all.swapaxes(-1, -2)) - (do * o).sum(-1, keepdims=True) + np.expand_dims(dlse, -1))
    summed = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)  # noqa: E731
    gradients = scale * ds @ k_all, summed(scale * ds.swapaxes(-1, -2) @ q), summed((p * weights).swapaxes(-1, -2) @ do)
    return (o.swapaxes(1, 2), lse, *(x.swapaxes(1, 2) for x in gradients), ds)


def grid(sq, sk):
    return np.arange(sq)[:, None], np.arange(sk)[None]


def close(what, got, expected, tolerance=None):
    """Relative to the largest value."""
    assert got.shape == expected.shape, f"{what}: {got.shape}, {expected.shape} expected"
    limit = tolerance or TOLERANCE[got.dtype.name]
    got = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(got == expected, 0, abs(got - expected)).max()
    size = max(1e-3, abs(expected[np.isfinite(expected)]).max())
    assert error <= limit * size, f"{what}: error {error:.2e}, largest value {size:.2e}"


def test_forward_and_backward_of_odd_dims_strides_groups_and_arrays():
    q, k, v = tensors(2, 20, 24, 4, 2, 13, 11, np.float32)
    bias, slopes, do, dlse = normal(4, 20, 1), [0.5, 0.25, 0.125, 1], normal(2, 20, 4, 11), normal(2, 4, 20)
    i, j = grid(20, 24)
    distance = -abs(i + 4 - j)
    added = bias + np.array(slopes)[:, None, None] * distance
    o_, lse_, dq_, dk_, dv_, ds_ = definition(q, k, v, j <= i + 4, added, do, dlse)

    def heads_first(x):
        """The same in another layout, and with gaps between its elements."""
        return np.repeat(x, 2, -1)[..., ::2].swapaxes(1, 2)
    given = dict(causal=True, bias=bias[::-1][::-1], alibi_slopes=slopes, layout="bhsd")
    q, k, v, do = map(heads_first, (q, k, v, do))
    o, lse = attention(q, k, v, return_lse=True, **given)
    close("o", o, o_.swapaxes(1, 2))
    close("lse", lse, lse_)
    dq, dk, dv, dslopes, dbias = attention_backward(q, k, v, o, lse, do, dlse=dlse, grad=["alibi_slopes", "bias"], **given)
    for name, got, expected in (("dq", dq, dq_), ("dk", dk, dk_), ("dv", dv, dv_)):
        close(name, got, expected.swapaxes(1, 2))
    close("dbias", dbias, ds_.sum(0).sum(-1, keepdims=True))
    close("dslopes", dslopes, (ds_ * distance).sum((0, 2, 3)))
    assert np.array_equal(attention(q, k, v, **given), o)


def test_sparsity():
    """A pattern, its table and its list of columns: the same bits."""
    q, k, v = tensors(sq=40, sk=40)
    i = np.arange(5)
    blocks = np.abs(i[:, None] - i) <= 1
    bsr = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32), blocks.nonzero()[1].astype(np.int32)
    o, lse = attention(q, k, v, sparsity="local(8,1)", causal=True, return_lse=True)
    i, j = grid(40, 40)
    expected = definition(q, k, v, (j <= i) & (np.abs(i // 8 - j // 8) <= 1))
    close("o", o, expected[0])
    close("lse", lse, expected[1], 1e-3)
    for made in (flashkiln.create_block_mask(blocks=blocks, BLOCK_SIZE=8),
                 flashkiln.create_block_mask(bsr=bsr, BLOCK_SIZE=8, KV_LEN=40)):
        assert np.array_equal(attention(q, k, v, sparsity=made, causal=True), o)
    assert flashkiln.spell(q, k, v, sparsity=["butterfly(8)", 'blocks(8x16)="i >= j"'], mask="prefix",
                           arrays={"prefix": np.zeros(2, np.int32)}) == \
        'fwd fp16 d16 prefix butterfly(8) blocks(8x16)="i >= j"'


def test_packed_sequences_and_a_function_as_mask():
    """Sequences of 7, 0 and 13 rows behind 2 rows of none; a mask that reads an array."""
    q, k, v, do = (x[0] for x in (*tensors(sq=22, sk=22), normal(1, 22, 2, 16, dtype=np.float16, seed=9)))
    starts, colour = [2, 9, 9, 22], np.arange(22) % 3
    of = flashkiln.array(colour)
    given = dict(cu_seqlens_q=starts, cu_seqlens_k=np.array(starts), causal=True,
                 mask=lambda b, h, q, k: (of[q] != of[k]) | (q == k))
    o, lse = attention(q, k, v, return_lse=True, **given)
    dq, dk, dv = attention_backward(q, k, v, o, lse, do, deterministic=True, **given)
    for x in (o, dq, dk, dv):
        assert not x[:2].any()
    assert np.isneginf(lse[:, :2]).all()
    for first, last in ((2, 9), (9, 22)):
        i, j = grid(last - first, last - first)
        keep = (j <= i) & ((colour[i] != colour[j]) | (i == j))
        expected = definition(*(x[None, first:last] for x in (q, k, v)), keep, do=do[None, first:last])
        for name, got, wanted in zip(("o", "dq", "dk", "dv"), (o, dq, dk, dv), (expected[0], *expected[2:5])):
            close(name, got[first:last], wanted[0])
        close("lse", lse[:, first:last], expected[1][0], 1e-3)


def test_dropout_is_a_function_of_its_seeds():
    q, k, _ = tensors(sq=24, sk=16)
    v = np.broadcast_to(np.eye(16, dtype=np.float16)[None, :, None], k.shape)  # so that o is the weights
    do = normal(1, 24, 2, 16, dtype=np.float16)
    o, lse = attention(q, k, v, dropout_p=0.5, generator=(5, 7), return_lse=True)
    plain = definition(q, k, v)[0]
    kept = o.astype(float) / plain
    assert set(np.round(kept).ravel()) == {0, 2} and 0.4 < (kept > 1).mean() < 0.6
    weights = np.round(kept).transpose(0, 2, 1, 3)
    expected = definition(q, k, v, do=do, weights=weights)
    for name, got, wanted in zip("qkv", attention_backward(q, k, v, o, lse, do, dropout_p=0.5, generator=(5, 7)), expected[2:]):
        close("d" + name, got, wanted)
    assert not np.array_equal(attention(q, k, v, dropout_p=0.5, generator=5), o)
    drawn = [attention(q, k, v, dropout_p=0.5, generator=np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    with pytest.raises(BadArgument, match="generator=SEED"):
        attention(q, k, v, dropout_p=0.5)


def test_pages_and_lengths():
    q, k, v = tensors(2, 3, 24)
    table, used = [[3, 0, 5], [1, 4, 2]], [24, 10]
    pages_k, pages_v = np.zeros((2, 6, 8, 2, 16), np.float16)
    for b in range(2):
        for column, page in enumerate(table[b]):
            pages_k[page], pages_v[page] = k[b, 8 * column:8 * column + 8], v[b, 8 * column:8 * column + 8]
    o = attention(q, pages_k, pages_v, page_table=np.array(table), seqused_k=used, num_splits=1)
    keep = np.arange(24) < np.array(used)[:, None, None, None]
    close("o", o, definition(q, k, v, keep)[0])


def test_nothing_to_compute():
    q, k, v = tensors()
    o, lse = attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert o.shape == q.shape and not o.any() and np.isneginf(lse).all()
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 20, 2, 16)
    dq, dk, _ = attention_backward(q, k[:, :0], v[:, :0], o, lse, o)
    assert not dq.any() and dk.shape == (1, 0, 2, 16)


class Lent:
    """An array that can do nothing but be lent."""

    def __init__(self, x):
        self.array = x

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.skipif(not hasattr(np, "from_dlpack"), reason="NumPy is older than DLPack")
def test_arrays_of_other_libraries():
    """By DLPack, in and out; the library's own memory, which is the host's on the emulator, and free when it is unused."""
    from flashkiln import _device_array, _dlpack
    arrays = tensors(sk=20)
    expected = attention(*arrays, causal=True)
    assert np.array_equal(attention(*map(Lent, arrays), causal=True), expected)
    ours = [_device_array.to_device(x, "float16", "emu") for x in arrays]
    o = attention(*ours, causal=True)
    assert repr(o) == "DeviceArray([1, 20, 2, 16], float16, emu)" and np.array_equal(np.asarray(o), expected)
    taken = np.from_dlpack(o)
    del o
    assert np.array_equal(taken, expected)
    capsule = ours[0].__dlpack__()
    assert len(_dlpack._lent) == 2
    del taken, capsule
    assert not _dlpack._lent
    odd = attention(*(_device_array.to_device(x[..., :13], "float16", "emu") for x in arrays), bias=np.zeros((20, 20)))
    close("o", np.asarray(odd), definition(*(x[..., :13] for x in arrays))[0])


def test_bfloat16():
    kind = pytest.importorskip("ml_dtypes").bfloat16
    arrays = tensors(dtype=kind)
    o = attention(*arrays, causal=True)
    i, j = grid(20, 24)
    assert o.dtype == kind
    close("o", o, definition(*arrays, j <= i + 4)[0])


@pytest.mark.parametrize("given, kind, text", [
    (dict(mask="k <= p"), BadProblem, "unknown name 'p'.*\n    k <= p\n         \\^"),
    (dict(score=lambda s, b, h, q, k: s if s > 0 else -s), TypeError, "`if`"),
    (dict(arrays={"w": [1.0]}), BadProblem, "no mask or score reads 'w'"),
    (dict(alibi_slopes=[1.0] * 3), BadArgument, r"'slope' has shape \(3,\); axis 0 must be 1 or heads_q, which is 2"),
    (dict(align="left"), BadProblem, "align is 'left'"),
    (dict(cu_seqlens_q=[0, 20]), BadArgument, "cu_seqlens_k is missing"),
    (dict(num_splits=-3), BadArgument, "num_splits is -3; it must be 0 to 128"),
])
def test_errors(given, kind, text):
    with pytest.raises(kind, match=text) as raised:
        attention(*tensors(), **given)
    assert isinstance(raised.value, FlashKilnError) == (kind is not TypeError)


def test_errors_of_arrays():
    q, k, v = tensors()
    for wrong, text in (((q.tolist(), k, v), "q is a list"), ([x.astype(float) for x in (q, k, v)], "q is of float64"),
                        ((q, k.astype(np.float32), v), "k is of float32 and q of float16"), ((q[0], k, v), "q has shape"),
                        ((q, k[..., :8], v), "head_dim of q is 16 and of k 8"),
                        ((q, k[:, :, :1].repeat(3, 2), v), "k has shape")):
        with pytest.raises(BadArgument, match=text):
            attention(*wrong)
    o, lse = attention(q, k, v, causal=True, return_lse=True)
    with pytest.raises(BadArgument, match=r"dout is \[1, 20, 2, 16\] of float32; it must be \[1, 20, 2, 16\] of float16"):
        attention_backward(q, k, v, o, lse, o.astype(np.float32), causal=True)
    with pytest.raises(BadProblem, match="grad: 'bias' is no array .* they read: 'slope'"):
        attention_backward(q, k, v, o, lse, o, alibi_slopes=[1, 2.0], grad="bias")


def test_explain():
    q, k, v = tensors(sk=20, dim=12)
    told = flashkiln.explain(q, k, v, causal=True)
    assert (told.spelling, told.device, told.gpu) == ("fwd fp16 d16 causal", "emu", "a100")
    assert told.kernel["target"] == "emu" and "__global__" in told.source()
    for line in ("run by the emulator, as planned for NVIDIA A100", "batch 1, 2 heads (2 of k and v), 20 queries, 20 keys",
                 "Kernel   emulated; ", "100.0 % masked element by element", "bound by", "CTAs per SM: ",
                 "k is copied: its head dim 12 is filled up with zeros"):
        assert line in str(told), told
    attention(q, k, v, causal=True)
    assert flashkiln.explain(q, k, v, causal=True).kernel == told.kernel  # it is what runs


def test_explain_for_another_gpu():
    told = flashkiln.explain("bwd bf16 d64 causal", gpu="h200", batch=2, heads=4, seqlen_q=1024)
    assert told.tiles["empty"] > 0 and told.plan["legal"] and sum(plan["chosen"] for plan in told.plans) == 1
    assert str(told).startswith("bwd bf16 d64 causal\non NVIDIA H200\n"
                                "batch 2, 4 heads (4 of k and v), 1024 queries, 1024 keys\n")
    if told.kernel:  # there is an NVRTC
        assert told.kernel["target"] == "sm_90a" and f"sm_90a: {told.kernel['registers']} registers" in str(told)
    else:
        assert "not compiled: " in str(told)
    with pytest.raises(flashkiln.NoDevice, match="unknown GPU"):
        flashkiln.explain("fwd bf16 d64", gpu="h201")


def test_spell_and_devices():
    q, k, v = tensors(heads=4, heads_kv=2)
    assert flashkiln.spell("fwd   causal bf16 d64") == "fwd bf16 d64 causal"
    assert flashkiln.spell(q, k, v, window=(5, -1)) == "fwd fp16 d16 gqa window(5,536870912)"
    assert flashkiln.spell(q, k, v, bias=np.zeros((20, 24)), backward=True, grad="bias", deterministic=True) == (
        "bwd fp16 d16 gqa grad=bias bias deterministic")
    assert flashkiln.spell(q, k, v, bias=np.zeros((20, 24), np.float16)) == "fwd fp16 d16 gqa array=bias:fp16[b][h][q][k] bias"
    assert {"t4", "a100", "h200"} <= {device.key for device in flashkiln.devices()}


def test_the_stub_names_what_is_there():
    """__init__.pyi, which type checkers read."""
    with open(os.path.join(os.path.dirname(flashkiln.__file__), "__init__.pyi"), encoding="utf-8") as f:
        tree = ast.parse(f.read())
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    named |= {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names if alias.asname}
    named |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert set(flashkiln.__all__) <= named, set(flashkiln.__all__) - named
    for name in named - {"Device", "Explanation"}:
        try:
            assert getattr(flashkiln, name) is not None
        except ModuleNotFoundError as missing:
            assert missing.name == "torch" and name.endswith(("sdpa", "sdpa_report", "flash_attn"))


def test_the_example_of_the_readme(capsys):
    readme = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
    with open(readme, encoding="utf-8") as f:
        code = f.read().partition("```python\n")[2].partition("```")[0]
    names = {}
    exec(code, names)
    i, j = grid(200, 200)
    expected = definition(*(names[name] for name in "qkv"), j <= i, do=names["o"])
    for name, wanted in zip(("o", "lse", "dq", "dk", "dv"), expected):
        close(name, names[name], wanted, 4e-3)
    assert 'keep="k <= q && (q - k) % 4 == 0"\nrun by the emulator' in capsys.readouterr().out


def test_pytorch_is_not_imported():
    code = ("import sys, numpy as np, flashkiln\n"
            "x = np.ones((1, 20, 2, 16), np.float16)\n"
            "assert flashkiln.attention(x, x, x, causal=True).all() and flashkiln.explain(x, x, x).plan\n"
            "print('torch' in sys.modules)")
    folder = os.path.dirname(os.path.dirname(flashkiln.__file__))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": folder})
    assert done.stdout == "False\n"


def test_a_pack_without_lua_store_and_compiler(tmp_path):
    """Sealed: what the pack has is computed, what it lacks is named."""
    path, bad = str(tmp_path / "a.fkpack"), str(tmp_path / "bad.fkpack")
    sealed = dict(os.environ, FLASHKILN_CACHE_MODE="sealed", FLASHKILN_LUA="/nonexistent", FLASHKILN_CXX="/nonexistent")
    subprocess.run([sys.executable, "-c", BUILD_PACK, path, "fwd fp16 d16 causal"], check=True)
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", USE_PACK, path], env=sealed, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert '"fwd fp16 d16"' in result.stdout and "absent" in result.stdout
    with open(path, "rb") as good, open(bad, "wb") as file:
        file.write(good.read()[:-1])
    with pytest.raises(flashkiln.IoError, match="truncated"):
        flashkiln.load_pack(bad)


def test_keys_of_packed_sequences_in_pages():
    """As many as the sequences may have, which is neither what the pool has nor, as they may share pages, less."""
    def sizes(max_k=None):
        return _problem.shapes((50, 4, 64), (1000, 16, 2, 64), (1000, 16, 2, 64), "packed", 3, 30, max_k, (3, 20))
    assert (sizes().total_k, sizes().seqlen_k, sizes().num_pages) == (3 * 320, 320, 1000)
    assert (sizes(100).total_k, sizes(100).seqlen_k) == (300, 100)


@pytest.mark.parametrize("heads,heads_kv,queries,keys,of_16,of_8", [
    (8, 8, 16, 512, True, True), (8, 8, 16, 511, False, False), (32, 1, 16, 512, True, True), (8, 8, 17, 4096, False, True),
    (8, 8, 64, 4096, False, True), (8, 8, 65, 4096, False, False), (32, 8, 32, 4096, False, True), (32, 8, 33, 4096, False, False)])
def test_few_queries_share_keys(heads, heads_kv, queries, keys, of_16, of_8):
    sizes = _problem.Shapes(1, heads, heads_kv, queries, keys, 64, 64)
    assert _problem.wants_split(-1, sizes) == of_16 and _problem.wants_split(-1, sizes, kv_e4m3=True) == of_8
    assert _problem.wants_split(0, sizes) and not _problem.wants_split(1, sizes, kv_e4m3=True)


def test_gradients_where_a_sink_is_all_there_is():
    q, k, v = tensors(dtype=np.float32)
    sink, k, v = [1.0, 2.0], k[:, :0], v[:, :0]
    o, lse = attention(q, k, v, sink=sink, return_lse=True)
    dq, dk, dv, dsink = attention_backward(q, k, v, o, lse, o, dlse=np.ones_like(lse), sink=sink, grad="sink")
    assert not dq.any() and dk.shape == k.shape and dv.shape == v.shape
    np.testing.assert_allclose(dsink, [20, 20], rtol=1e-6)


def test_bits_of_the_keys_that_pages_hold():
    """A table has room for more keys than there are bits, which is no fault."""
    q, k, v = tensors(sq=4, sk=32, dtype=np.float32)
    bits = np.full((1, 1, 4, 1), 0x0f0f0f0f, np.int32)
    pages = [np.concatenate([x.reshape(4, 8, 2, 16), np.zeros((1, 8, 2, 16), np.float32)]) for x in (k, v)]
    paged = attention(q, *pages, mask="bits", arrays={"bits": bits}, page_table=[[0, 1, 2, 3, 4, 4, 4, 4]], seqused_k=[32])
    np.testing.assert_allclose(paged, attention(q, k, v, mask="bits", arrays={"bits": bits}), atol=1e-6)


def test_gradient_of_a_number():
    q, k, v = tensors(dtype=np.float32)
    bias = np.float32(0.5)
    o, lse = attention(q, k, v, bias=bias, return_lse=True)
    assert attention_backward(q, k, v, o, lse, o, bias=bias, grad="bias")[3].shape == ()


def test_arrays_that_are_not_aligned():
    q, k, v = tensors(dtype=np.float32)
    bias = normal(20, 24)
    apart = np.frombuffer(b"x" + bias.tobytes(), np.float32, offset=1).reshape(bias.shape)
    np.testing.assert_array_equal(attention(q, k, v, bias=apart), attention(q, k, v, bias=bias))


def test_lists_are_explained():
    q, k, v = tensors()
    assert flashkiln.spell(q, k, v, seqused_k=[3]) == "fwd fp16 d16 seqused_k"
    assert flashkiln.spell(q[0], k[0], v[0], cu_seqlens_q=[0, 20], cu_seqlens_k=[0, 24]) == "fwd fp16 d16 packed"


def test_blocks_of_any_order():
    shown = np.tril(np.ones((6, 5), bool)).T
    q, k, v = tensors()
    results = [attention(q, k, v, mask=flashkiln.create_block_mask(blocks=x, BLOCK_SIZE=(4, 4)))
               for x in (shown, np.ascontiguousarray(shown), shown.astype(np.int32), np.asfortranarray(shown))]
    assert all((results[0] == x).all() for x in results[1:])


def test_copies_by_dlpack():
    x = _device_array.to_device(np.ones(4, np.float32), "float32", "emu")
    assert np.shares_memory(np.from_dlpack(x), np.from_dlpack(x))
    with pytest.raises(BufferError, match="DLPack device"):
        x.__dlpack__(dl_device=(2, 0))
    copied = np.from_dlpack(Copied(x))
    assert not np.shares_memory(np.from_dlpack(x), copied) and (copied == 1).all()


class Copied:
    """What asks for a copy, which older NumPys cannot."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **_):
        return self.x.__dlpack__(copy=True)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()
