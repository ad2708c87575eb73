"""scaled_dot_product_attention while it is taken over, against PyTorch in float64: at most twice the error that PyTorch's own
has in the same dtype. On the CPU small and by the emulator; on a GPU, where there is one, larger and in bfloat16."""
import contextlib

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from flashkiln import _runtime as runtime, _sdpa as takeover

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
CUDA = torch.cuda.is_available()
DEVICE, DTYPE, TIMES = ("cuda", torch.bfloat16, 16) if CUDA else ("cpu", torch.float32, 1)
FLOOR = {torch.float32: 1e-6, torch.bfloat16: 5e-4}[DTYPE]  # relative
BIAS = {torch.float32: "bias", torch.bfloat16: "bias array=bias:bf16[b][h][q][k]"}[DTYPE]  # a mask of the query's dtype
SPELLED = {torch.float32: "fp32", torch.bfloat16: "bf16"}[DTYPE]


@pytest.fixture(autouse=True)
def fresh():
    takeover.sdpa_report(reset=True)
    yield
    takeover.disable_sdpa()


def taken_over():
    return takeover.sdpa(cpu=not CUDA)


def tensors(sq=20, sk=20, heads=2, heads_kv=None, dim=16, dim_v=None, lead=2):
    shapes = ((heads, sq * TIMES, dim), (heads_kv or heads, sk * TIMES, dim), (heads_kv or heads, sk * TIMES, dim_v or dim))
    return [torch.randn(*((lead,) if lead else ()), *shape, device=DEVICE).to(DTYPE).requires_grad_() for shape in shapes]


def bools(*shape, share=0.7):
    return torch.rand(shape, device=DEVICE) < share


def result(inputs, arguments, dout, dtype):
    """[o, gradients], of copies in this dtype."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    mask = arguments.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        mask = mask.detach().to(dtype).requires_grad_(mask.requires_grad)
        arguments = {**arguments, "attn_mask": mask}
        inputs += [mask] if mask.requires_grad else []
    o = F.scaled_dot_product_attention(*inputs[:3], **arguments)
    return [o, *torch.autograd.grad(o, inputs, dout.to(dtype))]


def close(got, own, exact, what=""):
    error, allowed = ((x.double() - exact).norm().item() for x in (got, own))
    assert error <= 2 * allowed + FLOOR * exact.norm().item(), f"{what}: error {error:.2e}, PyTorch's {allowed:.2e}"


def check(inputs, spelling, **arguments):
    """Taken over as this problem, with PyTorch's results; and taken over in inference mode as well."""
    dout = torch.randn(*inputs[0].shape[:-1], inputs[2].shape[-1], device=DEVICE).to(DTYPE)
    theirs, keep = arguments, arguments.get("attn_mask")
    if keep is not None and keep.dtype == torch.bool:  # EFFICIENT cannot read a repeated last axis
        theirs = {**arguments, "attn_mask": keep.expand(*keep.shape[:-1], inputs[1].shape[-2]).contiguous()}
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # cuDNN's backward faults on some masks
        exact, own = (result(inputs, theirs, dout, dtype) for dtype in (torch.float64, DTYPE))
    takeover.sdpa_report(reset=True)
    with taken_over():
        got = result(inputs, arguments, dout, DTYPE)
        with torch.inference_mode():
            inferred = F.scaled_dot_product_attention(*inputs, **arguments)
    for what, *three in zip(("o", "dq", "dk", "dv", "dmask"), got, own, exact):
        assert three[0].shape == three[1].shape and three[0].dtype == three[1].dtype
        close(*three, what)
    assert torch.allclose(inferred, got[0], atol=1e-5 if DTYPE == torch.float32 else 2e-2)
    report = takeover.sdpa_report()
    assert report.taken == {f"fwd {SPELLED} {spelling}": 2} and not report.fell_back


def test_plain():
    check(tensors(), "d16")


@pytest.mark.parametrize("sq, sk, spelling", [(20, 20, "causal"), (12, 40, "causal top-left"), (24, 12, "causal top-left")])
def test_causal_is_top_left(sq, sk, spelling):
    check(tensors(sq, sk), f"d16 {spelling}", is_causal=True)


