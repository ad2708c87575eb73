"""Jobs in processes of their own, on one GPU or several, longest first, within a budget of time: each may take what those behind it
are not expected to need, and is told when that ends, so that it can stop between two cases. One that does not is ended. When all have
had their turn and time is left, those that stopped go on."""
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time

CUT = 3        # exit code of a job that left something out for want of time
GRACE_S = 15   # beyond its share, for the case that it is at
LEAST_S = 10   # left, for a job that goes on: a process takes some of it to begin


class Job:
    """seconds: what it is expected to take, and it has taken so far. alone: nothing runs beside it. work(until) is done in a process
    of its own, and goes on where it stopped if it is done once more."""

    def __init__(self, name, part, seconds, work, alone=False):
        self.name, self.part, self.seconds, self.work, self.alone = name, part, seconds, work, alone
        self.state, self.took = "", 0.0

    @property
    def failed(self):
        return self.state not in ("done", "cut short")


def fork(output, device, work, *given):
    """A process that does `work` on a device (of CUDA_VISIBLE_DEVICES; None: those of this process), its output and errors
    going to the file `output`."""
    sys.stdout.flush()

    def begin():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)  # to be ended with what it starts, which has the file open, too
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        work(*given)
    process = multiprocessing.get_context("fork").Process(target=begin)
    process.start()
    return process


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


class Running:
    """A job's process, and the lines that it has written so far."""

    def __init__(self, job, device, until):
        self.job, self.device, self.begin, self.until, self.rest = job, device, time.monotonic(), until, b""
        self.out, ours = os.pipe()
        with os.fdopen(ours, "wb") as output:
            self.process = fork(output, device, job.work, until)

    def lines(self):
        """What has come, as whole lines; None at the end."""
        more = os.read(self.out, 1 << 16)
        *whole, self.rest = (self.rest + more).split(b"\n")
        if not more and self.rest:
            whole, self.rest = [*whole, self.rest], b""
        return [line.decode("utf-8", "replace") for line in whole] if more or whole else None

    def needs(self, now):
        """Seconds that it is expected still to take."""
        return max(0.0, min(self.until - now, self.job.seconds - self.job.took - (now - self.begin)))

    def over(self):
        return time.monotonic() > self.until + GRACE_S

    def finish(self):
        """Ends what may be left of it, and says how it went."""
        late = self.over()
        if not late:
            self.process.join(GRACE_S)
        end(self.process)
        os.close(self.out)
        code, self.job.took = self.process.exitcode, self.job.took + time.monotonic() - self.begin
        self.job.state = ("done" if code == 0 else "cut short" if code == CUT else "out of time" if late else f"exit code {code}")


def share(left, lanes, seconds, alone, waiting, running):
    """Seconds for a job of so many expected ones, of `left` in so many lanes: what those behind it do not need, or its part of all
    if that is too little. waiting: [(seconds, alone)] of those behind it; running: seconds that those beside it are still to take."""
    width = lanes if alone else 1
    mine, behind = seconds * width, sum(s * (lanes if a else 1) for s, a in waiting)
    there = lanes * left - sum(running)
    most = max(there - behind, there * mine / (mine + behind) if mine else 0)
    return max(0.0, min(left, most / width))


def run(jobs, devices, until, show, begin):
    """Runs jobs, one at a time on each of the devices; those that must be alone come last, then once more those that were cut
    short. show(line) prints, begin(job) is told what begins."""
    waiting = sorted(jobs, key=lambda j: (j.alone, -j.seconds)) if len(devices) > 1 else list(jobs)
    running = []
    try:
        while waiting or running:
            free = [d for d in devices if d not in [r.device for r in running]]
            if free and waiting and not (running and (waiting[0].alone or running[0].job.alone)):
                job, now = waiting.pop(0), time.monotonic()
                if job.took and until - now < LEAST_S:
                    continue
                seconds = share(until - now, len(devices), max(0, job.seconds - job.took), job.alone,
                                [(max(0, j.seconds - j.took), j.alone) for j in waiting], [r.needs(now) for r in running])
                begin(job)
                running.append(Running(job, free[0], now + seconds))
                continue
            heard = multiprocessing.connection.wait([r.out for r in running], 1)
            for r in list(running):
                lines = r.lines() if r.out in heard else []
                for line in lines or ():
                    show(line if len(devices) == 1 else f"{r.job.name}: {line}")
                if lines is None or r.over():
                    running.remove(r)
                    again = r.job.took
                    r.finish()
                    show(f"  {r.job.name}: {r.job.state} after {r.job.took:.0f} s")
                    if r.job.state == "cut short" and not again:
                        waiting.append(r.job)
    finally:
        for r in running:
            end(r.process)
