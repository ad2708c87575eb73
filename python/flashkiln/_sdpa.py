"""torch.nn.functional.scaled_dot_product_attention by FlashKiln, through PyTorch's own dispatcher: kernels for
aten::scaled_dot_product_attention at the keys of CUDA, ahead of the composite that picks a backend. Models need no change.

    flashkiln.enable_sdpa()          # or: with flashkiln.sdpa(): ...
    model(x)
    print(flashkiln.sdpa_report())   # what was taken, what fell back to PyTorch, and why

Semantics are PyTorch's: is_causal is top-left aligned, bool masks keep where true, float masks are added and get a gradient,
dropout applies whenever dropout_p > 0, a row that a mask hides wholly gives 0. Masks are looked into on the device
alone: no host synchronisation. Under autocast PyTorch casts before it gets here.

Two callers never reach that operator: nested tensors (jagged layout) and attention.bias.causal_lower_right. They call others
on CUDA, which are taken at the Autograd key, but for dropout, whose random state is PyTorch's there."""
from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from typing import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from . import _problem, _runtime, _torch_float_mask
from ._sdpa_inner import INNER
from ._torch import DTYPES, attention, float_element
from ._torch_bits import packed_bits
from .errors import Unsupported

SDPA = torch.ops.aten.scaled_dot_product_attention.default
PLAIN = (torch.Tensor, torch.nn.Parameter)
TRACED = (FakeTensor, FunctionalTensor)  # of torch.compile; other classes have rules of their own for operators


# ---- on and off ------------------------------------------------------------------------------------------------------

_switch = threading.RLock()
_installed = None  # (Library, cpu)
_enabled = None  # the cpu of enable_sdpa()
_blocks = []  # and of the `with` blocks that are open, in all threads
_falling_back = threading.local()


def enable_sdpa(cpu: bool = False) -> None:
    """Takes over scaled_dot_product_attention of CUDA tensors in this process, until disable_sdpa().

    cpu: of CPU tensors, too, which the emulator computes: exact, slow, for tests. Graphs that torch.compile has made keep
    what they were made with.

    >>> import torch, flashkiln
    >>> flashkiln.enable_sdpa(cpu=True)
    >>> q = torch.randn(1, 2, 16, 16)                       # [batch, heads, seqlen, dim]
    >>> o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> flashkiln.sdpa_report().taken
    {'fwd fp32 d16 causal': 1}"""
    global _enabled
    with _switch:
        _enabled = cpu
        install()


def install() -> None:
    """What is asked for by now, under _switch."""
    global _installed
    asked = _blocks + ([] if _enabled is None else [_enabled])
    cpu = any(asked)
    if _installed is not None and asked and _installed[1] == cpu:
        return
    if _installed is not None:
        _installed[0]._destroy()
        _installed = None
    if not asked:
        return
    library = torch.library.Library("aten", "IMPL")
    for device in ["CUDA", "CPU"] if cpu else ["CUDA"]:
        for key in ("Autograd" + device, device):  # the latter: torch.inference_mode()
            library.impl("scaled_dot_product_attention", scaled_dot_product_attention, key)
        for name, function in INNER.items():
            install_inner(library, name, function, "Autograd" + device)
    _installed = library, cpu


def install_inner(library, name, function, key):
    if not hasattr(torch.library, "get_kernel"):  # before PyTorch 2.9 nothing tells what it would replace
        return
    theirs = torch.library.get_kernel("aten::" + name, key)
    library.impl(name, functools.partial(take_inner, name, function, theirs), key, with_keyset=True)


def disable_sdpa() -> None:
    """Gives scaled_dot_product_attention back to PyTorch, once no block of sdpa() is open. The report stays."""
    global _enabled
    with _switch:
        _enabled = None
        install()


