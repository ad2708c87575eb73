-- The one shared-memory layout of a family: the planner takes its bytes, the kernel its offsets. Family mma:
--
--   Q in shared memory:   | Q | K0 V0 | K1 V1 | ...
--   Q in registers:       | K0 V0 | K1 V1 | ...   with Q passing once through what the prologue leaves free
--   The output tile lies over all of it when the loop is done. Of wide values a CTA has the columns of one slice (slices).
--
-- Backward keeps K and V of the CTA, and stages what the loop over query tiles needs:
--
--   | K | V | dS | P | Q0 dO0 lse0 delta0 | Q1 dO1 lse1 delta1 |
--
-- Of fp32 all of that may be parts (a plan's k_stages 1), of one stage, behind which the next tile comes in floats:
--
--   | K | V | dS | P | Q dO lse delta | Q dO lse delta |
--
-- Its warps stand in rows of keys and, where block_n / warps is less than 16 rows, in col_warps columns, which then share P
-- through shared memory as well. With 32 rows a warp the products fetch a fifth less from shared memory than with 16, so that
-- wide heads, where that is what bounds, take two columns more readily.
--
-- Of dQ a warp sums up at most dq_share atoms of 16 x 16 at a time: fp32 splits its operands in registers, which leaves less for
-- them beside dK and dV of wide heads. Where dQ comes from a kernel of its own, dS needs no room of its own unless warps stand in
-- columns, and that kernel has
--
--   | Q | dO | K0 V0 | K1 V1 |      with dQ passing through Q when the loop is done
--
-- Tiles have columns padded to 16, the depth of an mma step; templates/piece/tile.cu swizzles them.

-- Family wgmma has panels of 64 columns (rows of 128 bytes, which TMA swizzles), each a multiple of 1024 bytes:
--
--   | Q0 Q1 | K0 K1 ... | V0 V1 ... | array's tiles | line | rows of Q0, Q1, K0, ... | dropout's keys | places | array's barriers | barriers, slots | O's panels |
--
-- with each of two Q buffers passing its tile of the output on. One buffer has the next tile's queries by then, and O leaves by panels of
-- 16 rows of which each warp has at least two, where there is room for them, and else without. Places are where two tiles lie, and which
-- keys their warpgroups visit. Rows are what a mask that is no bound reads along a tile's queries or keys alone. Of an array that scores
-- read at each pair (a bias) each warpgroup has a tile, in panels of 128 bytes of keys by 64 rows, and two barriers.
--
-- d_pad and dv_pad columns are multiplied, d_cols and dv_cols stored. With e4m3 panels have 128 columns, and values are transposed: rows of
-- 128 bytes, which begin with the tile's keys, for dv_pad columns and, with `fast`, eight of ones; o_cols in all. The line is what S has of
-- scores that go by k in straight lines (piece/score_line.cu): 16 bytes a key, and 128 of no slope and of each warpgroup's, the last of
-- which has room for 64 rows of 32 bytes, though all are the same 16: compute-sanitizer's memcheck looks whether these are there. A Q
-- buffer and a stage of K or V have two barriers each, and there are two more; slots of 4 bytes say of two tiles which they are, and which
-- warps want them once more, and which tile comes second; then, where a mask is no bound, of each stage of K which tile it is, and before
-- that, up to two teams, two more barriers and words of the tiles looked for. Where tiles of queries are counted, a barrier and 256 words follow, of all teams
-- (piece/order.cu).

-- In a cluster of two each CTA has half of the plan's queries, and room to be asked by both CTAs' warps for tiles once more; four
-- barriers and words follow, by which the first one tells the other which tile comes next. Where it has half of the columns instead
-- (plan.halved) there is room for what the other one sends, behind the lines (piece/add_half.cu), and three barriers for each warp behind
-- these words.

-- Backward, the CTA's keys stay, and what is walked over comes in stages:
--
--   | K | V | Q0 dO0 | Q1 dO1 | ... | dS0 P0 | dS1 P1 | dQ | lse0 delta0 | lse1 delta1 | barriers, slots |
--
-- With 64 keys for each warpgroup that computes, P and dS are operands of dV and dK in its registers, and P has no room. With 64 keys in
-- all, the warpgroups (col_warps of them) share a tile's queries, and then the columns of dV, dK and dQ, of which each takes whole panels.
-- Scores come in parts of 64 queries. dQ passes through shared memory where the plan gives it a buffer. A stage has two barriers and two
-- slots of 4 bytes, which say what it holds; K and V have five barriers more, and a slot. Where other warps add dQ, each of its two buffers
-- has two barriers, or three where there is but the turn to add; three buffers of dS have two each. When the walk is over, one of dK and dV
-- passes through dS, and the one of fewer columns through the last tile's stage: the next keys' first tile has come to another one. A CTA
-- of a whole head has in dQ's place the sum of all of its rows, and two barriers for their statistics. Of an array that scores read at each
-- pair there is a tile behind dQ, in panels of 128 bytes of keys, whose place the tile's gradient takes, in panels of 32 (those of 64 keys
-- then lie where theirs begin); and behind the statistics are a slot of 16 bytes, which says where that goes, and three barriers.
--
-- A cluster of two CTAs shares a tile of keys, of which each has half, and the columns of dQ, for which it needs the other's dS and
-- half of the columns of the other's K. For these dO makes room, of which there is one buffer:
--
--   | K | V | other K | Q0 | Q1 | dO | dS0 P0 | dS1 P1 | other dS0 | other dS1 | lse0 delta0 | lse1 delta1 | barriers, slots |
--
-- dO, the other K and each buffer of the other dS have barriers of their own, and so have tails of each stage and of dO; two pass
-- which tile of keys comes next, in a slot.