@pytest.mark.parametrize("shape", [(2, 1, 1, 40), (20, 40), (2, 2, 20, 40), (20, 1)])
def test_bool_masks(shape):
    keep = bools(*(n * TIMES if n >= 20 else n for n in shape))
    keep[..., 0] = True  # no row is hidden: PyTorch's float64 kernels have their own ideas of these
    check(tensors(sk=40), "d16 bits", attn_mask=keep)


def test_repeated_masks_stay_small(monkeypatch):
    seen, keep = [], bools(2, 1, 1, 40 * TIMES)
    keep[..., 0] = True
    pack = takeover.packed_bits
    monkeypatch.setattr(takeover, "packed_bits", lambda mask: seen.append(mask.shape[:3]) or pack(mask))
    check(tensors(sk=40), "d16 bits", attn_mask=keep.expand(2, 2, 20 * TIMES, -1))
    assert set(seen) == {(2, 1, 1)}


def test_hidden_rows_are_zero():
    q, k, v = tensors()
    keep = bools(20 * TIMES, 20 * TIMES)
    keep[3] = False
    with taken_over():
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    dq, dk, dv = torch.autograd.grad(o.sum(), [q, k, v])
    assert not o[:, :, 3].any() and o[:, :, 4].any() and not dq[:, :, 3].any()
    assert all(x.isfinite().all() for x in (dq, dk, dv))


@pytest.mark.parametrize("shape, expand", [((1, 2, 20, 20), None), ((20, 20), None), ((1, 1, 20, 20), (2, 2, -1, -1))])
def test_float_masks_and_their_gradients(shape, expand):
    bias = torch.randn(*(n * TIMES if n >= 20 else n for n in shape), device=DEVICE).to(DTYPE)
    check(tensors(), f"d16 {BIAS}", attn_mask=bias.expand(*expand).requires_grad_() if expand else bias.requires_grad_())


def test_float_masks_that_hide():
    bias = torch.zeros(2, 1, 1, 20 * TIMES, device=DEVICE, dtype=DTYPE)
    bias[1, ..., 7:] = float("-inf")
    check(tensors(), f"d16 {BIAS}", attn_mask=bias)


MASKS = {"causal": lambda n: (1, 1, n, n), "padded": lambda n: (2, 1, 1, n), "dense": lambda n: (2, 1, n, n), "one": lambda n: (n, n)}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
def test_float_masks_that_heads_share(kind, dropout_p, monkeypatch):
    """Of 0 and -inf: the bits of a bool mask. One element that is neither, and the mask is added. All of it with gradients."""
    from flashkiln import _torch_float_mask as shared
    monkeypatch.setattr(shared, "LEAST_SHARE", 1)
    monkeypatch.setattr(shared, "LEAST_PAIRS", 1)
    shape = MASKS[kind](40 * TIMES)
    keep = bools(*shape) if kind != "causal" else torch.ones(shape, dtype=torch.bool, device=DEVICE).tril()
    keep[..., 0] = True
    mask = torch.zeros(shape, device=DEVICE, dtype=DTYPE).masked_fill(~keep, float("-inf"))
    if kind == "dense":
        mask = torch.randn(shape, device=DEVICE).to(DTYPE)
    elif kind == "one":
        mask[7, 0] = 3
    inputs = tensors(40, 40)
    if not dropout_p:
        check(inputs, f"d16 {BIAS}", attn_mask=mask)
    dout = torch.randn(inputs[0].shape, device=DEVICE).to(DTYPE)

    def ours(mask):
        torch.manual_seed(3)
        with taken_over():
            o = F.scaled_dot_product_attention(*inputs, attn_mask=mask, dropout_p=dropout_p)
        return o, *torch.autograd.grad(o, inputs, dout)

    got = ours(mask)
    monkeypatch.setattr(shared, "suits", lambda *_: False)
    for a, b in zip(got, ours(keep if kind in ("causal", "padded") else mask)):
        assert torch.equal(a, b) if DEVICE == "cpu" else torch.allclose(a, b, atol=2e-2)


