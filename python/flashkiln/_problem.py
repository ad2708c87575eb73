"""What is asked, from Python's keyword arguments to a problem's spelling, and shapes to the fields of fk_args. Pure:
neither torch nor NumPy, so that every front says the same."""
from __future__ import annotations

import functools
import math
import re
from operator import index
from typing import NamedTuple, Optional

from ._capi import library
from .errors import BadArgument, BadProblem

LAYOUTS = {"bshd": (0, 1, 2), "bhsd": (0, 2, 1), "packed": (None, 0, 1)}  # axes of batch, seqlen, head
UNBOUNDED = 1 << 29  # of a window: beyond any sequence, and q + diag + this still fits 32 bits
NAMED_TERM = re.compile(r"\s*(?!(?:true|false|s|q|k|b|h)\s*$)[A-Za-z_]\w*\s*(\([-+.,\s\deEx]*\))?\s*$")
BLOCKS_TERM = re.compile(r'\s*blocks\([\s\dx]*\)="[^"]*"\s*$')  # a predicate over blocks, which may read arrays


# ---- masks and scores ------------------------------------------------------------------------------------------------

ELEMENTS = {"FK_FLOAT32": "float", "FK_INT32": "int", "FK_FLOAT16": "fp16", "FK_BFLOAT16": "bf16"}  # as types spell them

class Terms:
    """The words of a problem but for op, dtype and head dims, with the arrays that they read.

    `words` says it all: Terms.of(words) is the same for the same words. `arrays`: fk_array_decl of each array in the
    order of fk_args.array, `names` and `elements` (words of ELEMENTS) likewise; `rows`: of arrays of floats that have keys last
    and queries before them, the queries' axis, else None. `calls` is for fronts: what they have prepared."""

    def __init__(self, words):
        self.words = words
        self.arrays = library().array_decls(library().problem("fwd bf16 d64 " + words))
        self.names = tuple(decl.name.decode() for decl in self.arrays)
        spelled = {library().values[name]: word for name, word in ELEMENTS.items()}
        self.elements = tuple(spelled[decl.type] for decl in self.arrays)
        self.rows = tuple(rows_of(decl) if element != "int" else None for decl, element in zip(self.arrays, self.elements))
        flags = set(words.split()) & {"packed", "seqused_k", "paged"}
        self.bare = not self.arrays and not flags  # reads nothing but q, k and v
        self.calls = {}

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def of(words):
        return Terms(words)

    @functools.cached_property
    def scored(self):
        """For each array: does a score read it? One that masks alone read has no gradient."""
        lib = library()
        tile = lib.make("fk_plan_info", block_m=64, block_n=64)

        def is_scored(name):
            try:  # what reads the terms, and is soon done
                lib.tiles(lib.problem(f"bwd bf16 d64 {self.words} grad={name}"), tile, lib.shape(1, 1, 64))
            except BadProblem as error:  # or something else is wrong with a backward pass
                return "no score term reads it" not in str(error)
            return True
        return tuple(is_scored(name) for name in self.names)

    def spelling(self, op, dtype, shapes, *more):
        """The problem's spelling for tensors of these shapes; `more` are words besides."""
        dims = f"d{shapes.dim}" + (f" dv{shapes.dim_v}" if shapes.dim_v != shapes.dim else "")
        gqa = ["gqa"] if shapes.heads_q != shapes.heads_kv else []
        words = self.words
        if shapes.page_size:
            words += page_rows(shapes.page_size)  # "paged" is the last of them
        return " ".join(filter(None, [op, dtype, dims, *gqa, words, *more]))


def page_rows(page_size):
    """What stands behind the word `paged`: the most rows that pages of this size can be copied in, if that is 8 or more."""
    rows = min(page_size & -page_size, library().values["FK_MAX_PAGE_ROWS"])
    return f"({rows})" if rows >= 8 else ""


def rows_of(decl):
    """The axis of queries in an array whose last one is that of keys, or None."""
    queries, keys = library().values["FK_DIM_SEQLEN_Q"], library().values["FK_DIM_SEQLEN_K"]
    dims = list(decl.dim[:decl.rank])
    return dims.index(queries) if dims[-1] == keys and queries in dims else None


