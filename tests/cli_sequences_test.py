#!/usr/bin/env python3
"""Runs `flashkiln run` on sequences of different lengths, and along long ones, on the emulator: numbers against the definition, and every
list of lengths that it must refuse.

Usage: cli_sequences_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import math
import random
import struct

import cli_case
from cli_case import BAD_INPUT, USAGE, Case, npy, read_npy
from cli_run_test import attention

HEADS, KV_HEADS, DIM = 4, 2, 8
CU_Q, CU_K, USED = [0, 5, 5, 8], [2, 9, 12, 16], [7, 2, 3]  # the first two keys belong to nobody
ROWS_Q, ROWS_K = 9, 16


class Sequences(Case):
    def tensors(self):
        """Q, K and V as lists, NaN where no sequence looks, and the options that name their files."""
        rng = random.Random(1)
        used = [cu + i for cu, n in zip(CU_K, USED) for i in range(n)]
        exists = (range(CU_Q[-1]), used, used)
        out, options = [], []
        for name, rows, heads, there in zip("qkv", (ROWS_Q, ROWS_K, ROWS_K), (HEADS, KV_HEADS, KV_HEADS), exists):
            x = [rng.randrange(-256, 257) / 128 for _ in range(rows * heads * DIM)]
            x = [value if i // (heads * DIM) in there else math.nan for i, value in enumerate(x)]
            data = b"".join(struct.pack("<e", value) for value in x)
            options += [f"--{name}", self.path(f"{name}.npy", npy("<f2", (rows, heads, DIM), data))]
            out.append(x)
        return out, options

    def expected(self, q, k, v):
        """o [row, head, dim] and lse [head, row] of the rows that exist."""
        o, lse = {}, {}
        for b in range(3):
            seqlen_q, seqlen_k = CU_Q[b + 1] - CU_Q[b], USED[b]
            part_q = q[CU_Q[b] * HEADS * DIM:CU_Q[b + 1] * HEADS * DIM]
            part_k, part_v = (x[CU_K[b] * KV_HEADS * DIM:(CU_K[b] + seqlen_k) * KV_HEADS * DIM] for x in (k, v))
            diag = seqlen_k - seqlen_q
            sizes = (1, HEADS, KV_HEADS, seqlen_q, seqlen_k, DIM)
            one_o, one_lse = attention(part_q, part_k, part_v, sizes, lambda i, j: j <= i + diag)
            for i, value in enumerate(one_o):
                o[CU_Q[b] * HEADS * DIM + i] = value
            for i, value in enumerate(one_lse):
                lse[i // seqlen_q * ROWS_Q + CU_Q[b] + i % seqlen_q] = value
        return o, lse

    def test_values_by_the_definition(self):
        (q, k, v), options = self.tensors()
        files = [self.path(f"{name}.npy", npy("<i4", (len(x),), struct.pack(f"<{len(x)}i", *x)))
                 for name, x in (("cu_q", CU_Q), ("used", USED))]
        text = self.good("run", "fwd fp16 d8 gqa packed seqused_k causal", *options, "--cu-seqlens-q", files[0],
                         "--cu-seqlens-k", ",".join(map(str, CU_K)), "--seqused-k", files[1], "-o", "o.npy", "--lse",
                         "lse.npy", "--device", "emu", "--check")
        self.assertIn("9 queries and 16 keys in all", text)
        o, lse = self.expected(q, k, v)
        for name, want, shape, tolerance in (("o", o, (ROWS_Q, HEADS, DIM), 2e-3), ("lse", lse, (HEADS, ROWS_Q), 1e-5)):
            _, got_shape, got = read_npy(self.path(f"{name}.npy"))
            self.assertEqual(got_shape, shape)
            for i, value in enumerate(got):
                if i not in want:
                    self.assertTrue(math.isnan(value), (name, i, value))  # belongs to no sequence
                elif value != want[i]:
                    self.assertLess(abs(value - want[i]), tolerance, (name, i))

    def test_drawn(self):
        for spelling in ("fwd fp16 d32 packed causal", "bwd fp16 d32 gqa packed seqused_k", "bwd fp16 d32 seqused_k"):
            self.assertIn("good", self.good("run", spelling, "--random", "5,2,2,70,90,3", "--layout", "bhsd", "--check",
                                            "--device", "emu", "--repeat", "1"))

    def test_used_lengths_below_zero_count_as_zero(self):
        self.path("used.npy", npy("<i4", (2,), struct.pack("<2i", -5, 100)))
        self.good("run", "fwd fp16 d64 seqused_k", "--random", "2,1,1,64,64", "--seqused-k", "used.npy", "--device", "emu", "--repeat",
                  "1", "-o", "o.npy")
        _, _, got = read_npy(self.path("o.npy"))
        self.assertTrue(not any(got[:64 * 64]) and any(got[64 * 64:]))

    def test_refused(self):
        _, files = self.tensors()
        good = ["--cu-seqlens-q", "0,5,5,8", "--cu-seqlens-k", "2,9,12,16"]
        run = lambda code, parts, spelling, *more: self.bad(code, parts, "run", spelling, *files, "--device", "emu",
                                                            *more)
        packed = "fwd fp16 d8 gqa packed"
        run(USAGE, ["--cu-seqlens-q is missing"], packed)
        run(USAGE, ["--cu-seqlens-q belongs to packed"], "fwd fp16 d8 gqa", *good)
        run(USAGE, ["--seqused-k belongs to seqused_k"], packed, *good, "--seqused-k", "1,2,3")
        run(USAGE, ["--cu-seqlens-k", "number 2 of \"2,x\""], packed, *good[:2], "--cu-seqlens-k", "2,x")
        run(USAGE, ["--cu-seqlens-k", "\"2;9\" is not A,B,C"], packed, *good[:2], "--cu-seqlens-k", "2;9")
        run(BAD_INPUT, ["--cu-seqlens-k", "number 3 is 8", "9"], packed, *good[:2], "--cu-seqlens-k", "2,9,8,16")
        run(BAD_INPUT, ["--cu-seqlens-k has 3 numbers", "4"], packed, *good[:2], "--cu-seqlens-k", "2,9,16")
        for wrong, said in (("0,5,4", ["number 3 is 4"]), ("0,5", ["2 numbers", "3"])):  # what lengths are drawn from
            self.bad(BAD_INPUT, ["--cu-seqlens-k", *said], "run", packed + " seqused_k", "--random", "2,2,1,8,8",
                     "--device", "emu", "--cu-seqlens-q", "0,4,8", "--cu-seqlens-k", wrong)
        self.bad(BAD_INPUT, ["--cu-seqlens-q has 2 numbers; --random's batch needs 3"], "run", packed, "--random", "2,2,1,40,70",
                 "--device", "emu", "--cu-seqlens-q", "0,40")
        self.path("below.npy", npy("<i4", (2,), struct.pack("<2i", -8, 8)))
        self.bad(BAD_INPUT, ["--cu-seqlens-k: number 1 is -8", "at least 0"], "run", packed + " paged", "--random", "1,2,1,8,8",
                 "--device", "emu", "--cu-seqlens-q", "0,8", "--cu-seqlens-k", "below.npy")
        run(BAD_INPUT, ["--seqused-k has 2 numbers", "3"], packed + " seqused_k", *good, "--seqused-k", "2,9")
        run(BAD_INPUT, ["k.npy", "16 rows", "end at row 17"], packed, *good[:2], "--cu-seqlens-k", "2,9,12,17")
        run(BAD_INPUT, ["q.npy", "<f2", "--cu-seqlens-q needs <i4"], packed, "--cu-seqlens-q",
            self.path("bad/q.npy", npy("<f2", (4,), bytes(8))), *good[2:])
        run(BAD_INPUT, ["q.npy", "3 axes", "4"], "fwd fp16 d8 gqa seqused_k", "--seqused-k", "1,2,3")

    def test_queries_whose_keys_an_additive_mask_hides_all(self):
        """In float32 all their scores are one number, so that they are the mean of V; they have no gradient."""
        for dtype in ("fp16", "bf16"):
            for gpu in ("h200", "a100"):
                problem = f'{dtype} d16 score="q >= 20 ? s - 1e9 : s + float(k - k)"'
                self.good("run", f"bwd {problem}", "--random", "1,1,1,40,50", "--dq", "dq.npy", "--dk", "dk.npy", "--device", "emu", "--plan-for", gpu)
                dq, dk = (read_npy(self.path(name))[2] for name in ("dq.npy", "dk.npy"))
                self.assertTrue(all(dq[:20 * 16:16]))
                self.assertFalse(any(dq[20 * 16:]))
                self.assertTrue(all(value == value for value in dk))
                self.good("run", f"fwd {problem}", "--random", "1,1,1,40,50", "-o", "o.npy", "--device", "emu", "--plan-for", gpu)
                self.good("run", f'fwd {dtype} d16 score="float(k - k)"', "--random", "1,1,1,40,50", "-o", "mean.npy", "--device", "emu", "--plan-for", gpu)
                self.assertEqual(*(read_npy(self.path(name))[2][20 * 16:] for name in ("o.npy", "mean.npy")))

    def test_blocks_smaller_than_tiles_are_never_loaded(self):
        """A table that shows the first keys alone: those of tiles behind them are NaN, and do no harm."""
        rows, dim = 256, 16
        rng = random.Random(2)
        for name in "qkv":
            x = [rng.gauss(0, 1) if name != "v" or i < 128 * dim else math.nan for i in range(rows * dim)]
            self.path(f"{name}.npy", npy("<f2", (1, rows, 1, dim), struct.pack(f"<{len(x)}e", *x)))
        for size in (32, 24):
            blocks = -(-rows // size)
            self.path("bits.npy", npy("<i4", (1, 1, blocks, 1), struct.pack("<i", 1) * blocks))
            for gpu in ("h200", "a100"):
                self.good("run", f"fwd fp16 d{dim} block_bits({size})", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "-o", "o.npy", "--array",
                          "block_bits=bits.npy", "--device", "emu", "--plan-for", gpu)
                self.assertTrue(all(value == value for value in read_npy(self.path("o.npy"))[2]))

    def test_options_that_have_no_meaning(self):
        random = ["--random", "1,2,2,20,20", "--device", "emu"]
        for option, value, word in (("--dropout-p", "0.1", "dropout"), ("--dropout-seed", "0", "dropout"), ("--dropout-offset", "3", "dropout"),
                                    ("--page-size", "3", "paged"), ("--num-splits", "0", "split"), ("--q-descale", "1", "e4m3")):
            self.bad(USAGE, [f"{option} belongs to {word}"], "run", "fwd fp16 d16", *random, option, value)
        self.bad(USAGE, ["-o and --keep-mask", "one file"], "run", "fwd fp16 d16 dropout", *random, "-o", "m.npy", "--keep-mask", "m.npy")

    def test_numbers_of_the_emulators_environment(self):
        run = ["run", "fwd fp16 d16", "--random", "1,1,1,8,8", "--device", "emu"]
        for name, value, limits in (("SEED", "sixth", "from 0 to"), ("SMS", "0", "from 1 to 1024"), ("THREADS", "2x", "from 1 to"),
                                    ("THREADS", "-1", "from 1 to")):
            self.env["FLASHKILN_EMU_" + name] = value
            self.bad(BAD_INPUT, [f'FLASHKILN_EMU_{name} is "{value}"', limits], *run)
            del self.env["FLASHKILN_EMU_" + name]
        self.env["FLASHKILN_TUNING"] = "no"
        self.bad(BAD_INPUT, ['FLASHKILN_TUNING is "no": must be on or off'], *run)
        self.bad(BAD_INPUT, ['FLASHKILN_TUNING is "no": must be on or off'], "plan", "fwd bf16 d64", "--gpu", "h200")
        self.good("plan", "fwd bf16 d64", "--gpu", "h200", "--reproducible")
        del self.env["FLASHKILN_TUNING"]
        self.env.update(FLASHKILN_EMU_SEED="0x10", FLASHKILN_EMU_SMS="", FLASHKILN_EMU_THREADS="1")
        self.good(*run)

    def test_scores_along_the_keys(self):
        """Terms that add straight lines, of rows that begin where a tile of keys ends; estimates of the maximum that are too low
        for most rows; caps within and beyond the reach of their polynomial."""
        for terms in ('score="s - 0.25 * abs(q - k)"', 'score="s + 0.25 * abs(q - k)"', "softcap(20)", "softcap(0.5)"):
            words = ["--random", "1,1,1,256,512", "--device", "emu", "--plan-for", "h200", "--check"]
            self.assertIn("good", self.good("run", "fwd fp16 d64 " + terms, *words))


if __name__ == "__main__":
    cli_case.main()
