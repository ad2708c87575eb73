#!/usr/bin/env python3
"""Runs `flashkiln tune` on the emulator, and what goes by its records.

Usage: cli_tune_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import csv
import json
import os
import xml.dom.minidom

import cli_case
from cli_case import BAD_INPUT, IO, UNAVAILABLE, USAGE, Case

EMULATED = ("--device", "emu", "--plan-for", "t4", "--shapes", "1x2x2x64x64", "--budget", "2s")
RECORDS = "tune-emulator-of-tesla-t4.jsonl"  # of a head dim of which no records ship


class Tune(Case):
    def setUp(self):
        super().setUp()
        self.env.pop("FLASHKILN_TUNING", None)

    def records(self, name=RECORDS):
        with open(os.path.join(self.cache, name), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]

    def test_times_records_and_uses(self):
        text = self.good("tune", "fwd fp16 d72 causal", *EMULATED, "--csv", "t.csv", "--svg", "t.svg")
        self.assertIn("it says nothing about any GPU", text)
        with open(self.path("t.csv"), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        timed = [row for row in rows if row["state"] == "timed"]
        self.assertEqual([float(row["us"]) for row in timed], sorted(float(row["us"]) for row in timed))
        self.assertEqual(sum(row["model_choice"] == "1" for row in rows), 1)
        self.assertGreater(xml.dom.minidom.parse(self.path("t.svg")).getElementsByTagName("circle").length, 0)
        records = self.records()
        self.assertEqual([r["plan"] for r in records], [row["plan"] for row in timed])
        self.assertTrue(all(r["rigor"] == "measure" and r["shape"] == [1, 2, 2, 64, 64] and r["error"] <= 1 for r in records))
        run = ("run", "fwd fp16 d72 causal", "--random", "1,2,2,64,64", "--device", "emu", "--plan-for", "t4")
        told = self.good(*run, "--shape", "1,2,2,64,64", "--check")
        self.assertIn("own record: measured", told)
        self.assertIn("Kernel    from the store", told)  # the search has compiled it
        self.assertNotIn("record", self.good(*run, "--shape", "1,2,2,64,64", "--reproducible"))
        self.assertNotIn("record", self.good(*run))  # another bucket
        self.env["FLASHKILN_TUNING"] = "off"
        self.assertNotIn("record", self.good(*run, "--shape", "1,2,2,64,64"))

    def test_lists_and_json(self):
        self.path("list.txt", "# two\nfwd fp16 d256\nfwd fp16 d256 causal\n")
        told = json.loads(self.good("tune", "list.txt", *EMULATED, "--dry-run", "--json", "--jobs", "-1"))
        self.assertEqual({row["spelling"] for row in told}, {"fwd fp16 d256", "fwd fp16 d256 causal"})
        self.assertTrue(all(row["state"] == "timed" and row["us"] > 0 for row in told))
        self.assertFalse(os.path.exists(os.path.join(self.cache, RECORDS)))
        result = self.program("tune", "fwd fp16 d256", *EMULATED, "--json", "--export", "x")
        self.assertEqual(len(json.loads(result.stdout)), len(self.records()))
        self.assertRegex(result.stderr, "^x: [0-9]+ records? written\n$")

    def test_modelled_alone_names_a_gpu(self):
        self.bad(USAGE, ["--gpu belongs to --modelled"], "tune", "fwd fp16 d256", *EMULATED, "--gpu", "t4")

    def test_cache_modes(self):
        self.env["FLASHKILN_CACHE_MODE"] = "read-only"
        self.bad(IO, ["READ_ONLY", "dry_run"], "tune", "fwd fp16 d256", *EMULATED)
        self.good("tune", "fwd fp16 d256", *EMULATED, "--dry-run")
        self.env["FLASHKILN_CACHE_MODE"] = "no-jit"
        self.bad(UNAVAILABLE, ["FK_NO_JIT", "forbids"], "tune", "fwd fp16 d256", *EMULATED, "--dry-run")
        self.assertFalse(os.path.exists(os.path.join(self.cache, RECORDS)))

    def test_without_a_store_nothing_is_timed_in_vain(self):
        self.env["FLASHKILN_CACHE_MAX_MB"] = "much"
        self.bad(IO, ["FLASHKILN_CACHE_MAX_MB", "much", "no tuning record", "dry_run"], "tune", "fwd fp16 d256", *EMULATED)
        self.assertFalse(os.path.exists(self.cache))

    def test_goes_on_where_it_was(self):
        self.path("list.txt", "fwd fp16 d256\nfwd fp16 d256 causal\n")
        self.good("tune", "fwd fp16 d256 causal", *EMULATED)
        before = self.records()
        told = self.good("tune", "list.txt", *EMULATED, "--resume")
        self.assertRegex(told, "fwd fp16 d256 causal at batch 1.*: tuned before")
        new = self.records()[len(before):]
        self.assertEqual({r["problem"] for r in new}, {"fwd fp16 d256"})
        self.assertNotIn("tuned before", self.good("tune", "list.txt", *EMULATED, "--resume", "--rigor", "patient", "--dry-run"))
        self.assertNotIn("tuned before", self.good("tune", "fwd fp16 d256", "--resume", *EMULATED[:4], "--shapes", "1x2x2x80x80",
                                                   "--budget", "2s", "--dry-run"))

    def test_moves_records(self):
        record = {"flashkiln_tuning": 1, "problem": "fwd fp16 d72 causal", "shape": [4, 32, 32, 4096, 4096],
                  "plan": "mma m64 n64 w4 s1 c2", "us": 1000, "spread": 0.01, "error": 0.1, "samples": 32, "rigor": "measure",
                  "device": "Tesla T4", "sm": 75, "num_sms": 40, "clock_ghz": 1.59, "hbm_gbps": 320, "generator": "0123"}
        lines = [record, {**record, "us": 900, "plan": "mma m64 n32 w4 s1 c1"}, {**record, "us": -1}, {"other": 1}]
        self.path("theirs.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
        self.assertIn("1 record taken, 3 lines refused", self.good("tune", "--from", "theirs.jsonl"))
        self.assertEqual(self.records("tune-tesla-t4.jsonl")[0]["plan"], "mma m64 n32 w4 s1 c1")
        plan = json.loads(self.good("plan", "fwd fp16 d72 causal", "--gpu", "t4", "--json"))[0]
        self.assertEqual((plan["block_m"], plan["block_n"], plan["chosen"]), (64, 32, True))
        self.assertIn("own record: measured 900.0 us", plan["reason"])
        self.assertEqual(plan["plan"], "mma m64 n32 w4 s1 c1")
        told = self.good("explain", "fwd fp16 d72 causal", "--gpu", "t4")
        self.assertIn("mma m64 n32 w4 s1 c1, chosen by own record", told)
        self.assertIn("1 record written", self.good("tune", "--export", "ours.jsonl"))
        with open(self.path("ours.jsonl"), encoding="utf-8") as file:
            self.assertEqual(json.loads(file.read())["us"], 900)
        self.bad(IO, ["nowhere.jsonl"], "tune", "--from", "nowhere.jsonl")
        os.mkfifo(self.path("pipe"))  # would be waited for where it is opened as files are
        self.bad(IO, ["pipe: must be a file of records"], "tune", "--from", "pipe")

    def test_a_plan_can_be_asked_for(self):
        asked = ("--gpu", "t4", "--plan", "mma m64 n64 w4 s1 c1")
        self.assertIn("* chosen, as asked: mma m64 n64 w4 s1 c1", self.good("plan", "fwd fp16 d64", *asked))
        self.assertIn("chosen by --plan", self.good("explain", "fwd fp16 d64", *asked))
        self.assertIn("block_m (B_r) 64 x block_n (B_c) 64, 4 warps", self.good("gen", "fwd fp16 d64", *asked))
        for verb in (["plan"], ["gen"], ["explain"], ["build"], ["run", "--random", "1,1,1,8,8"]):
            self.bad(USAGE, ["--plan excludes --rule"], *verb, "fwd fp16 d64", "--plan", asked[3], "--rule", "model")
        self.bad(BAD_INPUT, ["\"x9\""], "plan", "fwd fp16 d64", "--plan", "mma x9")
        # o and lse, which the backward pass starts from, keep the plan of their own: the forward pass has no such tile
        backward = ("--plan", "wgmma m64 n128 w12 s2 c1 q2 k2 o1")
        self.bad(UNAVAILABLE, ["shared memory"], "plan", "fwd bf16 d128", "--gpu", "h200", *backward)
        self.assertIn("good", self.good("run", "bwd bf16 d128", "--random", "1,1,1,70,70", "--device", "emu", "--plan-for", "h200",
                                        "--check", *backward))
        self.bad(UNAVAILABLE, ["shared memory"], "gen", "fwd fp16 d64", "--gpu", "t4", "--plan", "mma m64 n1024 w4 s2 c1")

    def test_usage(self):
        self.bad(USAGE, ["no spelling"], "tune")
        self.bad(USAGE, ["--budget", "soon"], "tune", "fwd fp16 d64", "--budget", "soon")
        for shapes in ("0", "4x4", "1x2x3x4x5x6", "x", "64,,64x", "1x1x1x1x-1"):
            self.bad(USAGE, ["--shapes"], "tune", "fwd fp16 d64", "--shapes", shapes)
        self.bad(BAD_INPUT, ["fp17"], "tune", "fwd fp17 d64", *EMULATED)
        self.bad(BAD_INPUT, ["num_heads_q"], "tune", "fwd fp16 d64", "--device", "emu", "--shapes", "1x4x2x64x64")
        self.bad(UNAVAILABLE, ["nope"], "tune", "fwd fp16 d64", "--modelled", "--gpu", "nope")
        self.path("list.txt", "fwd fp16 d256\n")
        self.bad(USAGE, ["--csv would overwrite the input list.txt"], "tune", "list.txt", *EMULATED, "--csv", "list.txt")
        self.bad(USAGE, ["--csv and --svg name one file"], "tune", "list.txt", *EMULATED, "--csv", "x", "--svg", "./x")
        self.bad(IO, ["no/x"], "tune", "list.txt", *EMULATED, "--svg", "no/x")
        self.assertFalse(os.path.exists(self.cache))  # found out before anything was compiled
        for option in (["--device", "emu"], ["--plan-for", "h100"], ["--rigor", "patient"], ["--jobs", "2"], ["--resume"], ["--svg", "x"]):
            self.bad(USAGE, [f"{option[0]} belongs to what is timed"], "tune", "fwd fp16 d64", "--modelled", *option)
            self.bad(USAGE, [f"{option[0]} belongs to a search"], "tune", "--export", "x", *option)
        for option in (["--shapes", "64"], ["--csv", "x"], ["--json"], ["--dry-run"], ["--skip-unsupported"], ["--budget", "1s"]):
            self.bad(USAGE, [f"{option[0]} belongs to a search"], "tune", "--export", "x", *option)
        self.bad(USAGE, ["--dry-run excludes"], "tune", "fwd fp16 d64", *EMULATED, "--dry-run", "--from", "list.txt")

    def test_explain_follows_records_for_sizes(self):
        """A timing of one's own decides which kernel sizes get, also where one with parts would serve them."""
        if not self.has_nvrtc():
            self.skipTest("no NVRTC")
        sizes = ("--gpu", "h100", "--shape", "1,8,8,64,32768")
        told = "take for these sizes: wgmma m64 n128 w8 s2 c1 q2 k2 o1 p1"
        self.assertIn(told, self.good("explain", "fwd bf16 d64 causal", *sizes))
        self.good("tune", "fwd bf16 d64 causal", "--shapes", "1x8x8x64x32768", "--modelled", "--gpu", "h100")
        path = self.path(os.path.join("cache", "tune-nvidia-h100-80gb-hbm3.jsonl"))
        with open(path, encoding="utf-8") as file:
            modelled = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(modelled.replace('"rigor":"model"', '"rigor":"measure"'))
        text = self.good("explain", "fwd bf16 d64 causal", *sizes)
        self.assertIn("own record: ", text)
        self.assertNotIn("take for these sizes", text)

    def test_modelled(self):
        if not self.has_nvrtc():
            self.skipTest("no NVRTC")
        told = self.good("tune", "fwd fp16 d128 causal", "--modelled", "--gpu", "t4")
        self.assertIn("Nothing was run", told)
        record, = self.records("tune-tesla-t4.jsonl")
        self.assertEqual((record["rigor"], record["samples"], record["spill_bytes"]), ("model", 0, 0))
        self.assertGreater(record["registers"], 32)
        self.assertIn("own record: modelled", self.good("explain", "fwd fp16 d128 causal", "--gpu", "t4"))
        self.path("list.txt", "fwd bf16 d64\n")
        self.good("tune", "list.txt", "--modelled", "--gpu", "t4", "--skip-unsupported")
        self.bad(UNAVAILABLE, ["bf16"], "tune", "list.txt", "--modelled", "--gpu", "t4")

    def test_modelled_takes_what_is_built(self):
        if not self.has_nvrtc():
            self.skipTest("no NVRTC")
        spelling = "fwd bf16 d64 bigbird(64)"  # of whose spills more are minor, as a warp that looks for tiles has most of them
        built, = json.loads(self.good("build", spelling, "--gpu", "h200", "--reproducible", "--json"))
        self.good("tune", spelling, "--modelled", "--gpu", "h200")
        record, = self.records("tune-nvidia-h200.jsonl")
        for name in ("registers", "spill_bytes"):
            self.assertEqual(record[name], built[name])


if __name__ == "__main__":
    cli_case.main()
