"""The parts of the suite, in the order in which they run. A module has run(session) and, for parts that warm, warm(session,
i, n), the i-th of n shares of what is compiled, by processes side by side before anything is timed; both are told the
part's name where a module has several parts."""
from typing import NamedTuple, Tuple


class Part(NamedTuple):
    module: str
    seconds: int  # that it may take
    options: Tuple[str, ...] = ()  # of the command line that change its results, besides --quick and --dry
    needs_gpu: bool = True
    warms: bool = False


PARTS = {
    "steps": Part("steps", 600, ("lengths",)),
    "tables": Part("sweeps", 900, ("lengths", "passes", "flex", "names"), warms=True),
    "batch": Part("sweeps", 240, ("flex", "names"), warms=True),
    "short": Part("sweeps", 240, ("flex", "names"), warms=True),
    "speedup": Part("sweeps", 600, ("lengths", "flex", "names"), warms=True),
    "losses": Part("losses", 400, ("steps", "dropout")),
    "arena": Part("arena", 900, ("seconds", "tasks")),
    "traffic": Part("traffic", 300),
    "blocks": Part("blocks", 240),
    "modelled": Part("modelled", 120, needs_gpu=False),
    "startup": Part("startup", 400),
}
