"""attention() of float8_e4m3fn on CPU tensors, through the emulator, against float64 of what they stand for."""
import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "float8_e4m3fn"):
    pytest.skip("this torch has no float8_e4m3fn", allow_module_level=True)

import flashkiln
from flashkiln import attention

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def tensors(batch=1, sq=40, sk=60, heads=2, heads_kv=2, dim=64, dim_v=None):
    shapes = (batch, sq, heads, dim), (batch, sk, heads_kv, dim), (batch, sk, heads_kv, dim_v or dim)
    return [torch.randn(shape).to(torch.float8_e4m3fn) for shape in shapes]


def exact(q, k, v, of_q=None, of_k=None, of_v=None, causal=False, scale=None):
    """(o, lse) in float64."""
    group = q.shape[2] // k.shape[2]
    one = torch.ones(q.shape[0], k.shape[2])
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x * (one if by is None else by).expand(one.shape)[:, None, :, None] for x, by in ((k, of_k), (v, of_v)))
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    q = q * (one if of_q is None else of_q).expand(one.shape).repeat_interleave(group, 1)[:, None, :, None]
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1 + s.shape[3] - s.shape[2]).bool(), float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v), s.logsumexp(-1)


def check(ours, want, dtype=torch.bfloat16, error=0.04, of_lse=1e-3):
    """error: 0.04 of weights of 8 bits: tests/runtime/e4m3_test.c has the reasons. of_lse: scores that are products of 8 bits lose 2^-13 of
    the largest product at hand (docs/e4m3.md); random problems allow lse as much."""
    (o, lse), (exact_o, exact_lse) = ours, want
    assert o.dtype == dtype and o.shape == exact_o.shape
    assert (o.double() - exact_o).norm() < error * exact_o.norm()
    assert torch.allclose(lse.double(), exact_lse, atol=of_lse)


def test_result():
    t = tensors(heads=4)
    check(attention(*t, causal=True, return_lse=True), exact(*t, causal=True))


def test_fast():
    t = tensors(sk=300, dim=128)
    (o, lse), (plain, _), (exact_o, exact_lse) = (attention(*t, fast=True, return_lse=True), attention(*t, return_lse=True), exact(*t))
    assert not torch.equal(o, plain)
    assert (o.double() - exact_o).norm() < 0.05 * exact_o.norm()
    assert torch.allclose(lse.double(), exact_lse, atol=0.02)
    with pytest.raises(flashkiln.BadProblem, match="fast is 1: must be 0 with dropout"):
        attention(*t, fast=True, dropout_p=0.1)
    with pytest.raises(flashkiln.BadProblem, match="fast is 1: must be 0 for dtype fp32"):
        attention(*(x.float() for x in t), fast=True)
    with pytest.raises(flashkiln.Unsupported, match="fast: what is rounded once more has no gradients"):
        attention(*(x.bfloat16().requires_grad_() for x in t), fast=True)


def test_fast_of_pages():
    t = [x.bfloat16() for x in tensors(sk=48)]  # `paged(16)` is the last word
    pages, table = [x.reshape(3, 16, 2, 64) for x in t[1:]], torch.arange(3, dtype=torch.int32)[None]
    used = torch.tensor([48], dtype=torch.int32)
    o = attention(t[0], *pages, page_table=table, seqused_k=used, fast=True)
    assert (o.double() - exact(*t)[0]).norm() < 0.01 * exact(*t)[0].norm()


@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (2, 1), ()])
def test_descales(shape):
    t = tensors(batch=2, heads=4)
    by = [torch.rand(shape) + 0.5 for _ in range(3)]
    check(attention(*t, q_descale=by[0], k_descale=by[1], v_descale=by[2], return_lse=True), exact(*t, *by))


def test_each_descale_counts():
    t, two = tensors(), torch.tensor(2.0)
    for i, name in enumerate(("q_descale", "k_descale", "v_descale")):
        by = [two if j == i else None for j in range(3)]
        check(attention(*t, **{name: 2.0}, return_lse=True), exact(*t, *by))


def test_head_dims_are_padded_and_rows_copied():
    q, k, v = tensors(dim=72, dim_v=40)
    check(attention(q, k, v, return_lse=True), exact(q, k, v))


def test_packed():
    q, k, v = (x[0] for x in tensors(sq=90, sk=90, heads=4))
    cu = torch.tensor([0, 33, 33, 90], dtype=torch.int32)
    by = torch.rand(3, 2) + 0.5
    o = attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, v_descale=by)
    for b, begin, end in ((0, 0, 33), (2, 33, 90)):
        part = [x[None, begin:end] for x in (q, k, v)]
        want = exact(*part, of_v=by[b:b + 1], causal=True)[0]
        assert (o[None, begin:end].double() - want).norm() < 0.04 * want.norm()