def in_order(names, given):
    """The values of {name: array} in the order of `names`, which masks and scores read."""
    for name in given:
        if name not in names:
            raise BadProblem(f"arrays: no mask or score reads '{name}'; they read: {listed(names)}")
    for name in names:
        if name not in given:
            raise BadProblem(f"arrays: '{name}' is missing; given: {listed(given)}")
    return [given[name] for name in names]


def listed(names):
    return ", ".join(f"'{name}'" for name in names) or "none"


# Arrays that arguments of their own bring, and the terms that read them, in the order in which they are applied.
BUILT_IN = {"slope": "alibi", "batch_slope": 'score="s - batch_slope[b][h] * abs(q + diag - k)"', "bias": "bias",
            "sink": "sink"}
DIMENSIONS = {"slope": "[h]", "batch_slope": "[b][h]", "bias": "[b][h][q][k]", "sink": "[h]"}


@functools.lru_cache(maxsize=4096)
def terms(causal=False, window=None, mask=None, score=None, softcap=None, align="bottom-right", brought=(), arrays=(),
          dropout=False, packed=False, seqused_k=False, paged=False, fast=False, patterns=()):
    """Terms of attention's arguments. mask, score: a string or a tuple of them; patterns: a tuple of sparsity's. arrays:
    (key, element, rank) of each of the caller's arrays, whose key is NAME or NAME:DECLARATION; brought: (name, element) of
    those of other arguments, with names in BUILT_IN. Scores apply in this order: softcap, alibi_slopes, bias, the caller's."""
    brought = dict(brought)
    names = [*brought, *(bare(key) for key, _, _ in arrays)]
    if len(set(names)) != len(names):
        raise BadProblem(f"arrays: a name is given twice: {listed(names)}; alibi_slopes is 'slope' or 'batch_slope', bias "
                         "and sink are 'bias' and 'sink'")
    masks, scores = several("mask", mask), several("score", score)
    words = [window_words(causal, window)]
    words += [f"softcap({float(softcap)!r})"] if softcap else []
    words += [word for name, word in BUILT_IN.items() if name in brought]
    words += [term("score", text) for text in scores] + [term("mask", text) for text in masks]
    words += [term("sparsity", text) for text in patterns]
    expressions = [text for text in masks + scores + patterns if not NAMED_TERM.match(text)]
    words += [declaration(key, element, rank, expressions) for key, element, rank in arrays]
    words += [f"array={name}:{element}{DIMENSIONS[name]}" for name, element in brought.items()
              if element != "float" or name == "batch_slope"]
    if align not in ("bottom-right", "top-left"):
        raise BadProblem(f'align is {align!r}; it must be "bottom-right" or "top-left"')
    words += ["top-left"] if align == "top-left" else []
    flags = {"dropout": dropout, "packed": packed, "seqused_k": seqused_k, "fast": fast, "paged": paged}
    words += [word for word, on in flags.items() if on]
    return Terms.of(" ".join(filter(None, words)))


TERMS = {"mask": "an expression, a mask or a pattern (docs/masks-and-scores.md, docs/block-sparse.md)",
         "score": "an expression or a score term (docs/masks-and-scores.md)",
         "sparsity": 'a pattern, such as "butterfly(128)" or \'blocks(64)="i >= j"\' (docs/block-sparse.md)'}


def term(what, text):
    """The word of a problem for a text that is given as mask, score or sparsity."""
    if NAMED_TERM.match(text):
        check_word(what, text)
        return text
    if what != "score" and BLOCKS_TERM.match(text):
        return text
    if what == "sparsity":
        raise BadArgument(f"sparsity is {text!r}; it must be {TERMS[what]}")
    return f'{"keep" if what == "mask" else what}="{quotable(what, text)}"'


def check_word(what, text):
    """Raises unless this word of the problem language is a `what`: a problem of it alone has a mask, a score or a pattern more."""
    why, fits = "", False
    try:
        problem = library().problem("fwd bf16 d64 " + text)
        fits = {"mask": problem.num_masks, "score": problem.num_scores, "sparsity": library().blocks(problem)[0]}[what]
    except BadProblem as error:  # unknown, or a word of dtypes and sizes, or its values are wrong
        why = f": {error}"
    if not fits:
        raise BadArgument(f"{what} is {text!r}; it must be {TERMS[what]}{why}")


