#!/usr/bin/env python3
"""Markdown tables from the suite's CSV files, and those of kernels (kernel_tables.py) from the folder above.

  readme.py [--results docs/results/suite] [--write README.md docs/measured.md docs/benchmarks.md docs/sequences.md]

Prints every table. With --write it puts them into files, in place of what stands between `<!-- suite:NAME -->` and
`<!-- /suite -->`; NAME is one of those that `readme.py --names` lists.
"""
import argparse
import os
import re
import sys

import kernel_tables
from kernel_tables import grid
from plots import PAPER, late, ms, names, read, trend, where

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REGION = re.compile(r"(<!-- suite:([\w-]+) -->\n).*?(<!-- /suite -->)", re.DOTALL)
PAPERS = ("PyTorch Attention", "Megatron", "FlashAttention", "Block-Sparse FlashAttention")
TITLE = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}


def number(x):
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 else f"{x:.3f}"


def source(rows):
    """Where figures are from, and what the reader of a first run must know."""
    least = min((int(r["launches"]) for r in rows if r.get("launches")), default=None)
    return (f"{rows[0]['gpu']}, {rows[0]['driver_torch']}, {rows[0]['date'][:10]}" + (f", launches: {least} or more" if least else "")
            + ("; the host's time is not taken apart." if least and "host_us" not in rows[0] else "."))


# ---- one function a table: text, or "" where there are no rows -----------------------------------------------------------

def steps(folder):
    rows = read(folder, "steps")
    if not rows:
        return ""
    order, lines = names(rows), []
    for case in dict.fromkeys((r["model"], r["seqlen"], r["batch"], r["dropout"]) for r in rows):
        model, seqlen, batch, dropout = case
        mine = {r["name"]: r for r in where(rows, model=model, seqlen=seqlen, batch=batch, dropout=dropout)}
        least = min((ms(r) for name, r in mine.items() if ms(r) and name != "no-attention"), default=None)
        cells = []
        for name in order:
            r = mine.get(name)
            if not r or r["note"]:
                cells.append("out of memory" if r and "memory" in r["note"] else "no" if r else "")
                continue
            shown = f"**{number(ms(r))}**" if ms(r) == least else number(ms(r))
            cells.append(f"{shown} ({float(r['peak_mib']) / 1024:.1f})")
        peers = [ms(r) for n, r in mine.items() if n.startswith("sdpa") and not r["note"]]
        ours = mine.get("flashkiln")
        ratio = f"{min(peers) / ms(ours):.2f}" if peers and ours and not ours["note"] else ""
        lines.append([model, f"{seqlen} x {batch}", f"{float(dropout):g}", *cells, ratio])
    return ("Milliseconds a step (GiB in use at most); the last column: the faster SDPA's time over flashkiln's. "
            f"{source(rows)}\n\n" + grid(["model", "tokens", "dropout", *order, "over SDPA"], lines))


def tables(folder):
    rows, out = read(folder, "tables"), []
    paper = read(os.path.dirname(PAPER), os.path.basename(PAPER)[:-4])
    lengths = sorted({int(r["seqlen"]) for r in rows})
    for dropout, padding in dict.fromkeys((r["dropout"], r["padding"]) for r in rows):
        for which in [p for p in TITLE if where(rows, **{"pass": p})]:
            mine = where(rows, dropout=dropout, padding=padding, **{"pass": which})
            theirs = [r for r in where(paper, padding=padding, **{"pass": which}) if float(r["dropout"]) == float(dropout)]
            words = [f"dropout {float(dropout):g}"] * (float(dropout) > 0) + ["padding"] * (padding == "1")
            out.append(f"**{', '.join([TITLE[which], *words])}** (ms; the paper's table {theirs[0]['table']})\n\n"
                       + length_table(mine, lengths, theirs, lambda r: ms(r)))
    if rows:
        mine = where(rows, dropout=rows[0]["dropout"], padding=rows[0]["padding"], **{"pass": "both"})
        theirs = where(paper, **{"pass": "memory_mb"})
        out.append("**memory in use, forward and backward** (MiB; the paper's table 21)\n\n"
                   + length_table(mine, lengths, theirs, lambda r: float(r["peak_mib"] or 0)))
        out.insert(0, f"Batch 16, 8 heads of 64, fp16. {source(rows)} Rows of the paper: one A100 of 40 GB, 2022.\n")
    return "\n".join(out)


def length_table(mine, lengths, theirs, value):
    lines = []
    for name in names(mine):
        of_name = {int(r["seqlen"]): r for r in mine if r["name"] == name}
        if any(value(r) for r in of_name.values()):
            lines.append([name, *(number(value(of_name[n])) if n in of_name and value(of_name[n]) else "-" for n in lengths)])
    for row in sorted(theirs, key=lambda r: PAPERS.index(r["name"])):
        if any(row.get(str(n)) for n in lengths):
            lines.append([f"*{row['name']}, A100*", *(row.get(str(n)) or "-" for n in lengths)])
    return grid(["", *(f"{n:,}" for n in lengths)], lines)


def sizes(folder, name, key, title):
    rows = read(folder, name)
    if not rows:
        return ""
    out, values = [], sorted({int(r[key]) for r in rows})
    for dropout, padding in dict.fromkeys((r["dropout"], r["padding"]) for r in rows):
        for which in [p for p in TITLE if where(rows, **{"pass": p})]:
            mine = where(rows, dropout=dropout, padding=padding, **{"pass": which})
            words = [f"dropout {float(dropout):g}"] * (float(dropout) > 0) + ["padding"] * (padding == "1")
            lines = []
            for who in names(mine):
                of = {int(r[key]): ms(r) for r in mine if r["name"] == who and ms(r)}
                if of:
                    lines.append([who, *(number(of[v]) if v in of else "-" for v in values)])
            out.append(f"**{', '.join([TITLE[which], *words])}** (ms)\n\n" + grid([key, *map(str, values)], lines))
    return f"{title} {source(rows)}\n\n" + "\n".join(out)


