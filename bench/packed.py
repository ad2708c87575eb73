#!/usr/bin/env python3
"""Packed sequences of random lengths, both passes, as encoders train on them: beside SDPA FLASH with cu_seqlens, and FlexAttention.

  packed.py [--dims 64,128] [--lengths 16-128,64-512,...] [--tokens 16384] [--masks full,causal] [--no-flex]

Lengths are drawn evenly from each range until there are so many tokens. Contenders: this library's kernels for such sizes, PyTorch's
FLASH operators, which its nested tensors and varlen_attn call, FlexAttention with a mask of documents. Results are compared with
float64 on the first head. Results: packed.csv. Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import ctypes
import itertools
import os
import random
import sys

from contenders import Launch
from problems import largest, torch_dtype
from timing import append, arguments, median, round_robin, run, stamp

FIELDS = ["date", "gpu", "driver_torch", "op", "dtype", "head_dim", "mask", "heads", "shortest", "longest", "tokens", "sequences", "name",
          "head_rows", "median_us"]
LENGTHS = "16-64,16-128,1-256,64-512,256-1024,512-2048"
GRADIENTS = ("dq", "dk", "dv")


class Batch:
    """The sequences, and float64's results of the first head."""

    def __init__(self, torch, args, dim, mask, span):
        self.torch, self.args, self.dim, self.mask, self.span = torch, args, dim, mask, span
        draw, self.lengths = random.Random(7), []
        while (left := args.tokens - sum(self.lengths)) > 0:
            self.lengths.append(min(draw.randint(*span), left))
        self.heads, self.longest, self.causal = args.hidden // dim, max(self.lengths), mask == "causal"
        ends = [0, *itertools.accumulate(self.lengths)]
        self.cu = torch.tensor(ends, device="cuda", dtype=torch.int32)
        new = lambda: torch.randn(args.tokens, self.heads, dim, device="cuda").to(torch_dtype(torch, args.dtype))
        self.q, self.k, self.v, self.dout = new(), new(), new(), new()
        self.exact = {name: torch.empty(args.tokens, dim, device="cuda", dtype=torch.float64) for name in ("o", *GRADIENTS)}
        for begin, end in zip(ends, ends[1:]):
            self.solve(slice(begin, end))

    def solve(self, rows):
        q, k, v = (x[rows, 0].double().requires_grad_() for x in (self.q, self.k, self.v))
        s = q @ k.T * self.dim ** -0.5
        if self.causal:
            s = s.masked_fill(self.torch.ones_like(s, dtype=self.torch.bool).triu(1), float("-inf"))
        o = s.softmax(-1) @ v
        o.backward(self.dout[rows, 0].double())
        for name, x in zip(("o", *GRADIENTS), (o.detach(), q.grad, k.grad, v.grad)):
            self.exact[name][rows] = x

    def error(self, op, results):
        """The largest, in parts of the largest value."""
        names = ("o",) if op == "fwd" else GRADIENTS
        return largest(((x[:, 0].double() - self.exact[n]).abs().max() / self.exact[n].abs().max()).item() for n, x in zip(names, results))


class Ours:
    name = "flashkiln"

    def __init__(self, session, batch):
        self.session, self.batch = session, batch

    def prepare(self, op):
        torch, library, context = self.session
        b = self.batch
        words = f"{b.args.dtype} d{b.dim}{' causal' * b.causal} packed"
        new = lambda: torch.full_like(b.q, float("nan"))
        tensors = {"q": b.q[None], "k": b.k[None], "v": b.v, "o": new(), "lse": torch.empty(b.heads, b.args.tokens, device="cuda")}
        fields = {"batch": len(b.lengths), "seqlen_q": b.longest, "seqlen_k": b.longest, "total_q": b.args.tokens, "total_k": b.args.tokens,
                  "cu_seqlens_q": b.cu.data_ptr(), "cu_seqlens_k": b.cu.data_ptr()}
        fields.update({f"{name}_stride": (ctypes.c_int64 * 3)(0, b.heads * b.dim, b.dim) for name in ("q", "k", "v", "o", "dout", *GRADIENTS)})
        self.launch = Launch(torch, library, context, f"fwd {words}", tensors, **fields)
        self.results = lambda: [tensors["o"]]
        if op == "bwd":
            self.launch()
            tensors = {**tensors, "dout": b.dout, **{name: new() for name in GRADIENTS}}
            self.launch = Launch(torch, library, context, f"bwd {words}", tensors, **fields)
            self.results = lambda: [tensors[name] for name in GRADIENTS]


