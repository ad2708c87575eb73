"""Masks that are made once and used often, masks of blocks, and FlexAttention's BlockMask.

What is exact: every pair of query and key. What is skipped: a tile that the mask's expression, or a table of blocks whose
size is a multiple of the tile's, shows to be empty; one shown to be full is not tested. The kernel still visits the
skipped tiles one by one, without loading them: iteration lists, which leave them out, are not there yet."""
import itertools
import re
import sys
import warnings
import weakref
from typing import Any, Callable, Dict, Optional, Tuple, Union

from . import _symbols
from ._symbols import trace_mask

__all__ = ["BlockMask", "create_block_mask", "reader"]

CHUNK = 1 << 24  # pairs of query and key that are evaluated at once


class BlockMask:
    """A mask that has been traced: `attention(..., mask=block_mask)`.

    mask: the predicate (docs/expressions.md). arrays: {name: array} that it reads. seq_lengths: (queries, keys) that it
    was made for, or None: any."""

    def __init__(self, mask: str, arrays: Dict[str, Any], seq_lengths: Optional[Tuple[int, int]] = None):
        self.mask, self.arrays, self.seq_lengths = mask, arrays, seq_lengths

    def __repr__(self):
        arrays = "".join(f", {name}: {array.dtype} {list(array.shape)}" for name, array in self.arrays.items())
        return f"BlockMask({self.mask}{arrays})"

    def bind(self, named: Dict[str, Any]) -> Tuple[str, Dict[str, Any]]:
        """The predicate and its arrays, under names that `named` does not use for other arrays."""
        names = {}
        for name, array in self.arrays.items():
            fresh = itertools.chain([name], map("m{}".format, itertools.count()))
            names[name] = next(new for new in fresh if new not in names.values() and named.get(new, array) is array)
        text = re.sub(r"\b\w+(?=\[)", lambda read: names.get(read.group(), read.group()), self.mask)
        return text, {names[name]: array for name, array in self.arrays.items()}

    def check(self, seqlen_q: int, seqlen_k: int) -> None:
        """Raises ValueError where the mask does not reach that far."""
        if self.seq_lengths and (seqlen_q > self.seq_lengths[0] or seqlen_k > self.seq_lengths[1]):
            raise ValueError(f"the block mask is for {self.seq_lengths[0]} queries and {self.seq_lengths[1]} keys: there are "
                             f"{seqlen_q} and {seqlen_k}")


def create_block_mask(mask: Optional[Callable] = None, B: Optional[int] = None, H: Optional[int] = None,
                      Q_LEN: Optional[int] = None, KV_LEN: Optional[int] = None, device: Any = None,
                      BLOCK_SIZE: Union[int, Tuple[int, int]] = 128, *, blocks: Any = None) -> BlockMask:
    """Traces mask(b, h, q, k) once, so that calls of attention need not, and joins it with blocks that are shown.

    blocks: bools [batch|1, heads|1, rows, columns], or without the leading dimensions: pair (q, k) is shown where
    blocks[b, h, q // BLOCK_SIZE, k // BLOCK_SIZE] is set. A block size that is a multiple of 128 lets every kernel skip
    what is not set; others are as exact.

    Q_LEN and KV_LEN, if given, are the largest lengths that the mask will be used with. They, B and H are needed only for
    a function that cannot be traced: it is then evaluated for every pair, by PyTorch on `device`, with a warning.

    Raises ValueError for blocks that do not reach Q_LEN and KV_LEN, TraceError for a function that can be neither traced
    nor evaluated.

    >>> import numpy as np, flashkiln
    >>> flashkiln.create_block_mask(lambda b, h, q, k: (k <= q) & (q - k < 4096))
    BlockMask(k <= q && q - k < 4096)
    >>> flashkiln.create_block_mask(lambda b, h, q, k: k <= q, blocks=np.eye(8, dtype=bool), BLOCK_SIZE=64)
    BlockMask(m0[q / 64][k / 64] != 0 && k <= q, m0: int32 [8, 8])"""
    if mask is None and blocks is None:
        raise ValueError("create_block_mask: mask and blocks are None: must have one of them")
    lengths = (Q_LEN, KV_LEN) if Q_LEN is not None and KV_LEN is not None else None
    shown = mask
    if mask is not None:
        try:
            trace_mask(mask)
        except Exception as reason:
            if lengths is None or "torch" not in sys.modules:
                raise
            shown = densely(mask, (B or 1, H or 1, *lengths), device, reason)
    if blocks is not None:
        reach = block_reach(blocks, BLOCK_SIZE)
        lengths = lengths or reach
        if lengths[0] > reach[0] or lengths[1] > reach[1]:
            raise ValueError(f"blocks of shape {tuple(blocks.shape)} and BLOCK_SIZE {BLOCK_SIZE} reach {reach[0]} queries and "
                             f"{reach[1]} keys: must reach {lengths[0]} and {lengths[1]}")
        shown = in_blocks(blocks, BLOCK_SIZE, shown)
    return BlockMask(*trace_mask(shown), lengths)


