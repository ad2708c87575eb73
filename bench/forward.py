#!/usr/bin/env python3
"""Times FlashKiln's forward pass beside PyTorch's SDPA backends, in one process (timing.py says how).

  forward.py [--dims 64,128] [--masks full,causal] [--sizes 512,...,16384] [--dropout 0.1] [--plan-for GPU] [--flex] [--sides]

Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77. Sizes share 16,384 tokens and a hidden size
of 2048. Masks: full, causal, and those that no SDPA backend has: window (1024 keys back), dilated, blocks, document,
padding. With --dropout this library's kernel without it is timed too, and with --dtype e4m3, which no SDPA backend takes,
its kernels of e4m3 with the word `fast` and of bf16: the last column of the tables is what the latter took. With --sides the kernels are
timed without sides of L2 (docs/kernels.md), too. Results: forward.csv.
"""
import os
import sys

from contenders import Beside, Fast, Flex, Kernel, Sdpa, variants
from problems import Shape
from tables import print_tables
from timing import arguments, check_small, record, run, time_shape


def beside(torch, library, context, args):
    """This library's kernels that tell what dropout and 8 bits cost or save."""
    out = []
    if args.dropout:
        out.append(Beside(torch, library, context, "without-dropout", lambda words: words.replace(" dropout", "")))
    if args.dtype == "e4m3":
        out.append(Beside(torch, library, context, "bf16", lambda words: words.replace(" e4m3", " bf16", 1)))
    return out


def without_sides(torch, library, args):
    """The same kernels, whose heads belong to no side of L2."""
    os.environ["FLASHKILN_L2_SIDES"] = "off"
    context = library.context("cuda:0", args.plan_for, args.cache_dir)
    del os.environ["FLASHKILN_L2_SIDES"]
    return Kernel(torch, library, context, "without-sides")


def body(torch, library, context, args):
    ours, plain = Kernel(torch, library, context), beside(torch, library, context, args)
    peers = [] if args.dtype == "e4m3" else args.peers
    contenders = [Sdpa(torch, b) for b in peers] + ([Flex(torch)] if args.flex else [])
    fast = [Fast(torch, library, context)] if args.dtype == "e4m3" else []
    sideless = [without_sides(torch, library, args)] if args.sides else []
    contenders += sideless + variants(torch, library, args) + [ours] + fast + plain
    all_rows = []
    if not check_small(torch, args, "fwd", contenders):
        return 1
    for dim in args.dims:
        for mask in args.masks:
            for seqlen in args.sizes:
                shape = Shape(torch, args, seqlen, dim, mask)
                rows = time_shape(torch, shape, contenders, args)
                record(os.path.join(args.out, "forward.csv"), rows)
                all_rows += rows
                if not any(r["name"] == ours.name for r in rows):
                    print(f"FAIL {shape.label()} {seqlen}: flashkiln has no result")
                    return 1
            print(f"  {shape.label()}: {ours.describe()}")
    print_tables(all_rows, tuple("sdpa-" + b.lower() for b in peers) + tuple(c.name for c in sideless + plain))
    return 0


def main():
    parser = arguments(__doc__)
    parser.add_argument("--dropout", type=float, default=0.0, help="share of weights dropped, by every contender")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too (compiles for minutes)")
    parser.add_argument("--sides", action="store_true", help="without sides of L2, too")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
