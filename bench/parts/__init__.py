"""The parts of the suite, in the order in which they run: {name: (module, seconds that it may take)}. A module has run(session)
and may have warm(session, i, n), the i-th of n shares of what is compiled, for processes that run side by side before anything
is timed."""
PARTS = {
    "steps": ("steps", 600),
    "tables": ("sweeps", 900),
    "batch": ("sweeps", 240),
    "short": ("sweeps", 240),
    "speedup": ("sweeps", 600),
    "losses": ("losses", 400),
    "arena": ("arena", 900),
    "traffic": ("traffic", 300),
    "blocks": ("blocks", 240),
    "modelled": ("modelled", 120),
    "startup": ("startup", 400),
}
NO_GPU = ("modelled",)  # what is worth running without one