@contextlib.contextmanager
def sdpa(cpu: bool = False) -> Iterator[None]:
    """enable_sdpa() within a `with` block, for all threads; afterwards it is as before.

    >>> with flashkiln.sdpa(cpu=True):
    ...     o = torch.nn.functional.scaled_dot_product_attention(q, q, q)"""
    with _switch:
        _blocks.append(cpu)
        install()
    try:
        yield
    finally:
        with _switch:
            _blocks.remove(cpu)
            install()


# ---- the report ------------------------------------------------------------------------------------------------------

class Report:
    """Counts of calls. taken: {spelling of the forward problem: calls}; fell_back: {reason: calls}; compiled: {either: how
    often torch.compile traced it}, since what compiled graphs run later is not counted."""

    def __init__(self, taken, fell_back, compiled):
        self.taken, self.fell_back, self.compiled = dict(taken), dict(fell_back), dict(compiled)

    def __repr__(self):
        parts = (("taken by FlashKiln", self.taken), ("left to PyTorch", self.fell_back),
                 ("while torch.compile traced", self.compiled))
        lines = []
        for what, counts in parts:
            lines.append(f"{sum(counts.values()):8}  {what}")
            lines += [f"{count:12}  {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1])]
        return "\n".join(lines)


_counts = Counter(), Counter(), Counter()
_counting = threading.Lock()


def sdpa_report(reset: bool = False) -> Report:
    """What has been taken and what was left to PyTorch since the process began, or since the last reset.

    >>> print(flashkiln.sdpa_report())
           2  taken by FlashKiln
               1  fwd fp32 d16 causal
               1  fwd fp32 d16
           0  left to PyTorch
           0  while torch.compile traced"""
    with _counting:
        report = Report(*_counts)
        if reset:
            for counts in _counts:
                counts.clear()
    return report


def count(q, spelling, reason):
    with _counting:
        if torch._C._len_torch_dispatch_stack() or isinstance(q, TRACED):
            _counts[2][reason or spelling] += 1
        else:
            _counts[1 if reason else 0][reason or spelling] += 1


# ---- what can be served ----------------------------------------------------------------------------------------------

def tensors_refused(q, k, v):
    """Why not, of the tensors alone; "" if nothing is wrong with them."""
    for x in (q, k, v):
        if x.__class__ not in PLAIN and not isinstance(x, TRACED):
            return f"tensors of class {x.__class__.__name__}"
    if torch._C._are_functorch_transforms_active():
        return "a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "forward-mode derivatives"
    if q.dtype not in DTYPES:
        return f"{str(q.dtype).rpartition('.')[2]} tensors"
    if q.dtype != k.dtype or q.dtype != v.dtype or q.device != k.device or q.device != v.device:
        return "dtypes or devices that differ"
    if not (q.numel() and k.numel() and v.numel()):
        return "tensors without elements"
    for x, most in ((q, _problem.MAX_HEAD_DIM), (v, _problem.MAX_HEAD_DIM_V)):
        if x.shape[-1] > most:
            return f"a head dim above {most}"
    return "" if any_fused() else "sdpa_kernel() allows SDPBackend.MATH alone"


def any_fused():
    backends = torch.backends.cuda
    return backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled() or backends.cudnn_sdp_enabled()


def refused(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa):
    """Why scaled_dot_product_attention is left to PyTorch, which also raises where a call is wrong; "" if it is not."""
    why = tensors_refused(q, k, v)
    if why:
        return why
    if not 2 <= q.dim() <= 4 or k.dim() != q.dim() or v.dim() != q.dim():
        return f"tensors of {q.dim()}, {k.dim()} and {v.dim()} dimensions"
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or (q.dim() > 2 and q.shape[0] != k.shape[0]):
        return "shapes that broadcast"
    if q.dim() == 4 and q.shape[1] != k.shape[1] and (not enable_gqa or q.shape[1] % k.shape[1]):
        return "shapes that broadcast"
    if dropout_p >= 1:
        return f"dropout_p of {dropout_p}"
    if scale is not None and not _problem.LEAST_SCALE <= scale <= _problem.MOST_SCALE:
        return "a scale that is no positive float32"
    if mask is not None:
        return mask_refused(q, k, mask, is_causal)
    return ""


def mask_refused(q, k, mask, is_causal):
    if is_causal:
        return "attn_mask together with is_causal"
    if mask.__class__ not in PLAIN and not isinstance(mask, TRACED):
        return f"attn_mask of class {mask.__class__.__name__}"
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        return f"attn_mask of {str(mask.dtype).rpartition('.')[2]}"
    if mask.device != q.device or mask.dim() > q.dim():
        return "attn_mask on another device, or of more dimensions than the tensors"
    full = (*q.shape[:-1], k.shape[-2])
    if any(n not in (1, m) for n, m in zip(mask.shape, full[len(full) - mask.dim():])):
        return "attn_mask of a shape that does not broadcast"
    return ""


@functools.lru_cache(maxsize=4096)
def case(device, dtype, dim, dim_v, gqa, causal, align, term, dropout, packed, backward):
    """(spelling of the forward problem, why the device cannot have it or ""). term: None, "bits" or a bias's element; backward:
    None, or the words that the backward problem has besides. Kernels are made here, so that nothing is refused later."""
    terms = _problem.terms(causal=causal, align=align, mask="bits" if term == "bits" else None, dropout=dropout,
                           brought=(("bias", term),) if term not in (None, "bits") else (), packed=packed,
                           arrays=(("bits", "int", 4),) if term == "bits" else ())
    sizes = _problem.Shapes(1, 2 if gqa else 1, 1, 1, 1, dim + _problem.padding(dim), dim_v + _problem.padding(dim_v))
    spelling = terms.spelling("fwd", dtype, sizes)
    try:
        on = _runtime.device(device)
        on.kernel(spelling)
        if backward is not None:
            on.kernel(terms.spelling("bwd", dtype, sizes, *backward))
    except Unsupported as error:
        return spelling, f"{spelling}: {error}"
    return spelling, ""


def find_case(q, k, v, heads, *, causal=False, align="bottom-right", term=None, dropout=False, packed=False, bias_grad=False):
    """case() of these tensors, whose axis `heads` counts heads; None where there is no such axis."""
    backward = None
    if torch.is_grad_enabled() and (bias_grad or q.requires_grad or k.requires_grad or v.requires_grad):
        backward = ("grad=bias",) * bias_grad + ("deterministic",) * torch.are_deterministic_algorithms_enabled()
    device = "emu" if q.device.type == "cpu" else f"cuda:{q.get_device()}"
    gqa = heads is not None and q.shape[heads] != k.shape[heads]
    return case(device, DTYPES[q.dtype], int(q.shape[-1]), int(v.shape[-1]), bool(gqa), bool(causal), align, term, dropout,
                packed, backward)


# ---- scaled_dot_product_attention ------------------------------------------------------------------------------------

_judged = {}  # of eager calls, by all that judge() looks at


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None,
                                 enable_gqa=False):
    """The kernel of aten::scaled_dot_product_attention."""
    asked = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if all_plain(query, key, value, attn_mask):
        mask = attn_mask is not None and (attn_mask.shape, attn_mask.dtype, attn_mask.device, attn_mask.requires_grad)
        like = (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, key.device,
                value.device, mask, *asked[4:], query.requires_grad or key.requires_grad or value.requires_grad,
                *surroundings())
        verdict = _judged.get(like)
        if verdict is None:
            verdict = _runtime.remember(_judged, like, judge(*asked))
    else:  # compiled: lengths may have no hash
        verdict = judge(*asked)
    spelling, why, arguments = verdict
    count(query, spelling, why)
    if why:
        with composite():
            more = {"enable_gqa": True} if enable_gqa else {}  # PyTorch 2.4 does not know it
            return SDPA.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
    if attn_mask is not None:
        said = mask_argument(attn_mask, query.dim(), key.shape[-2])
        if "bias" in said and query.dim() == 4 and all_plain(query, key, value, attn_mask) and _torch_float_mask.suits(
                query, key, value, said["bias"]):
            return _torch_float_mask.attention(query, key, value, said["bias"], dropout_p, scale)
        arguments = {**arguments, **said}
    if query.dim() == 4:
        return attention(query, key, value, dropout_p=dropout_p, softmax_scale=scale, **arguments)
    q, k, v = (four(x) for x in (query, key, value))
    out = attention(q, k, v, dropout_p=dropout_p, softmax_scale=scale, **arguments)
    return out.reshape(*query.shape[:-1], value.shape[-1])


