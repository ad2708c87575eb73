"""FlashKiln: exact attention kernels, generated for the GPU at hand.

    >>> import torch, flashkiln
    >>> q, k, v = (torch.randn(1, 64, 2, 32) for _ in range(3))   # [batch, seqlen, heads, dim]
    >>> o = flashkiln.attention(q, k, v, causal=True)             # on the CPU: by the emulator
"""
from __future__ import annotations

import importlib
import sys

from .errors import (BadArgument, BadProblem, CheckFailed, CompileFailed, FlashKilnError, Internal, IoError, LaunchFailed,
                     NoCompiler, NoDevice, NoJit, OutOfMemory, TemplateError, Unsupported)

# Names that need more than the standard library, and the modules that have them: imported on first use.
_LAZY = {"attention": "_torch", "attention_backward": "_numpy", "devices": "_explain", "explain": "_explain",
         "spell": "_explain", "tune": "_tune", "__version__": "_explain", "load_pack": "_runtime",
         "enable_sdpa": "_sdpa", "disable_sdpa": "_sdpa", "sdpa": "_sdpa", "sdpa_report": "_sdpa",
         "install_as_flash_attn": "flash_attn._install", "uninstall_as_flash_attn": "flash_attn._install",
         "create_block_mask": "block_mask", "BlockMask": "block_mask", "array": "_symbols", "where": "_symbols",
         "minimum": "_symbols", "maximum": "_symbols", "exp": "_symbols", "log": "_symbols", "tanh": "_symbols",
         "popcount": "_symbols", "bit": "_symbols"}

__all__ = ["BadArgument", "BadProblem", "CheckFailed", "CompileFailed", "FlashKilnError", "Internal", "IoError",
           "LaunchFailed", "NoCompiler", "NoDevice", "NoJit", "OutOfMemory", "TemplateError", "Unsupported", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "attention" and "torch" not in sys.modules:  # until it is there: without it
        return importlib.import_module("._numpy", __name__).attention
    value = globals()[name] = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
