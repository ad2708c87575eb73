#!/usr/bin/env python3
"""Trains a language model of GPT-2's size with flashkiln.attention, dropout included, on text that comes with Python: the
source of its standard library, byte by byte. Without a GPU the model is tiny, and the emulator computes.

    python train_gpt2.py --compare eager --plot loss.svg     # twice from the same seed, the second time with dense attention
"""
import argparse
import pathlib
import sysconfig
import time

import torch
from torch import nn
import flashkiln

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
GPT2 = dict(layers=12, heads=12, width=768, length=1024, batch=8, rate=3e-4)
TINY = dict(layers=2, heads=2, width=64, length=48, batch=2, rate=2e-3)


def eager(q, k, v, causal, dropout_p):
    """What flashkiln.attention computes, by a matrix of all scores."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        scores += torch.full(scores.shape[-2:], float("-inf"), device=q.device).triu(1)
    weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", nn.functional.dropout(weights, dropout_p), v)


ATTENTION = {"flashkiln": flashkiln.attention, "eager": eager}


class Block(nn.Module):
    def __init__(self, attention, width, heads, dropout):
        super().__init__()
        self.attention, self.heads, self.dropout = attention, heads, dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def forward(self, x):  # [batch, seqlen, width]
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)  # [batch, seqlen, heads, dim]
        o = self.attention(q, k, v, causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + nn.functional.dropout(self.out(o.flatten(2)), self.dropout, self.training)
        return x + nn.functional.dropout(self.mlp(self.norm_2(x)), self.dropout, self.training)


class LanguageModel(nn.Module):
    def __init__(self, attention, layers, heads, width, length, dropout, vocabulary=256):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(attention, width, heads, dropout) for _ in range(layers)))
        self.norm, self.dropout = nn.LayerNorm(width), dropout
        for weight in filter(lambda p: p.dim() > 1, self.parameters()):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):  # [batch, seqlen] -> logits [batch, seqlen, vocabulary]
        x = self.token(tokens) + self.place.weight[:tokens.shape[1]]
        x = self.blocks(nn.functional.dropout(x, self.dropout, self.training))
        return nn.functional.linear(self.norm(x), self.token.weight)


def text():
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()


def train(name, steps, dropout, layers, heads, width, length, batch, rate, seed=0):
    """The losses of all steps, and a step's time in seconds."""
    torch.manual_seed(seed)
    model = LanguageModel(ATTENTION[name], layers, heads, width, length, dropout).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1)
    old = CUDA and torch.cuda.get_device_capability() < (8, 0)  # without bfloat16
    scaler = torch.amp.GradScaler(DEVICE, enabled=old)
    data, random, losses, started = text(), torch.Generator().manual_seed(seed), [], None
    for step in range(steps):
        starts = torch.randint(len(data) - length, (batch, 1), generator=random)
        tokens = data[starts + torch.arange(length + 1)].to(DEVICE)
        with torch.autocast(DEVICE, torch.float16 if old else torch.bfloat16, enabled=CUDA):
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        started = started or time.perf_counter()  # after the first step, which builds the kernels
        if step % 20 == 0 or step == steps - 1:
            print(f"{name:9}  step {step:4}  loss {losses[-1]:.4f}", flush=True)
    return losses, (time.perf_counter() - started) / max(1, steps - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200 if CUDA else 30)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compare", choices=["eager"], help="train again, with dense attention")
    parser.add_argument("--plot", metavar="FILE", help="draw the losses (needs matplotlib)")
    options = parser.parse_args()
    size, curves = GPT2 if CUDA else TINY, {}
    for name in filter(None, ["flashkiln", options.compare]):
        curves[name], seconds = train(name, options.steps, options.dropout, **size)
        print(f"{name:9}  {1000 * seconds:.1f} ms a step, {size['batch'] * size['length'] / seconds:,.0f} tokens/s")
    if options.compare:
        apart = [abs(a - b) for a, b in zip(*curves.values())]
        print(f"losses differ by {sum(apart) / len(apart):.2e} in the mean, {max(apart):.2e} at most")
    if options.plot:
        from matplotlib import pyplot
        for name, losses in curves.items():
            pyplot.plot(losses, "--" if name == "eager" else "-", label=name)
        pyplot.gca().set(xlabel="step", ylabel="loss", title=f"width {size['width']}, dropout {options.dropout}, {DEVICE}")
        pyplot.legend()
        pyplot.savefig(options.plot)


if __name__ == "__main__":
    main()
