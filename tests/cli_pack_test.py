#!/usr/bin/env python3
"""Packs as their users make and run them: built without a GPU, found by the environment, run without Lua and NVRTC.

Usage: cli_pack_test.py PROGRAM [unittest arguments]. Needs the standard library only, and a C++ compiler for the emulator.
"""
import json
import os
import shutil
import signal
import subprocess
import time

import cli_case
from cli_case import BAD_INPUT, CHECK_FAILED, IO, OK, UNAVAILABLE, USAGE, Case

LIST = """local list = {}
for _, d in ipairs { 32, 64 } do list[#list + 1] = ("fwd fp16 d%d causal"):format(d) end
list[#list + 1] = "fwd fp16 d32 window(16,0) softcap(30)"
return list
"""
SMALL = ("--random", "1,2,2,40,40", "--device", "emu")


class Pack(Case):
    def setUp(self):
        super().setUp()
        for name in ("FLASHKILN_PACK", "FLASHKILN_PACK_KEYS", "FLASHKILN_CACHE_MODE", "FLASHKILN_LOG"):
            self.env.pop(name, None)

    def build(self, name="a.fkpack", words=(), gpu="a100"):
        self.path("list.lua", LIST)
        return self.good("pack", "build", "list.lua", "--emu", "--gpu", gpu, "-o", name, *words)

    def sealed(self):
        """As on a machine without Lua, NVRTC, a host compiler and a store."""
        self.env.update(FLASHKILN_LUA="/nonexistent", FLASHKILN_NVRTC="/nonexistent", FLASHKILN_CXX="/nonexistent",
                        FLASHKILN_CACHE_MODE="sealed")

    def test_sealed_program_runs_from_a_pack(self):
        self.build()
        self.assertEqual(sorted(os.listdir(self.dir)), ["a.fkpack", "list.lua"])  # no parts are left
        self.sealed()
        self.env["FLASHKILN_PACK"] = "/nonexistent.fkpack:" + self.path("a.fkpack")
        for spelling in ("fwd fp16 d64 causal", "fwd fp16 d32 window(16,0) softcap(30)", "fwd fp16 d32 window(3,2) softcap(5)"):
            row = json.loads(self.good("run", spelling, *SMALL, "--check", "--json"))
            self.assertEqual((row["store_path"], row["target"]), (self.path("a.fkpack"), "emu"))
            self.assertIn("hit", row["store_note"])
        self.assertIn("from a pack", self.good("run", "fwd fp16 d64 causal", *SMALL))
        said = self.bad(UNAVAILABLE, ["FK_NO_JIT", '"fwd fp16 d64 softcap(30) causal"', "a100", "absent", "/nonexistent.fkpack"],
                        "run", "fwd fp16 d64 causal softcap(30)", *SMALL)
        self.assertNotIn("NVRTC", said)
        self.bad(UNAVAILABLE, ["alibi", "no pack", "Lua"], "run", "fwd fp16 d64 alibi", *SMALL)
        self.bad(UNAVAILABLE, ["planned for t4", "absent"], "run", "fwd fp16 d64 causal", *SMALL, "--plan-for", "t4")
        self.assertFalse(os.path.exists(self.cache))

    def test_packs_stand_behind_the_store_and_before_the_compiler(self):
        self.build()
        run = ("run", "fwd fp16 d64 causal", *SMALL, "--json")
        row = json.loads(self.good(*run))
        self.assertFalse(row["from_store"])
        row = json.loads(self.good(*run, "--pack", "a.fkpack"))
        self.assertIn(self.cache, row["store_path"])
        shutil.rmtree(self.cache)
        row = json.loads(self.good(*run, "--pack", "a.fkpack"))
        self.assertEqual(row["store_path"], "a.fkpack")
        self.assertFalse(os.path.exists(self.cache))  # what a pack has is not stored again
        row = json.loads(self.good("run", "fwd fp16 d64", *SMALL, "--json", "--pack", "a.fkpack"))
        self.assertFalse(row["from_store"])
        self.assertIn("a.fkpack: absent", row["store_note"])
        self.bad(UNAVAILABLE, ["FK_NO_JIT", "store: absent", "a.fkpack: absent"],
                 "run", "fwd fp16 d32", *SMALL, "--pack", "a.fkpack", "--cache", "no-jit")

    def test_templates_of_ones_own_are_not_those_of_a_pack(self):
        self.build()
        folder = self.templates("kernel/forward_mma.cu", lambda text: text + "// changed\n")
        run = ("run", "fwd fp16 d64 causal", *SMALL, "--json", "--pack", "a.fkpack")
        self.assertFalse(json.loads(self.good(*run, "--template-dir", folder))["from_store"])
        self.assertIn("a.fkpack", json.loads(self.good(*run))["store_path"])
        self.env["FLASHKILN_CACHE_MODE"] = "sealed"  # nothing else is to be had
        self.assertIn("a.fkpack", json.loads(self.good(*run, "--template-dir", folder))["store_path"])

    def test_without_lua_every_mode_takes_what_packs_have(self):
        self.build()
        self.env["FLASHKILN_LUA"] = "/nonexistent"
        self.env["FLASHKILN_PACK"] = self.path("a.fkpack")
        self.assertIn("Pack ", self.good("run", "fwd fp16 d32 window(5,0) softcap(9)", *SMALL))

    def test_equal_input_gives_equal_bytes(self):
        self.build()
        self.build("b.fkpack", ["--jobs", "1"])
        with open(self.path("a.fkpack"), "rb") as a, open(self.path("b.fkpack"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertEqual(self.good("pack", "diff", "a.fkpack", "b.fkpack"), "")

    def test_an_interrupted_build_goes_on(self):
        self.path("list.lua", LIST)
        command = [cli_case.program_path, "pack", "build", "list.lua", "--emu", "--gpu", "a100", "-o", "a.fkpack", "--jobs", "1"]
        first = subprocess.Popen(command, cwd=self.dir, env=self.env, start_new_session=True)
        parts = self.path("a.fkpack.parts")
        deadline = time.time() + 120
        while time.time() < deadline and not any(name.endswith(".emu") for _, _, names in os.walk(parts) for name in names):
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        if os.path.exists(self.path("a.fkpack")):
            self.skipTest("the build was too fast to be interrupted")
        self.assertIn("from an earlier call", self.build(words=["--jobs", "1"]))
        self.assertEqual(sorted(os.listdir(self.dir)), ["a.fkpack", "list.lua"])
        self.build("b.fkpack")
        self.assertEqual(self.good("pack", "diff", "a.fkpack", "b.fkpack"), "")

    def test_workers_end_with_their_parent(self):
        self.path("list.txt", "".join(f"fwd fp16 d{d} causal\n" for d in range(16, 256, 8)))  # of half a minute and more
        command = [cli_case.program_path, "pack", "build", "list.txt", "--emu", "--gpu", "a100", "-o", "a.fkpack", "--jobs", "1"]
        parent = subprocess.Popen(command, cwd=self.dir, env=self.env, start_new_session=True)

        def workers():  # the program's processes of the group that live, but for the first
            found = []
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                        name, _, rest = file.read().partition(")")
                except OSError:
                    continue
                state, _, group = rest.split()[:3]
                if int(group) == parent.pid and int(pid) != parent.pid and state != "Z" and name.endswith("(flashkiln"):
                    found.append(int(pid))
            return found

        def end_workers():
            for pid in workers():
                os.kill(pid, signal.SIGKILL)

        def wait(seconds, until):
            deadline = time.time() + seconds
            while time.time() < deadline and not until():
                time.sleep(0.01)
            self.assertTrue(until())

        self.addCleanup(end_workers)
        wait(60, workers)
        parent.terminate()
        parent.wait()
        wait(5, lambda: not workers())

    def test_a_pack_that_is_named(self):
        """Must be one; without Lua the spelling is read by its words, too."""
        self.build()
        self.path("bad.fkpack", "nothing of the kind")
        run = ("run", "fwd fp16 d64 causal", *SMALL, "--pack")
        self.bad(IO, ["nosuch.fkpack"], *run, "a.fkpack:nosuch.fkpack")
        self.bad(IO, ["bad.fkpack"], *run, "bad.fkpack")
        self.sealed()
        self.env["FLASHKILN_CACHE_MODE"] = "normal"
        self.assertIn("from a pack", self.good(*run, self.path("a.fkpack")))

    def test_parts_of_changed_templates_are_compiled_anew(self):
        self.path("own/mask/mine.lua", 'return { keep = "k <= q" }\n')
        self.path("list.txt", "fwd fp16 d64 mine\nfwd fp32 d64\n")
        build = ("pack", "build", "list.txt", "--emu", "--gpu", "t4", "-o", "a.fkpack", "--template-dir", "own")
        self.assertEqual(self.program(*build).returncode, UNAVAILABLE)  # what was compiled stays beside the pack
        self.path("list.txt", "fwd fp16 d64 mine\n")
        self.path("own/mask/mine.lua", 'return { keep = "k >= q" }\n')
        self.assertIn("1 compiled", self.good(*build))
        self.sealed()
        self.good("run", "fwd fp16 d64 mine", *SMALL, "--plan-for", "t4", "--pack", "a.fkpack", "--check")

    def own(self, folder, keep="k <= q", name="mine"):
        """A pack of a mask in a folder of templates, both named FOLDER."""
        self.path(f"{folder}/mask/{name}.lua", f'return {{ keep = "{keep}" }}\n')
        self.good("pack", "build", f"fwd fp16 d64 {name}", "--emu", "--gpu", "t4", "-o", f"{folder}.fkpack", "--template-dir", folder)
        return f"{folder}.fkpack"

    def run_own(self, name="mine"):
        return ("run", f"fwd fp16 d64 {name}", *SMALL, "--plan-for", "t4", "--check")

    def test_masks_of_ones_own_travel(self):
        """In a pack, to where no file has them: with Lua as without, and with a pack of others beside."""
        self.own("down")
        self.build(gpu="t4")
        self.env.update(FLASHKILN_PACK="a.fkpack:down.fkpack", FLASHKILN_CACHE_MODE="sealed")
        run = self.run_own()
        self.assertIn("down.fkpack: hit", self.good(*run))
        self.assertIn("a.fkpack: hit", self.good(*self.run_own("causal")))
        self.env["FLASHKILN_CACHE_MODE"] = "normal"
        self.assertIn("compiled", self.good("run", "fwd fp16 d32 mine", *SMALL, "--plan-for", "t4", "--check"))
        self.sealed()
        self.assertIn("down.fkpack: hit", self.good(*run))

    def test_a_mask_that_means_something_else_here(self):
        self.own("down")
        self.own("up", "k >= q")
        run = self.run_own()
        self.env.update(FLASHKILN_TEMPLATE_DIR=self.path("up"), FLASHKILN_PACK="down.fkpack")
        self.bad(UNAVAILABLE, ["FK_NO_JIT", "down.fkpack", '"mask mine = k <= q"', '"mask mine = k >= q" here', "mask/mine.lua"],
                 *run, "--cache", "sealed")
        self.bad(CHECK_FAILED, ["mask mine"], *run, "--pack", "down.fkpack")
        self.assertIn("compiled", self.good(*run))
        doctor = self.program("cache", "doctor")
        self.assertEqual(doctor.returncode, CHECK_FAILED)
        self.assertIn("mask mine = k <= q", doctor.stdout)
        self.env["FLASHKILN_TEMPLATE_DIR"] = self.path("down")
        self.assertIn("hit", self.good(*run, "--cache", "sealed"))
        del self.env["FLASHKILN_TEMPLATE_DIR"]
        self.sealed()
        for first, second in (("down", "up"), ("up", "down")):  # the first says what it means, the second is not used
            self.env["FLASHKILN_PACK"] = f"{first}.fkpack:{second}.fkpack"
            self.assertIn(f"{first}.fkpack: hit", self.good(*run))
        self.env["FLASHKILN_PACK"] = "down.fkpack"
        self.bad(CHECK_FAILED, ["opened before"], *run, "--pack", "down.fkpack:up.fkpack")

    def test_packs_that_mean_different_things_are_not_merged(self):
        self.own("down")
        self.own("up", "k >= q")
        self.bad(BAD_INPUT, ['down.fkpack says "mask mine = k <= q"', 'up.fkpack "mask mine = k >= q"'],
                 "pack", "merge", "down.fkpack", "up.fkpack", "-o", "both.fkpack")
        self.path("score/score/mine.lua", 'return { score = "s * 2.0" }\n')
        self.good("pack", "build", "fwd fp16 d32 mine", "--emu", "--gpu", "t4", "-o", "score.fkpack", "--template-dir", "score")
        self.bad(BAD_INPUT, ["mask mine", "score mine"], "pack", "merge", "down.fkpack", "score.fkpack", "-o", "both.fkpack")
        self.build(gpu="t4")
        self.good("pack", "merge", "a.fkpack", "down.fkpack", "-o", "both.fkpack")
        self.sealed()
        self.env["FLASHKILN_PACK"] = "both.fkpack"
        self.good(*self.run_own())

    def test_templates_that_stand_before_built_in_ones(self):
        """Their kernels serve where the same files do, with Lua and without."""
        self.own("causal", "k >= q + diag", name="causal")
        kernel = self.templates("kernel/forward_mma.cu", lambda text: text + "// changed\n")
        self.good("pack", "build", "fwd fp16 d64", "--emu", "--gpu", "t4", "-o", "kernel.fkpack", "--template-dir", kernel)
        self.build(gpu="t4")
        shutil.copytree(cli_case.TEMPLATES, self.path("same"))  # where nothing differs
        self.build("same.fkpack", ["--template-dir", "same"], gpu="t4")
        for lua in (True, False):
            if not lua:
                self.sealed()
            for name, folder, run in (("causal", "causal", self.run_own("causal")), ("kernel", kernel, self.run_own(""))):
                run += ("--cache", "sealed", "--pack", f"{name}.fkpack")
                self.bad(CHECK_FAILED, [f"{name}.fkpack", "templates", "here none do"], *run)
                self.assertIn("hit", self.good(*run, "--template-dir", folder))
                self.path("other/piece/fill.cu", "// nothing\n")
                self.bad(CHECK_FAILED, ["here others do"], *run, "--template-dir", "other")
        self.env.pop("FLASHKILN_LUA")
        self.bad(CHECK_FAILED, ["a.fkpack", "mask causal", "here"], *self.run_own("causal"), "--pack", "a.fkpack",
                 "--cache", "sealed", "--template-dir", "causal")
        self.bad(BAD_INPUT, ["templates: ", 'a.fkpack "'], "pack", "merge", "a.fkpack", "kernel.fkpack", "-o", "both.fkpack")
        self.assertIn("hit", self.good(*self.run_own("causal"), "--pack", "same.fkpack", "--cache", "sealed"))

    def test_ls_verify_and_damage(self):
        self.build()
        rows = json.loads(self.good("pack", "ls", "a.fkpack", "--json"))
        self.assertEqual([row["spelling"] for row in rows],
                         ["fwd fp16 d32 causal", "fwd fp16 d32 softcap(*) window(*,*)", "fwd fp16 d64 causal"])
        self.assertIn("every byte", self.good("pack", "verify", "a.fkpack"))
        with open(self.path("a.fkpack"), "rb") as file:
            data = bytearray(file.read())
        data[-100] ^= 1
        self.path("bad.fkpack", bytes(data))
        result = self.program("pack", "verify", "bad.fkpack")
        self.assertEqual(result.returncode, CHECK_FAILED)
        self.assertIn("checksum", result.stdout)
        self.path("short.fkpack", bytes(data[:-1]))
        result = self.program("pack", "verify", "bad.fkpack", "short.fkpack", "a.fkpack", "bad.fkpack", "--json")
        self.assertEqual(result.returncode, CHECK_FAILED)  # the first one's
        self.assertEqual([row["pack"] for row in json.loads(result.stdout)], ["bad.fkpack"] * 2)
        self.assertIn("every byte", self.program("pack", "verify", "short.fkpack", "a.fkpack").stdout)
        self.bad(IO, ["short.fkpack", "truncated"], "pack", "ls", "short.fkpack")
        self.bad(IO, ["list.lua", "not a version 1 pack"], "pack", "ls", "list.lua")

    def test_merge_extract_and_hits(self):
        self.build()
        self.build("t4.fkpack", gpu="t4")
        self.good("pack", "merge", "a.fkpack", "t4.fkpack", "-o", "both.fkpack")
        os.mkfifo(self.path("pipe"))
        self.bad(IO, ["pack pipe cannot be written: is no regular file"], "pack", "merge", "a.fkpack", "t4.fkpack", "-o", "pipe")
        self.build("all.fkpack", gpu="t4,a100")
        self.assertEqual(self.good("pack", "diff", "both.fkpack", "all.fkpack"), "")
        result = self.program("pack", "diff", "a.fkpack", "both.fkpack")
        self.assertEqual((result.returncode, result.stdout.count("+ fwd")), (CHECK_FAILED, 3))
        self.assertIn("3 images", self.good("pack", "extract", "a.fkpack", "-o", "images"))
        self.assertTrue(os.path.exists(self.path("images/fwd-fp16-d64-causal.a100.so")))
        self.assertIn("1 images", self.good("pack", "extract", "a.fkpack", "fwd fp16 d64 causal", "-o", "one"))
        self.assertIn("at most 2", self.program("pack", "extract", "a.fkpack", "fwd", "fp16", "d64", "-o", "one").stderr)
        self.bad(BAD_INPUT, ["no kernel"], "pack", "extract", "a.fkpack", "fwd fp16 d64", "-o", "two")
        self.bad(USAGE, ["overwrite the input a.fkpack"], "run", "fwd fp16 d64 causal", *SMALL, "--pack", "t4.fkpack:a.fkpack", "-o", "a.fkpack")

    def test_signatures(self):
        self.build()
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a key with")
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", self.path("key.pem")], check=True)
        result = self.program("pack", "sign", "a.fkpack", "--key", "key.pem", "-o", "signed.fkpack")
        if "without OpenSSL" in result.stderr:
            self.skipTest("built without OpenSSL")
        self.assertEqual(result.returncode, OK, result.stderr)
        key = result.stdout.split("signed by ")[1][:64]
        self.sealed()
        run = ("run", "fwd fp16 d64 causal", *SMALL)
        self.env["FLASHKILN_PACK_KEYS"] = key
        self.env["FLASHKILN_PACK"] = self.path("a.fkpack")
        self.bad(UNAVAILABLE, ["not signed"], *run)
        self.assertEqual(self.program("pack", "verify", "a.fkpack").returncode, CHECK_FAILED)
        self.assertIn(": ok", self.good("pack", "verify", "signed.fkpack"))
        self.env["FLASHKILN_PACK"] = self.path("signed.fkpack")
        self.good(*run)
        self.env["FLASHKILN_PACK_KEYS"] = "0" * 64
        self.bad(UNAVAILABLE, ["another key"], *run)
        for keys, message in (("0" * 64, "another key"), ("zz", "must be keys of 64 hex digits")):
            self.env["FLASHKILN_PACK_KEYS"] = keys
            result = self.program("pack", "verify", "signed.fkpack")
            self.assertEqual(result.returncode, CHECK_FAILED)
            self.assertIn(message, result.stderr)

    def test_what_is_wrong_is_named(self):
        self.path("list.lua", LIST)
        self.bad(USAGE, ["-o PACK"], "pack", "build", "list.lua")
        self.bad(USAGE, ["build, ls"], "pack", "fly")
        for option in (["--gpu", "t4"], ["--sized"], ["--emu"], ["--key", "nope"], ["--jobs", "2"], ["-o", "x"]):
            self.bad(USAGE, [f"pack ls: {option[0]} belongs to build"], "pack", "ls", "a.fkpack", *option)
        self.bad(USAGE, ["pack verify: --template-dir belongs to build"], "pack", "verify", "a.fkpack", "--template-dir", "own")
        self.bad(USAGE, ["pack diff: --json belongs to ls"], "pack", "diff", "a.fkpack", "b.fkpack", "--json")
        self.bad(USAGE, ["cache path: --json belongs to ls"], "cache", "path", "--json")
        self.bad(USAGE, ["at least 2"], "pack", "diff", "a")
        self.bad(IO, ["gone/sub/x.fkpack: gone/sub: No such file"], "pack", "build", "fwd fp16 d64", "--emu", "--gpu", "t4", "-o",
                 "gone/sub/x.fkpack")
        self.assertFalse(os.path.exists(self.path("gone")))
        os.mkfifo(self.path("pipe"))  # a pack's rename would put a file in its place
        self.bad(IO, ["pack pipe cannot be written: is no regular file"], "pack", "build", "fwd fp16 d64", "--emu", "-o", "pipe")
        self.path("list.txt", "fwd bf16 d64\n")
        self.bad(USAGE, ["pack build: -o would overwrite the input list.txt"], "pack", "build", "list.txt", "-o", "./list.txt")
        self.bad(UNAVAILABLE, ["bf16"], "pack", "build", "list.txt", "--emu", "--gpu", "t4", "-o", "x.fkpack")  # no empty parts are left
        self.bad(UNAVAILABLE, ["rtx9"], "pack", "build", "list.lua", "--gpu", "rtx9", "-o", "x.fkpack")
        self.bad(BAD_INPUT, ["twice"], "pack", "build", "list.lua", "--gpu", "a100,a100", "-o", "x.fkpack")
        os.makedirs(self.path("own/mask"))
        os.mkfifo(self.path("own/mask/window.lua"))  # would be waited for where it is opened as files are
        self.bad(IO, ["window.lua: must be a file of at most"], "pack", "build", "fwd fp16 d64", "--emu", "--gpu", "t4", "-o",
                 "x.fkpack", "--template-dir", "own")
        self.env["FLASHKILN_CACHE_MODE"] = "shut"
        self.bad(BAD_INPUT, ["FLASHKILN_CACHE_MODE", "shut"], "run", "fwd fp16 d64", *SMALL)
        self.bad(USAGE, ["--no-cache excludes --cache"], "run", "fwd fp16 d64", *SMALL, "--no-cache", "--cache", "sealed")

    def test_the_option_goes_before_the_variable(self):
        self.env["FLASHKILN_CACHE_MODE"] = "sealed"
        self.bad(UNAVAILABLE, ["FK_NO_JIT"], "run", "fwd fp16 d8", *SMALL)
        self.good("run", "fwd fp16 d8", *SMALL, "--cache", "normal")

    def test_a_group_that_may_write_is_not_trusted(self):
        self.build()
        os.chmod(self.path("a.fkpack"), 0o664)
        self.sealed()
        self.env["FLASHKILN_PACK"] = self.path("a.fkpack")
        self.bad(UNAVAILABLE, ["0664"], "run", "fwd fp16 d64 causal", *SMALL)

    def test_the_doctor_finds_what_is_wrong(self):
        self.build()
        states = lambda: {row["name"]: row["state"] for row in json.loads(self.program("cache", "doctor", "--json").stdout)}
        self.env["FLASHKILN_PACK"] = self.path("a.fkpack")
        self.good("run", "fwd fp16 d64", *SMALL)
        found = states()
        self.assertEqual([found[name] for name in ("directory", "entries", "pack", "lua")], ["ok"] * 4)
        self.good("cache", "doctor")
        for root, _, names in os.walk(self.cache):
            for name in names:
                if name.endswith(".emu"):
                    with open(os.path.join(root, name), "ab") as file:
                        file.write(b"x")
        self.env.update(FLASHKILN_LUA="/nonexistent", FLASHKILN_NVRTC="/nonexistent", FLASHKILN_CACHE_MODE="shut")
        os.chmod(self.path("a.fkpack"), 0o666)
        found = states()
        self.assertEqual([found[name] for name in ("entries", "pack", "mode")], ["WRONG"] * 3)
        self.assertEqual([found[name] for name in ("lua", "nvrtc")], ["note"] * 2)
        self.assertEqual(self.program("cache", "doctor").returncode, CHECK_FAILED)
        del self.env["FLASHKILN_LUA"]
        self.env.update(FLASHKILN_PACK_KEYS="zz", FLASHKILN_TEMPLATE_DIR="/nonexistent", FLASHKILN_TUNING="maybe")
        found = states()
        self.assertEqual([found[name] for name in ("packs", "templates", "tuning")], ["WRONG"] * 3)
        told = json.loads(self.program("cache", "doctor", "--cache-dir", "/of-the-root", "--json").stdout)
        self.assertNotIn("No such file", next(row["detail"] for row in told if row["name"] == "directory"))

    def test_the_log_tells_each_decision(self):
        self.build()
        self.env.update(FLASHKILN_LOG="1", FLASHKILN_PACK="/nonexistent:a.fkpack")
        result = self.program("run", "fwd fp16 d64 causal", *SMALL)
        for part in ("store: absent", "/nonexistent: No such file", "a.fkpack: hit", "planned for a100"):
            self.assertIn(part, result.stderr)
        self.assertIn("compiled in", self.program("run", "fwd fp16 d64", *SMALL).stderr)


if __name__ == "__main__":
    cli_case.main()
