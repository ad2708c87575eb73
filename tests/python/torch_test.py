"""attention() on CPU tensors, through the emulator, against float64: forward and gradients, each argument once."""
import pytest

torch = pytest.importorskip("torch")

import flashkiln
import reference
from flashkiln import _problem, _torch, _torch_launch, attention

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def tensors(batch=1, sq=20, sk=24, heads=2, heads_kv=None, dim=16, dim_v=None, dtype=torch.float32):
    heads_kv = heads_kv or heads
    shapes = {"q": (batch, sq, heads, dim), "k": (batch, sk, heads_kv, dim), "v": (batch, sk, heads_kv, dim_v or dim)}
    return {name: torch.randn(shape).to(dtype).requires_grad_() for name, shape in shapes.items()}


def check(inputs, more=None, tolerance=None, expect=None, **arguments):
    """Compares attention(**inputs, **arguments) with the reference under `expect`. more: inputs besides, by argument."""
    more = more or {}
    ours = attention(*inputs.values(), **more, **arguments, return_lse=True)
    reference.compare(ours, reference.attention(*inputs.values(), **expect or {}), {**inputs, **more}, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    check(tensors(dtype=dtype), causal=True, expect={"keep": reference.causal})


def test_no_grad_is_the_same():
    t = tensors()
    with torch.no_grad():
        plain = attention(*t.values(), causal=True)
    assert not plain.requires_grad
    assert torch.equal(plain, attention(*t.values(), causal=True))


def test_gqa_and_scale():
    check(tensors(heads=4, heads_kv=2, batch=2), softmax_scale=0.3, expect={"scale": 0.3})


def test_head_dims_are_padded():
    check(tensors(dim=13, dim_v=9), causal=True, expect={"keep": reference.causal})


@pytest.mark.parametrize("deterministic", [False, True])
def test_wide_head_dims(deterministic):
    """Of 270 columns 320 are computed; of V each of two CTAs has half, and backward of all gradients."""
    check(tensors(sq=20, sk=40, dim=270, dim_v=300, dtype=torch.bfloat16), causal=True, deterministic=deterministic, expect={"keep": reference.causal})


@pytest.mark.parametrize("window, align, keep", [
    (5, "bottom-right", lambda g: (g.k >= g.q + g.diag - 5) & (g.k <= g.q + g.diag + 5)),
    ((3, -1), "bottom-right", lambda g: g.k >= g.q + g.diag - 3),
    ((-1, 2), "top-left", lambda g: g.k <= g.q + 2)])
def test_window(window, align, keep):
    check(tensors(), window=window, align=align, expect={"keep": keep, "bottom_right": align == "bottom-right"})


def test_causal_window():
    check(tensors(), causal=True, window=4, expect={"keep": lambda g: (g.k <= g.q + g.diag) & (g.k >= g.q + g.diag - 4)})


def test_rows_without_keys():
    check(tensors(sq=24, sk=16), causal=True, expect={"keep": reference.causal})


def test_softcap_alibi_bias():
    t = tensors(heads=2)
    more = {"alibi_slopes": torch.rand(2, requires_grad=True), "bias": torch.randn(1, 2, 1, 24, requires_grad=True)}
    check(t, more, softcap=3.0, expect={"score": lambda s, g: 3 * torch.tanh(s / 3) + more["bias"].double()
                                        - more["alibi_slopes"].double().view(1, -1, 1, 1) * (g.q + g.diag - g.k).abs()})


def test_alibi_of_each_batch_entry():
    slopes = torch.rand(2, 2, requires_grad=True)
    check(tensors(batch=2), {"alibi_slopes": slopes}, causal=True, expect={
        "keep": reference.causal, "score": lambda s, g: s - slopes.double()[:, :, None, None] * (g.q + g.diag - g.k).abs()})


@pytest.mark.parametrize("shape", [(20, 24), (2, 1, 20, 24), (1, 2, 1, 1)])
def test_bias_gradients(shape):
    bias = torch.randn(shape, requires_grad=True)
    check(tensors(batch=2), {"bias": bias}, expect={"score": lambda s, g: s + bias.double()})


def test_bfloat16_bias_has_bfloat16_gradients():
    bias = torch.randn(1, 1, 20, 24).bfloat16().requires_grad_()
    check(tensors(dtype=torch.bfloat16), {"bias": bias}, expect={"score": lambda s, g: s + bias.double()})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_arrays_of_16_bits_are_read_as_they_are(dtype):
    t, made = tensors(batch=2), {"bias": torch.randn(1, 2, 20, 24), "sink": torch.randn(2), "near": torch.randn(24)}
    made = {name: x.to(dtype).requires_grad_() for name, x in made.items()}
    word = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    given = dict(bias=made["bias"], sink=made["sink"], score="s + near[k]", arrays={"near": made["near"]})
    assert {f"array=bias:{word}[b][h][q][k]", f"array=sink:{word}[h]", f"array=near:{word}[k]"} < set(
        flashkiln.spell(*t.values(), **given).split())
    wide = {name: x.detach().float().requires_grad_() for name, x in made.items()}
    o = attention(*t.values(), **given)
    expected = attention(*t.values(), bias=wide["bias"], sink=wide["sink"], score="s + near[k]", arrays={"near": wide["near"]})
    assert torch.equal(o, expected)
    for x, y in zip(torch.autograd.grad(o.square().sum(), [*made.values()]),
                    torch.autograd.grad(expected.square().sum(), [*wide.values()])):
        assert x.dtype == dtype and torch.allclose(x.float(), y, rtol=2**-7, atol=1e-5)


def test_bias_alone_requires_grad():
    t = {name: x.detach() for name, x in tensors().items()}
    bias = torch.randn(1, 2, 20, 24, requires_grad=True)
    check_bias = attention(*t.values(), bias=bias).sum()
    (got,) = torch.autograd.grad(check_bias, [bias])
    theirs = reference.attention(*t.values(), score=lambda s, g: s + bias.double())[0].sum()
    reference.close("dbias", got, torch.autograd.grad(theirs, [bias])[0])


def test_subsets_that_require_grad():
    t = tensors()
    t["k"].requires_grad_(False)
    attention(*t.values()).sum().backward()
    assert t["k"].grad is None and t["q"].grad is not None and t["v"].grad is not None


def test_sink():
    sink = torch.randn(2, requires_grad=True)
    check(tensors(), {"sink": sink}, causal=True, expect={"keep": reference.causal, "sink": sink})


def test_expressions_with_arrays():
    slope, t = torch.rand(2, requires_grad=True), tensors()
    doc = torch.randint(0, 3, (1, 24))
    ours = attention(*t.values(), mask="doc[b][q] == doc[b][k]", score="s - slope[h] * abs(q - k)",
                     arrays={"slope": slope, "doc": doc}, return_lse=True)
    same = lambda g: doc[0][g.q] == doc[0][g.k]  # noqa: E731
    theirs = reference.attention(*t.values(), keep=same,
                                 score=lambda s, g: s - slope.double().view(1, -1, 1, 1) * (g.q - g.k).abs())
    reference.compare(ours, theirs, {**t, "slope": slope})


def test_named_masks_and_explicit_declarations():
    t = tensors(batch=2)
    prefix, table = torch.tensor([7, 0]), torch.randn(2, 5, requires_grad=True)
    ours = attention(*t.values(), mask=["prefix", "k != 3"], score="s + table[h][k % 5]",
                     arrays={"prefix": prefix, "table:float[h][]": table}, return_lse=True)
    keep = lambda g: ((g.k <= g.q + g.diag) | (g.k < prefix.view(2, 1, 1, 1))) & (g.k != 3)  # noqa: E731
    theirs = reference.attention(*t.values(), keep=keep, score=lambda s, g: s + table.double()[g.h, g.k % 5])
    reference.compare(ours, theirs, {**t, "table": table})


def test_functions_of_symbols():
    slope, t = torch.rand(2, requires_grad=True), tensors()
    ours = attention(*t.values(), mask=[lambda b, h, q, k: k <= q, "k != 3"],
                     score=lambda s, b, h, q, k: s - slope[h] * (q - k), return_lse=True)
    theirs = reference.attention(*t.values(), keep=lambda g: (g.k <= g.q) & (g.k != 3),
                                 score=lambda s, g: s - slope.double().view(1, -1, 1, 1) * (g.q - g.k))
    reference.compare(ours, theirs, {**t, "slope": slope})


@pytest.mark.parametrize("words, shows", [
    ("butterfly(8)", lambda h, i, j: ((i ^ j) & ((i ^ j) - 1)) == 0),
    ("local(4x8,1)", lambda h, i, j: (i - j).abs() <= 1),
    ('blocks(8)="h == 0 ? i >= j : i == j"', lambda h, i, j: torch.where(h == 0, i >= j, i == j)),
    ('blocks(8)="abs(i - j) <= reach[h]"', lambda h, i, j: (i - j).abs() <= h)], ids=str)
def test_sparsity(words, shows):
    """Joined with other masks. Block rows count by position: the last query's is the last key's."""
    t, rows = tensors(), 4 if "4x8" in words else 8
    given = {"arrays": {"reach": torch.arange(2)}} if "reach" in words else {}
    ours = attention(*t.values(), sparsity=words, mask="k != q - 3", causal=True, return_lse=True, **given)
    keep = lambda g: shows(g.h, (g.q + g.diag) // rows, g.k // 8) & (g.k <= g.q + g.diag) & (g.k != g.q - 3)  # noqa: E731
    reference.compare(ours, reference.attention(*t.values(), keep=keep), t)


def test_a_pattern_and_its_table_are_the_same_bit_by_bit():
    t, i = tensors(sq=24), torch.arange(3)
    blocks = ((i[:, None] ^ i) & ((i[:, None] ^ i) - 1)) == 0
    by_pattern = attention(*t.values(), sparsity="butterfly(8)", deterministic=True, return_lse=True)
    grads = torch.autograd.grad(by_pattern[0].sum(), list(t.values()))
    table = flashkiln.create_block_mask(blocks=blocks[None, None], BLOCK_SIZE=8)
    by_table = attention(*t.values(), sparsity=table, deterministic=True, return_lse=True)
    for x, y in zip((*by_pattern, *grads), (*by_table, *torch.autograd.grad(by_table[0].sum(), list(t.values())))):
        assert torch.equal(x, y)


def dropped_by(spelling, dims, p, state):
    """Which weights the library's definition of dropout keeps, as a tensor."""
    import ctypes
    from flashkiln._capi import library
    batch, heads, sq, sk = dims
    args = library().make("fk_args", batch=batch, num_heads_q=heads, num_heads_kv=heads, seqlen_q=sq, seqlen_k=sk,
                          dropout_p=p, dropout_state=state.data_ptr())
    out = torch.empty(dims, dtype=torch.uint8)
    library()("fk_reference_keep_mask", ctypes.byref(library().problem(spelling)), ctypes.byref(args),
              ctypes.c_void_p(out.data_ptr()))
    return out.double()


def test_dropout_and_its_generator():
    t = tensors()
    draw = torch.Generator().manual_seed(5)
    ours = attention(*t.values(), dropout_p=0.25, generator=draw, return_lse=True)
    state = torch.randint(-2**63, 2**63 - 1, (2,), generator=torch.Generator().manual_seed(5))
    keep = dropped_by("fwd fp32 d16 dropout", (1, 2, 20, 24), 0.25, state)
    reference.compare(ours, reference.attention(*t.values(), dropped=keep, p=0.25), t)
    torch.manual_seed(1)
    first = attention(*t.values(), dropout_p=0.25)
    assert not torch.equal(first, attention(*t.values(), dropout_p=0.25))
    torch.manual_seed(1)
    assert torch.equal(first, attention(*t.values(), dropout_p=0.25))


def test_checkpoint_draws_the_same_dropout():
    from torch.utils.checkpoint import checkpoint
    t = tensors()
    run = lambda *x: attention(*x, dropout_p=0.5)  # noqa: E731
    grads = []
    for function in (run, lambda *x: checkpoint(run, *x, use_reentrant=False)):
        torch.manual_seed(3)
        grads.append(torch.autograd.grad(function(*t.values()).sum(), list(t.values())))
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_layout_bhsd():
    t = {name: torch.randn(2, 3, n, 16, requires_grad=True) for name, n in (("q", 20), ("k", 24), ("v", 24))}
    o, lse = attention(*t.values(), layout="bhsd", causal=True, return_lse=True)
    theirs = reference.attention(*(x.transpose(1, 2) for x in t.values()), keep=reference.causal)
    reference.compare((o.transpose(1, 2), lse), theirs, t)


def test_strange_strides():
    base = torch.randn(2, 20, 3, 2, 16, requires_grad=True)
    q, k, v = base.unbind(2)
    odd = torch.randn(2, 20, 2, 17)[..., 1:].requires_grad_()  # rows of 17, and misaligned
    shared = torch.randn(1, 20, 1, 16, requires_grad=True)
    for name, (a, b, c) in {"qkv": (q, k, v), "odd": (odd, k, v), "shared": (q, shared.expand(2, 20, 2, 16), v)}.items():
        ours = attention(a, b, c, return_lse=True)
        leaves = {"base": base, **({"odd": odd} if name == "odd" else {"shared": shared} if name == "shared" else {})}
        reference.compare(ours, reference.attention(a, b, c), leaves)


def test_gradients_of_strange_strides():
    t = tensors()
    grads = [torch.autograd.grad(f(*t.values()), list(t.values()), torch.ones(()).expand(1, 20, 2, 16))
             for f in (attention, lambda *x: reference.attention(*x)[0].float())]
    for name, got, expected in zip(t, *grads):
        reference.close("d" + name, got, expected)
    up = torch.randn(1, 2, 16, 20).permute(0, 3, 1, 2)
    grads = [torch.autograd.grad(f(*t.values()), list(t.values()), up)
             for f in (attention, lambda *x: reference.attention(*x)[0].float())]
    for name, got, expected in zip(t, *grads):
        reference.close("d" + name, got, expected)


def packed_reference(t, cu_q, cu_k, **expect):
    parts = [reference.attention(t["q"][None, a:b], t["k"][None, c:d], t["v"][None, c:d], **expect)
             for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:])]
    return torch.cat([o[0] for o, _ in parts]), torch.cat([lse[0] for _, lse in parts], -1)


