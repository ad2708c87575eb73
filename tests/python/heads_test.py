"""One query of heads that share keys: to Hopper's kernels these are queries of one head where that is faster. On CPU tensors, through the
emulator, against float64."""
import pytest

torch = pytest.importorskip("torch")

import reference
from flashkiln import _heads, _problem, _torch_launch, attention, explain
from flashkiln.errors import NoJit

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(_torch_launch, "has_wgmma", lambda index: True)


def tensors(sk, heads, heads_kv, dim=320, dim_v=64):
    shapes = {"q": (2, 1, heads, dim), "k": (2, sk, heads_kv, dim), "v": (2, sk, heads_kv, dim_v)}
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


@pytest.fixture
def spelled(monkeypatch):
    """The spellings of kernels that were asked for."""
    found, prepare = [], _torch_launch._runtime.prepare
    monkeypatch.setattr(_torch_launch._runtime, "prepare", lambda on, spelling, *a, **f: found.append(spelling) or prepare(on, spelling, *a, **f))
    return found


@pytest.mark.parametrize("layout, heads, heads_kv", [("bshd", 128, 2), ("bhsd", 128, 2), ("bshd", 6, 2), ("bhsd", 3, 3)])
def test_heads_as_queries(layout, heads, heads_kv, spelled):
    t = tensors(600 if heads < 128 else 40, heads, heads_kv)  # where splits would share them, too
    expect = reference.attention(*t.values(), keep=reference.causal)
    given = [x.transpose(1, 2).contiguous() if layout == "bhsd" else x for x in t.values()]
    o, lse = attention(*given, causal=True, return_lse=True, layout=layout)
    assert spelled == ["fwd bf16 d320 dv64"] and o.shape == ((2, 1, heads, 64) if layout == "bshd" else (2, heads, 1, 64))
    reference.close("o", o if layout == "bshd" else o.transpose(1, 2), expect[0])
    reference.close("lse", lse, expect[1])


def test_a_pack_of_splits(monkeypatch):
    """Who may not compile, and has shipped these alone."""
    prepare, spelled = _torch_launch._runtime.prepare, []

    def sealed(on, spelling, *a, **f):
        spelled.append(spelling)
        if not spelling.endswith(" split"):
            raise NoJit(spelling)
        return prepare(on, spelling, *a, **f)
    monkeypatch.setattr(_torch_launch._runtime, "prepare", sealed)
    t = {name: torch.randn(24, n, h, 64).to(torch.bfloat16) for name, n, h in (("q", 1, 8), ("k", 600, 4), ("v", 600, 4))}
    reference.close("o", attention(*t.values()), reference.attention(*t.values())[0])
    assert spelled == ["fwd bf16 d64", "fwd bf16 d64 gqa split"]
    with pytest.raises(NoJit, match="fwd bf16 d64 gqa"):
        attention(*t.values(), num_splits=1)


def test_values_that_are_keys(spelled):
    t = tensors(40, 64, 1, dim_v=256)
    for values, word in ((t["k"][..., :256], " latent"), (t["k"][..., :256].clone(), ""), (t["k"][..., 8:264], "")):
        o, lse = attention(t["q"], t["k"], values, return_lse=True)
        theirs = reference.attention(t["q"], t["k"], values)
        assert spelled.pop() == "fwd bf16 d320 dv256" + word
        reference.close("o", o, theirs[0])
        reference.close("lse", lse, theirs[1])


def test_heads_as_queries_of_pages():
    t = tensors(48, 64, 1)
    used, table = torch.tensor([48, 19], dtype=torch.int32), torch.randperm(6).int().view(2, 3)
    pages = {name: torch.empty(6, 16, 1, t[name].shape[3], dtype=torch.bfloat16) for name in "kv"}
    for name in "kv":
        pages[name][table.flatten().long()] = t[name].view(6, 16, 1, -1)
    o, lse = attention(t["q"], pages["k"], pages["v"], causal=True, page_table=table, seqused_k=used, return_lse=True)
    theirs = reference.attention(*t.values(), keep=lambda g: g.k < used.view(2, 1, 1, 1))
    reference.close("o", o, theirs[0])
    reference.close("lse", lse, theirs[1])


