-- Hopper: as sm_80 with 227 KB for a block; besides, warpgroups that multiply from shared memory, and TMA.
return {
  inherits = "sm80", name = "sm_90", vector_add = true, early_start = true, e4m3 = true,
  wgmma_flops = 4096, smem_bytes = 227 * 1024, -- of a block
  -- With 128 rows for four warpgroups that compute, or 64 for two, these are two teams, each with tiles of its own, as two CTAs would
  -- be, for which there are too few registers: while one begins or ends a tile, the other computes. With 256 rows the four share a ring
  -- so deep that they drift apart, and read keys once. With twice the rows that a CTA's warpgroups have, two CTAs share keys. Three
  -- warpgroups fall into step unless they take turns. Deeper rings serve CTAs that walk over unlike numbers of tiles, and so do not meet
  -- in the L2 cache; where they do, they cost more than they serve.
  wgmma_tiles = {
    { block_m = 256, block_n = 64, warps = 20, stages = 8, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 8, turns = false, overlap = 2 },
    { block_m = 256, block_n = 64, warps = 20, stages = 8, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 8, turns = true, overlap = 2 },
    { block_m = 128, block_n = 64, warps = 20, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 128, block_n = 64, warps = 20, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 2 },
    { block_m = 192, block_n = 128, warps = 16, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 1 },
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 2 },
    { block_m = 192, block_n = 112, warps = 16, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 192, block_n = 96, warps = 16, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 192, block_n = 64, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 192, block_n = 64, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 3, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 3, turns = false, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 3, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 3, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 3, turns = true, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 128, block_n = 96, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 112, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 128, block_n = 96, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 128, block_n = 80, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 112, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 80, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 256, block_n = 128, warps = 12, stages = 2, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 3, turns = false, overlap = 2 },
    { block_m = 256, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 12, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 64, block_n = 64, warps = 20, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 16, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
  },
  -- Of head dims above 256: two CTAs have a tile's queries and keys, and each half of all columns.
  wgmma_halved_tiles = {
    { block_m = 128, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 128, block_n = 64, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 3, turns = false, overlap = 1 },
    { block_m = 128, block_n = 48, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 48, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 3, turns = false, overlap = 1 },
    { block_m = 128, block_n = 32, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 8, stages = 4, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 4, turns = false, overlap = 1 },
  },
  -- The same backward.
  wgmma_backward_halved_tiles = {
    { block_m = 64, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 1, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 1, turns = false, overlap = 1 },
  },
  -- Backward: stages are those of Q and dO, k_stages those of dS, q_stages the buffers of dQ (0: it is added straight from the
  -- registers; 2: by warps of their own); overlap 2: dV is multiplied while dS is computed. With three buffers of dS, or
  -- `turns`, dQ is multiplied a tile later, and neither warpgroup waits for the other's dS; `turns`: they stay half a visit apart.
  -- head_rows: a CTA has all keys of a head, and sums up dQ of so many queries in shared memory.
  wgmma_backward_tiles = {
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 3, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 64, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = true, overlap = 1, head_rows = 512 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 512 },
    { block_m = 64, block_n = 128, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 256 },
    { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 512 },
    { block_m = 64, block_n = 128, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 384 },
    { block_m = 64, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 0, k_stages = 2, turns = false, overlap = 1, head_rows = 128 },
  },
  -- Of 8 bits: products take half the time, so that the exponentials are as long at head dim 128 as well; with 96 keys three
  -- warpgroups have registers for it. Values have keys in rows of 128 bytes.
  e4m3_tiles = {
    { block_m = 128, block_n = 64, warps = 20, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 2 },
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 1 },
    { block_m = 192, block_n = 96, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 4, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 4, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 1 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
    { block_m = 64, block_n = 128, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 1 },
  },
  -- The same without exponentials: warpgroups wait for little but products, of which two leave none idle at head dim 128. Two arrays of
  -- weights, as they are made before the wait for P V.
  e4m3_fast_tiles = {
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = true, ctas = 1, q_stages = 2, k_stages = 4, turns = true, overlap = 2 },
    { block_m = 192, block_n = 128, warps = 16, stages = 4, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 4, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 3, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 3, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 2, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 128, block_n = 128, warps = 12, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 2 },
    { block_m = 64, block_n = 128, warps = 8, stages = 2, q_in_regs = false, ctas = 1, q_stages = 1, k_stages = 2, turns = false, overlap = 2 },
  },
}
