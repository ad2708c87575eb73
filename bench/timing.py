"""Round-robin timing, the CSV file, and what every script's command line has.

The chip is power-bound: whatever runs first looks faster, and one kernel differs by its neighbours. So all contenders of one
shape run round-robin, in changing order, and the median over all rounds counts; read figures as ratios within one table.
Before it is timed, each contender's output (poisoned with NaN first) is compared with float64.
"""
import argparse
import contextlib
import csv
import datetime
import math
import os
import random
import subprocess
import time

from problems import Oracle, Shape, Tensors

HOST_CYCLES = 2000  # of the GPU in a microsecond, rather too many than too few


class Fault(Exception):
    """The CUDA context is of no more use. args: (text) or (contender, text)."""


# ---- timing ----

def wait(torch, seconds):
    """Synchronises, but gives up on a kernel that hangs."""
    event = torch.cuda.Event()
    deadline = time.monotonic() + seconds
    try:
        event.record()
        while not event.query():
            if time.monotonic() > deadline:
                raise Fault(f"hangs: not done after {seconds} s")
            time.sleep(1e-4)
    except RuntimeError as e:
        raise Fault(str(e).splitlines()[0]) from e


def admit(torch, shape, t, oracle, contender):
    """Runs a contender once on poisoned outputs. Returns (error, ratio) or None if it is out."""
    try:
        contender.prepare(shape, t)
        t.poison(shape.op)
        contender.launch()
    except RuntimeError as e:  # SDPA refuses the shape
        print(f"  {contender.name}: not available: {str(e).splitlines()[0]}")
        return None
    wait(torch, 20)
    if oracle is None or not contender.checked:
        return math.nan, math.nan
    error, ratio, complaint = oracle.check(contender.results(), t.lse if contender.writes_lse else None,
                                            contender.limit)
    if complaint:
        print(f"  {contender.name}: WRONG: {complaint}")
        return None
    return error, ratio


def check_small(torch, args, op, contenders):
    """One small case of each head_dim and mask against float64. With dropout only this library's: only it tells what it
    keeps. False: it has a wrong result, or none."""
    for dim in args.dims:
        for mask in args.masks:
            shape = Shape(torch, args, 1000, dim, mask, op, batch=2, heads=4)
            t = Tensors(torch, shape)
            oracle = None if shape.dropout else Oracle(torch, shape, t)
            for c in contenders:
                if not c.checked:
                    continue
                ours = hasattr(c, "keep_mask")
                if shape.dropout:
                    if not ours:
                        continue
                    c.prepare(shape, t)
                    oracle = Oracle(torch, shape, t, keep=c.keep_mask(shape))
                verdict = admit(torch, shape, t, oracle, c)
                if verdict:
                    print(f"checked {shape.label()} {shape.seqlen}: {c.name} errs {verdict[1]:.2f} times eager's",
                          flush=True)
                elif ours:
                    return False
    return True


def round_robin(torch, contenders, rounds, launches, warm_ms=300, clock=None):
    """Microseconds of every launch, by contender; every second round goes back the way of the one before, and others go
    another way: nobody has the same neighbours throughout. A contender may have `running`, a context manager around its
    launches that is not timed; `launches` of its own; `settles`, False if it needs no launch that is not timed; `ahead`,
    cycles that the GPU spins first, so that launches wait for it and not it for the host: else it is found out whether
    that is needed. clock: a Clock, which learns what clock each of them had."""
    times, host_us = {c.name: [] for c in contenders}, {c.name: math.inf for c in contenders}
    until = time.monotonic() + warm_ms / 1000
    while time.monotonic() < until or any(not hasattr(c, "ahead") and host_us[c.name] == math.inf for c in contenders):
        for c in contenders:
            with running(c):
                begin = time.perf_counter()
                c.launch()
                host_us[c.name] = min(host_us[c.name], (time.perf_counter() - begin) * 1e6)
        wait(torch, 60)
    ahead = {c.name: c.ahead if hasattr(c, "ahead") else head_start(torch, c, host_us[c.name], getattr(c, "launches", launches))
             for c in contenders}
    order = contenders
    for r in range(rounds):
        events, spans = [], []
        if r > 0:
            order = order[::-1] if r % 2 else random.Random(r).sample(contenders, len(contenders))
        for c in order:
            with running(c):
                if getattr(c, "settles", True):
                    c.launch()  # after another kernel: caches and clock are not this one's
                if ahead[c.name]:
                    torch.cuda._sleep(ahead[c.name])
                begin = clock and clock.read()
                for _ in range(getattr(c, "launches", launches)):
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record()
                    c.launch()
                    end.record()
                    events.append((c.name, start, end))
                spans.append((c.name, begin, clock and clock.read()))
        wait(torch, 60)
        for name, start, end in events:
            times[name].append(start.elapsed_time(end) * 1000)
        for span in spans if clock else ():
            clock.span(*span)
    return times


def spin(host_us, us=0.0, launches=1):
    """Cycles that the host needs for so many launches, and two events each; 0 where the GPU takes far longer than the host."""
    return int(HOST_CYCLES * (1.5 * host_us + 20) * launches) if us < min(5e3, 4 * host_us) else 0


