"""flashkiln.flash_attn on CPU tensors, through the emulator, against float64: each function, its arguments, gradients."""
import importlib.metadata
import importlib.util
import inspect
import sys

import pytest

torch = pytest.importorskip("torch")

import reference
from flashkiln import FlashKilnError, Unsupported, flash_attn
from flashkiln.flash_attn import _install, bert_padding
from flashkiln.flash_attn.layers.rotary import apply_rotary_emb

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

HEADS, HEADS_KV, DIM = 4, 2, 16
SLOPES = torch.tensor([[0.5, 0.25, 0.125, 0.0625], [0.1, 0.2, 0.3, 0.4]])


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape).to(dtype)


def leaves(batch=2, sq=20, sk=28, heads_kv=HEADS_KV, dim=DIM):
    q, k, v = normal(batch, sq, HEADS, dim), normal(batch, sk, heads_kv, dim), normal(batch, sk, heads_kv, dim)
    return [x.requires_grad_() for x in (q, k, v)]


def terms(causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, first=None):
    """What FlashAttention's arguments mean, for reference.attention(). first: of cache_leftpad."""
    left, right = window_size
    right = 0 if causal else right

    def keep(g):
        distance = g.q + g.diag - g.k
        kept = (distance <= left if left >= 0 else distance == distance) & (distance >= -right if right >= 0 else True)
        return kept if first is None else kept & (g.k >= first.view(-1, 1, 1, 1))

    def score(s, g):
        s = softcap * torch.tanh(s / softcap) if softcap > 0 else s
        if alibi_slopes is None:
            return s
        slopes = alibi_slopes.expand(len(s), -1).double()[:, :, None, None]
        return s - slopes * (g.q + g.diag - g.k).abs()
    return {"keep": keep, "score": score}


def expected(q, k, v, **arguments):
    """(out, lse) by the definition; lse of a row without keys is +inf here."""
    out, lse = reference.attention(q, k, v, **terms(**arguments))
    return out, torch.where(lse == float("-inf"), float("inf"), lse)


def expected_each(q, k, v, begin_q, begin_k, **arguments):
    """(out [total, ...], lse [heads, total]) of sequences one after another."""
    slopes = arguments.pop("alibi_slopes", None)
    parts = [expected(q[None, q0:q1], k[None, k0:k1], v[None, k0:k1], **arguments,
                      alibi_slopes=slopes if slopes is None or slopes.dim() == 1 else slopes[b:b + 1])
             for b, (q0, q1, k0, k1) in enumerate(zip(begin_q, begin_q[1:], begin_k, begin_k[1:]))]
    return torch.cat([o[0] for o, _ in parts]), torch.cat([lse[0] for _, lse in parts], 1)


# ---- one length ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arguments", [
    {"window_size": (5, 2)}, {"window_size": (-1, 3)}, {"causal": True, "window_size": (6, 3)},
    {"softcap": 2.0, "alibi_slopes": SLOPES[0]}], ids=str)
def test_func(arguments):
    q, k, v = leaves()
    out, lse, probabilities = flash_attn.flash_attn_func(q, k, v, **arguments, return_attn_probs=True)
    assert probabilities.shape == (0,)
    reference.compare((out, lse), expected(q, k, v, **arguments), {"q": q, "k": k, "v": v})
    with torch.no_grad():
        assert torch.equal(out, flash_attn.flash_attn_func(q, k, v, **arguments))


def test_alibi_of_each_batch_entry_with_scale():
    q, k, v = leaves()
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, softmax_scale=0.3, causal=True, alibi_slopes=SLOPES,
                                             return_attn_probs=True, deterministic=True)
    theirs = reference.attention(q, k, v, scale=0.3, **terms(causal=True, alibi_slopes=SLOPES))
    reference.compare((out, lse), theirs, {"q": q, "k": k, "v": v})


def test_rows_without_keys():
    q, k, v = leaves(sq=30, sk=10)
    out, lse, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert (lse[..., :20] == float("inf")).all() and not out[:, :20].any()
    reference.compare((out, lse), expected(q, k, v, causal=True), {"q": q, "k": k, "v": v})


def test_odd_head_dim_and_strides():
    q, k, v = (normal(2, HEADS, 36, 26)[:, :, 1::2, 3:25:2].transpose(1, 2).requires_grad_() for _ in range(3))
    assert q.shape == (2, 18, HEADS, 11) and q.stride(-1) == 2
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
    theirs, _ = expected(q, k, v, causal=True)
    reference.close("out", out, theirs)
    for do in (torch.ones(()).half().expand(out.shape), normal(2, HEADS, 11, 18).permute(0, 3, 1, 2)):
        ours = torch.autograd.grad(out, (q, k, v), do, retain_graph=True)
        for x, y in zip(ours, torch.autograd.grad(theirs, (q, k, v), do.double(), retain_graph=True)):
            reference.close("gradient", x, y)


