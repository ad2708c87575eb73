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
DATA, OUT = os.path.join(ROOT, "tests", "data"), os.path.join(ROOT, "build", "demo")
JOBS = [(0, "fp16", ""), (0, "fp16", " causal"), (5, "bf16", ""), (5, "bf16", " causal")]


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


def main():
    os.makedirs(OUT, exist_ok=True)
    present, spellings = gpus(), []
    for layer, dtype, mask in JOBS:
        if dtype == "bf16" and present and present[0]["sm"] < 80:
            print(f"layer {layer}: skipped, {present[0]['name']} has no bf16")
            continue
        inputs = [os.path.join(DATA, f"minilm_layer{layer}_{t}.npy") for t in "qkv"]
        if dtype == "bf16":
            inputs = [widened(path) for path in inputs]
        name = os.path.join(OUT, f"layer{layer}_{dtype}{mask.replace(' ', '_')}")
        spelling = f"fwd {dtype} d32{mask}"
        print(f"\n---- MiniLM L6, layer {layer}: {spelling} ----", flush=True)
        options = [x for t, path in zip(("--q", "--k", "--v"), inputs) for x in (t, path)]
        status = subprocess.run([PROGRAM, "run", spelling, *options, "-o", name + "_o.npy", "--lse", name + "_lse.npy",
                                 "--device", "auto", "--check", *sys.argv[1:]]).returncode
        if status:
            return status
        spellings.append(spelling)
    if present:
        return 0
    print("\n---- No GPU here, so the emulator ran them. NVRTC compiles the same kernels for an A100: ----", flush=True)
    listed = os.path.join(OUT, "kernels.txt")
    with open(listed, "w", encoding="ascii") as f:
        f.write("\n".join(spellings) + "\n")
    return subprocess.run([PROGRAM, "build", listed, "--gpu", "a100", "-o", OUT]).returncode


if __name__ == "__main__":
    sys.exit(main())