def head_start(torch, contender, host_us, launches):
    """Cycles to spin before that many launches, each of which keeps the host busy for host_us."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with running(contender):
        torch.cuda._sleep(spin(host_us))
        start.record()
        contender.launch()
        end.record()
    wait(torch, 60)
    return spin(host_us, start.elapsed_time(end) * 1000, launches)


def running(contender):
    return getattr(contender, "running", contextlib.nullcontext)()


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def sm_clock():
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        text = subprocess.run(["nvidia-smi", "-i", device, "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20).stdout
        return int(text.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 0


# ---- rows ----

FIELDS = ["date", "gpu", "driver_torch", "case", "op", "dtype", "head_dim", "mask", "seqlen", "batch", "heads", "name",
          "median_us", "fastest_us", "tflops", "launches", "max_error", "error_over_eager", "sm_mhz"]


def stamp(torch):
    """What every row of a CSV file carries: when, where, with what."""
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "gpu": torch.cuda.get_device_name(0),
            "driver_torch": f"torch {torch.__version__}, cudnn {torch.backends.cudnn.version()}"}


def time_shape(torch, shape, contenders, args, tensors=None, bias=None):
    """Checks, times and prints one shape; returns CSV rows. With dropout nothing is compared, see
    check_small; nor are gradients of heads that share keys."""
    t = tensors or Tensors(torch, shape)
    unchecked = shape.dropout or (shape.group > 1 and shape.op == "bwd")
    oracle = None if unchecked else Oracle(torch, shape, t, bias)
    admitted, errors = [], {}
    for c in contenders:
        try:
            verdict = admit(torch, shape, t, oracle, c)
        except Fault as e:
            raise Fault(c.name, f"{shape.label()} {shape.seqlen}: {e}") from e
        if verdict:
            admitted.append(c)
            errors[c.name] = verdict
    times = round_robin(torch, admitted, args.rounds, args.launches)
    common = {**stamp(torch), "case": shape.label(), "op": shape.op, "dtype": shape.dtype, "head_dim": shape.head_dim,
              "mask": shape.mask, "seqlen": shape.seqlen, "batch": shape.batch, "heads": shape.heads,
              "sm_mhz": sm_clock()}
    rows = []
    for c in admitted:
        us = median(times[c.name])
        rows.append({**common, "name": c.name, "median_us": f"{us:.2f}", "fastest_us": f"{min(times[c.name]):.2f}",
                     "tflops": f"{shape.flops / us * 1e-6:.1f}", "launches": len(times[c.name]),
                     "max_error": f"{errors[c.name][0]:.3e}", "error_over_eager": f"{errors[c.name][1]:.3f}"})
    return rows


def append(path, rows, fields):
    """To a CSV file, which gets its header first."""
    fresh = not os.path.exists(path)
    with open(path, "a", newline="") as f:
        writer = csv.DictWriter(f, fields)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def record(path, rows):
    """Appends timings to a CSV file, and prints one line."""
    append(path, rows, FIELDS)
    if rows:
        print(f"{rows[0]['case']} {rows[0]['seqlen']}, us: "
              + ", ".join(f"{r['name']} {r['median_us']}" for r in rows), flush=True)


# ---- command line ----

def numbers(text):
    return [int(x) for x in text.split(",")]


def words(text):
    return [x for x in text.split(",") if x]


def arguments(description, dims="64,128", sizes="512,1024,2048,4096,8192,16384", masks="full,causal",
              peers="FLASH,CUDNN"):
    """The parser of what all scripts take; --quick stands for a few sizes and launches."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", default=os.path.join(root, "build", "libflashkiln.so"))
    parser.add_argument("--out", default=os.path.join(root, "build", "bench"), help="where CSV files go")
    parser.add_argument("--dims", default=dims, type=numbers)
    parser.add_argument("--masks", default=masks, type=words)
    parser.add_argument("--sizes", default=sizes, type=numbers)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16", "e4m3"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--launches", type=int, default=5, help="timed launches of a contender in a round")
    parser.add_argument("--peers", default=peers, type=words, help="SDPA backends")
    parser.add_argument("--templates", type=words, default=[],
                        help="folders of templates (docs/templates.md), each a contender of its own")
    parser.add_argument("--plan-for", help="another GPU's plan, through PTX")
    parser.add_argument("--cache-dir")
    parser.add_argument("--quick", action="store_true", help="two sizes, one head_dim, few launches: below 40 s")
    return parser


def run(parser, body):
    """Calls body(torch, library, context, args) on a GPU and returns its exit code; 77 where there is none."""
    from library import Library
    args = parser.parse_args()
    if args.quick:
        args.dims, args.sizes, args.rounds, args.launches = args.dims[-1:], [1024, 4096], 4, 3
    try:
        import torch
        import torch.nn.attention
    except ImportError:
        torch = None
    if not torch or not torch.cuda.is_available():
        print("skipped: this benchmark needs an NVIDIA GPU and PyTorch")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.zeros(1, device="cuda")  # makes the primary context current
    os.makedirs(args.out, exist_ok=True)
    library = Library(args.lib)
    try:
        return body(torch, library, library.context("cuda:0", args.plan_for, args.cache_dir), args)
    except Fault as e:
        print("FAULT " + ": ".join(map(str, e.args)), flush=True)
        os._exit(1)  # the context may hang on a kernel that never ends
