"""What the planner's model says of GPUs that are not here: T4, RTX 3090, A100, and H200 beside them. Times are modelled
from peak rates of tensor cores, exponentials, shared memory and HBM, not measured. Also the roofline: what a GPU can do at
an arithmetic intensity, and where standard attention and the kernels lie. Needs no GPU. Results: modelled.csv, roofline.csv
"""
import concurrent.futures
import csv
import itertools
import json
import os
import subprocess
import time

GPUS = ("t4", "rtx3090", "a100", "h200")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WGMMA = {90: 4096}  # FLOPs a cycle and SM, where mma.sync, which `flashkiln devices` lists, is not the fastest: templates/arch
KINDS = {"full": "", "causal": " causal", "dropout": " dropout", "padding": " key_padding",
         "dropout+padding": " key_padding dropout", "butterfly": " butterfly(128)"}


def write(args, name, rows):
    with open(os.path.join(args.out, name + ".csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def flashkiln(args, *words):
    program = os.path.join(os.path.dirname(args.lib), "flashkiln")
    done = subprocess.run([program, *words, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def peak_tflops(gpu):
    return WGMMA[gpu["sm"]] * gpu["num_sms"] * gpu["clock_ghz"] * 1e-3 if gpu["sm"] in WGMMA else gpu["mma_tflops"]


def standard(gpu, batch, heads, n, dim, which):
    """(FLOPs, bytes to and from HBM, modelled us) of attention by matrices in 16 bits: S is written, read and written by the
    softmax, read by the product; the backward pass reads P twice, writes and reads dP, writes dS and reads it twice."""
    matrix, tensor = 2 * batch * heads * n * n, 2 * batch * heads * n * dim
    flops, moved = 4 * batch * heads * n * n * dim, 4 * matrix + 4 * tensor
    if which == "both":
        flops, moved = flops * 3, moved + 7 * matrix + 11 * tensor
    return flops, moved, max(flops / (peak_tflops(gpu) * 1e6), moved / (gpu["hbm_gbps"] * 1e3))


def planned(args, case):
    """The chosen plans, forward and backward, of (GPU, head dim, kind, seqlen); None where there is none."""
    gpu, dim, kind, n = case
    batch, heads = size(dim, n)
    found = [flashkiln(args, "plan", f"{op} fp16 d{dim}{KINDS[kind]}", "--gpu", gpu, "--reproducible", "--shape",
                       f"{batch},{heads},{heads},{n},{n}") for op in ("fwd", "bwd")]
    chosen = [next((p for p in plans or [] if p["chosen"]), None) for plans in found]
    return chosen if all(chosen) else None


def size(dim, n):
    return max(1, 16384 // n), 2048 // dim


def run(args):
    devices = {d["key"]: d for d in flashkiln(args, "devices")}
    date, rows, roof = time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), [], []
    lengths = LENGTHS[1:4:2] if args.dry or args.quick else LENGTHS
    cases = list(itertools.product(GPUS[:2] if args.dry else GPUS, (64, 128), KINDS, lengths))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a process of its own
        plans = pool.map(lambda case: planned(args, case), cases)
        for (gpu, dim, kind, n), chosen in zip(cases, plans):
            if not chosen:
                continue
            fwd, bwd = chosen
            (batch, heads), device = size(dim, n), devices[gpu]
            for which, ours, moved in (("fwd", fwd["model_us"], fwd["hbm_bytes"]),
                                       ("both", fwd["model_us"] + bwd["model_us"], fwd["hbm_bytes"] + bwd["hbm_bytes"])):
                flops, bytes_, eager = standard(device, batch, heads, n, dim, which)
                rows.append({"date": date, "gpu": gpu, "head_dim": dim, "kind": kind, "seqlen": n, "batch": batch,
                             "heads": heads, "pass": which, "modelled_us": f"{ours:.1f}",
                             "standard_bound_us": f"{eager:.1f}", "over_standard": f"{eager / ours:.3f}",
                             "hbm_mb": f"{moved / 1e6:.1f}", "standard_hbm_mb": f"{bytes_ / 1e6:.1f}"})
                if kind == "full":
                    for name, f, b, t in (("standard", flops, bytes_, eager), ("flashkiln", flops, moved, ours)):
                        roof.append({"date": date, "gpu": gpu, "name": name, "head_dim": dim, "seqlen": n, "pass": which,
                                     "intensity": f"{f / b:.2f}", "tflops": f"{f / t * 1e-6:.1f}",
                                     "peak_tflops": f"{peak_tflops(device):.1f}", "hbm_gbps": device["hbm_gbps"]})
    write(args, "modelled", rows)
    write(args, "roofline", roof)
    print(f"  {len(rows)} modelled times of {', '.join(dict.fromkeys(r['gpu'] for r in rows))}")
