"""Who is timed: this library through its C interface, PyTorch's SDPA backends, FlexAttention.

A contender has a name, prepare(shape, tensors), launch() and results(): {name of a tensor: value}. prepare may raise
RuntimeError: it is then left out. `writes_lse`: it fills tensors.lse. `limit`: how many times eager's error it may err;
peers may err more than this library, but not as if they computed something else. `checked`: it computes what the shape
says; else it is there for its time alone.
"""
import ctypes
import os
from types import SimpleNamespace

from problems import MASKS, SCORES

SEED, OFFSET = 20260101, 7


class Launch:
    """fk_execute of one problem. tensors: {field of fk_args: tensor}; those of four dimensions are [batch, seqlen, heads,
    dim] of any strides. arrays, grads: {name: tensor}, the problem's arrays and their gradients. More fields by name."""

    def __init__(self, torch, library, context, spelling, tensors, arrays=None, grads=None, **fields):
        self.library, self.handle = library, None
        self.problem = library.problem(spelling)
        a = self.args = library.make("fk_args")
        a.batch, a.seqlen_q, a.num_heads_q = tensors["q"].shape[:3]
        a.seqlen_k, a.num_heads_kv = tensors["k"].shape[1:3]
        for name, value in fields.items():
            setattr(a, name, value)
        sizes = a.batch, a.num_heads_q, a.num_heads_kv, a.seqlen_q, a.seqlen_k
        self.handle = library.kernel_for(context, self.problem, sizes)
        self.info = library.describe(self.handle)
        for name, tensor in tensors.items():
            setattr(a, name, tensor.data_ptr())
            if tensor.dim() == 4:
                setattr(a, name + "_stride", (ctypes.c_int64 * 3)(*tensor.stride()[:3]))
        for i, name in enumerate(library.arrays(self.problem)):
            array = arrays[name]
            self.point(a.array[i], array)
            a.array[i].size[:array.dim()] = array.shape
            if grads and name in grads:
                self.point(a.array_grad[i], grads[name])
        size = library.workspace(self.handle, a)
        self.keep = [torch.empty(size, device="cuda", dtype=torch.uint8), tensors, arrays, grads]
        self.arguments = (self.handle, ctypes.byref(a), ctypes.c_void_p(self.keep[0].data_ptr()),
                          ctypes.c_size_t(size), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    @staticmethod
    def point(field, tensor):
        field.data = tensor.data_ptr()
        field.stride[:tensor.dim()] = tensor.stride()

    def __call__(self):
        self.library("fk_execute", *self.arguments)

    def __del__(self):
        self.library.lib.fk_kernel_destroy(self.handle)


class Pages:
    """k and v [batch, seqlen, heads, dim] in pages of so many rows, which lie in any order. `word`: of the spelling; `fields`:
    of fk_args."""

    def __init__(self, torch, library, page_size, k, v):
        batch, seqlen = k.shape[:2]
        columns = -(-seqlen // page_size)
        self.table = torch.randperm(batch * columns, device="cuda").int()
        self.tensors = {}
        for name, rows in (("k", k), ("v", v)):
            rows = rows.view(torch.uint8) if rows.itemsize == 1 else rows  # PyTorch pads and writes no e4m3
            padded = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, columns * page_size - seqlen))
            self.tensors[name] = torch.empty((len(self.table), page_size, *rows.shape[2:]), device="cuda", dtype=rows.dtype)
            self.tensors[name][self.table.long()] = padded.reshape(self.tensors[name].shape)
        rows = min(page_size & -page_size, library.values["FK_MAX_PAGE_ROWS"])  # that page_size is a multiple of
        self.word = f" paged({rows})" if rows >= 8 else " paged"
        self.fields = {"batch": batch, "seqlen_k": seqlen, "page_table": self.table.data_ptr(), "page_size": page_size,
                       "num_pages": len(self.table), "page_table_stride": columns}


