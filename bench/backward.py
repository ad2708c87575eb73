#!/usr/bin/env python3
"""Times FlashKiln's backward pass (dq, dk, dv from stored o and lse) beside PyTorch's SDPA backends, in one process.

  backward.py [--dims 64,128,256] [--masks full,causal] [--sizes 512,...,16384] [--dropout 0.1] [--no-deterministic]
              [--repeats 100]

Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77. Gradients are compared with float64 first, of a
small case of each kind and, without dropout, of every shape. The deterministic kernels are timed too: their cost is
their ratio. --repeats launches each of them so many times more and compares their gradients bit for bit.
Results: backward.csv.
"""
import os
import sys

from contenders import Kernel, Sdpa, variants
from problems import Shape, Tensors
from tables import geomean, grouped, print_tables, ratios
from timing import arguments, check_small, record, run, time_shape


def deterministic(torch, library, context):
    return Kernel(torch, library, context, "flashkiln-deterministic", " deterministic")


def contenders(torch, library, context, args):
    ours = [Kernel(torch, library, context)]
    if args.deterministic:
        ours.append(deterministic(torch, library, context))
    return [Sdpa(torch, b) for b in args.peers] + ours + variants(torch, library, args)


def print_deterministic(rows):
    cells = [r for group in grouped(rows).values()
             for r in ratios(group, "flashkiln", "flashkiln-deterministic").values()]
    if cells:
        print(f"\ndeterministic takes {geomean(cells):.2f} times as long as flashkiln (geometric mean; {min(cells):.2f} to "
              f"{max(cells):.2f})")


def differing(torch, shape, kernel, launches):
    """How many launches' gradients have other bits than those of the first one."""
    t = Tensors(torch, shape)
    kernel.prepare(shape, t)
    first, count = None, 0
    for _ in range(launches):
        t.poison("bwd")
        kernel.launch()
        bits = [getattr(t, n).view(torch.uint8) for n in t.outputs("bwd")]
        if first is None:
            first = [b.clone() for b in bits]
            if not all(torch.isfinite(getattr(t, n)).all() for n in t.outputs("bwd")):
                return launches
        count += not all(torch.equal(a, b) for a, b in zip(first, bits))
    return count


def repeat(torch, args, kernel):
    """Launches the deterministic kernel of each shape --repeats times. False: its bits differ somewhere."""
    same = True
    for dim in args.dims:
        for mask in args.masks:
            counts = [differing(torch, Shape(torch, args, n, dim, mask, "bwd"), kernel, args.repeats) for n in args.sizes]
            print(f"{args.repeats} launches of bwd {args.dtype} d{dim} {mask} deterministic at {args.sizes} tokens: "
                  f"{counts} differ from the first", flush=True)
            same &= not any(counts)
    return same


def body(torch, library, context, args):
    everyone, all_rows = contenders(torch, library, context, args), []
    if not check_small(torch, args, "bwd", everyone):
        return 1
    for dim in args.dims:
        for mask in args.masks:
            for seqlen in args.sizes:
                shape = Shape(torch, args, seqlen, dim, mask, "bwd")
                rows = time_shape(torch, shape, everyone, args)
                record(os.path.join(args.out, "backward.csv"), rows)
                all_rows += rows
                if not any(r["name"] == "flashkiln" for r in rows):
                    print(f"FAIL {shape.label()} {seqlen}: flashkiln has no result")
                    return 1
            print(f"  {shape.label()}: {everyone[len(args.peers)].describe()}")
    print_tables(all_rows)
    print_deterministic(all_rows)
    if args.repeats and not repeat(torch, args, deterministic(torch, library, context)):
        return 1
    return 0


def main():
    parser = arguments(__doc__, dims="64,128,256")
    parser.add_argument("--dropout", type=float, default=0.0, help="share of weights dropped, by every contender")
    parser.add_argument("--no-deterministic", dest="deterministic", action="store_false")
    parser.add_argument("--repeats", type=int, default=0, help="launches of each deterministic kernel, compared bit for bit")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
