#!/usr/bin/env python3
"""Masks whose arrays hold the largest and the least of numbers, which mean no bound, biases that hide or outweigh whole tiles beside
masks, and gradients of arrays by one query.

Usage: cli_masks_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import math
import struct

import cli_case
from cli_case import UNAVAILABLE, Case, npy

MOST, LEAST = 2**31 - 1, -2**31


class Masks(Case):
    def check(self, spelling, sizes, gpu, arrays=(), words=()):
        given = [word for name, values in arrays for word in ("--array", f"{name}={self.ints(name, values)}")]
        self.good("run", spelling, "--random", sizes, "--check", "--device", "emu", "--plan-for", gpu, *given, *words)

    def ints(self, name, values):
        return self.path(f"{name}.npy", npy("<i4", (len(values),), struct.pack(f"<{len(values)}i", *values)))

    def test_bounds_beyond_32_bits(self):
        """What a text compares fits 32 bits; the sum that is left of it, as a bound of keys or of queries, need not."""
        keeps = [
            ("fwd fp16 d16 array=w:int[h]", "abs(q - k) <= w[h]", ("w", (16, MOST))),
            ("bwd fp16 d16 array=w:int[h]", "k <= q && k > q - w[h]", ("w", (16, MOST))),
            ("fwd fp16 d16", "q - k > -2147483640", None),
            ("bwd fp16 d16", "-2147483647 + k <= q - 5", None),
            ("fwd fp16 d16 array=a:int[b]", "k < a[b]", ("a", (LEAST, 50))),
            ("fwd fp16 d16 array=a:int[b]", "k > a[b]", ("a", (MOST, 70))),
        ]
        for gpu in ("h200", "a100"):
            for problem, keep, array in keeps:
                with self.subTest(gpu=gpu, keep=keep):
                    batch = 2 if "[b]" in problem else 1
                    self.check(f'{problem} keep="{keep}"', f"{batch},2,2,70,90", gpu, [array] if array else [])

    def test_built_in_masks_of_no_keys(self):
        for word, name in (("key_padding", "length"), ("prefix", "prefix"), ("left_padding", "first")):
            for gpu in ("h200", "a100"):
                with self.subTest(gpu=gpu, word=word):
                    self.check(f"fwd fp16 d16 {word}", "2,2,2,70,90", gpu, [(name, (LEAST, MOST))])

    def test_rows_that_stray_in_full_tiles_between_masked_ones(self):
        """A full tile keeps the reference of those before; what a masked tile behind it finds may not hide that it was wrong."""
        queries, keys = 64, 400
        rises = {"hides": lambda k: -math.inf if k >= 256 else 0.0, "outweighs": lambda k: 0.0 if k >= 256 else 300.0 if k >= 128 else 200.0}
        masks = ["window(300,300)", "window(300,300) split", 'keep="k >= 128 || (q + k) % 3 != 0"', "left_padding causal"]
        for name, rise in rises.items():
            row = struct.pack(f"<{keys}f", *map(rise, range(keys)))
            bias = self.path(f"{name}.npy", npy("<f4", (1, 1, queries, keys), row * queries))
            for mask in masks:
                first = [("first", (10,))] if "left" in mask else []
                for gpu in ("a100", "t4", "h200"):
                    with self.subTest(bias=name, mask=mask, gpu=gpu):
                        self.check(f"fwd fp16 d32 bias {mask}", f"1,1,1,{queries},{keys}", gpu, first, ["--array", f"bias={bias}"])

    def test_scores_of_the_last_factor(self):
        """What a mask hides is -inf, of which 0 times is NaN; quotients of a quotient of 1; an exp that is infinite."""
        scores = ["s * 0", "0.0 * tanh(s)", "s * exp(-120.0)", "s * 1e-30 * 1e-30", "s / 1.0 / exp(0.5)", "2 / 1.0 / exp(s / 4)",
                  "s / (1.0 + exp(-s))"]
        for score in scores:
            words = ["--softmax-scale", "20"] if "exp(-s)" in score else []
            for problem, gpu in (("fwd fp16 d32", "a100"), ("bwd bf16 d32", "h200")):
                with self.subTest(score=score, gpu=gpu):
                    self.check(f'{problem} score="{score}" causal', "1,1,1,64,97,3", gpu, words=words)

    def test_a_factor_that_a_value_makes_0(self):
        """A file of one's own may take 0 where a cap may not."""
        self.path("own/score/mine.lua", 'return { params = { { "w_cap", "float" } }, score = "abs(w_cap) * tanh(s)" }')
        self.env["FLASHKILN_TEMPLATE_DIR"] = self.path("own")
        for gpu in ("h200", "a100"):
            self.check("fwd fp16 d32 mine(0) causal", "1,1,1,64,97,3", gpu)

    def test_large_caps_of_tiles_that_keys_end_in(self):
        """Keys that are not there are no large scores, beside which small ones lose what their tanh has."""
        for problem in ("fwd fp16 d32 softcap(16475208) window(1,0) top-left", "fwd bf16 d64 softcap(3e7) window(40,0) gqa",
                        "fwd fp16 kv_e4m3 d32 softcap(7687778) window(59,42) top-left", 'fwd bf16 d64 softcap(3e7) keep="q != k"'):
            for gpu in ("h200", "a100"):
                for sizes in ("2,4,2,1,1" if "gqa" in problem else "2,3,3,1,1", "1,4,2,33,33" if "gqa" in problem else "1,3,3,33,33"):
                    with self.subTest(problem=problem, gpu=gpu, sizes=sizes):
                        self.check(problem, sizes, gpu)

    def test_causal_of_ones_own_has_no_parts(self):
        """In which keys are counted from the part's first one, as the mask built in allows."""
        self.path("own/mask/causal.lua", 'return { keep = "k <= q + diag && (k % 200 < 77 || q % 3 == 0)" }')
        plan = ["--plan", "wgmma m128 n128 w12 s2 c1 q2 k2 o2 p1", "--plan-for", "h200", "--device", "emu"]
        self.good("run", "fwd fp16 d64 causal", "--random", "1,3,3,128,700,3", "--check", *plan)
        self.env["FLASHKILN_TEMPLATE_DIR"] = self.path("own")
        self.bad(UNAVAILABLE, ["parts 1: must be 0", "those built in"], "run", "fwd fp16 d64 causal", "--random", "1,3,3,128,700,3", *plan)
        self.check("fwd fp16 d64 causal", "1,3,3,128,700,3", "h200")

    def test_rows_that_see_all_at_wide_heads(self):
        """Parts of more than 8,192 keys, of which each of two CTAs has half of the columns."""
        self.check("fwd bf16 d320 bigbird(64)", "1,1,1,300,9000", "h200")

    def test_the_gradient_of_a_bias_of_one_query(self):
        """Its rows have no stride, as there is but one."""
        for sizes in ("1,1,1,1,64", "2,2,2,1,64"):
            with self.subTest(sizes=sizes):
                self.check("bwd bf16 d64 bias grad=bias", sizes, "h200")


if __name__ == "__main__":
    cli_case.main()