class Kernel:
    """This library's kernel of a shape. `words` go behind the shape's spelling, as in " deterministic"; a backward
    kernel is prepared by a forward one without them, which leaves o and lse."""
    limit, checked = 2.0, True

    def __init__(self, torch, library, context, name="flashkiln", words="", arrays=None, grads=None):
        self.torch, self.library, self.context, self.name, self.words = torch, library, context, name, words
        self.arrays, self.grads = arrays or {}, grads or {}

    def prepare(self, shape, t):
        self.t, self.op, self.writes_lse = t, shape.op, shape.op == "fwd"
        fields, arrays = self.fields(shape), {**t.arrays, **self.arrays}
        names = ["q", "k", "v", "o", "lse"]
        forward = self.spelling(shape, "fwd") + (self.words if shape.op == "fwd" else "")
        self.launch = Launch(self.torch, self.library, self.context, forward, self.named(names), arrays, **fields)
        if shape.op == "bwd":
            self.launch()
            backward = self.spelling(shape, "bwd") + self.words
            tensors = self.named(names + ["dout", "dq", "dk", "dv"])
            self.launch = Launch(self.torch, self.library, self.context, backward, tensors, arrays, self.grads, **fields)
        sizes = self.library.shape(shape.batch, shape.heads, shape.seqlen)
        self.tiles = self.library.tiles(self.launch.problem, self.launch.info.plan, sizes)

    def keep_mask(self, shape):
        """What dropout keeps: [batch, heads, seqlen, seqlen], 1 or 0. After prepare."""
        out = self.torch.empty((shape.batch, shape.heads, shape.seqlen, shape.seqlen), device="cuda",
                               dtype=self.torch.uint8)
        handle, args, _, _, stream = self.launch.arguments
        self.library("fk_keep_mask", handle, args, ctypes.c_void_p(out.data_ptr()), stream)
        return out

    def spelling(self, shape, op):
        return shape.spelling(op)

    def fields(self, shape):
        """Fields of fk_args besides tensors and sizes."""
        if not shape.dropout:
            return {}
        return {"dropout_p": shape.dropout, "dropout_seed": SEED, "dropout_offset": OFFSET}

    def named(self, names):
        return {n: getattr(self.t, n) for n in names}

    def results(self):
        return {n: getattr(self.t, n) for n in self.t.outputs(self.op)}

    def describe(self):
        plan, image, tiles = self.launch.info.plan, self.launch.info.image, self.tiles
        total = max(1, tiles.empty + tiles.partial + tiles.full)
        how = "from the store" if self.launch.info.from_store else f"compiled in {image.compile_ms:.0f} ms"
        return (f"{self.name}: {image.target.decode()} {plan.block_m}x{plan.block_n}, {plan.stages} stages, "
                f"{image.threads} threads, {image.registers} registers, {image.spill_bytes} B spilled, "
                f"{image.smem_dynamic} B smem, {how}; "
                f"tiles: {tiles.empty / total:.1%} skipped, {tiles.partial / total:.1%} masked; "
                f"bound by {plan.bound.decode()}")


class Fast(Kernel):
    """This library's kernel that may round once more (the word `fast`), whose lse is that of what it rounds."""

    def __init__(self, torch, library, context):
        super().__init__(torch, library, context, "fast", " fast")

    def prepare(self, shape, t):
        super().prepare(shape, t)
        self.writes_lse = False


class Beside(Kernel):
    """Another kernel of this library at the same sizes, so that one sees what it costs to ask for more: `spell` makes its
    spelling of the shape's. It has no dropout, no arrays, and all heads of k and v."""
    checked = False

    def __init__(self, torch, library, context, name, spell):
        super().__init__(torch, library, context, name)
        self.spell = spell

    def spelling(self, shape, op):
        return self.spell(shape.spelling(op))

    def fields(self, shape):
        return {}

    def named(self, names):
        out = super().named(names)
        for name in ("q", "k", "v"):
            x = out[name] if out[name].element_size() > 1 else out[name].to(self.t.o.dtype)
            heads = self.t.q.shape[2] // x.shape[2]
            out[name] = x if heads == 1 else x.repeat_interleave(heads, 2)
            if heads > 1 and "d" + name in out:
                out["d" + name] = self.torch.empty_like(self.t.q)
        return out


def variants(torch, library, args):
    """A contender for each folder of templates: another text, or another choice of tilings (docs/templates.md)."""
    return [Kernel(torch, library, library.context("cuda:0", args.plan_for, args.cache_dir, folder),
                   os.path.basename(os.path.normpath(folder))) for folder in args.templates]


class ByAutograd:
    """A peer whose gradients PyTorch's autograd takes: attend(q, k, v) of [batch, heads, seqlen, dim]."""

    def prepare(self, shape, t):
        self.shape = shape
        self.views = [x.transpose(1, 2) for x in (t.q, t.k, t.v)]
        self.launch = self.forward
        if shape.op == "bwd":
            self.leaves = self.make_leaves()
            self.o = self.attend(*self.leaves[:3])
            self.dout = t.dout.transpose(1, 2)
            self.launch = self.backward

    def make_leaves(self):
        return [x.detach().requires_grad_() for x in self.views]

    def forward(self):
        self.o = self.attend(*self.views)

    def backward(self):
        self.grads = self.torch.autograd.grad(self.o, self.leaves, self.dout, retain_graph=True)

    def results(self):
        if self.shape.op == "fwd":
            return {"o": self.o.transpose(1, 2)}
        return {n: x.transpose(1, 2) for n, x in zip(("dq", "dk", "dv"), self.grads)}


