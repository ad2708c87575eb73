#!/usr/bin/env python3
"""Random shapes beside PyTorch's SDPA backends: where is this library slower than one of them?

  survey.py [--kinds self,short,few,cross,chunk,packed,window,dropout,padding,bias,decode] [--ops fwd,bwd] [--count 60] [--seed 1] [--seconds 120]

Batch, heads, kv heads, lengths, head dims, masks and dtypes are drawn, as programs have them: self-attention of any length, of short
rows, of a few heads; cross-attention; a chunk of queries behind a cache, or one to sixteen of them; packed sequences of unlike lengths, and
windows, which of the backends FLASH alone has; with dropout; with a boolean mask of each entry's keys; with a bias of every pair, whose
gradient is taken, too. All contenders are called as PyTorch programs call them, and timed by CUDA graphs of some launches each, round-robin, so
that nobody waits for the host. Results are compared with the first peer's. Printed are the slowest shapes beside the best peer of each,
and means; all rows are in survey.csv. Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import collections
import concurrent.futures
import functools
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
KINDS = {  # lengths of queries, the largest batch
    "self": ((256, 16384), 32), "short": ((16, 512), 512), "few": ((256, 16384), 1), "cross": ((32, 8192), 64), "chunk": ((16, 2048), 4),
    "packed": ((64, 8192), 64), "window": ((256, 16384), 32), "dropout": ((64, 8192), 64), "padding": ((32, 4096), 64),
    "bias": ((32, 2048), 64), "decode": ((1, 16), 256)}
MOST_ELEMENTS, MOST_PAIRS, MOST_FLOPS = 1 << 26, 1 << 29, 2e12  # of q or k; of a bias in all entries of a batch; of a forward launch
GRAPH_US, MOST_LAUNCHES = 300.0, 40  # of a graph
THREADS = 14  # that compile


def length(draw, least, most):
    """Evenly in its logarithm; half of them round, as programs prefer them."""
    n = int(math.exp(draw.uniform(math.log(least), math.log(most))))
    return max(least, n & (-1 << max(0, n.bit_length() - 3))) if draw.random() < 0.5 else n


def draw_mask(draw, kind, seqlen):
    if kind == "window" or (kind == "packed" and draw.random() < 0.3):
        left = length(draw, 16, min(4096, seqlen))
        return f"window({left},{draw.choice((0, 0, left))})"
    fixed = {"cross": "full", "padding": "full", "bias": "full", "chunk": "causal", "decode": "causal"}
    return fixed.get(kind) or draw.choice(("full", "causal"))


def draw_shape(draw, kinds, ops):
    kind, op = draw.choice(kinds), draw.choice(ops)
    op = "fwd" if kind == "decode" else op
    dim = draw.choices(list(DIMS), DIMS.values())[0]
    group = draw.choice((1, 1, 1, 2, 4, 8))
    heads_kv = draw.choice((1, 2, 4, 8, 12, 16))
    queries, batches = KINDS[kind]
    seqlen_q = length(draw, *queries)
    behind = {"chunk": 32768, "decode": 65536}.get(kind)
    seqlen_k = seqlen_q + length(draw, 256, behind) if behind else length(draw, *queries) if kind == "cross" else seqlen_q
    mask = draw_mask(draw, kind, seqlen_q)
    batch = length(draw, 1, batches)
    if kind == "few":
        heads_kv, group = draw.choice((1, 2, 4)), draw.choice((1, 1, 2, 4))
    return Shape(kind, op, draw.choice(("bf16", "bf16", "fp16")), dim, mask, batch, heads_kv * group, heads_kv, seqlen_q, seqlen_k)


def allowed(s):
    most = max(s.heads * s.seqlen_q, s.heads_kv * s.seqlen_k) if s.kind == "decode" else s.heads * max(s.seqlen_q, s.seqlen_k)
    return (s.batch * most * s.head_dim <= MOST_ELEMENTS and flops(s) <= MOST_FLOPS
            and (s.kind != "bias" or s.batch * s.heads * s.seqlen_q * s.seqlen_k <= MOST_PAIRS))


def window(s):
    """Keys before and behind a query, or None."""
    return tuple(map(int, s.mask[7:-1].split(","))) if s.mask.startswith("window") else None


def lengths(s):
    """Of packed sequences, the longest first."""
    draw = random.Random(repr(s))
    return [s.seqlen_q] + [draw.randint(max(1, s.seqlen_q // 8), s.seqlen_q) for _ in range(s.batch - 1)]


def pairs(s, q, k):
    left, right = window(s) or (k, k)
    if "causal" in s.mask.split():
        return q * k - q * (q - 1) / 2
    hidden = lambda most: max(0, q - 1 - most) * max(0, q - most) / 2  # on one side of a window
    return q * k - (hidden(left) + hidden(right) if window(s) else 0)


def flops(s):
    """Keys that a mask of each entry's length hides are counted."""
    sizes = [(n, n) for n in lengths(s)] if s.kind == "packed" else [(s.seqlen_q, s.seqlen_k)] * s.batch
    seen = sum(itertools.starmap(functools.partial(pairs, s), sizes))
    return 4 * s.heads * seen * s.head_dim * (2.5 if s.op == "bwd" else 1)


