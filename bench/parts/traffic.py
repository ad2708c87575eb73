"""Figure 2, left: HBM bytes, GFLOPs and time of standard attention and of this project, forward and backward, at the
paper's size (1,024 tokens, 64 sequences, 16 heads of 64). Bytes are counted by ncu's DRAM counters over every kernel of the
pass; without ncu, or where it may not count, that column stays empty and the planner's prediction stands beside it.
Results: traffic.csv
"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [folder for folder in (HERE, os.path.join(os.path.dirname(HERE), "python")) if folder not in sys.path]

import counters  # noqa: E402
from parts.attention import Butterfly, Case, Eager, FlashKiln, Inputs  # noqa: E402
from parts.session import Call  # noqa: E402

KINDS = {kind.name: kind for kind in (Eager, FlashKiln, Butterfly)}
LENGTHS = (1024, 4096)
TOKENS = 65536
PASSES = [(name, which) for name in KINDS for which in ("fwd", "both")]
MARK = "spin_kernel"  # of torch.cuda._sleep


def case_of(session, seqlen):
    if not session.cuda:
        return Case(64, batch=1, heads=2, dim=16, dtype="fp32")
    return Case(seqlen, batch=TOKENS // seqlen, heads=16)


def counted(session, seqlen):
    """{(name, pass): [MB read, MB written]}, by a process under ncu that runs each pass once; empty where nothing is counted."""
    program = counters.program()
    if not program or not session.cuda:
        return {}
    command = [program, "--profile-from-start", "off", *counters.OPTIONS,
               sys.executable, os.path.abspath(__file__), session.args.lib, str(seqlen)]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=200).stdout
    except subprocess.TimeoutExpired:
        session.say("  ncu: not done in time")
        return {}
    sums = totals(text)
    if len(sums) != len(PASSES):
        session.say("  ncu: " + " ".join(re.findall(r"==(?:ERROR|WARNING)==.*", text) or [f"{len(sums)} passes"])[:300])
        return {}
    return dict(zip(PASSES, sums))


def totals(text):
    """[MB read, MB written] of each stretch of ncu's table that a marking kernel begins."""
    out, last = [], None
    for row in counters.table(text):
        if MARK in row["Kernel Name"]:
            if row["ID"] != last:
                out.append([0.0, 0.0])
            last = row["ID"]
        elif out:
            counters.add(out[-1], row)
    return out


def predicted(session, attention, case, which):
    """MB of the planner's model, of this project's."""
    if not isinstance(attention, FlashKiln):
        return ""
    from flashkiln._capi import library
    import flashkiln  # noqa: F401
    words = f"{case.dtype} d{case.dim}" + (f" {attention.sparsity}" if attention.sparsity else "")
    lib = library()
    shape = lib.shape(case.batch, case.heads, case.seqlen)
    bytes_of = {op: next(p.hbm_bytes for p in lib.plans(lib.problem(f"{op} {words}"), "h200", shape) if p.chosen)
                for op in ("fwd", "bwd")}
    return f"{(bytes_of['fwd'] + bytes_of['bwd'] * (which == 'both')) / 1e6:.1f}"


def run(session):
    for seqlen in session.units(LENGTHS if session.cuda and not session.args.quick else LENGTHS[:1]):
        case, missing, memory = case_of(session, seqlen), {}, {}
        inputs, bytes_of = Inputs(session, case), counted(session, case.seqlen)
        for which in ("fwd", "both"):
            calls, found = [], {}
            for name, kind in KINDS.items():
                with session.surviving(case.label(), name, missing):
                    found[name] = kind(session, case, inputs)
                    calls.append(Call(name, found[name].launch(which)))
                    memory[name] = session.peak(calls[-1])
            times = session.time(calls)
            calls.clear()
            session.free()
            rows = []
            for name, figures in times.items():
                read, written = bytes_of.get((name, which), ("", ""))
                flops = 4 * case.batch * case.heads * case.seqlen ** 2 * case.dim * (1 if which == "fwd" else 3.5)
                rows.append({**case.row(), "pass": which, "name": name, **figures,
                             "read_mb": read and f"{read:.1f}", "written_mb": written and f"{written:.1f}",
                             "predicted_mb": predicted(session, found[name], case, which),
                             "gflop": "" if name == "flashkiln-butterfly" else f"{flops / 1e9:.1f}", "peak_mib": memory[name]})
                session.say("  {name} {pass} {seqlen}: {median_us} us, read {read_mb} MB, written {written_mb} MB, "
                            "predicted {predicted_mb}".format(**rows[-1]))
            session.write("traffic", rows)


def profiled(lib, seqlen):
    """What ncu watches: each pass once, after one that it does not see, and a marking kernel before it."""
    import argparse
    os.environ["FLASHKILN_LIBRARY"] = lib
    import torch
    from parts.session import Session
    session = Session(torch, argparse.Namespace(dry=False, lib=lib))
    case = case_of(session, int(seqlen))
    inputs = Inputs(session, case)
    for name, which in PASSES:
        launch = KINDS[name](session, case, inputs).launch(which)
        launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.cuda._sleep(1000)
        launch()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    profiled(*sys.argv[1:])