def quotable(what, text):
    if '"' in text:
        raise BadProblem(f"{what}: an expression has no quotation marks: {text}")
    return text


def read(what, value, arrays, shape=None):
    """A mask or score that is no string, as (a tuple of strings, arrays with those that it brings): a function of
    symbols, a block mask, or a list of these and of strings. shape: batch, query heads, queries and keys; None and 0 for
    what is not known, as of packed sequences."""
    from .block_mask import reader
    texts, arrays = [], dict(arrays or {})
    for part in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(part, str):
            named = {bare(key): x for key, x in arrays.items()}
            part, brought = reader(what, part, named, shape) or (part, {})
            arrays.update((name, x) for name, x in brought.items() if name not in named)
        texts += several(what, part)
    return tuple(texts), arrays


def joined(mask, sparsity):
    """What attention takes as mask= and sparsity=, as (mask with sparsity's block masks, texts of sparsity: patterns)."""
    masks, parts = ([] if x is None else list(x) if isinstance(x, (list, tuple)) else [x] for x in (mask, sparsity))
    others = [part for part in parts if not isinstance(part, str)]
    for part in others:
        if isinstance(part, (int, float)):
            raise BadArgument(f"sparsity is {part!r}; it must be {TERMS['sparsity']}")
    return masks + others if others else mask, tuple([part for part in parts if isinstance(part, str)])


def bare(key):
    """The name of NAME or NAME:DECLARATION."""
    return key.partition(":")[0].strip()


def several(what, value):
    """A string or several, as a tuple of strings."""
    texts = () if value is None else value if isinstance(value, tuple) else (value,)
    for text in texts:
        if not isinstance(text, str):
            raise BadProblem(f"{what} is {text!r}; it must be an expression, the name of a {what}, or a list of these")
    return texts


def window_of(window):
    """As terms keeps it apart: None, an int, or two."""
    try:
        return None if window is None else tuple(map(index, window)) if hasattr(window, "__len__") else index(window)
    except TypeError:
        raise BadProblem(f"window is {window!r}; it must be an int, or two") from None


def window_words(causal, window):
    """The words of causal and window: an int w is (w, 0) with causal and (w, w) without; -1 is unbounded."""
    try:
        left, right = (-1, -1) if window is None else window if isinstance(window, tuple) else (window, window)
        left, right = index(left), index(right)
    except (TypeError, ValueError):
        raise BadProblem(f"window is {window!r}; it must be an int, or two") from None
    if causal:
        right = 0
    if left < -1 or right < -1:
        raise BadProblem(f"window is {window}; sides must be at least 0, or -1 for unbounded")
    if left < 0 and right < 0:
        return ""
    if left < 0 and right == 0:
        return "causal"
    return f"window({UNBOUNDED if left < 0 else left},{UNBOUNDED if right < 0 else right})"


def declaration(key, element, rank, expressions):
    """`array=NAME:TYPE[...]` of an array that expressions read, "" of one that a named term declares. Dimensions follow
    from plain indices: slope[h] runs over heads; any other index makes a dimension of a size given at run time."""
    if ":" in key:
        return "array=" + key.replace(" ", "")
    found = [indices for text in expressions for indices in reads(text, key)]
    if not found:
        return ""
    if any(len(indices) != rank for indices in found):
        raise BadProblem(f"arrays: '{key}' has {rank} dimensions, and is read as {key}"
                         + "".join(f"[{index}]" for index in next(i for i in found if len(i) != rank)))
    dims = []
    for axis in zip(*found):
        plain = axis[0] in ("b", "h", "q", "k") and len(set(axis)) == 1
        dims.append(f"[{axis[0] if plain else ''}]")
    return f"array={key}:{element}{''.join(dims)}"


def reads(text, name):
    """The indices of each read of an array: [["b", "q + 1"]] of name[b][q + 1]."""
    out = []
    for match in re.finditer(rf"\b{re.escape(name)}\s*(?=\[)", text):
        indices, at = [], match.end()
        while at < len(text) and text[at] == "[":
            end = closing(text, at)
            indices.append(text[at + 1:end].strip())
            at = end + 1
            while text[at:at + 1] == " ":
                at += 1
        out.append(indices)
    return out


