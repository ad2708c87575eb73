#!/usr/bin/env python3
"""Times FlashKiln's forward pass beside PyTorch's SDPA backends, in one process (timing.py says how).

  forward.py [--dims 64,128] [--masks full,causal] [--sizes 512,...,16384] [--dropout 0.1] [--plan-for GPU] [--flex]

Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77. Sizes share 16,384 tokens and a hidden size
of 2048. Masks: full, causal, and those that no SDPA backend has: window (1024 keys back), dilated, blocks, document,
padding. Results: forward.csv.
"""
import os
import sys

from contenders import Flex, Kernel, Sdpa, variants
from problems import Shape
from tables import print_tables
from timing import arguments, check_small, record, run, time_shape


def body(torch, library, context, args):
    ours = Kernel(torch, library, context)
    contenders = [Sdpa(torch, b) for b in args.peers] + ([Flex(torch)] if args.flex else [])
    contenders += variants(torch, library, args) + [ours]
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
    print_tables(all_rows)
    return 0


def main():
    parser = arguments(__doc__)
    parser.add_argument("--dropout", type=float, default=0.0, help="share of weights dropped, by every contender")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too (compiles for minutes)")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