# ---- tables of blocks ----


def block_sizes(size):
    return (size, size) if isinstance(size, int) else tuple(size)


def block_reach(blocks, size):
    if not 2 <= len(blocks.shape) <= 4:
        raise ValueError(f"blocks has shape {tuple(blocks.shape)}: must be [batch|1, heads|1, rows, columns]")
    return tuple(n * s for n, s in zip(blocks.shape[-2:], block_sizes(size)))


def table_reader(table, size):
    """read(b, h, q, k): the table's entry for a pair. Dimensions of one element are dropped."""
    shape, rows, columns = table.shape, *block_sizes(size)
    leading = [n for n in shape[:-2] if n > 1]
    leads_b, leads_h = len(shape) == 4 and shape[0] > 1, len(shape) > 2 and shape[-3] > 1
    source = table.reshape(*leading, *shape[-2:])
    if hasattr(source, "__array_interface__"):
        source = _symbols.array(source)

    def read(b, h, q, k):
        return source[(b,) * leads_b + (h,) * leads_h + (q // rows, k // columns)]
    return read


def in_blocks(blocks, size, mask):
    if _symbols.element_kind(blocks) != "bool":
        blocks = blocks != 0
    read = table_reader(_symbols.as_ints(blocks), size)
    if mask is None:
        return lambda b, h, q, k: read(b, h, q, k) != 0
    return lambda b, h, q, k: (read(b, h, q, k) != 0) & mask(b, h, q, k)


# ---- functions that cannot be traced ----


def evaluate(mask, shape, device):
    """Chunks (first query, bools [batch, heads, queries, keys]) of a mask_mod, as FlexAttention evaluates it."""
    from torch.nn.attention.flex_attention import create_mask
    batch, heads, queries, keys = shape
    rows = max(1, CHUNK // (batch * heads * keys))
    for first in range(0, queries, rows):
        def part(b, h, q, k):
            return mask(b, h, q + first, k)
        yield first, create_mask(part, batch, heads, min(rows, queries - first), keys, device)


def pack(bools):
    """Bit k % 32 of word k // 32."""
    import torch
    padded = torch.nn.functional.pad(bools, (0, -bools.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (padded.int() << torch.arange(32, dtype=torch.int32, device=bools.device)).sum(-1, dtype=torch.int32)


def densely(mask, shape, device, reason):
    """The same mask by a bit for each pair: traceable. Batch and heads are kept only where the mask differs between them."""
    import torch
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    differs = torch.zeros(2, dtype=torch.bool, device=device)
    for _, part in evaluate(mask, shape, device):
        differs |= torch.stack([(part != part[:1]).any(), (part != part[:, :1]).any()])
    by_b, by_h = differs.tolist()
    kept = (shape[0] if by_b else 1, shape[1] if by_h else 1, *shape[2:])
    words = torch.cat([pack(part) for _, part in evaluate(mask, kept, device)], dim=2)
    name = getattr(mask, "__name__", type(mask).__name__)
    warnings.warn(f"flashkiln: {name} is no expression ({reason}): it was evaluated for every pair into {words.nbytes} bytes",
                  stacklevel=4)
    words = words.reshape([n for n in words.shape[:2] if n > 1] + list(words.shape[2:]))

    def bit(b, h, q, k):
        word = words[(b,) * (kept[0] > 1) + (h,) * (kept[1] > 1) + (q, k >> 5)]
        return (word >> (k & 31) & 1) == 1
    return bit


# ---- FlexAttention's BlockMask ----


def is_flex(mask: Any) -> bool:
    """Is it a torch.nn.attention.flex_attention.BlockMask?"""
    return hasattr(mask, "mask_mod") and hasattr(mask, "kv_indices") and hasattr(mask, "BLOCK_SIZE")


def block_states(mask):
    """int32 [b, h, rows, columns]: 0 hidden, 1 by mask_mod, 2 shown."""
    import torch
    columns = max(mask.kv_indices.shape[-1], -(-mask.seq_lengths[1] // mask.BLOCK_SIZE[1]))

    def listed(counts, indices):
        valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        out = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.int32, device=indices.device)
        return out.scatter_(-1, torch.where(valid, indices.long(), columns), 1)[..., :columns]
    states = listed(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_num_blocks is not None:
        states = torch.maximum(states, 2 * listed(mask.full_kv_num_blocks, mask.full_kv_indices))
    return states


def by_states(states, size, mask):
    import torch
    read = table_reader(states, size)
    return lambda b, h, q, k: read(b, h, q, k) > torch.where(mask(b, h, q, k), 0, 1)


def agree(mask, other, shape, device):
    import torch
    differs = torch.zeros((), dtype=torch.bool, device=device)
    for (_, x), (_, y) in zip(evaluate(mask, shape, device), evaluate(other, shape, device)):
        differs |= (x != y).any()
    return not differs.item()


def convert(mask, batch, heads):
    """Of pure expressions tiles are classified best, so the lists are left out where they say the same; of what reads
    arrays, the lists know more about tiles than the expression."""
    states, lengths, device = block_states(mask), tuple(mask.seq_lengths), mask.kv_indices.device
    listed_batch, listed_heads = (1, 1, *states.shape)[-4:-2]
    mod, shape = mask.mask_mod, (batch or listed_batch, heads or listed_heads, *lengths)
    try:
        text, arrays = trace_mask(mod)
    except Exception as reason:
        mod = densely(mod, shape, device, reason)
        text, arrays = trace_mask(mod)
    by_lists = by_states(states, mask.BLOCK_SIZE, mod)
    if not arrays and text != "true":
        reads_b, reads_h = (re.search(rf"\b{name}\b", text) for name in "bh")
        needed = (shape[0] if reads_b else listed_batch, shape[1] if reads_h else listed_heads, *lengths)
        known = (batch or listed_batch > 1 or not reads_b) and (heads or listed_heads > 1 or not reads_h)
        if known and agree(mod, by_lists, needed, device):
            return BlockMask(text, arrays, lengths)
    return BlockMask(*trace_mask(by_lists), lengths)


_converted = weakref.WeakKeyDictionary()


def from_flex(mask: Any, batch: Optional[int] = None, num_heads: Optional[int] = None) -> BlockMask:
    """FlexAttention's BlockMask as ours, with its meaning: a pair is shown where its block is full, or is listed and
    mask_mod shows the pair. The tensors are read once for each block mask, batch and number of heads, which takes as long
    as evaluating mask_mod for every pair (where it is a pure expression or cannot be traced)."""
    made = _converted.setdefault(mask, {})
    if (batch, num_heads) not in made:
        made[batch, num_heads] = convert(mask, batch, num_heads)
    return made[batch, num_heads]


# ---- what attention(mask=, score=) accepts besides strings ----


def reader(what: str, value: Any, named: Optional[Dict[str, Any]] = None,
           shape: Optional[Tuple[int, int, int, int]] = None) -> Optional[Tuple[str, Dict[str, Any]]]:
    """(expression, {name: array}) of a function, BlockMask or FlexAttention's BlockMask; None for anything else. `what` is
    "mask" or "score"; `named` are arrays that have names already; shape: batch, query heads, queries, keys of the call,
    without which lengths are not checked, and a mask_mod that cannot be traced is evaluated for the lists' batch and heads."""
    if what == "mask" and is_flex(value):
        value = from_flex(value, *shape[:2]) if shape else from_flex(value)
    if what == "mask" and isinstance(value, BlockMask):
        if shape:
            value.check(*shape[2:])
        return value.bind(named or {})
    if not callable(value):
        return None
    return (_symbols.trace_mask if what == "mask" else _symbols.trace_score)(value, named)
