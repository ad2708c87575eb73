"""Hugging Face transformers: attn_implementation="flashkiln".

    import flashkiln.hf
    flashkiln.hf.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flashkiln")

Masks reach the kernels as what they are (causal, windows, chunks, packed documents, padding), not as a matrix: transformers'
mask functions are recognised, or traced as expressions. Where that is impossible, and while torch.compile traces, the mask is
transformers' boolean one, which becomes a bit mask. A query that may see no key, such as of left padding, gives 0."""
from __future__ import annotations

import functools
import warnings

import torch

from . import _problem
from ._symbols import array, diag, trace_mask
from ._torch import attention, element_as
from ._sdpa import mask_argument

NAME = "flashkiln"
# transformers takes any implementation with "flash" in its name for a build of the flash_attn package: it loads it from its
# hub, replaces it in models that list the builds they know (gpt-oss), and refuses chunked masks. Its own name is therefore:
INNER_NAME = "kiln"


def register() -> None:
    """Makes attn_implementation="flashkiln" known to transformers (4.53 or later), in this process. Twice is as good as once.

    >>> import flashkiln.hf
    >>> flashkiln.hf.register()
    >>> model.set_attn_implementation("flashkiln")"""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import PreTrainedModel
    for name in (NAME, INNER_NAME):
        AttentionInterface.register(name, attention_forward)
        AttentionMaskInterface.register(name, attention_mask)
    check = getattr(PreTrainedModel, "_check_and_adjust_attn_implementation", None)
    if check is not None and not hasattr(check, "flashkiln"):
        @functools.wraps(check)
        def renamed(self, attn_implementation, *args, **options):
            if attn_implementation in (NAME, INNER_NAME):
                refuse_own_attention(type(self))
                if not (self._supports_sdpa or self._supports_attention_backend):
                    UNSAID.add(type(self.config))
            return check(self, INNER_NAME if attn_implementation == NAME else attn_implementation, *args, **options)
        renamed.flashkiln = True
        PreTrainedModel._check_and_adjust_attn_implementation = renamed


def refuse_own_attention(model) -> None:
    """Models that compute attention themselves would take no mask for one that hides nothing."""
    takes = getattr(model, "_can_set_attn_implementation", None)
    if takes is not None and not takes():
        raise ValueError(f'{model.__name__} computes attention itself, and takes no attn_implementation="{NAME}"; where "sdpa" serves it, '
                         "flashkiln.enable_sdpa() does")


UNSAID = set()  # configurations' types of models for neither, whose modules' is_causal may be False in decoders

# ---- the attention interface -----------------------------------------------------------------------------------------

REFUSED = {**dict.fromkeys(("output_attentions", "head_mask", "cache"), "has no attention weights and no paged cache"),
           **dict.fromkeys(("indices", "block_indices"), "would see all keys, of which this model's attention selects some"),
           "sinks": "would leave out sinks of tokens, which this model's attention has"}


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
                      is_causal=None, s_aux=None, position_bias=None, **options):
    """AttentionInterface: query, key, value are [batch, heads, seqlen, dim]; returns ([batch, seqlen, heads, dim], None)."""
    for name, why in REFUSED.items():
        if options.get(name) is not None and options[name] is not False:
            raise ValueError(f'{name}: attn_implementation="{NAME}" {why}; use "eager"')
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    arguments = {"softmax_scale": scaling, "softcap": softcap, "sink": s_aux,
                 "dropout_p": dropout if module.training else 0.0}
    if isinstance(attention_mask, Mask):
        arguments.update(attention_mask.on(query.device))
    elif attention_mask is not None:
        if not (attention_mask.dtype == torch.bool or attention_mask.is_floating_point()):
            raise ValueError(f"attention_mask is of {attention_mask.dtype}; of 4 dimensions it must be of bools, or of floats to be added")
        arguments.update(mask_argument(attention_mask[..., :key.shape[-2]], 4, key.shape[-2]))
    else:
        arguments.update(plain(causal, sliding_window, query.shape[-2], key.shape[-2]))
    if position_bias is not None:
        arguments["bias"] = position_bias if "bias" not in arguments else position_bias + arguments["bias"]
    if options.get("cu_seq_lens_q") is not None:
        others = [text for text in _problem.several("mask", arguments.get("mask")) if text != "document"]
        if "bias" not in arguments and not others:
            return packed(query, key, value, arguments, options), None
        arguments.update(with_documents(query, key, arguments, options))
    out = attention(query, key, value, layout="bhsd", **arguments)
    return out.transpose(1, 2).contiguous(), None


