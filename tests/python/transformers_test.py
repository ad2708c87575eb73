"""attn_implementation="flashkiln" in small models of random weights: logits and the gradients of all parameters against the
eager model in float32; generated tokens equal. On the CPU tiny and by the emulator, in float32; on a GPU, where there is one,
larger and in bfloat16, at most twice as far from it as the eager model in bfloat16: over a few models and batches, as the error
of one small gradient is what rounding happened to leave of it."""
import copy

import pytest

torch = pytest.importorskip("torch")

transformers = pytest.importorskip("transformers", minversion="5.0")
import flashkiln.hf  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning", "ignore::FutureWarning")
CUDA = torch.cuda.is_available()
DEVICE, DTYPE, LENGTH, WINDOW = ("cuda", torch.bfloat16, 320, 96) if CUDA else ("cpu", torch.float32, 20, 8)
FLOOR = 5e-6  # relative: a key's bias has a gradient of zero, and what rounding leaves of it
MODELS = 8 if CUDA else 1  # over which errors are averaged

transformers.utils.logging.set_verbosity_error()
flashkiln.hf.register()

SIZES = dict(vocab_size=100, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=512,
             **(dict(hidden_size=256, intermediate_size=512) if CUDA else dict(hidden_size=64, intermediate_size=96)))
GQA = dict(**SIZES, num_key_value_heads=2, head_dim=SIZES["hidden_size"] // 4, sliding_window=WINDOW)
CAUSAL = {
    "gpt2": lambda: ("GPT2LMHeadModel", transformers.GPT2Config(
        vocab_size=100, n_embd=SIZES["hidden_size"], n_layer=2, n_head=4, n_positions=512, attn_pdrop=0, resid_pdrop=0,
        embd_pdrop=0)),
    "llama": lambda: ("LlamaForCausalLM", transformers.LlamaConfig(**SIZES, num_key_value_heads=2)),
    "gemma2": lambda: ("Gemma2ForCausalLM", transformers.Gemma2Config(
        **GQA, query_pre_attn_scalar=16, attn_logit_softcapping=3.0)),
    "gpt_oss": lambda: ("GptOssForCausalLM", transformers.GptOssConfig(**GQA, num_local_experts=2, num_experts_per_tok=2))}
ENCODERS = {"bert": lambda: ("BertForMaskedLM", transformers.BertConfig(
    **SIZES, attention_probs_dropout_prob=0, hidden_dropout_prob=0))}


def build(kind, implementation="flashkiln", seed=0, **changes):
    name, config = {**CAUSAL, **ENCODERS}[kind]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    model = getattr(transformers, name)._from_config(config, attn_implementation=implementation)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.to(DTYPE))
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter).to(DTYPE)  # biases and sinks that matter
    return model.to(DEVICE)


