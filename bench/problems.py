"""Problems of the benchmarks: shapes, masks, inputs, and what is exact: float64 results of the first and the last head.

Eager is attention as a framework does it without a fused kernel: every intermediate in the tensors' dtype, softmax and
sums in float32. Its error against float64 is the measure of everybody else's.
"""
import math

STEP = 2048  # query rows that the oracle takes at a time
DOCUMENTS = 16


def document_ids(torch, seqlen):
    """Sixteen documents of unequal lengths: between half and one and a half times the mean."""
    ends = [(i + 1 + 0.25 * math.sin(7 * i)) / DOCUMENTS for i in range(DOCUMENTS - 1)]
    ends = torch.tensor([int(x * seqlen) for x in ends], device="cuda")
    return torch.searchsorted(ends, torch.arange(seqlen, device="cuda"), right=True).int()


def lengths(torch, batch, seqlen):
    """Key lengths from a half to all of seqlen."""
    return torch.tensor([seqlen - b * seqlen // (2 * batch) for b in range(batch)], device="cuda", dtype=torch.int32)


class Mask:
    """`words` of the spelling; sees(t, q, k, b): what query rows q of batch entry b see of keys k."""

    def __init__(self, words="", sees=None, arrays=None):
        self.words, self.sees = words, sees
        self.arrays = arrays or (lambda torch, batch, seqlen: {})


def document_arrays(torch, batch, seqlen):
    ids = document_ids(torch, seqlen)[None, :].expand(batch, seqlen)
    return {"doc_q": ids, "doc_k": ids}


MASKS = {
    "full": Mask(),
    "causal": Mask(" causal", lambda t, q, k, b: k <= q),
    "window": Mask(" window(1024,0)", lambda t, q, k, b: (k <= q) & (k >= q - 1024)),
    "dilated": Mask(' keep="k <= q && q - k < 2048 && (q - k) % 4 == 0"',
                    lambda t, q, k, b: (k <= q) & (q - k < 2048) & ((q - k) % 4 == 0)),
    "blocks": Mask(' keep="k <= q && ((q / 128 ^ k / 128) & 3) == 0"',
                   lambda t, q, k, b: (k <= q) & (((q // 128) ^ (k // 128)) & 3 == 0)),
    "document": Mask(" document", lambda t, q, k, b: t.arrays["doc_q"][b][q] == t.arrays["doc_k"][b][k],
                     document_arrays),
    "padding": Mask(" key_padding", lambda t, q, k, b: (k < t.arrays["length"][b]) & (q >= 0),
                    lambda torch, batch, seqlen: {"length": lengths(torch, batch, seqlen)}),
}


class Score:
    """`words` of the spelling; value(torch, t, s, b, h, q, k): the score s of a pair, or of many; arrays(torch, shape)."""

    def __init__(self, words="", value=None, arrays=None):
        self.words, self.value = words, value
        self.arrays = arrays or (lambda torch, shape: {})


def slopes(torch, shape):
    """ALiBi's: a geometric sequence from 2^(-8 / heads) to 2^-8."""
    return {"slope": torch.exp2(torch.arange(1, shape.heads + 1, device="cuda") * (-8.0 / shape.heads))}


def biases(torch, shape, dtype=None):
    """One for all entries of a batch."""
    generator = torch.Generator("cuda").manual_seed(5)
    size = (1, shape.heads, shape.seqlen, shape.seqlen)
    return {"bias": torch.randn(size, generator=generator, device="cuda").to(dtype or torch.float32).expand(shape.batch, -1, -1, -1)}


def add_bias(torch, t, s, b, h, q, k):
    return s + t.arrays["bias"][b, h, q, k]


SCORES = {
    "none": Score(),
    "alibi": Score(" alibi", lambda torch, t, s, b, h, q, k: s - t.arrays["slope"][h] * (q - k).abs(), slopes),
    "softcap": Score(" softcap(30)", lambda torch, t, s, b, h, q, k: 30 * torch.tanh(s / 30)),
    "bias": Score(" bias", add_bias, biases),
    "bias16": Score(" array=bias:bf16[b][h][q][k] bias", add_bias, lambda torch, shape: biases(torch, shape, torch.bfloat16)),
}


class Shape:
    """One problem, contiguous [batch, seqlen, heads, dim]. `op` is "fwd" or "bwd"; `words` go on with the spelling; `score`
    is of SCORES; `group` query heads share a kv head. FLOPs are those of the products over the pairs that the mask lets see."""

    def __init__(self, torch, args, seqlen, head_dim, mask, op="fwd", words="", batch=None, heads=None, score="none",
                 group=1):
        self.seqlen, self.head_dim, self.mask, self.op = seqlen, head_dim, mask, op
        self.score, self.group = score, group
        self.words = (" gqa" if group > 1 else "") + SCORES[score].words + words
        self.dtype, self.dropout, self.scale = args.dtype, getattr(args, "dropout", 0.0), 1 / math.sqrt(head_dim)
        self.batch = batch or max(1, args.tokens // seqlen)
        self.heads = heads or max(1, args.hidden // head_dim)
        self.share = {"full": 1.0, "causal": 0.5}.get(mask) or self.seen_share(torch)
        self.flops = (4 if op == "fwd" else 10) * self.batch * self.heads * seqlen * seqlen * head_dim * self.share

    def seen_share(self, torch):
        visible = sum(int(m.sum()) for b in range(self.batch) for m in self.rows(torch, Arrays(torch, self), b))
        return visible / (self.batch * self.seqlen ** 2)

    def rows(self, torch, t, b, step=STEP):
        """The mask of batch entry b, [rows, seqlen_k], `step` rows at a time."""
        keys = torch.arange(self.seqlen, device="cuda")[None, :]
        for rows in torch.arange(self.seqlen, device="cuda")[:, None].split(step):
            yield MASKS[self.mask].sees(t, rows, keys, b)

    def tile_share(self, torch, block_q, block_k):
        """Share of the tiles of block_q x block_k in which some pair is visible, of batch entry 0."""
        if self.mask == "full":
            return 1.0
        visited = 0
        for mask in self.rows(torch, Arrays(torch, self), 0, STEP // block_q * block_q):  # no tile in two pieces
            columns = -(-self.seqlen // block_k)
            wide = torch.nn.functional.pad(mask, (0, columns * block_k - self.seqlen))
            touched = wide.view(-1, columns, block_k).any(-1)
            for rows in touched.split(block_q):
                visited += int(rows.any(0).sum())
        return visited * block_q * block_k / self.seqlen ** 2

    def spelling(self, op=None):
        drop = " dropout" if self.dropout else ""
        return f"{op or self.op} {self.dtype} d{self.head_dim}{MASKS[self.mask].words}{self.words}{drop}"

    def label(self):
        drop = f" dropout {self.dropout:g}" if self.dropout else ""
        return f"{self.op} {self.dtype} d{self.head_dim} {self.mask}{self.words}{drop}"


def packed_share(lengths, block_q, block_k):
    """As Shape.tile_share, of packed sequences of these lengths: each begins a tile."""
    return sum(-(-n // block_q) * -(-n // block_k) for n in lengths) * block_q * block_k / sum(lengths) ** 2


class Arrays:
    """What a mask reads."""

    def __init__(self, torch, shape):
        self.arrays = MASKS[shape.mask].arrays(torch, shape.batch, shape.seqlen)


def torch_dtype(torch, name):
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn}[name]


class Tensors(Arrays):
    """Inputs, and outputs that every contender shares. Gradients and dout are there for the backward pass only."""

    def __init__(self, torch, shape, seed=1, spread=1.0):
        super().__init__(torch, shape)
        self.arrays.update(SCORES[shape.score].arrays(torch, shape))
        dtype = torch_dtype(torch, shape.dtype)
        generator = torch.Generator("cuda").manual_seed(seed)

        def draw(heads, spread=1.0):
            size = (shape.batch, shape.seqlen, heads, shape.head_dim)
            return (torch.randn(size, generator=generator, device="cuda", dtype=torch.float32) * spread).to(dtype)
        kv_heads = shape.heads // shape.group
        self.q, self.k, self.v = draw(shape.heads, spread), draw(kv_heads), draw(kv_heads)
        self.o = torch.empty_like(self.q, dtype=torch.bfloat16 if shape.dtype == "e4m3" else dtype)
        self.lse = torch.empty((shape.batch, shape.heads, shape.seqlen), device="cuda", dtype=torch.float32)
        if shape.op == "bwd":
            self.dout = draw(shape.heads)
            self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.k, self.v))

    def outputs(self, op):
        return ("o",) if op == "fwd" else ("dq", "dk", "dv")

    def poison(self, op):
        for name in self.outputs(op) + (("lse",) if op == "fwd" else ()):
            getattr(self, name).fill_(math.nan)


def largest(numbers):
    """Their maximum; NaN if one is, which max() passes over where it is not the first."""
    numbers = list(numbers)
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def kept_scale(p):
    """What kept weights are multiplied by: docs/dropout.md."""
    dropped = 256 - math.floor(256 * (1 - p) + 0.5)
    return 256 / (256 - min(max(dropped, 1), 255))


class Exact:
    """One head in float64 or as eager does it: o, lse and, for "bwd", dq, dk, dv. `bias`: [batch, heads, seqlen, seqlen],
    added to the scores. `keep`: 1 or 0, of the same shape: what dropout keeps. Of e4m3 eager has weights of 8 bits, and
    everything else in float32 but for o (docs/e4m3.md)."""

    def __init__(self, torch, shape, t, b, h, exact, bias=None, keep=None):
        self.torch, self.shape, self.t, self.b, self.h, self.exact = torch, shape, t, b, h, exact
        self.bytes = shape.dtype == "e4m3" and not exact
        self.kind = torch.float64 if exact else torch.float32 if self.bytes else t.q.dtype
        self.wide = torch.float64 if exact else torch.float32
        self.bias, self.keep = (None if x is None else x[b, h] for x in (bias, keep))
        self.q, self.k, self.v = (x[b, :, h * x.shape[2] // shape.heads].float().to(self.kind) for x in (t.q, t.k, t.v))
        o, lse = [], []
        for r in range(0, shape.seqlen, STEP):
            s = self.scores(r)
            part = self.dropped(self.softmax(s), r).to(self.kind) @ self.v
            o.append((part.to(t.o.dtype) if self.bytes else part).double())
            lse.append(torch.logsumexp(s.double(), -1))
        self.o, self.lse = torch.cat(o), torch.cat(lse)
        if shape.op == "bwd":
            self.backward(t.dout[b, :, h].to(self.kind))

    def scores(self, r):
        s = (self.q[r:r + STEP] @ self.k.T) * self.shape.scale
        rows = self.torch.arange(r, r + s.shape[0], device="cuda")[:, None]
        keys = self.torch.arange(self.shape.seqlen, device="cuda")[None, :]
        if self.bias is not None:
            s = s + self.bias[r:r + STEP].to(self.kind)
        if SCORES[self.shape.score].value:
            raw = s.detach().requires_grad_(self.shape.op == "bwd")
            s = SCORES[self.shape.score].value(self.torch, self.t, raw, self.b, self.h, rows, keys).to(self.kind)
            if self.shape.op == "bwd":
                self.slope = self.torch.autograd.grad(s.sum(), raw)[0]
            s = s.detach()
        sees = MASKS[self.shape.mask].sees
        if sees:
            s = s.masked_fill(~sees(self.t, rows, keys, self.b), -math.inf)
        return s

    def softmax(self, s):
        if self.bytes:
            weights = 32 * self.torch.exp(s - s.amax(-1, keepdim=True)).nan_to_num(0.0)
            return (weights.to(self.t.q.dtype).float() / weights.sum(-1, keepdim=True)).nan_to_num(0.0)
        return self.torch.softmax(s, -1, dtype=self.wide).nan_to_num(0.0)

    def dropped(self, x, r):
        return x if self.keep is None else x * self.keep[r:r + STEP].to(x.dtype) * kept_scale(self.shape.dropout)

    def backward(self, dout):
        torch = self.torch
        dq = []
        dk, dv = (torch.zeros_like(x, dtype=self.wide) for x in (self.k, self.v))
        for r in range(0, self.shape.seqlen, STEP):
            p, rows = self.softmax(self.scores(r)), dout[r:r + STEP]
            dp = self.dropped(rows @ self.v.T, r)
            delta = (rows.to(self.wide) * self.o[r:r + STEP].to(self.kind).to(self.wide)).sum(-1, keepdim=True)
            ds = (p.to(self.kind).to(self.wide) * (dp.to(self.wide) - delta)).to(self.kind)
            if SCORES[self.shape.score].value:
                ds = ds * self.slope  # of the rows whose scores were the last
            dq.append((ds @ self.k).double() * self.shape.scale)
            dv += (self.dropped(p, r).to(self.kind).T @ rows).to(self.wide)
            dk += (ds.T @ self.q[r:r + STEP]).to(self.wide)
        # As a framework leaves them: rounded.
        self.dq = torch.cat(dq).to(self.kind).double()
        self.dk = (dk * self.shape.scale).to(self.kind).double()
        self.dv = dv.to(self.kind).double()


class Oracle:
    """Errors against float64 on the first and last head; the rest is only checked for NaN."""

    def __init__(self, torch, shape, t, bias=None, keep=None):
        self.torch, self.shape, self.t = torch, shape, t
        self.heads = sorted({(0, 0), (shape.batch - 1, shape.heads - 1)})
        self.exact = {bh: Exact(torch, shape, t, *bh, True, bias, keep) for bh in self.heads}
        eager = {bh: Exact(torch, shape, t, *bh, False, bias, keep) for bh in self.heads}
        few_bits = shape.dtype == "e4m3"
        self.slack = max(x.o.abs().max().item() for x in self.exact.values()) / 16 if few_bits else 1e-7
        self.lse_limit = 2e-2 if few_bits else 1e-3  # tensor cores add products of 8 bits with some 13 bits
        self.eager = {n: max((getattr(eager[bh], n) - getattr(x, n)).abs().max().item()
                             for bh, x in self.exact.items()) for n in t.outputs(shape.op)}

    def error(self, name, value):
        return largest((value[b, :, h].double() - getattr(x, name)).abs().max().item() for (b, h), x in self.exact.items())

    def check(self, results, lse=None, limit=2.0):
        """results: {name: tensor}. Returns (largest error, the worst ratio to eager's, a complaint or None)."""
        worst, ratio = 0.0, 0.0
        for name, value in results.items():
            if value.isnan().any().item():
                return math.nan, math.nan, f"{int(value.isnan().sum())} NaN in {name}"
            error = self.error(name, value)
            worst, ratio = max(worst, error), max(ratio, error / max(self.eager[name], 1e-30))
            if error > limit * self.eager[name] + self.slack:
                return worst, ratio, f"{name}: error {error:.2e} against {self.eager[name]:.2e} of eager"
        if lse is not None:
            off = largest((lse[b, h].double() - x.lse).abs().max().item() for (b, h), x in self.exact.items())
            if not off < self.lse_limit:
                return worst, ratio, f"lse off by {off:.2e}"
        return worst, ratio, None
