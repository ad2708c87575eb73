"""What the parts share: the device, rows of a CSV file, and Python calls timed side by side.

A call has a name and launch(); `running`, if it has one, is a context manager around its launches that is not timed. On the CPU
(--dry: tiny sizes, by the emulator) the same code runs, and times mean nothing.
"""
import contextlib
import csv
import gc
import json
import math
import os
import time

from clock import Clock
from timing import Fault, median, round_robin, spin, stamp

MOST_S = 1.2  # that all launches of a comparison may take, where one round is shorter


class Call:
    """launch() as a name, and what round_robin is told of it."""

    def __init__(self, name, launch, running=contextlib.nullcontext):
        self.name, self.launch, self.running = name, launch, running
        self.launches, self.settles, self.ahead, self.runs = 1, True, 0, 0
        self.us = self.host_us = math.inf  # of one launch, as far as is known


class Session:
    def __init__(self, torch, args):
        self.torch, self.args = torch, args
        self.cuda = torch.cuda.is_available() and not args.dry
        self.device = "cuda" if self.cuda else "cpu"
        self.clock = Clock(torch) if self.cuda else None
        self.written, self.begin = set(), time.monotonic()
        self.until, self.cut = getattr(args, "until", math.inf), False
        self.notes, self.mark, self.done, self.longest = None, None, 0, 0.0

    def units(self, units, label=str):
        """Those that are not done, and that there is time for: one begins while the longest so far would still fit. Says what is
        left out."""
        units = list(units)
        for i, unit in enumerate(units[self.done:], self.done):
            begin = time.monotonic()
            if self.longest and begin + self.longest > self.until:
                self.cut = True
                self.say("  no time, left out: " + ", ".join(label(x) for x in units[i:]))
                return
            yield unit
            self.longest = max(self.longest, time.monotonic() - begin)
            self.note(i + 1)

    # ---- going on where a process stopped ----

    def resume(self, notes, mark):
        """A file for notes of what is done. If there are some, of the same mark, it is not done again: of the CSV files what has
        come since is dropped."""
        self.notes, self.mark = notes, mark
        os.makedirs(os.path.dirname(notes), exist_ok=True)
        if os.path.exists(notes):
            with open(notes, encoding="utf-8") as file:
                found = json.load(file)
            if found["mark"] == mark:
                self.done, self.longest, self.written = found["done"], found["longest"], set(found["sizes"])
                for name, size in found["sizes"].items():
                    os.truncate(self.csv(name), size)

    def note(self, done):
        if self.notes:
            sizes = {name: os.path.getsize(self.csv(name)) for name in self.written}
            with open(self.notes, "w", encoding="utf-8") as file:
                json.dump({"mark": self.mark, "done": done, "longest": self.longest, "sizes": sizes}, file)

    def csv(self, name):
        return os.path.join(self.args.out, name + ".csv")

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
        path, fresh = self.csv(name), name not in self.written
        rows = [{**self.stamp(), **row} for row in rows]
        self.written.add(name)
        fields = list(max(rows, key=len))  # rows of what did not run have fewer
        if not fresh:
            with open(path, newline="", encoding="utf-8") as file:
                fields = next(csv.reader(file))
        with open(path, "w" if fresh else "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fields, restval="")
            if fresh:
                writer.writeheader()
            writer.writerows(rows)

    @staticmethod
    def rows(common, times, more, missing):
        """Rows of what was timed, with more[name] each, and of what was not, with the reason for it in `note`."""
        rows = [{**common, "name": name, **figures, **more[name], "note": ""} for name, figures in times.items()]
        blank = dict.fromkeys(rows[0], "") if rows else {}
        return rows + [{**blank, **common, "name": name, "note": why} for name, why in missing.items() if name not in times]

    def say(self, text):
        print(f"{time.monotonic() - self.begin:6.1f} s  {text}", flush=True)

    # ---- time and memory ----

    def time(self, calls, seconds=MOST_S):
        """{name: figures}, all calls round-robin, each of which has run before. What that took tells how many rounds there will
        be: one where it is many seconds, in which quick calls have several launches. median_us is the GPU's time: where a call
        would keep it waiting, launches are queued behind a spinning kernel. host_us is what the host takes to enqueue one: a
        program that does nothing else is no faster than the larger."""
        if not self.cuda:
            return {c.name: self.figures([self.once(c)], 0, c.host_us) for c in calls}
        lap = 0.0
        for call in calls:
            while call.runs < (4 if call.us < 5e3 else 2 if call.us < 3e5 else 1):  # the first may have compiled
                self.once(call)
            us = call.us
            call.launches = max(1, min(5, int(20e3 / us)))
            call.settles = us < 20e3
            call.ahead = spin(call.host_us, us, call.launches)
            lap += us * (call.launches + call.settles) / 1e6
        rounds = max(4 if lap < 1.5 else 2 if lap < 4 else 1, min(10, int(seconds / max(lap, 1e-3))))
        if rounds == 1:
            for call in calls:
                call.launches = max(1, min(5, int(1e6 / call.us)))
        times = round_robin(self.torch, calls, rounds, 1, warm_ms=0, clock=self.clock)
        hosts = {c.name: c.host_us for c in calls}
        return {name: self.figures(values, self.clock.mhz(name), hosts[name]) for name, values in times.items()}

    def once(self, call):
        """Microseconds of one launch, from the call to the result. Learns how many of them the host took to enqueue it."""
        with call.running():
            self.wait()
            begin = time.perf_counter()
            call.launch()
            call.host_us = min(call.host_us, (time.perf_counter() - begin) * 1e6)
            self.wait()
        us = (time.perf_counter() - begin) * 1e6
        call.us, call.runs = min(call.us, us), call.runs + 1
        return us

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    @staticmethod
    def figures(values, mhz, host):
        us = median(values)
        return {"median_us": f"{us:.2f}", "fastest_us": f"{min(values):.2f}", "launches": len(values), "mhz": mhz,
                "kcycles": f"{us * mhz / 1e3:.1f}", "host_us": f"{host:.1f}"}

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
        """A fifth of a second, once a compiler has been imported: between cases, and before memory is looked at."""
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
        if name in missing:  # the error's frames are gone by now
            self.free()


def is_memory(torch, error):
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