def draw_shapes(args, draw_shape, allowed):
    draw, out = random.Random(args.seed), []
    while len(out) < args.count:
        s = draw_shape(draw, args.kinds, args.ops)
        if allowed(s):
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
        self.added = None  # to the scores, or a mask
        if s.kind == "padding":
            ends = torch.randint(max(1, s.seqlen_k // 8), s.seqlen_k + 1, (s.batch, 1, 1, 1), device="cuda")
            self.added = torch.arange(s.seqlen_k, device="cuda") < ends
        elif s.kind == "bias":
            self.added = torch.randn(1, s.heads, s.seqlen_q, s.seqlen_k, device="cuda", dtype=dtype).requires_grad_(s.op == "bwd")

    def qkv(self):
        return self.q, self.k, self.v

    def leaves(self):
        return self.qkv() + ((self.added,) if self.added is not None and self.added.requires_grad else ())


def ours(torch, s, x):
    import flashkiln
    if s.kind == "padding":
        with flashkiln.sdpa():
            return call_sdpa(torch, s, x)
    how = {"causal": s.mask == "causal", "window": window(s), "bias": x.added, "dropout_p": dropout(s)}
    if s.kind == "packed":
        how.update(cu_seqlens_q=x.cu, cu_seqlens_k=x.cu, max_seqlen_q=s.seqlen_q, max_seqlen_k=s.seqlen_k)
    return flashkiln.attention(*x.qkv(), **how)


def flash_operator(torch, s, x):
    """What SDPA's FLASH calls: it takes starts of sequences, and windows."""
    cu, (left, right) = (x.cu if s.kind == "packed" else None), window(s) or (None, None)
    return torch.ops.aten._flash_attention_forward(*x.qkv(), cu, cu, s.seqlen_q, s.seqlen_k, 0.0, s.mask == "causal", False,
                                                   window_size_left=left, window_size_right=right)[0]


def dropout(s):
    return 0.1 if s.kind == "dropout" else 0.0


def call_sdpa(torch, s, x):
    q, k, v = (y.transpose(1, 2) for y in x.qkv())
    how = {"is_causal": s.mask == "causal" and s.seqlen_q > 1}
    if s.mask == "causal" and 1 < s.seqlen_q != s.seqlen_k:
        from torch.nn.attention.bias import causal_lower_right
        how = {"attn_mask": causal_lower_right(s.seqlen_q, s.seqlen_k)}
    elif x.added is not None:
        how = {"attn_mask": x.added.expand(s.batch, -1, s.seqlen_q, -1)}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=s.heads != s.heads_kv, dropout_p=dropout(s), **how).transpose(1, 2)


def sdpa(backend):
    def attend(torch, s, x):
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend + "_ATTENTION")):
            return call_sdpa(torch, s, x)
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


def peers_of(s):
    """[(name, what calls it)]. In a graph EFFICIENT's backward reads dropout's seed where an eager forward pass has not left it."""
    if s.kind in ("packed", "window"):
        return [("sdpa-flash", flash_operator)]
    return [("sdpa-" + p.lower(), sdpa(p)) for p in PEERS if p != "EFFICIENT" or not dropout(s) or s.op == "fwd"]


