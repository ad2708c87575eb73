"""Plots of the suite's CSV files, as SVG beside them: what is there is drawn. Needs matplotlib, no GPU."""
import csv
import itertools
import math
import os
import statistics

PAPER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "results", "paper-a100.csv")
STYLE = {"eager": ("#888888", "o"), "sdpa": ("#d58b2c", "s"), "sdpa-flash": ("#d58b2c", "s"), "sdpa-cudnn": ("#4b9b4b", "^"),
         "sdpa-efficient": ("#a0674b", "v"), "flex": ("#9467bd", "D"), "flashkiln": ("#1f5fbf", "o"),
         "flashkiln-butterfly": ("#36b3c9", "P"), "no-attention": ("#dddddd", "x"), "dense": ("#1f5fbf", "o"), "butterfly": ("#36b3c9", "P")}


def read(folder, name):
    path = os.path.join(folder, name + ".csv")
    if not os.path.exists(path):
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def look(name):
    colour, marker = STYLE.get(name, ("#444444", "."))
    return {"color": colour, "marker": marker, "markersize": 4, "label": name, "linewidth": 2 if "flashkiln" in name else 1.3}


def names(rows):
    """In the order of STYLE."""
    found = {r["name"] for r in rows}
    return [n for n in STYLE if n in found] + sorted(found - set(STYLE))


def where(rows, **wanted):
    return [r for r in rows if all(r[key] == str(value) for key, value in wanted.items())]


def ms(row):
    return float(row["median_us"]) / 1000 if row["median_us"] else None


def lines(axis, rows, x, y):
    for name in names(rows):
        points = sorted((float(r[x]), y(r)) for r in rows if r["name"] == name and y(r))
        if points:
            axis.plot(*zip(*points), **look(name))


def plain(axis):
    """A logarithmic axis with numbers as one says them."""
    from matplotlib import ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}" if x < 1e4 else f"{x / 1000:g}k"))
    axis.set_minor_formatter(ticker.NullFormatter())


def by_length(axis, rows, title, ylabel):
    lengths = sorted({int(r["seqlen"]) for r in rows})
    axis.set(xscale="log", title=title, xlabel="tokens", ylabel=ylabel)
    axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 else str(n) for n in lengths], fontsize=8)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def key(figure, axis, spare=()):
    """The legend of all axes, where one is spare, else below."""
    for other in spare:
        other.set_axis_off()
    handles, labels = axis.get_legend_handles_labels()
    if spare:
        spare[0].legend(handles, labels, loc="upper left", fontsize=9)
    else:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)


def gpu(rows):
    return rows[0]["gpu"] + ", " + rows[0]["date"][:10]


# ---- one function a picture: (figure or None) of the folder's files -------------------------------------------------------