-- Where such CTAs have halves of all columns instead (plan.halved), a CTA's are whole panels of both of its warpgroups, and the last one's may
-- lie behind the last column. Behind the statistics there is room for what each warp of the other CTA sends, sums of scores and of dP, each
-- with a barrier; dS and P have one buffer, with two barriers, two more and a slot pass which tile comes next, and dK and dV both pass through the
-- last stage:
--
--   | K | V | Q0 dO0 | Q1 dO1 | dS P | lse0 delta0 | lse1 delta1 | sums | barriers, slots |

local function pad(columns) return (columns + 15) // 16 * 16 end

local function backward(problem, plan)
  local d_pad, dv_pad = pad(problem.head_dim), pad(problem.head_dim_v)
  local size = plan.parted and 3 * 2 or problem.element_bytes
  local k_bytes, v_bytes = plan.block_n * d_pad * size, plan.block_n * dv_pad * size
  local ds_bytes = plan.block_n * plan.block_m * size
  local col_warps = math.max(1, 16 * plan.warps // plan.block_n)
  if plan.block_n * col_warps // plan.warps == 16 and d_pad + dv_pad > 128 and plan.block_m // (2 * col_warps) >= 16 and
    plan.warps >= 2 * col_warps then
    col_warps = 2 * col_warps
  end
  local q_bytes, dout_bytes, row_bytes = plan.block_m * d_pad * size, plan.block_m * dv_pad * size, plan.block_m * 4
  local stage_bytes = q_bytes + dout_bytes + 2 * row_bytes
  local q = k_bytes + v_bytes + ((col_warps > 1 or problem.slices > 1) and 2 or plan.dq_kernel and 0 or 1) * ds_bytes
  -- What becomes parts comes in floats: K and V first, over the stage and what lies behind it, then each tile of Q and dO behind the stage.
  local raw = q + stage_bytes
  local raw_bytes = math.max(raw + plan.block_m * ((d_pad + dv_pad) * 4 + 8), q + plan.block_n * (d_pad + dv_pad) * 4)
  return {
    d_pad = d_pad, dv_pad = dv_pad,
    k = 0, v = k_bytes, ds = k_bytes + v_bytes, p = k_bytes + v_bytes + ds_bytes, col_warps = col_warps,
    q = q, dout = q + q_bytes, lse = q + q_bytes + dout_bytes, delta = q + q_bytes + dout_bytes + row_bytes,
    o = 0, stage_bytes = stage_bytes, q_bytes = q_bytes, k_bytes = k_bytes, v_bytes = v_bytes,
    dq_share = problem.dtype == "fp32" and d_pad > 160 and 4 or 8,
    raw_k = q, raw_v = q + plan.block_n * d_pad * 4, raw = raw,
    bytes = plan.parted and raw_bytes or q + plan.stages * stage_bytes,
  }
end

local function backward_dq(problem, plan)
  local d_pad, dv_pad, size = pad(problem.head_dim), pad(problem.head_dim_v), problem.element_bytes
  local q_bytes, dout_bytes = plan.block_m * d_pad * size, plan.block_m * dv_pad * size
  local k_bytes, v_bytes = plan.block_n * d_pad * size, plan.block_n * dv_pad * size
  local k, stage_bytes = q_bytes + dout_bytes, k_bytes + v_bytes
  return {
    d_pad = d_pad, dv_pad = dv_pad,
    q = 0, dout = q_bytes, k = k, v = k + k_bytes, stage_bytes = stage_bytes,
    bytes = k + plan.stages * stage_bytes,
  }
end

local function wgmma(problem, plan, arch, scan)
  local size, e4m3 = problem.element_bytes, problem.dtype == "e4m3"
  local panel = 128 // size
  local function own(columns) return plan.halved and (columns + 1) // 2 or columns end
  local d_pad, dv_pad = pad(own(problem.head_dim)), pad(own(problem.head_dim_v))
  local d_cols, dv_cols = (d_pad + panel - 1) // panel * panel, (dv_pad + 63) // 64 * 64 -- dv_cols: of the output
  local q_row, o_row = d_cols * size, dv_cols * 2
  local k_bytes, v_bytes = plan.block_n * q_row, plan.block_n * o_row
  if e4m3 then
    d_pad = (d_pad + 31) // 32 * 32 -- a step of the depth
    v_bytes = panel * problem.value_rows
  end
  if plan.halved or e4m3 and plan.q_stages == 1 then o_row = 0 end -- the output does not pass through Q's buffer
  local q_bytes = plan.block_m // (plan.halved and 1 or plan.cluster) * math.max(q_row, o_row)
  local k = plan.q_stages * q_bytes
  local shared = plan.values_are_keys -- then tiles of values are those of keys
  local v = shared and k or k + plan.k_stages * k_bytes
  if shared then v_bytes = k_bytes end
  local array = v + plan.stages * v_bytes
  local array_keys = scan.staged and 128 // scan.staged_bytes -- of a panel
  local score_keys = plan.halved and plan.block_n // 2 or plan.block_n -- of a tile, that a CTA weighs
  local score_atoms = score_keys // 8
  local array_bytes = scan.staged and (score_keys + array_keys - 1) // array_keys * (64 * 128) or 0 -- of a warpgroup
  local line = array + plan.consumers * array_bytes
  local halves = line + (scan.lines and plan.block_n * 16 + plan.consumers * 128 + 64 * 32 or 0)
  local half_bytes = plan.halved and plan.consumers * 4 * ((score_atoms + (score_atoms + 1) // 2) * 512 + 128) or 0 -- of each warp sums, weights, numbers of rows
  local rows = halves + half_bytes
  local q_row_bytes, k_row_bytes = scan.query_rows * 4 * plan.block_m, scan.key_rows * 4 * plan.block_n
  local dropout_keys = rows + plan.q_stages * q_row_bytes + plan.k_stages * k_row_bytes
  local tile_places = dropout_keys + (problem.dropout and plan.q_stages * 16 or 0)
  local has_keys, descaled = problem.packed or plan.parts, problem.kv_dtype == "e4m3"
  local place_bytes = 16 * (1 + (has_keys and 1 or 0) + (scan.needed and 0 or 2 * plan.consumers) + (descaled and 1 or 0))
  local array_bars = tile_places + 2 * place_bytes
  local bars = array_bars + (scan.staged and 2 * 8 * plan.consumers or 0)
  local bytes = bars + 8 * (2 * (plan.q_stages + plan.k_stages + (shared and 0 or plan.stages)) + 2) + 8 * (1 + 4 * plan.consumers * plan.cluster) + 8 +
    (plan.cluster > 1 and 4 * (8 + 4) or 0) + (plan.halved and 4 * plan.consumers * 3 * 8 or 0) +
    (scan.needed and (plan.teams <= 2 and 8 * 2 + 4 * (4 + 2 * 32) or 0) + 4 * plan.k_stages or 0)
  local own_terms = (bytes + 7) // 8 * 8
  if scan.own > 0 then bytes = own_terms + 8 * scan.own end
  local team_bytes = (bytes + 1023) // 1024 * 1024 -- each team has all of it
  local all = (plan.teams - 1) * team_bytes + bytes
  local order = (all + 7) // 8 * 8
  local used = scan.counted and order + 8 + 4 * 256 or all
  local out, panel_bytes = (used + 1023) // 1024 * 1024, 4 * plan.consumers * 16 * 128 -- of all warps
  local out_panels = plan.q_stages == 1 and math.min(dv_cols // 64, (arch.smem_bytes - out) // panel_bytes) or 0
  if out_panels < 2 or plan.halved then out_panels = 0 end
  -- Of what a block gets at its start, as many registers for each warp that loads and for each thread that computes. Producers that look for
  -- tiles take more; of 8 bits there are no tails to fill.
  local computing = plan.teams * plan.consumers
  local loading_registers, registers_given = computing > 2 and 32 or 56, plan.registers_given
  if plan.halved and computing == 2 then
    loading_registers, registers_given = 40, 232
  elseif e4m3 and not scan.needed and computing == 2 then
    loading_registers = dv_pad > 224 and 24 or 40
    registers_given = dv_pad > 224 and 240 or 232
  elseif plan.teams == 3 and scan.needed then
    loading_registers, registers_given = 80, 144
  end
  return {
    loading_registers = loading_registers, registers_given = registers_given,
    d_pad = d_pad, dv_pad = dv_pad, d_cols = d_cols, dv_cols = dv_cols, o_cols = e4m3 and problem.value_rows or dv_pad,
    q = 0, k = k, v = v, rows = rows, bars = bars, q_bytes = q_bytes, k_bytes = k_bytes, v_bytes = v_bytes,
    array = array, array_bytes = array_bytes, array_bars = array_bars, line = line, line_bytes = halves - line, halves = halves,
    q_row_bytes = q_row_bytes, k_row_bytes = k_row_bytes, dropout_keys = dropout_keys, tile_places = tile_places,
    place_bytes = place_bytes, own_terms = own_terms, team_bytes = team_bytes, order = order,
    out = out, out_panels = out_panels, bytes = out_panels > 0 and out + out_panels * panel_bytes or used,
  }
end

local function wgmma_backward(problem, plan, arch, scan)
  local halves, pair = plan.halved and 2 or 1, plan.cluster > 1 and not plan.halved
  local own_n = plan.halved and plan.block_n or plan.block_n // plan.cluster
  local shared = plan.consumers * 64 // own_n
  local panels = 64 * shared
  local function own(columns) return (columns + panels * halves - 1) // (panels * halves) * panels end -- of a CTA
  local d_cols, dv_cols = own(problem.head_dim), own(problem.head_dim_v)
  local whole = shared > 1 and not plan.halved
  local d_pad = whole and d_cols or pad(problem.head_dim)
  local dv_pad = whole and dv_cols or pad(problem.head_dim_v)
  local d_depth, dv_depth = shared > 1 and d_cols or d_pad, shared > 1 and dv_cols or dv_pad
  local dq_groups = plan.block_m // 64 -- warpgroups that share dQ's rows; the others share its columns
  local dq_cols = dq_groups == plan.consumers and d_pad or d_cols * dq_groups // (plan.consumers * (pair and plan.cluster or 1))
  local k_bytes, v_bytes = own_n * d_cols * 2, own_n * dv_cols * 2
  local q_bytes, dout_bytes = plan.block_m * d_cols * 2, plan.block_m * dv_cols * 2
  local ds_bytes = plan.block_m * own_n * 2
  local share_bytes = (shared > 1 and 2 or 1) * ds_bytes
  local array_bytes = scan.staged and plan.block_m * own_n * scan.staged_bytes or 0
  local stage_bytes = pair and q_bytes or q_bytes + dout_bytes
  local dq_bytes = 64 * plan.consumers * dq_cols * 4 -- a buffer
  local sum_bytes = plan.head_rows > 0 and plan.head_rows * d_pad * 4 or plan.q_stages * dq_bytes
  -- Where a CTA has a head, and there is room, keys of the next one are on their way while one is computed.
  local kv_bytes = k_bytes + v_bytes
  local taken = 2 * kv_bytes + plan.stages * (stage_bytes + plan.block_m * 8) + plan.k_stages * share_bytes + sum_bytes + array_bytes
  local kv_buffers = plan.head_rows > 0 and taken + 1024 <= arch.smem_bytes and 2 or 1
  local other_k = kv_buffers * kv_bytes
  local q = other_k + (pair and k_bytes // 2 or 0)
  local dout = pair and q + plan.stages * stage_bytes or q + q_bytes
  local ds = q + plan.stages * stage_bytes + (pair and dout_bytes or 0)
  local other_ds = ds + plan.k_stages * share_bytes
  local dq = other_ds + (pair and plan.k_stages * ds_bytes or 0)
  local array = dq + sum_bytes
  local rows = array + array_bytes
  local sums = rows + plan.stages * plan.block_m * 8
  local weigh_cols = 64 // shared // halves -- of queries, by a warp
  local sum_part = 16 * weigh_cols * 4 -- of a warp's scores those that the other CTA weighs
  local array_bars = sums + (plan.halved and 4 * plan.consumers * 2 * sum_part or 0)
  local bars = array_bars + (scan.staged and 16 + 4 * 8 or 0)
  local late = plan.turns or plan.k_stages == 3

  -- Registers of a thread that computes: dK and dV; the scores and dP of a part, or the next tile's scores and dQ; and others. For
  -- each four that are left over, and eight more (packed: twelve), a step of 16 columns of V or K stays in them, as A of dP or S, while a row is
  -- walked. Of scores in parts V or K stay as a whole, so that a part need not read them again.
  local parts, score_registers, part_registers = plan.block_m // 64, plan.block_m // shared // 2, 32 // shared
  local weighing = score_registers + part_registers + (plan.overlap == 2 and part_registers // 2 or 0)
  local adding = score_registers + (shared > 1 and score_registers // 2 or 0) + plan.block_m * d_depth // 256 // (pair and plan.cluster or 1)
  local registers = (d_depth + dv_depth) // shared // 2 + math.max(weighing, adding) + 24
  -- What is held was timed with 240 registers where producers look for tiles, too, though these have 232 there (registers_given).
  local given, spared = (scan.long_walk or plan.head_rows > 0) and 232 or 240, problem.packed and 12 or 8
  local left = shared == 1 and not scan.fused and math.max(0, given - registers - spared) // 4 or 0
  local function hold(columns)
    local steps = columns // 16
    local held = left >= steps and steps or parts == 1 and left or 0
    left = left - held
    return held
  end
  -- What tells the other CTA takes more than 24 registers of the warps that load, and so do the walk over a long pattern and rows' statistics.
  -- Whoever looks for tiles has more, too, where those that compute can spare them.
  local more = pair or scan.long_walk or plan.head_rows > 0 or scan.needed and plan.block_m == 64 and d_pad + dv_pad <= 128
  if plan.halved then more = (d_depth + dv_depth) // shared < 256 end
  local held_v = hold(dv_pad)
  local held_k = plan.k_stages == 2 and hold(d_pad) or 0 -- with three buffers of dS K as well is slower (2 %)
  return {
    d_pad = d_pad, dv_pad = dv_pad, d_cols = d_cols, dv_cols = dv_cols, col_warps = shared,
    d_depth = d_depth, dv_depth = dv_depth, -- columns that are multiplied for S and dP
    parts = parts, score_cols = 64 // shared, dk_cols = d_depth // shared, dv_own_cols = dv_depth // shared, dq_cols = dq_cols,
    weigh_cols = weigh_cols, sums = sums, sum_part = sum_part,
    k = 0, v = k_bytes, q = q, dout = dout, ds = ds, p = ds + ds_bytes, dq = dq, rows = rows, bars = bars,
    loading_registers = more and 40 or 24, registers_given = more and 232 or 240,
    held_k = held_k, held_v = held_v, s_parts = held_k > 0 and parts or 1, registers = registers + 4 * (held_k + held_v),
    own_n = own_n, array = array, array_bytes = array_bytes, array_bars = array_bars, other_k = other_k, other_ds = other_ds,
    k_bytes = k_bytes, v_bytes = v_bytes, q_bytes = q_bytes, ds_bytes = ds_bytes,
    share_bytes = share_bytes, stage_bytes = stage_bytes, dq_bytes = dq_bytes,
    kv_buffers = kv_buffers, kv_bytes = kv_bytes,
    bytes = bars + plan.stages * 8 * 3 + 8 * (kv_buffers > 1 and 3 or 1) + 8 * 5 * kv_buffers +
      (plan.adders and 8 * 2 * (plan.q_stages == 0 and 3 or 2) or 0) + (plan.head_rows > 0 and 8 * 2 or 0) +
      (late and 8 * 2 * plan.k_stages or 0) + (pair and 8 * (3 + plan.k_stages + plan.stages + 1 + 3) or 0) +
      (plan.halved and 8 * (2 + 2 * 4 * plan.consumers + 3) or 0),
  }
end

-- `scan`: whether tiles of keys are looked for (`needed`) in a mask that is no bound, and how many of its arrays are read along queries and
-- along keys alone. `lines`: the tensor cores add lines along the keys. `staged`: tiles of an array that scores read are copied beside
-- those of K; `staged_bytes`: an element's, or its gradient's. `counted`: queries whose own tiles are counted first; `long_walk`: as in
-- docs/templates.md; `fused`: scores' way back is one pass with P and dS.
return function(problem, plan, arch, scan)
  if plan.family == "wgmma" then
    return problem.op == "bwd" and wgmma_backward(problem, plan, arch, scan) or wgmma(problem, plan, arch, scan)
  end
  if problem.op == "bwd" then return plan.walk == "q" and backward(problem, plan) or backward_dq(problem, plan) end
  local d_pad, dv_pad = pad(problem.head_dim), pad(problem.head_dim_v // problem.slices)
  local size = plan.widens and 2 or plan.parted and 3 * 2 or problem.element_bytes
  local q_bytes = plan.block_m * d_pad * size
  local k_bytes, v_bytes = plan.block_n * d_pad * size, plan.block_n * dv_pad * size
  local stage_bytes = k_bytes + v_bytes
  local o_bytes = problem.dtype == "fp32" and 0 or plan.block_m * dv_pad * size -- floats leave from the registers

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
