-- Ampere, data centre (A100): bf16, m16n8k16, asynchronous copies, 163 KB for a block.
return {
  inherits = "sm75", name = "sm_80",
  mma_k = 16, async_copy = true, bf16 = true,
  tiles = {
    { block_m = 128, block_n = 128, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 2 },
    { block_m = 128, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 2 },
    { block_m = 128, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 64, warps = 4, stages = 2, q_in_regs = true, ctas = 2 },
    { block_m = 128, block_n = 64, warps = 4, stages = 2, q_in_regs = true, ctas = 3 },
    { block_m = 128, block_n = 32, warps = 4, stages = 2, q_in_regs = false, ctas = 2 },
    { block_m = 128, block_n = 64, warps = 8, stages = 2, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 64, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 32, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 64, warps = 4, stages = 2, q_in_regs = false, ctas = 2 },
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 2 },
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 32, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 16, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
  },
}