def closing(text, at):
    """Where the bracket that opens at `at` is closed."""
    depth = 0
    for end in range(at, len(text)):
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if not depth:
            return end
    raise BadProblem(f"expression, column {at + 1}: '[' is not closed\n    {text}\n    {' ' * at}^")


# ---- shapes ----------------------------------------------------------------------------------------------------------

class Shapes(NamedTuple):
    """Sizes of one launch, by the names of fk_args."""
    batch: int
    heads_q: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    dim: int
    dim_v: int
    total_q: int = 0
    total_k: int = 0
    page_size: int = 0
    num_pages: int = 0
    page_columns: int = 0

    def o(self, layout, dim=None):
        """(shape, strides) of o, or of q with dim: in memory always [batch, seqlen, heads, dim]."""
        return in_memory(layout, self.batch, self.total_q if layout == "packed" else self.seqlen_q, self.heads_q,
                         dim or self.dim_v)

    def k(self, layout, dim):
        return in_memory(layout, self.batch, self.total_k if layout == "packed" else self.seqlen_k, self.heads_kv, dim)

    def lse(self, layout):
        return (self.heads_q, self.total_q) if layout == "packed" else (self.batch, self.heads_q, self.seqlen_q)


def in_memory(layout, batch, seqlen, heads, dim):
    if layout == "packed":
        return (seqlen, heads, dim), (heads * dim, dim, 1)
    if layout == "bshd":
        return (batch, seqlen, heads, dim), (seqlen * heads * dim, heads * dim, dim, 1)
    return (batch, heads, seqlen, dim), (seqlen * heads * dim, dim, heads * dim, 1)


def shapes(q, k, v, layout, sequences=None, max_q: Optional[int] = None, max_k: Optional[int] = None, pages=None):
    """Shapes of q, k and v. `sequences`: of packed ones, how many; `pages`: the shape of page_table."""
    if layout not in LAYOUTS:
        raise BadArgument(f'layout is {layout!r}; it must be "bshd" or "bhsd"')
    kv_layout = "bshd" if layout == "packed" and pages is not None else layout
    for name, shape, how in (("q", q, layout), ("k", k, kv_layout), ("v", v, kv_layout)):
        rank = 3 if how == "packed" else 4
        if len(shape) != rank:
            raise BadArgument(f"{name} has shape {tuple(shape)}; it must have {rank} dimensions"
                              + (" with cu_seqlens_q: [total, heads, dim]" if rank == 3 else f", {', '.join(how)}"))
    _, row, head = LAYOUTS[layout]
    _, row_k, head_k = LAYOUTS[kv_layout]
    if q[-1] != k[-1]:
        raise BadArgument(f"head_dim of q is {q[-1]} and of k {k[-1]}; they must be equal")
    if k[:-1] != v[:-1]:
        raise BadArgument(f"k has shape {tuple(k)} and v {tuple(v)}; they may differ in the last dimension alone")
    batch = q[0] if sequences is None else sequences
    if sequences is not None and sequences < (0 if 0 in (*q, *k, *v) else 1):
        raise BadArgument(f"cu_seqlens_q has {sequences + 1} elements; it must have one more than there are sequences, of which there "
                          "must be at least 1")
    total_q, total_k = (q[row], k[row_k]) if sequences is not None else (0, 0)
    rows_k = k[row_k]
    page_size = num_pages = columns = 0
    if pages is not None:
        page_size, num_pages, columns = k[row_k], k[0], pages[1]
        rows_k = page_size * columns
        if sequences is not None:  # as many as there may be: sequences may share pages
            total_k = min(max(1, sequences * (max_k or rows_k)), 2 ** 31 - 1)
        if tuple(pages) != (batch, columns):
            raise BadArgument(f"page_table has shape {tuple(pages)}; the batch is {batch}")
    elif sequences is None and k[0] != batch:
        raise BadArgument(f"the batch of q is {batch} and of k {k[0]}; they must be equal")
    packed = sequences is not None
    return Shapes(batch, q[head], k[head_k], max_q if packed and max_q else q[row],
                  max_k if (packed or pages is not None) and max_k else rows_k, q[-1], v[-1], total_q, total_k,
                  page_size, num_pages, columns)


