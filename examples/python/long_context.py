#!/usr/bin/env python3
"""Long sequences, of which every query sees a part: a window, documents, dilated keys, butterfly blocks. For each: the share of
tiles that are visited, the time of a training step beside that of causal attention, and the memory beside a dense matrix.

    python long_context.py --tokens 65536
"""
import argparse
import statistics
import time

import torch

import flashkiln

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPE = torch.float32 if not CUDA else torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
TOKENS, HEADS, DIM, BLOCK = (65536, 16, 64, 128) if CUDA else (512, 2, 32, 64)


def patterns(tokens):
    """{name: arguments of attention, besides causal=True}"""
    window = tokens // 16
    ends = torch.rand(15, generator=torch.Generator().manual_seed(0)).mul(tokens).long().sort().values
    documents = torch.bucketize(torch.arange(tokens), ends, right=True).int().to(DEVICE)[None]
    return {
        "causal": {},
        f"window of {window} keys": {"window": window - 1},
        "16 documents": {"mask": "document", "arrays": {"doc_q": documents, "doc_k": documents}},
        f"every 4th of {window} keys": {"mask": f"q - k < {window} && (q - k) % 4 == 0"},
        # Block i of queries sees the blocks of keys whose number differs from i in no bit, or in one: log2(blocks) + 1 of them,
        # and any block reaches any other within log2(blocks) layers.
        f"butterfly of {BLOCK}-token blocks": {"sparsity": f"butterfly({BLOCK})"},
        "butterfly, and a window": {"mask": f"popcount((q / {BLOCK}) ^ (k / {BLOCK})) <= 1 || q - k < {window // 8}"},
        f"BigBird of {BLOCK}-token blocks": {"sparsity": f"bigbird({BLOCK})"},
    }


def visited(told, documents=None):
    """The share of tiles that the forward pass loads. What arrays empty is not in explain's counts."""
    rows, keys = told.plan["block_m"], told.plan["block_n"]
    if documents is None or documents.shape[1] % rows or documents.shape[1] % keys:
        return 1 - told.tiles["empty"] / sum(told.tiles.values())
    q, k = documents[0].view(-1, rows, 1), documents[0].view(-1, keys).T
    q_end = torch.arange(rows - 1, documents.shape[1], rows, device=DEVICE)[:, None]
    k_start = torch.arange(0, documents.shape[1], keys, device=DEVICE)
    return ((q[:, -1] >= k[0]) & (q[:, 0] <= k[-1]) & (k_start <= q_end)).float().mean().item()


def measure(q, k, v, weights, arguments, runs):
    """(median seconds of forward, of forward and backward, bytes that the call took besides its inputs)."""
    def synchronized():
        if CUDA:
            torch.cuda.synchronize()
        return time.perf_counter()

    times = []
    for _ in range(runs + 1):
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = synchronized()
        o = flashkiln.attention(q, k, v, causal=True, **arguments)
        middle = synchronized()
        torch.autograd.grad(o, (q, k, v), weights)
        times.append((middle - start, synchronized() - start))
    memory = torch.cuda.max_memory_allocated() - before if CUDA else None
    return (*(statistics.median(column) for column in zip(*times[1:])), memory)  # the first call builds the kernels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--runs", type=int, default=5 if CUDA else 1)
    options = parser.parse_args()
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, options.tokens, HEADS, DIM, device=DEVICE, dtype=DTYPE, requires_grad=True) for _ in range(3))
    weights, full = torch.randn_like(q), None
    matrix = HEADS * options.tokens ** 2 * q.element_size()
    print(f"{options.tokens} tokens, {HEADS} heads of {DIM}, {DTYPE}, {torch.cuda.get_device_name() if CUDA else 'emulated'}; "
          f"q, k and v: {3 * q.nbytes / 2**20:,.1f} MiB; a dense matrix of scores: {matrix / 2**20:,.1f} MiB")
    print(f"{'':32}{'tiles visited':>14}{'forward':>12}{'and backward':>14}{'of causal':>11}"
          + f"{'memory':>12}" * CUDA)
    for name, arguments in patterns(options.tokens).items():
        told = flashkiln.explain(q, k, v, causal=True, **arguments)
        share = visited(told, arguments.get("arrays", {}).get("doc_q"))
        forward, both, memory = measure(q, k, v, weights, arguments, options.runs)
        full = full or both
        print(f"{name:32}{share:14.1%}{1000 * forward:9.2f} ms{1000 * both:11.2f} ms{both / full:11.1%}"
              + (f"{memory / 2**20:8,.0f} MiB" if CUDA else ""), flush=True)


if __name__ == "__main__":
    main()