@pytest.mark.parametrize("dtype,error", [(torch.float16, 1e-3), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize("dim,dim_v", [(64, 64), (72, 40), (20, 33)])
def test_keys_and_values_beside_queries_of_16_bits(dtype, error, dim, dim_v):
    q, k, v = tensors(batch=2, heads=4, dim=dim, dim_v=dim_v)
    by = [torch.rand(2, 2) + 0.5 for _ in range(2)]
    ours = attention(q.to(dtype), k, v, causal=True, k_descale=by[0], v_descale=by[1], return_lse=True)
    check(ours, exact(q, k, v, None, *by, causal=True), dtype, error, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("splits", [1, 3, None])
def test_pages_and_split(dtype, splits):
    q, k, v = tensors(batch=2, sq=3, sk=600, heads=4)
    size, order = 16, torch.randperm(76)
    table, pages = order[:76].reshape(2, 38).int(), []
    for x in (k, v):
        rows = torch.nn.functional.pad(x.view(torch.uint8), (0, 0, 0, 0, 0, 8)).reshape(76, size, 2, 64)
        pages.append(torch.empty_like(rows))
        pages[-1][order] = rows
    used = torch.tensor([600, 555], dtype=torch.int32)
    pages = [x.view(torch.float8_e4m3fn) for x in pages]
    o, lse = attention(q.to(dtype), *pages, page_table=table, seqused_k=used, causal=True, num_splits=splits, return_lse=True)
    of_bytes = dtype is torch.float8_e4m3fn and splits == 1  # family wgmma multiplies bytes; with `split` they become halves
    limits = {} if of_bytes else {"error": 5e-3, "of_lse": 1e-5}
    for b, n in enumerate(used.tolist()):
        check((o[b:b + 1], lse[b:b + 1]), exact(q[b:b + 1], k[b:b + 1, :n], v[b:b + 1, :n], causal=True), **limits)


def compiles(function, *inputs):
    for eager, compiled in zip(function(*inputs), torch.compile(function, fullgraph=True, backend="aot_eager")(*inputs)):
        assert eager.dtype == compiled.dtype and torch.equal(eager, compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_compile(dtype):
    q, k, v = tensors(heads=4)
    by, slopes = torch.rand(2) + 0.5, torch.rand(4)
    compiles(lambda q, k, v: attention(2 * q if dtype is torch.bfloat16 else q, k, v, causal=True, k_descale=by, v_descale=0.5,
                                       alibi_slopes=slopes, return_lse=True), q.to(dtype), k, v)
    if dtype is torch.bfloat16:  # a head dim that is no multiple of 8, and packed sequences
        q, k, v = (x.reshape(-1, 2, 20) for x in tensors(sq=60, dim=20))
        cu = torch.tensor([0, 25, 60], dtype=torch.int32)
        compiles(lambda q, k, v: attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, k_descale=by, return_lse=True), q.to(dtype), k, v)


def test_operator():
    q, k, v = tensors(batch=2, heads=4)
    words = flashkiln._problem.terms(causal=True).words
    for x in (q, q.bfloat16()):
        torch.library.opcheck(torch.ops.flashkiln.attention_e4m3.default, (
            x, k, v, [], None, None, None, None, None, None, torch.ones(1, 2), None, words, "bshd", 0.125, 0.0, -1, 0, 0),
            test_utils="test_faketensor")  # others multiply elements of 8 bits, which PyTorch does not


def test_autocast_leaves_keys():
    q, k, v = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        check(attention(q.float(), k, v, return_lse=True), exact(q, k, v), torch.bfloat16, 5e-3, 1e-5)


def test_refusals():
    q, k, v = tensors(dim=16)
    with pytest.raises(flashkiln.BadArgument, match=r"k_descale has shape \(3,\); it must be one that broadcasts to"):
        attention(q, k, v, k_descale=torch.ones(3))
    with pytest.raises(flashkiln.BadArgument, match=r"v_descale has shape \(3,\); it must be one that broadcasts to"):
        attention(q, k, v, v_descale=[1.0, 2.0, 3.0])
    with pytest.raises(flashkiln.BadArgument, match="are those of float8_e4m3fn; k is of torch.bfloat16"):
        attention(*(x.bfloat16() for x in (q, k, v)), q_descale=torch.ones(1))
    with pytest.raises(flashkiln.BadArgument, match="q_descale is that of float8_e4m3fn; q is of torch.bfloat16"):
        attention(q.bfloat16(), k, v, q_descale=torch.ones(1))
    with pytest.raises(flashkiln.BadArgument, match="k is of torch.float8_e4m3fn and q of torch.float32; they must be equal, or k and v"):
        attention(q.float(), k, v)
    with pytest.raises(flashkiln.BadArgument, match="v is of torch.bfloat16 and q of torch.bfloat16; they must be equal, or k and v"):
        attention(q.bfloat16(), k, v.bfloat16())
    with pytest.raises(flashkiln.Unsupported, match="fast: with keys of float8_e4m3fn"):
        attention(q.bfloat16(), k, v, fast=True)
    with pytest.raises(flashkiln.Unsupported, match="requires a gradient"):
        attention(q.bfloat16().requires_grad_(), k, v)
    for more in ({"k_descale": torch.ones(1, requires_grad=True)}, {"bias": torch.zeros(1, 1, 1, k.shape[1], requires_grad=True)}):
        with pytest.raises(flashkiln.Unsupported, match="requires a gradient"):
            attention(q.bfloat16(), k, v, **more)
    with pytest.raises(flashkiln.BadArgument, match="k is of torch.bfloat16 and q of torch.float8_e4m3fn"):
        attention(q, k.bfloat16(), v)
    with pytest.raises(flashkiln.Unsupported, match="requires a gradient"):
        attention(q.requires_grad_(), k, v)
    q.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v).dtype == torch.bfloat16


def test_arrays_of_other_libraries_have_none():
    numpy = pytest.importorskip("numpy")
    x = numpy.zeros((1, 8, 1, 16), numpy.float16)
    with pytest.raises(flashkiln.BadArgument, match="v_descale is that of tensors of PyTorch"):
        attention(x, x, x, v_descale=1.0)
