#!/usr/bin/env python3
"""The FlashAttention paper's experiments on this GPU: this project beside eager PyTorch, SDPA's backends and FlexAttention.

  suite.py [--quick] [--only tables,steps,...] [--devices 0,1] [--again] [--plot]

Parts (docs/benchmarks.md says what each shows):
  steps     training steps of GPT-2 and BERT, ViT forward and backward: time, memory
  tables    the paper's benchmark tables: 128 to 65,536 tokens, with and without dropout and padding
  batch     batch 16, 32, 64 at 1,024 tokens            short    128 to 512 tokens with padding and dropout
  speedup   head dims 64 and 128, causal, dropout, padding: speed-up over eager by length
  losses    loss curves of GPT-2 on text: eager and this project
  arena     ListOps and Pathfinder, dense and butterfly, up to 65,536 tokens
  traffic   HBM bytes and time of eager and of this project (needs ncu)
  blocks    time and predicted HBM bytes by tile, time by sparsity
  modelled  T4, RTX 3090, A100 and H200 by the planner's model; roofline (needs no GPU)
  startup   the first result of a fresh process; host costs

A part runs in a process of its own, and leaves OUT/PART.csv. One that is there, from the same library, GPU and options, is not run
again, unless --again. Parts share --minutes: each may take what those behind it are not expected to need. One that is at the end of its
share leaves out the rest, says so, and goes on where it stopped if time is left in the end, or in the next run. With --devices they
run side by side, one on each GPU, the tables in as many; only `startup`, which times the host, runs alone. What parts need is compiled by
several processes before the first. --plot draws from the CSV files, without a GPU. Without a GPU only `modelled` runs; --dry runs
everything on the CPU, tiny, for tests.
"""
import argparse
import contextlib
import csv
import functools
import gc
import glob
import hashlib
import importlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, os.path.join(ROOT, "python")]
sys.path.append(os.path.join(ROOT, ".deps", "bench"))  # what ./x installed, behind what was there

import schedule  # noqa: E402
from parts import PARTS  # noqa: E402

MINUTES = {False: 40, True: 4.7}  # of a whole and of a quick run, which has twenty seconds for starting, for plots and for a last case
WARM = 0.2   # of it, that compiling may take


def numbers(text):
    return [int(x) for x in text.split(",")]


def words(text):
    return [x for x in text.split(",") if x]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, for a run of about five minutes")
    parser.add_argument("--only", type=words, default=list(PARTS), help="parts, by name")
    parser.add_argument("--devices", type=words, default=[None], metavar="0,1", help="GPUs to spread parts over, as in "
                        "CUDA_VISIBLE_DEVICES; else the one that PyTorch takes")
    parser.add_argument("--minutes", type=float, help="that parts share: 40, of a quick run 4.7")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--plot", action="store_true", help="draw from the CSV files, run nothing")
    parser.add_argument("--dry", action="store_true", help="tiny, on the CPU, by the emulator: no figures")
    parser.add_argument("--lib", default=os.environ.get("FLASHKILN_LIBRARY")
                        or os.path.join(ROOT, "build", "libflashkiln.so"))
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "bench"), help="where CSV files and plots go")
    parser.add_argument("--jobs", type=int, help="processes that compile: 24 for each GPU, but no more than processors")
    parser.add_argument("--lengths", type=numbers, help="of steps, tables and speedup")
    parser.add_argument("--passes", type=words, default=["fwd", "bwd", "both"], help="of tables")
    parser.add_argument("--names", type=words, help="who is timed in tables, batch, short and speedup, as in column name")
    parser.add_argument("--no-flex", dest="flex", action="store_false", help="without FlexAttention, which compiles long")
    parser.add_argument("--steps", type=int, help="of losses: 300, or 40 in a quick run")
    parser.add_argument("--dropout", type=lambda s: [float(x) for x in s.split(",")], help="of losses: 0,0.1, or 0 in a quick run")
    parser.add_argument("--seconds", type=float, help="training time of each model of arena")
    parser.add_argument("--tasks", type=words, help="of arena")
    args = parser.parse_args()
    unknown = set(args.only) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    args.jobs = args.jobs or min(24 * len(args.devices), os.cpu_count() or 1)
    args.minutes = args.minutes or MINUTES[args.quick]
    args.lib, args.out = os.path.abspath(args.lib), os.path.abspath(args.out)
    os.environ["FLASHKILN_LIBRARY"] = args.lib
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # of each of --jobs processes
    os.makedirs(args.out, exist_ok=True)
    return args


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def gpu_name():
    """What nvidia-smi says: importing PyTorch takes seconds, and parts do it anyway."""
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def fingerprint(part, gpu, args):
    """What a part's results depend on, so that one that is there need not be made again."""
    digest = hashlib.sha256()
    front = os.path.join(HERE, "..", "python", "flashkiln")
    scripts = [path for folder in (HERE, front) for path in glob.glob(os.path.join(folder, "**", "*.py"), recursive=True)]
    for path in (args.lib, *sorted(scripts)):
        with open(path, "rb") as file:
            digest.update(file.read())
    options = [getattr(args, name) for name in ("quick", "dry", *PARTS[part].options)]
    digest.update(repr((part, gpu, version("torch"), version("transformers"), options)).encode())
    return digest.hexdigest()[:16]