def tables(pyplot, folder):
    rows = read(folder, "tables")
    kinds = list(dict.fromkeys((r["dropout"], r["padding"]) for r in rows))
    if not rows:
        return None
    down, across = -(-(len(kinds) + 1) // 3), min(3, len(kinds) + 1)  # a page's width, so that it can be read there
    figure, axes = pyplot.subplots(down, across, figsize=(4.2 * across, 4 * down), squeeze=False)
    memory, *spare = axes.flat[len(kinds):]
    paper = read(os.path.dirname(PAPER), os.path.basename(PAPER)[:-4])
    for axis, (dropout, padding) in zip(axes.flat, kinds):
        mine = where(rows, dropout=dropout, padding=padding, **{"pass": "both"})
        lines(axis, mine, "seqlen", ms)
        lengths = {r["seqlen"] for r in mine}
        theirs = [r for r in paper if r["pass"] == "both" and float(r["dropout"]) == float(dropout) and r["padding"] == padding]
        for name, dash in (("PyTorch Attention", ":"), ("FlashAttention", "--"), ("Block-Sparse FlashAttention", "-.")):
            row = next((r for r in theirs if r["name"] == name), {})
            points = [(int(n), float(row[n])) for n in sorted(lengths, key=int) if row.get(n)]
            if points:
                axis.plot(*zip(*points), dash, color="black", linewidth=0.9, label=f"{name}, A100 (paper)")
        words = [f"dropout {float(dropout):g}"] * (float(dropout) > 0) + ["padding"] * (padding == "1")
        by_length(axis, mine, ", ".join(words) or "no dropout, no padding", "ms")
        axis.set_yscale("log")
        plain(axis.yaxis)
    mine = where(rows, dropout=kinds[0][0], padding=kinds[0][1], **{"pass": "both"})
    lines(memory, mine, "seqlen", lambda r: float(r["peak_mib"] or 0))
    by_length(memory, mine, "memory in use", "MiB")
    memory.set_yscale("log")
    plain(memory.yaxis)
    key(figure, axes[0][0], spare)
    figure.suptitle(f"forward and backward, batch 16, 8 heads of 64, fp16: {gpu(rows)}", fontsize=10)
    return figure


def bars(axis, labels, rows_of, value, text):
    """A group for each label, a bar for each name; what was tried and has no value says why it has none."""
    every = names([r for label in labels for r in rows_of[label]])
    width = 0.84 / max(1, len(every))
    top = max((value(r) for rows in rows_of.values() for r in rows if value(r)), default=1)
    for i, name in enumerate(every):
        for x, label in enumerate(labels):
            row = next((r for r in rows_of[label] if r["name"] == name), None)
            at = x + (i - (len(every) - 1) / 2) * width
            height = value(row) if row else None
            axis.bar(at, height or 0, width * 0.94, color=look(name)["color"], label=name if x == 0 else None)
            shown = text(height) if height else "" if not row else "OOM" if "memory" in row["note"] else "–"
            axis.text(at, (height or 0) + 0.01 * top, shown, ha="center", va="bottom", fontsize=7, rotation=90)
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    axis.margins(y=0.2)
    axis.grid(axis="y", alpha=0.3)


def steps(pyplot, folder):
    rows = read(folder, "steps")
    if not rows:
        return None
    groups = {}
    for r in rows:
        drop = f"\ndropout {float(r['dropout']):g}"
        groups.setdefault(f"{r['model']}\n{r['seqlen']} x {r['batch']}{drop}", []).append(r)
    labels = list(groups)
    halves = [labels[i:i + 8] for i in range(0, len(labels), 8)]  # a page's width
    figure, axes = pyplot.subplots(2 * len(halves), 1, figsize=(10, 6 * len(halves)), squeeze=False)
    for time, memory, some in zip(axes.flat, axes.flat[len(halves):], halves):
        bars(time, some, groups, ms, lambda x: f"{x:.0f}" if x >= 10 else f"{x:.1f}")
        bars(memory, some, groups, lambda r: float(r["peak_mib"] or 0) / 1024 or None, lambda x: f"{x:.1f}")
        time.set(ylabel="ms a step")
        memory.set(ylabel="GiB in use at most")
    key(figure, axes[0][0])
    figure.suptitle(f"training step (ViT: forward and backward), bf16 autocast: {gpu(rows)}", fontsize=10)
    return figure


def losses(pyplot, folder):
    rows = read(folder, "losses")
    kinds = list(dict.fromkeys(r["dropout"] for r in rows))
    if not rows:
        return None
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(6 * len(kinds), 4), squeeze=False)
    for axis, dropout in zip(axes[0], kinds):
        mine = where(rows, dropout=dropout)
        for name, dash in zip(names(mine), ("-", ":", "--") if len(names(mine)) > 2 else ("-", "--")):
            curve = [(int(r["step"]), float(r["loss"])) for r in mine if r["name"] == name]
            step = next(r["step_ms"] for r in mine if r["name"] == name)
            axis.plot(*zip(*curve), dash, color=look(name)["color"], linewidth=1.2, label=f"{name}, {float(step):.0f} ms a step")
        axis.set(xlabel="step", ylabel="loss (nats a byte)", title=f"GPT-2 small on bytes, dropout {float(dropout):g}")
        axis.legend()
        axis.grid(alpha=0.3)
    figure.suptitle(gpu(rows), fontsize=9)
    return figure


