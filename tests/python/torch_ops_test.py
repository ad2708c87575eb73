"""The operators behind attention(): what opcheck says of them, and torch.compile, against eager calls."""
import pytest

torch = pytest.importorskip("torch")

import flashkiln  # noqa: F401  registers the operators with `attention`
from flashkiln import _problem, attention
from flashkiln._torch_bits import packed_bits

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "packed"])
def test_opcheck(layout):
    shape = {"bshd": (1, 20, 2, 16), "bhsd": (1, 2, 20, 16), "packed": (20, 2, 16)}[layout]
    packed = layout == "packed"
    cu = torch.tensor([0, 8, 20], dtype=torch.int32) if packed else None
    q, k, v, slope = leaves(shape, shape, shape, (2,))
    words = _problem.terms(causal=True, brought=(("slope", "float"),), packed=packed, dropout=True).words
    state = torch.tensor([5, 6])
    torch.library.opcheck(torch.ops.flashkiln.attention_forward.default,
                          (q, k, v, [slope], state, cu, cu, None, None, words, layout, 0.25, 0.5, 1, 0, 0, False))


def compare(function, inputs, backend="aot_eager", **how):
    """A compiled function against itself, bit for bit: results and gradients, with the same dropout."""
    results = []
    for f in (function, torch.compile(function, fullgraph=True, backend=backend, **how)):
        torch.manual_seed(7)
        out = f(*inputs)
        out = out if isinstance(out, tuple) else (out,)
        differentiable = [x for x in inputs if x.requires_grad]
        results.append((*out, *torch.autograd.grad(sum(x.sum() for x in out), differentiable)))
    for eager, compiled in zip(*results):
        assert torch.equal(eager, compiled)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    compare(lambda q, k, v, bias: attention(2 * q, k, v, causal=True, bias=bias, mask="k != 3", dropout_p=0.2),
            leaves((1, 20, 2, 16), (1, 20, 2, 16), (1, 20, 2, 16), (1, 2, 20, 20)), backend)


def test_compile_with_arrays_and_lse():
    compare(lambda q, k, v, slope: attention(q, k, v, window=[3, 2], score="s - slope[h] * abs(q - k)", layout="bhsd",
                                             arrays={"slope": slope}, return_lse=True),
            leaves((1, 2, 20, 13), (1, 2, 20, 13), (1, 2, 20, 13), (2,)))


def test_compile_packed():
    cu = torch.tensor([0, 8, 20], dtype=torch.int32)
    compare(lambda q, k, v: attention(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu),
            leaves((20, 2, 16), (20, 2, 16), (20, 2, 16)))


def test_compile_for_dynamic_shapes():
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, causal=True, window=6), fullgraph=True, dynamic=True,
                             backend="aot_eager")
    for length in (10, 14, 23):
        q, k, v = leaves(*[(1, length, 2, 16)] * 3)
        assert torch.equal(compiled(q, k, v), attention(q, k, v, causal=True, window=6))


def test_compile_under_autocast():
    q, k, v = leaves(*[(1, 20, 2, 16)] * 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compare(lambda q, k, v: attention(q, k, v, causal=True), (q, k, v))
        assert attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize("length", [20, 27])
@pytest.mark.filterwarnings("ignore")
def test_jit_trace(length):
    """By the operator, which the trace records, for other inputs and lengths; with gradients."""
    function = lambda q, k, v: attention(q, k, v, causal=True, score="s * 2.0")  # noqa: E731
    traced, inputs = torch.jit.trace(function, leaves(*[(1, 20, 2, 13)] * 3)), leaves(*[(1, length, 2, 13)] * 3)
    for x, y in zip(*[(o, *torch.autograd.grad(o.sum(), inputs)) for o in (traced(*inputs), function(*inputs))]):
        assert torch.equal(x, y)


def test_transforms():
    q = torch.randn(3, 1, 20, 2, 16)
    for transform, text in ((torch.func.grad, "torch.func.grad"), (torch.func.vmap, "torch.func.vmap")):
        with pytest.raises(flashkiln.Unsupported, match=text):
            transform(lambda x: attention(x, q[0], q[0]).sum())(q[0] if transform is torch.func.grad else q)
        got = transform(lambda x: x * attention(q[0], q[0], q[0]).sum())(torch.ones(() if transform is torch.func.grad else 3))
        assert torch.allclose(got, attention(q[0], q[0], q[0]).sum().expand_as(got))  # of what the transform does not ask about
    own = torch.func.functionalize(lambda x: attention(x, x, x))(q[0])
    assert torch.equal(own, attention(q[0], q[0], q[0]))


def test_masks_on_a_gpu_are_traced():
    """Bits of a mask that is on a GPU, as models of transformers ask for them under torch.compile: without one, of fake tensors."""
    with torch._subclasses.FakeTensorMode():
        mask = torch.ones(2, 1, 3, 70, dtype=torch.bool, device="cuda")
        words = torch.compile(packed_bits, fullgraph=True, backend="eager")(mask)
        assert words.shape == (2, 1, 3, 3) and words.dtype == torch.int32 and words.is_cuda


def test_fake_tensors():
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(2, 20, 4, 16, device="cuda", dtype=torch.bfloat16)
        k = torch.empty(2, 24, 2, 16, device="cuda", dtype=torch.bfloat16)
        o, lse = attention(q, k, k, return_lse=True)
    assert o.shape == q.shape and lse.shape == (2, 4, 20) and o.device.type == "cuda" and lse.dtype == torch.float32
