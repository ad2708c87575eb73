#!/usr/bin/env python3
"""Times forward cubins side by side, and beside PyTorch's SDPA, in one process (timing.py says how).

  variants.py --cubin-dir DIR [--out DIR] [--sizes 512,1024,...] [--only REGEX]

DIR/manifest.json is a list of objects:
  name, file, threads, smem, block_m, head_dim      required
  entry ("fk_forward"), causal (false), dtype ("bf16"), head_dim_v (= head_dim)
  carveout (the driver's choice; percent)
  l2_heads (0 = as many heads as share half the L2)
A kernel that faults or hangs is reported and left out; the rest goes on in a fresh process.
"""
import argparse
import csv
import ctypes
import json
import math
import os
import re
import subprocess
import sys

from contenders import Sdpa
from problems import Shape
from tables import print_tables
from timing import Fault, record, time_shape

FAULT = 3  # exit code of a worker whose CUDA context is lost
MASK_SLOTS = 16


class ForwardParams(ctypes.Structure):
    """fk_forward_params of gen/abi.h."""
    _fields_ = ([(n, ctypes.c_void_p) for n in ("q", "k", "v", "o", "lse")]
                + [(f"{t}_{s}_stride", ctypes.c_int64) for t in "qkvo" for s in ("batch", "row", "head")]
                + [(n, ctypes.c_int32) for n in ("num_heads_q", "heads_per_kv", "seqlen_q", "seqlen_k", "diag",
                                                 "batch")]
                + [("heads_inverse", ctypes.c_uint32)]
                + [("scale_log2", ctypes.c_float), ("scale", ctypes.c_float)]
                + [("mask_value", ctypes.c_int32 * MASK_SLOTS)])


class Cuda:
    """The few driver calls needed, in PyTorch's own context."""
    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(status, ctypes.byref(text))
            raise Fault(f"{name}: {(text.value or b'unknown').decode()}")


class Variant:
    """A cubin. launch() enqueues it on the current stream; it writes t.o and t.lse."""
    def __init__(self, torch, cuda, folder, row):
        self.torch, self.cuda, self.row, self.name, self.writes_lse = torch, cuda, row, row["name"], True
        with open(os.path.join(folder, row["file"]), "rb") as f:
            image = f.read()
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda("cuModuleLoadData", ctypes.byref(self.module), image)
        cuda("cuModuleGetFunction", ctypes.byref(self.function), self.module, row.get("entry", "fk_forward").encode())
        if row["smem"] > 48 * 1024:
            cuda("cuFuncSetAttribute", self.function, 8, row["smem"])  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        if "carveout" in row:
            cuda("cuFuncSetAttribute", self.function, 9, row["carveout"])  # PREFERRED_SHARED_MEMORY_CARVEOUT

    def prepare(self, shape, t):
        p = self.params = ForwardParams()
        for n in ("q", "k", "v", "o", "lse"):
            setattr(p, n, getattr(t, n).data_ptr())
        for n in "qkvo":
            for s, stride in zip(("batch", "row", "head"), getattr(t, n).stride()):
                setattr(p, f"{n}_{s}_stride", stride)
        p.num_heads_q, p.heads_per_kv, p.seqlen_q, p.seqlen_k, p.diag = shape.heads, 1, shape.seqlen, shape.seqlen, 0
        p.batch, p.heads_inverse = shape.batch, min(2**32 // shape.heads, 2**32 - 1)
        all_heads = shape.batch * shape.heads
        l2 = self.torch.cuda.get_device_properties(0).L2_cache_size // 2
        share = max(1, l2 // (4 * shape.seqlen * shape.head_dim))  # as runtime/attention.c has it
        heads = min(all_heads, self.row.get("l2_heads") or share)
        p.scale = 1 / math.sqrt(shape.head_dim)
        p.scale_log2 = p.scale * math.log2(math.e)
        self.grid = (heads, -(-shape.seqlen // self.row["block_m"]), -(-all_heads // heads))
        self.argument = (ctypes.c_void_p * 1)(ctypes.addressof(p))
        self.stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)

    def launch(self):
        self.cuda("cuLaunchKernel", self.function, *self.grid, self.row["threads"], 1, 1, self.row["smem"],
                  self.stream, self.argument, None)


def worker(args):
    import torch
    import torch.nn.attention
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes the primary context current
    cuda = Cuda()
    with open(os.path.join(args.cubin_dir, "manifest.json")) as f:
        manifest = [r for r in json.load(f) if re.search(args.only, r["name"])]
    skip_path, csv_path = os.path.join(args.out, "skipped.txt"), os.path.join(args.out, "variants.csv")
    skipped = open(skip_path).read().splitlines() if os.path.exists(skip_path) else []
    done = list(csv.DictReader(open(csv_path))) if os.path.exists(csv_path) else []
    finished = {(r["dtype"], int(r["head_dim"]), r["mask"], int(r["seqlen"])) for r in done}

    def group(row):
        return row.get("dtype", "bf16"), row["head_dim"], "causal" if row.get("causal") else "full"

    peers = [Sdpa(torch, b) for b in args.peers.split(",") if b]
    for dtype, dim, mask in sorted(set(map(group, manifest))):
        variants = []
        for row in manifest:
            if group(row) != (dtype, dim, mask) or row["name"] in skipped or row.get("head_dim_v", dim) != dim:
                continue
            try:
                variants.append(Variant(torch, cuda, args.cubin_dir, row))
            except (Fault, OSError) as e:
                print(f"  {row['name']}: cannot be loaded: {e}")
        for seqlen in args.sizes:
            if (dtype, dim, mask, seqlen) in finished:
                continue
            shape = Shape(torch, args, seqlen, dim, mask)
            try:
                rows = time_shape(torch, shape, peers + variants, args)
            except Fault as e:
                print(f"  FAULT {': '.join(map(str, e.args))}", flush=True)
                if len(e.args) < 2:  # while timing: nobody to leave out
                    os._exit(1)
                with open(skip_path, "a") as f:
                    f.write(e.args[0] + "\n")
                os._exit(FAULT)
            record(csv_path, rows)
            done += rows
    print_tables(done)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cubin-dir", required=True)
    parser.add_argument("--out", default="build/bench", help="where variants.csv goes (continued if it is there)")
    parser.add_argument("--sizes", default="512,1024,2048,4096,8192,16384",
                        type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--launches", type=int, default=5, help="timed launches of a contender in a round")
    parser.add_argument("--only", default="", help="regular expression on names")
    parser.add_argument("--peers", default="FLASH,CUDNN", help="SDPA backends")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.worker:
        return worker(args)
    command = [sys.executable, "-u", os.path.abspath(__file__), *sys.argv[1:], "--worker"]
    status = FAULT
    while status == FAULT:
        status = subprocess.run(command).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