def test_saved_tensors_may_come_back_with_other_strides(monkeypatch):
    from flashkiln import _torch_float_mask as shared
    monkeypatch.setattr(shared, "LEAST_SHARE", 1)
    monkeypatch.setattr(shared, "LEAST_PAIRS", 1)
    x = torch.randn(2, 40, 3, 2, 16, device=DEVICE).to(DTYPE).requires_grad_()
    mask = torch.randn(40, 40, device=DEVICE).to(DTYPE)
    dout, results = torch.randn(2, 2, 40, 16, device=DEVICE).to(DTYPE), []
    for hook in (lambda x: x, lambda x: torch.empty(x.size(), dtype=x.dtype, device=x.device).copy_(x)):
        with taken_over(), torch.autograd.graph.saved_tensors_hooks(hook, lambda x: x):
            o = F.scaled_dot_product_attention(*[y.transpose(1, 2) for y in x.unbind(2)], attn_mask=mask)
        results += torch.autograd.grad(o, x, dout)
    assert torch.allclose(*results, rtol=1e-5 if DTYPE == torch.float32 else 2e-2, atol=1e-5 if DTYPE == torch.float32 else 2e-2)


def test_heads_dims_scale():
    check(tensors(heads=4, heads_kv=2, dim_v=24), "d16 dv24 gqa", enable_gqa=True, scale=0.3)


def test_three_dimensions():
    inputs = [x.detach()[:, 0].contiguous() for x in tensors()]
    keep = bools(2, 20 * TIMES, 20 * TIMES)
    keep[..., 0] = True
    check(inputs, "d16 bits", attn_mask=keep)


def test_two_dimensions():
    check([x.detach()[0, 0].contiguous() for x in tensors()], "d16")


def test_strides():
    q, k, v = torch.randn(2, 20 * TIMES, 3, 2, 16, device=DEVICE).to(DTYPE).permute(2, 0, 3, 1, 4)
    check([q, k, v], "d16")


def test_dropout():
    q, k, _ = (x[:, :, :256] for x in tensors())
    v = torch.eye(k.shape[2], device=DEVICE, dtype=DTYPE).expand(2, 2, -1, -1)
    with taken_over():
        def draw(seed):
            torch.manual_seed(seed)
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        weights, again, other = draw(1), draw(1), draw(2)
        kept = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(weights, again) and not torch.equal(weights, other)
    alive = weights != 0
    assert 0.4 < alive.float().mean() < 0.6
    assert torch.allclose(weights[alive], 2 * kept[alive], rtol=1e-5 if DTYPE == torch.float32 else 2e-2)


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize("reason, call", [
    ("float64 tensors", lambda q, k, v: F.scaled_dot_product_attention(q.double(), k.double(), v.double())),
    ("tensors of 5, 5 and 5 dimensions", lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])),
    ("shapes that broadcast", lambda q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1])),
    ("tensors without elements", lambda q, k, v: F.scaled_dot_product_attention(q[:, :, :0], k, v)),
    ("a head dim above 512", lambda q, k, v: F.scaled_dot_product_attention(q, k, v.repeat(1, 1, 1, 33))),
    ("a scale that is no positive float32", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=-1.0)),
    ("a transform of torch.func", lambda q, k, v: torch.func.grad(
        lambda x: F.scaled_dot_product_attention(x, k, v).sum())(q)),
    ("tensors of class Other", lambda q, k, v: F.scaled_dot_product_attention(q.as_subclass(Other), k, v))])
def test_falls_back(reason, call):
    inputs = [x.detach() for x in tensors()]
    own = call(*inputs)
    with taken_over():
        got = call(*inputs)
    assert torch.allclose(got, own, atol=1e-2 if CUDA else 0, equal_nan=True)  # NaN: of a negative scale on CUDA
    assert takeover.sdpa_report().fell_back == {reason: 1} and not takeover.sdpa_report().taken


def test_wide_heads():
    q, k, v = tensors()
    check([q, k, v.detach().repeat(1, 1, 1, 20).requires_grad_()], "d16 dv320")


def test_sdpa_kernel_math_is_respected():
    with taken_over(), sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(*tensors())
    assert list(takeover.sdpa_report().fell_back) == ["sdpa_kernel() allows SDPBackend.MATH alone"]


def test_wrong_calls_are_pytorchs_errors():
    q, k, v = tensors()
    with taken_over(), pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[..., :8], v)
    assert list(takeover.sdpa_report().fell_back) == ["shapes that broadcast"]


