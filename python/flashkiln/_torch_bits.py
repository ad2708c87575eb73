"""Masks as tensors become bits, one for each pair of query and key, as the mask `bits` reads them."""
from __future__ import annotations

import ctypes
import functools

import torch

from . import _runtime
from ._capi import library
from ._torch import PLAIN
from ._torch_launch import raw_stream


def words_for(mask):
    """Room for the bits of a mask [..., n]: int32 [..., ceil(n / 32)]."""
    return mask.new_empty((*mask.shape[:-1], -(-mask.shape[-1] // 32)), dtype=torch.int32)


def packed_bits(mask):
    """Bools [..., n] as int32 [..., ceil(n / 32)], bit i of word j for element 32 j + i: by fk_pack_blocks where a kernel has
    been made that has it, else by PyTorch."""
    plain = not torch.compiler.is_compiling() and mask.is_cuda and mask.__class__ in PLAIN and not torch._C._len_torch_dispatch_stack()
    packer = plain and _runtime.packer(f"cuda:{mask.get_device()}")
    if packer and mask.numel() > 0:
        words = words_for(mask)
        pack_into(packer, mask, words, None)
        return words
    # Eight bools are eight bytes of 0 or 1, which one product moves into the upper byte: byte i times 2^(56 - 7 i) is at bit
    # 56 + i, and no two sums meet.
    bools = mask.new_zeros((*mask.shape[:-1], -(-mask.shape[-1] // 32) * 32), dtype=torch.uint8)
    bools[..., :mask.shape[-1]] = mask
    return (bools.view(torch.int64) * 0x0102040810204080 >> 56).to(torch.uint8).view(torch.int32)


def pack_floats(mask, words, others):
    """Which elements are not -inf, as bits, into `words`; `others`, [0], becomes [1] where some are neither -inf nor 0. A kernel that has
    fk_pack_blocks must have been made on the mask's device."""
    pack_into(_runtime.packer(f"cuda:{mask.get_device()}" if mask.is_cuda else "emu"), mask, words, others.data_ptr())


def pack_into(packer, mask, words, others):
    """fk_pack_blocks of fk_kernel `packer`, of bools or floats in rows that are any number of elements apart. others: a pointer, or None."""
    keys, (pack, blocks, formats, most, fail) = mask.shape[-1], packing()
    rows = mask.flatten(0, -2)
    if rows.stride(-1) != 1 or (len(rows) > 1 and not keys <= rows.stride(0) <= most):
        rows = rows.contiguous()
    width = rows.stride(0) if len(rows) > 1 else 0
    of = blocks(ctypes.sizeof(blocks), formats[mask.dtype], 1, len(rows), keys, width, rows.data_ptr(), None, others)
    status = pack(packer, ctypes.byref(of), words.data_ptr(), raw_stream(mask.get_device()) if mask.is_cuda else None)
    if status:
        fail("fk_pack_blocks", status)


@functools.lru_cache(maxsize=None)
def packing():
    """fk_pack_blocks, fk_blocks, the fk_block_format of a dtype, the largest width, and what raises a failure."""
    on = library()
    on.lib.fk_pack_blocks.argtypes = [ctypes.c_void_p] * 4
    formats = {dtype: on.values["FK_BLOCK_" + name] for dtype, name in (
        (torch.bool, "BOOLS"), (torch.float32, "FP32"), (torch.float16, "FP16"), (torch.bfloat16, "BF16"))}
    return on.lib.fk_pack_blocks, on.header.types["fk_blocks"], formats, on.values["FK_MAX_SEQLEN"], on.fail
