#!/usr/bin/env python3
"""Random masks, scores and shapes beside FlexAttention: where is this library slower?

  survey_flex.py [--kinds alibi,softcap,window,document,prefix,chunked,lengths,bias,blocks,decode] [--ops fwd,bwd] [--count 60] [--seed 1]
                 [--seconds 120] [--compilers 12]

What bench/survey.py does beside SDPA: kinds of terms, their parameters, batch, heads, lengths and head dims are drawn; both are called as
PyTorch programs call them and timed by CUDA graphs, round-robin; results are compared. FlexAttention is compiled for each shape
(dynamic=False): first by processes of their own, whose caches the one that times finds. Its block masks are made before anything is timed.
Results: survey_flex.csv, whose TFLOP/s count what causal masks and windows hide, and no other. Needs an NVIDIA GPU and PyTorch; without
them it says so and exits with 77.
"""
import functools
import os
import random
import subprocess
import sys
import time

from contenders import Flex
from survey import DIMS, Graphed, Inputs, Shape, compile_all, draw_shapes, flops, length, once, survey_arguments, time_shapes
from timing import run

MOST_ELEMENTS, MOST_PAIRS, MOST_FLOPS = 1 << 25, 1 << 28, 5e11  # of q or k; of a bias in all heads; of a forward launch
KINDS = {  # lengths of queries, the largest batch
    "alibi": ((64, 8192), 32), "softcap": ((64, 8192), 32), "window": ((256, 8192), 16), "document": ((512, 8192), 8),
    "prefix": ((128, 8192), 16), "chunked": ((256, 8192), 16), "lengths": ((64, 4096), 32), "bias": ((64, 2048), 16),
    "blocks": ((1024, 8192), 8), "decode": ((1, 16), 128)}
PATTERNS = {  # what shows a block, of its row and its column
    "butterfly(128)": lambda i, j: (i ^ j) & ((i ^ j) - 1) == 0,
    "local(128,2)": lambda i, j: (i - j).abs() <= 2,
    "a_shape(128)": lambda i, j: (j <= i) & ((j < 1) | (i - j < 4))}


def draw_mask(draw, kind, seqlen):
    """What the column `mask` says: the kind's words, whose parameters are read back from it."""
    cap, left = f"softcap({draw.choice((20, 30, 50))})", length(draw, 32, min(4096, seqlen))
    return {"alibi": "causal alibi", "softcap": draw.choice(("causal ", "")) + cap, "window": f"window({left},0)",
            "document": draw.choice(("causal document", "document")), "chunked": f"causal chunked({left})", "lengths": "key_padding",
            "blocks": draw.choice(list(PATTERNS)), "decode": draw.choice(("causal", "causal alibi", "causal " + cap))}.get(kind, kind)


def draw_shape(draw, kinds, ops):
    kind, op = draw.choice(kinds), draw.choice(ops)
    dim, group = draw.choices(list(DIMS), DIMS.values())[0], draw.choice((1, 1, 1, 2, 4, 8))
    heads_kv = draw.choice((1, 2, 4, 8, 12, 16))
    queries, batches = KINDS[kind]
    seqlen_q = length(draw, *queries)
    seqlen_k = seqlen_q + length(draw, 256, 32768) if kind == "decode" else seqlen_q
    return Shape(kind, "fwd" if kind == "decode" else op, draw.choice(("bf16", "bf16", "fp16")), dim, draw_mask(draw, kind, seqlen_q),
                 length(draw, 1, batches), heads_kv * group, heads_kv, seqlen_q, seqlen_k)


def allowed(s):
    return (s.batch * max(s.heads * s.seqlen_q, s.heads_kv * s.seqlen_k) * s.head_dim <= MOST_ELEMENTS and flops(s) <= MOST_FLOPS
            and (s.kind != "bias" or s.heads * s.seqlen_q * s.seqlen_k <= MOST_PAIRS))