def ends(rows, column):
    """A column's values at the beginning and at the end of training: of a tenth of its rows each, of ten at least, but no more
    than a third."""
    count = max(len(rows) // 10, min(10, len(rows) // 3), 1)
    values = [float(row[column]) for row in rows]
    return values[:count], values[-count:]


def late(rows, column):
    return statistics.fmean(ends(rows, column)[1])


def trend(rows):
    """(mean loss at the beginning, at the end, what it does): it falls or rises if these are apart by more than twice the
    standard error of the difference, as the scatter of either's rows has it."""
    first, last = ends(rows, "loss")
    apart = statistics.fmean(last) - statistics.fmean(first)
    error = sum(statistics.variance(some) / len(some) for some in (first, last)) ** 0.5 if len(first) > 1 else math.inf
    return statistics.fmean(first), statistics.fmean(last), "falls" if apart < -2 * error else "rises" if apart > 2 * error else "is level"


def arena(pyplot, folder):
    rows = read(folder, "arena")
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    if not rows:
        return None
    figure, axes = pyplot.subplots(len(tasks), 2, figsize=(9, 2.6 * len(tasks)), squeeze=False)
    for line, task in zip(axes, tasks):
        for which in ("dense", "butterfly"):
            mine = where(rows, task=task, attention=which)
            if not mine:
                continue
            label = f"{which}: {float(mine[0]['step_ms']):.1f} ms, {mine[0]['peak_mib']} MiB"
            style = {**look(which), "marker": None, "label": label}
            smooth = max(1, len(mine) // 25)
            for axis, y in zip(line, ("loss", "train_accuracy")):
                points = [(float(mine[min(i + smooth, len(mine)) - 1]["seconds"]),
                           sum(float(r[y]) for r in mine[i:i + smooth]) / len(mine[i:i + smooth]))
                          for i in range(0, len(mine), smooth)]
                axis.plot(*zip(*points), **style)
        line[0].set(xlabel="seconds of training", ylabel="training loss")
        line[1].set(xlabel="seconds of training", ylabel="training accuracy")
        line[0].legend(fontsize=8)
        for axis in line:
            axis.set_title(f"{task}: {int(mine[0]['tokens']):,} tokens", fontsize=10)
            axis.grid(alpha=0.3)
    figure.suptitle(gpu(rows), fontsize=9)
    return figure


def traffic(pyplot, folder):
    rows = [{**r, "note": ""} for r in read(folder, "traffic")]
    if not rows:
        return None
    groups = {}
    for r in rows:
        what = {"fwd": "forward", "both": "forward and backward"}[r["pass"]]
        groups.setdefault(f"{what}\n{r['batch']} x {r['seqlen']} tokens", []).append(r)
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))

    def gigabytes(r):
        return (float(r["read_mb"]) + float(r["written_mb"])) / 1e3 if r["read_mb"] else None
    bars(axes[0], list(groups), groups, gigabytes, lambda x: f"{x:.2f}")
    bars(axes[1], list(groups), groups, ms, lambda x: f"{x:.2f}")
    axes[0].set(ylabel="GB read and written, by ncu", title="HBM traffic")
    axes[1].set(ylabel="ms", title="time")
    key(figure, axes[0])
    figure.suptitle(f"16 heads of 64, fp16: {gpu(rows)}", fontsize=9)
    return figure


def blocks(pyplot, folder):
    tiles, sparse = read(folder, "blocks"), read(folder, "sparsity")
    if not tiles and not sparse:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for family in dict.fromkeys(r["family"] for r in tiles):
        points = sorted((int(r["block_m"]), ms(r)) for r in where(tiles, family=family))
        axes[0].plot(*zip(*points), "o-", label=f"{family}: ms")
    if tiles:
        twin = axes[0].twinx()
        traffic_of = sorted({int(r["block_m"]): float(r["hbm_mb"]) for r in tiles}.items())
        twin.plot(*zip(*traffic_of), "s:", color="#888888", label="HBM MB, predicted")
        twin.set(ylabel="MB", ylim=(0, 1.5 * max(y for _, y in traffic_of)))
        twin.legend(fontsize=7, loc="lower left")
        axes[0].set(xlabel="query rows of a tile", ylabel="ms, forward", title="time and traffic by tile", ylim=(0, None))
        axes[0].legend(fontsize=7, loc="lower right")
    for which in dict.fromkeys(r["pass"] for r in sparse):
        mine = sorted(where(sparse, **{"pass": which}), key=lambda r: float(r["shown"]))
        points = [(float(r["shown"]), ms(r)) for r in mine]
        line, = axes[1].plot(*zip(*points), "o-", label={"fwd": "forward", "both": "forward and backward"}[which])
        few = [r for r in mine if r.get("note")]
        if few:
            axes[1].plot([float(r["shown"]) for r in few], [ms(r) for r in few], "o", color=line.get_color(),
                         markerfacecolor="white", label=few[0]["note"])
        full = points[-1][1]
        axes[1].plot([0, 1], [0, full], ":", color=line.get_color(), linewidth=0.8)
    axes[1].set(xlabel="share of blocks shown (128 x 128)", ylabel="ms", title="time by sparsity", xlim=(0, 1.03), ylim=(0, None))
    axes[1].legend(fontsize=8)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.suptitle(gpu(tiles or sparse), fontsize=9)
    return figure


