#!/usr/bin/env python3
"""The main job on real input: attention of the activations in tests/data, by build/flashkiln run, into build/demo.

Run it twice: the second time the kernels come from the cache. Python's standard library is all it needs.
"""
import json
import os
import re
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.join(ROOT, "build", "flashkiln")
DATA, OUT = (os.path.relpath(os.path.join(ROOT, *parts)) for parts in (("tests", "data"), ("build", "demo")))
JOBS = [(0, "fp16", ""), (0, "fp16", " causal"), (5, "bf16", ""), (5, "bf16", " causal")]
COMPILED = re.compile(r"^Kernel +compiled in (?P<compile>\d+) ms", re.MULTILINE)
STORED = re.compile(r"^Kernel +from the store in (?P<find>[\d.]+) ms, .* the (?P<compile>\d+) ms", re.MULTILINE)


def widened(path):
    """The .npy as float32, written beside the results: the program rounds it to bf16 as it reads."""
    with open(path, "rb") as f:
        raw = f.read()
    size, = struct.unpack("<H", raw[8:10])
    header = raw[10:10 + size].decode().replace("<f2", "<f4")
    half = raw[10 + size:]
    values = struct.unpack(f"<{len(half) // 2}e", half)
    out = os.path.join(OUT, re.sub(r"\.npy$", "_f32.npy", os.path.basename(path)))
    with open(out, "wb") as f:
        f.write(raw[:10] + header.encode() + struct.pack(f"<{len(values)}f", *values))
    return out


def gpus():
    """The GPUs of this machine, as `flashkiln devices` lists them."""
    listed = subprocess.run([PROGRAM, "devices", "--json"], check=True, capture_output=True).stdout
    return [d for d in json.loads(listed) if d["ordinal"] >= 0]


def run(layer, dtype, mask):
    """Runs one job and shows what the program tells; also returned."""
    inputs = [os.path.join(DATA, f"minilm_layer{layer}_{t}.npy") for t in "qkv"]
    if dtype == "bf16":
        inputs = [widened(path) for path in inputs]
    name = os.path.join(OUT, f"layer{layer}_{dtype}{mask.replace(' ', '_')}")
    options = [x for t, path in zip(("--q", "--k", "--v"), inputs) for x in (t, path)]
    told = subprocess.run([PROGRAM, "run", f"fwd {dtype} d32{mask}", *options, "-o", name + "_o.npy", "--lse",
                           name + "_lse.npy", "--device", "auto", "--check", *sys.argv[1:]],
                          stdout=subprocess.PIPE, text=True)
    print(told.stdout, end="", flush=True)
    if told.returncode:
        sys.exit(told.returncode)
    return told.stdout


def compile_for_a100(spellings):
    print("\n---- No GPU here, so the emulator ran them. NVRTC compiles kernels of the same problems for an A100: ----", flush=True)
    listed = os.path.join(OUT, "kernels.txt")
    with open(listed, "w", encoding="ascii") as f:
        f.write("\n".join(spellings) + "\n")
    return subprocess.run([PROGRAM, "build", listed, "--gpu", "a100", "-o", OUT]).returncode


def sum_up(told):
    """How the kernels came about, over all jobs."""
    compiled, stored = COMPILED.findall(told), list(STORED.finditer(told))
    print()
    if stored:
        find, before = (sum(float(m[group]) for m in stored) for group in ("find", "compile"))
        print(f"{len(stored)} kernels came from the cache in {find:.0f} ms; compiling them had taken {before:.0f} ms: "
              f"{before / find:.0f} times faster.")
    if compiled:
        print(f"{len(compiled)} kernels were compiled in {sum(map(int, compiled))} ms. Run it again: they come from "
              "the cache.")
    print(f"O and lse are in {OUT}, as .npy files.")


def main():
    os.makedirs(OUT, exist_ok=True)
    present, spellings, told = gpus(), [], ""
    print("\nAttention of real activations: Q, K and V of a small sentence transformer (MiniLM L6, 12 heads of 32)\n"
          f"that reads 240 tokens of text ({os.path.join(DATA, 'text.txt')}).")
    for layer, dtype, mask in JOBS:
        if dtype == "bf16" and present and present[0]["sm"] < 80:
            print(f"\nlayer {layer}: skipped, {present[0]['name']} has no bf16")
            continue
        print(f"\n---- layer {layer}, {dtype}{',' if mask else ''}{mask} ----", flush=True)
        told += run(layer, dtype, mask)
        spellings.append(f"fwd {dtype} d32{mask}")
    status = 0 if present else compile_for_a100(spellings)
    sum_up(told)
    return status


if __name__ == "__main__":
    sys.exit(main())