def batch(kind):
    """(arguments, which tokens count)"""
    ids, n = torch.randint(3, 100, (2, LENGTH), device=DEVICE), LENGTH
    valid = torch.ones_like(ids)
    if kind == "packed":
        lengths = (n // 3, n - n // 3), (n // 2 + 2, n - n // 2 - 2)
        positions = [torch.cat([torch.arange(m, device=DEVICE) for m in each]) for each in lengths]
        return {"input_ids": ids, "position_ids": torch.stack(positions)}, valid.bool()
    if kind == "plain":
        return {"input_ids": ids}, valid.bool()
    hidden = {"left": slice(0, n // 3), "right": slice(-n // 3, None), "holes": slice(n // 4, n // 3)}[kind]
    valid[1, hidden] = 0
    return {"input_ids": ids, "attention_mask": valid}, valid.bool()


def results(model, dtype, arguments, valid):
    """{name: logits or gradient}"""
    model = model.to(dtype).train()
    logits = model(**arguments).logits[valid]
    logits.log_softmax(-1).square().mean().backward()
    return {"logits": logits.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("kind, how", [
    ("gpt2", "plain"), ("gpt2", "left"), ("bert", "plain"), ("bert", "right"), ("llama", "plain"), ("llama", "left"),
    ("llama", "holes"), ("llama", "packed"), ("gemma2", "left"), ("gemma2", "packed"), ("gpt_oss", "plain"),
    ("gpt_oss", "left"), ("gpt_oss", "packed")])
def test_logits_and_gradients(kind, how):
    squares = {}  # name: of the error, eager's, and the size
    for seed in range(MODELS):
        arguments, valid = batch(how)
        exact = results(build(kind, "eager", seed), torch.float32, arguments, valid)  # in float64 it hides rows to NaN
        own = results(build(kind, "eager", seed), DTYPE, arguments, valid) if CUDA else exact
        got = results(build(kind, seed=seed), DTYPE, arguments, valid)
        assert got.keys() == own.keys() == exact.keys()
        typical = torch.stack([x.norm() / x.numel() ** 0.5 for x in exact.values()]).median().item()
        for name, expected in exact.items():
            size = max(expected.norm().item(), typical * expected.numel() ** 0.5)  # a key's bias has a gradient of 0
            norms = ((got[name].float() - expected).norm().item(), (own[name].float() - expected).norm().item(), size)
            squares[name] = [total + norm ** 2 for total, norm in zip(squares.get(name, (0, 0, 0)), norms)]
    for name, totals in squares.items():
        error, allowed, size = (total ** 0.5 for total in totals)
        assert error <= 2 * allowed + FLOOR * size, f"{name}: error {error:.2e}, eager's {allowed:.2e}, size {size:.2e}"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", CAUSAL)
def test_generate(kind, cache):
    """Token for token, with prompts padded on the left and without; in float32, where the likeliest token is the same."""
    ids = torch.randint(3, 100, (2, 12), device=DEVICE)
    padded = torch.ones_like(ids)
    padded[1, :5] = 0
    for mask in (torch.ones_like(ids), padded):
        tokens = [build(kind, how).float().eval().generate(
            ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=0,
            cache_implementation=cache, disable_compile=True) for how in ("eager", "flashkiln")]
        assert torch.equal(*tokens)


# ---- masks -----------------------------------------------------------------------------------------------------------

TYPES = torch.arange(80, device=DEVICE).view(2, 40) % 7 < 3
CHUNKS = masks.chunked_causal_mask_function(8, torch.tensor([0, 5], device=DEVICE))
POSITIONS = torch.tensor([[*range(10), *range(14)], [*range(20), *range(4)]], device=DEVICE)
PACKED = masks.find_packed_sequence_indices(POSITIONS)


def packed(function):
    if hasattr(masks, "packed_sequence_compatibility_function"):
        return masks.packed_sequence_compatibility_function(function, POSITIONS, PACKED)
    return masks.and_masks(function, masks.packed_sequence_mask_function(PACKED))  # as older releases say it


def by_hand(b, h, q, k):
    return TYPES[b, q] & TYPES[b, k] | (k == q)


def odd(b, h, q, k):
    return (torch.sin(q.float()) > 0) | (k == q)


def shaped(b, h, q, k):
    return (k.unsqueeze(-1) != 3).squeeze(-1) | (k == q)  # symbols have no shape


WINDOWED = masks.sliding_window_causal_mask_function(7)
WHOLE, TAIL, SHIFTED, STATIC = (24, 0, 0), (4, 20, 0), (4, 33, 13), (4, 6, 0)  # queries, places of the first and of key 0


@pytest.mark.parametrize("function, span, padding, said", [
    (masks.causal_mask_function, WHOLE, None, {"causal": True, "window": None, "mask": ()}),
    (masks.causal_mask_function, TAIL, None, {"causal": True, "window": None, "mask": ()}),
    (masks.causal_mask_function, WHOLE, "left", {"causal": True, "window": None, "mask": ("left_padding",)}),
    (masks.causal_mask_function, WHOLE, "holes", {"causal": True, "window": None, "mask": ("padding[b][k] != 0",)}),
    (masks.causal_mask_function, STATIC, "left", {"mask": ("left_padding", "k <= q + start[b]")}),
    (WINDOWED, SHIFTED, None, {"causal": True, "window": (6, -1), "mask": ()}),
    (WINDOWED, SHIFTED, "left", {"causal": True, "window": (6, -1), "mask": ("left_padding",)}),
    (WINDOWED, STATIC, None, {"mask": ("k <= q + start[b]", "k >= q + start[b] - 6")}),
    (masks.sliding_window_bidirectional_mask_function(5), WHOLE, None, {"causal": False, "window": (5, 5), "mask": ()}),
    (CHUNKS, WHOLE, "left", None), (CHUNKS, SHIFTED, None, None), (CHUNKS, STATIC, None, None),
    (packed(masks.causal_mask_function), WHOLE, None, {"causal": True, "window": None, "mask": ("document",)}),
    (packed(WINDOWED), WHOLE, None, {"causal": True, "window": (6, -1), "mask": ("document",)}),
    (packed(CHUNKS), WHOLE, None, None),
    (masks.and_masks(masks.causal_mask_function, by_hand), SHIFTED, None, None),
    (masks.or_masks(masks.causal_mask_function, by_hand), WHOLE, None, None),
    (masks.and_masks(WINDOWED, masks.sliding_window_causal_mask_function(4)), WHOLE, None,
     {"causal": True, "window": (3, -1), "mask": ()}),
    (masks.and_masks(WINDOWED, masks.sliding_window_bidirectional_mask_function(5)), WHOLE, None,
     {"causal": True, "window": (5, 5), "mask": ()}),
    (masks.and_masks(masks.causal_mask_function, shaped), WHOLE, None, {"mask": "bits"}),
    (masks.and_masks(masks.causal_mask_function, odd), WHOLE, "holes", {"mask": "bits"})])
def test_masks(function, span, padding, said):
    """What the mask interface says to the kernels is the matrix that transformers means."""
    queries, offset, base = span
    mask = None
    if padding:
        mask = torch.ones(2, base + 24, dtype=torch.bool, device=DEVICE)
        mask[1, slice(0, base + 6) if padding == "left" else slice(base + 3, base + 5)] = False
    asked = dict(batch_size=2, q_length=queries, kv_length=24, q_offset=torch.tensor(offset, device=DEVICE) if span is STATIC
                 else offset, kv_offset=base, mask_function=function, attention_mask=mask, allow_is_causal_skip=False,
                 device=torch.device(DEVICE), dtype=DTYPE)
    got, dense = flashkiln.hf.attention_mask(**asked), masks.sdpa_mask(**asked)
    assert isinstance(got, flashkiln.hf.Mask) and got.shape == dense.shape and got.dtype == torch.bool
    assert torch.equal(got & True, dense)  # what computes with it gets the matrix
    assert said is None or {name: x for name, x in got.arguments.items() if name != "arrays"} == said
    q, k, v = (torch.randn(2, 2, n, 16, device=DEVICE).to(DTYPE) for n in (queries, 24, 24))
    scores = (q.double() @ k.double().transpose(-1, -2) / 4).masked_fill(~dense, float("-inf"))
    exact = (scores.softmax(-1).nan_to_num(0.0) @ v.double()).transpose(1, 2)  # of a row that sees nothing: 0
    o = flashkiln.hf.attention_forward(torch.nn.Module().eval(), q, k, v, got)[0]
    assert (o - exact).norm() <= (1e-5 if DTYPE == torch.float32 else 1e-2) * exact.norm()


def test_masks_are_left_out_where_nothing_is_hidden():
    asked = dict(batch_size=2, q_length=24, kv_length=24, device=torch.device(DEVICE))
    everything = {**asked, "mask_function": masks.bidirectional_mask_function, "allow_is_bidirectional_skip": True,
                  "attention_mask": torch.ones(2, 24, dtype=torch.bool, device=DEVICE)}
    assert flashkiln.hf.attention_mask(**everything) is None
    causal = flashkiln.hf.attention_mask(**asked, mask_function=masks.causal_mask_function)  # the module may not know
    assert causal.arguments == {"causal": True, "window": None, "mask": (), "arrays": {}}


def test_masks_are_not_written_to():
    mask = flashkiln.hf.attention_mask(batch_size=2, q_length=8, kv_length=8, mask_function=masks.causal_mask_function)

    def set_item(x):
        x[..., 0] = False

    def join(x):
        x |= True
    for write in (set_item, join, lambda x: x.fill_(True), lambda x: torch.logical_not(x, out=x)):
        with pytest.raises(RuntimeError, match="clone"):
            write(mask)
        write(mask.clone())
    assert torch.zeros(8, 8).masked_fill_(mask[0, 0], 1.0).sum() == 36  # it may be read


# ---- the rest of a model's life ----------------------------------------------------------------------------------------

def test_encoder_and_decoder():
    """Cross attention, and T5's position bias with its gradient."""
    config = transformers.T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
                                   decoder_start_token_id=0, pad_token_id=0)
    arguments, valid = batch("right")
    grads = []
    for how, dtype in (("eager", torch.float64), ("flashkiln", torch.float32)):
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration._from_config(copy.deepcopy(config), attn_implementation=how)
        model.to(DEVICE, dtype)(**arguments, labels=arguments["input_ids"]).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, exact in grads[0].items():
        assert (grads[1][name] - exact).norm() <= 1e-4 * exact.norm() + 1e-7, name
    assert any("relative_attention_bias" in name for name in grads[0])


def test_dropout_and_checkpoints():
    model, (arguments, _) = build("llama", attention_dropout=0.5).train(), batch("plain")

    def run(seed):
        torch.manual_seed(seed)
        model.zero_grad()
        logits = model(**arguments).logits
        logits.sum().backward()
        return logits.detach(), model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    first, again, other = run(1), run(1), run(2)
    model.gradient_checkpointing_enable()
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])
    assert all(torch.allclose(a, b, rtol=1e-4 if DTYPE == torch.float32 else 0.1) for a, b in zip(first, run(1)))
    assert torch.equal(model.eval()(**arguments).logits, model(**arguments).logits)


@pytest.mark.parametrize("how", ["plain", "left"])
def test_compile(how):
    model, (arguments, valid) = build("llama").eval(), batch(how)
    own = model(**arguments, use_cache=False).logits[valid]
    got = torch.compile(model, backend="aot_eager", fullgraph=True)(**arguments, use_cache=False).logits[valid]
    assert torch.allclose(own, got, atol=1e-5 if DTYPE == torch.float32 else 5e-2)
    torch.compiler.reset()


def test_autocast():
    model, (arguments, valid) = build("llama").float().eval(), batch("left")
    with torch.autocast(DEVICE, torch.bfloat16):
        got = model(**arguments).logits[valid]
    exact = build("llama", "eager").float().eval()(**arguments).logits[valid]
    assert (got - exact).norm() < 2e-2 * exact.norm()


def test_switching_and_saving(tmp_path):
    model, (arguments, valid) = build("llama", "eager").float().eval(), batch("left")
    own = model(**arguments).logits[valid]
    model.set_attn_implementation("flashkiln")
    got = model(**arguments).logits[valid]
    assert torch.allclose(got, own, atol=1e-4) and not torch.equal(got, own)
    model.save_pretrained(tmp_path)
    assert "kiln" not in (tmp_path / "config.json").read_text()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="flashkiln").to(DEVICE).eval()
    assert torch.allclose(loaded(**arguments).logits[valid], own, atol=1e-4)


