"""What the program's tests share: a folder and a store for each test, the program, .npy files."""
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

TEMPLATES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "templates")
OK, USAGE, BAD_INPUT, UNAVAILABLE, IO, CHECK_FAILED, FAILED = range(7)
program_path = ""


def npy(descr, shape, data, order="False"):
    """The bytes of a .npy file."""
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {tuple(shape)}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def read_npy(path):
    """(descr, shape, values) of a file with 1-, 2- or 4-byte elements."""
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<H", raw[8:10])[0]
    header = eval(raw[10:10 + size].decode(), {"__builtins__": {}})  # a dict literal that the program wrote
    code = {"<f2": "e", "<u2": "H", "<f4": "f", "|u1": "B"}[header["descr"]]
    data = raw[10 + size:]
    return header["descr"], header["shape"], struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data)


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="fk_cli_test_")
        self.addCleanup(shutil.rmtree, self.dir)
        self.cache = os.path.join(self.dir, "cache")
        self.env = dict(os.environ, FLASHKILN_CACHE_DIR=self.cache)
        self.env.pop("FLASHKILN_TEMPLATE_DIR", None)

    def path(self, name, data=None):
        full = os.path.join(self.dir, name)
        if data is not None:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "wb") as file:
                file.write(data if isinstance(data, bytes) else data.encode())
        return full

    def program(self, *arguments):
        return subprocess.run([program_path, *map(str, arguments)], capture_output=True, text=True, env=self.env,
                              cwd=self.dir, timeout=300, stdin=subprocess.DEVNULL)

    def good(self, *arguments):
        result = self.program(*arguments)
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def bad(self, code, parts, *arguments):
        """Fails with `code`, says every one of `parts`, prints nothing else and leaves the folder as it was."""
        before = sorted(os.listdir(self.dir))
        result = self.program(*arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertTrue(result.stderr.startswith("flashkiln: "), result.stderr)
        after = [name for name in sorted(os.listdir(self.dir)) if name != "cache"]
        self.assertEqual([name for name in before if name != "cache"], after)
        return result.stderr

    def templates(self, path, change):
        """A folder that overrides one template by change(its text)."""
        with open(os.path.join(TEMPLATES, path), encoding="utf-8") as file:
            text = file.read()
        changed = change(text)
        self.assertNotEqual(text, changed)
        self.path(os.path.join("templates", path), changed)
        return self.path("templates")

    def has_nvrtc(self):
        result = self.program("build", "fwd fp16 d64", "--gpu", "a100")
        if result.returncode == UNAVAILABLE and "FK_NO_COMPILER" in result.stderr:
            return False
        self.assertEqual(result.returncode, OK, result.stderr)
        return True


def main():
    """main.py PROGRAM [unittest arguments]"""
    global program_path
    program_path = os.path.abspath(sys.argv.pop(1))
    unittest.main(module="__main__")
