"""How FlashAttention says things, and how attention() does."""
from __future__ import annotations

import torch


def sides(window_size):
    """window_size as attention() takes it: any negative side is unbounded, and that is -1 there."""
    left, right = window_size
    return None if left < 0 and right < 0 else (max(-1, int(left)), max(-1, int(right)))


def with_infinity(lse):
    """+inf in rows without keys, which attention() gives -inf."""
    return torch.where(lse == float("-inf"), float("inf"), lse)
