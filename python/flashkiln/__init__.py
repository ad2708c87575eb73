"""FlashKiln: exact attention kernels, generated for the GPU at hand.

    >>> import torch, flashkiln
    >>> q, k, v = (torch.randn(1, 64, 2, 32) for _ in range(3))   # [batch, seqlen, heads, dim]
    >>> o = flashkiln.attention(q, k, v, causal=True)             # on the CPU: by the emulator
"""
from __future__ import annotations

import importlib

from .errors import (BadArgument, BadProblem, CheckFailed, CompileFailed, FlashKilnError, Internal, IoError, LaunchFailed,
                     NoCompiler, NoDevice, NoJit, OutOfMemory, TemplateError, Unsupported)

# Names that need more than the standard library, and the modules that have them: imported on first use.
_LAZY = {"attention": "_torch"}

__all__ = ["BadArgument", "BadProblem", "CheckFailed", "CompileFailed", "FlashKilnError", "Internal", "IoError",
           "LaunchFailed", "NoCompiler", "NoDevice", "NoJit", "OutOfMemory", "TemplateError", "Unsupported", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
