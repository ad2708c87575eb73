"""Float masks of scaled_dot_product_attention that many heads share. Most hold 0 and -inf alone and are masks in truth, of which
tiles that are -inf throughout are not visited; which they are, the device alone knows. So one kernel packs the mask to bits and notes
whether it holds anything else, and of two launches behind it, one by the bits and one that adds the mask, that goes ahead whose
condition holds (fk_args.condition). Nothing waits for the host, so that graphs may hold it. What the host hears later, without waiting,
is of what kind masks of that shape were; where they held other things, the next ones are added at once."""
from __future__ import annotations

import functools

import torch

from . import _problem, _runtime, _torch_launch
from ._torch import draw, float_element
from ._torch_bits import pack_floats, words_for
from ._torch_launch import NO_EXTRAS, refuse_second

LEAST_SHARE = 8  # heads, of all batch entries, that read an element: to read it once more beforehand costs an eighth
LEAST_PAIRS = 512 * 512  # below that two launches more cost what they spare
ADDED, SEEN = 50, 200  # masks of a shape that are added at once before one is looked at again; and looked at before one is asked for


def suits(q, k, v, mask):
    """Whether the mask, [batch or 1, heads or 1, queries or 1, keys], is one of these, and to be looked at. q, k, v: [batch, heads,
    seqlen, dim]."""
    if mask.requires_grad or mask.shape[-1] != k.shape[-2] or _problem.padding(q.shape[-1]) or _problem.padding(v.shape[-1]):
        return False
    share = (q.shape[0] if mask.shape[0] == 1 else 1) * (q.shape[1] if mask.shape[1] == 1 else 1)
    return share >= LEAST_SHARE and q.shape[-2] * k.shape[-2] >= LEAST_PAIRS and not heard(mask).says_add()


class Heard:
    """Of masks of one shape, dtype and device: what one that was looked at held, as far as the host has heard."""

    def __init__(self):
        self.to_add = self.until_asked = 0
        self.word = self.there = None
        self.waits = False

    def ask(self, others):
        """Sends for the word of a mask that was packed: of the first one, and now and then of another, as that costs the host time."""
        self.until_asked -= 1
        if self.waits or self.until_asked >= 0 or not others.is_cuda or torch.cuda.is_current_stream_capturing():
            return
        if self.word is None:
            self.word, self.there = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True), torch.cuda.Event()
        self.word.copy_(others, non_blocking=True)
        self.there.record(torch.cuda.current_stream(others.device))
        self.waits, self.until_asked = True, SEEN

    def says_add(self):
        if self.waits and not torch.cuda.is_current_stream_capturing() and self.there.query():
            self.waits = False
            if self.word.item():
                self.to_add, self.until_asked = ADDED, 0
        self.to_add -= self.to_add > 0
        return self.to_add > 0


_heard = {}


def heard(mask):
    key = mask.shape, mask.dtype, mask.device
    return _heard.get(key) or _runtime.remember(_heard, key, Heard())


@functools.lru_cache(maxsize=None)
def terms_of(element, dropout):
    return (_problem.terms(mask="bits", arrays=(("bits", "int", 4),), dropout=dropout),
            _problem.terms(brought=(("bias", element),), dropout=dropout))


def attention(q, k, v, mask, dropout_p, scale):
    """scaled_dot_product_attention, of a mask that suits()."""
    differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    how = ("bhsd", _problem.scale_of(scale, q.shape[-1]), float(dropout_p), 1 if differentiable else -1, 0, 0)
    extras = (draw(q, None), None, None, None, None) if dropout_p > 0 else NO_EXTRAS
    mask = mask.resolve_neg()  # read in memory
    words, others = words_for(mask), mask.new_zeros(1, dtype=torch.int32)
    both = terms_of(float_element(mask.dtype), dropout_p > 0)
    _torch_launch.find(both[0], how, q, k, v, (words,), extras)  # makes the kernel whose image packs
    pack_floats(mask, words, others)
    heard(mask).ask(others)
    arrays = (words,), (mask,)
    if differentiable:
        return apply(both, how, torch.are_deterministic_algorithms_enabled(), extras, q, k, v, others, *arrays[0], *arrays[1])
    return forward(both, how, q, k, v, others, arrays, extras, False)[0]


def forward(both, how, q, k, v, others, arrays, extras, with_lse):
    """(o, lse or None, q, k, v)"""
    into = None
    for value, (terms, own) in enumerate(zip(both, arrays)):
        o, lse, _, q, k, v = _torch_launch.forward(terms, how, q, k, v, own, extras, with_lse, (), (others, value), into)
        into = o, lse
    return *into, q, k, v


class Masked(torch.autograd.Function):
    """Of which q, k or v requires a gradient."""

    @staticmethod
    def forward(ctx, both, how, deterministic, extras, q, k, v, others, words, mask):
        o, lse, q, k, v = forward(both, how, q, k, v, others, ((words,), (mask,)), extras, True)
        ctx.save_for_backward(q, k, v, o, lse, others, words, mask, *(() if extras is NO_EXTRAS else extras))
        ctx.rest = both, how, deterministic
        return o

    @staticmethod
    def backward(ctx, dout):
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True
            with torch.no_grad():
                return refuse_second(Masked.backward(ctx, dout))
        both, how, deterministic = ctx.rest
        q, k, v, o, lse, others, words, mask, *extras = ctx.saved_tensors
        extras, grads = extras or NO_EXTRAS, None
        for value, (terms, own) in enumerate(zip(both, ((words.contiguous(),), (mask,)))):
            call, q, k, v, o, lse = _torch_launch.restored(terms, how, q, k, v, o, lse, own, extras)
            grads = _torch_launch.backward(terms, call, dout, None, q, k, v, o, lse, own, extras, (False,), deterministic,
                                           (others, value), grads)[:3]
        return (None, None, None, None, *[g if need else None for g, need in zip(grads, needs[4:7])], None, None, None)


apply = super(torch.autograd.Function, Masked).apply  # as that of _torch_launch.Attention