def check_lengths(sizes, cu_q, cu_k, used, max_q, max_k):
    """Shapes of cu_seqlens_q, cu_seqlens_k and seqused_k, or None, which kernels read as far as the batch goes; and upper bounds of
    lengths, or None and 0, which must be some also where the tensors say the lengths."""
    for name, shape in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if shape is not None and tuple(shape) != (sizes.batch + 1,):
            raise BadArgument(f"{name} has shape {tuple(shape)}; the batch is {sizes.batch}, so that it must be {(sizes.batch + 1,)}")
    if used is not None and tuple(used) != (sizes.batch,):
        raise BadArgument(f"seqused_k has shape {tuple(used)}; the batch is {sizes.batch}, so that it must be {(sizes.batch,)}")
    if sizes.page_columns and max_k and max_k > sizes.page_columns * sizes.page_size:
        raise BadArgument(f"max_seqlen_k is {max_k}; page_table has {sizes.page_columns} columns of pages of {sizes.page_size} rows")
    told = ((("max_seqlen_q", max_q, sizes.seqlen_q),) if cu_q is None else ()) + (
        (("max_seqlen_k", max_k, sizes.seqlen_k),) if cu_q is None and used is None and not sizes.page_columns else ())
    for name, most, length in told:
        if most and most < length:
            fewer = "cu_seqlens_q" if name == "max_seqlen_q" else "cu_seqlens_k or seqused_k"
            raise BadArgument(f"{name} is {most}; {name[-1]} has {length} rows, all of which count without {fewer}")


def lengths(q, k, layout, pages=None, used=False, max_k=None):
    """batch, query heads, queries and keys of these shapes, which are not packed. pages: the shape of page_table, or None, behind which
    there may be fewer keys where they are told (used, max_k): max_k, or 0 for not known."""
    _, row, head = LAYOUTS[layout]
    return q[0], q[head], q[row], k[row] if pages is None else max_k or (0 if used else pages[1] * k[row])


def suits(shape, strides, unit):
    """Whether 16-byte copies are possible: `unit` elements of the dtype are 16 bytes."""
    return strides[-1] == 1 and all(s % unit == 0 for n, s in zip(shape[:-1], strides[:-1]) if n > 1)


def triple(shape, strides, layout):
    """Strides of [batch, seqlen, head]; those of axes of 1, which are never stepped along, are 0."""
    return tuple(0 if axis is None or shape[axis] == 1 else strides[axis] for axis in LAYOUTS[layout])


DIMS = {"FK_DIM_BATCH": "batch", "FK_DIM_HEADS_Q": "heads_q", "FK_DIM_SEQLEN_Q": "seqlen_q",
        "FK_DIM_SEQLEN_K": "seqlen_k"}


def check_array(decl, shape, sizes):
    """Raises unless an array of this shape can be what is declared: each axis as long as its dimension, or 1."""
    name = decl.name.decode()
    if len(shape) != decl.rank:
        raise BadArgument(f"'{name}' has shape {tuple(shape)}; it must have {decl.rank} dimensions")
    for axis, dim in enumerate(decl.dim[:decl.rank]):
        what = next((field for value, field in DIMS.items() if library().values[value] == dim), None)
        allowed = getattr(sizes, what) if what else shape[axis]
        if shape[axis] not in (1, allowed) or not shape[axis]:
            raise BadArgument(f"'{name}' has shape {tuple(shape)}; axis {axis} must be 1 or "
                              f"{what or 'positive'}{f', which is {allowed}' if what else ''}")


def check_head_dims(dim, dim_v):
    """Those of the caller's, before they are padded."""
    for name, n, most in (("head_dim", dim, MAX_HEAD_DIM), ("head_dim of v", dim_v, MAX_HEAD_DIM_V)):
        if not 1 <= n <= most:
            raise BadArgument(f"{name} is {n}; it must be from 1 to {most}")


def padding(dim, unit=8):
    """The columns that a head dim lacks of one that the kernels know: a multiple of `unit`, of wide ones of 64."""
    return -dim % (WIDE_UNIT if dim > NARROW_HEAD_DIM else unit)