# ---- a part, in its own process ----

def preload(parts):
    """What children need to import, which takes them longer than their work: they are forked from here. Nothing may open a
    CUDA context in this process."""
    if not version("torch") or not any(PARTS[part].needs_gpu for part in parts):
        return
    import torch  # noqa: F401
    if {"steps", "losses"} & set(parts) and version("transformers"):
        import transformers  # noqa: F401
    if any(PARTS[part].warms for part in parts):
        import torch.nn.attention.flex_attention  # noqa: F401
    gc.freeze()  # what has been imported need not be looked through whenever tensors are to be freed


def session_of(args):
    import torch
    from parts.session import Session
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    return Session(torch, args)


def module_of(part):
    """A part's module, and the name to give it if it has several parts."""
    name = PARTS[part].module
    return importlib.import_module("parts." + name), [] if name == part else [part]


def child(args, part, changes, until):
    """One job: a part, with some options changed."""
    vars(args).update(changes, until=until)
    os.makedirs(args.out, exist_ok=True)
    module, named = module_of(part)
    if not PARTS[part].needs_gpu:
        return module.run(args, *named)
    session = session_of(args)
    session.resume(notes(args.out, part), args.marks[part])
    module.run(session, *named)
    if session.cut:
        sys.exit(schedule.CUT)


def warm_share(args, parts, share, shares):
    session = session_of(args)
    for part in parts:
        module, named = module_of(part)
        module.warm(session, *named, share, shares)


def warm(args, parts, until):
    """Compiles what parts need, in several processes."""
    parts = [part for part in parts if PARTS[part].warms]
    if args.jobs < 2 or not parts:
        return
    begin = time.monotonic()
    limit = begin + WARM * (until - begin)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        running = [schedule.fork(nowhere, args.devices[i % len(args.devices)], warm_share, args, parts, i, args.jobs)
                   for i in range(args.jobs)]
    for process in running:
        process.join(max(0.1, limit - time.monotonic()))
        schedule.end(process)
    args.show(f"compiled in {time.monotonic() - begin:.0f} s")


def jobs_of(args, part):
    """A part as one job, or several where several GPUs can share it: each of these leaves its rows in a folder of its own."""
    seconds = PARTS[part].quick if args.quick else PARTS[part].seconds
    pieces = getattr(module_of(part)[0], "pieces", lambda *_: [])(args, part) if len(args.devices) > 1 else []
    if len(pieces) < 2:
        forget(args, args.out, part)
        yield schedule.Job(part, part, seconds, functools.partial(child, args, part, {}), PARTS[part].alone)
        return
    for i, (name, weight, changes) in enumerate(pieces):
        changes = {**changes, "out": piece(args, part, i)}
        forget(args, changes["out"], part)
        yield schedule.Job(f"{part} {name}", part, seconds * weight, functools.partial(child, args, part, changes))