def test_packed_tensors():
    qkv = normal(2, 24, 3, HEADS, DIM).requires_grad_()
    ours = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True, return_attn_probs=True)[:2]
    reference.compare(ours, expected(*qkv.unbind(2), causal=True), {"qkv": qkv})
    q, kv = normal(2, 20, HEADS, DIM).requires_grad_(), normal(2, 28, 2, HEADS_KV, DIM).requires_grad_()
    ours = flash_attn.flash_attn_kvpacked_func(q, kv, causal=True, return_attn_probs=True)[:2]
    reference.compare(ours, expected(q, *kv.unbind(2), causal=True), {"q": q, "kv": kv})
    with pytest.raises(ValueError, match=r"kv has shape \(2, 24, 3, 4, 16\); it must be \[batch, seqlen, 2, heads, dim\]"):
        flash_attn.flash_attn_kvpacked_func(q, qkv)


# ---- dropout ---------------------------------------------------------------------------------------------------------

def test_dropout_probabilities():
    """S_dmask has the softmax and the mask that made the output; asking for it draws nothing more."""
    q, k, v = leaves()
    arguments = {"causal": True, "softcap": 2.0, "alibi_slopes": SLOPES}
    torch.manual_seed(5)
    out, lse, probabilities = flash_attn.flash_attn_func(q, k, v, 0.25, return_attn_probs=True, **arguments)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(out, flash_attn.flash_attn_func(q, k, v, 0.25, **arguments)) and after == torch.rand(1)
    assert not torch.equal(out, flash_attn.flash_attn_func(q, k, v, 0.25, **arguments))
    kept = probabilities >= 0
    assert 0.05 < 1 - kept.double().mean() < 0.25  # those that causal hides count as kept
    theirs = reference.attention(q, k, v, **terms(**arguments), dropped=kept, p=0.25)
    reference.compare((out, lse), theirs, {"q": q, "k": k, "v": v})
    eye = torch.eye(28).half()[None, :, None].expand(2, 28, HEADS, 28)  # as values: the softmax itself
    weights, _ = reference.attention(q, k.repeat_interleave(2, 2), eye, **terms(**arguments))
    reference.close("probabilities", probabilities.abs(), weights.transpose(1, 2))


def test_varlen_dropout_probabilities():
    q, k, v = normal(30, HEADS, DIM), normal(5, 8, HEADS, DIM), normal(5, 8, HEADS, DIM)
    begin_q, begin_k = torch.tensor([0, 12, 30], dtype=torch.int32), torch.tensor([0, 13, 31], dtype=torch.int32)
    table = torch.tensor([[4, 1, 0], [2, 0, 3]], dtype=torch.int32)
    out, _, probabilities = flash_attn.flash_attn_varlen_func(q, k, v, begin_q, begin_k, 18, 18, 0.25, causal=True,
                                                              return_attn_probs=True, block_table=table)
    assert probabilities.shape == (2, HEADS, 18, 18)
    for b, (q0, q1, sk) in enumerate([(0, 12, 13), (12, 30, 18)]):
        k_b, v_b = (x[table[b].long()].flatten(0, 1)[None, :sk] for x in (k, v))
        weights = probabilities[b:b + 1, :, :q1 - q0, :sk]
        theirs, _ = reference.attention(q[None, q0:q1], k_b, v_b, **terms(causal=True), dropped=weights >= 0, p=0.25)
        reference.close("out", out[None, q0:q1], theirs)


# ---- different lengths -----------------------------------------------------------------------------------------------

BEGIN_Q, BEGIN_K = [0, 9, 9, 30], [0, 20, 24, 40]  # the second has no queries


def varlen(**arguments):
    begin = [torch.tensor(x, dtype=torch.int32) for x in (BEGIN_Q, BEGIN_K)]
    return {"cu_seqlens_q": begin[0], "cu_seqlens_k": begin[1], "max_seqlen_q": 21, "max_seqlen_k": 20, **arguments}


