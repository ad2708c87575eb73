"""The parts of the suite, in the order in which they run. A module has run(session) and, for parts that warm, warm(session,
i, n), the i-th of n shares of what is compiled, by processes side by side before anything is timed; both are told the
part's name where a module has several parts. pieces(args, part), if there is one, divides a part among GPUs: [(name, share of
its time, options that differ)]."""
from typing import NamedTuple, Tuple


class Part(NamedTuple):
    module: str
    seconds: int  # that it takes on an H200
    quick: int    # in a quick run
    options: Tuple[str, ...] = ()  # of the command line that change its results, besides --quick and --dry
    needs_gpu: bool = True
    warms: bool = False
    alone: bool = False  # times the host


PARTS = {
    "steps": Part("steps", 130, 60, ("lengths",)),
    "tables": Part("sweeps", 432, 30, ("lengths", "passes", "flex", "names"), warms=True),
    "batch": Part("sweeps", 27, 10, ("flex", "names"), warms=True),
    "short": Part("sweeps", 11, 8, ("flex", "names"), warms=True),
    "speedup": Part("sweeps", 118, 15, ("lengths", "flex", "names"), warms=True),
    "losses": Part("losses", 89, 20, ("steps", "dropout")),
    "arena": Part("arena", 180, 45, ("seconds", "tasks")),
    "traffic": Part("traffic", 38, 20),
    "blocks": Part("blocks", 30, 15),
    "modelled": Part("modelled", 5, 5, needs_gpu=False),
    "startup": Part("startup", 93, 15, alone=True),
}