class Flash:
    name = "sdpa-flash"

    def __init__(self, session, batch):
        self.aten, self.batch = session[0].ops.aten, batch

    def prepare(self, op):
        b = self.batch
        sizes = (b.cu, b.cu, b.longest, b.longest, 0.0, b.causal)
        forward = lambda: self.aten._flash_attention_forward(b.q, b.k, b.v, *sizes, False)
        o, lse, state, unused = forward()[:4]
        backward = lambda: self.aten._flash_attention_backward(b.dout, b.q, b.k, b.v, o, lse, *sizes, state, unused)
        self.call, self.count = (forward, 1) if op == "fwd" else (backward, 3)

    def launch(self):
        self.out = self.call()

    def results(self):
        return self.out[:self.count]


class Flex:
    name = "flex"

    def __init__(self, session, batch):
        self.torch, self.batch = session[0], batch

    def prepare(self, op):
        torch, b = self.torch, self.batch
        from torch.nn.attention import flex_attention
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention.flex_attention, dynamic=False)
        document = torch.repeat_interleave(torch.arange(len(b.lengths), device="cuda"), torch.tensor(b.lengths, device="cuda"))
        shows = lambda _, h, q, k: (document[q] == document[k]) & (q >= k if b.causal else q >= 0)
        mask = flex_attention.create_block_mask(shows, None, None, b.args.tokens, b.args.tokens, device="cuda")
        inputs = [x.transpose(0, 1)[None].detach().requires_grad_(op == "bwd") for x in (b.q, b.k, b.v)]
        attend = lambda: compiled(*inputs, block_mask=mask)
        out, dout = attend(), b.dout.transpose(0, 1)[None]
        self.call = (lambda: [attend()]) if op == "fwd" else lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True)

    def launch(self):
        self.out = self.call()

    def results(self):
        return [x[0].transpose(0, 1) for x in self.out]


def ready(contenders, op, batch):
    """Those whose results are right; None: ours is not."""
    out = []
    for c in contenders:
        try:
            c.prepare(op)
            c.launch()
            batch.torch.cuda.synchronize()
            error = batch.error(op, c.results())
        except RuntimeError as e:
            print(f"  {c.name}: not available: {str(e).splitlines()[0]}")
            continue
        if error < 2e-2:
            out.append(c)
        else:
            print(f"  {c.name}: WRONG: {error:.1e} of the largest value")
            if c.name == Ours.name:
                return None
    return out


def body(torch, library, context, args):
    session, good = (torch, library, context), True
    for dim, mask, span in itertools.product(args.dims, args.masks, args.lengths):
        batch = Batch(torch, args, dim, mask, span)
        for op in args.ops:
            who = ready([c(session, batch) for c in (Ours, Flash, Flex)[:3 if args.flex else 2]], op, batch)
            if who is None:
                good = False
                continue
            times = round_robin(torch, who, args.rounds, args.launches)
            rows = [{**stamp(torch), "op": op, "dtype": args.dtype, "head_dim": dim, "mask": mask, "heads": batch.heads, "shortest": span[0],
                     "longest": span[1], "tokens": args.tokens, "sequences": len(batch.lengths), "name": c.name,
                     "head_rows": c.launch.info.plan.head_rows if c.name == Ours.name else "",
                     "median_us": f"{median(times[c.name]):.2f}"} for c in who]
            append(os.path.join(args.out, "packed.csv"), rows, FIELDS)
            print(f"{op} d{dim} {mask} {span[0]} to {span[1]}, us: " + ", ".join(f"{r['name']} {r['median_us']}" for r in rows), flush=True)
    return 0 if good else 1


def main():
    parser = arguments(__doc__)
    parser.add_argument("--lengths", default=LENGTHS, type=lambda s: [tuple(map(int, x.split("-"))) for x in s.split(",")])
    parser.add_argument("--ops", default="fwd,bwd", type=lambda s: s.split(","))
    parser.add_argument("--no-flex", dest="flex", action="store_false")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
