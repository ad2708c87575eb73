#!/usr/bin/env python3
"""Random shapes beside PyTorch's SDPA backends: where is this library slower than one of them?

  survey.py [--kinds self,short,few,cross,chunk,packed] [--ops fwd,bwd] [--count 60] [--seed 1] [--seconds 120]

Batch, heads, kv heads, lengths, head dims, masks and dtypes are drawn, as programs have them: self-attention of any length, of short
rows, of a few heads; cross-attention; a chunk of queries behind a cache; packed sequences of unlike lengths, which of the backends
FLASH alone has. All contenders are called as PyTorch programs call them, and timed by CUDA graphs of some launches each, round-robin, so
that nobody waits for the host. Results are compared with the first peer's. Printed are the slowest shapes beside the best peer of each,
and means; all rows are in survey.csv. Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import collections
import concurrent.futures
import itertools
import math
import os
import random
import sys
import time

from tables import geomean
from timing import append, arguments, median, round_robin, run, stamp, words

Shape = collections.namedtuple("Shape", "kind op dtype head_dim mask batch heads heads_kv seqlen_q seqlen_k")
FIELDS = ["date", "gpu", "driver_torch", *Shape._fields, "name", "median_us", "tflops"]
DIMS = {64: 5, 128: 5, 32: 1, 40: 1, 48: 1, 72: 1, 80: 2, 96: 2, 112: 1, 160: 1, 192: 1, 256: 2}
PEERS = ("CUDNN", "FLASH", "EFFICIENT")
MOST_ELEMENTS, MOST_FLOPS = 1 << 26, 2e12  # of q or k; of a forward launch
GRAPH_US, MOST_LAUNCHES = 300.0, 40  # of a graph
THREADS = 14  # that compile


def length(draw, least, most):
    """Evenly in its logarithm; half of them round, as programs prefer them."""
    n = int(math.exp(draw.uniform(math.log(least), math.log(most))))
    return max(least, n & (-1 << max(0, n.bit_length() - 3))) if draw.random() < 0.5 else n


def draw_shape(draw, kinds, ops):
    kind, op = draw.choice(kinds), draw.choice(ops)
    dim = draw.choices(list(DIMS), DIMS.values())[0]
    group = draw.choice((1, 1, 1, 2, 4, 8))
    heads_kv = draw.choice((1, 2, 4, 8, 12, 16))
    sq = {"self": (256, 16384), "short": (16, 512), "few": (256, 16384), "cross": (32, 8192), "chunk": (16, 2048), "packed": (64, 8192)}[kind]
    seqlen_q = length(draw, *sq)
    seqlen_k = {"cross": lambda: length(draw, 32, 8192), "chunk": lambda: seqlen_q + length(draw, 256, 32768)}.get(kind, lambda: seqlen_q)()
    mask = {"cross": "full", "chunk": "causal"}.get(kind) or draw.choice(("full", "causal"))
    batch = length(draw, 1, {"self": 32, "short": 512, "few": 1, "cross": 64, "chunk": 4, "packed": 64}[kind])
    if kind == "few":
        heads_kv, group = draw.choice((1, 2, 4)), draw.choice((1, 1, 2, 4))
    return Shape(kind, op, draw.choice(("bf16", "bf16", "fp16")), dim, mask, batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k)


def lengths(s):
    """Of packed sequences, the longest first."""
    draw = random.Random(repr(s))
    return [s.seqlen_q] + [draw.randint(max(1, s.seqlen_q // 8), s.seqlen_q) for _ in range(s.batch - 1)]


def flops(s):
    sizes = [(n, n) for n in lengths(s)] if s.kind == "packed" else [(s.seqlen_q, s.seqlen_k)] * s.batch
    pairs = sum(q * k - (q * (q - 1) / 2 if s.mask == "causal" else 0) for q, k in sizes)
    return 4 * s.heads * pairs * s.head_dim * (2.5 if s.op == "bwd" else 1)


def draw_shapes(args):
    draw, out = random.Random(args.seed), []
    while len(out) < args.count:
        s = draw_shape(draw, args.kinds, args.ops)
        if s.batch * s.heads * max(s.seqlen_q, s.seqlen_k) * s.head_dim <= MOST_ELEMENTS and flops(s) <= MOST_FLOPS:
            out.append(s)
    return out


class Inputs:
    def __init__(self, torch, s):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[s.dtype]
        rows = lambda n: (s.batch, n)
        if s.kind == "packed":
            starts = [0, *itertools.accumulate(lengths(s))]
            self.cu, rows = torch.tensor(starts, device="cuda", dtype=torch.int32), lambda _: (starts[-1],)
        new = lambda n, h: torch.randn(*rows(n), h, s.head_dim, device="cuda", dtype=dtype).requires_grad_(s.op == "bwd")
        self.q, self.k, self.v = new(s.seqlen_q, s.heads), new(s.seqlen_k, s.heads_kv), new(s.seqlen_k, s.heads_kv)
        self.dout = torch.randn(self.q.shape, device="cuda", dtype=dtype)

    def leaves(self):
        return self.q, self.k, self.v


def ours(torch, s, x):
    import flashkiln
    sizes = {"cu_seqlens_q": x.cu, "cu_seqlens_k": x.cu, "max_seqlen_q": s.seqlen_q, "max_seqlen_k": s.seqlen_k} if s.kind == "packed" else {}
    return flashkiln.attention(*x.leaves(), causal=s.mask == "causal", **sizes)


def flash_packed(torch, s, x):
    return torch.ops.aten._flash_attention_forward(*x.leaves(), x.cu, x.cu, s.seqlen_q, s.seqlen_k, 0.0, s.mask == "causal", False)[0]


def sdpa(backend):
    def attend(torch, s, x):
        q, k, v = (y.transpose(1, 2) for y in x.leaves())
        how = {"is_causal": s.mask == "causal"}
        if s.mask == "causal" and s.seqlen_q != s.seqlen_k:
            from torch.nn.attention.bias import causal_lower_right
            how = {"attn_mask": causal_lower_right(s.seqlen_q, s.seqlen_k)}
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend + "_ATTENTION")):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=s.heads != s.heads_kv, **how).transpose(1, 2)
    return attend


class Graphed:
    """A contender: some launches in a CUDA graph, which reads x, and what a forward pass left, for as long as it lives."""

    def __init__(self, torch, name, attend, s, x, stream):
        self.torch, self.name, self.stream = torch, name, stream
        with torch.cuda.stream(stream):
            work = lambda: [attend(torch, s, x)]
            if s.op == "bwd":
                o = work()[0]
                work = lambda: torch.autograd.grad(o, x.leaves(), x.dout, retain_graph=True)
            work()
            self.out = [y.detach() for y in work()]
            self.work = work
            self.capture(1)
            self.capture(min(MOST_LAUNCHES, math.ceil(GRAPH_US / self.time())))

    def capture(self, count):
        self.count, self.graph = count, self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(self.graph, stream=self.stream):
            for _ in range(count):
                self.work()

    def time(self):
        """Microseconds of the graph."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.launch()
        begin.record()
        self.launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def launch(self):
        self.graph.replay()