def plain(causal, sliding_window, queries, keys):
    """Without a mask: queries are the last of the keys."""
    window = (sliding_window - 1, 0) if causal and sliding_window and sliding_window < keys else None
    return {"causal": bool(causal and queries > 1), "window": window}


def packed(query, key, value, arguments, options):
    """Sequences one after another, as transformers hands them to the flash_attn package: within each, causal and windows say the same."""
    arguments = {**arguments, "mask": None, "arrays": None}
    lengths = {"cu_seqlens_q": options["cu_seq_lens_q"], "cu_seqlens_k": options["cu_seq_lens_k"],
               "max_seqlen_q": int(options["max_length_q"]), "max_seqlen_k": int(options["max_length_k"])}
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    return attention(q, k, v, **lengths, **arguments).unflatten(0, (query.shape[0], query.shape[2]))


def with_documents(query, key, arguments, options):
    """The same sequences beside a mask or a bias of places in the whole batch: one mask more, unless it is among them."""
    masks = _problem.several("mask", arguments.get("mask"))
    if "document" in masks:
        return {}
    arrays = dict(arguments.get("arrays") or {})
    for side, x in (("q", query), ("k", key)):
        places = torch.arange(x.shape[0] * x.shape[2], dtype=torch.int32, device=x.device).view(x.shape[0], x.shape[2])
        ends = options[f"cu_seq_lens_{side}"][1:].to(torch.int32)
        arrays[f"doc_{side}"] = torch.bucketize(places, ends, right=True, out_int32=True)
    return {"mask": (*masks, "document"), "arrays": arrays}


# ---- the mask interface ----------------------------------------------------------------------------------------------

class Mask(torch.Tensor):
    """attention's arguments that say a mask, in the guise of the boolean [batch, 1, queries, keys] that they stand for.
    What looks inside, or computes with it, gets the real one, made then."""

    @staticmethod
    def __new__(cls, arguments, shape, device, dense):
        self = torch.empty((), dtype=torch.bool, device=device).expand(shape).as_subclass(cls)
        self.arguments, self.dense = arguments, dense
        return self

    def on(self, device):
        """The arguments, with arrays on this device."""
        arrays = self.arguments["arrays"]
        if all(x.device == device for x in arrays.values()):
            return self.arguments
        return {**self.arguments, "arrays": {name: x.to(device) for name, x in arrays.items()}}

    def to(self, *args, **options):
        """Moves to a device; a dtype makes the real one."""
        if len(args) + len(options) == 1 and isinstance([*args, *options.values()][0], (str, int, torch.device)):
            device = torch.device([*args, *options.values()][0])
            return Mask(self.arguments, self.shape, device, lambda: self.dense().to(device))
        return self.dense().to(*args, **options)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__self__", None) in OUTSIDE or function in ASKED:
            return super().__torch_function__(function, types, args, kwargs or {})
        if writes(function.__name__, cls, args, kwargs or {}):
            raise RuntimeError(f"{function.__name__}: what is written to an attention mask of flashkiln is lost; clone() the mask first")
        return function(*map(cls.made, args), **{name: cls.made(x) for name, x in (kwargs or {}).items()})

    @classmethod
    def made(cls, x):
        if isinstance(x, (tuple, list)):
            return type(x)(map(cls.made, x))
        return x.dense() if isinstance(x, cls) else x


def writes(name, kind, args, kwargs):
    """Whether a function of this name writes to a mask. (The error is not a TypeError, after which Python takes `|` for `|=`.)"""
    in_place = name in ("__setitem__", "__iand__", "__ior__", "__ixor__") or name.endswith("_") and not name.endswith("__")
    return in_place and isinstance(args[0] if args else None, kind) or isinstance(kwargs.get("out"), kind)


