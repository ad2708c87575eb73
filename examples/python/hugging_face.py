#!/usr/bin/env python3
"""Hugging Face transformers with attn_implementation="flashkiln": a Llama of random weights, so that nothing is downloaded.
With a model of your own it is one line more than before:

    flashkiln.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, attn_implementation="flashkiln")
"""
import time

import torch
import transformers

import flashkiln.hf

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
HALF = torch.bfloat16 if CUDA and torch.cuda.get_device_capability() >= (8, 0) else torch.float16
DTYPE = HALF if CUDA else torch.float32
PROMPT, NEW = (2048, 64) if CUDA else (32, 8)  # tokens
SIZES = (dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=12, num_attention_heads=32, num_key_value_heads=8)
         if CUDA else
         dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))


def prompts():
    """Two prompts of random tokens; the second is shorter, and padded on the left."""
    ids = torch.randint(3, 1000, (2, PROMPT), device=DEVICE)
    mask = torch.ones_like(ids)
    mask[1, :PROMPT // 4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def timed(function):
    """(result, seconds), of the second call."""
    for _ in range(2):
        if CUDA:
            torch.cuda.synchronize()
        started = time.perf_counter()
        result = function()
        if CUDA:
            torch.cuda.synchronize()
    return result, time.perf_counter() - started


def apart(a, b):
    return ((a.float() - b.float()).norm() / b.float().norm()).item()


def training(model, batch):
    """(loss, gradient of the first layer's query projection), of tokens that follow a token, not padding."""
    seen = batch["attention_mask"].bool()
    labels = batch["input_ids"].masked_fill(~(seen & seen.roll(1, 1)), -100)
    model.train().zero_grad()
    loss = model(**batch, labels=labels, use_cache=False).loss
    loss.backward()
    return loss.item(), model.model.layers[0].self_attn.q_proj.weight.grad


def main():
    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    flashkiln.hf.register()
    config = transformers.LlamaConfig(vocab_size=1000, max_position_embeddings=PROMPT + NEW, **SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="flashkiln").to(DEVICE)
    batch = prompts()
    seen = batch["attention_mask"].bool()
    print(f"Llama, {sum(p.numel() for p in model.parameters()) / 1e6:,.1f} million parameters, {DTYPE}, {DEVICE}; "
          f"2 prompts of up to {PROMPT} tokens")

    found = {}
    for name in ("eager", "flashkiln"):
        model.eval().set_attn_implementation(name)  # or, when it is made: attn_implementation=
        with torch.no_grad():
            logits, seconds = timed(lambda: model(**batch, use_cache=False).logits[seen])
            tokens, generating = timed(lambda: model.generate(**batch, max_new_tokens=NEW, min_new_tokens=NEW,
                                                              do_sample=False, pad_token_id=0)[:, PROMPT:])
        (loss, gradient), step = timed(lambda: training(model, batch))
        found[name] = logits, tokens, loss, gradient
        print(f"{name:9}  forward {1000 * seconds:.1f} ms, {NEW} new tokens {1000 * generating:.0f} ms, "
              f"forward and backward {1000 * step:.1f} ms, loss {loss:.4f}")
    (theirs, their_tokens, _, their_gradient), (ours, our_tokens, _, our_gradient) = found["eager"], found["flashkiln"]
    print(f"logits differ by {apart(ours, theirs):.1e}, a gradient by {apart(our_gradient, their_gradient):.1e} (relative); "
          f"{(our_tokens == their_tokens).float().mean():.0%} of the generated tokens are the same")

    # A model that calls scaled_dot_product_attention needs no change: within the block, or after enable_sdpa(), it is ours.
    model.eval().set_attn_implementation("sdpa")
    with flashkiln.sdpa(cpu=True), torch.no_grad():
        logits = model(**batch, use_cache=False).logits[seen]
    print(f"through scaled_dot_product_attention: logits differ by {apart(logits, theirs):.1e}")
    print(flashkiln.sdpa_report())


if __name__ == "__main__":
    main()
