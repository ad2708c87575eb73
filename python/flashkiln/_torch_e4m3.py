"""attention() of tensors of float8_e4m3fn, or of keys and values of it: the forward pass alone."""
from __future__ import annotations

import torch

from . import _problem
from .errors import BadArgument, Unsupported

DTYPE = getattr(torch, "float8_e4m3fn", None)
UNIT = 16  # elements in 16 bytes: head dims are multiples of it
KV_UNIT = 8  # beside queries of 16 bits they are of this


def padded(x, unit=UNIT):
    """With zeros behind, to a head dim that the kernels know; as bytes, since not every release pads this dtype."""
    missing = _problem.padding(x.shape[-1], unit)
    return torch.nn.functional.pad(x.view(torch.uint8), (0, missing)).view(DTYPE) if missing else x


def padded_beside(x):
    """The same of q, k or v, of which k and v are of this dtype."""
    return padded(x, KV_UNIT) if x.dtype is DTYPE else torch.nn.functional.pad(x, (0, _problem.padding(x.shape[-1], KV_UNIT)))


def as_float32(x, q):
    """A descale as a tensor on q's device."""
    return None if x is None else torch.as_tensor(x, dtype=torch.float32, device=q.device).resolve_neg()


def descales(q, k, layout, extras, given):
    """float32 [batch, heads_kv] of q_descale, k_descale and v_descale, None where there is none."""
    _, _, head = _problem.LAYOUTS["bshd" if layout == "packed" and extras[4] is not None else layout]
    batch = q.shape[0] if extras[1] is None else len(extras[1]) - 1
    shape, out = (batch, k.shape[head]), []
    for name, x in zip(("q_descale", "k_descale", "v_descale"), given):
        if x is not None:
            x = as_float32(x, q)
            try:
                x = x.expand(shape)
            except RuntimeError:
                raise BadArgument(f"{name} has shape {tuple(x.shape)}; it must be one that broadcasts to "
                                  f"[batch, heads_kv], {list(shape)}") from None
        out.append(x)
    return out


def check(q, k, v, fast, q_descale, others):
    """What of attention() there is not. others: arrays and descales, which may be numbers."""
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in (q, k, v, q_descale, *others)):
        raise Unsupported("k is of float8_e4m3fn, and q, k, v, an array or a descale requires a gradient; e4m3 has a forward pass alone")
    if q.dtype is not DTYPE and q_descale is not None:
        raise BadArgument(f"q_descale is that of float8_e4m3fn; q is of {q.dtype}")
    if q.dtype is not DTYPE and fast:
        raise Unsupported("fast: with keys of float8_e4m3fn it is for queries of that dtype")


def fill(args, given):
    for name, x in zip(("q_descale", "k_descale", "v_descale"), given):
        if x is not None:
            setattr(args, name, x.data_ptr())
            getattr(args, name + "_stride")[:] = x.stride()