# What says nothing of a mask's contents: properties, and methods.
OUTSIDE = {getattr(torch.Tensor, name) for name in ("shape", "device", "dtype", "ndim", "is_cuda", "requires_grad", "layout",
                                                    "is_nested", "is_sparse", "is_quantized", "is_meta")}
ASKED = {torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.__len__}


def attention_mask(**asked):
    """AttentionMaskInterface: transformers' arguments, by name; returns a Mask, None where nothing is hidden, or, for
    torch.compile, a boolean tensor, and None where the attention's own is_causal says it."""
    from transformers.masking_utils import sdpa_mask
    span = Span(asked)
    dense = functools.partial(sdpa_mask, **{**asked, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    if torch.compiler.is_compiling() or (span.queries == 1 and isinstance(span.offset, torch.Tensor)):
        # A static cache's decoding step is for torch.compile, and its mask has one row.
        skip = asked.get("allow_is_causal_skip") and span.queries == span.keys and type(asked.get("config")) not in UNSAID
        return sdpa_mask(**{**asked, "allow_is_causal_skip": skip})
    shape = (asked["batch_size"], 1, span.queries, span.keys)
    said = Said(span)
    try:
        for function in conjunction(asked["mask_function"]):
            said.add(function)
    except Exception as error:  # what has no expression, or too long a one, or asks of symbols what tensors have
        warnings.warn(f"flashkiln: a mask is kept as a matrix: {error}", RuntimeWarning, stacklevel=2)
        return Mask(mask_argument(dense(), 4, span.keys), shape, span.device, dense)
    if asked.get("attention_mask") is not None:
        said.add_padding(asked["attention_mask"])
    if asked.get("allow_is_bidirectional_skip") and not said.causal and said.is_plain():
        return None  # and never of a causal one: not every decoder's module has is_causal
    return Mask(said.arguments(), shape, span.device, dense)


class Span:
    """Where queries and keys are: query 0 at `offset` (an int, or a tensor that the host does not read), key 0 at `base`.
    `last`: the last query is at the last key, so that flashkiln's diagonal is the right one."""

    def __init__(self, asked):
        positions = asked.get("cache_position")  # transformers 4
        self.keys, self.base = asked["kv_length"], asked.get("kv_offset", 0)
        self.queries = asked["q_length"] if positions is None else positions.shape[0]
        self.offset = asked.get("q_offset", 0) if positions is None else positions[0]
        self.device = asked.get("device", "cpu") if positions is None else positions.device
        known = not isinstance(self.offset, torch.Tensor) and not isinstance(self.base, torch.Tensor)
        self.last = (self.offset - self.base == self.keys - self.queries if known else
                     self.queries == self.keys and not isinstance(self.base, torch.Tensor) and self.base == 0)

    def on_device(self, value):
        """An int or a tensor of one as int32 [1], without a copy from the host."""
        if isinstance(value, torch.Tensor):
            return value.reshape(1).to(self.device, torch.int32)
        return torch.full((1,), value, dtype=torch.int32, device=self.device)


class Said:
    """A mask in attention's words, put together from its parts."""

    def __init__(self, span):
        self.span, self.causal, self.window = span, False, (-1, -1)
        self.terms, self.arrays = [], {}

    def add(self, function):
        name, cells = origin(function)
        if name == "causal_mask_function":
            self.causal = True
        elif name == "sliding_window_overlay":
            self.narrow(cells["sliding_window"] - 1, -1)
        elif name == "sliding_window_bidirectional_overlay":
            self.narrow(cells["sliding_window"], cells["sliding_window"])
        elif name == "packed_sequence_mask_function":
            documents = cells["packed_sequence_mask"].to(torch.int32)
            self.terms.append("document")
            self.arrays.update(doc_q=documents, doc_k=documents)
        elif name == "remap_positions_for_packed_sequence":
            for part in conjunction(cells["mask_function"]):
                if origin(part)[0] in RELATIVE:  # within a document, positions differ as places do
                    self.add(part)
                else:
                    self.trace(remapped(part, cells["position_ids"]))
        elif name != "bidirectional_mask_function":
            self.trace(function)

    def narrow(self, *sides):
        """One window more, of which both hold; -1 is unbounded."""
        self.window = tuple([min(pair) if min(pair) >= 0 else max(pair) for pair in zip(self.window, sides)])

    def trace(self, function):
        """Any other, of absolute positions."""
        span = self.span
        start = array(span.on_device(span.offset)) if not span.last else None
        base = array(span.on_device(span.base)) if isinstance(span.base, torch.Tensor) or span.base else None

        def placed(b, h, q, k):
            if start is not None:
                q = q + start[b]
            else:
                q = q if span.queries == span.keys else q + diag
                q = q if base is None else q + base[b]
            return function(b, h, q, k if base is None else k + base[b])
        text, arrays = trace_mask(placed, self.arrays)
        self.terms.append(text)
        self.arrays.update((name, x if x.is_floating_point() else element_as(name, x, torch.int32)) for name, x in arrays.items())

    def add_padding(self, mask):
        """mask: [batch, positions], true where there is a token. Positions beyond are not there."""
        span = self.span
        base = int(span.base)
        mask = mask[:, base:base + span.keys]
        if mask.shape[1] < span.keys:
            mask = torch.nn.functional.pad(mask, (0, span.keys - mask.shape[1]))
        for term, name, value in padding(mask):
            self.terms.append(term)
            self.arrays[name] = value

    def is_plain(self):
        return self.span.last and not self.terms and max(self.window) < 0

    def arguments(self):
        """causal, window, mask and arrays of attention."""
        left, right = (side if side < self.span.keys - 1 else -1 for side in self.window)
        causal = self.causal and not (self.span.last and self.span.queries == 1)
        if self.span.last:
            window = None if left < 0 and right < 0 else (left, right)
            return {"causal": causal, "window": window, "mask": tuple(self.terms), "arrays": self.arrays}
        terms = list(self.terms)
        terms += ["k <= q + start[b]"] if causal else [f"k <= q + start[b] + {right}"] if right >= 0 else []
        terms += [f"k >= q + start[b] - {left}"] if left >= 0 else []
        start = {"start": self.span.on_device(self.span.offset - self.span.base)} if len(terms) > len(self.terms) else {}
        return {"mask": tuple(terms), "arrays": {**self.arrays, **start}}


def padding(mask):
    """[(term, name of its array, array)] of a padding mask [batch, keys]. One look from the host tells, for a whole model's
    layers, whether there is padding and whether it is at the sides alone, where bounds say it and tiles are skipped."""
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return [("padding[b][k] != 0", "padding", mask.to(torch.int32))]
    keys, numbers = mask.shape[1], mask.to(torch.int32)
    first, end = numbers.argmax(-1), keys - numbers.flip(-1).argmax(-1)
    full, solid, from_0, to_end = torch.stack([x.all() for x in (mask, end - first == numbers.sum(-1), first == 0,
                                                                 end == keys)]).tolist()
    if full:
        return []
    if not solid:
        return [("padding[b][k] != 0", "padding", numbers)]
    sides = (("left_padding", "first", first, from_0), ("key_padding", "length", end, to_end))
    return [(term, name, value.to(torch.int32)) for term, name, value, absent in sides if not absent]


# ---- transformers' mask functions --------------------------------------------------------------------------------------

RELATIVE = ("causal_mask_function", "bidirectional_mask_function", "sliding_window_overlay",
            "sliding_window_bidirectional_overlay")  # of the distance from query to key alone


def origin(function):
    """(name of the function in transformers that made this one, the values it closes over); ("", {}) of others."""
    if getattr(function, "__module__", "") != "transformers.masking_utils" or not hasattr(function, "__code__"):
        return "", {}
    values = (cell.cell_contents for cell in function.__closure__ or ())
    return function.__qualname__.partition(".")[0], dict(zip(function.__code__.co_freevars, values))


def conjunction(function):
    """The functions that all must hold."""
    name, cells = origin(function)
    if name != "and_masks":
        return [function]
    return [part for each in cells["mask_functions"] for part in conjunction(each)]


def remapped(function, positions):
    """The function, of positions within documents."""
    return lambda b, h, q, k: function(b, h, positions[b, q], positions[b, k])
