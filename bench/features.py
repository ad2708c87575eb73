#!/usr/bin/env python3
"""What masks save, what pages cost, and masks, bias and fp32 beside PyTorch's EFFICIENT backend, in one process.

  features.py [--parts tiles,cost,bias,bits,padding,fp32,pages] [--dims 64] [--sizes 1024,4096] [--features window,alibi] [--no-flex]

  tiles    16,384 tokens in one sequence: window (1024 keys back) and 16 documents, forward and backward. Time as a share of
           that without a mask beside the share of tiles visited, counted from the mask element by element, of packed
           documents from each one's first token. Results: features-tiles.csv
  cost     each of --features (window, document, packed, alibi, softcap, bias, bias16, gqa) beside this library's kernel without it and
           beside FlexAttention, compiled for it, round-robin: time of a visited tile over that of the plain kernel's, and the
           ratio to FlexAttention; --ops fwd,bwd, the latter with the bias's gradient. 16,384 tokens, 4,096 in a sequence for a
           bias. A feature takes about 20 s with one head_dim, most of it FlexAttention's compiler. Results: features-cost.csv
  bias     a bias of [heads, seqlen, seqlen] in the dtype of q, repeated over the batch, beside EFFICIENT, CUDNN (forward: it has no
           gradient of it) and the kernel without it; the backward pass makes its gradient too
  bits     boolean masks, here as bits, beside EFFICIENT, CUDNN and FlexAttention, which read them (it from a BlockMask, too, whose
           making is not timed), and beside the kernels without a mask and with `causal` in its place; --ops fwd,bwd. random:
           [batch, heads, seqlen, seqlen], 70 % are seen; causal, and padded (causal, and keys from the start are missing, up to
           a half of them, whose queries see themselves): the same for all heads
  padding  key lengths from a half to all of seqlen: here as a mask of its own, in EFFICIENT as a tensor of -inf
  fp32     fp32 inputs, through bf16 x6 here; no mask, and causal
  pages    keys in pages of 1, 16, 64 and 256 rows, in random order, beside the same keys in rows, causal
Results of the last five: features.csv. Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import itertools
import os
import sys

from contenders import Beside, Flex, Kernel, Pages, Sdpa
from problems import Shape, Tensors, packed_share
from tables import print_tables
from timing import append, arguments, record, run, stamp, time_shape

TILE_FIELDS = ["date", "gpu", "driver_torch", "op", "dtype", "head_dim", "mask", "seqlen", "tile", "visited", "median_us",
               "full_us", "time_share", "over_tiles"]

COST_FIELDS = ["date", "gpu", "driver_torch", "op", "dtype", "head_dim", "feature", "seqlen", "batch", "tile", "visited", "median_us",
               "plain_us", "over_plain", "flex_us", "over_flex"]


class Session:
    def __init__(self, torch, library, context, args):
        self.torch, self.library, self.context, self.args = torch, library, context, args
        self.rows = []

    def ours(self, **options):
        return Kernel(self.torch, self.library, self.context, **options)

    def time(self, shape, contenders, tensors=None, bias=None, mask=None):
        """`mask`: its name, where the shape does not know it."""
        rows = time_shape(self.torch, shape, contenders, self.args, tensors, bias)
        for row in rows if mask else []:
            row.update(mask=mask, case=f"{shape.label()} {mask}")
        record(os.path.join(self.args.out, "features.csv"), rows)
        self.rows += rows
        return any(r["name"] == "flashkiln" for r in rows)


# ---- tiles ----

def packed(session, op, dim):
    """The documents as a packed batch: (shape, tensors, contender)."""
    torch = session.torch
    shape = Shape(torch, session.args, session.args.tokens, dim, "document", op, batch=1)
    t = Tensors(torch, shape)
    ids = t.arrays["doc_q"][0]
    starts = torch.searchsorted(ids, torch.arange(int(ids.max()) + 2, device="cuda").int()).int()
    longest = int((starts[1:] - starts[:-1]).max())
    return shape, t, Packed(session, starts, longest)


class Packed(Kernel):
    """The documents of one sequence as sequences of a packed batch."""

    def __init__(self, session, starts, longest):
        super().__init__(session.torch, session.library, session.context, "flashkiln-packed")
        self.starts, self.longest = starts, longest

    def spelling(self, shape, op):
        return shape.spelling(op).replace(" document", " packed")

    def fields(self, shape):
        total = shape.seqlen
        return {**super().fields(shape), "batch": len(self.starts) - 1, "seqlen_q": self.longest, "seqlen_k": self.longest,
                "cu_seqlens_q": self.starts.data_ptr(), "cu_seqlens_k": self.starts.data_ptr(), "total_q": total,
                "total_k": total}


def visited(session, shape, kernel):
    """Its tiles, as in "128x64", and the share of them that it visits."""
    plan = kernel.launch.info.plan
    size = plan.block_m, plan.block_n
    share = (packed_share(kernel.starts.diff().tolist(), *size) if isinstance(kernel, Packed)
             else shape.tile_share(session.torch, *size))
    return f"{plan.block_m}x{plan.block_n}", share


def tile_row(session, shape, name, kernel, row, full):
    torch = session.torch
    tile, share = visited(session, shape, kernel)
    us, full_us = float(row["median_us"]), float(full["median_us"])
    out = {**stamp(torch), "op": shape.op, "dtype": shape.dtype, "head_dim": shape.head_dim, "mask": name,
           "seqlen": shape.seqlen, "tile": tile, "visited": f"{share:.4f}",
           "median_us": row["median_us"], "full_us": full["median_us"], "time_share": f"{us / full_us:.4f}",
           "over_tiles": f"{us / full_us / share - 1:.4f}"}
    append(os.path.join(session.args.out, "features-tiles.csv"), [out], TILE_FIELDS)
    print(f"  {shape.label()}, {name}, tiles of {tile}: {share:.1%} visited, {us / full_us:.1%} of the time of full "
          f"({us / full_us / share - 1:+.1%})", flush=True)


def tiles(session):
    for dim in session.args.dims:
        for op in ("fwd", "bwd"):
            seqlen = session.args.tokens
            full = Shape(session.torch, session.args, seqlen, dim, "full", op, batch=1)
            base = time_shape(session.torch, full, [session.ours()], session.args)
            if not base:
                return False
            for mask in ("window", "document"):
                shape, kernel = Shape(session.torch, session.args, seqlen, dim, mask, op, batch=1), session.ours()
                rows = time_shape(session.torch, shape, [kernel], session.args)
                if not rows:
                    return False
                tile_row(session, shape, mask, kernel, rows[0], base[0])
            shape, t, kernel = packed(session, op, dim)
            rows = time_shape(session.torch, shape, [kernel], session.args, t)
            if not rows:
                return False
            tile_row(session, shape, "packed", kernel, rows[0], base[0])
    return True


# ---- cost ----

# What a feature adds to a plain problem: arguments of Shape.
FEATURES = {
    "window": {"mask": "window"},
    "document": {"mask": "document"},
    "packed": {"mask": "document"},
    "alibi": {"score": "alibi"},
    "softcap": {"score": "softcap"},
    "bias": {"score": "bias"},
    "bias16": {"score": "bias16"},
    "gqa": {"group": 8},
}
BIAS_SEQLEN = 4096  # whose bias takes 64 MB a head


def cost_row(session, name, shape, kernel, times):
    tile, share = visited(session, shape, kernel)
    us, plain, flex = (times.get(who) for who in ("ours", "plain", "flex"))
    row = {**stamp(session.torch), "op": shape.op, "dtype": shape.dtype, "head_dim": shape.head_dim, "feature": name,
           "seqlen": shape.seqlen, "batch": shape.batch, "tile": tile, "visited": f"{share:.4f}",
           "median_us": f"{us:.2f}", "plain_us": f"{plain:.2f}", "over_plain": f"{us / plain / share - 1:.4f}",
           "flex_us": f"{flex:.2f}" if flex else "", "over_flex": f"{flex / us:.3f}" if flex else ""}
    append(os.path.join(session.args.out, "features-cost.csv"), [row], COST_FIELDS)
    print(f"  {shape.op} {name}, d{shape.head_dim}, {shape.seqlen}: {us:.1f} us, {share:.1%} of the tiles in {us / plain:.1%} of the plain "
          f"kernel's {plain:.1f} us: {us / plain / share - 1:+.1%} a tile; "
          + (f"{flex / us:.2f} times FlexAttention" if flex else "FlexAttention has no time"), flush=True)


def cost_of(session, name, op, dim):
    """Of one feature; False: this library has no time."""
    torch, args = session.torch, session.args
    seqlen = BIAS_SEQLEN if name.startswith("bias") else args.tokens
    shape = Shape(torch, args, seqlen, dim, op=op, batch=args.tokens // seqlen, **{"mask": "full", **FEATURES[name]})
    t, ours, grads = Tensors(torch, shape), session.ours(), ()
    if name == "packed":
        shape, t, ours = packed(session, op, dim)
    elif "bias" in t.arrays and op == "bwd":
        grads = ("bias",)
        sums = torch.zeros(t.arrays["bias"][:1].shape, device="cuda").expand(shape.batch, -1, -1, -1)
        ours = session.ours(words=" grad=bias", grads={"bias": sums})
    # Before the others, as in the backward pass each fills o and lse by its own forward pass.
    plain = Beside(torch, session.library, session.context, "plain", lambda words: " ".join(words.split()[:3]))
    if args.flex:
        torch._dynamo.reset()  # after a few variants of one function it stops compiling
    rows = time_shape(torch, shape, [plain] + ([Flex(torch, grads)] if args.flex else []) + [ours], args, t)
    times = {r["name"]: float(r["median_us"]) for r in rows}
    if ours.name not in times:
        return False
    cost_row(session, name, shape, ours, {**times, "ours": times[ours.name]})
    return True


def cost(session):
    args = session.args
    return all(cost_of(session, name, op, dim) for dim in args.dims for op in args.ops for name in args.features)


# ---- beside EFFICIENT ----

def bias(session):
    torch, args = session.torch, session.args
    for dim in args.dims:
        for seqlen in args.sizes:
            for op in ("fwd", "bwd"):
                shape = Shape(torch, args, seqlen, dim, "full", op, f" array=bias:{args.dtype}[b][h][q][k] bias")
                t = Tensors(torch, shape)
                generator = torch.Generator("cuda").manual_seed(5)
                size = (1, shape.heads, seqlen, seqlen)
                values = torch.randn(size, generator=generator, device="cuda").to(t.q.dtype).expand(shape.batch, -1, -1, -1)
                gradient = torch.zeros(size, device="cuda").expand(shape.batch, -1, -1, -1)
                ours = session.ours(words=" grad=bias" if op == "bwd" else "", arrays={"bias": values},
                                    grads={"bias": gradient})
                plain = Beside(torch, session.library, session.context, "plain", lambda words: " ".join(words.split()[:3]))
                peers = [Sdpa(torch, backend, bias=values) for backend in ("EFFICIENT", "CUDNN")]
                if not session.time(shape, [plain, *peers, ours], t, bias=values.float()):
                    return False
    return True


def packed_bits(torch, seen):
    """Bit k % 32 of word k / 32."""
    words = (seen.unflatten(-1, (-1, 32)).to(torch.int64) << torch.arange(32, device="cuda")).sum(-1)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).int()


def boolean_masks(torch, shape):
    """Of the part `bits`, by name: [batch, heads, seqlen, seqlen], or of one head where all have the same."""
    n = shape.seqlen
    q, k = torch.arange(n, device="cuda")[:, None], torch.arange(n, device="cuda")
    first = torch.arange(shape.batch, device="cuda")[:, None, None, None] * (n // (2 * shape.batch))
    causal = (k <= q).expand(shape.batch, 1, n, n)
    return {"random": torch.rand(shape.batch, shape.heads, n, n, device="cuda") < 0.7, "causal": causal,
            "padded": causal & (k >= first) | (k == q)}


def bits(session):
    torch, args = session.torch, session.args
    plain = Beside(torch, session.library, session.context, "plain", lambda words: words.replace(" bits", ""))
    for op, dim, seqlen in itertools.product(args.ops, args.dims, args.sizes):
        for name in ("random", "causal", "padded"):
            shape = Shape(torch, args, seqlen, dim, "full", op, " bits", heads=16)
            mask = boolean_masks(torch, shape)[name]
            shape.flops *= float(mask.float().mean())
            words = packed_bits(torch, mask).expand(-1, shape.heads, -1, -1)
            peers = [Sdpa(torch, "EFFICIENT", bias=mask), Sdpa(torch, "CUDNN", bias=mask)]
            if args.flex:
                torch._dynamo.reset()
                peers.append(Flex(torch, seen=mask))
            if name == "causal":
                peers.append(Beside(torch, session.library, session.context, "spelled", lambda words: words.replace("bits", "causal")))
            unseen = torch.zeros(mask.shape, device="cuda").masked_fill_(~mask, float("-inf")).expand(-1, shape.heads, -1, -1)
            if not session.time(shape, [plain, *peers, session.ours(arrays={"bits": words})], Tensors(torch, shape), unseen, name):
                return False
    return True


def padding(session):
    torch, args = session.torch, session.args
    for dim in args.dims:
        for seqlen in args.sizes:
            for op in ("fwd", "bwd"):
                shape = Shape(torch, args, seqlen, dim, "padding", op)
                if not session.time(shape, [Sdpa(torch, "EFFICIENT", masked=True), session.ours()]):
                    return False
    return True


def fp32(session):
    torch, args = session.torch, session.args
    for dim in args.dims:
        for mask in ("full", "causal"):
            for seqlen in args.sizes:
                for op in ("fwd", "bwd"):
                    shape = Shape(torch, args, seqlen, dim, mask, op)
                    shape.dtype = "fp32"
                    try:
                        session.library.problem(shape.spelling())
                    except RuntimeError as e:
                        print(f"  {shape.label()}: {e}")
                        continue
                    peers = [Sdpa(torch, "EFFICIENT")]
                    if args.flex:
                        torch._dynamo.reset()
                        peers.append(Flex(torch))
                    if not session.time(shape, [*peers, session.ours()]):
                        return False
    return True


# ---- pages ----

class Paged(Kernel):
    """Keys in pages of so many rows."""

    def __init__(self, session, page_size):
        super().__init__(session.torch, session.library, session.context, f"flashkiln-pages-of-{page_size}")
        self.page_size = page_size

    def prepare(self, shape, t):
        self.pages = Pages(self.torch, self.library, self.page_size, t.k, t.v)
        self.words = self.pages.word
        super().prepare(shape, t)

    def named(self, names):
        return {**super().named(names), **self.pages.tensors}

    def fields(self, shape):
        return {**super().fields(shape), **self.pages.fields}


def pages(session):
    for dim in session.args.dims:
        for seqlen in session.args.sizes:
            shape = Shape(session.torch, session.args, seqlen, dim, "causal")
            if not session.time(shape, [session.ours()] + [Paged(session, size) for size in PAGE_SIZES]):
                return False
    return True


PAGE_SIZES = 1, 16, 64, 256
PARTS = {"tiles": tiles, "cost": cost, "bias": bias, "bits": bits, "padding": padding, "fp32": fp32, "pages": pages}


def body(torch, library, context, args):
    session = Session(torch, library, context, args)
    good = True
    for part in args.parts:
        print(f"---- {part} ----", flush=True)
        if not PARTS[part](session):
            print(f"FAIL {part}: flashkiln has no result")
            good = False
    print_tables(session.rows, ("sdpa-efficient",))
    return 0 if good else 1


def main():
    parser = arguments(__doc__, dims="64", sizes="1024,4096")
    parser.add_argument("--parts", type=lambda s: s.split(","), default=list(PARTS))
    parser.add_argument("--features", type=lambda s: s.split(","), default=list(FEATURES), help="of part cost")
    parser.add_argument("--ops", type=lambda s: s.split(","), default=["fwd"], help="of parts cost and bits: fwd,bwd")
    parser.add_argument("--no-flex", dest="flex", action="store_false", help="parts cost, bits and fp32 without FlexAttention")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
