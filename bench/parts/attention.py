"""Attention alone, as PyTorch calls it: one case, and who computes it. q, k and v are [batch, seqlen, heads, dim], as a model has
them; peers that want heads first see views. `padding`: keys of a batch entry end 0 to 20 before seqlen, as in the paper."""
import dataclasses
import math

BLOCK = 128  # of the butterfly
EAGER_MOST = 8192  # tokens, of batch 16 and 8 heads: 17 GB a matrix


@dataclasses.dataclass(frozen=True)
class Case:
    seqlen: int
    batch: int = 16
    heads: int = 8
    dim: int = 64
    dtype: str = "fp16"
    dropout: float = 0.0
    padding: bool = False
    causal: bool = False

    def row(self):
        return {"seqlen": self.seqlen, "batch": self.batch, "heads": self.heads, "head_dim": self.dim, "dtype": self.dtype,
                "dropout": self.dropout, "padding": int(self.padding), "causal": int(self.causal)}

    def label(self):
        words = [f"d{self.dim} {self.seqlen} x {self.batch}"]
        words += ["causal"] * self.causal + ["padding"] * self.padding + [f"dropout {self.dropout:g}"] * (self.dropout > 0)
        return " ".join(words)


class Inputs:
    def __init__(self, session, case):
        torch, device = session.torch, session.device
        generator = torch.Generator(device).manual_seed(1)
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]

        def draw():
            return torch.randn(case.batch, case.seqlen, case.heads, case.dim, device=device, generator=generator).to(dtype)
        self.leaves = [draw().requires_grad_() for _ in range(3)]
        self.dout = draw()
        self.length = None
        if case.padding:
            fewer = torch.randint(0, 21, (case.batch,), device=device, generator=generator)
            self.length = (case.seqlen - fewer).clamp(min=1).int()

    def hidden(self, torch, case):
        """True where a key is padding: [batch, 1, 1, seqlen]."""
        keys = torch.arange(case.seqlen, device=self.length.device)
        return (keys[None] >= self.length[:, None])[:, None, None]


class Attention:
    """attend(q, k, v) -> [batch, seqlen, heads, dim]. May raise RuntimeError where it has no such case."""
    name = ""

    def __init__(self, session, case, inputs):
        self.session, self.torch, self.case, self.inputs = session, session.torch, case, inputs

    def launch(self, which):
        """A function that does one pass: fwd, bwd or both."""
        torch, leaves, dout = self.torch, self.inputs.leaves, self.inputs.dout

        def fwd():
            with torch.no_grad():
                self.attend(*leaves)
        if which == "fwd":
            return fwd
        if which == "both":
            return lambda: torch.autograd.grad(self.attend(*leaves), leaves, dout)
        o = self.attend(*leaves)
        return lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)


class Eager(Attention):
    """A matrix of all scores, softmax, dropout, a product: the paper's "PyTorch Attention"."""
    name = "eager"

    def __init__(self, *args, butterfly=False):
        super().__init__(*args)
        case, torch = self.case, self.torch
        if case.seqlen * case.seqlen * case.batch * case.heads > EAGER_MOST ** 2 * 128:
            raise RuntimeError("out of memory: not tried")
        self.hidden = self.inputs.hidden(torch, case) if case.padding else None
        rows = torch.arange(case.seqlen, device=self.session.device)
        if case.causal:
            above = rows[None] > rows[:, None]
            self.hidden = above if self.hidden is None else self.hidden | above
        if butterfly:  # what this project's is compared with
            apart = (rows[:, None] // BLOCK) ^ (rows[None] // BLOCK)
            far = apart & (apart - 1) != 0
            self.hidden = far if self.hidden is None else self.hidden | far

    def attend(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        s = q @ k.transpose(2, 3) * (1 / math.sqrt(self.case.dim))
        if self.hidden is not None:
            s = s.masked_fill(self.hidden, -math.inf)
        p = self.torch.nn.functional.dropout(s.softmax(-1), self.case.dropout)
        return (p @ v).transpose(1, 2)


class Sdpa(Attention):
    backend = ""

    def __init__(self, *args):
        super().__init__(*args)
        from torch.nn.attention import SDPBackend, sdpa_kernel
        backend = getattr(SDPBackend, self.backend + "_ATTENTION")
        self.kernel = lambda: sdpa_kernel(backend)
        self.mask = None
        if self.case.padding:
            case, zeros = self.case, self.inputs.dout.new_zeros(())
            mask = zeros.masked_fill(self.inputs.hidden(self.torch, case), -math.inf)
            self.mask = mask.expand(case.batch, case.heads, case.seqlen, case.seqlen)

    def attend(self, q, k, v):
        with self.kernel():
            return self.torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=self.mask, dropout_p=self.case.dropout,
                is_causal=self.case.causal).transpose(1, 2)


class Flash(Sdpa):
    name, backend = "sdpa-flash", "FLASH"

    def __init__(self, *args):
        super().__init__(*args)
        if self.case.padding:
            raise RuntimeError("takes no mask")


class Cudnn(Sdpa):
    name, backend = "sdpa-cudnn", "CUDNN"


class Efficient(Sdpa):
    name, backend = "sdpa-efficient", "EFFICIENT"


class Flex(Attention):
    """FlexAttention, compiled for the case; it has no dropout."""
    name = "flex"
    most_blocks = 16384  # tokens of a mask that is evaluated pair by pair

    def __init__(self, *args):
        super().__init__(*args)
        if self.case.dropout:
            raise RuntimeError("has no dropout")
        if self.case.padding and self.case.seqlen > self.most_blocks:
            raise RuntimeError("not timed: its mask would be evaluated for every pair")
        if not self.session.cuda:
            raise RuntimeError("timed on a GPU only")
        import torch._functorch.config as compiler
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        compiler.donated_buffer = False  # a graph is gone through more than once
        self.torch._dynamo.reset()  # after eight variants of one function it stops compiling
        self.compiled, self.mask = self.torch.compile(flex_attention, dynamic=False), None
        length, n = self.inputs.length, self.case.seqlen
        if self.case.padding and self.case.causal:
            def sees(b, h, q, k):
                return (k <= q) & (k < length[b])
        elif self.case.padding:
            def sees(b, h, q, k):
                return k < length[b]
        else:
            def sees(b, h, q, k):
                return k <= q
        if self.case.padding or self.case.causal:
            self.mask = create_block_mask(sees, self.case.batch if self.case.padding else None, None, n, n,
                                          device=self.session.device)

    def attend(self, q, k, v):
        return self.compiled(*(x.transpose(1, 2) for x in (q, k, v)), block_mask=self.mask).transpose(1, 2)


class FlashKiln(Attention):
    name, sparsity = "flashkiln", None

    def __init__(self, *args):
        super().__init__(*args)
        import flashkiln
        self.kernel = flashkiln.attention
        self.options = {"causal": self.case.causal, "dropout_p": self.case.dropout, "sparsity": self.sparsity}
        if self.case.padding:
            self.options.update(mask="key_padding", arrays={"length": self.inputs.length})

    def attend(self, q, k, v):
        return self.kernel(q, k, v, **self.options)


class Butterfly(FlashKiln):
    """Block-sparse: a query's block sees the blocks whose number differs from its own in at most one bit."""
    name, sparsity = "flashkiln-butterfly", f"butterfly({BLOCK})"


DENSE = [Eager, Flash, Cudnn, Efficient, Flex, FlashKiln]
ALL = DENSE + [Butterfly]
COMPILED = [Flex, FlashKiln, Butterfly]  # at the first call