def test_packed():
    cu_q, cu_k = [0, 7, 7, 20], [0, 9, 12, 24]
    t = {name: x.detach()[0].requires_grad_() for name, x in tensors().items()}
    ours = attention(*t.values(), causal=True, cu_seqlens_q=torch.tensor(cu_q), cu_seqlens_k=torch.tensor(cu_k),
                     return_lse=True)
    reference.compare(ours, packed_reference(t, cu_q, cu_k, keep=reference.causal), t)


def test_packed_rows_of_no_sequence_are_zero():
    t = {name: x.detach()[0].requires_grad_() for name, x in tensors(sk=20).items()}
    cu = torch.tensor([0, 6, 11], dtype=torch.int32)
    o = attention(*t.values(), cu_seqlens_q=cu, cu_seqlens_k=cu)
    o.sum().backward()
    assert not o[11:].any() and not any(x.grad[11:].any() for x in t.values()) and t["v"].grad[:11].all()


def test_lengths_of_lengths():
    q, k, v = (x.detach()[0] for x in tensors().values())
    cu = torch.tensor([0, 8, 20])
    for cu_q, cu_k, message in ((cu, cu[:2], r"cu_seqlens_k has shape \(2,\); the batch is 2"), (cu[None], cu, "cu_seqlens_q has shape")):
        with pytest.raises(flashkiln.BadArgument, match=message):
            attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    pages = torch.zeros(1, 3, dtype=torch.int32)
    with pytest.raises(flashkiln.BadArgument, match="max_seqlen_k is 25; page_table has 3 columns of pages of 8 rows"):
        attention(q[None], k.view(3, 8, 2, 16), v.view(3, 8, 2, 16), page_table=pages, max_seqlen_k=25)


