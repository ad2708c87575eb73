#!/usr/bin/env python3
"""Keeps the tree's shape: who includes whom (docs/design.md section 1), where asm may be, how long files are; that
nothing asks getenv, which lets the caller of a set-user-ID program name code to load; and that children that others start
inherit no open file.

Usage: include_rules.py ROOT. Prints one line for each breach, file:line: rule; exit status 1 if there is any.
Files over 450 lines and functions over 60 are listed as warnings; over 500 lines is a breach. The public header is one
file for the sake of those who include it, and may have 870.
"""
import os
import re
import sys

# Folder -> what its quoted includes may start with, as paths from the root. The longest folder that fits applies.
MAY_INCLUDE = {
    "include": [],
    "gen": ["gen/", "include/"],
    "cache": ["cache/", "include/", "gen/error.h"],
    "runtime": ["runtime/", "gen/", "cache/", "include/"],
    "runtime/cli": ["runtime/cli/", "include/"],
}
SYSTEM_HEADERS = {"include": r"stddef\.h|stdint\.h"}  # all that these folders may take; others are free but for:
LUA_HEADERS = r"lua\.h|lauxlib\.h|lualib\.h|luaconf\.h"  # gen alone knows Lua
CUDA_HEADERS = r"cuda.*\.h|nvrtc\.h|mma\.h"  # none: the runtime declares what it loads
MACHINE_PATH = re.compile("/(?:" + "|".join(["work", "root", "home"]) + r")/\w")
LONG_FILE, LONGEST_FILE, LONG_FUNCTION = 450, 500, 60
LONGEST = {"include/flashkiln.h": 870}
CODE = (".c", ".h", ".hpp", ".cu", ".lua", ".py")
TEXT = CODE + (".md", ".txt", ".cmake", ".json", ".yml", ".toml", "")
SKIP = re.compile(r"^(build.*|\..*|__pycache__|shared)$")  # hidden folders but for .ci


def layer_of(path):
    fits = [folder for folder in MAY_INCLUDE if path.startswith(folder + "/")]
    return max(fits, key=len) if fits else None


def resolve(root, path, header):
    """The header's path from the root, as the compiler finds it: beside the file, then from the root, then include."""
    for folder in (os.path.dirname(path), "", "include"):
        candidate = os.path.normpath(os.path.join(folder, header))
        if os.path.exists(os.path.join(root, candidate)):
            return candidate
    return header


def check_include(root, path, line):
    layer = layer_of(path)
    quoted = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
    system = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
    if path.startswith("templates/") and re.match(r"\s*#\s*include\b", line):
        return "templates include nothing: emitted text is self-contained"
    if quoted and layer:
        target = resolve(root, path, quoted.group(1))
        if not any(target.startswith(allowed) for allowed in MAY_INCLUDE[layer]):
            return f"{layer} may not include {target}"
    if system and layer:
        header = system.group(1)
        if layer in SYSTEM_HEADERS and not re.fullmatch(SYSTEM_HEADERS[layer], header):
            return f"{layer} may not include <{header}>"
        if re.fullmatch(LUA_HEADERS, header) and layer != "gen":
            return f"{layer} may not include <{header}>: only gen knows Lua"
        if re.fullmatch(CUDA_HEADERS, header):
            return f"<{header}>: the build needs no CUDA headers"
    return None


def check_line(root, path, line):
    complaint = check_include(root, path, line)
    if complaint:
        return complaint
    if (path.startswith("templates/") and not path.startswith("templates/primitive/")
            and re.search(r"\basm\b\s*(volatile)?\s*\(", line)):
        return "asm outside templates/primitive"
    if layer_of(path) and re.search(r"\bgetenv\s*\(", line):
        return "getenv: ask secure_getenv"
    if layer_of(path) and re.search(r'\bfopen\(.*"[rwa][b+]*"', line):
        return "fopen without the mode's e, close on exec"
    if MACHINE_PATH.search(line):
        return "a path of one machine"
    return None


def long_functions(lines):
    """(line, length) of C functions: from the line that ends in ') {' to the next unindented '}'."""
    begin = None
    for number, line in enumerate(lines, 1):
        if begin is None and re.search(r"\)\s*\{\s*$", line):
            begin = number
        elif begin is not None and line.startswith("}"):
            if number - begin + 1 > LONG_FUNCTION:
                yield begin, number - begin + 1
            begin = None


def tree(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f == ".ci" or not SKIP.match(f))
        for name in sorted(files):
            if os.path.splitext(name)[1] in TEXT and not name.startswith(".git"):
                yield os.path.relpath(os.path.join(folder, name), root)


def check_tree(root):
    breaches, warnings, count = [], [], 0
    for path in tree(root):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            lines = f.read().splitlines()
        count += 1
        for number, line in enumerate(lines, 1):
            complaint = check_line(root, path, line)
            if complaint:
                breaches.append(f"{path}:{number}: {complaint}")
        if path.endswith(CODE) and len(lines) > LONG_FILE:
            limit = LONGEST.get(path, LONGEST_FILE)
            kind = breaches if len(lines) > limit else warnings
            kind.append(f"{path}:1: {len(lines)} lines, the limit is {limit}")
        if path.endswith((".c", ".h")):
            warnings += [f"{path}:{n}: function of {length} lines, {LONG_FUNCTION} is the aim"
                         for n, length in long_functions(lines)]
    return breaches, warnings, count


PLANTED = [  # (path, line): each must be a breach
    ("gen/plan.c", '#include "runtime/driver.h"'),
    ("gen/plan.c", '#include "cache/store.h"'),
    ("gen/plan.c", "#include <cuda.h>"),
    ("cache/store.c", '#include "gen/problem.h"'),
    ("runtime/launch.c", "#include <lua.h>"),
    ("runtime/cli/run.c", '#include "gen/error.h"'),
    ("include/flashkiln.h", "#include <stdio.h>"),
    ("runtime/driver.c", '    const char *named = getenv("FLASHKILN_LIBCUDA");'),
    ("runtime/pack_make.c", '    FILE *file = fopen(path, "rb");'),
    ("templates/kernel/forward_mma.cu", "#include <cuda_fp16.h>"),
    ("templates/piece/softmax.cu", '    asm volatile("bar.sync 0;");'),
    ("docs/design.md", "see /" + "home/someone/notes"),
]


def main():
    root = sys.argv[1]
    blind = [f"{path}: {line!r} is not caught" for path, line in PLANTED if not check_line(root, path, line)]
    breaches, warnings, count = check_tree(root)
    for line in warnings:
        print("warning:", line)
    for line in blind + breaches:
        print(line)
    print(f"{count} files, {len(breaches)} breaches, {len(warnings)} warnings")
    return 1 if blind or breaches or not count else 0


if __name__ == "__main__":
    sys.exit(main())
