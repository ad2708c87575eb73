"""What runs and why: the spelling of a call, its plan, its kernel, the tiles it skips, and what it does besides."""
from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from . import _heads, _problem, _runtime
from ._arguments import EXTRAS, ask, is_array, is_tensor, names_of, refuse_unknown
from ._capi import Header, find_header, library
from .errors import NoCompiler

__version__ = ".".join(str(Header(find_header()).values["FK_VERSION_" + part]) for part in ("MAJOR", "MINOR", "PATCH"))

LOSERS = 3  # plans that __str__ shows, of either kind
FLOORS = {"tensor": "tensor_us", "exp": "exp_us", "issue": "issue_us", "smem": "smem_us", "hbm": "hbm_us", "l2": "l2_us"}


class Device(NamedTuple):
    """A GPU: of this machine ("cuda:0"), or of the built-in table ("h200"), for which kernels can be planned and compiled."""
    key: str
    name: str
    sm: int
    num_sms: int
    smem_per_block: int
    l2_bytes: int
    hbm_gbps: float
    clock_ghz: float


def devices() -> List[Device]:
    """The GPUs of this machine, then those of the built-in table.

    >>> [device.key for device in devices() if device.sm == 75]
    ['t4', 'rtx2080ti']"""
    lib, out = library(), []
    for ordinal in range(lib.lib.fk_device_present_count()):
        out.append(device_of(_heads.device_info(f"cuda:{ordinal}"), f"cuda:{ordinal}"))
    lib.lib.fk_device_table_size.restype = c_size_t
    for index in range(lib.lib.fk_device_table_size()):
        info = lib.make("fk_device_info")
        lib("fk_device_table", c_size_t(index), byref(info))
        out.append(device_of(info, info.key.decode()))
    return out


def device_of(info, key):
    return Device(key, info.name.decode(), *(getattr(info, name) for name in Device._fields[2:]))


def spell(*what: Any, backward: bool = False, grad: Sequence[str] = (), deterministic: bool = False, **options: Any) -> str:
    """The problem, one line of text, that attention(q, k, v, **options) is; or a spelling, canonically. backward: that of
    its gradients, with those of the arrays named in `grad`.

    >>> spell("fwd bf16 d128 window(1073741823, 0)")
    'fwd bf16 d128 window(1073741823,0)'

    Raises as attention does."""
    return Question("spell", what, backward, grad, deterministic, options).spelling


def explain(*what: Any, gpu: Optional[str] = None, backward: bool = False, grad: Sequence[str] = (),
            deterministic: bool = False, **options: Any) -> "Explanation":
    """What attention(q, k, v, **options) runs, and why: print it. Nothing is computed; the kernel is compiled if need be.

    explain(q, k, v, **options)     on q's device, or for `gpu`: a key of devices(), which needs not be here
    explain("fwd bf16 d128 causal", batch=, heads=, heads_kv=, seqlen_q=, seqlen_k=)    sizes: 16,384 tokens and 2,048
                                    hidden unless given, with `split` 32 queries of 4,096 keys; for gpu="a100" unless given
    backward, grad, deterministic   the backward pass, with the gradients of the arrays named in `grad`

    >>> told = explain("fwd bf16 d64 causal", gpu="h200", seqlen_q=1024, seqlen_k=1024)
    >>> told.spelling, told.plan["block_n"], told.tiles["empty"] > 0
    ('fwd bf16 d64 causal', 64, True)

    Raises as attention does, and NoDevice for an unknown gpu."""
    return Explanation(Question("explain", what, backward, grad, deterministic, options, gpu), gpu)