def check_heads(sizes):
    """Where nothing is computed, so that the library does not see it."""
    if sizes.heads_q and (not sizes.heads_kv or sizes.heads_q % sizes.heads_kv):
        raise BadArgument(f"q has {sizes.heads_q} heads and k {sizes.heads_kv}; the former must be a multiple of the latter")


def check_ranks(cu_q, cu_k, used, pages):
    """Shapes of cu_seqlens_q, cu_seqlens_k, seqused_k and page_table, or None."""
    for name, shape, rank in (("cu_seqlens_q", cu_q, 1), ("cu_seqlens_k", cu_k, 1), ("seqused_k", used, 1), ("page_table", pages, 2)):
        if shape is not None and len(shape) != rank:
            raise BadArgument(f"{name} has shape {tuple(shape)}; it must have {rank} dimension{'s' * (rank > 1)}")


LENGTHS = ("length", "first", "prefix")  # arrays of built-in masks whose ints mean beyond int32 what its ends mean


def check_ints(name, least, most):
    """Kernels read ints of 32 bits, to which others, such as hashes for ids, would be cut."""
    if least < -2 ** 31 or most > 2 ** 31 - 1:
        raise BadArgument(f"'{name}' has ints from {least} to {most}; they must be from {-2 ** 31} to {2 ** 31 - 1}")


def check_words(words, keys):
    """The mask `bits` has a word for 32 keys; an array of fewer would be read again from its last one."""
    if 32 * words < keys:
        raise BadArgument(f"'bits' has {words} words of 32 keys; there are {keys} keys")


def packed_layout(layout):
    """"packed", of a call with cu_seqlens_q, whose tensors have one layout."""
    if layout not in ("bshd", "packed"):
        raise BadArgument(f"layout is {layout!r}; with cu_seqlens_q tensors are [total, heads, dim], and it is not to be given")
    return "packed"


def rows_axis(layout):
    return LAYOUTS[layout][1] if layout in LAYOUTS else 1


def dropout_of(dropout_p):
    if not 0 <= dropout_p < 1:  # nor nan
        raise BadArgument(f"dropout_p is {dropout_p}; it must be in [0, 1)")
    return float(dropout_p)


def scale_of(softmax_scale, dim):
    """The factor of the scores: 1 / sqrt(dim) unless given."""
    if softmax_scale is None:
        return 1.0 / math.sqrt(dim)
    if not LEAST_SCALE <= softmax_scale <= MOST_SCALE:
        raise BadArgument(f"softmax_scale is {softmax_scale}; it must be from {LEAST_SCALE:.4g} to {MOST_SCALE:.4g}")
    return float(softmax_scale)


def splits_of(num_splits):
    """-1: it is not given."""
    if num_splits is None:
        return -1
    if int(num_splits) != num_splits or not 0 <= num_splits <= MAX_SPLITS:
        raise BadArgument(f"num_splits is {num_splits}; it must be 0 to {MAX_SPLITS}")
    return int(num_splits)


def wants_split(num_splits, sizes, kv_e4m3=False):
    """Whether several CTAs shall share a row's keys: as asked, or, for -1, where there are few queries and many keys. Of 8 bits
    (kv_e4m3) keys are read as they are with splits alone, which pays off for more queries (docs/e4m3.md)."""
    if num_splits >= 0:
        return num_splits != 1
    rows = sizes.seqlen_q * sizes.heads_q // max(sizes.heads_kv, 1)
    few = sizes.seqlen_q <= DECODING_ROWS or kv_e4m3 and sizes.seqlen_q <= NARROW_ROWS and rows <= NARROW_JOINED_ROWS
    return few and sizes.seqlen_k >= DECODING_KEYS


MAX_SPLITS, MAX_HEAD_DIM, MAX_HEAD_DIM_V = 128, 576, 512  # as FK_MAX_SPLITS and so on
NARROW_HEAD_DIM, WIDE_UNIT = 256, 64  # FK_NARROW_HEAD_DIM: above it head dims are multiples of the other
LEAST_SCALE, MOST_SCALE = 2.0 ** -126, 2.0 ** 127  # of float32's normal numbers: 0 is the default's in C
DECODING_ROWS, DECODING_KEYS, NARROW_ROWS, NARROW_JOINED_ROWS = 16, 512, 64, 128
