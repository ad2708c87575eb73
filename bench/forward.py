#!/usr/bin/env python3
"""Times FlashKiln's forward pass beside PyTorch's SDPA backends, in one process (timing.py says how).

  forward.py [--dims 64,128] [--masks full,causal] [--sizes 512,...,16384] [--plan-for GPU] [--flex] [--out DIR]

Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77. Sizes share 16,384 tokens and a hidden size
of 2048. Masks: full, causal, and those that no SDPA backend has: window (1024 keys back), dilated, blocks.
"""
import argparse
import ctypes
import os
import sys

import flashkiln
from timing import Fault, MASKS, Sdpa, Shape, print_tables, record, time_shape

SPELLINGS = {
    "full": "",
    "causal": " causal",
    "window": " window(1024,0)",
    "dilated": ' keep="k <= q && q - k < 2048 && (q - k) % 4 == 0"',
    "blocks": ' keep="k <= q && ((q / 128 ^ k / 128) & 3) == 0"',
}


class Kernel:
    """This library's forward pass."""
    name, writes_lse = "flashkiln", True

    def __init__(self, torch, library, context):
        self.torch, self.library, self.context = torch, library, context

    def prepare(self, shape, t):
        problem = self.library.problem(f"fwd {shape.dtype} d{shape.head_dim}{SPELLINGS[shape.mask]}")
        self.handle, self.info = self.library.kernel(self.context, problem)
        sizes = flashkiln.Shape(shape.batch, shape.heads, shape.heads, shape.seqlen, shape.seqlen)
        self.tiles = self.library.tiles(problem, self.info.plan, sizes)
        a = self.args = flashkiln.Args(struct_size=ctypes.sizeof(flashkiln.Args))
        a.batch, a.num_heads_q, a.num_heads_kv = shape.batch, shape.heads, shape.heads
        a.seqlen_q = a.seqlen_k = shape.seqlen
        for n in ("q", "k", "v", "o", "lse"):
            setattr(a, n, getattr(t, n).data_ptr())
        for n in "qkvo":
            setattr(a, n + "_stride", (ctypes.c_int64 * 3)(*getattr(t, n).stride()[:3]))
        self.stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        self.pointer = ctypes.byref(a)

    def launch(self):
        self.library("fk_execute", self.handle, self.pointer, None, ctypes.c_size_t(0), self.stream)

    def describe(self):
        plan, image, tiles = self.info.plan, self.info.image, self.tiles
        total = tiles.empty + tiles.partial + tiles.full
        how = "from the store" if self.info.from_store else f"compiled in {image.compile_ms:.0f} ms"
        return (f"{image.target.decode()} {plan.block_m}x{plan.block_n}, {plan.stages} stages, "
                f"{image.threads} threads, {image.registers} registers, {image.spill_bytes} B spilled, "
                f"{image.smem_dynamic} B smem, {how}; "
                f"tiles: {tiles.empty / total:.1%} skipped, {tiles.partial / total:.1%} masked; "
                f"bound by {plan.bound.decode()}")


class Flex:
    """PyTorch's FlexAttention, compiled for each mask and shape."""
    name, writes_lse = "flex", False

    def __init__(self, torch):
        from torch.nn.attention import flex_attention
        self.torch, self.flex = torch, flex_attention
        self.compiled = torch.compile(flex_attention.flex_attention, dynamic=False)

    def prepare(self, shape, t):
        self.views = [x.transpose(1, 2) for x in (t.q, t.k, t.v)]
        sees = MASKS[shape.mask]
        self.mask = sees and self.flex.create_block_mask(lambda b, h, q, k: sees(q, k), None, None, shape.seqlen,
                                                         shape.seqlen, device="cuda")

    def launch(self):
        self.o = self.compiled(*self.views, block_mask=self.mask)

    def result(self):
        return self.o.transpose(1, 2)


def run(torch, args):
    library = flashkiln.Library(args.lib)
    ours = Kernel(torch, library, library.context("cuda:0", args.plan_for, args.cache_dir))
    contenders = [Sdpa(torch, b) for b in args.peers.split(",") if b] + ([Flex(torch)] if args.flex else []) + [ours]
    path, all_rows = os.path.join(args.out, "forward.csv"), []
    for dim in args.dims:
        for mask in args.masks:
            for seqlen in args.sizes:
                shape = Shape(torch, args.tokens, args.hidden, seqlen, dim, mask, args.dtype)
                rows = time_shape(torch, shape, contenders, args)
                record(path, rows)
                all_rows += rows
                if not any(r["name"] == ours.name for r in rows):
                    print(f"FAIL {shape.label()} {seqlen}: flashkiln has no result")
                    return 1
            print(f"  {shape.label()}: {ours.describe()}")
    print_tables(all_rows)
    return 0


def numbers(text):
    return [int(x) for x in text.split(",")]


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default=os.path.join(root, "build", "libflashkiln.so"))
    parser.add_argument("--out", default=os.path.join(root, "build", "bench"), help="where forward.csv goes")
    parser.add_argument("--dims", default="64,128", type=numbers)
    parser.add_argument("--masks", default="full,causal", type=lambda s: s.split(","))
    parser.add_argument("--sizes", default="512,1024,2048,4096,8192,16384", type=numbers)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--launches", type=int, default=5, help="timed launches of a contender in a round")
    parser.add_argument("--peers", default="FLASH,CUDNN", help="SDPA backends")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too (compiles for minutes)")
    parser.add_argument("--plan-for", help="another GPU's plan, through PTX")
    parser.add_argument("--cache-dir")
    args = parser.parse_args()
    try:
        import torch
        import torch.nn.attention
    except ImportError:
        torch = None
    if not torch or not torch.cuda.is_available():
        print("skipped: this benchmark needs an NVIDIA GPU and PyTorch")
        return 77
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.zeros(1, device="cuda")  # makes the primary context current
    os.makedirs(args.out, exist_ok=True)
    try:
        return run(torch, args)
    except Fault as e:
        print("FAULT " + ": ".join(map(str, e.args)), flush=True)
        os._exit(1)  # the context may hang on a kernel that never ends


if __name__ == "__main__":
    sys.exit(main())