def losses(folder):
    rows, lines = read(folder, "losses"), []
    for dropout in dict.fromkeys(r["dropout"] for r in rows):
        mine = where(rows, dropout=dropout)
        curves = {name: [float(r["loss"]) for r in where(mine, name=name)] for name in names(mine)}
        for name, curve in curves.items():
            apart = [abs(a - b) for a, b in zip(curve, curves["eager"])]
            step = float(where(mine, name=name)[0]["step_ms"])
            lines.append([f"{float(dropout):g}", name, len(curve), f"{sum(curve[-10:]) / len(curve[-10:]):.4f}",
                          f"{sum(apart) / len(apart):.1e}", f"{max(apart):.1e}", number(step)])
    return rows and (f"GPT-2 small on bytes of text, 8 x 1,024 tokens a step. {source(rows)}\n\n" + grid(
        ["dropout", "", "steps", "loss, mean of the last 10", "from eager, mean", "at most", "ms a step"], lines)) or ""


def arena(folder):
    rows, lines = read(folder, "arena"), []
    for task, which in dict.fromkeys((r["task"], r["attention"]) for r in rows):
        mine = where(rows, task=task, attention=which)
        last, (begins, ends, how) = mine[-1], trend(mine)
        lines.append([task, f"{int(last['tokens']):,} x {last['batch']}", which, last["start"], last["step"], last["step_ms"],
                      last["peak_mib"], f"{begins:.3f} to {ends:.3f}, {how}", f"{100 * late(mine, 'train_accuracy'):.0f} %",
                      f"{100 * float(last['held_accuracy']):.0f} %"])
    head = ["task", "tokens", "attention", "begins with", "steps", "ms a step", "MiB", "training loss, first and last tenth",
            "accuracy in training", "on new examples"]
    return rows and f"{source(rows)}\n\n" + grid(head, lines) or ""


def traffic(folder):
    rows, lines = read(folder, "traffic"), []
    for r in rows:
        moved = (float(r["read_mb"]) + float(r["written_mb"])) / 1e3 if r["read_mb"] else None
        lines.append([TITLE[r["pass"]], f"{r['seqlen']} x {r['batch']}", r["name"], number(ms(r)), number(moved) if moved else "",
                      number(float(r["predicted_mb"]) / 1e3) if r["predicted_mb"] else "", r["peak_mib"]])
    return rows and f"16 heads of 64, fp16. {source(rows)}\n\n" + grid(
        ["pass", "tokens", "", "ms", "GB to and from HBM (ncu)", "GB predicted", "MiB in use"], lines) or ""


def startup(folder):
    rows, lines = read(folder, "startup"), []
    for r in rows:
        note = r["note"].split("+")[0]
        lines.append([r["scenario"], *(number(float(r[x])) if r[x] else "-" for x in ("context", "first", "lookup", "load")), note])
    return rows and (f"Milliseconds of a fresh process, `fwd bf16 d128 causal`. {rows[0]['date'][:10]}.\n\n"
                     + grid(["", "context", "first result", "of it look-up", "load", ""], lines)) or ""


def modelled(folder):
    rows, lines = read(folder, "modelled"), []
    for gpu, dim, kind in dict.fromkeys((r["gpu"], r["head_dim"], r["kind"]) for r in rows):
        mine = {int(r["seqlen"]): r for r in where(rows, gpu=gpu, head_dim=dim, kind=kind, **{"pass": "both"})}
        lines.append([gpu, dim, kind, *(number(float(r["modelled_us"]) / 1e3) for _, r in sorted(mine.items()))])
    lengths = sorted({int(r["seqlen"]) for r in rows})
    return rows and ("Modelled, not measured: ms, forward and backward, 16,384 tokens, 2,048 hidden, fp16.\n\n"
                     + grid(["GPU", "head dim", "", *(f"{n:,}" for n in lengths)], lines)) or ""


TABLES = {"steps": steps, "tables": tables, "losses": losses, "arena": arena, "traffic": traffic, "modelled": modelled, "startup": startup,
          "short": lambda folder: sizes(folder, "short", "seqlen", "Batch 64, 16 heads of 64, fp16."),
          "batch": lambda folder: sizes(folder, "batch", "batch", "1,024 tokens, 8 heads of 64, fp16.")}


TABLES.update({name: lambda folder, table=table: table(os.path.dirname(folder)) for name, table in kernel_tables.TABLES.items()})


def rewrite(path, folder):
    with open(path, encoding="utf-8") as file:
        text = file.read()

    def made(region):
        table = TABLES[region.group(2)](folder)
        return region.group(1) + table + region.group(3) if table else region.group(0)
    new = REGION.sub(made, text)
    if new != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", default=os.path.join(ROOT, "docs", "results", "suite"))
    parser.add_argument("--write", nargs="+", metavar="FILE", help="files whose marked regions are made anew")
    parser.add_argument("--names", action="store_true")
    args = parser.parse_args()
    if args.names:
        print("\n".join(TABLES))
    elif args.write:
        for path in args.write:
            rewrite(path, args.results)
    else:
        for name, table in TABLES.items():
            text = table(args.results)
            if text:
                print(f"## {name}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
