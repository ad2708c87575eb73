#!/usr/bin/env python3
"""What `flashkiln run` refuses before it compiles anything, and the files that it writes where there is no room.

Usage: cli_refusals_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import json
import os
import resource
import subprocess

import cli_case
from cli_case import CHECK_FAILED, IO, USAGE, Case

RANDOM = ("--random", "1,1,1,8,8", "--device", "emu")


class Values(Case):
    def test_a_scale_that_is_no_float(self):
        self.bad(USAGE, ["--softmax-scale is 1e-50", "1.4013e-45"], "run", "fwd fp16 d8", *RANDOM, "--softmax-scale", "1e-50")
        self.assertIn("softmax_scale 0.3\n", self.good("run", "fwd fp16 d8", *RANDOM, "--softmax-scale", "0.3"))

    def test_an_array_that_is_given_twice(self):
        words = ("run", "bwd fp16 d8 alibi grad=slope", *RANDOM)
        for option in ("--array", "--grad"):
            self.bad(USAGE, [f"{option}: slope is given twice"], *words, option, "slope=a.npy", option, "slope=b.npy")

    def test_nothing_compares(self):
        result = self.program("run", 'fwd fp16 d8 score="s * (float(k - k) / float(q - q))"', *RANDOM, "--check", "--json")
        self.assertEqual(result.returncode, CHECK_FAILED)
        self.assertIn("nothing compares", result.stderr)
        self.assertIsNone(json.loads(result.stdout)["ratio"])

    def test_limits_are_named(self):
        self.bad(USAGE, ['--dropout-seed: "-1" is not an integer of 0 to 9e+18'], "run", "fwd fp16 d8 dropout", *RANDOM, "--dropout-seed", "-1")


class Outputs(Case):
    def test_two_outputs_of_one_name(self):
        self.bad(USAGE, ["-o and --lse name one file"], "run", "fwd fp16 d8", *RANDOM, "-o", "x.npy", "--lse", "./x.npy")
        self.good("run", "fwd fp16 d8", *RANDOM, "-o", "/dev/null", "--lse", "/dev/null")

    def test_a_write_that_fails_says_why(self):
        words = ("run", "fwd fp16 d64", "--random", "1,1,1,1200,8", "--device", "emu", "-o", "o.npy", "--lse", "l.npy")
        self.good(*words)  # the kernel is in the store then
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))  # the signal is ignored by Python, and so inherited
        result = subprocess.run([cli_case.program_path, *words], capture_output=True, text=True, env=self.env, cwd=self.dir,
                                preexec_fn=limit, restore_signals=False)
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertIn("o.npy: cannot be written: File too large", result.stderr)
        self.assertEqual(sorted(os.listdir(self.dir)), ["cache", "l.npy", "o.npy"])


if __name__ == "__main__":
    cli_case.main()
