"""attention() on a GPU: every argument and its gradients against float64, the operators, torch.compile, CUDA graphs,
checkpoints, autocast, streams. Skipped without a GPU."""
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

import reference  # noqa: E402
from flashkiln import _problem, attention, explain  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda").to(dtype).requires_grad_()


def tensors(dtype=torch.bfloat16, batch=2, sq=193, sk=257, heads=4, heads_kv=2, dim=64, dim_v=None):
    if dtype == torch.float32 and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("fp32 needs sm_80")
    return {"q": draw(batch, sq, heads, dim, dtype=dtype), "k": draw(batch, sk, heads_kv, dim, dtype=dtype),
            "v": draw(batch, sk, heads_kv, dim_v or dim, dtype=dtype)}


def distance(g):
    return (g.q + g.diag - g.k).abs()


def over_heads(x):
    return x.double().view(1, -1, 1, 1)


# name: (arguments, {array argument: shape}, what the reference takes, given the arrays)
CASES = {
    "plain": ({}, {}, lambda a: {}),
    "causal": ({"causal": True}, {}, lambda a: {"keep": reference.causal}),
    "top-left": ({"causal": True, "align": "top-left"}, {}, lambda a: {"keep": reference.causal, "bottom_right": False}),
    "window": ({"window": (50, 20)}, {}, lambda a: {
        "keep": lambda g: (g.k >= g.q + g.diag - 50) & (g.k <= g.q + g.diag + 20)}),
    "causal window": ({"causal": True, "window": 70}, {}, lambda a: {
        "keep": lambda g: (g.k <= g.q + g.diag) & (g.k >= g.q + g.diag - 70)}),
    "scale": ({"softmax_scale": 0.2}, {}, lambda a: {"scale": 0.2}),
    "softcap": ({"softcap": 2.0}, {}, lambda a: {"score": lambda s, g: 2 * torch.tanh(s / 2)}),
    "alibi": ({"causal": True}, {"alibi_slopes": (4,)}, lambda a: {
        "keep": reference.causal, "score": lambda s, g: s - over_heads(a["alibi_slopes"]) * distance(g)}),
    "alibi of batch": ({}, {"alibi_slopes": (2, 4)}, lambda a: {
        "score": lambda s, g: s - a["alibi_slopes"].double()[:, :, None, None] * distance(g)}),
    "bias": ({}, {"bias": (2, 4, 193, 257)}, lambda a: {"score": lambda s, g: s + a["bias"].double()}),
    "bias of all": ({"causal": True}, {"bias": (193, 257)}, lambda a: {
        "keep": reference.causal, "score": lambda s, g: s + a["bias"].double()}),
    "bias of keys": ({}, {"bias": (2, 1, 1, 257)}, lambda a: {"score": lambda s, g: s + a["bias"].double()}),
    "sink": ({"causal": True}, {"sink": (4,)}, lambda a: {"keep": reference.causal, "sink": a["sink"]}),
    "expressions": ({"mask": ["causal", "(q - k) % 3 != 1"], "score": "s + 0.1 * tanh(s) - slope[h] * abs(q - k) + u[k]"},
                    {"slope": (4,), "u": (257,)}, lambda a: {
        "keep": lambda g: (g.k <= g.q + g.diag) & (torch.fmod(g.q - g.k, 3) != 1),
        "score": lambda s, g: s + 0.1 * torch.tanh(s) - over_heads(a["slope"]) * (g.q - g.k).abs() + a["u"].double()}),
}


def split(shapes):
    """Arrays of arguments of their own, and those of `arrays`."""
    made = {name: (0.1 * torch.randn(shape, device="cuda")).requires_grad_() for name, shape in shapes.items()}
    own = {name: x for name, x in made.items() if name in ("alibi_slopes", "bias", "sink")}
    return made, {**own, "arrays": {name: x for name, x in made.items() if name not in own}}


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case, dtype, deterministic):
    arguments, shapes, expect = CASES[case]
    t, (made, given) = tensors(dtype), split(shapes)
    ours = attention(*t.values(), **arguments, **given, deterministic=deterministic, return_lse=True)
    theirs = reference.attention(*t.values(), **expect(made))
    reference.compare(ours, theirs, {**t, **made}, TOLERANCE[dtype])


@pytest.mark.parametrize("dim, dim_v", [(40, 40), (72, 24), (33, 65), (128, 128), (192, 128), (256, 256)])
def test_head_dims(dim, dim_v):
    t = tensors(dim=dim, dim_v=dim_v)
    ours = attention(*t.values(), causal=True, return_lse=True)
    reference.compare(ours, reference.attention(*t.values(), keep=reference.causal), t, TOLERANCE[torch.bfloat16])


