#!/usr/bin/env python3
"""Errors against float64 of this library, of eager attention in the same dtype and of SDPA FLASH, on the same problems.

  errors.py [--count 300] [--seed 1] [--peers FLASH]

Problems are drawn from one seed: dtype, head_dim, lengths from 1 to 1,500, full or causal, the spread of q, forward or
backward. Error is the largest over a tensor's elements. Printed is how the ratio to eager's is distributed; errors.csv
has every row. Exit code 1: a problem has no result here, or errs more than twice as much as eager.
Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import os
import random
import sys

from contenders import Kernel, Sdpa
from problems import Oracle, Shape, Tensors
from timing import append, arguments, run, stamp, wait

FIELDS = ["date", "gpu", "driver_torch", "problem", "batch", "heads", "seqlen", "spread", "name", "tensor", "error",
          "eager_error", "ratio"]
LIMIT = 2.0
DIMS = [32, 64, 96, 128, 192, 256]


def draw(torch, args, rng):
    """One problem: (shape, spread of q)."""
    args.dtype = rng.choice(["bf16", "fp16"])
    seqlen = rng.choice([rng.randint(1, 64), rng.randint(65, 500), rng.randint(501, 1500)])
    shape = Shape(torch, args, seqlen, rng.choice(DIMS), rng.choice(["full", "causal"]), rng.choice(["fwd", "bwd"]),
                  batch=rng.randint(1, 3), heads=rng.randint(1, 4))
    return shape, rng.choice([0.25, 1.0, 1.0, 4.0])


def errors(torch, shape, t, oracle, contender):
    """{tensor: error}, or None where the contender cannot do it."""
    try:
        contender.prepare(shape, t)
        t.poison(shape.op)
        contender.launch()
    except RuntimeError as e:
        print(f"  {contender.name}: {shape.spelling()} {shape.seqlen}: {str(e).splitlines()[0]}")
        return None
    wait(torch, 20)
    results = contender.results()
    return {n: oracle.error(n, x) for n, x in results.items()}


def summary(ratios):
    """The distribution of ratios as one line."""
    values = sorted(ratios)

    def at(share):
        return values[min(len(values) - 1, int(share * len(values)))]
    return (f"{len(values):5d} tensors: median {at(0.5):.2f}, 90 % {at(0.9):.2f}, 99 % {at(0.99):.2f}, "
            f"largest {values[-1]:.2f}; {sum(v > LIMIT for v in values)} beyond {LIMIT:g}")


def body(torch, library, context, args):
    rng, failed, seen, lines = random.Random(args.seed), 0, {}, []
    ours = Kernel(torch, library, context)
    everyone = [ours] + [Sdpa(torch, b) for b in args.peers]
    for i in range(60 if args.quick else args.count):
        shape, spread = draw(torch, args, rng)
        t = Tensors(torch, shape, seed=args.seed * 1000003 + i, spread=spread)
        oracle = Oracle(torch, shape, t)
        for c in everyone:
            found = errors(torch, shape, t, oracle, c)
            failed += found is None and c is ours
            for name, error in (found or {}).items():
                eager = oracle.eager[name]
                # Where eager rounds to the exact result, all that is left is the last bit of fp32.
                ratio = (error + 1e-7) / (eager + 1e-7)
                if c is ours and not ratio <= LIMIT:
                    failed += 1
                    print(f"FAIL {shape.spelling()} {shape.batch}x{shape.heads}x{shape.seqlen} seed {args.seed} problem "
                          f"{i}: {name} errs {error:.2e}, eager {eager:.2e}", flush=True)
                seen.setdefault((c.name, shape.op), []).append(ratio)
                lines.append({**stamp(torch), "problem": shape.spelling(), "batch": shape.batch, "heads": shape.heads,
                              "seqlen": shape.seqlen, "spread": spread, "name": c.name, "tensor": name,
                              "error": f"{error:.4e}", "eager_error": f"{eager:.4e}", "ratio": f"{ratio:.4f}"})
    append(os.path.join(args.out, "errors.csv"), lines, FIELDS)
    for (name, op), ratios in sorted(seen.items()):
        print(f"{name:16s} {op}: {summary(ratios)}")
    return 1 if failed else 0


def main():
    parser = arguments(__doc__, peers="FLASH")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