def test_varlen():
    q, k, v = (x[0].detach().requires_grad_() for x in leaves(1, 30, 40))
    arguments = {"causal": True, "window_size": (7, 0), "alibi_slopes": torch.rand(3, HEADS)}
    ours = flash_attn.flash_attn_varlen_func(q, k, v, **varlen(return_attn_probs=True), **arguments)[:2]
    reference.compare(ours, expected_each(q, k, v, BEGIN_Q, BEGIN_K, **arguments), {"q": q, "k": k, "v": v})
    longest = torch.tensor(21)  # as some programs have it
    with torch.no_grad():
        again = flash_attn.flash_attn_varlen_func(q, k, v, **varlen(max_seqlen_q=longest), **arguments)
    assert torch.equal(again, ours[0])


def test_varlen_packed_tensors():
    q, kv = normal(30, HEADS, DIM).requires_grad_(), normal(40, 2, HEADS_KV, DIM).requires_grad_()
    ours = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, **varlen(return_attn_probs=True), causal=True)[:2]
    reference.compare(ours, expected_each(q, *kv.unbind(1), BEGIN_Q, BEGIN_K, causal=True), {"q": q, "kv": kv})
    qkv = normal(40, 3, HEADS, DIM).requires_grad_()
    ours = flash_attn.flash_attn_varlen_qkvpacked_func(qkv, torch.tensor(BEGIN_K), 20, causal=True,
                                                       return_attn_probs=True)[:2]
    reference.compare(ours, expected_each(*qkv.unbind(1), BEGIN_K, BEGIN_K, causal=True), {"qkv": qkv})


def test_varlen_block_table():
    q = normal(30, HEADS, DIM).requires_grad_()
    blocks = [normal(9, 6, HEADS_KV, DIM) for _ in range(2)]
    table = torch.tensor([[8, 0, 3, 5], [1, -1, -1, -1], [2, 8, 4, -1]], dtype=torch.int32)  # -1 is never read
    ours = flash_attn.flash_attn_varlen_func(q, *blocks, **varlen(block_table=table, return_attn_probs=True), causal=True)
    lengths = [20, 4, 16]
    k, v = (torch.cat([x[row[row >= 0].long()].flatten(0, 1)[:n] for row, n in zip(table, lengths)]) for x in blocks)
    for what, x, y in zip(("out", "lse"), ours, expected_each(q, k, v, BEGIN_Q, BEGIN_K, causal=True)):
        reference.close(what, x, y)
    with pytest.raises(Unsupported, match="block_table: keys in blocks have no gradients"):
        ours[0].sum().backward()


# ---- cache -----------------------------------------------------------------------------------------------------------

CAPACITY = 24


def cache(entries=3, capacity=CAPACITY):
    return normal(entries, capacity, HEADS_KV, DIM), normal(entries, capacity, HEADS_KV, DIM)


def check_cache(ours, q, caches, lengths, first=None, **arguments):
    """caches: k and v of each sequence, [batch, capacity, ...], as they must be after the call."""
    for b, n in enumerate(lengths):
        k, v = (x[b:b + 1, :n] for x in caches)
        first_b = None if first is None else first[b]
        theirs = expected(q[b:b + 1], k, v, first=first_b, **arguments)
        reference.close("out", ours[0][b:b + 1], theirs[0])
        reference.close("lse", ours[1][b:b + 1], theirs[1])


def written(x, new, lengths):
    """A copy of a cache with rows appended."""
    x = x.clone()
    for b, n in enumerate(lengths):
        x[b, n:n + new.shape[1]] = new[b]
    return x


def test_cache_without_new_keys():
    q, (k, v) = normal(2, 5, HEADS, DIM), cache()
    for lengths, filled in ((9, [9, 9]), (torch.tensor([24, 7], dtype=torch.int32), [24, 7]), (None, [24, 24])):
        ours = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True, return_softmax_lse=True)
        check_cache(ours, q, (k, v), filled, causal=True)


@pytest.mark.parametrize("arguments", [
    {"causal": True, "num_splits": 3}, {"window_size": (6, 1), "softcap": 2.0, "alibi_slopes": SLOPES[0]}], ids=str)
def test_cache_append(arguments):
    q, (k, v), lengths = normal(3, 4, HEADS, DIM), cache(), torch.tensor([0, 13, 20], dtype=torch.int32)
    new = [normal(3, 4, HEADS_KV, DIM) for _ in range(2)]
    caches = [written(x, y, lengths) for x, y in zip((k, v), new)]
    ours = flash_attn.flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=lengths, return_softmax_lse=True, **arguments)
    assert torch.equal(k, caches[0]) and torch.equal(v, caches[1]) and lengths.tolist() == [0, 13, 20]
    arguments.pop("num_splits", None)
    check_cache(ours, q, caches, lengths + 4, **arguments)


