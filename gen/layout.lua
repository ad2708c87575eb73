-- The one shared-memory layout of the mma family: the planner takes its bytes, the kernel its offsets.
--
--   Q in shared memory:   | Q | K0 V0 | K1 V1 | ...
--   Q in registers:       | K0 V0 | K1 V1 | ...   with Q passing once through what the prologue leaves free
--   The output tile lies over all of it when the loop is done.
--
-- Tiles have 2-byte elements and columns padded to 16, the depth of an mma step; templates/piece/tile.cu swizzles them.

local function pad(columns) return (columns + 15) // 16 * 16 end

return function(problem, plan)
  local d_pad, dv_pad = pad(problem.head_dim), pad(problem.head_dim_v)
  local q_bytes = plan.block_m * d_pad * 2
  local k_bytes, v_bytes = plan.block_n * d_pad * 2, plan.block_n * dv_pad * 2
  local stage_bytes = k_bytes + v_bytes
  local o_bytes = plan.block_m * dv_pad * 2

  local q, kv = 0, q_bytes
  if plan.q_in_regs then
    kv = 0
    q = plan.stages == 1 and k_bytes or stage_bytes
  end
  return {
    d_pad = d_pad, dv_pad = dv_pad,
    q = q, k = kv, v = kv + k_bytes, o = 0,
    q_bytes = q_bytes, k_bytes = k_bytes, v_bytes = v_bytes, stage_bytes = stage_bytes,
    bytes = math.max(kv + plan.stages * stage_bytes, q + q_bytes, o_bytes),
  }
end