class Terms(Inputs):
    """Tensors, and what is said of masks and scores: `how` to this library; `sees` and `score` to FlexAttention, or None."""

    def __init__(self, torch, s):
        super().__init__(torch, s)
        self.how, self.sees, self.score = {}, None, None
        diag = s.seqlen_k - s.seqlen_q
        for word in s.mask.replace("full", "").split():
            name, _, rest = word.rstrip(")").partition("(")
            getattr(self, "read_" + name)(torch, s, diag, [int(x) for x in rest.split(",") if rest])

    def mask(self, sees):
        """Joined by and."""
        before = self.sees
        self.sees = sees if before is None else lambda b, h, q, k: before(b, h, q, k) & sees(b, h, q, k)

    def ints(self, torch, values):
        return torch.tensor(values, device="cuda", dtype=torch.int32)

    def read_causal(self, torch, s, diag, _):
        self.how["causal"] = True
        self.mask(lambda b, h, q, k: k <= q + diag)

    def read_window(self, torch, s, diag, sides):
        left, self.how["window"] = sides[0], tuple(sides)
        self.mask(lambda b, h, q, k: (k <= q + diag) & (k >= q + diag - left))

    def read_chunked(self, torch, s, diag, sizes):
        size, self.how["mask"] = sizes[0], f"chunked({sizes[0]})"
        self.mask(lambda b, h, q, k: (q + diag) // size == k // size)

    def read_document(self, torch, s, diag, _):
        draw = random.Random(repr(s))
        starts = [sorted(draw.sample(range(1, s.seqlen_q), min(15, s.seqlen_q // 128))) for _ in range(s.batch)]
        ids = torch.stack([torch.bucketize(torch.arange(s.seqlen_q, device="cuda"), self.ints(torch, x), right=True) for x in starts]).int()
        self.how.update(mask="document", arrays={"doc_q": ids, "doc_k": ids})
        self.mask(lambda b, h, q, k: ids[b, q] == ids[b, k])

    def some_lengths(self, torch, s):
        draw = random.Random(repr(s))
        return self.ints(torch, [draw.randint(max(1, s.seqlen_k // 8), s.seqlen_k) for _ in range(s.batch)])

    def read_prefix(self, torch, s, diag, _):
        ends = self.some_lengths(torch, s) // 2
        self.how.update(mask="prefix", arrays={"prefix": ends})
        self.mask(lambda b, h, q, k: (k <= q) | (k < ends[b]))

    def read_key_padding(self, torch, s, diag, _):
        ends = self.some_lengths(torch, s)
        self.how.update(mask="key_padding", arrays={"length": ends})
        self.mask(lambda b, h, q, k: k < ends[b])

    def read_alibi(self, torch, s, diag, _):
        slopes = torch.exp2(torch.arange(1, s.heads + 1, device="cuda") * (-8.0 / s.heads))
        self.how["alibi_slopes"] = slopes
        self.score = lambda x, b, h, q, k: x - slopes[h] * (q + diag - k).abs()

    def read_softcap(self, torch, s, diag, caps):
        cap = self.how["softcap"] = float(caps[0])
        self.score = lambda x, b, h, q, k: cap * torch.tanh(x / cap)

    def read_bias(self, torch, s, diag, _):
        bias = self.how["bias"] = self.added
        self.score = lambda x, b, h, q, k: x + bias[0, h, q, k]

    def read_pattern(self, torch, s, diag, _):
        self.how["sparsity"] = s.mask
        shown = PATTERNS[s.mask]
        self.mask(lambda b, h, q, k: shown(q // 128, k // 128))

    read_butterfly = read_local = read_a_shape = read_pattern


def ours(torch, s, x):
    import flashkiln
    return flashkiln.attention(*x.qkv(), **x.how)


class Compiled:
    """FlexAttention of one shape's terms, as a contender calls it."""

    def __init__(self, torch, s, x):
        from torch.nn.attention import flex_attention
        torch._dynamo.reset()  # after eight variants of one function it stops compiling
        self.attend = torch.compile(flex_attention.flex_attention, dynamic=False)
        self.options = {"enable_gqa": s.heads != s.heads_kv, "score_mod": x.score}
        if x.sees:
            batch = s.batch if {"document", "prefix", "key_padding"} & set(s.mask.split()) else None
            self.options["block_mask"] = flex_attention.create_block_mask(x.sees, batch, None, s.seqlen_q, s.seqlen_k, device="cuda")
        if s.kind == "bias" and s.op == "bwd":
            self.options["kernel_options"] = Flex.small

    def __call__(self, torch, s, x):
        q, k, v = (y.transpose(1, 2) for y in x.qkv())
        return self.attend(q, k, v, **self.options).transpose(1, 2)


def contenders(torch, stream, s):
    x = Terms(torch, s)
    out = [Graphed(torch, "flashkiln", ours, s, x, stream)]
    try:
        out.append(Graphed(torch, "flex", Compiled(torch, s, x), s, x, stream))
    except Exception as e:  # Dynamo, Inductor and Triton have exceptions of their own
        torch.cuda.synchronize()
        print(f"FlexAttention: {type(e).__name__}: {str(e).splitlines()[0][:160]}: {s}", flush=True)
    return out


def compile_share(torch, shapes):
    """What one of several processes does: FlexAttention's kernels into its caches."""
    for s in shapes:
        try:
            x = Terms(torch, s)
            once(torch, Compiled(torch, s, x), s, x)
        except Exception as e:
            print(f"{type(e).__name__}: {str(e).splitlines()[0][:160]}: {s}", flush=True)


def body(torch, library, context, args):
    import torch._functorch.config as compiler
    compiler.donated_buffer = False  # a graph is gone through more than once
    shapes, begin = draw_shapes(args, draw_shape, allowed), time.monotonic()
    if args.share is not None:
        compile_share(torch, shapes[args.share::args.compilers])
        return 0
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    others = [subprocess.Popen([sys.executable, *sys.argv, "--share", str(i)], env=env) for i in range(args.compilers)]
    for other in others:
        other.wait()
    print(f"FlexAttention's kernels: {time.monotonic() - begin:.1f} s", flush=True)
    compile_all(torch, shapes, lambda s: once(torch, ours, s, Terms(torch, s)))
    stream = torch.cuda.Stream()
    return time_shapes(torch, shapes, args, functools.partial(contenders, torch, stream), "survey_flex.csv")


def main():
    parser = survey_arguments(__doc__, KINDS)
    parser.add_argument("--compilers", type=int, default=12, help="processes that compile FlexAttention's kernels")
    parser.add_argument("--share", type=int, help="compiles every so manieth shape of --compilers, and times nothing")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