def test_cache_entries_and_left_padding():
    q, (k, v), lengths = normal(2, 1, HEADS, DIM), cache(), torch.tensor([12, 20], dtype=torch.int32)
    index, first = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([5, 0], dtype=torch.int32)
    new = [normal(2, 1, HEADS_KV, DIM) for _ in range(2)]
    caches = [written(x[[2, 0]], y, lengths) for x, y in zip((k, v), new)]
    ours = flash_attn.flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=lengths, cache_batch_idx=index,
                                              cache_leftpad=first, causal=True, return_softmax_lse=True)
    assert torch.equal(k[[2, 0]], caches[0]) and torch.equal(v[[2, 0]], caches[1])
    check_cache(ours, q, caches, lengths + 1, first=first, causal=True)


def test_cache_blocks():
    q, lengths = normal(2, 3, HEADS, DIM), torch.tensor([4, 15], dtype=torch.int32)
    k, v = cache(8, 6)
    table = torch.tensor([[5, 2, 7], [1, 6, 0]], dtype=torch.int32)
    new = [normal(2, 3, HEADS_KV, DIM) for _ in range(2)]
    caches = [written(x[table.long()].flatten(1, 2), y, lengths) for x, y in zip((k, v), new)]
    others = k[[3, 4]].clone()
    ours = flash_attn.flash_attn_with_kvcache(q, k, v, *new, cache_seqlens=lengths, block_table=table, causal=True,
                                              return_softmax_lse=True)
    assert torch.equal(k[table.long()].flatten(1, 2), caches[0]) and torch.equal(others, k[[3, 4]])
    check_cache(ours, q, caches, lengths + 3, causal=True)


def turned(x, angles, interleaved):
    """x [seqlen, heads, dim] by complex multiplication; angles [seqlen, n]: of the first 2n dims."""
    n = angles.shape[1]
    pairs = (x[..., :2 * n].double().unflatten(-1, (n, 2)) if interleaved
             else x[..., :2 * n].double().unflatten(-1, (2, n)).transpose(-1, -2))
    pairs = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones(()).double(), angles.double())[:, None]
    pairs = torch.view_as_real(pairs)
    return torch.cat(((pairs if interleaved else pairs.transpose(-1, -2)).flatten(-2), x[..., 2 * n:].double()), -1)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_cache_rotary(interleaved, causal):
    q, (k, v), lengths = normal(3, 4, HEADS, DIM), cache(), torch.tensor([0, 13, 20], dtype=torch.int32)
    new = [normal(3, 4, HEADS_KV, DIM) for _ in range(2)]
    angles = torch.outer(torch.arange(CAPACITY + 0.0), torch.tensor([1.0, 0.3, 0.1, 0.01]))
    ours = flash_attn.flash_attn_with_kvcache(
        q, k, v, *new, angles.cos(), angles.sin(), lengths, causal=causal, rotary_interleaved=interleaved,
        return_softmax_lse=True)
    for b, n in enumerate(lengths.tolist()):
        reference.close("key", k[b, n:n + 4], turned(new[0][b], angles[n:n + 4], interleaved))
    q = torch.stack([turned(q[b], angles[n:n + 4] if causal else angles[n:n + 1].expand(4, -1), interleaved)
                     for b, n in enumerate(lengths.tolist())])
    check_cache(ours, q.half(), (k, v), lengths + 4, causal=causal)


@pytest.mark.parametrize("arguments, message", [
    ({"k": normal(1, 1, HEADS_KV, DIM)}, "v is missing; k needs it"),
    ({"k": normal(1, 1, HEADS_KV, DIM), "v": normal(1, 1, HEADS_KV, DIM)}, "cache_seqlens is missing"),
    ({"rotary_cos": torch.ones(24, 4), "rotary_sin": torch.ones(24, 4)}, "k and v are missing"),
    ({"block_table": torch.zeros(1, 1), "cache_batch_idx": torch.zeros(1)}, "are both given")])
def test_cache_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        flash_attn.flash_attn_with_kvcache(normal(1, 1, HEADS, DIM), *cache(1), **arguments)


# ---- around it -------------------------------------------------------------------------------------------------------

COMMON = ("dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
          "deterministic=False, return_attn_probs=False")
LENGTHS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"


@pytest.mark.parametrize("name, signature", {
    "func": f"q, k, v, {COMMON}", "kvpacked_func": f"q, kv, {COMMON}", "qkvpacked_func": f"qkv, {COMMON}",
    "varlen_func": f"q, k, v, {LENGTHS}, {COMMON}, block_table=None",
    "varlen_kvpacked_func": f"q, kv, {LENGTHS}, {COMMON}",
    "varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen, {COMMON}",
    "with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
                    "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
                    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
                    "return_softmax_lse=False"}.items())
