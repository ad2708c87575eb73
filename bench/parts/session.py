"""What the parts share: the device, rows of a CSV file, and Python calls timed side by side.

A call has a name and launch(); `running`, if it has one, is a context manager around its launches that is not timed. On the CPU
(--dry: tiny sizes, by the emulator) the same code runs, and times mean nothing.
"""
import contextlib
import csv
import gc
import hashlib
import os
import time

from clock import Clock
from timing import Fault, median, round_robin, sm_clock, stamp

MOST_S = 1.2  # that all launches of a comparison may take, where one round is shorter


class Call:
    """launch() as a name."""

    def __init__(self, name, launch, running=contextlib.nullcontext):
        self.name, self.launch, self.running = name, launch, running


class Session:
    def __init__(self, torch, args):
        self.torch, self.args = torch, args
        self.cuda = torch.cuda.is_available() and not args.dry
        self.device = "cuda" if self.cuda else "cpu"
        self.clock = Clock(torch) if self.cuda else None
        self.written = set()

    # ---- rows ----

    def stamp(self):
        if self.cuda:
            return stamp(self.torch)
        return {"date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "gpu": "none: the emulator, for tests",
                "driver_torch": f"torch {self.torch.__version__}"}

    def write(self, name, rows):
        """Appends to NAME.csv, which a run of a part begins anew, so that what a part has done outlives it."""
        if not rows:
            return
        path, fresh = os.path.join(self.args.out, name + ".csv"), name not in self.written
        self.written.add(name)
        rows = [{**self.stamp(), **row} for row in rows]
        with open(path, "w" if fresh else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            if fresh:
                writer.writeheader()
            writer.writerows(rows)

    def say(self, text):
        print(text, flush=True)

    # ---- time and memory ----

    def time(self, calls, seconds=MOST_S):
        """{name: {median_us, fastest_us, launches, mhz, kcycles}}, all calls round-robin. One round tells how many there
        will be, two at least."""
        if not self.cuda:
            return {c.name: self.figures([self.once(c)], 0) for c in calls}
        lap = sum(self.once(c) for c in calls) / 1e6
        lap = min(lap, sum(self.once(c) for c in calls) / 1e6)  # the first may have compiled
        launches = 1 if lap > 0.2 else 5
        rounds = max(2, min(10, int(seconds / (lap * (launches + 1)))))
        times = round_robin(self.torch, calls, rounds, launches, warm_ms=100 if lap < 0.2 else 0, clock=self.clock)
        return {name: self.figures(values, self.clock.mhz(name)) for name, values in times.items()}

    def once(self, call):
        """Microseconds of one launch, by the host."""
        with call.running():
            self.wait()
            begin = time.perf_counter()
            call.launch()
            self.wait()
        return (time.perf_counter() - begin) * 1e6

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    @staticmethod
    def figures(values, mhz):
        us = median(values)
        return {"median_us": f"{us:.2f}", "fastest_us": f"{min(values):.2f}", "launches": len(values), "mhz": mhz,
                "kcycles": f"{us * mhz / 1e3:.1f}"}

    def peak(self, call):
        """MiB in use at most during one launch, all that is alive counted; 0 without a GPU."""
        if not self.cuda:
            self.once(call)
            return 0
        self.wait()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()
        self.once(call)
        return round(self.torch.cuda.max_memory_allocated() / 2**20)

    def free(self):
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    @contextlib.contextmanager
    def surviving(self, case, name, missing):
        """Notes in missing[name] why something cannot be had (not supported, no memory), and goes on."""
        try:
            yield
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = "out of memory" if is_memory(self.torch, error) else str(error).strip().splitlines()[0][:160]
            self.say(f"  {case} {name}: {reason}")
            missing[name] = reason
            if "CUDA error" in reason:
                raise Fault(name, f"{case}: {reason}") from error
        self.free()


def is_memory(torch, error):
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def fingerprint(torch, part, module, args):
    """What a part's results depend on, so that one that is there need not be made again."""
    digest = hashlib.sha256()
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (args.lib, os.path.join(here, module + ".py"), os.path.join(here, "session.py")):
        with open(path, "rb") as file:
            digest.update(file.read())
    gpu = torch.cuda.get_device_name(0) if torch and torch.cuda.is_available() and not args.dry else "none"
    digest.update(repr((part, gpu, torch and torch.__version__, args.options())).encode())
    return digest.hexdigest()[:16]


__all__ = ["Call", "Session", "fingerprint", "sm_clock"]
