"""Attention by the definition, in float64, differentiable: what results are compared with. And how far they may be off."""
import math

import torch


class Grid:
    """What masks and scores may read, for one batch of [batch, heads, seqlen_q, seqlen_k] scores."""

    def __init__(self, batch, heads, sq, sk, device, bottom_right=True):
        at = lambda n, shape: torch.arange(n, device=device).view(shape)  # noqa: E731
        self.b, self.h = at(batch, (batch, 1, 1, 1)), at(heads, (1, heads, 1, 1))
        self.q, self.k = at(sq, (1, 1, sq, 1)), at(sk, (1, 1, 1, sk))
        self.diag = sk - sq if bottom_right else 0


def attention(q, k, v, *, keep=None, score=None, sink=None, scale=None, bottom_right=True, dropped=None, p=0.0):
    """(o, lse) of [batch, seqlen, heads, dim]. keep, score: functions of (Grid) and (s, Grid); dropped: [b, h, q, k]
    weights that dropout leaves, 1 or 0, each scaled by 1 / (1 - p)."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * q @ k.transpose(-1, -2)
    grid = Grid(*s.shape, q.device, bottom_right)
    s = s if score is None else score(s, grid)
    s = s if keep is None else s.masked_fill(~keep(grid), float("-inf"))
    if sink is not None:
        s = torch.cat([s, sink.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    lse = s.logsumexp(-1)
    weights = torch.where(lse[..., None] == float("-inf"), 0.0, (s - lse[..., None]).exp())[..., :k.shape[2]]
    if dropped is not None:
        weights = weights * dropped / (1 - p)
    return (weights @ v).transpose(1, 2), lse


def causal(g):
    return g.k <= g.q + g.diag


TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def close(what, got, expected, tolerance=None):
    """Relative to the largest value: errors are sums, whose size does not follow the single element."""
    assert got.shape == expected.shape, f"{what}: {tuple(got.shape)}, {tuple(expected.shape)} expected"
    got, expected, dtype = got.detach().double(), expected.detach().double(), got.dtype
    same = torch.isinf(expected) & (got == expected)
    error = torch.where(same, 0.0, got - expected).abs().max().item() if got.numel() else 0.0
    size = max(1e-3, torch.where(torch.isfinite(expected), expected, 0.0).abs().max().item() if got.numel() else 1.0)
    limit = tolerance or TOLERANCE[dtype]
    assert error <= limit * size, f"{what}: error {error:.2e}, largest value {size:.2e}, limit {limit:.0e} of it"


def compare(ours, theirs, inputs, tolerance=None):
    """ours, theirs: (o, lse) of the same inputs: {name: leaf}. Compares them, and the gradients of a random functional."""
    generator = torch.Generator(ours[0].device).manual_seed(99)
    for what, got, expected in zip(("o", "lse"), ours, theirs):
        close(what, got, expected, tolerance)
    do = torch.randn(ours[0].shape, generator=generator, device=ours[0].device)
    dlse = torch.randn(ours[1].shape, generator=generator, device=ours[0].device)
    loss = [(o.double() * do).sum() + (torch.where(torch.isinf(lse), 0.0, lse).double() * dlse).sum()
            for o, lse in (ours, theirs)]
    leaves = list(inputs.values())
    for name, got, expected in zip(inputs, *(torch.autograd.grad(x, leaves) for x in loss)):
        close("d" + name, got, expected, tolerance)