@pytest.mark.parametrize("words, sizes, turns", [
    ("causal", dict(), True), ("", dict(), True), ("causal seqused_k paged", dict(page_size=16), True),
    ("paged", dict(page_size=1), False), ("causal top-left", dict(), False), ("window(9,0)", dict(), False), ("softcap(9.0)", dict(), False),
    ("", dict(seqlen_q=2), False), ("", dict(dim=64), True), ("", dict(dim=256, dim_v=256), True), ("seqused_k", dict(dim=256, dim_v=256), False),
    ("", dict(dim=128, dim_v=128), False), ("", dict(heads_q=100), True), ("", dict(heads_kv=3), False)])
def test_which_heads_become_queries(words, sizes, turns):
    shape = _problem.Shapes(3, 128, 1, 1, 500, 576, 512)._replace(**sizes)
    found = _heads.as_queries(_problem.Terms.of(words), "bf16", shape, "h200")
    assert bool(found) == turns
    if turns:
        assert found[1].seqlen_q == shape.heads_q and found[1].heads_q == 1 and "causal" not in found[0].words
    assert _heads.as_queries(_problem.Terms.of(words), "bf16", shape, "a100") is None
    assert _heads.as_queries(_problem.Terms.of(words), "fp32", shape, "h200") is None


# A round of tiles for the 132 SMs of an H200, and more.
@pytest.mark.parametrize("dim, batch, heads_kv, turns", [
    (64, 16, 8, True), (128, 16, 8, True), (128, 12, 8, True), (128, 11, 8, False), (128, 17, 8, False), (128, 33, 8, True), (64, 33, 8, False),
    (128, 40, 8, False), (192, 64, 8, True), (56, 16, 8, False), (72, 16, 8, False), (200, 16, 8, False), (208, 1, 1, True)])
def test_rounds_of_tiles(dim, batch, heads_kv, turns):
    shape = _problem.Shapes(batch, 4 * heads_kv, heads_kv, 1, 2000, dim, dim)
    assert bool(_heads.as_queries(_problem.Terms.of("causal"), "fp16", shape, "h200")) == turns


def test_heads_of_a_full_round(spelled):
    t = {name: torch.randn(24, n, h, 64).to(torch.bfloat16) for name, n, h in (("q", 1, 12), ("k", 70, 4), ("v", 70, 4))}
    expect = reference.attention(*t.values())
    o, lse = attention(*t.values(), causal=True, return_lse=True)
    assert spelled == ["fwd bf16 d64"]
    reference.close("o", o, expect[0])
    reference.close("lse", lse, expect[1])


def test_strides_of_heads():
    strides = {"q": (7, 5, 3), "k": (1, 2, 3), "v": (4, 5, 6), "o": (11, 13, 17)}
    assert _heads.turned(strides, 128) == {**strides, "q": (7, 3, 384), "o": (11, 17, 2176)}


def test_explain_says_what_runs():
    """As it is asked for, of which a kernel of `split` would be another."""
    t = tensors(600, 32, 2, dim=576, dim_v=512)
    told = explain(*t.values(), gpu="h200", causal=True)
    assert told.spelling == "fwd bf16 d576 dv512" and told.shape == (2, 2, 2, 16, 600) and "queries of one head" in str(told)
    assert explain(t["q"], t["k"], t["k"][..., :512], gpu="h200").spelling == "fwd bf16 d576 dv512 latent"
    assert explain(*t.values(), gpu="a100").spelling == "fwd bf16 d576 dv512 gqa split"


def test_explain_of_gradients_to_come():
    """For which nothing is shared, nor given as something else."""
    t = tensors(600, 32, 2)
    t["k"].requires_grad_()
    assert explain(*t.values(), gpu="h200").spelling == "fwd bf16 d320 dv64 gqa"
    with torch.no_grad():
        assert explain(*t.values(), gpu="h200").spelling == "fwd bf16 d320 dv64"


@pytest.mark.parametrize("dim, dim_v, gap", [(300, 64, 0), (576, 500, 0), (576, 512, 4)])
def test_values_that_are_copied_are_no_keys(dim, dim_v, gap, spelled):
    q, k = torch.randn(1, 1, 2, dim).to(torch.bfloat16), torch.randn(1, 20 + gap, 1, dim + gap).to(torch.bfloat16)[..., :dim]
    told = explain(q, k, k[..., :dim_v], gpu="h200").spelling
    attention(q, k, k[..., :dim_v])
    assert spelled == [told] and "latent" not in told