def contenders(torch, s, stream):
    x, out = Inputs(torch, s), []
    for name, attend in [("flashkiln", ours)] + peers_of(s):
        try:
            out.append(Graphed(torch, name, attend, s, x, stream))
        except RuntimeError:  # a peer may refuse the shape
            if name == "flashkiln":
                raise
            torch.cuda.synchronize()
    return out


def disagree(s, peers):
    """How far our results are from the first peer's, in parts of the largest value. Of dropout each drops its own."""
    if len(peers) < 2 or dropout(s):
        return 0.0
    return max(((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-6)).item() for a, b in zip(peers[0].out, peers[1].out))


def compile_all(torch, shapes, one):
    """one(shape) calls our kernels: compiled by several threads, they are found in the store."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, shapes))
    torch.cuda.synchronize()
    print(f"kernels of {len(shapes)} shapes: {time.monotonic() - begin:.1f} s", flush=True)


def once(torch, attend, s, x):
    o = attend(torch, s, x)
    if s.op == "bwd":
        torch.autograd.grad(o, x.leaves(), x.dout, retain_graph=True)


def label(s):
    heads = f"{s.heads}" if s.heads == s.heads_kv else f"{s.heads} ({s.heads_kv})"
    return f"{s.kind:5} {s.op} {s.dtype} d{s.head_dim} {s.mask} {s.batch} x {heads} heads, {s.seqlen_q} queries, {s.seqlen_k} keys"


def time_shapes(torch, shapes, args, enter, file):
    """enter(shape): its contenders, this library first. Times and compares them until args.seconds are over; prints what is slow. The exit code."""
    rated, good, begin = [], True, time.monotonic()
    for s in shapes:
        if time.monotonic() - begin > args.seconds:
            print(f"{len(rated)} of {len(shapes)} shapes in {args.seconds} s")
            break
        who = enter(s)
        if (far := disagree(s, who)) > 3e-2 or math.isnan(far):
            good = False
            print(f"WRONG by {far:.1e} of the largest value: {label(s)}")
        times = round_robin(torch, who, args.rounds, args.launches, warm_ms=30)
        us = {c.name: median(times[c.name]) / c.count for c in who}
        append(os.path.join(args.out, file), [{**stamp(torch), **s._asdict(), "name": name, "median_us": f"{t:.2f}",
                                               "tflops": f"{flops(s) / t * 1e-6:.1f}"} for name, t in us.items()], FIELDS)
        peers = {name: t for name, t in us.items() if name != "flashkiln"}
        if peers:
            best = min(peers, key=peers.get)
            rated.append((peers[best] / us["flashkiln"], s, us["flashkiln"], best))
    report(rated, args)
    return 0 if good else 1


def report(rated, args):
    for kind in args.kinds:
        for op in args.ops:
            mine = [r for r, s, _, _ in rated if (s.kind, s.op) == (kind, op)]
            if mine:
                print(f"{kind} {op}: {len(mine)} shapes, {geomean(mine):.2f} times the best peer, {sum(r < 1 for r in mine)} slower, least {min(mine):.2f}")
    for r, s, t, best in sorted(rated, key=lambda x: x[0])[:args.show]:
        print(f"{r:.2f} {label(s)}: {t:.1f} us, {flops(s) / t * 1e-6:.0f} TFLOP/s; {best}")


def body(torch, library, context, args):
    shapes, stream = draw_shapes(args, draw_shape, allowed), torch.cuda.Stream()
    compile_all(torch, shapes, lambda s: once(torch, ours, s, Inputs(torch, s)))
    return time_shapes(torch, shapes, args, lambda s: contenders(torch, s, stream), "survey.csv")


def survey_arguments(description, kinds):
    parser = arguments(description)
    parser.set_defaults(rounds=6, launches=3)
    parser.add_argument("--kinds", default=list(kinds), type=words)
    parser.add_argument("--ops", default="fwd,bwd", type=words)
    parser.add_argument("--count", type=int, default=60, help="shapes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="of timing")
    parser.add_argument("--show", type=int, default=40, help="of the slowest shapes")
    return parser


def main():
    return run(survey_arguments(__doc__, KINDS), body)


if __name__ == "__main__":
    sys.exit(main())
