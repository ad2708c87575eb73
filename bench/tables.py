#!/usr/bin/env python3
"""Tables from the CSV files of forward.py, backward.py and features.py, as Markdown:

  tables.py [--peer sdpa-flash] [--name flashkiln] CSV ...

A row is a case, a column a length; a cell is TFLOP/s and, in brackets, the ratio to the peer (higher: faster than it).
A case that was timed more than once counts with its last time.
"""
import argparse
import csv
import math
import sys


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def label(row):
    """Files of before there was a column `case` have none."""
    return row.get("case") or f"fwd {row['dtype']} d{row['head_dim']} {row['mask']}"


def grouped(rows):
    """{case: {(name, seqlen): row}} in the order of the rows."""
    cases = {}
    for r in rows:
        cases.setdefault(label(r), {})[r["name"], int(r["seqlen"])] = r
    return cases


def ratios(group, name, peer):
    """{seqlen: time of peer / time of name}"""
    return {n: float(group[peer, n]["median_us"]) / float(r["median_us"])
            for (who, n), r in group.items() if who == name and (peer, n) in group}


def print_tables(rows, peers=("sdpa-flash", "sdpa-cudnn")):
    """For each case: TFLOP/s of each contender by length, and its ratios to the peers."""
    for case, group in grouped(rows).items():
        sizes = sorted({n for _, n in group})
        print(f"\n{case}: TFLOP/s (ratio to {', to '.join(peers)})")
        print(f"  {'':32s}" + "".join(f"{n:>20d}" for n in sizes) + f"{'geomean':>16s}")
        for name in dict.fromkeys(who for who, _ in group):
            seen = [ratios(group, name, peer) for peer in peers]
            cells = []
            for n in sizes:
                if (name, n) not in group:
                    cells.append(f"{'-':>20s}")
                    continue
                shown = " ".join(f"{r[n]:.2f}" if n in r else "-" for r in seen)
                cells.append(f"{float(group[name, n]['tflops']):8.0f} ({shown})".rjust(20))
            means = " ".join(f"{geomean(r.values()):.3f}" if r else "-" for r in seen)
            print(f"  {name:32s}" + "".join(cells) + f"{means:>16s}")
    print_means(rows, peers)


def print_means(rows, peers, name="flashkiln"):
    """Geometric mean of one contender over all its cases and lengths, and its worst cells."""
    for peer in peers:
        cells = [(r, case, n) for case, group in grouped(rows).items() for n, r in ratios(group, name, peer).items()]
        if cells:
            worst = ", ".join(f"{case} {n}: {r:.2f}" for r, case, n in sorted(cells)[:3])
            print(f"\n{name} to {peer}: geometric mean {geomean(r for r, _, _ in cells):.3f} over {len(cells)} cells; "
                  f"worst: {worst}")


def print_markdown(rows, name, peer):
    cases = {case: group for case, group in grouped(rows).items() if any(who == name for who, _ in group)}
    sizes = sorted({n for group in cases.values() for who, n in group if who == name})
    print("| |" + "".join(f" {n // 1024}k |" if n % 1024 == 0 else f" {n} |" for n in sizes) + " geometric mean |")
    print("| --- |" + " --- |" * (len(sizes) + 1))
    for case, group in cases.items():
        to_peer, cells = ratios(group, name, peer), []
        for n in sizes:
            if (name, n) not in group:
                cells.append("")
                continue
            speed = f"{float(group[name, n]['tflops']):.0f}"
            cells.append(f"{speed} ({to_peer[n]:.2f})" if n in to_peer else speed)
        mean = f"**{geomean(to_peer.values()):.2f}**" if to_peer else ""
        print(f"| {case} | " + " | ".join(cells) + f" | {mean} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="sdpa-flash")
    parser.add_argument("--name", default="flashkiln")
    parser.add_argument("csv", nargs="+")
    args = parser.parse_args()
    rows = []
    for path in args.csv:
        with open(path, newline="") as f:
            rows += csv.DictReader(f)
    print_markdown(rows, args.name, args.peer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