def contenders(torch, s, stream):
    x, out = Inputs(torch, s), []
    peers = [("sdpa-flash", flash_packed)] if s.kind == "packed" else [("sdpa-" + p.lower(), sdpa(p)) for p in PEERS]
    for name, attend in [("flashkiln", ours)] + peers:
        try:
            out.append(Graphed(torch, name, attend, s, x, stream))
        except RuntimeError:  # a peer may refuse the shape
            if name == "flashkiln":
                raise
            torch.cuda.synchronize()
    return out


def disagree(peers):
    """How far our results are from the first peer's, in parts of the largest value."""
    if len(peers) < 2:
        return 0.0
    return max(((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-6)).item() for a, b in zip(peers[0].out, peers[1].out))


def compile_all(torch, shapes):
    """Our kernels of all shapes, by several threads: compiled once, they are found in the store."""
    def one(s):
        x = Inputs(torch, s)
        o = ours(torch, s, x)
        if s.op == "bwd":
            torch.autograd.grad(o, x.leaves(), x.dout)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, shapes))
    torch.cuda.synchronize()


def label(s):
    heads = f"{s.heads}" if s.heads == s.heads_kv else f"{s.heads} ({s.heads_kv})"
    return f"{s.kind:5} {s.op} {s.dtype} d{s.head_dim} {s.mask} {s.batch} x {heads} heads, {s.seqlen_q} queries, {s.seqlen_k} keys"


def body(torch, library, context, args):
    shapes, rated, good, begin = draw_shapes(args), [], True, time.monotonic()
    compile_all(torch, shapes)
    print(f"kernels of {len(shapes)} shapes: {time.monotonic() - begin:.1f} s", flush=True)
    stream = torch.cuda.Stream()
    for s in shapes:
        if time.monotonic() - begin > args.seconds:
            print(f"{len(rated)} of {len(shapes)} shapes in {args.seconds} s")
            break
        who = contenders(torch, s, stream)
        if (far := disagree(who)) > 3e-2 or math.isnan(far):
            good = False
            print(f"WRONG by {far:.1e} of the largest value: {label(s)}")
        times = round_robin(torch, who, args.rounds, args.launches, warm_ms=30)
        us = {c.name: median(times[c.name]) / c.count for c in who}
        append(os.path.join(args.out, "survey.csv"), [{**stamp(torch), **s._asdict(), "name": name, "median_us": f"{t:.2f}",
                                                       "tflops": f"{flops(s) / t * 1e-6:.1f}"} for name, t in us.items()], FIELDS)
        peers = {name: t for name, t in us.items() if name != "flashkiln"}
        if peers:
            best = min(peers, key=peers.get)
            rated.append((peers[best] / us["flashkiln"], s, us["flashkiln"], best))
    for kind in args.kinds:
        for op in args.ops:
            mine = [r for r, s, _, _ in rated if (s.kind, s.op) == (kind, op)]
            if mine:
                print(f"{kind} {op}: {len(mine)} shapes, {geomean(mine):.2f} times the best peer, {sum(r < 1 for r in mine)} slower, least {min(mine):.2f}")
    for r, s, t, best in sorted(rated, key=lambda x: x[0])[:args.show]:
        print(f"{r:.2f} {label(s)}: {t:.1f} us, {flops(s) / t * 1e-6:.0f} TFLOP/s; {best}")
    return 0 if good else 1


def main():
    parser = arguments(__doc__)
    parser.set_defaults(rounds=6, launches=3)
    parser.add_argument("--kinds", default="self,short,few,cross,chunk,packed", type=words)
    parser.add_argument("--ops", default="fwd,bwd", type=words)
    parser.add_argument("--count", type=int, default=60, help="shapes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--show", type=int, default=40, help="of the slowest shapes")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