def speedup(pyplot, folder):
    rows = read(folder, "speedup")
    if not rows:
        return None
    dims = sorted({int(r["head_dim"]) for r in rows})
    kinds = list(dict.fromkeys((r["causal"], r["dropout"], r["padding"]) for r in rows))
    figure, axes = pyplot.subplots(len(kinds), len(dims), figsize=(max(6, 4.6 * len(dims)), 2.9 * len(kinds)), squeeze=False)
    for axis, ((causal, dropout, padding), dim) in zip(axes.flat, itertools.product(kinds, dims)):
        mine = where(rows, head_dim=dim, causal=causal, dropout=dropout, padding=padding, **{"pass": "both"})
        eager = {r["seqlen"]: ms(r) for r in mine if r["name"] == "eager"}
        lines(axis, [r for r in mine if r["name"] != "eager"], "seqlen",
              lambda r: eager[r["seqlen"]] / ms(r) if ms(r) and eager.get(r["seqlen"]) else None)
        words = ["causal"] * (causal == "1") + ["dropout"] * (float(dropout) > 0) + ["padding"] * (padding == "1")
        by_length(axis, mine, f"d{dim} " + (", ".join(words) or "full"), "times as fast as eager")
        axis.set_ylim(0, None)
    key(figure, axes.flat[0])
    figure.suptitle(f"forward and backward: {gpu(rows)}", fontsize=9)
    return figure


def modelled(pyplot, folder):
    rows = read(folder, "modelled")
    if not rows:
        return None
    gpus, dims = list(dict.fromkeys(r["gpu"] for r in rows)), list(dict.fromkeys(r["head_dim"] for r in rows))
    figure, axes = pyplot.subplots(len(dims), len(gpus), figsize=(3.6 * len(gpus), 3.2 * len(dims)), squeeze=False)
    for line, dim in zip(axes, dims):
        for axis, name_of in zip(line, gpus):
            mine = where(rows, gpu=name_of, head_dim=dim, **{"pass": "both"})
            for kind in dict.fromkeys(r["kind"] for r in mine if r["kind"] in ("full", "causal", "dropout", "butterfly")):
                points = sorted((int(r["seqlen"]), float(r["over_standard"])) for r in where(mine, kind=kind))
                axis.plot(*zip(*points), marker="o", markersize=3, label=kind)
            by_length(axis, mine, f"{name_of}, d{dim} (modelled)", "times standard's bound")
            axis.set_yscale("log")
            plain(axis.yaxis)
    key(figure, axes.flat[0])
    figure.suptitle("MODELLED, not measured: forward and backward, against what HBM and tensor cores allow attention by matrices",
                    fontsize=9)
    return figure


def roofline(pyplot, folder):
    rows = read(folder, "roofline")
    if not rows:
        return None
    gpus = list(dict.fromkeys(r["gpu"] for r in rows))
    figure, axes = pyplot.subplots(-(-len(gpus) // 2), 2, figsize=(9, 3.6 * -(-len(gpus) // 2)), squeeze=False)
    for axis, name_of in zip(axes.flat, gpus):
        mine = where(rows, gpu=name_of)
        peak, bandwidth = float(mine[0]["peak_tflops"]), float(mine[0]["hbm_gbps"]) / 1000
        ends = (4, peak / bandwidth, 20000)
        axis.loglog(ends, [min(peak, x * bandwidth) for x in ends], "k-", linewidth=1)
        for name in ("standard", "flashkiln"):
            points = [(float(r["intensity"]), float(r["tflops"])) for r in where(mine, name=name)]
            colour = look("eager" if name == "standard" else name)["color"]
            axis.plot(*zip(*points), "o", markersize=4, color=colour, alpha=0.7, label=name + " (modelled)")
        axis.set(title=name_of, xlabel="FLOP a byte of HBM", ylabel="TFLOP/s")
        plain(axis.yaxis)
        axis.grid(alpha=0.3)
    key(figure, axes[0][0])
    figure.suptitle("roofline; points MODELLED by the planner, d64 and d128, 512 to 16,384 tokens", fontsize=9)
    return figure


PICTURES = (tables, steps, losses, arena, traffic, blocks, speedup, modelled, roofline)


def draw(folder):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["figure.constrained_layout.use"] = True
    matplotlib.rcParams["svg.hashsalt"] = "flashkiln"  # the same bytes from the same rows
    from matplotlib import pyplot
    for picture in PICTURES:
        figure = picture(pyplot, folder)
        if figure is not None:
            figure.savefig(os.path.join(folder, picture.__name__ + ".svg"), metadata={"Date": None})
            pyplot.close(figure)
            print(f"drawn: {picture.__name__}.svg", flush=True)
