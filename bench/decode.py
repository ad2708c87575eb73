#!/usr/bin/env python3
"""Decoding: one query, or a few, behind many keys, in rows and in pages, beside peers and the rate at which keys come.

  decode.py [--dims 64,128] [--shapes 1x32x8x1x8192,...] [--plans "mma m16 n32 w1 s2 c4 r1;..." [--splits 4,8]] [--e4m3-plans "..."]
  decode.py --latent 512 --dims 576 [--shapes 64x128x1x1x4096,...] [--plans "wgmma ..."]

A shape is batch x query heads x kv heads x queries x keys; all queries see all keys. Contenders: this library's kernel with `split`, or,
where the Python functions have the heads of one query as so many queries of their kv head, that and `flashkiln-split`; the same with
pages of 64 rows in random order; both also with `kv_e4m3`; SDPA's FLASH and CUDNN, FlexAttention. Keys and values are
such as e4m3 holds, so that all compute the same. With --latent, absorbed MLA (DeepSeek-V2): values are the first columns of the keys, and
the heads are given as so many queries of one head (docs/sequences.md); beside that the kernel with `split`, and one that is not told that
values are keys. --plans adds plans of this library's by name, with --splits each also with so many splits; --e4m3-plans likewise, with
`kv_e4m3`. Keys and values come in so many copies that the L2 cache holds none of them; a CUDA graph of one launch for each copy is timed,
as a server would run it. Outputs are compared with float64 on the first head.
Results: decode.csv. Needs an NVIDIA GPU and PyTorch; without them it says so and exits with 77.
"""
import functools
import os
import sys
from ctypes import byref

from chunks import SIZES, Peer, admitted, exact, row, shapes
from contenders import Launch, Pages
from problems import torch_dtype
from timing import append, arguments, median, numbers, round_robin, run

FIELDS = ["date", "gpu", "driver_torch", "dtype", "head_dim", *SIZES, "name", "plan", "median_us", "gb_per_s", "tflops"]
SHAPES = ("1x32x8x1x2048,1x32x8x1x8192,1x32x8x1x131072,4x32x8x1x4096,16x32x8x1x4096,64x32x8x1x2048,64x32x8x1x8192,"
          "32x16x2x1x4096,8x32x32x1x4096,16x64x8x4x4096")
LATENT_SHAPES = "1x128x1x1x16384,4x128x1x1x32768,16x128x1x1x8192,32x64x1x1x4096,32x128x1x1x4096,64x128x1x1x4096,128x128x1x1x4096"
PAGE = 64
COLD_BYTES = 256 << 20  # of all copies: some times what an L2 cache holds


class Graph:
    """A contender: launches, one for each copy of keys and values, in a CUDA graph."""

    def __init__(self, torch, name, launches, result, plan=""):
        self.torch, self.name, self.plan, self.work, self.result = torch, name, plan, launches, result

    def prepare(self, stream):
        torch = self.torch
        stream.wait_stream(torch.cuda.current_stream())  # which may still fill what is read
        with torch.cuda.stream(stream):
            for launch in self.work:
                launch()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for launch in self.work:
                launch()

    def launch(self):
        self.graph.replay()


