#!/usr/bin/env python3
"""fp32 whose tiles lie in shared memory as their bf16 parts (docs/precision.md): the same bits as where each warp splits what it reads.

Usage: cli_fp32_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import cli_case
from cli_case import Case

FORWARD, BACKWARD = ("-o", "--lse"), ("--dk", "--dv")


class Parts(Case):
    def run_with(self, name, spelling, sizes, plan, tensors):
        """What is written, by option. dq is left out, as the order of its adds is no kernel's."""
        paths = {option: self.path(f"{name}{option}.npy") for option in tensors}
        words = [word for option, path in paths.items() for word in (option, path)]
        text = self.good("run", spelling, "--random", sizes, "--device", "emu", "--plan-for", "h200", "--plan", plan, "--check", *words)
        self.assertIn("good: the limit of each ratio is 2", text)
        out = {}
        for option, path in paths.items():
            with open(path, "rb") as file:
                out[option] = file.read()
        return out

    def test_the_bits_are_those_of_warps_that_split(self):
        cases = [
            ("fwd fp32 d64 causal", "1,2,2,200,300", "mma m128 n32 w8 s2 c1", FORWARD),
            ("fwd fp32 d40 dv24 gqa dropout window(60,0)", "1,4,2,150,130", "mma m64 n32 w4 s1 c2", FORWARD),
            ("fwd fp32 d72 split gqa paged seqused_k", "2,4,2,3,200", "mma m64 n16 w4 s1 c1", FORWARD),
            ("fwd fp32 d32 packed softcap(30)", "2,2,2,100,100", "mma m128 n32 w4 s1 c2", FORWARD),
            ('fwd fp32 d104 keep="(q + k) % 3 != 0"', "1,2,2,70,90", "mma m128 n32 w8 s1 c1", FORWARD),
            ("bwd fp32 d64 causal", "1,2,2,200,300", "mma m32 n64 w4 s1 c1", BACKWARD),
            ("bwd fp32 d40 dv24 gqa dropout window(60,0)", "1,4,2,150,130", "mma m32 n32 w4 s1 c1", BACKWARD),
            ("bwd fp32 d72 packed alibi", "2,2,2,100,100", "mma m32 n64 w8 s1 c1", BACKWARD),
            ('bwd fp32 d104 keep="(q + k) % 3 != 0"', "1,2,2,70,90", "mma m32 n32 w4 s1 c1", BACKWARD),
        ]
        for spelling, sizes, plan, tensors in cases:
            with self.subTest(spelling=spelling):
                split = self.run_with("split", spelling, sizes, plan, tensors)
                parts = self.run_with("parts", spelling, sizes, plan + " k1", tensors)
                for option in tensors:
                    self.assertEqual(split[option], parts[option], f"{option} differs")


if __name__ == "__main__":
    cli_case.main()
