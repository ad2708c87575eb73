#!/usr/bin/env python3
"""Block-sparse attention: time against density, beside this library's own dense kernels and FlexAttention.

  sparse.py [--parts density,blocks,patterns,paper,long] [--dims 64,128] [--sizes 8192,65536] [--ops fwd,bwd] [--densities 5,10,25,50,100]
            [--flex] [--plot]

  density  blocks of 128 x 128 at random (and the diagonal's), as a predicate and as a table at run time, which must give the
           same bits, also with each of --templates; the same blocks by FlexAttention with --flex. 16,384 tokens and 2,048 hidden; from 32,768 tokens on
           one sequence and 512 hidden
  blocks   butterflies of blocks of 32 to 256 at the first of --sizes, also with each of --templates
  patterns BigBird, Longformer, butterfly and window of blocks of 128, of which the first two have rows and columns that see
           all; sizes as of density
  paper    FlashAttention's own setting (Dao et al. 2022, figure 3): batch 16, 8 heads, head_dim 64, fp16, butterfly(128),
           128 to 65,536 tokens; dense kernels up to --dense-most tokens
  long     1,048,576 tokens, one head, head_dim 64, butterfly(128), and the memory in use
  --plot   draws sparse.svg from sparse.csv: time against density, both on logarithmic scales (needs matplotlib, no GPU)
per_tile is the time of a visited pair as a multiple of the dense kernel's: time / dense time / density; clocks_per_tile the same
in an SM's clocks, as a chip at its power limit gives each contender another clock. Results: sparse.csv.
Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import csv
import math
import os
import sys

from clock import Clock
from contenders import ByAutograd, Kernel
from plots import plain
from problems import MASKS, Mask, Shape, Tensors
from timing import admit, append, arguments, check_small, median, numbers, round_robin, run, stamp, words

BLOCK = 128
FIELDS = ["date", "gpu", "driver_torch", "part", "op", "dtype", "head_dim", "seqlen", "batch", "heads", "name", "mask",
          "density", "median_us", "fastest_us", "launches", "of_dense", "per_tile", "megabytes", "sm_mhz", "clocks_per_tile"]


# ---- masks ----

def mixed(x):
    """docs/expressions.md: what hash is made of, on tensors of int64."""
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def hashed(x, y):
    return mixed((mixed(x + 0x9E3779B9 & 0xFFFFFFFF) + y) & 0xFFFFFFFF) >> 1


def random_words(percent):
    return f' blocks({BLOCK})="i == j || hash(hash(1, i), j) % 100 < {percent}"'


def random_blocks(torch, percent, count):
    """The same blocks: bools [count, count]."""
    i = torch.arange(count, device="cuda")[:, None]
    j = torch.arange(count, device="cuda")[None, :]
    return (i == j) | (hashed(hashed(torch.ones_like(i), i), j) % 100 < percent)


def packed(torch, blocks):
    """Bit j % 32 of word j / 32: templates/pattern/block_bits.lua."""
    padded = torch.nn.functional.pad(blocks, (0, -blocks.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (padded.int() << torch.arange(32, dtype=torch.int32, device=blocks.device)).sum(-1, dtype=torch.int32)


def sees_random(percent):
    def sees(t, q, k, b):
        i, j = q // BLOCK, k // BLOCK
        one = q.new_ones(())
        return (i == j) | (hashed(hashed(one, i), j) % 100 < percent)
    return sees


def sees_butterfly(t, q, k, b):
    x = (q // BLOCK) ^ (k // BLOCK)
    return x & (x - 1) == 0


MASKS["random"] = Mask(random_words(25), sees_random(25))
MASKS["butterfly"] = Mask(f" butterfly({BLOCK})", sees_butterfly)


# ---- who is timed ----

class Sparse(Kernel):
    """This library with some mask, whatever the shape says."""

    def __init__(self, session, name, mask, arrays=None, context=None):
        super().__init__(session.torch, session.library, context or session.context, name, arrays=arrays)
        self.mask = mask

    def spelling(self, shape, op):
        return f"{op} {shape.dtype} d{shape.head_dim}{self.mask}"


class FlexBlocks(ByAutograd):
    """FlexAttention with a list of full blocks: no mask function runs."""
    name, writes_lse, limit = "flex", False, 20.0

    def __init__(self, torch, blocks, compiled):
        from torch.nn.attention.flex_attention import BlockMask
        self.torch, self.compiled, count = torch, compiled, blocks.shape[-1]
        table = blocks.int()[None, None]
        number = table.sum(-1, dtype=torch.int32)
        order = torch.argsort(table, dim=-1, descending=True, stable=True).int()
        self.mask = BlockMask.from_kv_blocks(torch.zeros_like(number), torch.zeros_like(order), number, order,
                                             BLOCK_SIZE=BLOCK, seq_lengths=(count * BLOCK, count * BLOCK))

    def attend(self, q, k, v):
        return self.compiled(q, k, v, block_mask=self.mask)


class Session:
    def __init__(self, torch, library, context, args):
        self.torch, self.library, self.context, self.args = torch, library, context, args
        self.compiled, self.clock = None, Clock(torch)

    def flex(self, blocks):
        from torch.nn.attention.flex_attention import flex_attention
        self.compiled = self.compiled or self.torch.compile(flex_attention, dynamic=False)
        return FlexBlocks(self.torch, blocks, self.compiled)

    def contexts(self):
        """{" NAME": context} of --templates."""
        folders = {" " + os.path.basename(os.path.normpath(folder)): folder for folder in self.args.templates}
        return {name: self.library.context("cuda:0", self.args.plan_for, self.args.cache_dir, folder)
                for name, folder in folders.items()}

    def shape(self, seqlen, dim, op, batch=None, heads=None):
        return Shape(self.torch, self.args, seqlen, dim, "full", op, batch=batch, heads=heads)

    def time(self, shape, t, contenders):
        """{name: (times, MHz)} of those that run."""
        ready = [c for c in contenders if admit(self.torch, shape, t, None, c)]
        times = round_robin(self.torch, ready, self.args.rounds, self.args.launches, clock=self.clock)
        return {name: (of_name, self.clock.mhz(name)) for name, of_name in times.items()}

    def write(self, part, shape, density, mask, times, megabytes=""):
        dense, dense_mhz = times.get("dense", ([math.nan], math.nan))
        rows = []
        for name, (of_name, mhz) in times.items():
            us = median(of_name)
            share = us / median(dense)
            own = 1.0 if name == "dense" else density
            rows.append({**stamp(self.torch), "part": part, "op": shape.op, "dtype": shape.dtype,
                         "head_dim": shape.head_dim, "seqlen": shape.seqlen, "batch": shape.batch, "heads": shape.heads,
                         "name": name, "mask": "" if name == "dense" else mask.strip(), "density": f"{own:.5f}",
                         "median_us": f"{us:.2f}", "fastest_us": f"{min(of_name):.2f}", "launches": len(of_name),
                         "of_dense": f"{share:.4f}", "per_tile": f"{share / own:.3f}", "megabytes": megabytes, "sm_mhz": mhz,
                         "clocks_per_tile": f"{share / own * mhz / dense_mhz:.3f}"})
        append(os.path.join(self.args.out, "sparse.csv"), rows, FIELDS)
        print(f"{part} {shape.op} {shape.dtype} d{shape.head_dim} {shape.seqlen} density {density:.2%}: "
              + ", ".join(f"{r['name']} {r['median_us']} us ({r['per_tile']} a tile, {r['clocks_per_tile']} in clocks)" for r in rows), flush=True)


# ---- parts ----

def same_bits(contender, other, t, op):
    """Do the two give the same outputs, bit by bit, where they have the same tiles? (dQ is summed in no order.)"""
    found, plans = [], [c.launch.info.plan for c in (contender, other)]
    tiles = [(p.family, p.block_m, p.block_n) for p in plans]
    if tiles[0] != tiles[1]:
        print(f"  predicate and table have different plans: {tiles[0]}, {tiles[1]}")
        return True
    for c in (contender, other):
        t.poison(op)
        c.launch()
        found.append({n: x.clone() for n, x in c.results().items() if n != "dq"})
    return all(bool((found[0][n] == x).all()) for n, x in found[1].items())


def density(session):
    torch, args = session.torch, session.args
    contexts = {"": session.context, **session.contexts()}
    for seqlen in args.sizes:
        long = seqlen >= 32768
        for dim in args.dims:
            for op in args.ops:
                heads = 512 // dim if long else None
                shape = session.shape(seqlen, dim, op, batch=1 if long else None, heads=heads)
                t = Tensors(torch, shape)
                for percent in args.densities:
                    blocks = random_blocks(torch, percent, seqlen // BLOCK)
                    share = blocks.float().mean().item()
                    bits = {"block_bits": packed(torch, blocks).expand(shape.batch, shape.heads, -1, -1)}
                    pairs = [(Sparse(session, "predicate" + name, random_words(percent), context=context),
                              Sparse(session, "table" + name, f" block_bits({BLOCK})", bits, context))
                             for name, context in contexts.items()]
                    contenders = [Sparse(session, "dense", ""), *(c for pair in pairs for c in pair)]
                    times = session.time(shape, t, contenders + ([session.flex(blocks)] if args.flex else []))
                    if not all(same_bits(*pair, t, op) for pair in pairs):
                        print("FAIL: predicate and table differ")
                        return False
                    session.write("density", shape, share, random_words(percent), times)
    return True


def blocks(session):
    args = session.args
    contexts = session.contexts()
    for dim in args.dims:
        for op in args.ops:
            shape = session.shape(args.sizes[0], dim, op)
            t = Tensors(session.torch, shape)
            for size in (32, 64, 128, 256):
                mask = f" butterfly({size})"
                ours = [Sparse(session, "pattern", mask)]
                ours += [Sparse(session, "pattern" + name, mask, context=context) for name, context in contexts.items()]
                times = session.time(shape, t, [Sparse(session, "dense", ""), *ours])
                session.write("blocks", shape, butterfly_share(shape.seqlen, size), mask, times)
                for kernel in ours:
                    print("  " + kernel.describe())
    return True


def patterns(session):
    args = session.args
    contexts = {"": session.context, **session.contexts()}
    for seqlen in args.sizes:
        long = seqlen >= 32768
        for dim in args.dims:
            for op in args.ops:
                shape = session.shape(seqlen, dim, op, batch=1 if long else None, heads=512 // dim if long else None)
                t = Tensors(session.torch, shape)
                for pattern in ("bigbird({})", "longformer({},3,1,1)", "butterfly({})", "local({},4)"):
                    mask = " " + pattern.format(BLOCK)
                    ours = [Sparse(session, "pattern" + name, mask, context=context) for name, context in contexts.items()]
                    times = session.time(shape, t, [Sparse(session, "dense", ""), *ours])
                    tiles = ours[0].tiles
                    share = (tiles.partial + tiles.full) / (tiles.empty + tiles.partial + tiles.full)
                    session.write("patterns", shape, share, mask, times)
    return True


def butterfly_share(seqlen, block=BLOCK):
    count = -(-seqlen // block)
    shown = sum(1 for i in range(count) for b in range(count.bit_length() + 1)
                if (j := i if b == 0 else i ^ 1 << (b - 1)) < count)
    return shown / count ** 2


def paper(session):
    torch, args = session.torch, session.args
    kept, args.dtype = args.dtype, "fp16"
    for seqlen in [128 << n for n in range(10)]:
        if not args.least <= seqlen <= args.most:
            continue
        for op in args.ops:
            shape = session.shape(seqlen, 64, op, batch=16, heads=8)
            t = Tensors(torch, shape)
            ours = Sparse(session, "butterfly", f" butterfly({BLOCK})")
            contenders = [ours] + ([Sparse(session, "dense", "")] if seqlen <= args.dense_most else [])
            times = session.time(shape, t, contenders)
            session.write("paper", shape, butterfly_share(seqlen), ours.mask, times)
    args.dtype = kept
    return True


def long(session):
    torch, args = session.torch, session.args
    for op in args.ops:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        shape = session.shape(1 << 20, 64, op, batch=1, heads=1)
        t = Tensors(torch, shape)
        torch.cuda.reset_peak_memory_stats()  # drawing the inputs took more
        times = session.time(shape, t, [Sparse(session, "butterfly", f" butterfly({BLOCK})")])
        if any(getattr(t, name).isnan().any().item() for name in t.outputs(op)):
            print("FAIL: NaN")
            return False
        peak = torch.cuda.max_memory_allocated() / 1e6
        session.write("long", shape, butterfly_share(1 << 20), f" butterfly({BLOCK})", times, f"{peak:.0f}")
        print(f"  {peak:.0f} MB in use, of which inputs and outputs {(8 if op == 'bwd' else 4) * t.q.nbytes / 1e6:.0f} MB")
    return True


def check(session):
    """A small case of each mask against float64."""
    args = session.args
    kept, args.masks = args.masks, ["random", "butterfly"]
    ours = Kernel(session.torch, session.library, session.context)
    good = all(check_small(session.torch, args, op, [ours]) for op in args.ops)
    args.masks = kept
    return good


def body(torch, library, context, args):
    session = Session(torch, library, context, args)
    parts = {"density": density, "blocks": blocks, "patterns": patterns, "paper": paper, "long": long}
    if not args.unchecked and not check(session):
        return 1
    return 0 if all(parts[name](session) for name in args.parts) else 1


# ---- the picture ----

def plot(folder):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker
    with open(os.path.join(folder, "sparse.csv"), encoding="utf-8") as f:
        rows = [r for r in csv.DictReader(f) if r["part"] == "density"]
    cases = sorted({(int(r["seqlen"]), int(r["head_dim"]), r["op"]) for r in rows}, key=lambda c: (c[0], c[1], c[2] == "bwd"))
    figure, axes = pyplot.subplots(-(-len(cases) // 4), min(4, len(cases)), squeeze=False,
                                   figsize=(4 * min(4, len(cases)), 3.4 * -(-len(cases) // 4)))
    for axis, case in zip(axes.flat, cases):
        mine = [r for r in rows if (int(r["seqlen"]), int(r["head_dim"]), r["op"]) == case]
        for name in ("predicate", "table", "flex"):
            points = sorted((float(r["density"]), float(r["median_us"]) / 1000) for r in mine if r["name"] == name)
            if points:
                axis.loglog(*zip(*points), marker="o", label=name)
        full = median([float(r["median_us"]) / 1000 for r in mine if r["name"] == "dense"])
        least = min(float(r["density"]) for r in mine)
        axis.loglog([least, 1], [full * least, full], "k:", label="dense x density")
        axis.set_title(f"{case[2]} d{case[1]}, {case[0]} tokens")
        axis.set_xlabel("density")
        axis.set_ylabel("ms")
        axis.grid(True, which="both", alpha=0.3)
        axis.set_xticks([0.05, 0.1, 0.25, 0.5, 1], ["5 %", "10 %", "25 %", "50 %", "100 %"])
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        plain(axis.yaxis)
    axes.flat[0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(os.path.join(folder, "sparse.svg"))


def main():
    parser = arguments(__doc__, sizes="8192,65536")
    parser.add_argument("--parts", default="density,blocks,patterns,paper,long", type=words)
    parser.add_argument("--ops", default="fwd,bwd", type=words)
    parser.add_argument("--densities", default="5,10,25,50,100", type=numbers, help="percent")
    parser.add_argument("--flex", action="store_true", help="FlexAttention too (compiles for minutes)")
    parser.add_argument("--least", type=int, default=128, help="fewest tokens of the part paper")
    parser.add_argument("--most", type=int, default=65536, help="most tokens of the part paper")
    parser.add_argument("--dense-most", type=int, default=16384, help="most tokens of its dense kernel")
    parser.add_argument("--unchecked", action="store_true", help="leave out the small cases against float64")
    parser.add_argument("--plot", action="store_true", help="draw sparse.svg from sparse.csv and end")
    args = parser.parse_args()
    if args.plot:
        return plot(args.out)
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
