#!/usr/bin/env python3
"""A summary of `flashkiln build FILE --gpu ... --json`, as Markdown:

  kernels.py BUILD.json ... [--limit 64]

A row a GPU: how many kernels, what they spill, for how many a plan that is modelled faster was passed over because it
spills, how long they took to compile; then each kernel that spills more than --limit bytes (FK_MINOR_SPILL), and each
failure. Exit code 1: a problem failed other than for want of support.
"""
import argparse
import json
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=64)
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
    unsupported = [r for r in rows if r["status"] == "FK_UNSUPPORTED"]
    failed = [r for r in rows if not is_built(r) and r["status"] != "FK_UNSUPPORTED"]
    print(f"\n{len(unsupported)} not supported, {len(failed)} failed.")
    for r in failed:
        print(f"- `{r['spelling']}` for {r['gpu']}: {r['status']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