@pytest.mark.parametrize("how", ["none", "causal", "window", "chunks", "matrix", "bias"])
def test_packed_batches_with_lengths(how):
    """What a collator hands over for the flash_attn package; beside masks that say documents, or do not."""
    module, cumulative = torch.nn.Module().eval(), torch.tensor([0, 5, 20], dtype=torch.int32, device=DEVICE)
    q, k, v, bias = (torch.randn(1, 2, 20, n, device=DEVICE).to(DTYPE) for n in (16, 16, 16, 20))
    function = {"window": WINDOWED, "chunks": masks.chunked_causal_mask_function(8, torch.tensor([0], device=DEVICE))}.get(
        how, masks.causal_mask_function)
    mask = None if how in ("none", "bias") else flashkiln.hf.attention_mask(
        batch_size=1, q_length=20, kv_length=20, mask_function=function, device=torch.device(DEVICE))
    mask = mask & True if how == "matrix" else mask
    more = {"position_bias": bias} if how == "bias" else {}
    o = flashkiln.hf.attention_forward(module, q, k, v, mask, cu_seq_lens_q=cumulative, cu_seq_lens_k=cumulative,
                                       max_length_q=15, max_length_k=15, **more)[0]
    places = torch.arange(20, device=DEVICE)
    same = torch.bucketize(places, cumulative[1:], right=True)
    shown = function(0, 0, places[:, None], places) & (same[:, None] == same)
    scores = q.double() @ k.double().transpose(-1, -2) / 4 + (bias.double() if how == "bias" else 0)
    exact = (scores.masked_fill(~shown, float("-inf")).softmax(-1) @ v.double()).transpose(1, 2)
    assert o.shape == exact.shape and (o - exact).norm() <= (1e-5 if DTYPE == torch.float32 else 1e-2) * exact.norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_decoders_that_do_not_say_that_they_are_causal(compiled):
    """Whose classes claim neither SDPA nor attention's interface, and whose modules' is_causal is False."""
    config = transformers.BigBirdPegasusConfig(
        vocab_size=100, d_model=64, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, dropout=0.0, attention_type="original_full")
    ids, states = torch.randint(3, 100, (2, 12), device=DEVICE), []
    for how in ("eager", "flashkiln"):
        torch.manual_seed(0)
        model = transformers.BigBirdPegasusModel._from_config(copy.deepcopy(config), attn_implementation=how)
        decoder = model.to(DEVICE).decoder.eval()
        if how == "flashkiln" and compiled:
            decoder = torch.compile(decoder, backend="aot_eager")
        states.append(decoder(input_ids=ids, use_cache=False).last_hidden_state)
    torch.compiler.reset()
    assert torch.allclose(*states, atol=1e-4)


def test_what_it_has_not_is_said():
    module, q = torch.nn.Module().eval(), torch.randn(1, 2, 8, 16, device=DEVICE)
    for name in ("output_attentions", "indices", "block_indices", "sinks"):
        with pytest.raises(ValueError, match=f"^{name}: "):
            flashkiln.hf.attention_forward(module, q, q, q, None, **{name: torch.ones(1, 2, 8, 1, device=DEVICE)})
    with pytest.raises(ValueError, match="attention_mask is of torch.int64"):
        flashkiln.hf.attention_forward(module, q, q, q, torch.ones(1, 1, 8, 8, dtype=torch.int64, device=DEVICE))


def test_models_with_attention_of_their_own_are_refused():
    """They would take no mask for one that hides nothing."""
    config = transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(ValueError, match="BloomModel computes attention itself"):
        transformers.AutoModel.from_config(config, attn_implementation="flashkiln")