def test_on_and_off():
    def taken():
        takeover.sdpa_report(reset=True)
        F.scaled_dot_product_attention(*inputs)
        return bool(takeover.sdpa_report().taken)
    inputs = tensors()
    assert not taken()
    takeover.enable_sdpa(cpu=not CUDA)
    assert taken()
    with taken_over():
        assert taken()
    assert taken()
    takeover.disable_sdpa()
    assert not taken()
    with contextlib.suppress(KeyError), taken_over():
        raise KeyError
    assert not taken()


def test_cpu_is_left_alone_unless_asked_for():
    inputs = [x.detach().float().cpu()[:, :, :8] for x in tensors()]
    takeover.enable_sdpa()
    F.scaled_dot_product_attention(*inputs)
    assert not takeover.sdpa_report().taken


def test_autocast():
    inputs = [x.detach().float().requires_grad_() for x in tensors()]
    with taken_over(), torch.autocast(DEVICE, torch.bfloat16):
        o = F.scaled_dot_product_attention(*inputs, is_causal=True)
    assert o.dtype == torch.bfloat16
    assert all(x.dtype == torch.float32 for x in torch.autograd.grad(o.sum(), inputs))
    assert list(takeover.sdpa_report().taken) == ["fwd bf16 d16 causal"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    def function(q, k, v, mask=None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None) + 1
    keep = bools(2, 1, 1, 20 * TIMES)
    keep[..., 0] = True
    with taken_over():
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for mask in (None, keep):
            inputs = tensors()
            own, got = function(*inputs, mask), compiled(*inputs, mask)
            ours, theirs = (torch.autograd.grad(o.sum(), inputs) for o in (got, own))
            assert all(torch.allclose(a, b, atol=1e-5 if DTYPE == torch.float32 else 2e-2)
                       for a, b in zip((got, *ours), (own, *theirs)))
            with torch.inference_mode():
                assert torch.allclose(compiled(*inputs, mask), own, atol=1e-5 if DTYPE == torch.float32 else 2e-2)
        assert takeover.sdpa_report().compiled.keys() == {f"fwd {SPELLED} d16 causal", f"fwd {SPELLED} d16 bits"}
    torch.compiler.reset()


def test_causal_lower_right():
    q, k, v = tensors(12, 20)
    bias = causal_lower_right(q.shape[2], k.shape[2])
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=bias._materialize(DEVICE))
    with taken_over():
        got = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert (got - exact).norm() < (1e-5 if DTYPE == torch.float32 else 1e-2) * exact.norm()
    # On a GPU it calls an operator of its own; on the CPU it becomes a bool mask.
    assert list(takeover.sdpa_report().taken) == [f"fwd {SPELLED} d16 {'causal' if CUDA else 'bits'}"]


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_packed_operators(name):
    """What nested tensors call on a GPU; here by hand, since on the CPU they call none."""
    cumulative = torch.tensor([0, 3, 12], dtype=torch.int32, device=DEVICE)
    q, k, v = (torch.randn(12, 2, 16, device=DEVICE).to(DTYPE).requires_grad_() for _ in range(3))
    expected = torch.cat([F.scaled_dot_product_attention(
        *(x[a:b].double().transpose(0, 1) for x in (q, k, v)), is_causal=True).transpose(0, 1) for a, b in ((0, 3), (3, 12))])
    takeover.sdpa_report(reset=True)
    with taken_over():
        if name == "flash":
            o = torch.ops.aten._flash_attention_forward(q, k, v, cumulative, cumulative, 9, 9, 0.0, True, False)[0]
        else:
            o = torch.ops.aten._efficient_attention_forward(q[None], k[None], v[None], None, cumulative, cumulative, 9, 9,
                                                            0.0, 1, True)[0][0]
    dout = torch.randn_like(o)
    for got, exact in zip((o, *torch.autograd.grad(o, [q, k, v], dout)),
                          (expected, *torch.autograd.grad(expected, [q, k, v], dout.double()))):
        assert (got - exact).norm() < (1e-5 if DTYPE == torch.float32 else 2e-2) * exact.norm()
    assert len(takeover.sdpa_report().taken) == 1 and not takeover.sdpa_report().fell_back