class Sdpa(ByAutograd):
    """scaled_dot_product_attention with one backend, on views of the same memory. `masked`: masks that are not causal go
    in as a tensor. `bias`: [batch, heads, seqlen, seqlen], added to the scores; with a gradient in the backward pass."""

    writes_lse, limit, checked = False, 20.0, True

    def __init__(self, torch, backend, masked=False, bias=None):
        self.torch, self.name, self.masked, self.bias = torch, "sdpa-" + backend.lower(), masked, bias
        self.backend = getattr(torch.nn.attention.SDPBackend, backend + "_ATTENTION")

    def prepare(self, shape, t):
        self.attn_mask = self.bias if self.bias is not None else self.mask_tensor(shape, t)
        super().prepare(shape, t)

    def make_leaves(self):
        leaves = super().make_leaves()
        if self.bias is not None and self.bias.is_floating_point():
            self.attn_mask = self.bias.detach().requires_grad_()
            leaves.append(self.attn_mask)
        return leaves

    def mask_tensor(self, shape, t):
        """Of a mask that no flag names: 0 or -inf, in the tensors' dtype; one for all heads and, if it can, all rows."""
        if shape.mask in ("full", "causal"):
            return None
        if not self.masked:
            raise RuntimeError("no backend has this mask")
        torch, n = self.torch, shape.seqlen
        out = torch.zeros((shape.batch, 1, 1 if shape.mask == "padding" else n, n), device="cuda", dtype=t.q.dtype)
        keys = torch.arange(n, device="cuda")[None, :]
        rows = torch.arange(out.shape[2], device="cuda")[:, None]
        for b in range(shape.batch):
            out[b, 0].masked_fill_(~MASKS[shape.mask].sees(t, rows, keys, b), float("-inf"))
        return out.expand(shape.batch, shape.heads, n, n)

    def attend(self, q, k, v):
        with self.torch.nn.attention.sdpa_kernel(self.backend):
            return self.torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=self.attn_mask, dropout_p=self.shape.dropout, is_causal=self.shape.mask == "causal")


class Flex(ByAutograd):
    """PyTorch's FlexAttention, compiled for each mask, score and shape. `grads`: arrays of the score whose gradients it takes in
    the backward pass; they are one for all entries of a batch. `seen`: a mask as a boolean [batch, heads or 1, seqlen,
    seqlen]."""
    name, writes_lse, limit, checked = "flex", False, 20.0, True
    # With an array's gradient none of the tilings that it would take by itself fits into an H200's shared memory.
    small = {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N1": 64, "bwd_BLOCK_M2": 64, "bwd_BLOCK_N2": 32, "bwd_num_stages": 1, "bwd_num_warps": 4}

    def __init__(self, torch, grads=(), seen=None):
        from torch.nn.attention import flex_attention
        self.torch, self.flex, self.of, self.seen = torch, flex_attention, grads, seen
        self.compiled = torch.compile(flex_attention.flex_attention, dynamic=False)

    def prepare(self, shape, t):
        if shape.dropout:
            raise RuntimeError("it has no dropout")
        sees, score = MASKS[shape.mask].sees, SCORES[shape.score].value
        self.options = {"enable_gqa": t.q.shape[2] != t.k.shape[2]}
        if sees:
            self.options["block_mask"] = self.flex.create_block_mask(
                lambda b, h, q, k: sees(t, q, k, b), shape.batch if shape.mask == "padding" else None, None, shape.seqlen, shape.seqlen, device="cuda")
        elif self.seen is not None:
            one_each = int(self.seen.shape[1] > 1)
            self.options["block_mask"] = self.flex.create_block_mask(
                lambda b, h, q, k: self.seen[b, h * one_each, q, k], shape.batch, shape.heads if one_each else None, shape.seqlen, shape.seqlen, device="cuda")
        self.wanted = {n: t.arrays[n][:1].detach().clone().requires_grad_() for n in self.of if shape.op == "bwd"}
        held = SimpleNamespace(arrays={**t.arrays, **{n: x.expand(shape.batch, *x.shape[1:]) for n, x in self.wanted.items()}})
        if self.wanted:
            self.options["kernel_options"] = self.small
        if score:
            self.options["score_mod"] = lambda s, b, h, q, k: score(self.torch, held, s, b, h, q, k)
        super().prepare(shape, t)

    def make_leaves(self):
        return super().make_leaves() + list(self.wanted.values())

    def attend(self, q, k, v):
        return self.compiled(q, k, v, **self.options)
