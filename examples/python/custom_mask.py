#!/usr/bin/env python3
"""Masks and scores of one's own: as expressions, as Python functions, with tensors that learn, and as tables of blocks. Each
is compared with dense attention in float64."""
import torch

import flashkiln

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.float16 if CUDA else torch.float32
BATCH, LENGTH, HEADS, DIM = (2, 2048, 8, 64) if CUDA else (1, 192, 2, 32)
BLOCK = 128 if CUDA else 32


def dense(q, k, v, mask=None, score=None):
    """The same by a matrix of all scores: mask(b, h, q, k) and score(s, b, h, q, k) get tensors of indices."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    at = torch.meshgrid(*(torch.arange(n, device=DEVICE) for n in (*q.shape[:3], k.shape[2])), indexing="ij")
    s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    s = s if score is None else score(s, *at)
    s = s if mask is None else s.masked_fill(~mask(*at), float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2)


def compare(what, found, expected):
    print(f"{what:62} differs by {((found - expected).norm() / expected.norm()).item():.1e}")


def main():
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, LENGTH, HEADS, DIM, device=DEVICE, dtype=DTYPE) for _ in range(3))
    print(f"batch {BATCH}, {LENGTH} tokens, {HEADS} heads of {DIM}, {DTYPE}, {DEVICE}; relative to dense attention in float64:")

    # 1. An expression of b, h, q, k: docs/expressions.md. Tiles that it empties are skipped, tiles that it fills not tested.
    o = flashkiln.attention(q, k, v, mask="k <= q && (q - k < 64 || k < 4)")
    compare("window with sinks, as an expression", o, dense(q, k, v, lambda b, h, q, k: (k <= q) & ((q - k < 64) | (k < 4))))

    # 2. A name, an expression, and an array that one of them reads; all must hold.
    prefix = torch.full((BATCH,), LENGTH // 3, device=DEVICE)  # queries see it whole, and behind it what came before
    o = flashkiln.attention(q, k, v, mask=["prefix", "(q + k) % 3 != 1"], arrays={"prefix": prefix})
    compare("prefix and an expression", o, dense(q, k, v, lambda b, h, q, k: (
        (k <= q) | (k < prefix[b])) & ((q + k) % 3 != 1)))

    # 3. A Python function, which runs once, on symbols. Tensors that it reads become arrays of the kernel.
    document = (torch.arange(LENGTH, device=DEVICE) * 5 // LENGTH).expand(BATCH, -1)

    def in_document(b, h, q, k):
        return (k <= q) & (document[b, q] == document[b, k])
    compare("documents, as a function", flashkiln.attention(q, k, v, mask=in_document), dense(q, k, v, in_document))

    # 4. Scores likewise, with gradients of the tensors that they read. Here a slope for each head learns.
    slope = torch.linspace(0.1, 0.4, HEADS, device=DEVICE).requires_grad_()
    scale = torch.ones(HEADS, device=DEVICE, requires_grad=True)

    def score(s, b, h, q, k):
        return scale[h] * torch.tanh(s) - slope[h] * (q - k)
    weights = torch.randn_like(q)
    grads = []
    for o in (flashkiln.attention(q, k, v, causal=True, score=score),
              flashkiln.attention(q, k, v, causal=True, score="scale[h] * tanh(s) - slope[h] * (q - k)",
                                  arrays={"scale": scale, "slope": slope}),
              dense(q, k, v, lambda b, h, q, k: k <= q, score)):
        grads.append((o, *torch.autograd.grad((o * weights).sum(), [scale, slope])))
    for what, found in zip(("a function", "an expression"), grads):
        for name, x, expected in zip(("result", "gradient of scale", "gradient of slope"), found, grads[2]):
            compare(f"score with learned tensors, as {what}: {name}", x, expected)

    # 5. A mask made once for many calls; and a table of blocks, here random ones, in which the diagonal is causal.
    blocks = torch.rand(LENGTH // BLOCK, LENGTH // BLOCK, device=DEVICE) < 0.25
    blocks.fill_diagonal_(True)
    made = flashkiln.create_block_mask(lambda b, h, q, k: k <= q, blocks=blocks, BLOCK_SIZE=BLOCK)
    print(made)
    compare("blocks", flashkiln.attention(q, k, v, mask=made),
            dense(q, k, v, lambda b, h, q, k: (k <= q) & blocks[q // BLOCK, k // BLOCK]))

    # 6. What was asked, what runs, which tiles are skipped, and what bounds the time.
    print()
    print(flashkiln.spell(q, k, v, mask=in_document))
    print(flashkiln.spell(q, k, v, causal=True, score=score, backward=True))
    print()
    print(flashkiln.explain(q, k, v, mask="k <= q && (q - k < 64 || k < 4)"))

    # 7. A mistake is an exception that shows its place.
    try:
        flashkiln.attention(q, k, v, mask="k <= q & 1")
    except flashkiln.BadProblem as error:
        print(f"\n{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
