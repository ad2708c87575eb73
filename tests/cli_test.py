#!/usr/bin/env python3
"""Runs the built program's verbs, all but `run`, on good and on bad input: exit codes, messages and files.

Usage: cli_test.py PROGRAM [unittest arguments]. Needs the standard library only.
"""
import json
import os
import subprocess
import xml.dom.minidom
import zlib

import cli_case
from cli_case import BAD_INPUT, CHECK_FAILED, FAILED, IO, OK, UNAVAILABLE, USAGE, Case

VERBS = ("devices", "plan", "gen", "build", "run", "explain", "pattern", "tune", "cache", "pack")


class Help(Case):
    def test_every_verb_documents_itself(self):
        listing = self.good("--help")
        for verb in VERBS:
            self.assertIn(verb, listing)
            text = self.good(verb, "--help")
            self.assertIn("Exit codes", text)
            self.assertTrue(text.startswith(f"flashkiln {verb} "))
            self.assertEqual(text, self.good(verb, "fwd", "--help", "--nonsense"))

    def test_help_is_a_verb(self):
        self.assertEqual(self.good("help"), self.good("--help"))
        self.assertEqual(self.good("help", "help"), self.good("--help"))
        self.assertEqual(self.good("help", "run"), self.good("run", "--help"))

    def test_version(self):
        self.assertRegex(self.good("--version"), r"^flashkiln \d+\.\d+\.\d+\n$")

    def test_no_or_unknown_verb(self):
        for arguments in ([], ["fly"], ["--fly"], ["help", "fly"]):
            result = self.program(*arguments)
            self.assertEqual(result.returncode, USAGE)
            self.assertIn("flashkiln VERB", result.stderr)
            self.assertEqual(result.stdout, "")

    def test_standard_output_that_is_full(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        for words in (["--help"], ["plan", "fwd fp16 d64", "--json"]):  # the second exceeds the stream's buffer
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([cli_case.program_path, *words], stdout=full, stderr=subprocess.PIPE, text=True, env=self.env)
            self.assertEqual(result.returncode, IO)
            self.assertEqual(result.stderr, "flashkiln: standard output cannot be written\n")


class Planning(Case):
    def test_devices(self):
        rows = json.loads(self.good("devices", "--json"))
        keys = [row["key"] for row in rows]
        for key in ("t4", "a100", "rtx3090", "l4", "h200"):
            self.assertIn(key, keys)
        a100 = rows[keys.index("a100")]
        self.assertEqual(a100["smem_per_block"], 163 * 1024)
        text = self.good("devices")
        self.assertIn("163 KB", text)
        self.assertIn("emu", text)

    def test_plan(self):
        rows = json.loads(self.good("plan", "fwd bf16 d128 causal", "--gpu", "a100", "--json"))
        self.assertEqual(sum(row["chosen"] for row in rows), 1)
        self.assertTrue(rows[0]["chosen"])
        legal = [row for row in rows if row["legal"]]
        self.assertEqual(rows[:len(legal)], legal)
        self.assertEqual([row["model_us"] for row in legal], sorted(row["model_us"] for row in legal))
        for row in rows:
            self.assertTrue(row["legal"] or row["reason"], row)
            self.assertFalse(row["legal"] and row["smem_bytes"] > 163 * 1024, row)
        text = self.good("plan", "fwd", "bf16", "d128", "causal", "--gpu=a100")
        self.assertIn("fwd bf16 d128 causal on NVIDIA A100", text)
        self.assertIn("of the 163 KB a block may take", text)

    def test_paper_rule(self):
        rows = json.loads(self.good("plan", "fwd fp16 d64", "--gpu", "a100", "--rule", "paper", "--json"))
        chosen = [row for row in rows if row["chosen"]]
        self.assertEqual(len(chosen), 1)
        self.assertLessEqual(chosen[0]["block_m"], 64)  # B_r = min(B_c, d)

    def test_shape_moves_the_model(self):
        small = self.good("plan", "fwd fp16 d64 gqa", "--shape", "1,8,2,512,512", "--json")
        large = self.good("plan", "fwd fp16 d64 gqa", "--shape", "1,8,2,8192,8192", "--json")
        self.assertLess(json.loads(small)[0]["model_us"], json.loads(large)[0]["model_us"] / 50)

    def test_gen(self):
        text = self.good("gen", "fwd fp16 d64 causal", "--gpu", "a100", "--standalone")
        self.assertIn("fwd fp16 d64 causal", text.splitlines()[0])
        self.assertNotIn("#line", text)
        self.assertNotIn("#include", text)
        self.assertIn("#line", self.good("gen", "fwd fp16 d64 causal", "--gpu", "a100"))
        self.assertEqual(text, self.good("gen", "fwd fp16 d64 causal", "--gpu", "a100", "--standalone"))
        result = self.program("gen", "fwd fp16 d64 causal", "--gpu", "a100", "--standalone", "-o", "k.cu")
        self.assertEqual((result.returncode, result.stdout), (OK, ""))
        self.assertIn("k.cu", result.stderr)
        with open(self.path("k.cu"), encoding="utf-8") as file:
            self.assertEqual(file.read(), text)
        self.assertEqual(os.listdir(self.dir), ["k.cu"])

    def test_explain(self):
        facts = json.loads(self.good("explain", "fwd bf16 d128 causal", "--gpu", "h200", "--json"))
        self.assertAlmostEqual(facts["share_skipped"], 0.5, delta=0.05)
        self.assertGreater(facts["tensor_fraction"], 0.1)
        self.assertLessEqual(facts["tensor_fraction"], 1)
        full = json.loads(self.good("explain", "fwd bf16 d128", "--gpu", "h200", "--json"))
        self.assertEqual((full["tiles_empty"], full["tiles_partial"]), (0, 0))
        text = self.good("explain", "fwd bf16 d128 causal", "--gpu", "h200", "--top", "2")
        for part in ("never loaded", "bound by", "HBM traffic", "FLOP per byte", "Why not"):
            self.assertIn(part, text)

    def test_explain_tells_the_kernel_for_sizes(self):
        self.env.pop("FLASHKILN_TUNING", None)  # off here, and then there is one kernel for all sizes
        words = ["fwd bf16 d64 causal", "--gpu", "h100", "--shape"]
        for verb in ("explain", "plan"):
            told = "take for these sizes: wgmma m64 n128 w8 s2 c1 q2 k2 o1 p1"
            self.assertIn(told, self.good(verb, *words, "1,8,8,64,32768"))
            self.assertNotIn("take for these sizes", self.good(verb, *words, "1,16,16,8192,8192"))

    def test_explain_states_the_io_bound(self):
        words = ["explain", "fwd fp16 d64 butterfly(128)", "--gpu", "a100", "--shape", "1,1,1,16384,16384"]
        facts = json.loads(self.good(*words, "--json"))
        self.assertEqual(facts["density"], 8 / 128)  # log2(128) + 1 of 128 blocks a row
        rows = 16384 // facts["block_m"]
        self.assertEqual(facts["walked_bytes"], rows * 8 * 128 * (64 + 64) * 2)  # of K and V
        room = 163 * 1024 / 2
        terms = 16384**2 * 64**2 * facts["density"] / room
        self.assertAlmostEqual(facts["walked_bytes"] / 2 / terms, facts["io_factor"], places=6)
        self.assertIn("Theta(N d + N^2 d^2 s / M)", self.good(*words))

    def test_explain_keys_of_8_bits(self):
        """Family wgmma walks over what a kernel before has made 16 bits of, family mma over the bytes."""
        for gpu, size, said in (("h200", 2, True), ("a100", 1, False)):
            words = ["explain", "fwd bf16 kv_e4m3 d128 dv64", "--gpu", gpu, "--shape", "1,1,1,4096,4096"]
            facts = json.loads(self.good(*words, "--json"))
            self.assertEqual(facts["walked_bytes"], 4096 // facts["block_m"] * 4096 * (128 + 64) * size)
            self.assertEqual("384 bytes for each key of a kv head" in self.good(*words), said)

    def test_explain_another_spelling(self):
        said = "one query is faster as"
        text = self.good("explain", "fwd bf16 d576 dv512 latent gqa split causal paged(64)", "--gpu", "h200")
        self.assertIn('as "fwd bf16 d576 dv512 latent paged(64)" with', text)
        self.assertNotIn(said, self.good("explain", "fwd fp16 d512 gqa split", "--gpu", "h200", "--shape", "1,32,8,8,4096"))
        for words, gpu, told in (("fwd bf16 d576 dv512 latent gqa split", "h200", True), ("fwd fp16 d512 split causal paged(16)", "h100", True),
                                 ("fwd fp16 d512 split causal", "a100", False), ("fwd fp16 d256 split", "h200", True), ("fwd fp16 d64 split", "h200", False),
                                 ("fwd fp16 d512 split window(9,0)", "h200", False), ("fwd fp16 d512 split softcap(9)", "h200", False),
                                 ("fwd fp16 d512 split kv_e4m3", "h200", False), ("fwd fp32 d320 split", "h200", False),
                                 ("fwd fp16 d512 split causal top-left", "h200", False), ("fwd fp16 d512 split paged", "h200", False)):
            self.assertEqual(said in self.good("explain", words, "--gpu", gpu), told, words)

    def test_explain_what_two_ctas_share(self):
        for words, gpu, sram, said in (
                ("bwd bf16 d512", "h200", "K 32 KB + V 32 KB + 2 stages x (Q 32 KB + dO 32 KB) = 192 KB", "weighs half of the queries"),
                ("bwd bf16 d512", "a100", "K 32 KB + V 32 KB + 1 stage x (Q 32 KB + dO 32 KB) = 128 KB", "multiplies Q K^T and dO V^T"),
                ("fwd bf16 d512", "h200", "Q 64 KB + sent 24 KB + 2 stages x (K 32 KB + V 32 KB) = 216 KB", "weighs half of the keys"),
                ("fwd bf16 d256 dv512", "a100", "= ", "has half of V's columns"),
                ("bwd bf16 d256", "h200", "= ", None)):
            text = self.good("explain", words, "--gpu", gpu)
            self.assertIn(sram, text)
            self.assertEqual(said is not None, "two CTAs share" in text)
            self.assertIn(said or "", text)

    def png(self, name):
        """Its width, height and rows of colours; checks each chunk's CRC."""
        with open(self.path(name), "rb") as file:
            data = file.read()
        chunks, at = {}, 8
        self.assertEqual(data[:at], b"\x89PNG\r\n\x1a\n")
        while at < len(data):
            size = int.from_bytes(data[at:at + 4], "big")
            kind, crc = data[at + 4:at + 8], data[at + 8 + size:at + 12 + size]
            self.assertEqual(zlib.crc32(data[at + 4:at + 8 + size]), int.from_bytes(crc, "big"))
            chunks[kind] = data[at + 8:at + 8 + size]
            at += 12 + size
        width, height = (int.from_bytes(chunks[b"IHDR"][i:i + 4], "big") for i in (0, 4))
        rows = zlib.decompress(chunks[b"IDAT"])
        self.assertEqual(len(rows), height * (width + 1))
        return width, height, [rows[y * (width + 1) + 1:(y + 1) * (width + 1)] for y in range(height)]

    def test_patterns_are_drawn(self):
        text = self.good("pattern", "show", "butterfly(64)", "--n", "256", "--gpu", "a100")
        self.assertIn("fwd fp16 d64 butterfly(64), head 0: 256 queries x 256 keys", text)
        self.assertEqual(text.splitlines()[3:], ["  ###.", "  ##.#", "  #.##", "  .###"])
        shown = ["pattern", "show", "bwd bf16 d64", "blocks(64x32)=h == 1 && i * 2 >= j", "causal", "--n", "128"]
        self.assertEqual(self.good(*shown, "--head", "1").splitlines()[3:], ["  +...", "  ##+."])
        self.assertEqual(self.good(*shown).splitlines()[3:], ["  ....", "  ...."])
        self.assertEqual(self.good("pattern", "show", "  fwd fp16 d64 causal", "--n", "64").splitlines()[3:], ["  +"])
        lines = self.good("pattern", "show", "local(32,0)", "--n", "4096").splitlines()[3:]  # two rows of blocks a character
        self.assertEqual(lines[:2], ["  a character is 2 x 2 blocks", "  +" + "." * 63])
        self.good("pattern", "show", "bigbird(64)", "--n", "1000", "-o", "bigbird.svg")
        with open(self.path("bigbird.svg"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(len(xml.dom.minidom.parseString(text).getElementsByTagName("path")), 3)
        self.assertIn("bigbird(64)", text)
        self.good("pattern", "show", "local(64,0)", "--n", "128", "--keys", "192", "-o", "local.png")
        width, height, rows = self.png("local.png")
        self.assertEqual((width, height), (192, 192))
        self.assertEqual([rows[y][x] for y, x in ((32, 96), (32, 32), (96, 160), (160, 32))], [2, 3, 2, 0])  # shown, hidden; below: nothing
        for message, *more in (("must be: pattern show", "draw", "local(64,1)"), ("must end in .svg or .png", "show", "local(64,1)", "-o", "x.gif"),
                               ("--n 64 and --keys 999999 give 64 x 999999 blocks of 1 x 1: must be at most", "show", "local(1,1)", "--n", "64", "--keys", "999999")):
            self.bad(USAGE, [message], "pattern", *more)
        self.bad(USAGE, ["--head is 8: must be below --heads, 8"], "pattern", "show", "local(64,1)", "--head", "8")
        self.bad(BAD_INPUT, ["pattern local has 2 values: must be 3 (rows,columns,window)"], "pattern", "show", "local(64)")

    def test_explain_a_predicate_of_the_callers(self):
        words = ["fwd", "fp16", "d64", "keep=k <= q && q - k < 512", "--gpu", "a100"]  # as a shell passes it
        facts = json.loads(self.good("explain", *words, "--shape", "1,8,8,8192,8192", "--json"))
        self.assertGreater(facts["share_skipped"], 0.9)
        self.assertEqual(facts["spelling"], 'fwd fp16 d64 keep="k <= q && q - k < 512"')


class BadSpelling(Case):
    def test_problems(self):
        for spelling, parts in (("fwd fp16 d64 causl", ["causl"]), ("fwd fp16 d12", ["head_dim", "12", "8"]),
                                ("fwd fp16 d264", ["head_dim", "264", "256"]), ("fwd fp8 d64", ["fp8"]),
                                ("fwd fp16 d64 dv20", ["head_dim_v", "20"]), ("jump fp16 d64", ["jump"]),
                                ("fwd fp16 d64 window(1)", ["window", "2"]), ("", ["^"]), ("fwd fp16", ["head_dim"])):
            for verb in ("plan", "gen", "explain"):
                self.bad(BAD_INPUT, parts, verb, spelling, "--gpu", "a100")

    def test_caret_stands_under_the_column(self):
        for spelling, column in (("fwd fp16 d64 causl", "causl"), ('fwd fp16 d64 keep="k <= zz"', "zz")):
            lines = self.bad(BAD_INPUT, [], "plan", spelling).splitlines()
            carets = [n for n, line in enumerate(lines) if line.strip() == "^"]
            self.assertEqual(len(carets), 1, lines)
            place = lines[carets[0]].index("^")
            self.assertEqual(lines[carets[0] - 1][place:place + len(column)], column)

    def test_expressions(self):
        for text, parts in (("k <= ", ["expected", "^"]), ("k <= q)", [")", "^"]), ("k <= q q", ["q", "^"]),
                            ("seqlen < 3", ["seqlen", "^"]), ("k + q", ["int", "bool", "\n      ^"])):
            self.bad(BAD_INPUT, parts, "plan", f'fwd fp16 d64 keep="{text}"')

    def test_values_are_numbers(self):
        for value in ("50-20", "--5", "1+1+1"):
            self.bad(BAD_INPUT, ["softcap: expected a number"], "plan", f"fwd fp16 d64 softcap({value})")
        self.good("plan", "fwd fp16 d64 softcap(+5e-1)")

    def test_too_long(self):
        self.bad(BAD_INPUT, ["4095"], "plan", "fwd fp16 d64 " + "causal " * 600)

    def test_gpu(self):
        self.bad(UNAVAILABLE, ["v100", "a100", "t4"], "plan", "fwd fp16 d64", "--gpu", "v100")
        self.bad(UNAVAILABLE, ["no plan for t4 (sm_75): dtype bf16: the tensor cores of sm_75 take fp16 only"], "gen",
                 "fwd bf16 d64", "--gpu", "t4")
        self.bad(UNAVAILABLE, ["v100"], "build", "fwd fp16 d64", "--gpu", "t4,v100", "-o", "cubins")
        self.bad(UNAVAILABLE, ["FK_NO_DEVICE"], "run", "fwd fp16 d64", "--random", "1,1,1,8,8", "--device",
                 "cuda:99")  # names the ordinal, or that there is no driver
        self.bad(UNAVAILABLE, ["v100"], "run", "fwd fp16 d64", "--random", "1,1,1,8,8", "--device", "emu",
                 "--plan-for", "v100")

    def test_options(self):
        for arguments, parts in ((["plan"], ["spelling"]), (["plan", "fwd fp16 d64", "--gpus", "t4"], ["--gpus"]),
                                 (["plan", "fwd fp16 d64", "--gpu"], ["--gpu", "KEY"]),
                                 (["plan", "fwd fp16 d64", "--rule", "best"], ["best", "model, paper"]),
                                 (["plan", "fwd fp16 d64", "--shape", "1,2,3"], ["--shape", "1,2,3"]),
                                 (["plan", "fwd fp16 d64", "--shape", "0,8,8,8,8"], ["--shape", "1 to 1073741824"]),
                                 (["devices", "now"], ["now"]), (["cache"], ["ls"]), (["cache", "ls", "all"], ["cache ls: takes no argument", "all"]), (["cache", "melt"], ["melt"]),
                                 (["cache", "prune", "--max-size", "lots"], ["lots"]),
                                 (["cache", "ls", "--max-size", "0"], ["cache ls: --max-size belongs to prune"]),
                                 (["build", "fwd fp16 d64", "--gpu", ","], ["--gpu"]),
                                 (["build", "fwd fp16 d64", "--jobs", "0"], ["--jobs", "1 to 64"])):
            self.bad(USAGE, parts, *arguments)

    def test_shapes(self):
        self.bad(BAD_INPUT, ["num_heads", "8", "3"], "plan", "fwd fp16 d64 gqa", "--shape", "1,8,3,64,64")

    def test_outputs_that_cannot_be_written(self):
        self.bad(IO, ["no/such/k.cu"], "gen", "fwd fp16 d64", "-o", "no/such/k.cu")
        self.bad(IO, [self.dir, "directory"], "gen", "fwd fp16 d64", "-o", self.dir)
        self.path("file", b"")
        self.bad(IO, ["file"], "build", "fwd fp16 d64", "-o", "file/below")
        self.bad(IO, ["file: is no folder"], "build", "fwd fp16 d64", "-o", "file")

    def test_lua_errors_name_file_and_line(self):
        self.path("templates/mask/causal.lua", "local x = nil\nreturn { keep = x.y }\n")
        self.bad(FAILED, ["causal.lua:2"], "gen", "fwd fp16 d64 causal", "--template-dir", "templates")
        self.bad(FAILED, ["causal.lua:2"], "run", "fwd fp16 d64 causal", "--random", "1,1,1,8,8", "--device", "emu",
                 "--template-dir", "templates", "-o", "o.npy")
        self.bad(IO, ["no-such"], "gen", "fwd fp16 d64", "--template-dir", "no-such")

    def test_tilings_for_short_rows_alone(self):
        """What goes by a head's rows serves no kernel for all sizes, and what was refused is not built in its place."""
        self.path("own/arch/sm90.lua", """return { inherits = "sm80", name = "sm_90", wgmma_flops = 4096, smem_bytes = 227 * 1024,
            backward_tiles = {}, wgmma_backward_tiles = { { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false,
            ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 128 } } }""")
        self.bad(UNAVAILABLE, ["no plan for all sizes fits NVIDIA H200"], "build", "bwd bf16 d64", "--gpu", "h200", "--shape",
                 "1,1,1,64,64", "--template-dir", "own")

    def test_compiler_errors_name_template_lines(self):
        folder = self.templates("piece/softmax.cu", lambda t: t + "\nthis is not CUDA;\n")
        with open(os.path.join(folder, "piece/softmax.cu"), encoding="utf-8") as file:
            line = next(n for n, text in enumerate(file, 1) if "this is not CUDA" in text)
        self.bad(FAILED, ["FK_COMPILE_FAILED", "softmax.cu", str(line)], "run", "fwd fp16 d64", "--random",
                 "1,1,1,8,8", "--device", "emu", "--template-dir", folder, "-o", "o.npy")
        if self.has_nvrtc():
            self.bad(FAILED, ["FK_COMPILE_FAILED", f"softmax.cu({line})"], "build", "fwd fp16 d64", "--template-dir",
                     folder, "-o", "cubins")


class Cache(Case):
    def fill(self):
        return json.loads(self.good("run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "--json"))

    def test_empty(self):
        self.assertEqual(json.loads(self.good("cache", "ls", "--json")), [])
        self.assertIn("0 entries", self.good("cache", "ls"))
        self.good("cache", "verify")
        self.assertEqual(self.good("cache", "path"), self.cache + "\n")
        self.assertEqual(self.good("cache", "path", "--cache-dir", "/elsewhere"), "/elsewhere\n")

    def test_ls_and_prune(self):
        key = self.fill()["key"]
        rows = json.loads(self.good("cache", "ls", "--json"))
        self.assertEqual([(row["key"], row["spelling"], row["target"], row["valid"]) for row in rows],
                         [(key, "fwd fp16 d8", "emu", True)])
        self.assertIn("1 entry", self.good("cache", "ls"))
        self.good("cache", "prune")
        self.assertEqual(len(json.loads(self.good("cache", "ls", "--json"))), 1)
        self.assertIn("removed 1 file", self.good("cache", "prune", "--max-size", "0"))
        self.assertEqual(json.loads(self.good("cache", "ls", "--json")), [])

    def test_a_store_whose_path_is_too_long_to_be_shown(self):
        folder = os.path.join(self.cache, *["d" * 200] * ((3600 - len(self.cache)) // 201))
        run = ("run", "fwd fp16 d8", "--random", "1,1,1,8,8", "--device", "emu", "--cache-dir", folder)
        self.assertIn("Store     written (absent before): a file whose path is too long", self.good(*run))
        self.assertIn("Store     a file whose path is too long", self.good(*run))

    def test_damage_is_found_and_repaired(self):
        path = self.fill()["store_path"]
        with open(path, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        result = self.program("cache", "verify", "--json")
        self.assertEqual(result.returncode, CHECK_FAILED)
        row = json.loads(result.stdout)[0]
        self.assertFalse(row["valid"])
        self.assertNotEqual(row["problem"], "")
        again = self.fill()
        self.assertFalse(again["from_store"])
        self.assertNotIn(again["store_note"], ("", "hit"))
        self.good("cache", "verify")
        self.assertTrue(self.fill()["from_store"])


class Building(Case):
    def setUp(self):
        super().setUp()
        if not self.has_nvrtc():
            self.skipTest("no NVRTC on this machine")

    def test_two_gpus(self):
        rows = json.loads(self.good("build", "fwd fp16 d64 causal", "--gpu", "t4,a100", "-o", "out", "--json"))
        self.assertEqual([(row["gpu"], row["target"]) for row in rows], [("t4", "sm_75"), ("a100", "sm_80")])
        for row in rows:
            self.assertEqual(row["spill_bytes"], 0)
            self.assertGreater(row["registers"], 16)
            self.assertGreater(row["compile_ms"], 0)
        self.assertEqual(sorted(os.listdir(self.path("out"))),
                         [f"fwd-fp16-d64-causal.{gpu}.{kind}" for gpu in ("a100", "t4") for kind in ("cu", "cubin")])
        with open(self.path("out/fwd-fp16-d64-causal.t4.cubin"), "rb") as file:
            image = file.read()
        self.assertEqual(image[:4], b"\x7fELF")
        self.assertEqual(len(image), rows[0]["image_bytes"])

    def test_lists(self):
        self.path("kernels.txt", "# two\nfwd fp16 d64\n\nfwd bf16 d64\n")
        self.path("kernels.lua", "return { 'fwd fp16 d64', 'fwd bf16 d64' }\n")
        for name in ("kernels.txt", "kernels.lua"):
            result = self.program("build", name, "--gpu", "t4", "--json")
            self.assertEqual(result.returncode, UNAVAILABLE)
            self.assertIn("fwd bf16 d64 for t4", result.stderr)
            self.assertEqual([row["status"] for row in json.loads(result.stdout)], ["", "FK_UNSUPPORTED"])
        text = self.good("build", "kernels.txt", "--gpu", "t4", "--skip-unsupported", "--jobs", "1")
        self.assertIn("1 of 2 built, 0 with spills; compile median", text)

    def test_bad_lists(self):
        self.path("kernels.txt", "fwd fp16 d64\nfwd fp16 d12\n")
        self.bad(BAD_INPUT, ["kernels.txt, line 2", "head_dim", "12"], "build", "kernels.txt")
        self.path("kernels.lua", "return {\n 'fwd fp16 d64',\n nope.x }\n")
        self.bad(FAILED, ["kernels.lua:3"], "build", "kernels.lua")
        self.bad(IO, ["gone.txt"], "build", "gone.txt")

    def test_names_of_expressions_differ(self):
        self.path("kernels.txt", 'fwd fp16 d8 keep="k <= q"\nfwd fp16 d8 keep="k >= q"\n')
        self.good("build", "kernels.txt", "--gpu", "a100", "-o", "out")
        names = os.listdir(self.path("out"))
        self.assertEqual(len(names), 4)
        for name in names:
            self.assertRegex(name, r"^fwd-fp16-d8-keep-k-q-[0-9a-f]{8}\.a100\.(cu|cubin)$")


if __name__ == "__main__":
    cli_case.main()
