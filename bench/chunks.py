#!/usr/bin/env python3
"""A chunk of queries behind many keys, causal, as when a prompt is read in parts: keys in rows, in pages, and beside peers.

  chunks.py [--dims 64,128] [--shapes 1x8x8x512x8192,...]

A shape is batch x query heads x kv heads x queries x keys; the last query sees the last key. Contenders: this library's kernel for
such sizes, the same with pages of 64 rows in random order, with `split`, with keys and values of 8 bits in rows and in pages
(`kv_e4m3`: those that bf16 has here are such numbers) and with `split`, SDPA FLASH with PyTorch's causal_lower_right, FlexAttention
with a block mask. Outputs are compared with float64 on the first head. Results: chunks.csv. Needs an NVIDIA GPU and PyTorch;
without them it says so and exits with 77.
"""
import contextlib
import functools
import os
import sys

from contenders import Launch, Pages
from problems import torch_dtype
from timing import append, arguments, median, round_robin, run, running, stamp

SIZES = ["batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k"]  # a shape
FIELDS = ["date", "gpu", "driver_torch", "dtype", "head_dim", *SIZES, "name", "median_us"]
SHAPES = "1x8x8x512x8192,1x8x8x64x32768,1x8x8x128x8192,1x32x8x512x8192,1x8x1x1024x32768,4x32x8x64x4096,1x8x1x4096x65536"
PAGE = 64


def shapes(text):
    return [tuple(map(int, x.split("x"))) for x in text.split(",")]


class Ours:
    def __init__(self, session, name, words, tensors, **fields):
        torch, library, context = session
        self.name, self.o = name, torch.full_like(tensors["q"], float("nan"))
        tensors["o"] = self.o
        self.launch = Launch(torch, library, context, words, tensors, **fields)


class Peer:
    def __init__(self, name, attend, *inputs, running=contextlib.nullcontext):
        self.name, self.attend, self.inputs, self.running = name, attend, [x.transpose(1, 2) for x in inputs], running

    def launch(self):
        self.o = self.attend(*self.inputs).transpose(1, 2)


def flash(torch, q, k, v):
    from torch.nn.attention import SDPBackend, bias, sdpa_kernel
    mask, gqa = bias.causal_lower_right(q.shape[1], k.shape[1]), q.shape[2] != k.shape[2]
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=mask, enable_gqa=gqa)
    return Peer("sdpa-flash", attend, q, k, v, running=lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION))


def flex(torch, q, k, v):
    from torch.nn.attention import flex_attention
    torch._dynamo.reset()
    ahead, compiled = k.shape[1] - q.shape[1], torch.compile(flex_attention.flex_attention, dynamic=False)
    mask = flex_attention.create_block_mask(lambda b, h, i, j: j <= i + ahead, None, None, q.shape[1], k.shape[1], device="cuda")
    gqa = q.shape[2] != k.shape[2]
    return Peer("flex", lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=gqa), q, k, v)


def exact(torch, q, k, v, causal=True):
    """Of the first head, [seqlen_q, head_dim]."""
    q, k, v = (x[0, :, 0].double() for x in (q, k, v))
    s = q @ k.T * q.shape[1] ** -0.5
    if causal:
        s.masked_fill_(torch.ones(s.shape, device="cuda", dtype=torch.bool).triu(k.shape[0] - q.shape[0] + 1), float("-inf"))
    return s.softmax(-1) @ v


def contenders(session, args, dim, shape):
    torch = session[0]
    batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
    dtype = torch_dtype(torch, args.dtype)
    q, k, v = (torch.randn(batch, n, h, dim, device="cuda").to(dtype)
               for n, h in ((seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv)))
    k8, v8 = (x.to(torch.float8_e4m3fn) for x in (k, v))
    k, v = (x.to(dtype) for x in (k8, v8))
    words = f"fwd {args.dtype} d{dim}" + " gqa" * (heads_q != heads_kv) + " causal"
    rows, rows8 = {"q": q, "k": k, "v": v}, {"q": q, "k": k8, "v": v8}

    def paged(name, words, pages):
        ours = Ours(session, f"{name}-pages-of-{PAGE}", words + pages.word, {"q": q, **pages.tensors}, **pages.fields)
        ours.pages = pages  # whose table it reads
        return ours

    out = [Ours(session, "flashkiln", words, dict(rows)), paged("flashkiln", words, Pages(torch, session[1], PAGE, k, v)),
           Ours(session, "flashkiln-split", f"{words} split", dict(rows)),
           Ours(session, "flashkiln-kv-e4m3", f"{words} kv_e4m3", dict(rows8)),
           paged("flashkiln-kv-e4m3", f"{words} kv_e4m3", Pages(torch, session[1], PAGE, k8, v8)),
           Ours(session, "flashkiln-kv-e4m3-split", f"{words} kv_e4m3 split", dict(rows8)),
           flash(torch, q, k, v)]
    if args.flex:
        out.append(flex(torch, q, k, v))
    return out, exact(torch, q, k, v)


def admitted(torch, contenders, wanted, run_once):
    """Those whose result, of run_once(contender), is right; and whether all of this library's are among them."""
    right, good = [], True
    for c in contenders:
        try:
            o = run_once(c)
            torch.cuda.synchronize()
            error = (o[0, :, 0].double() - wanted).abs().max().item()
        except Exception as e:  # FlexAttention's compiler has exceptions of its own
            print(f"  {c.name}: not available: {str(e).splitlines()[0][:160]}")
            error = None
        if error is not None and error < 2e-2:
            right.append(c)
            continue
        print(f"  {c.name}: left out, error {error}")
        good = good and not c.name.startswith("flashkiln")
    return right, good


def row(torch, args, dim, shape, contender, us):
    return {**stamp(torch), "dtype": args.dtype, "head_dim": dim, **dict(zip(SIZES, shape)), "name": contender.name, "median_us": f"{us:.2f}"}


def body(torch, library, context, args):
    def run_once(c):
        with running(c):
            c.launch()
        return c.o

    good = True
    for dim in args.dims:
        for shape in args.shapes:
            ready, wanted = contenders((torch, library, context), args, dim, shape)
            ready, fine = admitted(torch, ready, wanted, run_once)
            good = good and fine
            times = round_robin(torch, ready, args.rounds, args.launches)
            rows = [row(torch, args, dim, shape, c, median(times[c.name])) for c in ready]
            append(os.path.join(args.out, "chunks.csv"), rows, FIELDS)
            print(f"d{dim} {'x'.join(map(str, shape))}, us: " + ", ".join(f"{r['name']} {r['median_us']}" for r in rows), flush=True)
    return 0 if good else 1


def main():
    parser = arguments(__doc__)
    parser.add_argument("--shapes", type=shapes, default=shapes(SHAPES))
    parser.add_argument("--no-flex", dest="flex", action="store_false")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