def test_signatures(name, signature):
    assert str(inspect.signature(getattr(flash_attn, "flash_attn_" + name))) == f"({signature})"


def test_bert_padding():
    x = torch.randn(2, 5, 3, dtype=torch.double, requires_grad=True)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]])
    unused = torch.tensor([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])
    rows, indices, begin, longest, used = bert_padding.unpad_input(x, mask, unused)
    assert torch.equal(rows, x[(mask + unused).bool()]) and longest == 4 and isinstance(longest, int)
    assert begin.tolist() == [0, 4, 8] and begin.dtype == torch.int32 and used.tolist() == [3, 4]
    back = bert_padding.pad_input(rows, indices.int(), 2, 5)
    assert torch.equal(back, x * (mask + unused)[..., None])
    assert torch.autograd.gradcheck(lambda x: bert_padding.pad_input(bert_padding.unpad_input(x, mask, unused)[0] ** 2,
                                                                     indices, 2, 5), x)
    lengths = torch.tensor([[2, 1, 0, 0, 0], [4, 0, 0, 0, 0]])
    rows, _, begin, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert begin.tolist() == [0, 2, 3, 7] and longest == 4 and torch.equal(rows, torch.cat([x[0, :3], x[1, :4]]))


@pytest.mark.parametrize("interleaved", [True, False])
def test_apply_rotary_emb(interleaved):
    x, angles = torch.randn(2, 6, 3, 16), torch.outer(torch.arange(12.0), torch.tensor([1.0, 0.3, 0.1]))
    offset = torch.tensor([4, 1])
    theirs = torch.stack([turned(x[b], angles[n:n + 6], interleaved) for b, n in enumerate(offset.tolist())])
    cos, sin = angles.cos(), angles.sin()
    reference.close("turned", apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offset), theirs)
    begin = torch.tensor([0, 6, 12], dtype=torch.int32)
    packed = apply_rotary_emb(x.flatten(0, 1), cos, sin, interleaved, seqlen_offsets=offset, cu_seqlens=begin, max_seqlen=6)
    reference.close("packed", packed, theirs.flatten(0, 1))
    y = x.clone()
    assert apply_rotary_emb(y, cos, sin, interleaved, inplace=True, seqlen_offsets=offset) is y
    reference.close("in place", y, theirs)
    reference.close("from 0", apply_rotary_emb(x, cos, sin, interleaved)[1], turned(x[1], angles[:6], interleaved))


@pytest.fixture
def clean():
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "flash_attn"}
    yield
    _install.uninstall_as_flash_attn()
    for name in list(sys.modules):
        if name.split(".")[0] == "flash_attn":
            del sys.modules[name]
    sys.modules.update(before)


def test_install(clean):
    finders = list(sys.meta_path)
    _install.install_as_flash_attn()
    _install.install_as_flash_attn()
    import flash_attn as installed
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input  # noqa: F401
    from flash_attn.flash_attn_interface import flash_attn_varlen_func
    from flash_attn.layers.rotary import apply_rotary_emb as rotary
    assert flash_attn_func is flash_attn.flash_attn_func and flash_attn_varlen_func is flash_attn.flash_attn_varlen_func
    assert rotary is apply_rotary_emb
    for name in ("flash_attn", "flash-attn", "Flash.Attn"):
        assert importlib.metadata.version(name) == installed.__version__ == "2.8.3"
    assert importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.bert_padding")
    assert importlib.util.find_spec("flash_attn.cute") is None
    if hasattr(importlib.metadata, "packages_distributions"):
        assert importlib.metadata.packages_distributions()["flash_attn"] == ["flash-attn"]
    _install.uninstall_as_flash_attn()
    _install.uninstall_as_flash_attn()
    assert "flash_attn" not in sys.modules and "flash_attn.bert_padding" not in sys.modules
    assert sys.meta_path == finders


def test_install_where_there_is_another(clean):
    other = sys.modules["flash_attn"] = type(sys)("flash_attn")
    with pytest.raises(FlashKilnError, match="flash_attn is imported already"):
        _install.install_as_flash_attn()
    assert sys.modules["flash_attn"] is other
    _install.install_as_flash_attn(force=True)
    assert sys.modules["flash_attn"] is flash_attn
    _install.uninstall_as_flash_attn()
    assert sys.modules["flash_attn"] is other
