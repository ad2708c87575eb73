"""A causal attention forward pass in Triton, bf16, head_dim 128: what bench/startup.py has Triton compile. Not tuned."""
import torch
import triton
import triton.language as tl


@triton.jit
def forward(q_ptr, k_ptr, v_ptr, o_ptr, seqlen, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * seqlen * D
    rows, dims = block * M + tl.arange(0, M), tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :])
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, (block + 1) * M, N):
        keys = start + tl.arange(0, N)
        k = tl.load(k_ptr + base + keys[None, :] * D + dims[:, None])
        s = tl.where(rows[:, None] >= keys[None, :], tl.dot(q, k) * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        v = tl.load(v_ptr + base + keys[:, None] * D + dims[None, :])
        acc = tl.dot(p.to(tl.bfloat16), v, acc * shrink[:, None])
        total = total * shrink + tl.sum(p, 1)
        top = new_top
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], (acc / total[:, None]).to(tl.bfloat16))


def attention(q, k, v):
    """q, k, v: contiguous [batch, heads, seqlen, 128], seqlen a multiple of 128."""
    batch, heads, seqlen, dim = q.shape
    o = torch.empty_like(q)
    forward[seqlen // 128, batch * heads](q, k, v, o, seqlen, dim ** -0.5 * 1.4426950408889634, dim, 128, 64, num_warps=8)
    return o
