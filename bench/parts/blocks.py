"""Figure 2, middle and right: forward time and predicted HBM bytes by the rows of a tile, each size in a kernel of its own;
forward and backward time by the share of blocks that are shown. Results: blocks.csv (part `blocks`), sparsity.csv
"""
import ctypes

from parts.attention import Case, FlashKiln, Inputs
from parts.session import Call

KEYS = 8192  # of the blocks at random
DENSITIES = (5, 10, 20, 40, 60, 80, 100)
ENOUGH = 30  # launches of a density; fewer are noted in its row, and drawn hollow


def contexts(session, library, case, spelling):
    """{(family, rows): (plan, context that takes it)}: of the plans with so many rows the one that the model ranks first."""
    gpu = "cuda:0" if session.cuda else "a100"
    out = {}
    for plan in library.plans(library.problem(spelling), gpu, library.shape(case.batch, case.heads, case.seqlen)):
        key = plan.family.decode(), plan.block_m
        if not plan.legal or key in out or (not session.cuda and len(out) == 2):
            continue
        line = ctypes.create_string_buffer(library.values["FK_MAX_PLAN"])
        library("fk_plan_spell", ctypes.byref(plan), line, ctypes.c_size_t(len(line)))
        options = library.make("fk_context_options", device=b"cuda:0" if session.cuda else b"emu")
        options.planning.plan = line.value
        context = ctypes.c_void_p()
        library("fk_context_create", ctypes.byref(options), ctypes.byref(context))
        out[key] = plan, context
    return out


def tiles(session):
    """By the C interface, which takes a plan."""
    if not session.cuda:
        return  # contenders.py launches on a GPU alone
    from contenders import Kernel
    from library import Library
    import argparse
    from problems import Shape, Tensors
    library = Library(session.args.lib)
    case = Case(4096, batch=4, heads=16)
    session.torch.zeros(1, device="cuda")
    shape = Shape(session.torch, argparse.Namespace(dtype=case.dtype, tokens=0, hidden=0), case.seqlen, case.dim, "full",
                  batch=case.batch, heads=case.heads)
    tensors, calls, plans, missing = Tensors(session.torch, shape), [], {}, {}
    for (family, rows), (plan, context) in contexts(session, library, case, shape.spelling()).items():
        name = f"{family} {rows}x{plan.block_n}"
        with session.surviving(shape.label(), name, missing):
            kernel = Kernel(session.torch, library, context, name)
            kernel.prepare(shape, tensors)
            if kernel.launch.info.image.spill_bytes > 64:
                raise RuntimeError(f"spills {kernel.launch.info.image.spill_bytes} bytes")
            calls.append(Call(name, kernel.launch))
            plans[name] = plan
    times = session.time(calls)
    session.write("blocks", [{**case.row(), "pass": "fwd", "name": name, "block_m": plans[name].block_m,
                              "block_n": plans[name].block_n, "family": plans[name].family.decode(),
                              "hbm_mb": f"{plans[name].hbm_bytes / 1e6:.1f}",
                              "model_us": f"{plans[name].model_us:.1f}", **figures}
                             for name, figures in times.items()])
    for name, figures in times.items():
        session.say(f"  {name}: {figures['median_us']} us, {plans[name].hbm_bytes / 1e6:.0f} MB predicted")


class Blocks(FlashKiln):
    """Blocks of 128 x 128 at random, and the diagonal's."""

    def __init__(self, session, case, inputs, percent):
        super().__init__(session, case, inputs)
        self.name = f"{percent}%"
        if percent < 100:
            self.options["sparsity"] = f'blocks(128)="i == j || hash(hash(1, i), j) % 100 < {percent}"'


def sparsity(session):
    case = Case(KEYS, batch=2, heads=16) if session.cuda else Case(64, batch=1, heads=1, dim=16, dtype="fp32")
    inputs = Inputs(session, case)
    densities = DENSITIES if session.cuda else (50, 100)
    for which in ("fwd",) if session.args.quick else ("fwd", "both"):
        found = {p: Blocks(session, case, inputs, p) for p in densities}
        for x in found.values():
            session.once(Call(x.name, x.launch(which)))  # compiles, which is not what tells how many launches there will be
        calls = [Call(x.name, x.launch(which)) for x in found.values()]
        times = session.time(calls)
        session.write("sparsity", [{**case.row(), "pass": which, "percent": p, "shown": f"{shown(p, case.seqlen):.5f}",
                                    **times[x.name], "note": few(times[x.name])} for p, x in found.items()])
        session.say(f"{case.label()} {which}, us: " + ", ".join(f"{n} {t['median_us']}" for n, t in times.items()))


def few(figures):
    return f"fewer than {ENOUGH} launches" if figures["launches"] < ENOUGH else ""


def shown(percent, seqlen):
    """The share of blocks that are shown, counted."""
    if percent == 100:
        return 1.0
    import torch
    from sparse import hashed
    count = -(-seqlen // 128)
    i, j = torch.arange(count)[:, None], torch.arange(count)[None, :]
    return ((i == j) | (hashed(hashed(torch.ones_like(i), i), j) % 100 < percent)).float().mean().item()


def run(session):
    for figure in session.units((tiles, sparsity), lambda figure: figure.__name__):
        figure(session)