class Question:
    """Either form of what explain and spell are asked. shape: that of a launch, zeros where nothing is known."""

    def __init__(self, asker, what, backward, grad, deterministic, options, gpu=None):
        self.device, self.notes = None, []
        if len(what) == 1 and isinstance(what[0], str):
            given = {name: options.pop(name, 0) for name in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k")}
            if options or backward or grad or deterministic:
                raise TypeError(f"{asker}: a spelling says all but sizes and gpu")
            self.spelling = library().spell(library().problem(what[0]))
            self.shape = (given["batch"], given["heads"], given["heads_kv"] or given["heads"], given["seqlen_q"],
                          given["seqlen_k"] or given["seqlen_q"])
            return
        if len(what) != 3:
            raise TypeError(f"{asker}: takes a spelling, or q, k and v")
        for name in ("return_lse", "generator"):
            options.pop(name, None)
        refuse_unknown(asker, options)
        options.update((name, as_array(options[name])) for name in EXTRAS if options.get(name) is not None)
        asked = ask(*what, convert=as_array, **options)
        self.device = place(what[0])
        if not backward and asked.num_splits < 0 and wants_gradients(*what, *asked.arrays):
            asked = asked._replace(num_splits=1)
        forward = asked.forward(gpu or self.device)
        sizes = asked.sizes if backward else forward.sizes
        self.shape = (sizes.batch, sizes.heads_q, sizes.heads_kv, sizes.seqlen_q, sizes.seqlen_k)
        spelled = asked.backward(names_of(grad, asked.terms), deterministic) if backward else forward.spelling
        if not backward and forward.num_splits is None and asked.dtype != "fp32" and read_as_they_are(*what[1:]):
            from ._torch_launch import values_are_keys
            spelled += " latent" * values_are_keys(*what[1:])
        self.spelling = library().spell(library().problem(spelled))
        self.note(asked, what, None if backward else forward)

    def note(self, asked, what, forward):
        """What happens besides the kernel."""
        for name, x in zip("qkv", what):
            missing = _problem.padding(x.shape[-1])
            if missing:
                self.notes.append(f"{name} is copied: its head dim {x.shape[-1]} is filled up with zeros to {x.shape[-1] + missing}")
            elif not fits(x, _runtime.UNITS[asked.dtype]):
                self.notes.append(f"{name} is copied: 16-byte copies cannot read its strides")
        if asked.layout == "packed":
            self.notes.append("tiles and times are those of sequences that are all as long as the longest may be")
        if forward and forward.group:
            self.notes.append("the query's heads are queries of one head of their kv head: docs/sequences.md, split")
        if forward and forward.num_splits is not None:
            self.notes.append("several CTAs share a row's keys (split), since there are few queries and many keys"
                              if asked.num_splits < 0 else "several CTAs share a row's keys, as asked by num_splits")


def wants_gradients(*arrays):
    """Whether a call with these has its gradients to come, for which nothing is shared among CTAs."""
    tensors = [x for x in arrays if is_tensor(x)]
    return any(x.requires_grad for x in tensors) and sys.modules["torch"].is_grad_enabled()


def read_as_they_are(*tensors):
    """Whether these are tensors of PyTorch, with memory of their own, that a kernel of 16 bits reads without a copy."""
    return all(is_tensor(x) and x.device.type in ("cpu", "cuda") and not _problem.padding(x.shape[-1]) and fits(x, 8) and not x.data_ptr() & 15
               for x in tensors)


def as_array(x):
    if is_array(x):
        return x
    import numpy
    return numpy.asarray(x)


def place(q):
    """The name of q's device."""
    if is_tensor(q):
        return f"cuda:{q.get_device()}" if q.is_cuda else "emu"
    from ._arrays import library_of
    return library_of(q).device


def fits(x, unit):
    """Whether the kernel reads x as it is, as far as strides say."""
    strides = x.stride() if callable(getattr(x, "stride", None)) else getattr(x, "strides", None)
    if strides is None:
        return True
    size = 1 if callable(getattr(x, "stride", None)) else getattr(x.dtype, "itemsize", 1)
    return all(s >= 0 and s % size == 0 for s in strides) and _problem.suits(x.shape, [s // size for s in strides], unit)


# ---- explanations ----------------------------------------------------------------------------------------------------

class Explanation:
    """spelling; gpu: what is planned for; device: where it runs, or None; plan, kernel, tiles: dicts of what
    include/flashkiln.h documents (kernel is None where nothing could compile it); plans: all candidates, best first; notes:
    what happens besides. str() is readable; source() the CUDA text."""
    plan: Dict[str, Any]
    kernel: Optional[Dict[str, Any]]
    tiles: Dict[str, int]

    def __init__(self, question: Question, gpu: Optional[str] = None):
        lib = library()
        self.spelling, self.notes, self.shape = question.spelling, list(question.notes), question.shape
        self.device = gpu if gpu and gpu.startswith("cuda:") else None if gpu else question.device
        self.gpu = gpu or (question.device if question.device not in (None, "emu") else "a100")
        self._problem = lib.problem(self.spelling)
        self._gpu_info = _heads.device_info(self.gpu)
        shape = lib.header.types["fk_shape"](*self.shape)
        self._plans = lib.plans(self._problem, self.gpu, shape)
        self._plan = next(plan for plan in self._plans if plan.chosen)
        self.kernel = self._compile()
        self.plan, self.plans = as_dict(self._plan), [as_dict(plan) for plan in self._plans]
        self.tiles = as_dict(lib.tiles(self._problem, self._plan, shape))

    def _compile(self):
        """fk_kernel_info of the device's kernel, or fk_image_info of one that is for another GPU."""
        if self.device:
            info = _runtime.device(self.device).kernel(self.spelling, self.shape)[2]
            self._take(info.plan)
            return {**as_dict(info.image), **{name: as_dict(info)[name] for name in ("from_store", "store_path", "store_note")}}
        try:
            info, plan = library().build(self._problem, self.gpu)
        except NoCompiler as error:
            self.notes.append(f"not compiled: {error}")
            return None
        self._take(plan)
        return as_dict(info)

    def _take(self, plan):
        """The plan that was compiled, with the times of this shape. A kernel serves all sizes: it is planned for the nominal
        ones, and where it spills registers another one is taken."""
        best = next(other for other in library().plans(self._problem, self.gpu) if other.chosen)
        if plan.chosen in (library().values["FK_CHOSEN_BY_RECORD"], library().values["FK_CHOSEN_BY_SHIPPED_RECORD"]):
            self.notes.append(f"the plan is that of a tuning record; {plan.reason.decode()}")
        elif tiling(plan) != tiling(best):
            self.notes.append("the plan that the model prefers was compiled and spilled registers: another one is taken")
        elif tiling(plan) != tiling(self._plan):
            self.notes.append(f"kernels serve all sizes, and are planned for {self._nominal()}: for these sizes alone the plan would be "
                              f"{self._plan.block_m} x {self._plan.block_n}")
        self._plan = next((other for other in self._plans if tiling(other) == tiling(plan)), plan)
        self._plan.parts = plan.parts
        if plan.parts:
            self.notes.append("where the last round of tiles would leave SMs idle, these come in parts of their keys")

    def source(self) -> str:
        """The CUDA text."""
        lib, text = library(), c_void_p()
        options = lib.make("fk_generate_options", plan=ctypes.addressof(self._plan), standalone=1)
        lib("fk_generate", byref(self._problem), self.gpu.encode(), byref(options), byref(text), None)
        out = ctypes.string_at(text).decode()
        lib.lib.fk_free(text)
        return out

    def __repr__(self):
        return f"<flashkiln.Explanation of {self.spelling} on {self.device or self.gpu}>"

    def __str__(self):
        lines = [self.spelling, *self._where(), "", *self._told_plan(), *self._told_kernel(), *self._told_tiles(),
                 *self._told_io(), *self._told_model(), *self._told_losers()]
        return "\n".join(lines + [f"Note     {note}" for note in self.notes])

    def _where(self):
        name = self._gpu_info.name.decode()
        where = f"run by the emulator, as planned for {name}" if self.device == "emu" else f"on {name}"
        sizes = "batch {}, {} heads ({} of k and v), {} queries, {} keys".format(*self.shape)
        return [where, sizes if all(self.shape) else f"at {self._nominal()}, where sizes are not given"]

    def _nominal(self):
        return ("32 queries of 4,096 keys" if self._problem.split else "16,384 tokens") + " and 2,048 hidden"

    def _told_plan(self):
        p = self.plan
        what = "queries x {} keys" if self.spelling.startswith("fwd") else "queries, for {} keys of a CTA"
        return [f"Plan     family {p['family']}, tiles of {p['block_m']} {what.format(p['block_n'])}; {p['warps']} warps, {p['stages']} stages, "
                f"{p['ctas_per_sm']} CTAs per SM, {p['smem_bytes'] / 1024:.4g} KB of shared memory"]

    def _told_kernel(self):
        k = self.kernel
        if k is None:
            return []
        if k["target"] == "emu":
            told = "emulated"
        else:
            told = f"{k['target']}: {k['registers']} registers, {k['spill_bytes']} bytes spilled"
            told += ", wgmma serialised" if k["serialized_wgmma"] else ""
        came = f"compiled in {k['compile_ms']:.0f} ms by {k['compiler']}"
        if "from_store" in k:
            where = {1: "the store", 2: "a pack"}.get(k["from_store"])
            came = f"read from {where}: {k['store_path']}" if where else f"{came}; store: {k['store_note']}"
        return [f"Kernel   {told}; {came}"]

    def _told_tiles(self):
        total = sum(self.tiles.values()) or 1
        what = {"empty": "never loaded", "partial": "masked element by element", "full": "computed without mask code"}
        return ["Tiles    " + ", ".join(f"{100 * count / total:.1f} % {what[kind]}" for kind, count in self.tiles.items())]

    def _told_io(self):
        """Block-sparse FlashAttention's bound (Dao et al. 2022, proposition 4), and this plan's constant in it."""
        p, t, d = self._problem, self.tiles, self._problem.head_dim
        backward = self.spelling.startswith("bwd")
        words = self.spelling.split()
        size = 1 if "e4m3" in words or "kv_e4m3" in words else 4 if words[1] == "fp32" else 2
        in_sram = max(size, 2) if self.plan["family"] == "mma" else size  # where 16 bits are made of 8
        if size == 4 and self.plan["k_stages"]:
            in_sram = 3 * 2  # its parts
        own, met = (self.plan[x] for x in (("block_n", "block_m") if backward else ("block_m", "block_n")))
        visited, room = t["partial"] + t["full"], self._gpu_info.smem_per_block / in_sram
        walked = visited * met * (d + p.head_dim_v) * size
        return [f"IO       Theta(N d + N^2 d^2 s / M) accesses of HBM, s = {visited / (sum(t.values()) or 1):.4f}, M = {room:.0f} "
                f"elements; a head's tiles: {walked / 2**20:.4g} MB of {'Q and dO' if backward else 'K and V'}, which is "
                f"{room * (d + p.head_dim_v) / (own * d * d):.3g} N^2 d^2 s / M; predicted of HBM: "
                f"{self.plan['hbm_bytes'] / 2**20:.4g} MB"]

    def _told_model(self):
        p = self.plan
        floors = ", ".join(f"{name} {p[field]:.3g}" for name, field in FLOORS.items() if p[field] > 0)
        return [f"Model    {p['model_us']:.3g} us, bound by {p['bound']}; at least, in us: {floors}"]

    def _told_losers(self):
        out = []
        for legal in (1, 0):
            others = [p for p in self.plans if p["legal"] == legal and [p[name] for name in TILING] != tiling(self._plan)]
            for p in others[:LOSERS]:
                parts = ", tiles of parts" if p["family"] == "mma" and p["k_stages"] else ""
                why = f"{p['model_us'] / self.plan['model_us']:.2f}x the time, bound by {p['bound']}" if legal else p["reason"]
                out.append(f"Not      {p['family']}, {p['block_m']} x {p['block_n']}, {p['warps']} warps, {p['stages']} stages, Q in "
                           f"{'registers' if p['q_in_regs'] else 'shared memory'}{parts}, {p['ctas_per_sm']} CTAs per SM: {why}")
        return out


TILING = ("family", "block_m", "block_n", "warps", "stages", "q_in_regs", "ctas_per_sm", "dq_kernel", "q_stages", "k_stages", "turns", "overlap")


def tiling(plan):
    return [getattr(plan, name) for name in TILING]


def as_dict(struct):
    return {name: value.decode() if isinstance(value, bytes) else value
            for name, value in ((name, getattr(struct, name)) for name, _ in struct._fields_)
            if not isinstance(value, ctypes.Structure) and name != "struct_size"}