def test_seqused_k():
    used, t = torch.tensor([5, 24]), tensors(batch=2)
    keep = lambda g: g.k < used.view(2, 1, 1, 1)  # noqa: E731
    check(t, seqused_k=used, expect={"keep": keep})


def test_paged_and_split():
    t = {name: x.detach() for name, x in tensors(batch=2, sq=3, sk=70, heads=4, heads_kv=2).items()}
    used, page = torch.tensor([70, 33], dtype=torch.int32), 16
    table = torch.randperm(12)[:10].view(2, 5)
    pages = {name: torch.full((12, page, 2, 16), float("nan")) for name in "kv"}
    for b in range(2):
        for row in range(int(used[b])):
            for name in "kv":
                pages[name][table[b, row // page], row % page] = t[name][b, row]
    keep = lambda g: g.k < used.view(2, 1, 1, 1)  # noqa: E731
    theirs = reference.attention(*t.values(), keep=keep)
    for splits in (1, 3, 0, None):
        o, lse = attention(t["q"], pages["k"], pages["v"], page_table=table, seqused_k=used, num_splits=splits,
                           return_lse=True)
        reference.close("o", o, theirs[0])
        reference.close("lse", lse, theirs[1])
    with pytest.raises(flashkiln.Unsupported, match="page_table"):
        attention(t["q"].requires_grad_(), pages["k"], pages["v"], page_table=table, seqused_k=used)


def test_autocast():
    t = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, lse = attention(*t.values(), causal=True, return_lse=True)
    assert o.dtype == torch.bfloat16
    reference.compare((o, lse), reference.attention(*t.values(), keep=reference.causal), t, tolerance=3e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attention(*t.values()).sum().backward()
    assert t["q"].grad.dtype == torch.float32


def test_deterministic_by_pytorchs_flag():
    t = tensors(sq=70, sk=70)
    torch.use_deterministic_algorithms(True)
    try:
        check(t, causal=True, expect={"keep": reference.causal})
    finally:
        torch.use_deterministic_algorithms(False)
    from flashkiln import _problem
    calls = _problem.terms(True).calls.values()
    assert any("deterministic" in launch.spelling for call in calls for launch in call.backward.values())


@pytest.mark.parametrize("sq, sk", [(0, 8), (8, 0)])
def test_nothing_there(sq, sk):
    t = tensors(sq=sq, sk=sk)
    o, lse = attention(*t.values(), return_lse=True)
    assert o.shape == t["q"].shape and not o.any() and (lse == float("-inf")).all()
    o.sum().backward()
    assert all(not x.grad.any() for x in t.values())


def test_double_backward_is_refused():
    t = tensors()
    dq, dk = torch.autograd.grad(attention(*t.values()).sum(), [t["q"], t["k"]], create_graph=True)
    reference.close("dq", dq, torch.autograd.grad(reference.attention(*t.values())[0].sum(), [t["q"]])[0])
    with pytest.raises(RuntimeError, match="no gradients themselves"):
        (t["q"].sum() + dk.sum()).backward()


def test_double_backward_of_one_input():
    t = tensors()
    for x in t.values():
        y = x.detach().requires_grad_()
        (dy,) = torch.autograd.grad(attention(**{name: y if z is x else z.detach() for name, z in t.items()}).sum(), y, create_graph=True)
        assert dy.shape == y.shape
        with pytest.raises(RuntimeError, match="no gradients themselves"):
            dy.sum().backward()


def test_forward_mode_is_refused():
    q, k, v = (x.detach() for x in tensors().values())
    with pytest.raises(flashkiln.Unsupported, match="forward-mode"):
        torch.func.jvp(lambda q: attention(q, k, v), (q,), (q,))


@pytest.mark.parametrize("pack", [torch.empty_like, lambda x: torch.empty(x.size(), dtype=x.dtype), torch.Tensor.clone])
def test_saved_tensors_may_come_back_with_other_strides(pack):
    """As of hooks that keep them on the host."""
    def of_one_tensor(x):
        return attention(*x.view(2, 20, 3, 2, 16).unbind(2), causal=True)

    def transposed(x):
        return attention(*[y.reshape(2, 20, 2, 16).transpose(1, 2) for y in x.split(32, -1)], layout="bhsd", bias=x[0, :, :20])
    for call in (of_one_tensor, transposed):
        x, results = torch.randn(2, 20, 96, requires_grad=True), []
        for hook in (lambda x: x, lambda x: pack(x).copy_(x)):
            with torch.autograd.graph.saved_tensors_hooks(hook, lambda x: x):
                o = call(x)
            results += torch.autograd.grad(o.square().sum(), x)
        assert torch.allclose(*results, rtol=1e-5, atol=1e-5)  # dq is summed in no order


@pytest.mark.parametrize("arguments, error, message", [
    ({"mask": "k <= foo"}, "BadProblem", "unknown name 'foo'"),
    ({"mask": 3}, "BadProblem", "mask is 3"),
    ({"mask": "prefix"}, "BadProblem", "'prefix' is missing"),
    ({"arrays": {"x": torch.ones(2)}}, "BadProblem", "no mask or score reads 'x'"),
    ({"bias": torch.ones(20, 23)}, "BadArgument", r"'bias' has shape \(1, 1, 20, 23\); axis 3 .* 24"),
    ({"score": "s + x[h]", "arrays": {"x": torch.ones(2, 2)}}, "BadProblem", "'x' has 2 dimensions"),
    ({"softmax_scale": 0.0}, "BadArgument", "softmax_scale is 0"),
    ({"num_splits": -3}, "BadArgument", "num_splits is -3; it must be 0 to 128"),
    ({"align": "middle"}, "BadProblem", "align is 'middle'"),
    ({"layout": "sbhd"}, "BadArgument", "layout is 'sbhd'"),
    ({"window": -2}, "BadProblem", "window is -2"),
    ({"window": (1, 2, 3)}, "BadProblem", "it must be an int, or two"),
    ({"window": 1.5}, "BadProblem", "it must be an int, or two"),
    ({"mask": 'k <= q" softcap(3) keep="k < 5'}, "BadProblem", "no quotation marks"),
    ({"seqused_k": torch.tensor([5, 5])}, "BadArgument", r"seqused_k has shape \(2,\); the batch is 1, so that it must be \(1,\)"),
    ({"seqused_k": torch.tensor(5)}, "BadArgument", r"seqused_k has shape \(\)"),
    ({"cu_seqlens_k": torch.tensor([0, 24])}, "BadArgument", "cu_seqlens_q is missing"),
    ({"layout": "packed"}, "BadArgument", "cu_seqlens_q is missing"),
    ({"cu_seqlens_q": torch.tensor([0, 20])}, "BadArgument", "cu_seqlens_k is missing")])
def test_errors(arguments, error, message):
    with pytest.raises(getattr(flashkiln, error), match=message):
        attention(*tensors().values(), **arguments)


def test_errors_of_shapes():
    t = {name: x.detach() for name, x in tensors().items()}
    for change, message in (({"k": t["k"].half()}, "k is of torch.float16 and q of torch.float32"),
                            ({"q": t["q"].double(), "k": t["k"].double(), "v": t["v"].double()}, "q is of torch.float64"),
                            ({"k": t["k"][..., :8]}, "head_dim of q is 16 and of k 8"),
                            ({"v": t["v"][:, :8]}, "differ in the last dimension alone"),
                            ({"q": t["q"][0]}, "q has shape"),
                            ({"q": t["q"][..., :0], "k": t["k"][..., :0]}, "head_dim is 0"),
                            ({"k": t["k"].numpy()}, "k is a ndarray"),
                            ({"q": t["q"][:, :, :1].expand(1, 20, 3, 16)}, "multiple of num_heads_kv")):
        with pytest.raises(flashkiln.BadArgument, match=message):
            attention(**{**t, **change})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape, moved", [((2, 2, 20, 23), 0), ((1, 2, 20, 24), 1), ((2, 1, 20, 23), None), ((1, 2, 1, 23), 0)])
def test_rows_that_tiles_cannot_be_copied_of(dtype, shape, moved, monkeypatch):
    """As on Hopper: gradients of an array lie in rows that begin at multiples of 16 bytes, wherever its own begin. moved: elements that
    stand before it; None: it is repeated."""
    values = torch.randn(shape).to(dtype)
    bias = torch.empty(values.numel() + (moved or 0), dtype=dtype)[moved or 0:].view(shape).copy_(values)
    bias = (bias if moved is not None else bias.expand(2, 2, 20, 23)).requires_grad_()
    t = tensors(batch=2, sk=shape[-1])
    results = []
    for tiles in (False, True):
        monkeypatch.setattr(_torch_launch, "adds_tiles", lambda device: tiles)
        _problem.terms(brought=(("bias", _torch.float_element(dtype)),)).calls.clear()  # which know the gradients' rows
        o = attention(*t.values(), bias=bias)
        results.append([o, attention(*(x.detach() for x in t.values()), bias=bias.detach()),
                        *torch.autograd.grad(o.square().sum(), [*t.values(), bias])])
    assert all(a.shape == b.shape and torch.allclose(a, b, rtol=2**-7, atol=1e-5) for a, b in zip(*results))  # in no order


def test_lists_and_arrays_of_numpy():
    import numpy as np
    q, k, v = tensors().values()
    with torch.no_grad():
        for given, same in (({"seqused_k": [5]}, {"seqused_k": torch.tensor([5])}),
                            ({"sink": [1.0, 2.0]}, {"sink": torch.tensor([1.0, 2.0])}),
                            ({"alibi_slopes": [0.5, 0.25]}, {"alibi_slopes": torch.tensor([0.5, 0.25])}),
                            ({"bias": np.arange(24.0)[::-1]}, {"bias": torch.arange(23.0, -1, -1)}),
                            ({"bias": np.arange(24, dtype=">f4")}, {"bias": torch.arange(24.0)})):
            assert torch.equal(attention(q, k, v, **given), attention(q, k, v, **same)), given


def test_a_sink_without_keys_has_a_gradient():
    t = tensors(sk=0)
    sink = torch.tensor([1.0, 2.0], requires_grad=True)
    o, lse = attention(*t.values(), sink=sink, return_lse=True)
    (lse.sum() + o.sum()).backward()
    assert torch.equal(sink.grad, torch.tensor([20.0, 20.0])) and t["k"].grad.shape == t["k"].shape and not t["q"].grad.any()
