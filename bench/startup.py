#!/usr/bin/env python3
"""How long a fresh process waits for its first result: compiled cold, from a warm store, from a pack; beside the first calls of
FlexAttention and of a Triton kernel, cold and from their caches.

Each number is the median of several processes, in ms, from the call to the result being there. What every program pays alike is
told apart: `context` is opening library and device (for the peers: importing torch and opening its CUDA context).

    python3 bench/startup.py --out DIR                    # on a GPU; peers where PyTorch is
    python3 bench/startup.py --device emu --gpu a100      # without one: no peers, the emulator's compiler in place of NVRTC
"""
import argparse
import csv
import ctypes
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = 4, 16, 16, 2048, 2048  # batch, heads, kv heads, queries, keys
TINY = 1, 1, 1, 64, 64         # on the emulator


# ---- what a fresh process does ----------------------------------------------------------------------------------------

def ours(a):
    """Parse, find or make the kernel, launch, wait. Tensors of zeros: the time does not depend on them."""
    from library import Library
    begin = time.perf_counter()
    lib = Library(a.lib)
    context = lib.context(a.device, a.gpu if a.device == "emu" else None)
    memory = []
    shape = TINY if a.device == "emu" else SHAPE
    head_dim = 128 if " d128" in a.spelling else 64
    rows = shape[0] * max(shape[1] * shape[3], shape[2] * shape[4])
    for size in [rows * head_dim * 2] * 4 + [rows * 4]:
        memory.append(ctypes.c_void_p())
        lib("fk_device_malloc", context, ctypes.c_size_t(size), ctypes.byref(memory[-1]))
    opened = time.perf_counter()
    problem = lib.problem(a.spelling)
    handle, info = lib.kernel(context, problem)
    made = time.perf_counter()
    args = lib.make("fk_args", batch=shape[0], num_heads_q=shape[1], num_heads_kv=shape[2], seqlen_q=shape[3], seqlen_k=shape[4])
    lib("fk_args_layout", ctypes.byref(problem), 0, ctypes.byref(args))
    args.q, args.k, args.v, args.o, args.lse = (m.value for m in memory)
    workspace = ctypes.c_void_p()
    size = lib.workspace(handle, args)
    if size:
        lib("fk_device_malloc", context, ctypes.c_size_t(size), ctypes.byref(workspace))
    lib("fk_execute", handle, ctypes.byref(args), workspace, ctypes.c_size_t(size), None)
    lib("fk_synchronize", context, None)
    done = time.perf_counter()
    return {"context": opened - begin, "first": done - opened, "kernel": made - opened,
            "lookup": info.lookup_ms * 1e-3, "load": info.load_ms * 1e-3, "note": info.store_note.decode()}


def torch_tensors(*modules):
    """Importing PyTorch and `modules` is of the time to open a device, as ours is."""
    begin = time.perf_counter()
    import torch
    for module in modules:
        importlib.import_module(module)
    q, k, v = (torch.zeros(SHAPE[0], SHAPE[1], SHAPE[3], 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    torch.cuda.synchronize()
    return torch, q, k, v, time.perf_counter() - begin


def timed(torch, call, context, note):
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return {"context": context, "first": time.perf_counter() - begin, "note": note}


def flex(a):
    torch, q, k, v, context = torch_tensors("torch.nn.attention.flex_attention")

    def call():
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, SHAPE[3], SHAPE[4], device="cuda")
        torch.compile(flex_attention)(q, k, v, block_mask=mask)
    return timed(torch, call, context, torch.__version__)


def triton(a):
    """A causal forward pass of the plainest kind, one configuration, no tuning: the least that Triton compiles for it."""
    torch, q, k, v, context = torch_tensors("triton_attention")

    def call():
        from triton_attention import attention
        attention(q, k, v)
    return timed(torch, call, context, torch.__version__)


# ---- the scenarios ----------------------------------------------------------------------------------------------------

def run(a, which, env, fresh):
    """Medians over --repeat processes. fresh: caches that are emptied before each."""
    rows = []
    for _ in range(a.repeat if which == "ours" else 1 if a.quick else min(2, a.repeat)):
        for folder in fresh:
            shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, os.path.abspath(__file__), "--child", which, "--device", a.device, "--lib", a.lib,
                   "--spelling", a.spelling] + (["--gpu", a.gpu] if a.gpu else [])
        result = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
        if result.returncode:
            return {"note": "failed: " + (result.stderr.strip().splitlines() or ["?"])[-1][:100]}
        rows.append(json.loads(result.stdout.splitlines()[-1]))
    out = {"note": rows[-1]["note"]}
    for name in ("context", "first", "kernel", "lookup", "load"):
        values = [1e3 * row[name] for row in rows if name in row]
        if values:
            out[name] = statistics.median(values)
    return out


