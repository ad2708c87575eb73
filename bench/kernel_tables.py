"""README's tables of kernels beside their peers, from the CSV files of forward.py, backward.py, features.py and sparse.py in
docs/results. One function a table, given the folder of those files: Markdown, or "" where there are no rows."""
import os

from plots import read, where
from survey import Shape
from tables import geomean, grouped

PEERS = ("sdpa-cudnn", "sdpa-flash")
OURS, ORDERED = "flashkiln", "flashkiln-deterministic"


def grid(head, lines):
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *lines)) + "\n"


def length(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def to_best(group, name=OURS, peers=PEERS):
    """{seqlen: the fastest peer's time over that of `name`}"""
    out = {}
    for (who, n), row in group.items():
        theirs = [float(group[p, n]["median_us"]) for p in peers if (p, n) in group]
        if who == name and theirs:
            out[n] = min(theirs) / float(row["median_us"])
    return out


def cells(folder, csv, **options):
    """{(case, seqlen): ratio to the better peer}"""
    return {(case, n): r for case, group in grouped(read(folder, csv)).items() for n, r in to_best(group, **options).items()}


def mean_and_least(ratios):
    return f"{geomean(ratios.values()):.2f} in the mean, least {min(ratios.values()):.2f}"


def percent(share):
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def short(case):
    """d64 full, of "fwd bf16 d64 full dropout 0.1"."""
    return " ".join(case.split()[2:4])


def by_length(folder, csv, head="", name=OURS, flash=False, only=""):
    """TFLOP/s and, in brackets, the ratio to the better peer."""
    groups = {case: group for case, group in grouped(read(folder, csv)).items() if only in case}
    if not groups:
        return ""
    sizes, lines = sorted({n for group in groups.values() for _, n in group}), []
    for case, group in groups.items():
        best = to_best(group, name)
        line = [short(case), *(f"{float(group[name, n]['tflops']):.0f} ({best[n]:.2f})" if n in best else "" for n in sizes),
                f"**{geomean(best.values()):.2f}**"]
        lines.append(line + [f"{geomean(to_best(group, name, PEERS[1:]).values()):.2f}"] * flash)
    return grid([head, *map(length, sizes), "geometric mean"] + ["to FLASH"] * flash, lines)


def forward(folder):
    return by_length(folder, "forward-wgmma-h200", flash=True)


def backward(folder):
    return by_length(folder, "backward-wgmma-h200")


def both_passes(folder, which):
    """A table each."""
    tables = (by_length(folder, f"{op}{which}-wgmma-h100", f"{op}, H100") for op in ("forward", "backward"))
    return "\n".join(table for table in tables if table)


def h100(folder):
    return both_passes(folder, "")


def short_rows(folder):
    return both_passes(folder, "-short")


def deterministic(folder):
    return by_length(folder, "backward-wgmma-h200", "deterministic", ORDERED, only="d256")


def forward_dropout(folder):
    return by_length(folder, "forward-dropout-wgmma-h200", "dropout 0.1")


def backward_dropout(folder):
    return by_length(folder, "backward-dropout-wgmma-h200", "dropout 0.1")


# ---- masks, scores, blocks ----

FEATURES = {"window": "`window(1024,0)`", "packed": "16 documents, packed", "document": "16 documents, as a mask",
            "gqa": "8 query heads a kv head", "alibi": "`alibi`, not causal", "softcap": "`softcap(30)`",
            "bias": "`bias` of [heads, q, k], float32; backward with its gradient"}


def features(folder):
    """Time of a visited tile over that of the same kernel without the feature, and the ratio to FlexAttention."""
    rows, lines = read(folder, "features-cost-wgmma-h200"), []
    columns = [(op, dim) for dim in ("64", "128") for op in ("fwd", "bwd")]
    for name, text in FEATURES.items():
        line = [text]
        for op, dim in columns:
            r = (where(rows, feature=name, op=op, head_dim=dim) or [None])[-1]
            flex = f" ({float(r['over_flex']):.2f})" if r and r["over_flex"] else ""
            line.append(f"{1 + float(r['over_plain']):.2f}{flex}" if r else "-")
        lines.append(line)
    return rows and grid(["", *(f"{op} d{dim}" for op, dim in columns)], lines) or ""


def sparse_rows(folder):
    """{(op, head dim, seqlen, share in %, name): (time of a tile over the dense kernel's, ratio to FlexAttention or None)}"""
    rows, out = where(read(folder, "sparse-h200"), part="density"), {}
    key = lambda r: (r["op"], r["head_dim"], int(r["seqlen"]), percent(float(r["density"])))  # noqa: E731
    flex = {key(r): float(r["median_us"]) for r in rows if r["name"] == "flex"}
    for r in rows:
        if r["name"] in ("predicate", "table"):
            out[(*key(r), r["name"])] = (float(r["per_tile"]), flex[key(r)] / float(r["median_us"]) if key(r) in flex else None)
    return out


def sparse(folder):
    found, lines = sparse_rows(folder), []
    columns = [("fwd", "64"), ("fwd", "128"), ("bwd", "64"), ("bwd", "128")]
    for seqlen, share, name in dict.fromkeys(k[2:] for k in found):
        line = [f"{length(seqlen)}, {share}, {name}"]
        for op, dim in columns:
            cell = found.get((op, dim, seqlen, share, name))
            line.append("-" if not cell else f"{cell[0]:.2f}" + (f" ({cell[1]:.2f})" if cell[1] else ""))
        lines.append(line)
    return found and grid(["blocks", *(f"{op} d{dim}" for op, dim in columns)], lines) or ""


# ---- few queries, many keys; and pages ----

def times(folder, name, key):
    """{key of the row: {contender: us}}"""
    out = {}
    for r in read(folder, name):
        out.setdefault(key(r), {})[r["name"]] = float(r["median_us"])
    return out


def by_shape(r):
    """head_dim, and a shape: batch, query heads, kv heads, queries, keys."""
    return int(r["head_dim"]), tuple(int(r[n]) for n in ("batch", "heads_q", "heads_kv", "seqlen_q", "seqlen_k"))


def shape_name(shape):
    return f"{shape[0]} x {shape[1]} ({shape[2]}) x {shape[3]:,}, {shape[4]:,}"


def chunk_rows(folder):
    return {key: us for key, us in times(folder, "chunks-wgmma-h100", by_shape).items() if "sdpa-flash" in us}


def chunk_ratios(folder):
    """Of the better peer's time over ours."""
    found = [([us[n] for n in ("sdpa-flash", "flex") if n in us], us[OURS]) for us in chunk_rows(folder).values()]
    return [min(peers) / ours for peers, ours in found if peers]


def chunks(folder):
    rows, lines = chunk_rows(folder), []
    for shape in dict.fromkeys(shape for _, shape in rows):
        line = [shape_name(shape)]
        for dim in (64, 128):
            us = rows[dim, shape]
            line += [f"{us[OURS]:.1f}, {us[OURS + '-pages-of-64']:.1f}"] + [f"{us[n] / us[OURS]:.2f}" if n in us else "-" for n in ("sdpa-flash", "flex")]
        lines.append(line)
    head = ["batch x heads (kv) x queries, keys"] + [f"d{dim} {what}" for dim in (64, 128) for what in ("us: rows, pages of 64", "FLASH", "FlexAttention")]
    return rows and grid(head, lines) or ""


def narrow_chunks(folder):
    """Beside keys and values of 16 bits those of 8."""
    rows, lines = times(folder, "chunks-wgmma-h100", by_shape), []
    for shape in dict.fromkeys(shape for _, shape in rows):
        line = [shape_name(shape)]
        for dim in (64, 128):
            us = rows[dim, shape]
            line += [f"{us[OURS]:.1f}", f"{us[OURS + '-kv-e4m3']:.1f}, {us[OURS + '-kv-e4m3-pages-of-64']:.1f}"]
        lines.append(line)
    head = ["batch x heads (kv) x queries, keys"] + [f"d{dim} {what}" for dim in (64, 128) for what in ("bf16", "`kv_e4m3`: rows, pages of 64")]
    return rows and grid(head, lines) or ""


# ---- boolean masks ----

def bits_rows(folder):
    return times(folder, "features-bits-wgmma-h100", lambda r: (r["op"], int(r["head_dim"]), int(r["seqlen"]), r["mask"]))


def bits(folder):
    rows, names, lines = bits_rows(folder), ("plain", "spelled", "flex", "sdpa-cudnn", "sdpa-efficient"), []
    for op, dim, seqlen, mask in sorted(rows, key=lambda key: ("random causal padded".index(key[3]), key[0] == "bwd", key)):
        us = rows[op, dim, seqlen, mask]
        lines.append([mask, op, f"d{dim}, {seqlen:,}", f"{us[OURS]:.0f}", *(f"{us[n] / us[OURS]:.2f}" if n in us else "" for n in names)])
    head = ["mask", "pass", "head dim, tokens", "us", "without a mask", "`causal`", "FlexAttention", "CUDNN", "EFFICIENT"]
    return lines and grid(head, lines) or ""


def bits_ratios(folder, op, peer):
    return [us[peer] / us[OURS] for key, us in bits_rows(folder).items() if key[0] == op]


# ---- decoding ----

DECODE_PEERS = "sdpa-cudnn", "sdpa-flash"


def decode_rows(folder, gpu="h200"):
    return times(folder, "decode-" + gpu, by_shape)


def best_peer(us):
    return min(us[n] for n in DECODE_PEERS if n in us)


def decode_ratios(folder, name=OURS):
    """Of the best peer's time over ours, with one query and with more."""
    found = {True: [], False: []}
    for (_, shape), us in decode_rows(folder).items():
        found[shape[3] == 1].append(best_peer(us) / us[name])
    return found[True], found[False]


def joined_by_flex(folder):
    """FlexAttention's time over ours with several queries: the one peer that joins a group's heads, too. On an H100, where it was timed."""
    return [us["flex"] / us[OURS] for (_, shape), us in decode_rows(folder, "h100").items() if shape[3] > 1]


def decode(folder):
    lines = []
    for (dim, shape), us in decode_rows(folder).items():
        ratios = [f"{us[n] / us[OURS]:.2f}" if n in us else "-" for n in DECODE_PEERS]
        size = 4 * dim * shape[0] * shape[2] * shape[4]  # bytes of keys and values
        narrow = us[OURS + "-e4m3"]
        lines.append([f"d{dim}, {shape_name(shape)}",
                      f"{us[OURS]:.1f}, {us[OURS + '-pages-of-64']:.1f}", f"{size / us[OURS] * 1e-3:,.0f}", *ratios,
                      f"{narrow:.1f}, {us[OURS + '-e4m3-pages-of-64']:.1f}", f"{size / 2 / narrow * 1e-3:,.0f}", f"{best_peer(us) / narrow:.2f}"])
    return lines and grid(["batch x heads (kv) x queries, keys", "us: rows, pages of 64", "GB/s", "CUDNN", "FLASH", "`kv_e4m3`",
                           "GB/s", "best peer"], lines) or ""


def pages(folder):
    rows = read(folder, "pages-wgmma-h200")
    us = {(r["head_dim"], r["seqlen"], r["name"].rpartition("-")[2] if "pages" in r["name"] else ""): float(r["median_us"]) for r in rows}
    sizes = [size for size in dict.fromkeys(size for _, _, size in us) if size]
    lines = [[f"d{dim}, {length(int(seqlen))}", f"{us[dim, seqlen, '']:.0f} us", *(f"{us[dim, seqlen, size] / us[dim, seqlen, '']:.2f}" for size in sizes)]
             for dim, seqlen in dict.fromkeys((dim, seqlen) for dim, seqlen, _ in us)]
    return rows and grid(["causal", "rows", *(f"pages of {size}" for size in sizes)], lines) or ""


# ---- packed sequences ----

def packed_rows(folder):
    """{(op, head_dim, mask): {lengths: {name: us}}}"""
    out = {}
    for r in read(folder, "packed-wgmma-h100"):
        case, lengths = (r["op"], int(r["head_dim"]), r["mask"]), (int(r["shortest"]), int(r["longest"]))
        out.setdefault(case, {}).setdefault(lengths, {})[r["name"]] = float(r["median_us"])
    return out


def packed(folder):
    rows = packed_rows(folder)
    lengths = list(dict.fromkeys(n for cells in rows.values() for n in cells))
    lines = [[f"{op} d{dim} {mask}", *(f"{us[OURS]:.0f} ({us['sdpa-flash'] / us[OURS]:.2f})" for us in (rows[op, dim, mask][n] for n in lengths))]
             for op, dim, mask in sorted(rows, key=lambda case: (case[0] != "fwd", case[1], case[2] != "full"))]
    return rows and grid(["us (FLASH's over it)", *(f"{a:,} to {b:,}" for a, b in lengths)], lines) or ""


# ---- the first screen ----

def span(values, digits=2):
    values = list(values)
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def front(folder):
    """What a reader sees first, losses among it."""
    lines = []
    for title, csv in (("dense bf16, head dims 64, 128, 256, full and causal, 512 to 16k tokens", ""),
                       ("the same with dropout 0.1, head dims 64, 128", "-dropout")):
        both = [cells(folder, f"{which}{csv}-wgmma-h200") for which in ("forward", "backward")]
        if all(both):
            lines.append([title, *(f"{geomean(x.values()):.2f}" for x in both), "to the better of cuDNN and FlashAttention-2; "
                          "least " + " and ".join(f"{min(x.values()):.2f}" for x in both)])
    lines += survey_line(folder)
    ratios = {op: [r for key, (_, r) in sparse_rows(folder).items() if key[0] == op and r] for op in ("fwd", "bwd")}
    if all(ratios.values()):
        lines.append(["block-sparse, 5 to 100 % of 128 x 128 blocks", span(ratios["fwd"]), span(ratios["bwd"]), "to FlexAttention"])
    ratios = chunk_ratios(folder)
    if ratios:
        lines.append(["64 to 4,096 queries behind 4k to 64k keys, causal (a prompt in chunks)", span(ratios), "", "to the better of "
                      "SDPA's FLASH and FlexAttention, on an NVIDIA H100"])
    ratios, cudnn = ([bits_ratios(folder, op, peer) for op in ("fwd", "bwd")] for peer in ("flex", "sdpa-cudnn"))
    if all(ratios):
        least = " and ".join(f"{min(r):.2f}" for r in ratios)
        lines.append(["boolean masks: random, causal, and causal with padding, head dims 64, 128, 512 and 4,096 tokens (an H100)",
                      *(f"{geomean(r):.2f}" for r in ratios), f"to FlexAttention with a BlockMask; least {least}; "
                      f"{span(cudnn[0], 1)} and {span(cudnn[1], 1)} to cuDNN"])
    one, more = decode_ratios(folder)
    if one:
        lines.append(["decoding: one query behind 2k to 128k keys, head dims 64, 128, 256", f"{geomean(one):.2f}", "",
                      f"to the better of cuDNN and FlashAttention-2, as all wait for HBM; least {min(one):.2f}; with four queries {span(more)}, "
                      f"and {span(joined_by_flex(folder))} to FlexAttention (an H100)"])
        one, more = decode_ratios(folder, OURS + "-e4m3")
        lines.append(["the same with keys and values of 8 bits (`kv_e4m3`) beside their bf16", f"{geomean(one):.2f}", "",
                      f"to the same peers, which have no such keys; {span(one)}; with four queries {span(more)}"])
    rows = packed_rows(folder)
    if rows:
        both = [[us["sdpa-flash"] / us[OURS] for case, cells in rows.items() if case[0] == op for us in cells.values()] for op in ("fwd", "bwd")]
        lines.append(["packed sequences of 16 to 2,048 tokens, head dims 64, 128, full and causal (an H100)", *(f"{geomean(x):.2f}" for x in both),
                      "to FlashAttention-2; least " + " and ".join(f"{min(x):.2f}" for x in both)])
    return lines and grid(["", "forward", "backward", ""], lines + steps_line(folder) + memory_line(folder)) or ""


SURVEY = {"self": "self-attention, 256 to 16,384 tokens", "short": "the same, 16 to 512 tokens", "few": "the same, 256 to 16,384 tokens of 1 to 16 heads",
          "cross": "queries and keys of unlike lengths, 32 to 8,192", "chunk": "16 to 2,048 queries behind 256 to 32,768 keys, causal",
          "packed": "packed sequences, the longest of 64 to 8,192 tokens", "window": "windows, 256 to 16,384 tokens", "dropout": "dropout 0.1, 64 to 8,192 tokens",
          "padding": "boolean masks of each entry's keys, 32 to 4,096 tokens", "bias": "a bias of every pair, 32 to 2,048 tokens",
          "decode": "1 to 16 queries behind 256 to 65,536 keys"}


def survey_ratios(folder):
    """{(kind, op, ...): the best peer's time over ours} of survey.py's random shapes"""
    shapes = {}
    for r in read(folder, "survey-h200"):
        key = tuple(r[x] for x in Shape._fields)
        shapes.setdefault(key, {})[r["name"]] = float(r["median_us"])
    return {key: min(t for n, t in us.items() if n != OURS) / us[OURS] for key, us in shapes.items() if len(us) > 1}


def survey(folder):
    ratios, lines = survey_ratios(folder), []
    for kind, what in SURVEY.items():
        for op in ("fwd", "bwd"):
            mine = [r for key, r in ratios.items() if key[:2] == (kind, op)]
            if mine:
                lines.append([what, {"fwd": "forward", "bwd": "backward"}[op], len(mine), f"**{geomean(mine):.2f}**", f"{min(mine):.2f}", sum(r < 1 for r in mine) or ""])
    return ratios and grid(["shapes", "", "drawn", "best peer's time over ours, geometric mean", "least", "slower"], lines) or ""


def survey_line(folder):
    both = [[r for key, r in survey_ratios(folder).items() if key[1] == op] for op in ("fwd", "bwd")]
    return [[f"{sum(map(len, both))} random shapes: batch, heads, grouped heads, lengths, head dims 32 to 256, windows, dropout, masks, biases", *(f"{geomean(r):.2f}" for r in both),
             f"to the best of cuDNN, FlashAttention-2 and EFFICIENT; {sum(r < 1 for r in sum(both, []))} slower, least {min(sum(both, [])):.2f} (docs/measured.md)"]] if all(both) else []


def steps_line(folder):
    rows, peers, eager, memory = read(os.path.join(folder, "suite"), "steps"), [], [], []
    for case in dict.fromkeys((r["model"], r["seqlen"], r["dropout"]) for r in rows):
        mine = {r["name"]: r for r in where(rows, model=case[0], seqlen=case[1], dropout=case[2]) if r["median_us"]}
        us = {name: float(r["median_us"]) for name, r in mine.items()}
        if OURS in us:
            peers.append(min(us[n] for n in us if n.startswith("sdpa")) / us[OURS])
            if "eager" in us:
                eager.append(us["eager"] / us[OURS])
                memory.append(100 * float(mine[OURS]["peak_mib"]) / float(mine["eager"]["peak_mib"]))
    return [["a training step of GPT-2 small, medium, BERT-large; ViT forward and backward", "", span(peers),
             f"to the faster SDPA; {span(eager, 1)} to eager, in {span(memory, 0)} % of its memory"]] if peers and eager else []


def memory_line(folder):
    """Of the longest length that eager can do, forward and backward without dropout and padding."""
    rows = [r for r in where(read(os.path.join(folder, "suite"), "tables"), padding="0", **{"pass": "both"})
            if float(r["dropout"]) == 0 and r["peak_mib"]]
    longest = max((int(r["seqlen"]) for r in rows if r["name"] == "eager"), default=0)
    mib = {r["name"]: float(r["peak_mib"]) for r in where(rows, seqlen=str(longest))}
    if not longest or OURS not in mib:
        return []
    least = min(x for name, x in mib.items() if name.startswith("sdpa"))
    return [[f"memory in use at {longest:,} tokens, 16 x 8 heads of 64, MiB", "", f"{mib[OURS]:.0f}",
             f"eager {mib['eager']:.0f}, the least of SDPA {least:.0f}"]]


TABLES = {"front": front, "forward": forward, "backward": backward, "h100": h100, "short-rows": short_rows, "deterministic": deterministic,
          "forward-dropout": forward_dropout, "backward-dropout": backward_dropout, "features": features, "sparse": sparse,
          "bits": bits, "chunks": chunks, "narrow-chunks": narrow_chunks, "decode": decode, "pages": pages, "packed": packed, "survey": survey}
