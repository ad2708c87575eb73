#!/usr/bin/env python3
"""Runs `flashkiln run` on the emulator: numbers against the definition, and every tensor that it must refuse.

Usage: cli_run_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import json
import math
import os
import random
import struct
import subprocess

import cli_case
from cli_case import BAD_INPUT, CHECK_FAILED, IO, USAGE, Case, npy, read_npy


def bf16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def e4m3_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -magnitude if code & 128 else magnitude


def attention(q, k, v, sizes, visible, term=lambda s, b, h, i, j: s):
    """o[b][s][h][d] flat and lse[b][h][s] flat, by the definition in float64, of bshd tensors."""
    batch, heads, kv_heads, seqlen_q, seqlen_k, dim = sizes
    row = lambda x, b, s, h, n_s, n_h: x[((b * n_s + s) * n_h + h) * dim:][:dim]
    out = [0.0] * (batch * seqlen_q * heads * dim)
    lse = [0.0] * (batch * heads * seqlen_q)
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // kv_heads)
            for i in range(seqlen_q):
                seen = [j for j in range(seqlen_k) if visible(i, j)]
                q_row = row(q, b, i, h, seqlen_q, heads)
                scores = [sum(x * y for x, y in zip(q_row, row(k, b, j, g, seqlen_k, kv_heads))) / math.sqrt(dim)
                          for j in seen]
                scores = [term(s, b, h, i, j) for j, s in zip(seen, scores)]
                total = sum(math.exp(s) for s in scores)
                lse[(b * heads + h) * seqlen_q + i] = math.log(total) if seen else -math.inf
                for j, s in zip(seen, scores):
                    p = math.exp(s) / total
                    for d, value in enumerate(row(v, b, j, g, seqlen_k, kv_heads)):
                        out[((b * seqlen_q + i) * heads + h) * dim + d] += p * value
    return out, lse


class Tensors(Case):
    """.npy files and shapes that run must refuse, before it opens a device."""

    def run_bad(self, code, parts, q=None, k=None, v=None, spelling="fwd fp16 d8 gqa", extra=()):
        good = npy("<f2", (1, 2, 1, 8), bytes(32))
        names = [self.path(f"{n}.npy", data if data is not None else good) for n, data in zip("qkv", (q, k, v))]
        return self.bad(code, parts, "run", spelling, "--q", names[0], "--k", names[1], "--v", names[2], "-o", "o.npy",
                        "--lse", "lse.npy", "--device", "emu", *extra)

    def test_files(self):
        self.run_bad(BAD_INPUT, ["q.npy", "truncated", "32", "30"], q=npy("<f2", (1, 2, 1, 8), bytes(30)))
        self.run_bad(BAD_INPUT, ["k.npy", "trailing", "32", "33"], k=npy("<f2", (1, 2, 1, 8), bytes(33)))
        self.run_bad(BAD_INPUT, ["v.npy", "<f8", "<f2"], v=npy("<f8", (1, 2, 1, 8), bytes(128)))
        self.run_bad(BAD_INPUT, ["q.npy", ">f2"], q=npy(">f2", (1, 2, 1, 8), bytes(32)))
        self.run_bad(BAD_INPUT, ["q.npy", "fortran_order"], q=npy("<f2", (1, 2, 1, 8), bytes(32), "True"))
        self.run_bad(BAD_INPUT, ["q.npy", "3 axes", "4"], q=npy("<f2", (2, 1, 8), bytes(32)))
        self.run_bad(BAD_INPUT, ["q.npy", "shape[1] is 0", "1"], q=npy("<f2", (1, 0, 1, 8), b""))
        self.run_bad(BAD_INPUT, ["q.npy", "no .npy"], q=b"not a tensor at all")
        self.run_bad(BAD_INPUT, ["q.npy", "ends within"], q=npy("<f2", (1, 2, 1, 8), b"")[:40])
        self.run_bad(BAD_INPUT, ["v.npy", "element 3", "100000", "65504"],
                     v=npy("<f4", (1, 2, 1, 8), struct.pack("<16f", 0, 0, 0, 1e5, *[0] * 12)))
        self.bad(IO, ["gone.npy", "No such file"], "run", "fwd fp16 d8", "--q", "gone.npy", "--k", "gone.npy", "--v",
                 "gone.npy")

    def test_dtypes(self):
        bits = npy("<u2", (1, 2, 1, 8), bytes(32))
        self.run_bad(BAD_INPUT, ["q.npy", "<u2", "fp16", "<f2"], q=bits)
        self.run_bad(BAD_INPUT, ["q.npy", "<f2", "bf16", "<u2"], spelling="fwd bf16 d8")
        self.run_bad(BAD_INPUT, ["k.npy", "<f2", "bf16", "<u2"], q=bits, extra=["--dtype", "bf16"])
        self.run_bad(BAD_INPUT, ["q.npy", "<f2", "fp32 needs <f4"], spelling="fwd fp32 d8")
        self.run_bad(BAD_INPUT, ["q.npy", "<f2", "e4m3 needs |u1 or <f4"], spelling="fwd e4m3 d16")
        self.run_bad(BAD_INPUT, ["q.npy", "element 3 is 449", "the largest e4m3 is 448"], spelling="fwd e4m3 d16",
                     q=npy("<f4", (1, 1, 1, 16), struct.pack("<16f", 0, 0, 0, 449, *[0] * 12)))

    def test_shapes(self):
        def other(*shape):
            return npy("<f2", shape, bytes(2 * math.prod(shape)))

        self.run_bad(BAD_INPUT, ["q.npy", "dim", "16", "8"], q=other(1, 2, 1, 16))
        self.run_bad(BAD_INPUT, ["k.npy", "batch", "2", "1"], k=other(2, 2, 1, 8))
        self.run_bad(BAD_INPUT, ["v.npy", "seqlen", "3", "2"], v=other(1, 3, 1, 8))
        self.run_bad(BAD_INPUT, ["v.npy", "heads", "2", "1"], v=other(1, 2, 2, 8))
        self.run_bad(BAD_INPUT, ["v.npy", "dim", "8", "16"], spelling="fwd fp16 d8 dv16")
        self.run_bad(BAD_INPUT, ["v.npy", "seqlen", "2", "4"], k=other(1, 1, 4, 8), extra=["--layout", "bhsd"],
                     v=other(1, 1, 2, 8))
        self.run_bad(BAD_INPUT, ["num_heads_q is 3", "2"], q=other(1, 2, 3, 8), k=other(1, 2, 2, 8),
                     v=other(1, 2, 2, 8))
        self.run_bad(BAD_INPUT, ["num_heads_kv is 1", "2", "gqa"], q=other(1, 2, 2, 8), spelling="fwd fp16 d8")

    def test_usage(self):
        good = self.path("q.npy", npy("<f2", (1, 2, 1, 8), bytes(32)))
        files = ["--q", good, "--k", good, "--v", good]
        self.bad(USAGE, ["--k", "missing"], "run", "fwd fp16 d8", "--q", good)
        self.bad(USAGE, ["--random", "excludes"], "run", "fwd fp16 d8", *files, "--random", "1,1,1,8,8")
        self.bad(USAGE, ["one file"], "run", "fwd fp16 d8", *files, "-o", "x.npy", "--lse", "x.npy")
        self.bad(USAGE, ["overwrite", good], "run", "fwd fp16 d8", *files, "-o", "./q.npy")
        self.bad(USAGE, ["number 4", "at least 1"], "run", "fwd fp16 d8", "--random", "1,1,1,0,8")
        self.bad(USAGE, ["--softmax-scale", "-1"], "run", "fwd fp16 d8", *files, "--softmax-scale", "-1")
        self.bad(BAD_INPUT, ["num_heads_q is 6", "4"], "run", "fwd fp16 d8 gqa", "--random", "1,6,4,8,8")
        self.bad(BAD_INPUT, ["2^34"], "run", "fwd fp16 d8", "--random", "1073741824,64,64,8,8")

    def test_output_that_cannot_be_written(self):
        self.bad(IO, ["no/such/o.npy"], "run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "-o",
                 "no/such/o.npy", "--lse", "lse.npy")
        self.bad(IO, ["no/such/lse.npy"], "run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "-o",
                 "o.npy", "--lse", "no/such/lse.npy")
        self.assertFalse(os.path.exists(self.cache))  # found out before anything was compiled
        self.path("o.npy", b"what was there")
        self.bad(IO, ["no/such/lse.npy"], "run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "-o",
                 "o.npy", "--lse", "no/such/lse.npy")
        with open(self.path("o.npy"), "rb") as file:
            self.assertEqual(file.read(), b"what was there")


class Running(Case):
    SIZES = (2, 4, 2, 5, 7, 8)  # batch, heads, kv_heads, seqlen_q, seqlen_k, dim

    def draw(self, seed):
        batch, heads, kv_heads, seqlen_q, seqlen_k, dim = self.SIZES
        rng = random.Random(seed)
        counts = (batch * seqlen_q * heads * dim, batch * seqlen_k * kv_heads * dim, batch * seqlen_k * kv_heads * dim)
        return [[rng.randrange(-256, 257) / 128 for _ in range(count)] for count in counts]  # exact in bf16

    def shapes(self):
        batch, heads, kv_heads, seqlen_q, seqlen_k, dim = self.SIZES
        return (batch, seqlen_q, heads, dim), (batch, seqlen_k, kv_heads, dim), (batch, seqlen_k, kv_heads, dim)

    def files(self, tensors, descr, pack):
        out = []
        for name, values, shape in zip("qkv", tensors, self.shapes()):
            data = b"".join(pack(x) for x in values)
            out += [f"--{name}", self.path(f"{name}.npy", npy(descr, shape, data))]
        return out

    def close(self, have, want, tolerance):
        self.assertEqual(len(have), len(want))
        for a, b in zip(have, want):
            if a != b:
                self.assertLess(abs(a - b), tolerance, (a, b))

    def test_values_by_the_definition(self):
        tensors = self.draw(1)
        o, lse = attention(*tensors, self.SIZES, lambda i, j: j <= i + 2)  # bottom-right: diag = 7 - 5
        run = lambda spelling, files, *more: self.good("run", spelling, *files, "-o", "o.npy", "--lse", "lse.npy",
                                                       "--device", "emu", "--check", *more)
        half = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        text = run("fwd fp16 d8 gqa causal", half)
        self.assertIn("good", text)
        descr, shape, values = read_npy(self.path("o.npy"))
        self.assertEqual((descr, shape), ("<f2", self.shapes()[0]))
        self.close(values, o, 2e-3)
        descr, shape, values = read_npy(self.path("lse.npy"))
        self.assertEqual((descr, shape), ("<f4", (2, 4, 5)))
        self.close(values, lse, 1e-5)

        single = self.files(tensors, "<f4", lambda x: struct.pack("<f", x))
        run("fwd fp16 d8 gqa causal", single, "--out-dtype", "f32")
        rounded = read_npy(self.path("o.npy"))
        self.assertEqual(rounded[0], "<f4")
        self.close(rounded[2], o, 2e-3)
        run("fwd fp16 d8 gqa causal", single, "--dtype", "bf16")  # the option wins over the spelling
        descr, _, bits = read_npy(self.path("o.npy"))
        self.assertEqual(descr, "<u2")
        self.close([bf16_value(b) for b in bits], o, 1.6e-2)
        run("fwd fp32 d8 gqa causal", single)
        descr, _, values = read_npy(self.path("o.npy"))
        self.assertEqual(descr, "<f4")
        self.close(values, o, 1e-6)

        u2 = self.files(tensors, "<u2", lambda x: struct.pack("<H", bf16_bits(x)))
        run("fwd bf16 d8 gqa causal", u2)
        self.assertEqual(read_npy(self.path("o.npy"))[2], bits)

    def test_e4m3_by_the_definition(self):
        """Bits in |u1, or floats in <f4 that are rounded; descales count; o is bf16."""
        self.SIZES = (1, 2, 1, 5, 7, 16)
        rng = random.Random(8)
        codes = [[rng.choice((0, 128)) + rng.randrange(40, 66) for _ in range(math.prod(shape))] for shape in self.shapes()]
        tensors = [[e4m3_value(code) for code in of] for of in codes]
        scaled = [[x * by for x in of] for of, by in zip(tensors, (0.5, 1.5, 3))]
        o, lse = attention(*scaled, self.SIZES, lambda i, j: j <= i + 2)
        options = ["-o", "o.npy", "--lse", "lse.npy", "--device", "emu", "--plan-for", "h200", "--check", "--q-descale",
                   "0.5", "--k-descale", "1.5", "--v-descale", "3"]
        results = []
        for descr, values, form in (("|u1", codes, "<B"), ("<f4", [[x * 1.03 for x in of] for of in tensors], "<f")):
            files = self.files(values, descr, lambda x: struct.pack(form, x))
            self.assertIn("good", self.good("run", "fwd e4m3 d16 gqa causal", *files, *options))
            results.append(read_npy(self.path("o.npy")))
            self.close(read_npy(self.path("lse.npy"))[2], lse, 1e-5)
        self.assertEqual(results[0], results[1])  # a factor of 1.03 is rounded away
        self.assertEqual(results[0][0], "<u2")
        self.close([bf16_value(b) for b in results[0][2]], o, 0.07 * max(map(abs, scaled[2])))

    def test_gradients_by_the_definition(self):
        """Central differences of sum(dO * O) in float64, from files; the forward pass runs by itself."""
        tensors = self.draw(4)
        batch, heads, kv_heads, seqlen_q, seqlen_k, dim = self.SIZES
        rng = random.Random(5)
        dout = [rng.randrange(-128, 129) / 128 for _ in range(batch * seqlen_q * heads * dim)]
        keep = lambda i, j: j <= i + 2
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        files += ["--do", self.path("do.npy", npy("<f2", self.shapes()[0], b"".join(struct.pack("<e", x) for x in dout)))]
        text = self.good("run", "bwd fp16 d8 gqa causal", *files, "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy",
                         "-o", "o.npy", "--lse", "lse.npy", "--device", "emu", "--check")
        for words in ("good", "dq", "dk", "dv", "keys; tiles of"):
            self.assertIn(words, text)
        o, lse = attention(*tensors, self.SIZES, keep)
        self.close(read_npy(self.path("o.npy"))[2], o, 2e-3)
        self.close(read_npy(self.path("lse.npy"))[2], lse, 1e-5)

        def loss():
            return sum(a * b for a, b in zip(attention(*tensors, self.SIZES, keep)[0], dout))

        for name, x, shape in zip(("dq", "dk", "dv"), tensors, self.shapes()):
            descr, got_shape, got = read_npy(self.path(f"{name}.npy"))
            self.assertEqual((descr, got_shape), ("<f2", shape))
            for at in rng.sample(range(len(x)), 12):
                kept, step = x[at], 1e-4
                x[at] = kept + step
                above = loss()
                x[at] = kept - step
                below = loss()
                x[at] = kept
                self.assertLess(abs(got[at] - (above - below) / (2 * step)), 4e-3, (name, at))

    def test_backward_usage(self):
        good = self.path("q.npy", npy("<f2", (1, 2, 1, 8), bytes(32)))
        files = ["--q", good, "--k", good, "--v", good]
        self.bad(USAGE, ["--do", "missing"], "run", "bwd fp16 d8", *files)
        self.bad(USAGE, ["--dq", "bwd"], "run", "fwd fp16 d8", *files, "--dq", "dq.npy")
        self.bad(USAGE, ["overwrite", good], "run", "bwd fp16 d8", *files, "--do", good, "--dv", good)
        self.bad(USAGE, ["one file"], "run", "bwd fp16 d8", *files, "--do", good, "--dq", "x.npy", "--dk", "x.npy")
        wide = self.path("do.npy", npy("<f2", (1, 2, 1, 16), bytes(64)))
        self.bad(BAD_INPUT, ["do.npy", "dim", "16", "8"], "run", "bwd fp16 d8", *files, "--do", wide, "--device", "emu")

    def test_backward_json(self):
        words = ["run", "bwd bf16 d16 causal deterministic", "--random", "1,2,2,40,50,9", "--device", "emu", "--check"]
        result = json.loads(self.good(*words, "--json"))
        self.assertLessEqual(result["ratio"], 2)
        self.assertIn(result["worst"], ("dq", "dk", "dv"))
        self.assertIsNone(result["lse_max_abs"])

    def test_layouts_agree(self):
        tensors = self.draw(2)
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        self.good("run", "fwd fp16 d8 gqa", *files, "-o", "bshd.npy", "--device", "emu")
        turned = []
        for name, values, (batch, seqlen, heads, dim) in zip("qkv", tensors, self.shapes()):
            data = b"".join(struct.pack(f"<{dim}e", *values[((b * seqlen + s) * heads + h) * dim:][:dim])
                            for b in range(batch) for h in range(heads) for s in range(seqlen))
            turned += [f"--{name}", self.path(f"{name}_t.npy", npy("<f2", (batch, heads, seqlen, dim), data))]
        self.good("run", "fwd fp16 d8 gqa", *turned, "-o", "bhsd.npy", "--device", "emu", "--layout", "bhsd")
        _, (batch, seqlen, heads, dim), a = read_npy(self.path("bshd.npy"))
        _, shape, b = read_npy(self.path("bhsd.npy"))
        self.assertEqual(shape, (batch, heads, seqlen, dim))
        for n in range(batch):
            for s in range(seqlen):
                for h in range(heads):
                    self.assertEqual(a[((n * seqlen + s) * heads + h) * dim:][:dim],
                                     b[((n * heads + h) * seqlen + s) * dim:][:dim])

    def test_pages_and_splits(self):
        """Neither shows in the result, wherever the pages lie."""
        words = ["--random", "2,4,2,3,90,6", "--device", "emu", "--check", "--out-dtype", "f32"]
        self.good("run", "fwd fp16 d16 gqa causal", *words, "-o", "plain.npy")
        self.good("run", "fwd fp16 d16 gqa causal paged", *words, "-o", "paged.npy", "--page-size", "7")
        self.good("run", "fwd fp16 d16 gqa causal split paged", *words, "-o", "split.npy", "--num-splits", "4")
        plain, paged, split = (read_npy(self.path(f"{name}.npy"))[2] for name in ("plain", "paged", "split"))
        self.assertEqual(plain, paged)
        self.close(plain, split, 2e-3)
        self.bad(USAGE, ["--page-size", "0"], "run", "fwd fp16 d16 paged", *words, "--page-size", "0")
        self.bad(USAGE, ["--num-splits belongs to split"], "run", "fwd fp16 d16 gqa", *words, "--num-splits", "2")

    def test_declared_arrays(self):
        tensors = self.draw(4)
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        slope, length = [0.5, 0.25, 0.125, 0.0625], [7, 3]
        slopes = self.path("slope.npy", npy("<f4", (4,), struct.pack("<4f", *slope)))
        lengths = self.path("length.npy", npy("<i4", (2,), struct.pack("<2i", *length)))
        # The shell takes the quotes off score="..."; every batch entry has its own length.
        words = ["fwd", "fp16", "d8", "gqa", "array=slope:float[h]",
                 "score=s + 0.1 * tanh(s) - abs(q - k) * slope[h]", "key_padding"]
        text = self.good("run", *words, *files, "--array", f"slope={slopes}", f"--array=length={lengths}", "-o", "o.npy",
                         "--device", "emu", "--check")
        self.assertIn('score="s + 0.1 * tanh(s) - abs(q - k) * slope[h]" key_padding', text)
        term = lambda s, b, h, i, j: s + 0.1 * math.tanh(s) - abs(i - j) * slope[h] if j < length[b] else -math.inf
        o, _ = attention(*tensors, self.SIZES, lambda i, j: True, term)
        self.close(read_npy(self.path("o.npy"))[2], o, 2e-3)
        words[4], halves = "array=slope:fp16[h]", self.path("half.npy", npy("<f2", (4,), struct.pack("<4e", *slope)))
        self.good("run", *words, *files, f"--array=slope={halves}", f"--array=length={lengths}", "--device", "emu", "--check")

    def test_gradient_of_an_array(self):
        tensors = self.draw(6)
        rng, shape = random.Random(7), self.shapes()[0]
        dout = [rng.randrange(-128, 129) / 128 for _ in range(math.prod(shape))]
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        files += ["--do", self.path("do.npy", npy("<f2", shape, b"".join(struct.pack("<e", x) for x in dout)))]
        slope = [0.5, 0.25, 0.125, 0.0625]
        slopes = self.path("slope.npy", npy("<f4", (4,), struct.pack("<4f", *slope)))
        words = ["bwd", "fp16", "d8", "gqa", "array=slope:float[h]", "score=s + 0.1 * tanh(s) - abs(q - k) * slope[h]"]
        run = [*words, *files, "--array", f"slope={slopes}", "--device", "emu"]
        text = self.good("run", *run, "grad=slope", "--grad", "slope=g.npy", "--check")
        for part in ("Wrote     g.npy", "slope max abs error", "good"):
            self.assertIn(part, text)
        descr, got_shape, got = read_npy(self.path("g.npy"))
        self.assertEqual((descr, got_shape), ("<f4", (4,)))

        def loss():
            term = lambda s, b, h, i, j: s + 0.1 * math.tanh(s) - abs(i - j) * slope[h]
            return sum(a * b for a, b in zip(attention(*tensors, self.SIZES, lambda i, j: True, term)[0], dout))

        for h, kept in enumerate(list(slope)):
            slope[h] = kept + 1e-4
            above = loss()
            slope[h] = kept - 1e-4
            self.assertAlmostEqual(got[h], (above - loss()) / 2e-4, delta=2e-2)
            slope[h] = kept
        one = self.path("one.npy", npy("<f4", (1,), struct.pack("<f", 0.25)))  # of every head: so is its gradient
        words[4] = "array=slope:bf16[h]"
        self.good("run", *words, *files, "--array", f"slope={one}", "--device", "emu", "grad=slope", "--grad", "slope=g.npy")
        self.assertEqual(read_npy(self.path("g.npy"))[1], (1,))
        self.bad(USAGE, ["does not ask for the gradient", "grad=slope"], "run", *run, "--grad", "slope=h.npy")
        self.bad(USAGE, ["overwrite", "slope.npy"], "run", *run, "--array", "slope=slope.npy", "-o", "slope.npy")
        self.bad(USAGE, ['"slope" is not NAME=FILE.npy'], "run", *run, "grad=slope", "--grad", "slope")

    def test_dropout(self):
        dropped = ["--random", "2,2,2,50,70,3", "--device", "emu", "--check", "--dropout-p", "0.25", "--dropout-seed", "9"]
        masks = []
        for words in (["fwd", "fp16", "d16", "dropout"], ["bwd", "fp16", "d32", "causal", "dropout"]):
            self.good("run", *words, *dropped, "--keep-mask", "m.npy")
            descr, shape, values = read_npy(self.path("m.npy"))
            self.assertEqual((descr, shape), ("|u1", (2, 2, 50, 70)))
            masks.append(list(values))
        self.assertEqual(masks[0], masks[1])
        self.assertAlmostEqual(sum(masks[0]) / len(masks[0]), 0.75, delta=0.02)
        self.good("run", *words, *dropped, "--dropout-offset", "1", "--keep-mask", "m.npy")
        self.assertNotEqual(list(read_npy(self.path("m.npy"))[2]), masks[0])
        for option in (["--dropout-p", "1"], ["--dropout-seed", "-1"]):
            self.bad(USAGE, option[:1], "run", *words, *dropped, *option)
        wrong = self.templates("piece/dropout.cu", lambda text: text.replace("a_i = 0xbb67b0cbu", "a_i = 0xbb67b0cdu"))
        self.bad(CHECK_FAILED, ["of the keep mask is"], "run", *words, *dropped, "--keep-mask", "w.npy", "--template-dir", wrong)
        self.bad(USAGE, ["--keep-mask belongs to dropout"], "run", "fwd fp16 d16", *dropped[:4], "--keep-mask", "m.npy")

    def test_arrays_that_are_drawn_or_missing(self):
        random = ["--random", "1,2,2,20,30", "--device", "emu", "--check"]
        self.good("run", "fwd fp16 d8 array=slope:bf16[h] alibi bias causal", *random)
        one = self.path("one.npy", npy("<f4", (1,), struct.pack("<f", 0.5)))  # repeated for every head
        self.good("run", "fwd fp16 d8 alibi", *random, f"--array=slope={one}")
        run = lambda code, parts, spelling, *more: self.bad(code, parts, "run", spelling, *random, *more)
        run(USAGE, ["array doc_q cannot be drawn", "--array doc_q=FILE.npy"], "fwd fp16 d8 document")
        run(USAGE, ["array table cannot be drawn"], "fwd fp16 d8 relative(3)")
        run(USAGE, ['no array "slop"', "it has slope"], "fwd fp16 d8 alibi", "--array", f"slop={one}")
        run(USAGE, ['no array "slope"', "it has none"], "fwd fp16 d8", "--array", f"slope={one}")
        run(USAGE, ['"slope" is not NAME=FILE.npy'], "fwd fp16 d8 alibi", "--array", "slope")
        run(IO, ["nothing.npy"], "fwd fp16 d8 alibi", "--array", "slope=nothing.npy")
        ints = self.path("ints.npy", npy("<i4", (2,), struct.pack("<2i", 1, 2)))
        run(BAD_INPUT, ["ints.npy", "<i4", "slope needs <f4"], "fwd fp16 d8 alibi", "--array", f"slope={ints}")
        three = self.path("three.npy", npy("<f4", (3,), struct.pack("<3f", 1, 2, 3)))
        run(BAD_INPUT, ["three.npy", "shape[0] is 3; 2, or 1"], "fwd fp16 d8 alibi", "--array", f"slope={three}")
        flat = self.path("flat.npy", npy("<f4", (20, 30), bytes(2400)))
        run(BAD_INPUT, ["flat.npy", "2 axes; 4"], "fwd fp16 d8 bias", "--array", f"bias={flat}")
        files = self.files(self.draw(5), "<f2", lambda x: struct.pack("<e", x))
        self.bad(USAGE, ["array slope is missing"], "run", "fwd fp16 d8 gqa alibi", *files, "--device", "emu")

    def test_softmax_scale(self):
        """Scale 0 means the default; a tiny one makes the mean of V."""
        tensors = self.draw(3)
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        self.good("run", "fwd fp16 d8 gqa", *files, "-o", "o.npy", "--device", "emu", "--softmax-scale", "1e-9")
        zeros = [[0.0] * len(tensors[0])] + tensors[1:]
        mean, _ = attention(*zeros, self.SIZES, lambda i, j: True)
        self.close(read_npy(self.path("o.npy"))[2], mean, 2e-3)

    def test_rows_that_see_nothing(self):
        self.good("run", 'fwd fp16 d8 keep="k < q - 1"', "--random", "1,1,1,4,4", "--device", "emu", "--check", "-o",
                  "o.npy", "--lse", "lse.npy")
        self.assertEqual(read_npy(self.path("o.npy"))[2][:16], (0.0,) * 16)
        self.assertEqual(read_npy(self.path("lse.npy"))[2][:2], (-math.inf,) * 2)

    def test_second_run_comes_from_the_store(self):
        words = ["run", "fwd bf16 d16 causal", "--random", "1,2,2,40,50,9", "--device", "emu", "--check"]
        first = json.loads(self.good(*words, "--json"))
        second = json.loads(self.good(*words, "--json"))
        self.assertEqual((first["from_store"], second["from_store"]), (False, True))
        self.assertEqual(first["key"], second["key"])
        self.assertEqual(first["max_abs"], second["max_abs"])
        self.assertTrue(first["emulator"])
        self.assertLessEqual(first["ratio"], 2)
        self.assertTrue(os.path.isfile(first["store_path"]))
        self.assertIn("times faster", self.good(*words))
        off = json.loads(self.good(*words, "--json", "--no-cache"))
        self.assertFalse(off["from_store"])

    def test_a_pattern_and_its_table_are_the_same(self):
        """Bit by bit; and a pattern of the user's own is one file."""
        words = ["--random", "1,2,2,96,96", "--device", "emu", "--plan-for", "a100", "--check"]
        self.path("mine/pattern/stairs.lua", "return { params = { { \"n\", \"int\", 2 } }, block = \"i / n == j / n\" }\n")
        self.env["FLASHKILN_TEMPLATE_DIR"] = self.path("mine")
        rows = [3, 3, 12, 12, 48, 48]  # blocks 2 n and 2 n + 1 of rows 2 n and 2 n + 1
        self.path("bits.npy", npy("<i4", (1, 1, 6, 1), struct.pack("<6i", *rows)))
        self.good("run", "fwd fp16 d16 stairs(16)", *words, "-o", "a.npy", "--lse", "a_lse.npy")
        self.good("run", "fwd fp16 d16 block_bits(16)", *words, "--array", "block_bits=bits.npy", "-o", "b.npy", "--lse",
                  "b_lse.npy")
        for name in ("{}.npy", "{}_lse.npy"):
            self.assertEqual(read_npy(self.path(name.format("a"))), read_npy(self.path(name.format("b"))))

    def test_a_new_mask_is_one_file(self):
        """A mask of the user's own: named in spellings, planned, compiled, run, checked and explained."""
        tensors = self.draw(4)
        o, lse = attention(*tensors, self.SIZES, lambda i, j: j <= i + 2 and (i + 2 - j) % 3 == 0)
        files = self.files(tensors, "<f2", lambda x: struct.pack("<e", x))
        words = ["run", "fwd fp16 d8 gqa every(3) causal", *files, "--device", "emu", "--check", "-o", "o.npy", "--lse",
                 "lse.npy"]
        self.bad(BAD_INPUT, ["unknown word \"every\"", "masks: keep=", "^"], *words)
        self.path("mine/mask/every.lua", "-- Every n-th key, back from the query.\n"
                  "return { params = { \"n\" }, keep = \"(q + diag - k) % n == 0\" }\n")
        self.env["FLASHKILN_TEMPLATE_DIR"] = self.path("mine")
        text = self.good(*words)
        self.assertIn("fwd fp16 d8 gqa every(3) causal", text)
        self.close(read_npy(self.path("o.npy"))[2], o, 2e-3)
        self.close(read_npy(self.path("lse.npy"))[2], lse, 1e-5)
        del self.env["FLASHKILN_TEMPLATE_DIR"]
        same = json.loads(self.good(*words, "--template-dir", "mine", "--json"))
        self.assertTrue(same["from_store"])  # the option and the variable are one thing
        facts = json.loads(self.good("explain", "fwd fp16 d64 every(4)", "--template-dir", "mine", "--json"))
        self.assertEqual((facts["spelling"], facts["tiles_full"]), ("fwd fp16 d64 every(4)", 0))
        self.bad(BAD_INPUT, ["unknown word \"evry\"", " window, and the files of mine/mask"], "plan",
                 "fwd fp16 d64 evry(4)", "--template-dir", "mine")
        self.bad(BAD_INPUT, ["every has 2 values: must be 1 (n)", "^"], "plan", "fwd fp16 d64 every(4,5)",
                 "--template-dir", "mine")
        self.path("list.txt", "fwd fp16 d64 every(4)\n")
        self.bad(BAD_INPUT, ["list.txt, line 1", "every"], "build", "list.txt")

    def test_processes_that_start_together_compile_once(self):
        """Eight first calls on an empty store: the lock saves seven compiles, and all results are the same."""
        log = self.path("compiles", b"")
        compiler = self.path("c++", f"#!/bin/sh\necho >>'{log}'\nsleep 0.3\nexec c++ \"$@\"\n")
        os.chmod(compiler, 0o755)
        env = dict(self.env, FLASHKILN_CXX=compiler)
        words = [cli_case.program_path, "run", "fwd fp16 d16 causal", "--random", "1,2,2,40,50,3", "--device", "emu", "--json"]
        processes = [subprocess.Popen([*words, "-o", f"o{n}.npy"], stdout=subprocess.PIPE, text=True, env=env,
                                      cwd=self.dir) for n in range(8)]
        answers = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * 8)
        self.assertEqual(sum(answer["from_store"] for answer in answers), 7)
        with open(log, encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 1)
        self.assertEqual(len({read_npy(self.path(f"o{n}.npy")) for n in range(8)}), 1)

    def test_plan_for_another_gpu(self):
        text = self.good("run", "fwd fp16 d64 causal", "--random", "1,2,2,70,70", "--device", "emu", "--plan-for", "t4",
                         "--check")
        self.assertIn("planned for Tesla T4", text)
        self.assertIn("sm_75", text)
        self.assertIn("of the 64 KB", text)

    def test_times_on_the_emulator_are_labelled(self):
        text = self.good("run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "--repeat", "3")
        self.assertIn("says nothing about any GPU", text)
        self.assertNotIn("TFLOP/s", text)

    def test_a_wrong_kernel_fails_the_check(self):
        folder = self.templates("piece/softmax.cu", lambda t: t.replace("l_i[m][r] += s", "l_i[m][r] += 1.1f * s"))
        words = ["run", "fwd fp16 d8 causal", "--random", "1,1,1,20,20", "--device", "emu", "--check"]
        self.good(*words)
        result = self.program(*words, "--template-dir", folder)
        self.assertEqual(result.returncode, CHECK_FAILED)
        self.assertIn("FAILED", result.stdout)
        self.assertIn("2 is the limit", result.stderr)

    def test_a_store_that_cannot_be_written_is_no_failure(self):
        """It is said, with the reason and the path, and the result is there."""
        plain = self.path("file", b"")
        for folder, reason in ((plain + "/below", "refused: not a folder"), (plain, "refused: not a folder"),
                               ("/proc/none", "absent; not stored: io: cannot make: No such file or directory")):
            text = self.good("run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "--cache-dir", folder,
                             "-o", "o.npy")
            self.assertIn(f"nothing written: {reason}", text)
            self.assertIn(folder, text)
            self.assertTrue(os.path.isfile(self.path("o.npy")))
            os.remove(self.path("o.npy"))


if __name__ == "__main__":
    cli_case.main()
