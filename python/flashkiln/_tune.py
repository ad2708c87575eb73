"""The tuner: plans of a problem timed on the device, and records that kernels made later go by (docs/tuning.md)."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p
from operator import index

from . import _explain
from ._capi import library
from .errors import BadArgument

RIGORS = {"measure": "FK_RIGOR_MEASURE", "patient": "FK_RIGOR_PATIENT"}
SIZES = ("batch", "num_heads_q", "num_heads_kv", "seqlen_q", "seqlen_k")
STATES = ("waiting", "timed", "rejected", "skipped")


def shape_of(shape):
    """None, seqlen, or (batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k); what is not said is filled in as planning does."""
    kind = library().header.types["fk_shape"]
    if shape is None:
        return kind()
    alone = not isinstance(shape, (tuple, list))
    try:
        sizes = [index(n) for n in ([shape] if alone else shape)]
    except TypeError:
        sizes = []
    if len(sizes) != (1 if alone else 5):
        raise BadArgument(f"shape is {shape!r}; it must be seqlen, or five ints: {', '.join(SIZES)}")
    least, most = int(alone), library().values["FK_MAX_SEQLEN"]  # of five, 0 stands for what planning fills in
    for name, n in zip(["seqlen"] if alone else SIZES, sizes):
        if not least <= n <= most:
            raise BadArgument(f"shape: {name} is {n}; it must be from {least} to {most}")
    return kind(0, 0, 0, *sizes * 2) if alone else kind(*sizes)


def told(trial):
    out = {**_explain.as_dict(trial), "state": STATES[trial.state], "plan": _explain.as_dict(trial.plan)}
    out["spelling"] = library().spell_plan(trial.plan)
    out["model_choice"] = trial.plan.chosen == library().values["FK_CHOSEN_BY_RULE"]
    return out


def tune(spelling, shape=None, *, device="cuda:0", plan_for=None, budget=60.0, rigor="measure", jobs=0, dry_run=False,
         resume=False, watch=None):
    """Finds the fastest plan of a problem, such as "fwd bf16 d128 causal", and appends a record of each timed plan to the
    cache directory. Returns a list of dicts, the fastest first: spelling of the plan, us, spread, error, state, reason, ...

    shape: seqlen, or (batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k); budget: seconds; rigor: "measure" or "patient";
    resume: nothing is timed, and the list is empty, if as rigorous a search of this shape has left records here; device:
    "cuda:N", or "emu", whose times say nothing of any GPU; watch(best_us, num_alive, elapsed_s): called a few times
    a second, and ends the search by returning True, or by an exception, which is raised here."""
    lib = library()
    if rigor not in RIGORS:
        raise ValueError(f"rigor is {rigor!r}: must be one of {', '.join(RIGORS)}")
    progress, raised = lib.header.types["fk_tune_progress"], []

    def call(_, at):
        try:
            p = progress.from_address(at)
            best = lib.header.types["fk_trial"].from_address(p.best).us if p.best else None
            return 1 if raised or watch(best, p.num_alive, p.elapsed_ms / 1e3) else 0
        except BaseException as error:  # Ctrl-C, too: ctypes would print it, and the search go on
            raised.append(error)
            return 1

    kind = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)
    seen = kind(call) if watch else kind()
    options = lib.make("fk_tune_options", shape=shape_of(shape), rigor=lib.values[RIGORS[rigor]], jobs=jobs,
                       budget_ms=budget * 1e3, dry_run=int(dry_run), resume=int(resume))
    problem, out, count = lib.problem(spelling), c_void_p(), c_size_t()
    context = lib.context(device, plan_for)
    try:
        lib("fk_tune", context, byref(problem), byref(options), seen, None, byref(out), byref(count))
        if raised:
            raise raised[0]
        trial = lib.header.types["fk_trial"]
        return [] if not count.value else [told(trial.from_buffer_copy(entry)) for entry in (trial * count.value).from_address(out.value)]
    finally:
        lib.lib.fk_free(out)
        lib.lib.fk_context_destroy(context)
