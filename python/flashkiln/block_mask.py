"""Masks that are made once and used often, masks of blocks, and FlexAttention's BlockMask.

What is exact: every pair of query and key. What is skipped: a tile that the mask's expression, or a table of blocks whose
size is a multiple of the tile's, shows to be empty; one shown to be full is not tested. Tables are kept as bits, of which a
kernel reads 32 at once, and are made on the device that the blocks are on, without a look from the host."""
import itertools
import operator
import re
import sys
import warnings
import weakref
from typing import Any, Callable, Dict, Optional, Tuple, Union

from . import _symbols
from ._arguments import is_tensor
from ._symbols import trace_mask
from .errors import BadArgument

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
                      BLOCK_SIZE: Union[int, Tuple[int, int]] = 128, *, blocks: Any = None, bsr: Any = None) -> BlockMask:
    """Traces mask(b, h, q, k) once, so that calls of attention need not, and joins it with blocks that are shown.

    blocks: bools [batch|1, heads|1, rows, columns], or without the leading dimensions: pair (q, k) is shown where
    blocks[b, h, q // BLOCK_SIZE, k // BLOCK_SIZE] is set. A block size that is a multiple of 128 lets every kernel skip
    what is not set; others are as exact. Or a function of (b, h, block row, block column). In place of blocks, bsr=(indptr, indices) lists the columns of each row of blocks,
    as SciPy and FlashInfer do; it needs KV_LEN.

    Q_LEN and KV_LEN, if given, are the largest lengths that the mask will be used with. They, B and H are needed only for
    a function that cannot be traced: it is then evaluated for every pair, by PyTorch on `device`, with a warning.

    Raises ValueError for blocks that do not reach Q_LEN and KV_LEN, TraceError for a function that can be neither traced
    nor evaluated.

    >>> import numpy as np, flashkiln
    >>> flashkiln.create_block_mask(lambda b, h, q, k: (k <= q) & (q - k < 4096))
    BlockMask(k <= q && q - k < 4096)
    >>> flashkiln.create_block_mask(lambda b, h, q, k: k <= q, blocks=np.eye(8, dtype=bool), BLOCK_SIZE=64)
    BlockMask(bit(m0[q >> 6][k >> 6 >> 5], k >> 6) && k <= q, m0: int32 [8, 1])"""
    if bsr is not None:
        if blocks is not None or KV_LEN is None:
            raise ValueError("create_block_mask: bsr is given " + ("without KV_LEN" if blocks is None else "and blocks, too"))
        blocks = blocks_of_bsr(*bsr, -(-KV_LEN // block_sizes(BLOCK_SIZE)[1]))
        Q_LEN = Q_LEN or blocks.shape[0] * block_sizes(BLOCK_SIZE)[0]
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
    if blocks is not None and not callable(blocks):
        blocks = as_array(blocks, "blocks", "biu")
        reach = block_reach(blocks, BLOCK_SIZE)
        lengths = lengths or reach
        if lengths[0] > reach[0] or lengths[1] > reach[1]:
            raise ValueError(f"blocks of shape {tuple(blocks.shape)} and BLOCK_SIZE {BLOCK_SIZE} reach {reach[0]} queries and "
                             f"{reach[1]} keys: must reach {lengths[0]} and {lengths[1]}")
    if blocks is not None:
        shown = in_blocks(blocks, BLOCK_SIZE, shown)
    return BlockMask(*trace_mask(shown), lengths)


# ---- tables of blocks ----


def block_sizes(size):
    try:
        rows, columns = map(operator.index, size if hasattr(size, "__len__") else (size, size))
    except (TypeError, ValueError):
        rows = columns = 0
    if min(rows, columns) < 1:
        raise ValueError(f"BLOCK_SIZE is {size!r}: must be an int from 1, or (rows, columns)")
    return rows, columns


def as_array(x, name, kinds):
    """An array of any library as it is, a list as NumPy's."""
    if not hasattr(x, "shape"):
        import numpy
        x = numpy.asarray(x, "int32" if len(x) == 0 else None)
    elif not is_tensor(x) and not hasattr(x, "__array_interface__"):
        import numpy
        x = numpy.asarray(x)
    if getattr(x.dtype, "kind", "f" if getattr(x.dtype, "is_floating_point", False) else "i") not in kinds:
        raise ValueError(f"{name} has dtype {x.dtype}: must be of {'bools or ' if 'b' in kinds else ''}ints")
    return x


def block_reach(blocks, size):
    if not 2 <= len(blocks.shape) <= 4:
        raise ValueError(f"blocks has shape {tuple(blocks.shape)}: must be [batch|1, heads|1, rows, columns]")
    return tuple(n * s for n, s in zip(blocks.shape[-2:], block_sizes(size)))


def blocks_of_bsr(indptr, indices, columns):
    """Bools [rows, columns] of a list of the columns of each row."""
    indptr, indices = as_array(indptr, "bsr: indptr", "iu"), as_array(indices, "bsr: indices", "iu")
    rows = indptr.shape[0] - 1
    if hasattr(indptr, "__array_interface__") or not indptr.is_cuda:
        check_bsr(indptr, indices, columns)
    if hasattr(indptr, "__array_interface__"):
        import numpy
        out = numpy.zeros((rows, columns), bool)
        out[numpy.repeat(numpy.arange(rows), numpy.diff(indptr)), indices] = True
        return out
    import torch
    row = torch.searchsorted(indptr, torch.arange(indices.shape[0], device=indptr.device, dtype=indptr.dtype), right=True) - 1
    there = (row >= 0) & (row < rows) & (indices >= 0) & (indices < columns)  # nothing waits for the device to tell of others
    out = torch.zeros(rows * columns + 1, dtype=torch.bool, device=indptr.device)
    return out.index_fill_(0, torch.where(there, row * columns + indices, rows * columns).long(), True)[:-1].view(rows, columns)


def check_bsr(indptr, indices, columns):
    """Where that takes no synchronisation; on a GPU what is out of range marks nothing."""
    ends, found = indptr.tolist(), indices.tolist()
    for row, (begin, end) in enumerate(zip(ends, ends[1:])):
        if end < begin:
            raise BadArgument(f"bsr: indptr[{row + 1}] is {end}; it must be at least the one before, {begin}")
    if not ends or ends[0] != 0 or ends[-1] != len(found):
        raise BadArgument(f"bsr: indptr goes from {ends[0] if ends else None} to {ends[-1] if ends else None}; it must go from 0 to the "
                          f"number of indices, {len(found)}")
    for row, (begin, end) in enumerate(zip(ends, ends[1:])):
        for column in found[begin:end]:
            if not 0 <= column < columns:
                raise BadArgument(f"bsr: row {row} has column {column}; it must be from 0 to {columns - 1}")


def packed(blocks):
    """Bools [..., rows, columns] as int32 [..., rows, words]: bit j % 32 of word j // 32 is column j."""
    if _symbols.element_kind(blocks) != "bool":
        blocks = blocks != 0
    if hasattr(blocks, "__array_interface__"):
        import numpy
        blocks = numpy.ascontiguousarray(numpy.pad(blocks, [(0, 0)] * (blocks.ndim - 1) + [(0, -blocks.shape[-1] % 32)]))
        return numpy.packbits(blocks, axis=-1, bitorder="little").view("<i4")
    from ._sdpa import packed_bits
    return packed_bits(blocks)


def quotient(x, size):
    """x // size of an x that is not negative: a shift where it can be."""
    return x >> size.bit_length() - 1 if size & size - 1 == 0 else x // size


def bit(word, n):
    """Bit n % 32, of symbols or, where a mask is evaluated, of tensors."""
    return _symbols.bit(word, n) if isinstance(n, _symbols.Symbol) else (word >> (n & 31) & 1) != 0


def bit_reader(blocks, size):
    """shown(b, h, q, k): what a table of bools says of a pair's block. Dimensions of one element are dropped."""
    words, (rows, columns) = packed(blocks), block_sizes(size)
    shape = words.shape
    leading = [n for n in shape[:-2] if n > 1]
    leads_b, leads_h = len(shape) == 4 and shape[0] > 1, len(shape) > 2 and shape[-3] > 1
    source = words.reshape(*leading, *shape[-2:])
    if hasattr(source, "__array_interface__"):
        source = _symbols.array(source)

    def shown(b, h, q, k):
        j = quotient(k, columns)
        return bit(source[(b,) * leads_b + (h,) * leads_h + (quotient(q, rows), j >> 5)], j)
    return shown


def predicate(blocks, size):
    rows, columns = block_sizes(size)
    return lambda b, h, q, k: blocks(b, h, quotient(q, rows), quotient(k, columns))


def in_blocks(blocks, size, mask):
    shown = predicate(blocks, size) if callable(blocks) else bit_reader(blocks, size)
    return shown if mask is None else lambda b, h, q, k: shown(b, h, q, k) & mask(b, h, q, k)


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
    words = torch.cat([packed(part) for _, part in evaluate(mask, kept, device)], dim=2)
    name = getattr(mask, "__name__", type(mask).__name__)
    warnings.warn(f"flashkiln: {name} is no expression ({reason}): it was evaluated for every pair into {words.nbytes} bytes",
                  stacklevel=4)
    words = words.reshape([n for n in words.shape[:2] if n > 1] + list(words.shape[2:]))

    def seen(b, h, q, k):
        return bit(words[(b,) * (kept[0] > 1) + (h,) * (kept[1] > 1) + (q, k >> 5)], k)
    return seen


# ---- FlexAttention's BlockMask ----


def is_flex(mask: Any) -> bool:
    """Is it a torch.nn.attention.flex_attention.BlockMask?"""
    return hasattr(mask, "mask_mod") and hasattr(mask, "kv_indices") and hasattr(mask, "BLOCK_SIZE")


def block_lists(mask):
    """Bools [b, h, rows, columns]: which blocks are listed at all, and which of them are full; None: none are."""
    import torch
    columns = max(mask.kv_indices.shape[-1], -(-mask.seq_lengths[1] // mask.BLOCK_SIZE[1]))

    def listed(counts, indices):
        valid = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
        out = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
        return out.scatter_(-1, torch.where(valid, indices.long(), columns), True)[..., :columns]
    some = listed(mask.kv_num_blocks, mask.kv_indices)
    if mask.full_kv_num_blocks is None:
        return some, None
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    return some | full, full


def by_lists(some, full, size, mask):
    """mask: a function, or None: it shows every pair of what is listed."""
    if mask is None:
        return in_blocks(some, size, None)
    listed = bit_reader(some, size)
    if full is None:
        return lambda b, h, q, k: listed(b, h, q, k) & mask(b, h, q, k)
    whole = bit_reader(full, size)
    return lambda b, h, q, k: listed(b, h, q, k) & (whole(b, h, q, k) | mask(b, h, q, k))


def agree(mask, other, shape, device):
    import torch
    differs = torch.zeros((), dtype=torch.bool, device=device)
    for (_, x), (_, y) in zip(evaluate(mask, shape, device), evaluate(other, shape, device)):
        differs |= (x != y).any()
    return not differs.item()


def convert(mask, batch, heads):
    """Of pure expressions tiles are classified best, so the lists are left out where they say the same; of what reads
    arrays, the lists know more about tiles than the expression."""
    lists, lengths, device = block_lists(mask), tuple(mask.seq_lengths), mask.kv_indices.device
    listed_batch, listed_heads = (1, 1, *lists[0].shape)[-4:-2]
    mod, shape = mask.mask_mod, (batch or listed_batch, heads or listed_heads, *lengths)
    try:
        text, arrays = trace_mask(mod)
    except Exception as reason:
        mod = densely(mod, shape, device, reason)
        text, arrays = trace_mask(mod)
    shown = by_lists(*lists, mask.BLOCK_SIZE, None if text == "true" else mod)
    if not arrays and text != "true":
        reads_b, reads_h = (re.search(rf"\b{name}\b", text) for name in "bh")
        needed = (shape[0] if reads_b else listed_batch, shape[1] if reads_h else listed_heads, *lengths)
        known = (batch or listed_batch > 1 or not reads_b) and (heads or listed_heads > 1 or not reads_h)
        if known and agree(mod, shown, needed, device):
            return BlockMask(text, arrays, lengths)
    return BlockMask(*trace_mask(shown), lengths)


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
