"""FlashAttention 2's public functions, with their signatures and meaning, by this library's kernels.

Programs import from here, or say flashkiln.install_as_flash_attn() and stay as they are:

    >>> import torch
    >>> from flashkiln.flash_attn import flash_attn_func
    >>> q = torch.randn(1, 24, 4, 16, dtype=torch.float16)                  # [batch, seqlen, heads, dim]
    >>> k, v = (torch.randn(1, 32, 2, 16, dtype=torch.float16) for _ in range(2))
    >>> flash_attn_func(q, k, v, causal=True, window_size=(8, 0)).shape
    torch.Size([1, 24, 4, 16])
"""
from .flash_attn_interface import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                                   flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
                                   flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)

__version__ = "2.8.3"  # whose functions these are

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]
