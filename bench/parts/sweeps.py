"""Attention alone over sizes, in fp16: `tables`, the setting of the paper's benchmark tables (batch 16, 8 heads of 64);
`batch`; `short`, its comparison with kernels for short sequences (batch 64, 16 heads); `speedup`, its figures by length (12
heads; batch 8 of head dim 64, 16 of 128). Time of forward, backward and both; memory of both, once.

Before it is timed, a forward pass without dropout is compared with eager's where that fits in memory: column max_diff.
"""
import itertools

from parts.attention import ALL, COMPILED, DENSE, Butterfly, Case, Eager, Flex, Inputs
from parts.session import Call

PASSES = ("fwd", "bwd", "both")
CHECKED = 2048  # tokens up to which outputs are compared
LONG = 32768     # tokens from which on a launch takes seconds, so that none is repeated without need
ALLOWED = {"fp16": 1e-2, "bf16": 5e-2, "fp32": 1e-4}
TINY = [Case(64, batch=1, heads=2, dim=16, dtype="fp32", dropout=0.1, padding=True),
        Case(80, batch=2, heads=1, dim=16, dtype="fp32", causal=True)]


def table_lengths(args):
    if args.dry:
        return [case.seqlen for case in TINY]
    return [512, 4096] if args.quick else [128 << i for i in range(10)]


def pieces(args, part):
    """Of the tables: as many as there are GPUs, of about the same time each."""
    if part != "tables":
        return []
    out = [[0, []] for _ in args.devices]
    for length in sorted(args.lengths or table_lengths(args), reverse=True):
        least = min(out)
        least[0] += 1 + 7 * (length / 65536) ** 2  # below 8,192 tokens the GPU is not what takes the time
        least[1].append(length)
    whole = sum(seconds for seconds, _ in out)
    return [(",".join(map(str, sorted(some))), seconds / whole, {"lengths": sorted(some)}) for seconds, some in out if some]


def cases(session, part):
    """(cases, who, passes)"""
    args = session.args
    if not session.cuda:
        return [case for case in TINY if not args.lengths or case.seqlen in args.lengths], ALL, ("fwd", "both")
    if part == "tables":
        lengths = args.lengths or table_lengths(args)
        combinations = [(0.0, False), (0.1, True)] if args.quick else list(itertools.product((0.0, 0.1), (False, True)))
        passes = [x for x in args.passes if not args.quick or x != "bwd"]
        return [Case(n, dropout=p, padding=pad) for n in lengths for p, pad in combinations], ALL, passes
    if part == "batch":
        return [Case(1024, batch=b, dropout=p, padding=pad) for b in ((64,) if args.quick else (16, 32, 64))
                for p, pad in ([(0.0, False)] if args.quick else [(0.0, False), (0.1, True)])], ALL, PASSES
    if part == "short":
        return [Case(n, batch=64, heads=16, dropout=0.1, padding=True) for n in ((512,) if args.quick else (128, 256, 512))], ALL, PASSES
    lengths = args.lengths or ([1024, 4096] if args.quick else [512, 1024, 2048, 4096])
    kinds = [{"causal": True}, {}, {"dropout": 0.1}, {"padding": True}, {"dropout": 0.1, "padding": True}]
    return [Case(n, batch=b, heads=12, dim=d, **kind) for b, d in ((8, 64), (16, 128))[:1 if args.quick else 2]
            for kind in kinds[:1 if args.quick else 5] for n in lengths], DENSE, ("fwd", "both")


def wanted(session, who):
    args = session.args
    return [kind for kind in who if (args.flex or kind is not Flex) and (not args.names or kind.name in args.names)]


def jobs(session, part):
    found, who, _ = cases(session, part)
    return [(case, kind) for case in found for kind in wanted(session, who) if kind in COMPILED]


def warm(session, part, share, shares):
    """Compiles: this library's kernels once for all lengths, FlexAttention's for each."""
    seen, mine = set(), []
    for case, kind in jobs(session, part):
        key = (kind, case if kind is Flex else (case.dim, case.dropout, case.padding, case.causal))
        if key not in seen:
            seen.add(key)
            mine.append((case, kind))
    for case, kind in mine[share::shares]:
        with session.surviving(case.label(), kind.name, {}):
            attention = kind(session, case, Inputs(session, case))
            attention.launch("fwd")()
            attention.launch("both")()
            session.wait()


def difference(session, attention, case, references):
    """How far its output is from eager's, if eager can be had."""
    if case.dropout or case.seqlen > CHECKED or isinstance(attention, Eager):
        return ""
    torch, sparse = session.torch, isinstance(attention, Butterfly)
    with torch.no_grad():
        if sparse not in references:
            references[sparse] = Eager(session, case, attention.inputs, butterfly=sparse).attend(*attention.inputs.leaves)
        found = (attention.attend(*attention.inputs.leaves) - references[sparse]).abs().max().item()
    if not found <= ALLOWED[case.dtype]:
        raise RuntimeError(f"WRONG: {found:.2e} from eager's output")
    return f"{found:.2e}"


def run_case(session, part, case, who, passes):
    inputs, there, ready = Inputs(session, case), [], []
    missing, references, more, both = {}, {}, {}, {}
    for kind in wanted(session, who):
        with session.surviving(case.label(), kind.name, missing):
            attention = kind(session, case, inputs)
            more[kind.name] = {"peak_mib": 0, "max_diff": difference(session, attention, case, references)}
            if case.seqlen < LONG:
                session.once(Call(kind.name, attention.launch("both")))  # compiles
            there.append(attention)
    references.clear()
    session.free()
    for attention in there:
        with session.surviving(case.label(), attention.name, missing):
            both[attention.name] = Call(attention.name, attention.launch("both"))
            more[attention.name]["peak_mib"] = session.peak(both[attention.name])
            ready.append(attention)
    for which in passes:
        calls = []
        for attention in ready:
            with session.surviving(f"{case.label()} {which}", attention.name, missing):
                call = both[attention.name] if which == "both" else Call(attention.name, attention.launch(which))
                if not call.runs:
                    session.once(call)
                calls.append(call)
        times = session.time(calls, 0.4 if session.args.quick else 0.6)
        calls, call = [], None  # graphs of the backward pass
        rows = session.rows({**case.row(), "pass": which}, times, more, missing)
        session.write(part, rows)
        session.say(f"{case.label()} {which}, ms: " + ", ".join(
            f"{r['name']} {float(r['median_us']) / 1e3:.3f}" for r in rows if not r["note"]))


def run(session, part):
    found, who, passes = cases(session, part)
    for case in session.units(found, Case.label):
        run_case(session, part, case, who, passes)
        session.free()