class Copies:
    """q, and k and v so many times that they do not fit into a cache, as 16 bits (kv) and as 8 (kv_e4m3)."""

    def __init__(self, torch, dtype, dim, shape, latent=0):
        batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
        self.bytes = (1 if latent else 2) * batch * heads_kv * seqlen_k * dim * dtype.itemsize
        self.q = torch.randn(batch, seqlen_q, heads_q, dim, device="cuda").to(dtype)
        if latent:
            rows = torch.randn(batch, seqlen_k, heads_kv, dim, device="cuda").to(dtype)
            copies = [rows] + [rows.clone() for _ in range(max(1, COLD_BYTES // self.bytes))]
            self.kv = [(x, x[..., :latent]) for x in copies]
            return
        narrow = [torch.randn(batch, seqlen_k, heads_kv, dim, device="cuda").to(torch.float8_e4m3fn) for _ in range(2)]
        one = [x.to(dtype) for x in narrow]
        self.kv = [one] + [[x.clone() for x in one] for _ in range(max(1, COLD_BYTES // self.bytes))]
        narrow = [x.view(torch.uint8) for x in narrow]
        self.kv_e4m3 = [[x.clone() for x in narrow] for _ in range(max(2, 1 + 2 * COLD_BYTES // self.bytes))]


def heads_as_queries(x, heads_kv):
    """[batch, queries, heads, dim] as [batch, queries of a kv head, kv heads, dim]: of one query, or of one kv head."""
    assert x.shape[1] == 1 or heads_kv == 1
    return x.view(x.shape[0], heads_kv, -1, x.shape[3]).transpose(1, 2)


def as_queries(library, words, shape):
    """The spelling of what the Python functions ask for in the place of `words`, with heads as queries; None: nothing."""
    info, out = library.make("fk_device_info"), library.make("fk_problem")
    library("fk_device_find", b"cuda:0", byref(info))
    sizes = library.make("fk_shape", **dict(zip(("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_k"), shape)))
    turns = library.lib.fk_problem_heads_are_queries(byref(library.problem(words)), byref(info), byref(sizes), byref(out))
    return library.spell(out) if turns else None


def ours(session, stream, name, words, q, kv, plan=None, splits=0, pages=None, heads_are_queries=False):
    torch, library, context = session
    shape, heads_kv = q.shape, kv[0][0].shape[2]
    if heads_are_queries:
        q = heads_as_queries(q, heads_kv)
    if plan:
        context = library.context("cuda:0", plan=plan)
    result = q.new_full((*shape[:3], kv[0][1].shape[3]), float("nan"))
    o, launches = heads_as_queries(result, heads_kv) if heads_are_queries else result, []
    with torch.cuda.stream(stream):
        for i, (k, v) in enumerate(kv):
            tensors = {"q": q, "o": o, **(pages[i].tensors if pages else {"k": k, "v": v})}
            launches.append(Launch(torch, library, context, words, tensors, num_splits=splits, **(pages[i].fields if pages else {})))
    out = Graph(torch, name, launches, lambda: result, library.spell_plan(launches[0].info.plan))
    out.pages = pages  # whose tables are read
    return out


def peer(torch, name, attend, copies):
    peers = [Peer(name, attend, copies.q, k, v) for k, v in copies.kv]
    return Graph(torch, name, [p.launch for p in peers], lambda: peers[0].o)


def sdpa(torch, backend, copies):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    gqa = copies.q.shape[2] != copies.kv[0][0].shape[2]

    def attend(q, k, v):
        with sdpa_kernel(getattr(SDPBackend, backend + "_ATTENTION")):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)
    return peer(torch, "sdpa-" + backend.lower(), attend, copies)


def flex(torch, copies):
    from torch.nn.attention import flex_attention
    torch._dynamo.reset()
    gqa, compiled = copies.q.shape[2] != copies.kv[0][0].shape[2], torch.compile(flex_attention.flex_attention, dynamic=False)
    return peer(torch, "flex", lambda q, k, v: compiled(q, k, v, enable_gqa=gqa), copies)


def latent_contenders(session, args, dim, shape, stream):
    torch, library = session[:2]
    copies = Copies(torch, torch_dtype(torch, args.dtype), dim, shape, args.latent)
    words = f"fwd {args.dtype} d{dim} dv{args.latent} latent"
    pages = [Pages(torch, library, PAGE, k, k) for k, _ in copies.kv]
    for p in pages:
        p.tensors["v"] = p.tensors["k"][..., :args.latent]
    queries = functools.partial(ours, session, stream, q=copies.q, kv=copies.kv, heads_are_queries=True)
    out = [queries(name="flashkiln", words=words),
           queries(name=f"flashkiln-pages-of-{PAGE}", words=words + pages[0].word, pages=pages),
           ours(session, stream, "flashkiln-split", words + " gqa split", copies.q, copies.kv),
           queries(name="flashkiln-keys-and-values", words=words.replace(" latent", ""))]
    out += [queries(name=plan, words=words, plan=plan) for plan in args.plans]
    if args.flex:
        out.append(flex(torch, copies))
    return out, copies


def contenders(session, args, dim, shape, stream):
    if args.latent:
        return latent_contenders(session, args, dim, shape, stream)
    torch, library = session[:2]
    copies = Copies(torch, torch_dtype(torch, args.dtype), dim, shape)
    words = f"fwd {args.dtype} d{dim}" + " gqa" * (shape[1] != shape[2]) + " split"
    out = []
    for suffix, word, kv, plans in (("", "", copies.kv, args.plans), ("-e4m3", " kv_e4m3", copies.kv_e4m3, args.e4m3_plans)):
        pages, turned = [Pages(torch, library, PAGE, k, v) for k, v in kv], as_queries(library, words + word, shape)
        taken = functools.partial(ours, session, stream, q=copies.q, kv=kv, heads_are_queries=turned is not None)
        out += [taken("flashkiln" + suffix, turned or words + word),
                taken(f"flashkiln{suffix}-pages-of-{PAGE}", (turned or words + word) + pages[0].word, pages=pages)]
        if turned:
            out.append(ours(session, stream, f"flashkiln{suffix}-split", words + word, copies.q, kv))
        for plan in plans:
            for n in (0, *args.splits):
                name = plan + suffix + (f", {n} splits" if n else "")
                out.append(ours(session, stream, name, words + word, copies.q, kv, plan=plan, splits=n))
    out += [sdpa(torch, backend, copies) for backend in args.peers]
    if args.flex:
        out.append(flex(torch, copies))
    return out, copies


def body(torch, library, context, args):
    good, stream = True, torch.cuda.Stream()

    def run_once(c):
        c.prepare(stream)
        c.launch()
        torch.cuda.synchronize()
        return c.result()

    for dim in args.dims:
        for shape in args.shapes or shapes(LATENT_SHAPES if args.latent else SHAPES):
            ready, copies = contenders((torch, library, context), args, dim, shape, stream)
            wanted = exact(torch, copies.q, *copies.kv[0], causal=False)
            ready, fine = admitted(torch, ready, wanted, run_once)
            good = good and fine
            times = round_robin(torch, ready, args.rounds, args.launches, warm_ms=100)
            rows = []
            for c in ready:
                narrow = "e4m3" in c.name
                us = median(times[c.name]) / len(copies.kv_e4m3 if narrow else copies.kv)
                bytes_read = copies.bytes / 2 if narrow else copies.bytes
                flops = 2 * shape[0] * shape[1] * shape[3] * shape[4] * (dim + (args.latent or dim))
                rows.append({**row(torch, args, dim, shape, c, us), "plan": c.plan, "gb_per_s": f"{bytes_read / us * 1e-3:.0f}",
                             "tflops": f"{flops / us * 1e-6:.0f}"})
            append(os.path.join(args.out, "decode.csv"), rows, FIELDS)
            print(f"d{dim} {'x'.join(map(str, shape))}, us (GB/s, TFLOP/s): "
                  + ", ".join(f"{r['name']} {r['median_us']} ({r['gb_per_s']}, {r['tflops']})" for r in rows) + f" [{rows[0]['plan']}]", flush=True)
            del ready, copies
            torch.cuda.empty_cache()
    return 0 if good else 1


def plan_names(text):
    return [x for x in text.split(";") if x]


def main():
    parser = arguments(__doc__)
    parser.add_argument("--shapes", type=shapes)
    parser.add_argument("--latent", type=int, default=0, help="columns of keys that are the values")
    parser.add_argument("--plans", type=plan_names, default=[], help="by name, semicolons between them")
    parser.add_argument("--e4m3-plans", type=plan_names, default=[], help="the same, with kv_e4m3")
    parser.add_argument("--splits", type=numbers, default=[])
    parser.add_argument("--no-flex", dest="flex", action="store_false")
    return run(parser, body)


if __name__ == "__main__":
    sys.exit(main())