def scenarios(a, folder):
    store, pack = os.path.join(folder, "store"), os.path.join(folder, "startup.fkpack")
    base = {"FLASHKILN_CACHE_DIR": store, "FLASHKILN_PACK": "", "CUDA_CACHE_PATH": os.path.join(folder, "driver")}
    program = os.path.join(os.path.dirname(os.path.abspath(a.lib)), "flashkiln")
    subprocess.run([program, "pack", "build", a.spelling, "--gpu", a.gpu or "h200", "-o", pack]
                   + (["--emu"] if a.device == "emu" else []), check=True, stdout=subprocess.DEVNULL)
    yield "flashkiln, compiled", "ours", base, [store]
    yield "flashkiln, warm store", "ours", base, []
    yield "flashkiln, pack behind an empty store", "ours", {**base, "FLASHKILN_PACK": pack}, [store]
    yield "flashkiln, pack, sealed", "ours", {**base, "FLASHKILN_PACK": pack, "FLASHKILN_CACHE_MODE": "sealed"}, []
    if a.device == "emu":
        return
    inductor, cache = os.path.join(folder, "inductor"), os.path.join(folder, "triton")
    peers = {"TORCHINDUCTOR_CACHE_DIR": inductor, "TRITON_CACHE_DIR": cache, "CUDA_CACHE_PATH": os.path.join(folder, "driver")}
    for name, which in (("FlexAttention", "flex"), ("Triton", "triton")):
        yield name + ", compiled", which, peers, [inductor, cache]
        if not a.quick:
            yield name + ", from its cache", which, peers, []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", default=os.path.join(os.path.dirname(HERE), "build", "libflashkiln.so"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--gpu", help="the key that the pack is built for (default h200), and that the emulator plans for")
    parser.add_argument("--spelling", default="fwd bf16 d128 causal")
    parser.add_argument("--repeat", type=int, default=5, help="processes; 2 at most of the peers, which take many seconds each")
    parser.add_argument("--quick", action="store_true", help="peers once, and not from their caches")
    parser.add_argument("--only", help="scenarios whose names begin so, with commas between: flashkiln, flexattention, triton")
    parser.add_argument("--out", help="write startup.csv there")
    parser.add_argument("--child", choices=("ours", "flex", "triton"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        print(json.dumps(globals()[a.child](a)))
        return
    folder = tempfile.mkdtemp(prefix="fk_startup_")
    names = "date", "device", "scenario", "context", "first", "kernel", "lookup", "load", "note"
    rows = []
    try:
        print(f"{a.spelling}, ms, median of {a.repeat} fresh processes (of the peers: fewer)\n{'':40}{'context':>9}{'first':>9}{'lookup':>9}{'load':>9}")
        for scenario, which, env, fresh in scenarios(a, folder):
            if a.only and not scenario.lower().startswith(tuple(a.only.lower().split(","))):
                continue
            row = {"date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "device": a.gpu or a.device,
                   "scenario": scenario, **run(a, which, env, fresh)}
            rows.append(row)
            numbers = "".join(f"{row[name]:9.2f}" if name in row else f"{'-':>9}" for name in ("context", "first", "lookup", "load"))
            print(f"{scenario:40}{numbers}  {row['note']}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if a.out:
        os.makedirs(a.out, exist_ok=True)
        with open(os.path.join(a.out, "startup.csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
