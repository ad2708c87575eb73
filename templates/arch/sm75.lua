-- Turing (T4, RTX 20): fp16 only, m16n8k8, no asynchronous copy: tiles pass through registers; 64 KB for a block.
return {
  name = "sm_75", family = "mma",
  mma_k = 8, async_copy = false, bf16 = false, vector_add = false, early_start = false, e4m3 = false,
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
  wgmma_flops = 0, smem_bytes = 0, wgmma_tiles = {}, wgmma_halved_tiles = {}, wgmma_backward_tiles = {}, wgmma_backward_halved_tiles = {}, e4m3_tiles = {}, e4m3_fast_tiles = {}, split_e4m3_tiles = {}, -- nor warpgroups
  fp32_tiles = {}, fp32_dq_tiles = {}, fp32_backward_tiles = {}, -- no bf16
  -- Of the kernel that dq has where it is not added up in global memory: the first one that fits is taken.
  dq_tiles = {
    { block_m = 64, block_n = 64, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 64, block_n = 32, warps = 4, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 32, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },
    { block_m = 32, block_n = 16, warps = 2, stages = 1, q_in_regs = false, ctas = 1 },
  },
  -- Besides, where CTAs share the keys of a few queries: small tiles, with as much of K and V on its way as can be.
  split_tiles = {
    { block_m = 16, block_n = 32, warps = 1, stages = 1, q_in_regs = true, ctas = 3 },
    { block_m = 32, block_n = 64, warps = 2, stages = 1, q_in_regs = true, ctas = 2 },
    { block_m = 32, block_n = 32, warps = 2, stages = 1, q_in_regs = true, ctas = 2 },
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
