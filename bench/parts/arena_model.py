"""The transformer of arena.py: of blocks that begin as nothing, with any attention(q, k, v) of [batch, tokens, heads, dim]."""
import math

import torch
from torch import nn

from parts import arena_data

AROUND = 5  # pixels a side that a token sees of a picture
OUT = 30    # what puts a pixel behind every other


class Block(nn.Module):
    def __init__(self, attention, width, heads):
        super().__init__()
        self.attention, self.heads = attention, heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        for last in (self.out, self.mlp[-1]):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, x):  # [batch, tokens, width]
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(self.attention(q, k, v).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Text(nn.Module):
    """Decides by the first token and the mean of all."""

    def __init__(self, blocks, width, size):
        super().__init__()
        self.token, self.place = nn.Embedding(arena_data.VOCABULARY, width), nn.Embedding(size, width)
        nn.init.normal_(self.place.weight, std=0.1)
        self.blocks, self.head = blocks, nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, arena_data.DIGITS))

    def forward(self, x):
        x = self.blocks(self.token(x.int()) + self.place.weight)
        return self.head(torch.cat([x[:, 0], x.mean(1)], -1))


class Picture(nn.Module):
    """A token a pixel: what is around it, and where it is, smoothly. Decides by each feature's largest value and its range over
    the pixels that a filter takes; it begins as one of solid patches, between seven pixels of nine, where dashes cross, and eight.
    No weight has the picture's size."""

    def __init__(self, blocks, width, size):
        super().__init__()
        self.size, self.blocks, self.around, self.solid = size, blocks, nn.Linear(AROUND ** 2, width), nn.Linear(AROUND ** 2, 1)
        at = torch.linspace(-1, 1, size)
        at = torch.stack([at, (at * math.pi / 2).sin(), (at * math.pi / 2).cos()])[..., None]
        self.register_buffer("at", at, persistent=False)
        self.row, self.column = (nn.Parameter(0.5 * torch.randn(3, 1, width)) for _ in range(2))
        with torch.no_grad():
            self.solid.weight.view(AROUND, AROUND).fill_(0)[1:-1, 1:-1] = 6
            self.solid.bias.fill_(-6 * 7.25)
        self.head = nn.Sequential(nn.LayerNorm(2 * width), nn.Linear(2 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, 2))

    def forward(self, x):
        x = nn.functional.pad(x.view(-1, self.size, self.size).float() / 255, [AROUND // 2] * 4)
        patches = x.unfold(1, AROUND, 1).unfold(2, AROUND, 1).flatten(3).flatten(1, 2)  # [batch, tokens, of them 5 x 5]
        row, column = ((self.at * of).sum(0) for of in (self.row, self.column))  # no matmul: autocast would round places
        x = self.blocks(nn.functional.gelu(self.around(patches)) + (row[:, None] + column).flatten(0, 1))
        out = OUT * (-self.solid(patches)).sigmoid()
        most, least = (x - out).max(1).values, (x + out).min(1).values
        return self.head(torch.cat([most, most - least], -1))


def network(task, attention, weights=None, width=128, heads=2, layers=3):
    """weights: of a network that this one begins with, but for the last layer, so that the first loss is that of a guess."""
    blocks = nn.Sequential(*(Block(attention, width, heads) for _ in range(layers)))
    model = (Picture if task.kind == "pathfinder" else Text)(blocks, width, task.size)
    if weights:
        model.load_state_dict(weights)
    for last in model.head[-1].parameters():
        nn.init.zeros_(last)
    return model
