"""The clock that an SM really had while something ran: cycles beside time. A chip at its power limit changes it by the
second.

A kernel of one thread writes its SM's cycle counter. On an idle GPU its block lands on the same SM every time; where the
counts make no sense (another SM, no compiler), what nvidia-smi says is taken.
"""
from timing import sm_clock

SOURCE = r"""
extern "C" __global__ void read_clock(long long *out) { *out = clock64(); }
"""
PLAUSIBLE = range(100, 3500)  # MHz


class Clock:
    def __init__(self, torch, slots=4096):
        self.torch, self.readings, self.next = torch, {}, 0
        self.cycles = torch.zeros(slots, dtype=torch.int64, device="cuda")
        try:
            self.kernel = torch.cuda._compile_kernel(SOURCE, "read_clock")
            self.read()
            torch.cuda.synchronize()
        except Exception:  # an old PyTorch, no NVRTC: nvidia-smi it is
            self.kernel = None

    def read(self):
        """Enqueues a reading: (event, where its cycles will be)."""
        if self.kernel is None:
            return None
        slot, self.next = self.next, (self.next + 1) % len(self.cycles)
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        self.kernel((1, 1, 1), (1, 1, 1), (self.cycles[slot:slot + 1],))
        return event, slot

    def span(self, name, begin, end):
        """What ran between two readings, which have been waited for, is of this name."""
        if begin is None or end is None:
            return
        us = begin[0].elapsed_time(end[0]) * 1000
        mhz = (int(self.cycles[end[1]]) - int(self.cycles[begin[1]])) / us if us > 0 else 0
        if int(mhz) in PLAUSIBLE:
            self.readings.setdefault(name, []).append(mhz)

    def mhz(self, name):
        """The median of a name's spans, which are then forgotten."""
        found = sorted(self.readings.pop(name, []))
        return round(found[len(found) // 2]) if found else sm_clock()
