"""attention() of tensors of float8_e4m3fn: the forward pass alone, on sm_90, with a bfloat16 result."""
from __future__ import annotations

import torch

from . import _problem
from .errors import BadArgument, Unsupported

DTYPE = getattr(torch, "float8_e4m3fn", None)
UNIT = 16  # elements in 16 bytes: head dims are multiples of it


def padded(x):
    """With zeros behind, to a head dim that the kernels know; as bytes, since not every release pads this dtype."""
    return torch.nn.functional.pad(x.view(torch.uint8), (0, -x.shape[-1] % UNIT)).view(DTYPE)


def descales(q, k, layout, extras, given):
    """float32 [batch, heads_kv] of q_descale, k_descale and v_descale, None where there is none."""
    _, _, head = _problem.LAYOUTS["bshd" if layout == "packed" and extras[4] is not None else layout]
    batch = q.shape[0] if extras[1] is None else len(extras[1]) - 1
    shape, out = (batch, k.shape[head]), []
    for name, x in zip(("q_descale", "k_descale", "v_descale"), given):
        if x is not None:
            x = torch.as_tensor(x, dtype=torch.float32, device=q.device)
            try:
                x = x.expand(shape)
            except RuntimeError:
                raise BadArgument(f"{name} has shape {tuple(x.shape)}; it must be one that broadcasts to "
                                  f"[batch, heads_kv], {list(shape)}") from None
        out.append(x)
    return out


def check(q, k, v, traced):
    """What of attention() there is not."""
    if any(x.requires_grad for x in (q, k, v)) and torch.is_grad_enabled():
        raise Unsupported("q, k or v is of float8_e4m3fn and requires a gradient; e4m3 has a forward pass alone")
    if traced:
        raise Unsupported("q is of float8_e4m3fn: torch.compile and dispatch modes do not see its kernels; call attention "
                          "under torch.compiler.disable")


def fill(args, given):
    for name, x in zip(("q_descale", "k_descale", "v_descale"), given):
        if x is not None:
            setattr(args, name, x.data_ptr())
            getattr(args, name + "_stride")[:] = x.stride()
