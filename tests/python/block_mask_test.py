"""Block masks against PyTorch's own evaluation of them: FlexAttention's BlockMask and create_mask, on the CPU."""
import warnings

import numpy as np
import pytest
from evaluation import shown
import flashkiln
from flashkiln import _symbols as fk
from flashkiln import block_mask as bm
from flashkiln.errors import BadArgument

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

B, H, Q, K = 2, 3, 40, 29
document = torch.arange(Q) // 11
lengths = torch.tensor([13, 25])
allowed = torch.rand(B, H, generator=torch.Generator().manual_seed(0)) < 0.7
bias = torch.randn(H, Q, K, generator=torch.Generator().manual_seed(1))
MODS = {
    "noop": flex.noop_mask,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 7),
    "dilated": lambda b, h, q, k: (q - k) % 3 == 1,
    "strided": lambda b, h, q, k: (q - k) // 5 == torch.div(k - 20, -3, rounding_mode="floor"),
    "remainders": lambda b, h, q, k: torch.remainder(q - k, 7) >= torch.fmod(q - k, 4) + 1,
    "head": lambda b, h, q, k: k <= q + h * 4 - b,
    "document": lambda b, h, q, k: (document[q] == document[k]) | (k < lengths[b] // 4),
    "padding": lambda b, h, q, k: (k < lengths[b]) & allowed[b, h],
    "methods": lambda b, h, q, k: (q.abs() - k).clamp(min=-3, max=5).eq(2).logical_or(q.ge(k)),
    "functions": lambda b, h, q, k: torch.where(torch.logical_and(q > 3, k.to(torch.float32) < 9.5), (q - k).abs() < 5, k == q),
    "bias": lambda b, h, q, k: torch.tanh(bias[h, q, k]) + torch.exp(bias[h][0, 1]) * 0.1 > torch.tensor(0.25),
    "unary": lambda b, h, q, k: torch.exp2(q - k + 0.5) + torch.log2(q + 1.5) > torch.sqrt(k * 3.0) * torch.rsqrt(q + 0.7),
    "more unary": lambda b, h, q, k: torch.sigmoid((k - 9) * 0.3) > torch.relu(q - 7.3) - torch.sign(k - q) - torch.square(k * 0.31),
    "methods of floats": lambda b, h, q, k: (q * 1.3).masked_fill(k > q, 3.7).where(q > 4, k.float()).clamp_max(9.1) < (k - 3).bfloat16(),
    "reversed": lambda b, h, q, k: (lengths[0] - q) // (2 ** 2) * torch.sub(k, q, alpha=2) % 5 < 17 % (k + 1) - (1 << (q & 3)),
    "and": flex.and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: document[q] == document[k]),
    "or": flex.or_masks(lambda b, h, q, k: q < k, lambda b, h, q, k: torch.maximum(q, k) < 9, lambda b, h, q, k: ~(k > 2)),
    "sine": lambda b, h, q, k: torch.sin(q * 1.0 + k * k) > b * 0.5,  # in no expression
}
NO_EXPRESSION = ["sine"]


def dense(mask):
    return flex.create_mask(mask, B, H, Q, K, device="cpu").numpy()


def values(mask):
    text, arrays = mask.bind({})
    return shown(text, {name: x.detach().numpy() for name, x in arrays.items()}, (B, H, Q, K))


def converted(mask):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return bm.from_flex(mask, B, H), [str(warning.message) for warning in caught]


@pytest.mark.parametrize("name", [name for name in MODS if name not in NO_EXPRESSION])
def test_mask_mods(name):
    text, arrays = fk.trace_mask(MODS[name])
    assert (values(bm.BlockMask(text, arrays)) == dense(MODS[name])).all(), text


@pytest.mark.parametrize("size", [16, (8, 32)], ids=str)
@pytest.mark.parametrize("name", MODS)
def test_block_masks_of_mask_mods(name, size):
    mask, warned = converted(flex.create_block_mask(MODS[name], B, H, Q, K, device="cpu", BLOCK_SIZE=size))
    assert (values(mask) == dense(MODS[name])).all(), mask
    assert len(warned) == (name in NO_EXPRESSION), warned


