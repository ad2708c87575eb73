-- Turing (T4, RTX 20): fp16 only, m16n8k8, no asynchronous copy: tiles pass through registers; 64 KB for a block.
return {
  name = "sm_75", family = "mma",
  mma_k = 8, async_copy = false, bf16 = false,
  tiles = {
    { block_m = 128, block_n = 64, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 32, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 128, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 2 },
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 32, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 16, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 32, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },
  },
  backward_tiles = {
    { block_m = 64, block_n = 64, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 64, warps = 8, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 32, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 16, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },
  },
}