def notes(out, part):
    """Where a job says what it has done."""
    return os.path.join(out, "marks", part + ".json")


def forget(args, out, part):
    if args.again and os.path.exists(notes(out, part)):
        os.remove(notes(out, part))


def piece(args, part, i):
    return os.path.join(args.out, "pieces", f"{part}-{i}")


def join(args, part, count):
    """Rows of a part's pieces as one file, in the order that one piece would have."""
    rows = []
    for i in range(count):
        path = os.path.join(piece(args, part, i), part + ".csv")
        if os.path.exists(path):
            with open(path, newline="", encoding="utf-8") as file:
                rows += csv.DictReader(file)
    rows.sort(key=lambda row: int(row["seqlen"]))
    if rows:
        with open(os.path.join(args.out, part + ".csv"), "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


# ---- all parts ----

@contextlib.contextmanager
def progress(args, count):
    """Lines, and below them on a terminal a bar of jobs. Yields what is called when a job begins."""
    begun = 0

    def plain(job):
        nonlocal begun
        begun += not job.took
        args.show(f"==> {job.name} " + ("goes on" if job.took else f"({begun} of {count})"))
    args.show = functools.partial(print, flush=True)
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        Progress = None
    if Progress is None or not sys.stdout.isatty():
        yield plain
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=count)
        args.show = functools.partial(bar.console.print, markup=False, highlight=False, soft_wrap=True)

        def begin(job):
            plain(job)
            bar.update(task, description=job.name, completed=begun - 1)
        yield begin


def run(args):
    begin = time.monotonic()
    until = begin + 60 * args.minutes
    gpu = "" if args.dry else version("torch") and gpu_name()
    parts = args.only
    if not gpu and not args.dry:
        parts = [p for p in parts if not PARTS[p].needs_gpu]
        print(f"no NVIDIA GPU, or no PyTorch: only {', '.join(parts) or 'nothing'} can be done here", flush=True)
    folder = os.path.join(args.out, "marks")
    os.makedirs(folder, exist_ok=True)
    marks = args.marks = {part: fingerprint(part, gpu, args) for part in parts}
    there = [part for part in parts if not args.again and read(os.path.join(folder, part)) == marks[part]]
    parts = [part for part in parts if part not in there]
    preload(parts)
    jobs = [job for part in parts for job in jobs_of(args, part)]
    with progress(args, len(jobs)) as show_begin:
        if there:
            args.show(f"there already: {', '.join(there)}")
        if gpu:
            warm(args, parts, until)
        schedule.run(jobs, args.devices, until, args.show, show_begin)
    for part in parts:
        mine = [job for job in jobs if job.part == part]
        if len(mine) > 1:
            join(args, part, len(mine))
        if all(job.state == "done" for job in mine):
            with open(os.path.join(folder, part), "w", encoding="ascii") as file:
                file.write(marks[part])
    print("seconds: " + ", ".join(f"{job.name} {job.took:.0f}" for job in jobs) + f"; all {time.monotonic() - begin:.0f}")
    for state in sorted({job.state for job in jobs} - {"done"}):
        print(f"{state}: {', '.join(job.name for job in jobs if job.state == state)}")
    return 1 if any(job.failed for job in jobs) else 0


def read(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="ascii") as file:
        return file.read()


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what runs, by `finally`
    code = 0 if args.plot else run(args)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("matplotlib is not here: no plots; suite.py --plot draws them from the CSV files")
        return code
    import plots
    plots.draw(args.out)
    return code


if __name__ == "__main__":
    sys.exit(main())