def all_plain(q, k, v, mask):
    return (q.__class__ in PLAIN and k.__class__ in PLAIN and v.__class__ in PLAIN
            and (mask is None or mask.__class__ in PLAIN) and not torch._C._len_torch_dispatch_stack())


def surroundings():
    """What a verdict depends on besides the arguments."""
    return (torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), forward_ad._current_level,
            torch._C._are_functorch_transforms_active(), any_fused())


def judge(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa):
    """(spelling, why it is left to PyTorch or "", what attention is called with besides)."""
    why = refused(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
    if why:
        return "", why, {}
    align = "top-left" if is_causal and q.shape[-2] != k.shape[-2] else "bottom-right"
    term = None if mask is None else "bits" if mask.dtype == torch.bool else float_element(mask.dtype)
    spelling, why = find_case(q, k, v, 1 if q.dim() == 4 else None, causal=is_causal, align=align, term=term,
                              dropout=dropout_p > 0, bias_grad=mask is not None and mask.requires_grad)
    return spelling, why, {"layout": "bhsd", "causal": is_causal, "align": align}


@contextlib.contextmanager
def composite():
    """PyTorch's own, all the way: the composite calls operators that are taken, too."""
    _falling_back.now = True
    try:
        yield
    finally:
        _falling_back.now = False


def four(x):
    """[batch, heads, seqlen, dim] of [batch, seqlen, dim] or [seqlen, dim]."""
    return x.unsqueeze(-3) if x.dim() == 3 else x[None, None]


def mask_argument(mask, rank, keys):
    """attention's argument that says what attn_mask says. Axes along which it repeats become one element wide, unless each
    repetition has a gradient of its own."""
    if mask.dim() >= 3 and rank == 3:
        mask = mask.unsqueeze(-3)
    mask = mask[(None,) * (4 - mask.dim())]
    for axis in range(3):
        if mask.stride(axis) == 0 and mask.shape[axis] > 1 and not mask.requires_grad:
            mask = mask.narrow(axis, 0, 1)
    if mask.dtype != torch.bool:
        return {"bias": mask}
    return {"mask": "bits", "arrays": {"bits": packed_bits(mask.expand(*mask.shape[:-1], keys))}}


# ---- operators that nested tensors and causal_lower_right call ----------------------------------------------------------

def take_inner(name, function, theirs, keyset, *args, **kwargs):
    """The kernel of an inner operator at an Autograd key; `theirs` is the one that it replaces."""
    if getattr(_falling_back, "now", False):
        return theirs.call_boxed(keyset, *args, **kwargs)
    q, k, v = args[:3]
    spelling, why = "", tensors_refused(q, k, v)
    if not why and (isinstance(q, TRACED) or torch._C._len_torch_dispatch_stack()):
        why = "torch.compile"
    if not why:
        why, asked, arguments, results = function(*args, **kwargs)
    if not why:
        spelling, why = find_case(q, k, v, -3 if arguments.get("layout") == "bhsd" else -2, **asked)
    count(q, spelling, why and f"aten::{name}: {why}")
    if why:
        return theirs.call_boxed(keyset, *args, **kwargs)
    if not (asked.get("packed") and q.dim() == 4):
        return results(*attention(q, k, v, return_lse=True, **arguments))
    out, lse = attention(q[0], k[0], v[0], return_lse=True, **arguments)
    return results(out[None], lse[None])
