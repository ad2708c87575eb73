#!/usr/bin/env python3
"""Bytes that HBM moves, as ncu counts them, beside those that the model has.

  hbm.py [--dims 64,128] [--ops fwd,bwd] [--tokens 8192] [--gpu KEY] [--flashkiln build/flashkiln]

65,536 tokens and 1,024 hidden: dense, causal, and three shares of blocks of 128 x 128, one launch each, all kernels of the pass;
the forward pass that `run` needs before a backward one is not counted. --gpu: whose model; default: of the first GPU here. Results: hbm.csv. Needs ncu, which may count, and an NVIDIA
GPU; without them it says so and exits with 77.
"""
import argparse
import csv
import json
import os
import subprocess
import sys

import counters
from timing import numbers, words

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOKENS, HIDDEN = 65536, 1024
FIELDS = ["gpu", "spelling", "tokens", "seen", "read_mb", "written_mb", "predicted_mb", "ratio"]
MASKS = ["", "causal"] + [f'blocks(128)="i == j || hash(hash(1, i), j) % 100 < {percent}"' for percent in (11, 25, 50)]


def explained(program, spelling, gpu, shape):
    """(HBM bytes in MB, share of tiles that are visited) as the model has them."""
    command = [program, "explain", spelling, "--gpu", gpu, "--shape", shape, "--json"]
    text = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return text["hbm_bytes"] / 1e6, text["density"]


def first_gpu(program):
    """The key of the first GPU here, or None."""
    devices = json.loads(subprocess.run([program, "devices", "--json"], check=True, capture_output=True, text=True).stdout)
    return next((d["key"] for d in devices if d["ordinal"] == 0), None)


def counted(ncu, program, spelling, shape):
    """MB read and written by all kernels of one pass."""
    kernels = "regex:" + ("fk_backward" if spelling.startswith("bwd") else "fk_")
    command = [ncu, *counters.OPTIONS, "--kernel-name", kernels, program, "run", spelling, "--random", shape]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    sums = [0.0, 0.0]
    for row in counters.table(text):
        counters.add(sums, row)
    if not any(sums):
        raise RuntimeError(text[-400:])
    return sums


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", default=[64, 128], type=numbers)
    parser.add_argument("--ops", default=["fwd", "bwd"], type=words)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--gpu")
    parser.add_argument("--flashkiln", default=os.path.join(ROOT, "build", "flashkiln"))
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "bench"))
    args = parser.parse_args()
    ncu = counters.program()
    if not ncu:
        print("no ncu: skipped")
        return 77
    gpu = args.gpu or first_gpu(args.flashkiln)
    if not gpu:
        print("no NVIDIA GPU: skipped")
        return 77
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "hbm.csv"), "w", newline="", encoding="utf-8") as f:
        table = csv.writer(f)
        table.writerow(FIELDS)
        for op in args.ops:
            for dim in args.dims:
                for mask in MASKS:
                    spelling = f"{op} bf16 d{dim} {mask}".strip()
                    heads = HIDDEN // dim
                    shape = f"{TOKENS // args.tokens},{heads},{heads},{args.tokens},{args.tokens}"
                    predicted, seen = explained(args.flashkiln, spelling, gpu, shape)
                    try:
                        read, written = counted(ncu, args.flashkiln, spelling, shape)
                    except RuntimeError as e:
                        print(f"{spelling}: ncu counts nothing: {e}")
                        return 77
                    row = [gpu, spelling, args.tokens, seen, f"{read:.1f}", f"{written:.1f}", f"{predicted:.1f}",
                           f"{(read + written) / predicted:.3f}"]
                    table.writerow(row)
                    f.flush()  # a run that is cut short leaves what it has
                    print("  ".join(map(str, row)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