def test_pure_expressions_need_no_lists():
    mask, _ = converted(flex.create_block_mask(MODS["window"], None, None, Q, K, device="cpu", BLOCK_SIZE=16))
    assert mask.mask == "q >= k && q - k <= 7" and not mask.arrays


def test_lists_of_one_head_hide_blocks_of_all():
    """As FlexAttention does it: other heads see no block that the first head's lists lack."""
    made = flex.create_block_mask(MODS["head"], None, None, Q, K, device="cpu", BLOCK_SIZE=8)
    q, k = np.ix_(range(Q), range(K))
    first = dense(MODS["head"])[0, 0]
    count = np.add.reduceat(np.add.reduceat(first.astype(int), range(0, Q, 8), 0), range(0, K, 8), 1)[q // 8, k // 8]
    expected = (count == 64) | (count > 0) & dense(MODS["head"])
    assert (expected != dense(MODS["head"])).any()
    for mask in (bm.from_flex(made, B, H), bm.from_flex(made)):
        assert (values(mask) == expected).all()


def lists(seed, rows, columns):
    """Block lists that no mask_mod made: (counts, indices) of partial blocks and of full ones."""
    states = torch.randint(0, 3, (B, 1, rows, columns), generator=torch.Generator().manual_seed(seed))
    order = [torch.argsort((states == state).int(), dim=-1, descending=True, stable=True).int() for state in (1, 2)]
    counts = [(states == state).sum(-1).int() for state in (1, 2)]
    return states, (counts[0], order[0], counts[1], order[1])


@pytest.mark.parametrize("name", [None, "causal", "head", "document", "sine"])
def test_block_masks_of_lists(name):
    """Hidden where a block is not listed, whatever mask_mod says; shown where it is full."""
    states, (counts, order, full_counts, full_order) = lists(3, 5, 4)
    made = flex.BlockMask.from_kv_blocks(counts, order, full_counts, full_order, BLOCK_SIZE=8, seq_lengths=(Q, K),
                                         mask_mod=name and MODS[name])
    mask, _ = converted(made)
    q, k = np.ix_(range(Q), range(K))
    state = states.numpy()[:, :, q // 8, k // 8]
    assert (values(mask) == ((state == 2) | (state == 1) & dense(MODS[name or "noop"]))).all(), mask


def test_lists_without_full_blocks_and_of_few_columns():
    counts, order = torch.tensor([[[1, 2]]], dtype=torch.int32), torch.tensor([[[[3], [0]]]], dtype=torch.int32)
    counts[0, 0, 1] = 1
    made = flex.BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=(20, 8), seq_lengths=(Q, K), mask_mod=MODS["causal"],
                                         compute_q_blocks=False)
    q, k = np.ix_(range(Q), range(K))
    listed = np.where(q < 20, k // 8 == 3, k // 8 == 0)
    assert (values(converted(made)[0]) == (listed & (q >= k))).all()


def test_what_cannot_be_traced_is_packed():
    """Into bits, which differ by batch or head only where the mask does."""
    mask, warned = converted(flex.create_block_mask(MODS["sine"], B, H, Q, K, device="cpu", BLOCK_SIZE=16))
    words = mask.arrays["m2"]
    assert words.shape == (B, Q, 1) and words.dtype == torch.int32
    assert "no expression (sin() of a symbol" in warned[0] and f"{B * Q * 4} bytes" in warned[0]


def test_dense_evaluation_in_chunks(monkeypatch):
    monkeypatch.setattr(bm, "CHUNK", 1000)
    for name in ("sine", "head"):
        with pytest.warns(UserWarning, match="no expression"):
            bit = bm.densely(MODS[name], (B, H, Q, K), "cpu", "a test")
        assert (values(bm.BlockMask(*fk.trace_mask(bit))) == dense(MODS[name])).all()


def test_conversion_happens_once():
    mask = flex.create_block_mask(MODS["document"], B, H, Q, K, device="cpu", BLOCK_SIZE=16)
    assert bm.from_flex(mask, B, H) is bm.from_flex(mask, B, H)


def test_create_block_mask():
    blocks = torch.rand(B, 1, 5, 4, generator=torch.Generator().manual_seed(5)) < 0.5
    q, k = np.ix_(range(Q), range(K))
    expected = np.broadcast_to(blocks.numpy()[:, :, q // 8, k // 8], (B, H, Q, K))
    for given in (blocks, blocks.int()):
        assert (values(bm.create_block_mask(blocks=given, BLOCK_SIZE=8)) == expected).all()
    both = bm.create_block_mask(MODS["head"], blocks=blocks, BLOCK_SIZE=8, Q_LEN=Q, KV_LEN=K)
    assert (values(both) == (expected & dense(MODS["head"]))).all() and both.seq_lengths == (Q, K)
    small = bm.create_block_mask(blocks=blocks[0, 0].numpy(), BLOCK_SIZE=(8, 8))
    assert small.mask == "bit(m0[q >> 3][k >> 3 >> 5], k >> 3)" and small.seq_lengths == (40, 32)
    with pytest.warns(UserWarning, match="no expression"):
        assert (values(bm.create_block_mask(MODS["sine"], B, H, Q, K, "cpu")) == dense(MODS["sine"])).all()


def test_create_block_mask_takes_lists_and_names_what_is_wrong():
    listed = bm.create_block_mask(blocks=[[1, 0], [1, 1]], BLOCK_SIZE=np.int64(8))
    assert listed.seq_lengths == (16, 16)
    assert bm.create_block_mask(bsr=([0, 1, 3], [0, 0, 1]), KV_LEN=16, BLOCK_SIZE=8).seq_lengths == (16, 16)
    for size in (0, -8, 8.0, (8, 8, 8), "8"):
        with pytest.raises(ValueError, match="BLOCK_SIZE is"):
            bm.create_block_mask(blocks=np.eye(2, dtype=bool), BLOCK_SIZE=size)
    with pytest.raises(ValueError, match="indptr has dtype float64"):
        bm.create_block_mask(bsr=(np.array([0.0, 1.0]), np.array([0])), KV_LEN=8, BLOCK_SIZE=8)
    with pytest.raises(ValueError, match="blocks has dtype float64"):
        bm.create_block_mask(blocks=np.eye(2), BLOCK_SIZE=8)


def test_bools_are_no_words_of_blocks():
    q = torch.zeros(1, 16, 1, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match="block_bits has bools"):
        flashkiln.attention(q, q, q, sparsity="block_bits(8)", arrays={"block_bits": torch.eye(2, dtype=torch.bool)[None, None]})


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 70])
def test_tables_are_packed(columns):
    """By both libraries the same: bit j % 32 of word j // 32."""
    blocks = np.random.default_rng(columns).random((2, 3, 5, columns)) < 0.5
    words = bm.packed(blocks)
    assert words.dtype == np.int32 and words.shape == (2, 3, 5, -(-columns // 32))
    j = np.arange(columns)
    assert ((words[..., j // 32] >> (j % 32) & 1 != 0) == blocks).all()
    for given in (torch.from_numpy(blocks), torch.from_numpy(blocks).float() * 0.5):
        assert (bm.packed(given).numpy() == words).all()


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize("indptr, indices, message", [
    ([0, 1, 2, 3, 4], [0, 1, 7, 3], "row 2 has column 7; it must be from 0 to 3"),
    ([0, 1, 2, 3, 4], [0, 1, -1, 3], "row 2 has column -1"),
    ([0, 2, 1, 3, 4], [0, 1, 2, 3], r"indptr\[2\] is 1; it must be at least the one before, 2"),
    ([0, 1, 2, 3, 9], [0, 1, 2, 3], "indptr goes from 0 to 9; it must go from 0 to the number of indices, 4")])
def test_lists_that_are_wrong(library, indptr, indices, message):
    with pytest.raises(BadArgument, match=message):
        bm.create_block_mask(bsr=(library(indptr), library(indices)), BLOCK_SIZE=16, KV_LEN=64)


def test_blocks_as_a_function():
    reach = torch.tensor([0, 1, 2])
    mask = bm.create_block_mask(MODS["causal"], blocks=lambda b, h, i, j: (i - j).abs() <= reach[h], BLOCK_SIZE=(8, 5))
    assert mask.mask == "abs((q >> 3) - k / 5) <= m0[h] && q >= k" and mask.seq_lengths is None
    q, k = np.ix_(range(Q), range(K))
    expected = (np.abs(q // 8 - k // 5)[None] <= reach.numpy()[:, None, None]) & (q >= k)
    assert (values(mask) == expected).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_lists_of_columns(library):
    blocks = np.random.default_rng(3).random((5, 7)) < 0.4
    blocks[2] = False
    indptr, indices = np.concatenate([[0], blocks.sum(1).cumsum()]).astype(np.int32), blocks.nonzero()[1].astype(np.int32)
    if library == "torch":
        indptr, indices = torch.from_numpy(indptr), torch.from_numpy(indices)
    mask = bm.create_block_mask(bsr=(indptr, indices), BLOCK_SIZE=(8, 4), KV_LEN=27)
    q, k = np.ix_(range(40), range(27))
    assert mask.seq_lengths == (40, 27)
    text, arrays = mask.bind({})
    assert (shown(text, {n: np.asarray(x) for n, x in arrays.items()}, (1, 1, 40, 27)) == blocks[q // 8, k // 4]).all()


def test_full_blocks_carry_no_mask():
    """Of lists that say all, the mask function says nothing: only bits are read."""
    states, (counts, order, full_counts, full_order) = lists(3, 5, 4)
    made = flex.BlockMask.from_kv_blocks(counts, order, full_counts, full_order, BLOCK_SIZE=8, seq_lengths=(Q, K))
    mask, _ = converted(made)
    assert mask.mask == "bit(m0[b][q >> 3][k >> 3 >> 5], k >> 3)", mask


def test_errors():
    with pytest.raises(ValueError, match="reach 40 queries and 32 keys: must reach 41 and 32"):
        bm.create_block_mask(blocks=torch.ones(5, 4, dtype=torch.bool), BLOCK_SIZE=8, Q_LEN=41, KV_LEN=32)
    with pytest.raises(ValueError, match="must have one of them"):
        bm.create_block_mask()
    with pytest.raises(ValueError, match="bsr is given without KV_LEN"):
        bm.create_block_mask(bsr=(torch.tensor([0, 1]), torch.tensor([0])))
    with pytest.raises(ValueError, match="bsr is given and blocks, too"):
        bm.create_block_mask(bsr=(torch.tensor([0, 1]), torch.tensor([0])), KV_LEN=8, blocks=torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"shape \(4,\): must be"):
        bm.create_block_mask(blocks=torch.ones(4, dtype=torch.bool), BLOCK_SIZE=8)
    with pytest.raises(fk.TraceError, match="sin"):  # without lengths it cannot be evaluated either
        bm.create_block_mask(MODS["sine"])
    with pytest.raises(ValueError, match="is for 40 queries and 29 keys: there are 41 and 29"):
        bm.create_block_mask(MODS["causal"], Q_LEN=Q, KV_LEN=K).check(41, 29)


def test_reader():
    x, y = torch.arange(Q), torch.arange(Q)
    mine = bm.create_block_mask(lambda b, h, q, k: x[q] == y[k])
    text, arrays = bm.reader("mask", mine, {"m0": y})
    assert text == "m1[q] == m0[k]" and arrays["m1"] is x and arrays["m0"] is y
    text, arrays = bm.reader("mask", mine, {"m0": torch.zeros(1), "m1": torch.zeros(1)})
    assert text == "m2[q] == m3[k]" and list(arrays) == ["m2", "m3"]
    slope = torch.rand(H, requires_grad=True)
    text, arrays = bm.reader("score", lambda s, b, h, q, k: s - slope[h] * (q - k))
    assert text == "s - s0[h] * (q - k)" and arrays["s0"] is slope  # itself, so that it gets its gradient
    made = flex.create_block_mask(MODS["causal"], None, None, Q, K, device="cpu")
    assert bm.reader("mask", made, {}, (B, H, Q, K)) == bm.reader("mask", made) == ("q >= k", {})
    with pytest.raises(ValueError, match="there are 41 and 29"):
        bm.reader("mask", made, {}, (B, H, Q + 1, K))
    assert bm.reader("mask", 3) is None
