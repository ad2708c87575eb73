"""flashkiln.flash_mla on CPU tensors, through the emulator, against float64."""
import pytest

torch = pytest.importorskip("torch")

import reference
from flashkiln import BadArgument, Unsupported, _torch_launch
from flashkiln.flash_mla import flash_mla_with_kvcache, get_mla_metadata

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BLOCK, DIM_V = 16, 64


def cache_of(rows):
    """(cache, block_table) of [batch, seqlen, heads, dim], blocks in random order, with NaN where nothing is."""
    batch, seqlen, heads, dim = rows.shape
    columns = -(-seqlen // BLOCK)
    table = torch.randperm(batch * columns).int().view(batch, columns)
    cache = torch.full((batch * columns, BLOCK, heads, dim), float("nan"), dtype=rows.dtype)
    for b in range(batch):
        for j in range(seqlen):
            cache[table[b, j // BLOCK], j % BLOCK] = rows[b, j]
    return cache, table


@pytest.mark.parametrize("seqlen_q, causal", [(1, True), (1, False), (3, True)])
@pytest.mark.parametrize("heads_kv", [1, 2])
@pytest.mark.parametrize("scale", [None, 0.05])
def test_cache(seqlen_q, causal, heads_kv, scale):
    q, rows = torch.randn(3, seqlen_q, 4, 96).to(torch.bfloat16), torch.randn(3, 40, heads_kv, 96).to(torch.bfloat16)
    cache, table = cache_of(rows)
    filled = torch.tensor([40, 17, seqlen_q], dtype=torch.int32)
    o, lse = flash_mla_with_kvcache(q, cache, table, filled, DIM_V, *get_mla_metadata(filled, 4 * seqlen_q // heads_kv, heads_kv),
                                    softmax_scale=scale, causal=causal)
    used = filled.view(3, 1, 1, 1)
    keep = (lambda g: g.k <= g.q + used - seqlen_q) if causal else (lambda g: g.k < used)
    theirs = reference.attention(q, rows, rows[..., :DIM_V], keep=keep, scale=scale)
    reference.close("o", o, theirs[0])
    reference.close("lse", lse, theirs[1])


@pytest.mark.parametrize("batch", [2, 16])
def test_lengths_and_blocks_are_looked_at(batch, monkeypatch):
    """Whichever way it goes."""
    monkeypatch.setattr(_torch_launch, "has_wgmma", lambda index: True)
    q, rows = torch.randn(batch, 2, 2, 320).half(), torch.randn(batch, 20, 1, 320).half()
    cache, table = cache_of(rows)
    filled = torch.randint(2, 21, (batch,))
    o, lse = flash_mla_with_kvcache(q, cache, table, filled.int(), 256, causal=True)
    for lengths in (filled, filled.tolist()):
        other = flash_mla_with_kvcache(q, cache, table.long(), lengths, 256, causal=True)
        assert torch.equal(other[0], o) and torch.equal(other[1], lse)
    for name, wrong in (("cache_seqlens", (table, filled[:1])), ("cache_seqlens", (table, filled[:, None])), ("block_table", (table[:1], filled)),
                        ("block_table", (table[0], filled))):
        with pytest.raises(BadArgument, match=name):
            flash_mla_with_kvcache(q, cache, *wrong, 256, causal=True)


def test_rows_without_keys():
    q, (cache, table) = torch.randn(2, 1, 4, 96).half(), cache_of(torch.randn(2, 20, 1, 96).half())
    o, lse = flash_mla_with_kvcache(q, cache, table, torch.tensor([20, 0], dtype=torch.int32), DIM_V)
    assert not o[1].any() and (lse[1] == float("inf")).all() and lse[0].isfinite().all()


@pytest.fixture
def spelled(monkeypatch):
    """The spellings of kernels that Hopper is asked for."""
    found, prepare = [], _torch_launch._runtime.prepare
    monkeypatch.setattr(_torch_launch, "has_wgmma", lambda index: True)
    monkeypatch.setattr(_torch_launch._runtime, "prepare", lambda on, spelling, *a, **f: found.append(spelling) or prepare(on, spelling, *a, **f))
    return found


@pytest.mark.parametrize("batch, heads, causal, words", [
    (8, 72, True, 'keep="k <= q / 72 + seqlen_k - 2"'), (8, 72, False, ""), (2, 72, True, ""), (15, 4, True, ""), (16, 4, True, 'keep="k <= q / 4 + seqlen_k - 2"')])
def test_several_queries_of_one_kv_head(batch, heads, causal, words, spelled):
    q, rows = torch.randn(batch, 2, heads, 320).half(), torch.randn(batch, 20, 1, 320).half()
    cache, table = cache_of(rows)
    filled = torch.randint(1, 21, (batch,), dtype=torch.int32)  # of one row the first query has none
    o, lse = flash_mla_with_kvcache(q, cache, table, filled, 256, causal=causal)
    used = filled.view(batch, 1, 1, 1)
    theirs = reference.attention(q, rows, rows[..., :256], keep=(lambda g: g.k <= g.q + used - 2) if causal else (lambda g: g.k < used))
    assert spelled == [" ".join(filter(None, ["fwd fp16 d320 dv256", words, "seqused_k paged(16) latent"]))]
    reference.close("o", o, theirs[0])
    reference.close("lse", lse, theirs[1].masked_fill(theirs[1] == -torch.inf, torch.inf))


def test_wide_heads_share_tiles(spelled):
    """What a DeepSeek model asks for is the kernel that fetches its cache once."""
    q, rows = torch.randn(1, 1, 64, 576).to(torch.bfloat16), torch.randn(1, 20, 1, 576).to(torch.bfloat16)
    cache, table = cache_of(rows)
    o, lse = flash_mla_with_kvcache(q, cache, table, torch.tensor([20], dtype=torch.int32), 512, causal=True)
    theirs = reference.attention(q, rows, rows[..., :512])
    assert spelled == ["fwd bf16 d576 dv512 seqused_k paged(16) latent"]
    reference.close("o", o, theirs[0])
    reference.close("lse", lse, theirs[1])


@pytest.mark.parametrize("wrong, error", [({"is_fp8_kvcache": True}, Unsupported), ({"indices": torch.zeros(1)}, Unsupported), ({"head_dim_v": 97}, BadArgument)])
def test_refusals(wrong, error):
    q, (cache, table) = torch.randn(2, 1, 4, 96), cache_of(torch.randn(2, 20, 1, 96))
    arguments = {"head_dim_v": DIM_V, **wrong}
    with pytest.raises(error):
        flash_mla_with_kvcache(q, cache, table, torch.tensor([20, 1], dtype=torch.int32), **arguments)
