"""What attention() refuses, and by which words: the same of NumPy's arrays and of PyTorch's tensors. Needs NumPy alone."""
import math
import re

import numpy as np
import pytest

import flashkiln
from flashkiln import BadArgument, _numpy

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.fixture(params=["numpy", "torch"])
def front(request):
    """(attention, what makes its arrays)"""
    if request.param == "numpy":
        return _numpy.attention, lambda x: x
    torch = pytest.importorskip("torch")
    return flashkiln.attention, torch.from_numpy


def call(front, dim=16, dim_v=None, keys=8, heads_kv=2, packed=False, **given):
    function, made = front
    if packed:
        given = {"cu_seqlens_q": np.array([0, 8]), "cu_seqlens_k": np.array([0, keys]), **given}
    given = {name: made(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    q, k, v = (zeros(1, *shape) for shape in ((8, 2, dim), (keys, heads_kv, dim), (keys, heads_kv, dim_v or dim)))
    return function(*(made(x[0] if packed else x) for x in (q, k, v)), **given)


NO_MASK = r"it must be an expression, a mask or a pattern"
NO_SCORE = r"it must be an expression or a score term"
NO_PATTERN = r"it must be a pattern, such as \"butterfly\(128\)\""


@pytest.mark.parametrize("given, text", [
    (dict(mask="dropout"), f"mask is 'dropout'; {NO_MASK}"),
    (dict(mask="gqa"), f"mask is 'gqa'; {NO_MASK}"),
    (dict(mask="softcap(3)"), rf"mask is 'softcap\(3\)'; {NO_MASK}"),
    (dict(mask=["k <= q", "fp16"]), f"mask is 'fp16'; {NO_MASK}"),
    (dict(mask="caussal"), f"mask is 'caussal'; {NO_MASK}.*unknown word \"caussal\""),
    (dict(mask="window(2)"), rf"mask is 'window\(2\)'; {NO_MASK}.*window"),
    (dict(score="window(2,0)"), rf"score is 'window\(2,0\)'; {NO_SCORE}"),
    (dict(score=["s", "butterfly(8)"]), rf"score is 'butterfly\(8\)'; {NO_SCORE}"),
    (dict(score="split"), f"score is 'split'; {NO_SCORE}"),
    (dict(sparsity="softcap(3)"), rf"sparsity is 'softcap\(3\)'; {NO_PATTERN}"),
    (dict(sparsity=3), f"sparsity is 3; {NO_PATTERN}"),
    (dict(sparsity="causal"), f"sparsity is 'causal'; {NO_PATTERN}"),
    (dict(sparsity=["butterfly(8)", "packed"]), f"sparsity is 'packed'; {NO_PATTERN}"),
    (dict(sparsity="k <= q"), f"sparsity is 'k <= q'; {NO_PATTERN}"),
    (dict(dropout_p=-0.1, generator=1), r"dropout_p is -0.1; it must be in \[0, 1\)"),
    (dict(dropout_p=1.0), r"dropout_p is 1.0; it must be in \[0, 1\)"),
    (dict(dropout_p=math.nan), r"dropout_p is nan; it must be in \[0, 1\)"),
    (dict(bias=np.ones((8, 8), bool)), "bias is of bool: a mask is mask="),
    (dict(dim=577, dim_v=16), "head_dim is 577; it must be from 1 to 576"),
    (dict(dim_v=513), "head_dim of v is 513; it must be from 1 to 512"),
    (dict(dim=0, dim_v=16, softmax_scale=1.0), "head_dim is 0; it must be from 1 to 576"),
    (dict(softmax_scale=1e-50), "softmax_scale is 1e-50; it must be from 1.175e-38 to 1.701e"),
    (dict(softmax_scale=1e39), r"softmax_scale is 1e\+39; it must be from"),
    (dict(softmax_scale=math.nan), "softmax_scale is nan; it must be from"),
    (dict(mask="bits", arrays={"bits": np.ones((1, 1, 8, 8), bool)}), "array bits has bools; it must have ints, of 32 keys each"),
    (dict(mask="bits", arrays={"bits": np.ones((1, 1, 8, 1), np.int32)}, keys=40), "'bits' has 1 words of 32 keys; there are 40 keys"),
    (dict(mask="document", arrays={"doc_q": np.full((1, 8), 2**40), "doc_k": np.zeros((1, 8), int)}),
     "'doc_q' has ints from 1099511627776 to 1099511627776; they must be from -2147483648 to 2147483647"),
    (dict(mask="k < n[b]", arrays={"n": np.array([-2**31 - 1])}), "'n' has ints from -2147483649 to -2147483649; they must"),
    (dict(max_seqlen_k=7), "max_seqlen_k is 7; k has 8 rows, all of which count without cu_seqlens_k or seqused_k"),
    (dict(max_seqlen_q=7), "max_seqlen_q is 7; q has 8 rows, all of which count without cu_seqlens_q"),
    (dict(packed=True, cu_seqlens_q=np.zeros(1, int), cu_seqlens_k=np.zeros(1, int)), "cu_seqlens_q has 1 elements; it must have one more"),
    (dict(packed=True, cu_seqlens_q=np.zeros(0, int), cu_seqlens_k=np.zeros(0, int)), "cu_seqlens_q has 0 elements; it must have one more"),
    (dict(bias=np.ones((8, 8), np.complex64)), ".*complex64; it must be of floats"),
    (dict(seqused_k=np.array([5.5])), ".*'?seqused_k'? is of .*float64; it must be of ints"),
    (dict(seqused_k=np.array([[5]])), r"seqused_k has shape \(1, 1\); it must have 1 dimension"),
    (dict(page_table=np.array([0])), r"page_table has shape \(1,\); it must have 2 dimensions"),
    (dict(mask="key_padding", arrays={"length": np.array([5.5])}), "'length' is of .*float64; it must be of ints"),
    (dict(packed=True, layout="bhsd"), "layout is 'bhsd'; with cu_seqlens_q tensors are"),
    (dict(packed=True, cu_seqlens_q=np.array(5)), r"cu_seqlens_q has shape \(\); it must have 1 dimension"),
    (dict(heads_kv=0), "q has 2 heads and k 0; the former must be a multiple"),
    (dict(dropout_p=0.5, generator="a"), "generator is 'a'; it must be"),
    (dict(dropout_p=0.5, generator=(1, 2, 3)), r"generator is \(1, 2, 3\); it must be"),
    (dict(dropout_p=0.5, generator=3.5), "generator is 3.5; it must be"),
])
def test_what_is_refused(front, given, text):
    with pytest.raises(BadArgument) as raised:
        call(front, **given)
    assert re.match(text, str(raised.value), re.S), str(raised.value)


@pytest.mark.parametrize("lengths", [np.array([2**40]), np.array([2**63 - 1]), np.array([2**31])])
def test_lengths_beyond_int32_are_not_wrapped(front, lengths):
    """As text so long as all keys, and those below zero as none."""
    all_keys, none = (call(front, return_lse=True, seqused_k=np.array([n]))[1] for n in (8, 0))
    for arguments in (dict(seqused_k=lengths), dict(mask="key_padding", arrays={"length": front[1](lengths)})):
        assert (call(front, return_lse=True, **arguments)[1] == all_keys).all()
    assert (call(front, return_lse=True, seqused_k=-lengths)[1] == none).all()


@pytest.mark.parametrize("packed", [False, True])
def test_a_sink_where_there_are_no_keys(front, packed):
    o, lse = call(front, keys=0, packed=packed, sink=np.array([1.0, 2.0], np.float32), return_lse=True)
    assert (o == 0).all() and (lse.reshape(2, 8)[0] == 1).all() and (lse.reshape(2, 8)[1] == 2).all()


def test_a_window_is_not_what_was_asked_before(front):
    """3.0 has 3's hash."""
    call(front, window=(3, 0))
    with pytest.raises(flashkiln.BadProblem, match=r"window is \(3.0, 0.0\); it must be an int, or two"):
        call(front, window=(3.0, 0.0))
    assert (call(front, window=np.array([3, 0])) == call(front, window=(3, 0))).all()
    assert (call(front, softcap=np.float32(3)) == call(front, softcap=3)).all()


@pytest.mark.parametrize("packed", [False, True])
def test_a_block_mask_that_does_not_reach(front, packed):
    mask = flashkiln.create_block_mask(blocks=np.ones((1, 1), bool), BLOCK_SIZE=4)
    with pytest.raises(ValueError, match="the block mask is for 4 queries and 4 keys: there are 8 and 8"):
        call(front, packed=packed, mask=mask)


def test_a_block_mask_and_bounds_of_pages(front):
    mask, pages = (flashkiln.create_block_mask(blocks=np.ones((n, 1), bool), BLOCK_SIZE=4) for n in (1, 2)), np.array([[0]])
    short, wide = mask
    for more, keys in ((dict(), 8), (dict(max_seqlen_k=6), 6), (dict(seqused_k=np.array([3])), 0)):
        with pytest.raises(ValueError, match=f"there are 8 and {keys}"):
            call(front, page_table=pages, mask=short, **more)
    call(front, page_table=pages, mask=wide, seqused_k=np.array([3]))


def test_bounds_that_say_nothing_new(front):
    expect = call(front, causal=True)
    for given in (dict(max_seqlen_q=8, max_seqlen_k=8), dict(max_seqlen_q=9, max_seqlen_k=100)):
        assert (call(front, causal=True, **given) == expect).all()
    call(front, max_seqlen_k=3, seqused_k=np.array([3]))


def test_captured_arrays_that_have_names(front):
    length = front[1](np.array([5], np.int32))
    read = length if hasattr(length, "numel") else flashkiln.array(length)
    expect = call(front, mask="k < 5")
    shown = lambda b, h, q, k: read[b] > k
    assert (call(front, mask=shown, arrays={"len:int[b]": length}) == expect).all()
    assert (call(front, mask=[shown, "k < m0[b]"], arrays={"m0:int[b]": front[1](np.array([7], np.int32))}) == expect).all()


def test_errors_name_who_was_asked():
    with pytest.raises(TypeError, match="spell.. got an unexpected keyword argument 'casual'"):
        flashkiln.spell(*[np.zeros((1, 8, 1, 8), np.float16)] * 3, casual=True)


def test_errors_about_texts_that_are_cut():
    """C cuts what it quotes at a number of bytes, which may be within a character; and names of files are any bytes."""
    with pytest.raises(flashkiln.BadProblem):
        flashkiln.spell('fwd bf16 d64 keep="a' + "é" * 100 + '"')
    for gpu in ("a" + "é" * 100, "é" * 100):
        with pytest.raises(flashkiln.NoDevice):
            flashkiln.explain("fwd bf16 d64", gpu=gpu)
    with pytest.raises(flashkiln.IoError):
        flashkiln.load_pack(b"/nowhere/\xff.fkpack")


def test_a_tensor_s_generator_is_no_seed():
    torch = pytest.importorskip("torch")
    with pytest.raises(BadArgument, match="generator is 3; it must be a torch.Generator"):
        call((flashkiln.attention, torch.from_numpy), dropout_p=0.5, generator=3)


def test_seeds_have_64_bits():
    for generator, name in ((2**70, "seed"), ((3, -2**63 - 1), "offset"), (2**64, "seed")):
        with pytest.raises(BadArgument, match=rf"generator: the {name} is -?\d+; it must have 64 bits"):
            _numpy.seeds(0.5, generator)
    assert _numpy.seeds(0.5, (np.uint64(2**64 - 1), -1)) == (2**64 - 1, 2**64 - 1)
    assert _numpy.seeds(0.5, np.int64(3)) == (3, 0) and _numpy.seeds(0.5, np.array([5, 7])) == (5, 7)


@pytest.mark.parametrize("given, spelled", [
    (dict(mask="causal"), "causal"), (dict(mask=["chunked(4)", "local(4,1)"]), "chunked(4) local(4x4,1)"),
    (dict(score="softcap(3)"), "softcap(3)"), (dict(score=["s * 2.0", "sink"], arrays={"sink": [0.0] * 2}), 'score="s * 2.0" sink'),
    (dict(sparsity="butterfly(4x8)"), "butterfly(4x8)"),
    (dict(mask="k != 3", sparsity='blocks(8)="i >= j"'), 'keep="k != 3" blocks(8x8)="i >= j"'),
    (dict(mask="causal", sparsity=[flashkiln.create_block_mask(lambda b, h, q, k: q != k), "bigbird(8)"]),
     'causal keep="q != k" bigbird(8)')])
def test_words_of_each_kind(given, spelled):
    q = zeros(1, 8, 2, 16)
    told = flashkiln.spell(q, q, q, **given)
    assert told == flashkiln.spell("fwd fp32 d16 " + spelled)


def test_files_of_ones_own(tmp_path, monkeypatch):
    for kind, text in (("mask", 'return { keep = "k != q" }'), ("score", 'return { score = "s + 1.0" }'),
                       ("pattern", 'return { block = "i != j" }')):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"own_{kind}.lua").write_text(text)
    monkeypatch.setenv("FLASHKILN_TEMPLATE_DIR", str(tmp_path))
    q = zeros(1, 8, 2, 16)
    assert flashkiln.spell(q, q, q, mask="own_mask", score="own_score", sparsity="own_pattern(8)").endswith(
        "d16 own_score own_mask own_pattern(8)")
    for given in (dict(mask="own_score"), dict(score="own_mask"), dict(sparsity="own_mask")):
        with pytest.raises(BadArgument, match=f"{[*given][0]} is 'own_"):
            flashkiln.spell(q, q, q, **given)


def test_arguments_of_tensors_alone():
    for given in (dict(fast=True), dict(k_descale=0.5)):
        with pytest.raises(BadArgument, match=f"{[*given][0]} is that of tensors of PyTorch, of float8_e4m3fn"):
            call((_numpy.attention, lambda x: x), **given)
    assert not call((_numpy.attention, lambda x: x), fast=False, q_descale=None).any()


def test_misspelt_keywords(front):
    with pytest.raises(TypeError, match=r"^attention\(\) got an unexpected keyword argument 'casual'"):
        call(front, casual=True)
    q = zeros(1, 8, 2, 16)
    with pytest.raises(TypeError, match=r"^attention_backward\(\) got .* 'casual'"):
        flashkiln.attention_backward(q, q, q, q, q, q, casual=True)
    with pytest.raises(TypeError, match=r"^explain\(\) got .* 'casual'"):
        flashkiln.explain(q, q, q, casual=True)


def test_numbers_that_want_a_gradient_are_refused():
    torch = pytest.importorskip("torch")
    q, x = torch.randn(1, 9, 2, 16), torch.tensor(0.5, requires_grad=True)
    for name in ("softmax_scale", "softcap"):
        with pytest.raises(flashkiln.Unsupported, match=f"{name} requires a gradient, and is a number here"):
            flashkiln.attention(q, q, q, **{name: x})
        with torch.no_grad():
            assert torch.equal(flashkiln.attention(q, q, q, **{name: x}), flashkiln.attention(q, q, q, **{name: 0.5}))
    o = flashkiln.attention(q, q, q, softmax_scale=1.0, score=lambda s, b, h, i, j: s * x)
    assert torch.allclose(o, flashkiln.attention(q, q, q, softmax_scale=0.5), atol=1e-6) and torch.autograd.grad(o.sum(), x)


def test_what_is_negated_when_it_is_read():
    """Tensors with PyTorch's negative bit, whose memory has the other sign."""
    torch = pytest.importorskip("torch")

    def negated(*shape):
        return torch.randn(shape, dtype=torch.complex64).conj().imag
    given = dict(q=(1, 9, 2, 16), k=(1, 9, 2, 16), v=(1, 9, 2, 16), bias=(9, 9), alibi_slopes=(2,), sink=(2,))
    views, dout = {name: negated(*shape) for name, shape in given.items()}, negated(1, 9, 2, 16)
    results = []
    for xs, d in ((views, dout), ({name: x.resolve_neg() for name, x in views.items()}, dout.resolve_neg())):
        xs = {name: x.detach().requires_grad_() for name, x in xs.items()}
        o = flashkiln.attention(**xs)
        results.append((o, *torch.autograd.grad(o, [*xs.values()], d)))
    assert all(map(torch.equal, *results))


def test_what_is_to_have_no_gradient_has_none():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 9, 2, 16, requires_grad=True) for _ in range(3))
    slope, reach = torch.randn(2, requires_grad=True), torch.tensor(3.5, requires_grad=True)
    with pytest.raises(TypeError, match=r"\.detach\(\).*a\.detach\(\)\[h\]"):
        flashkiln.attention(q, k, v, score=lambda s, b, h, i, j: s + slope[h].detach() * (i - j))
    o = flashkiln.attention(q, k, v, score=lambda s, b, h, i, j: s + slope.detach()[h] * (i - j), mask=lambda b, h, i, j: i - j < reach)
    assert torch.autograd.grad(o.sum(), [q, slope, reach], allow_unused=True)[1:] == (None, None)
    assert not flashkiln.attention(*(x.detach() for x in (q, k, v)), mask=lambda b, h, i, j: i - j < reach).requires_grad
