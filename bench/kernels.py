#!/usr/bin/env python3
"""A summary of `flashkiln build FILE --gpu ... --json`, as Markdown:

  kernels.py BUILD.json ... [--limit 64] [--flashkiln build/flashkiln]

A row a GPU: how many kernels, what they spill, for how many a plan that is modelled faster was passed over because it
spills, how long they took to compile; then each kernel that spills more than --limit bytes (FK_MINOR_SPILL), and each
failure. With --flashkiln also those that spill less, a row for each tile of a head dim, with what the model gives for the best
plan that needs 16 registers less, as the estimate goes. Exit code 1: a problem failed other than for want of support.
"""
import argparse
import json
import subprocess
import sys


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def is_built(row):
    return row["spill_bytes"] is not None  # the status of what was built says what it spills, and why


def print_summary(rows, limit):
    built = [r for r in rows if is_built(r)]
    print(f"| GPU | kernels | no spill | up to {limit} bytes | more | replaced | compile ms: median | 90 % | worst |")
    print("| --- |" + " --- |" * 8)
    for gpu in dict.fromkeys(r["gpu"] for r in built) | {"all": None}:
        some = [r for r in built if gpu in (r["gpu"], "all")]
        spills, ms = [r["spill_bytes"] for r in some], sorted(r["compile_ms"] for r in some)
        replaced = sum(r["status"].startswith("what is modelled faster") for r in some)
        print(f"| {gpu} | {len(some)} | {spills.count(0)} | {sum(0 < s <= limit for s in spills)} | "
              f"{sum(s > limit for s in spills)} | {replaced} | {median(ms):.0f} | {ms[len(ms) * 9 // 10]:.0f} | "
              f"{ms[-1]:.0f} |")


def kept_and_next(flashkiln, row):
    """The row's plan as `flashkiln plan` lists it, and the fastest that has registers to spare; None where there is none."""
    text = subprocess.run([flashkiln, "plan", row["spelling"], "--gpu", row["gpu"], "--json"], capture_output=True,
                          text=True, check=True).stdout
    plans = sorted((p for p in json.loads(text) if p["legal"]), key=lambda p: p["model_us"])
    kept = next(p for p in plans if all(p[n] == row[n] for n in ("block_m", "block_n", "ctas_per_sm")) and
                p["smem_bytes"] == row["smem_dynamic"])
    return kept, next((p for p in plans if p["registers"] + 16 <= kept["registers"]), None)


def print_slight(rows, flashkiln):
    groups = {}
    for r in rows:
        op, dtype, dim = r["spelling"].split()[:3]
        key = r["gpu"], op, "fp32" if dtype == "fp32" else "16 bits", dim, f"{r['block_m']} x {r['block_n']}, {r['ctas_per_sm']}"
        groups.setdefault(key, []).append(r)
    print("\n| GPU | pass | dtype | head dim | tile, CTAs an SM | kernels | bytes | with fewer registers |\n|" + " --- |" * 8)
    for key, some in sorted(groups.items()):
        spills = [r["spill_bytes"] for r in some]
        pairs = [kept_and_next(flashkiln, r) for r in some]
        times = [other["model_us"] / kept["model_us"] for kept, other in pairs if other]
        cost = f"{min(times):.2f} to {max(times):.2f} times as long" if times else "there is none"
        print("| " + " | ".join(key) + f" | {len(some)} | {min(spills)} to {max(spills)} | {cost} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--flashkiln", help="the program, to ask for plans")
    parser.add_argument("json", nargs="+")
    args = parser.parse_args()
    rows = []
    for path in args.json:
        with open(path, encoding="utf-8") as f:
            rows += json.load(f)
    print_summary(rows, args.limit)
    spilling = sorted((r for r in rows if is_built(r) and r["spill_bytes"] > args.limit),
                      key=lambda r: -r["spill_bytes"])
    if spilling:
        print("\n| kernel | GPU | tile | registers | bytes spilled |\n| --- | --- | --- | --- | --- |")
    for r in spilling:
        print(f"| `{r['spelling']}` | {r['gpu']} | {r['block_m']} x {r['block_n']} | {r['registers']} | {r['spill_bytes']} |")
    if args.flashkiln:
        print_slight([r for r in rows if is_built(r) and 0 < r["spill_bytes"] <= args.limit], args.flashkiln)
    unsupported = [r for r in rows if r["status"] == "FK_UNSUPPORTED"]
    failed = [r for r in rows if not is_built(r) and r["status"] != "FK_UNSUPPORTED"]
    print(f"\n{len(unsupported)} not supported, {len(failed)} failed.")
    for r in failed:
        print(f"- `{r['spelling']}` for {r['gpu']}: {r['status']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
