"""What the benchmarks share: shapes, inputs, the float64 oracle, SDPA as a peer, round-robin timing, tables.

The chip is power-bound: whatever runs first looks faster. So all contenders of one shape run round-robin, in
alternating order, and the median over all rounds counts; read figures as ratios within one table.
Before it is timed, each contender's output (poisoned with NaN first) is compared with float64.

A contender has a name, writes_lse, prepare(shape, tensors) and launch(); if it writes no lse it has result() too.
"""
import csv
import datetime
import math
import os
import subprocess
import time


class Fault(Exception):
    """The CUDA context is of no more use. args: (text) or (contender, text)."""


MASKS = {  # name: what query rows q see of keys k (tensors), or None for everything
    "full": None,
    "causal": lambda q, k: k <= q,
    "window": lambda q, k: (k <= q) & (k >= q - 1024),
    "dilated": lambda q, k: (k <= q) & (q - k < 2048) & ((q - k) % 4 == 0),
    "blocks": lambda q, k: (k <= q) & ((q // 128 ^ k // 128) & 3 == 0),
}


class Shape:
    """One problem, contiguous [batch, seqlen, heads, dim]. FLOPs count the share of pairs that the mask lets see."""
    def __init__(self, torch, tokens, hidden, seqlen, head_dim, mask, dtype):
        self.seqlen, self.head_dim, self.mask, self.dtype = seqlen, head_dim, mask, dtype
        self.batch, self.heads = max(1, tokens // seqlen), max(1, hidden // head_dim)
        self.share = {"full": 1.0, "causal": 0.5}.get(mask) or self.count(torch) / seqlen ** 2
        self.flops = 4 * self.batch * self.heads * seqlen * seqlen * head_dim * self.share

    def count(self, torch):
        keys = torch.arange(self.seqlen, device="cuda")[None, :]
        rows = torch.arange(self.seqlen, device="cuda")[:, None].split(1024)
        return sum(int(MASKS[self.mask](r, keys).sum()) for r in rows)

    def label(self):
        return f"{self.dtype} d{self.head_dim} {self.mask}"


class Tensors:
    def __init__(self, torch, shape, seed=1):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[shape.dtype]
        generator = torch.Generator("cuda").manual_seed(seed)
        size = (shape.batch, shape.seqlen, shape.heads, shape.head_dim)
        self.q, self.k, self.v = (torch.randn(size, generator=generator, device="cuda", dtype=torch.float32).to(dtype)
                                  for _ in range(3))
        self.o = torch.empty_like(self.q)
        self.lse = torch.empty((shape.batch, shape.heads, shape.seqlen), device="cuda", dtype=torch.float32)


def reference(torch, shape, t, b, h, exact):
    """O and lse of one head: float64, or as an eager framework does it in the tensors' dtype."""
    q, k, v = (x[b, :, h] for x in (t.q, t.k, t.v))
    kind = torch.float64 if exact else q.dtype
    o, lse, step = [], [], 2048
    for r in range(0, shape.seqlen, step):
        s = (q[r:r + step].to(kind) @ k.to(kind).T) * (1 / math.sqrt(shape.head_dim))
        if MASKS[shape.mask]:
            rows = torch.arange(r, r + s.shape[0], device="cuda")[:, None]
            s = s.masked_fill(~MASKS[shape.mask](rows, torch.arange(shape.seqlen, device="cuda")[None, :]), -math.inf)
        p = torch.softmax(s, -1, dtype=torch.float64 if exact else torch.float32)
        o.append((p.to(kind) @ v.to(kind)).double())
        lse.append(torch.logsumexp(s.double(), -1))
    return torch.cat(o), torch.cat(lse)


class Oracle:
    """Errors against float64 on the first and last head; the rest is only checked for NaN."""
    def __init__(self, torch, shape, t):
        self.torch, self.t = torch, t
        self.heads = sorted({(0, 0), (shape.batch - 1, shape.heads - 1)})
        self.exact = [reference(torch, shape, t, b, h, True) for b, h in self.heads]
        eager = [reference(torch, shape, t, b, h, False)[0] for b, h in self.heads]
        self.eager = max((e - x[0]).abs().max().item() for e, x in zip(eager, self.exact))

    def check(self, o, lse):
        """Returns (largest error, its ratio to eager's, a complaint or None)."""
        error = max((o[b, :, h].double() - x[0]).abs().max().item() for (b, h), x in zip(self.heads, self.exact))
        if o.isnan().any().item():
            return math.nan, math.nan, f"{int(o.isnan().sum())} NaN in o"
        if error > 2 * self.eager:
            return error, error / self.eager, f"error {error:.2e} against {self.eager:.2e} of eager"
        if lse is not None:
            off = max((lse[b, h].double() - x[1]).abs().max().item() for (b, h), x in zip(self.heads, self.exact))
            if not off < 1e-3:
                return error, error / self.eager, f"lse off by {off:.2e}"
        return error, error / self.eager, None


class Sdpa:
    """scaled_dot_product_attention with one backend, on views of the same memory."""
    def __init__(self, torch, backend):
        self.torch, self.name, self.writes_lse = torch, "sdpa-" + backend.lower(), False
        self.backend = getattr(torch.nn.attention.SDPBackend, backend + "_ATTENTION")

    def prepare(self, shape, t):
        if shape.mask not in ("full", "causal"):
            raise RuntimeError("no backend has this mask")
        self.shape = shape
        self.views = [x.transpose(1, 2) for x in (t.q, t.k, t.v)]

    def launch(self):
        causal = self.shape.mask == "causal"
        with self.torch.nn.attention.sdpa_kernel(self.backend):
            self.o = self.torch.nn.functional.scaled_dot_product_attention(*self.views, is_causal=causal)

    def result(self):
        return self.o.transpose(1, 2)


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
    t.o.fill_(math.nan)
    t.lse.fill_(math.nan)
    try:
        contender.prepare(shape, t)
        contender.launch()
    except RuntimeError as e:  # SDPA refuses the shape
        print(f"  {contender.name}: not available: {str(e).splitlines()[0]}")
        return None
    wait(torch, 20)
    o = t.o if contender.writes_lse else contender.result()
    error, ratio, complaint = oracle.check(o, t.lse if contender.writes_lse else None)
    if complaint:
        print(f"  {contender.name}: WRONG: {complaint}")
        return None
    return error, ratio


def round_robin(torch, contenders, rounds, launches, warm_ms=300):
    """Microseconds of every launch, by contender; each round goes the other way round."""
    times = {c.name: [] for c in contenders}
    until = time.monotonic() + warm_ms / 1000
    while time.monotonic() < until:
        for c in contenders:
            c.launch()
        wait(torch, 60)
    for r in range(rounds):
        events = []
        for c in contenders[::1 if r % 2 == 0 else -1]:
            c.launch()  # after another kernel: caches and clock are not this one's
            for _ in range(launches):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                c.launch()
                end.record()
                events.append((c.name, start, end))
        wait(torch, 60)
        for name, start, end in events:
            times[name].append(start.elapsed_time(end) * 1000)
    return times


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def sm_clock():
    try:
        text = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, timeout=20).stdout
        return int(text.split()[0])
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 0


FIELDS = ["date", "gpu", "driver_torch", "dtype", "head_dim", "mask", "seqlen", "batch", "heads", "name", "median_us",
          "fastest_us", "tflops", "launches", "max_error", "error_over_eager", "sm_mhz"]


def time_shape(torch, shape, contenders, args):
    """Checks, times and prints one shape; returns CSV rows."""
    t = Tensors(torch, shape)
    oracle = Oracle(torch, shape, t)
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
    clock = sm_clock()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    gpu, versions = torch.cuda.get_device_name(0), f"torch {torch.__version__}, cudnn {torch.backends.cudnn.version()}"
    rows = []
    for c in admitted:
        us = median(times[c.name])
        rows.append(dict(zip(FIELDS, [date, gpu, versions, shape.dtype, shape.head_dim, shape.mask, shape.seqlen,
                                      shape.batch, shape.heads, c.name, f"{us:.2f}", f"{min(times[c.name]):.2f}",
                                      f"{shape.flops / us * 1e-6:.1f}", len(times[c.name]),
                                      f"{errors[c.name][0]:.3e}", f"{errors[c.name][1]:.3f}", clock])))
    return rows


def record(path, rows):
    """Appends to a CSV file, and prints one line."""
    fresh = not os.path.exists(path)
    with open(path, "a", newline="") as f:
        writer = csv.DictWriter(f, FIELDS)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
    if rows:
        first = rows[0]
        print(f"{first['dtype']} d{first['head_dim']} {first['mask']} {first['seqlen']}, us: "
              + ", ".join(f"{r['name']} {r['median_us']}" for r in rows), flush=True)


def print_tables(rows):
    """For each (dtype, head_dim, mask): TFLOP/s by length, and the ratio to SDPA FLASH and CUDNN (higher: faster)."""
    groups = {}
    for r in rows:
        groups.setdefault((r["dtype"], int(r["head_dim"]), r["mask"]), []).append(r)
    for (dtype, dim, mask), group in sorted(groups.items()):
        sizes = sorted({int(r["seqlen"]) for r in group})
        us = {(r["name"], int(r["seqlen"])): float(r["median_us"]) for r in group}
        flops = {(r["name"], int(r["seqlen"])): float(r["tflops"]) for r in group}
        print(f"\n{dtype} d{dim} {mask}: TFLOP/s (ratio to sdpa-flash, to sdpa-cudnn)")
        print(f"  {'':32s}" + "".join(f"{n:>20d}" for n in sizes) + f"{'geomean':>16s}")
        for name in dict.fromkeys(r["name"] for r in group):
            cells, ratios = [], {"sdpa-flash": [], "sdpa-cudnn": []}
            for n in sizes:
                if (name, n) not in us:
                    cells.append(f"{'-':>20s}")
                    continue
                shown = []
                for peer, seen in ratios.items():
                    if (peer, n) in us:
                        seen.append(us[peer, n] / us[name, n])
                        shown.append(f"{seen[-1]:.2f}")
                    else:
                        shown.append("-")
                cells.append(f"{flops[name, n]:8.0f} ({' '.join(shown)})".rjust(20))
            means = " ".join(f"{geomean(r):.3f}" if r else "-" for r in ratios.values())
            print(f"  {name:32s}" + "".join(cells) + f"{means:>16s}")