@pytest.mark.skipif(not CUDA, reason="jagged nested tensors call no operator on the CPU")
def test_nested_tensors():
    parts = [torch.randn(n, 2, 64, device=DEVICE).to(DTYPE) for n in (100, 37)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    q = nested.transpose(1, 2)
    with taken_over():
        out = F.scaled_dot_product_attention(q, q, q).transpose(1, 2)
    assert list(takeover.sdpa_report().taken) == [f"fwd {SPELLED} d64 packed"]
    for got, part in zip(out.unbind(), parts):
        x = part.double().transpose(0, 1)
        exact = F.scaled_dot_product_attention(x, x, x).transpose(0, 1)
        assert (got - exact).norm() < 1e-2 * exact.norm()
    out.values().sum().backward()
    assert nested.grad.values().isfinite().all()


@pytest.mark.parametrize("keys", [1, 31, 32, 48, 65])
def test_packed_bits(keys):
    if DEVICE == "cuda":  # else PyTorch packs them
        runtime.device("cuda:0").kernel("fwd fp16 d16 bits")
    at, wide = torch.arange(keys, device=DEVICE), bools(2, 1, 3, keys + 16, share=0.5)
    for mask in (wide[..., :keys], wide[..., 1:keys + 1], wide[..., :keys].contiguous(), wide[:1, 0, :1, :keys],
                 wide.transpose(0, 2)[..., :keys], wide[..., :1].expand(-1, -1, -1, keys)):
        words = takeover.packed_bits(mask)
        assert words.shape == (*mask.shape[:-1], -(-keys // 32)) and words.dtype == torch.int32
        assert torch.equal((words[..., at // 32] >> (at % 32) & 1).bool(), mask)


def test_multihead_attention():
    module = torch.nn.MultiheadAttention(32, 2, batch_first=True, device=DEVICE)
    x, padding = torch.randn(2, 12, 32, device=DEVICE), torch.zeros(2, 12, dtype=torch.bool, device=DEVICE)
    padding[1, 8:] = True
    own = module(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    with taken_over():
        got = module(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    assert torch.allclose(got, own, atol=1e-5)
    assert list(takeover.sdpa_report().taken) == ["fwd fp32 d16 bias"]


def test_report_is_readable():
    with taken_over():
        F.scaled_dot_product_attention(*tensors())
        F.scaled_dot_product_attention(*(x.double() for x in tensors()))
    assert repr(takeover.sdpa_report()) == f"""\
       1  taken by FlashKiln
           1  fwd {SPELLED} d16
       1  left to PyTorch
           1  float64 tensors
       0  while torch.compile traced"""


def test_vision_transformer():
    timm = pytest.importorskip("timm")
    size = {"img_size": 224, "depth": 12} if CUDA else {"img_size": 48, "depth": 2}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10, **size).to(DEVICE)
    images = torch.randn(2, 3, size["img_size"], size["img_size"], device=DEVICE)

    def run(dtype):
        model.zero_grad()
        logits = model.to(dtype)(images.to(dtype))
        logits.float().square().sum().backward()
        return [logits.detach(), *(p.grad.clone() for p in model.parameters())]
    weights = {name: x.to(DTYPE).to(x.dtype) for name, x in model.state_dict().items()}
    results = []
    for dtype, mode in ((torch.float64, contextlib.nullcontext()), (DTYPE, contextlib.nullcontext()), (DTYPE, taken_over())):
        model.to(torch.float32).load_state_dict(weights)
        with mode:
            results.append(run(dtype))
    for exact, own, got in zip(*results):
        close(got, own, exact)
    assert takeover.sdpa_report().taken == {f"fwd {SPELLED} d64": size["depth"]}


def test_blocks_that_overlap():
    """As those of two threads: whoever ends first leaves the other its own."""
    inputs, first, second = tensors(), taken_over(), taken_over()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    F.scaled_dot_product_attention(*inputs)
    assert takeover.sdpa_report().taken
    second.__exit__(None, None, None)
    takeover.sdpa_report(reset=True)
    F.scaled_dot_product_attention(*inputs)
    assert not takeover.sdpa_report().taken