def test_bhsd_views_of_one_tensor():
    qkv = draw(2, 193, 3, 4, 64, dtype=torch.bfloat16)
    views = [x.transpose(1, 2) for x in qkv.unbind(2)]
    o, lse = attention(*views, layout="bhsd", causal=True, return_lse=True)
    theirs = reference.attention(*qkv.unbind(2), keep=reference.causal)
    reference.compare((o.transpose(1, 2), lse), theirs, {"qkv": qkv}, TOLERANCE[torch.bfloat16])


def test_packed_with_padding_behind():
    cu = torch.tensor([0, 100, 100, 170], dtype=torch.int32, device="cuda")
    t = {name: draw(193, heads, 64, dtype=torch.bfloat16) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    o, lse = attention(*t.values(), causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True)
    parts = [reference.attention(*(x[None, a:b] for x in t.values()), keep=reference.causal) for a, b in ((0, 100), (100, 170))]
    theirs = torch.cat([part[0][0] for part in parts]), torch.cat([part[1][0] for part in parts], -1)
    assert not o[170:].any()
    reference.compare((o[:170], lse[:, :170]), theirs, t, TOLERANCE[torch.bfloat16])


def test_seqused_k():
    used, t = torch.tensor([100, 257], device="cuda"), tensors()
    ours = attention(*t.values(), seqused_k=used, return_lse=True)
    reference.compare(ours, reference.attention(*t.values(), keep=lambda g: g.k < used.view(2, 1, 1, 1)), t,
                      TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("of_keys", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("splits", [None, 0, 1, 5])
def test_paged_decoding(splits, of_keys):
    t = {name: x.detach() for name, x in tensors(sq=1, sk=1024).items()}
    t["k"], t["v"] = (t[name].to(of_keys).bfloat16() for name in "kv")
    table = torch.randperm(40, device="cuda")[:32].view(2, 16).int()
    pages = {name: torch.full((40, 64, 2, 64), float("nan"), device="cuda").bfloat16() for name in "kv"}
    for name in "kv":
        pages[name][table.long()] = t[name].view(2, 16, 64, 2, 64)
        pages[name] = pages[name].to(of_keys)
    o, lse = attention(t["q"], pages["k"], pages["v"], page_table=table, num_splits=splits, return_lse=True)
    theirs = reference.attention(*t.values())
    reference.close("o", o, theirs[0], TOLERANCE[torch.bfloat16])
    reference.close("lse", lse, theirs[1], 1e-3)


def identity(t):
    """Values that show the weights: o of one-hot v is the matrix of weights."""
    eye = torch.eye(t["k"].shape[1], device="cuda", dtype=t["q"].dtype)
    return eye[None, :, None, :].expand(2, -1, t["k"].shape[2], -1)


def test_dropout():
    t = tensors(sk=256)
    with torch.no_grad():
        torch.manual_seed(4)
        weights = attention(t["q"], t["k"], identity(t), dropout_p=0.25)  # [batch, q, heads, k]
    torch.manual_seed(4)
    ours = attention(*t.values(), dropout_p=0.25, return_lse=True)
    keep = (weights > 0).double().transpose(1, 2)
    assert abs(keep.mean().item() - 0.75) < 0.01
    reference.compare(ours, reference.attention(*t.values(), dropped=keep, p=0.25), t, TOLERANCE[torch.bfloat16])


def test_dropout_in_a_checkpoint():
    from torch.utils.checkpoint import checkpoint
    t, grads = tensors(), []
    run = lambda *x: attention(*x, dropout_p=0.5, deterministic=True)  # noqa: E731
    for function in (run, lambda *x: checkpoint(run, *x, use_reentrant=False),
                     lambda *x: checkpoint(run, *x, use_reentrant=True)):
        torch.manual_seed(3)
        function(*t.values()).float().square().sum().backward()
        grads.append([x.grad for x in t.values()])
        for x in t.values():
            x.grad = None
    assert all(torch.equal(a, b) for other in grads[1:] for a, b in zip(grads[0], other))


@pytest.mark.parametrize("dim, dim_v", [(512, 512), (576, 512), (300, 260)])
@pytest.mark.parametrize("queries", [193, 1])
def test_wide_heads(dim, dim_v, queries):
    t = tensors(sq=queries, sk=700, dim=dim, dim_v=dim_v)
    ours = attention(*t.values(), causal=True, return_lse=True)
    reference.compare(ours, reference.attention(*t.values(), keep=reference.causal), t)


@pytest.mark.parametrize("causal, used, latent", [(True, False, False), (False, True, False), (False, False, True), (True, True, True)])
@pytest.mark.parametrize("heads, heads_kv", [(128, 1), (16, 1), (4, 4)])
def test_wide_decoding(heads, heads_kv, causal, used, latent):
    """One query at head dims above 256, whose heads become queries on Hopper; and where the values are the keys' first columns."""
    t = {name: x.detach() for name, x in tensors(batch=3, sq=1, sk=700, heads=heads, heads_kv=heads_kv, dim=576, dim_v=512).items()}
    if latent:
        t["v"] = t["k"][..., :512]
    lengths = torch.tensor([700, 1, 333], device="cuda", dtype=torch.int32)
    keep = (lambda g: g.k < lengths.view(3, 1, 1, 1)) if used else None
    ours = attention(*t.values(), causal=causal, return_lse=True, **{"seqused_k": lengths} if used else {})
    theirs = reference.attention(*t.values(), **{"keep": keep} if used else {})
    reference.close("o", ours[0], theirs[0])
    reference.close("lse", ours[1], theirs[1])


def into_pages(t, page_size):
    """Moves k and v into pages in random order. Returns the page table."""
    batch, seqlen = t["k"].shape[:2]
    table = torch.randperm(batch * seqlen // page_size, device="cuda").int()
    for name in "kv":
        pages = torch.empty(len(table), page_size, *t[name].shape[2:], device="cuda", dtype=t[name].dtype)
        pages[table.long()] = t[name].reshape(pages.shape)
        t[name] = pages
    return table.view(batch, -1)


def has_132_hopper_sms():
    """What the rules of decoding were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)


@pytest.mark.parametrize("dim, batch, heads, heads_kv", [(128, 16, 32, 8), (64, 24, 8, 4), (96, 33, 4, 4), (192, 33, 8, 8), (128, 33, 32, 8), (256, 3, 16, 4)])
@pytest.mark.parametrize("paged", [False, True])
def test_decoding_in_full_rounds(dim, batch, heads, heads_kv, paged):
    """Where most SMs have a tile, heads become queries on Hopper."""
    t = {name: x.detach() for name, x in tensors(batch=batch, sq=1, sk=384, heads=heads, heads_kv=heads_kv, dim=dim).items()}
    theirs = reference.attention(*t.values())
    more = {"page_table": into_pages(t, 64)} if paged else {}
    ours = attention(*t.values(), causal=True, return_lse=True, **more)
    reference.close("o", ours[0], theirs[0])
    reference.close("lse", ours[1], theirs[1])
    if has_132_hopper_sms():
        assert explain(*t.values(), causal=True, **more).spelling == f"fwd bf16 d{dim}" + " paged(64)" * paged


@pytest.mark.parametrize("batch, dim", [(16, 128), (32, 128), (16, 192)])
@pytest.mark.parametrize("page_size", [None, 16, 64])
@pytest.mark.parametrize("queries", [1, 4])
def test_decoding_of_unlike_lengths(batch, dim, page_size, queries):
    """Sequences of which some have less than a tile of keys; behind them there may be anything. One query, and four that see all keys."""
    t = {name: x.detach() for name, x in tensors(batch=batch, sq=queries, sk=512, heads=8 * 4 // queries, heads_kv=8, dim=dim).items()}
    lengths = torch.randint(1, 513, (batch,), device="cuda", dtype=torch.int32)
    lengths[:4] = torch.tensor([512, 1, 58, 64])
    shown = torch.arange(512, device="cuda") < lengths[:, None]
    theirs, more = reference.attention(*t.values(), keep=lambda g: shown[:, None, None, :]), {"seqused_k": lengths}
    for name in "kv":
        t[name] = t[name].masked_fill(~shown[:, :, None, None], float("nan"))
    if page_size:
        more["page_table"] = into_pages(t, page_size)
    for _ in range(3):
        ours = attention(*t.values(), return_lse=True, **more)
        reference.close("o", ours[0], theirs[0])
        reference.close("lse", ours[1], theirs[1])
    if queries == 1 and has_132_hopper_sms():
        words = explain(*t.values(), **more).spelling
        assert words.startswith(f"fwd bf16 d{dim} seqused_k" if batch == 16 else f"fwd bf16 d{dim} gqa seqused_k split"), words


@pytest.mark.parametrize("batch, queries, heads, causal", [(3, 2, 16, True), (3, 2, 16, False), (20, 3, 16, True), (2, 2, 128, True), (3, 1, 16, True)])
def test_flash_mla(batch, queries, heads, causal):
    """Its three ways on Hopper, in a captured graph that is replayed with other lengths."""
    from flashkiln.flash_mla import flash_mla_with_kvcache
    rows, q = (draw(*shape, dtype=torch.bfloat16).detach() for shape in ((batch, 384, 1, 576), (batch, queries, heads, 576)))
    table = torch.randperm(batch * 6, device="cuda").int().view(batch, 6)
    cache = torch.empty(batch * 6, 64, 1, 576, device="cuda", dtype=rows.dtype)
    cache[table.flatten().long()] = rows.view(-1, 64, 1, 576)
    lengths = torch.full((batch,), 384, device="cuda", dtype=torch.int32)
    call = lambda: flash_mla_with_kvcache(q, cache, table, lengths, 512, causal=causal)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours = call()
    lengths.copy_(torch.randint(queries, 385, (batch,)))
    graph.replay()
    used = lengths.view(batch, 1, 1, 1)
    theirs = reference.attention(q, rows, rows[..., :512], keep=(lambda g: g.k <= g.q + used - queries) if causal else (lambda g: g.k < used))
    reference.close("o", ours[0], theirs[0])
    reference.close("lse", ours[1], theirs[1])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_opcheck(layout):
    shape = (1, 64, 2, 64) if layout == "bshd" else (1, 2, 64, 64)
    q, k, v = (draw(*shape, dtype=torch.bfloat16) for _ in range(3))
    words = _problem.terms(causal=True, brought=(("slope", "float"),), dropout=True).words
    state = torch.tensor([5, 6], device="cuda")
    torch.library.opcheck(torch.ops.flashkiln.attention_forward.default,
                          (q, k, v, [draw(2)], state, None, None, None, None, words, layout, 0.125, 0.5, 1, 0, 0, True))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    t, bias = tensors(), draw(1, 4, 193, 257)
    function = lambda q, k, v, bias: 2 * attention(q + 0, k, v, causal=True, bias=bias, deterministic=True)  # noqa: E731
    compiled, results = torch.compile(function, fullgraph=True, mode=mode), []
    for f in (function, compiled, compiled, compiled):
        torch.compiler.cudagraph_mark_step_begin()
        o = f(*t.values(), bias)
        grads = torch.autograd.grad(o.float().square().sum(), [*t.values(), bias])
        results.append([x.clone() for x in (o, *grads)])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


def test_compile_draws_dropout():
    t = tensors()
    compiled = torch.compile(lambda *x: attention(*x, dropout_p=0.3), fullgraph=True)
    first, second = (compiled(*t.values()) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    third = compiled(*t.values())
    torch.manual_seed(0)
    assert torch.equal(third, compiled(*t.values()))


def test_graph_replays_with_other_dropout():
    t = tensors()

    def step():
        o = attention(*t.values(), causal=True, dropout_p=0.3, deterministic=True)
        return o, *torch.autograd.grad(o.float().square().sum(), list(t.values()))

    side = torch.cuda.Stream()  # the first call builds the kernels, which a capture cannot
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    replays = []
    for seed in (1, 2, 1):
        torch.cuda.manual_seed(seed)
        graph.replay()
        replays.append([x.clone() for x in captured])
    assert all(torch.equal(a, b) for a, b in zip(replays[0], replays[2]))
    assert not any(torch.equal(a, b) for a, b in zip(replays[0], replays[1]))
    assert all(torch.isfinite(x).all() for x in replays[0])


def test_autocast():
    t = tensors(torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        ours = attention(*t.values(), causal=True, return_lse=True)
    assert ours[0].dtype == torch.bfloat16
    reference.compare(ours, reference.attention(*t.values(), keep=reference.causal), t, TOLERANCE[torch.bfloat16])


def test_side_streams():
    """The same work on two streams at once, many times over: each finds its own tensors and workspace."""
    t = tensors(batch=1, sq=512, sk=512)
    expected = torch.autograd.grad(attention(*t.values(), causal=True, deterministic=True).sum(), list(t.values()))
    streams, got = [torch.cuda.Stream() for _ in range(2)], []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                o = attention(*t.values(), causal=True, deterministic=True)
                got.append(torch.autograd.grad(o.sum(), list(t.values())))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for grads in got for a, b in zip(grads, expected))


def test_threads():
    from concurrent.futures import ThreadPoolExecutor
    t = tensors()
    expected = attention(*t.values(), causal=True)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: attention(*t.values(), causal=True), range(64)))
    assert all(torch.equal(expected, x) for x in results)
