@ include("piece/prelude.cu")

@ include("piece/primitives.cu")

// ---- pieces ----
@ local staged = {}
@ include("piece/staged.cu", { staged = staged })
@ include("piece/params.cu")

@ if #mask.upper + #mask.lower + #score.terms + #score.sinks > 0 or mask.residual then
@   include("piece/interval.cu")

@ end
@ if #arrays > 0 then
@   include("piece/array.cu")

@ end
@ include("piece/sequence.cu")

@ if mask.runs then
@   include("piece/runs.cu")

@ end
@ include("piece/schedule_persistent.cu")

@ include("piece/tile.cu")

// A warp owns 16 query rows and sees every key of a tile; four warps make a warpgroup. The last warpgroup loads.
constexpr int rows_per_warp = $(plan.rows_per_warp);
__device__ __forceinline__ int warp_row() { return threadIdx.x / 32$(plan.teams > 1 and " % " .. 4 * plan.consumers or "") * rows_per_warp; }
__device__ __forceinline__ int warp_col() { return 0; }
@ if plan.halved then
// The CTA weighs one half of a tile's keys, counted by halves. Of V and O the first column that it has, and how many there are.
__device__ __forceinline__ int own_half(int n) { return 2 * n + int(cluster_rank()); }
__device__ __forceinline__ int first_column() { return int(cluster_rank()) * own_dv; }
__device__ __forceinline__ int num_columns() { return min(own_dv, head_dim_v - first_column()); }
@ end
@ local ones = layout.o_cols > layout.dv_pad -- P V sums up weights as well
constexpr int m_atoms = 1;           // atoms of 16 query rows
constexpr int s_atoms = $(plan.score_block) / 8; // atoms of 8 keys
constexpr int o_atoms = $(layout.o_cols) / 8; // atoms of 8 value columns$(ones and ", the last one of ones" or "")

@ include("piece/gemm_wgmma.cu")

@ -- Where the first tile says little of a row's maximum, its raw scores are taken for an estimate of it (piece/estimate.cu): where masked
@ -- tiles may come before full ones; and where scores grow or shrink with their place and no bound puts the first tile at the diagonal.
@ local estimates = score.by_place
@ for _, bound in ipairs(mask.upper) do estimates = estimates and not bound:find("%f[%w_]q_iv%f[^%w_]") end
@ estimates = (estimates or mask.residual or #mask.lower > 0) and problem.dtype ~= "e4m3" and not problem.prescaled
@ -- Where not, and bounds put the first tiles at a diagonal, these have a key of each row: a row that full tiles come upon without a reference
@ -- is computed once more.
@ include("piece/mask.cu", { leads = #mask.upper > 0 and not (mask.residual or estimates) })

@ -- Where the first tile is an estimate, a row's largest weight is not 1, and one that sees a single key would not have its value: docs/precision.md.
@ local few_keys = estimates and #score.sinks == 0 and not mask.in_blocks and (#mask.lower > 0 and not (mask.residual or mask.reads) and "bounds" or "tile")
@ include("piece/softmax.cu", { estimates = estimates, ones = ones, strays = true })

@ -- Pairs of what terms read along the keys are read ahead, with as many registers as other things leave.
@ local num_pairs = 0
@ for _, array in ipairs(arrays) do num_pairs = num_pairs + (array.key_pairs and 1 or 0) end
@ local ahead = num_pairs > 0 and plan.pairs_ahead // num_pairs
@ local along = score.along and problem.kv_dtype ~= "e4m3" and not problem.joins_heads
@ local lines = layout.line_bytes > 0 -- the products add them; else one is for so many tiles that follow each other:
@ local along_tiles = not lines and plan.overlap == 2 and not (mask.residual or plan.halved) and 2 or 1
@ -- Scores that are computed become weights at once, where tiles are seen as a whole; dropout would stand there twice.
@ local weighs = #score.terms > 0 and not along and not problem.dropout and problem.dtype ~= "e4m3" and {}
@ for _, array in ipairs(arrays) do
@   for _, term in ipairs(score.terms) do
@     if term.value:find("%f[%w_]" .. array.name .. "_at%(") then weighs = false end
@   end
@ end
@ -- What is looked at before, is looked at and weighed in parts where two warpgroups leave instructions free: by one large score a part
@ -- becomes dear and not a tile.
@ if weighs then weighs.in_parts = plan.teams * plan.consumers == 2 and not plan.halved end
@ if #score.terms > 0 then
@   include("piece/score.cu", { estimates = estimates, along = along, along_tiles = along_tiles, ahead = ahead, weighs = weighs })

@ end
@ if estimates then
@   include("piece/estimate.cu", { few_keys = few_keys })

@ end
@ if problem.dropout then
@   include("piece/dropout.cu")

@   if problem.dtype == "e4m3" then
@     include("piece/dropout_bytes.cu")

@   end
@ end
@ if not mask.residual then
@   include("piece/walk.cu")

@ end
@ if problem.dtype == "e4m3" then
@   include("piece/values.cu")

@ elseif plan.widens_before then
@   include("piece/widen.cu")

@ end
@ -- Behind a packed sequence's values lie others', which are finite as a rule; but piece/widen.cu may have left them as they were.
@ local trusts = problem.packed and not (problem.seqused_k or problem.paged or problem.dtype == "e4m3" or plan.widens_before)
@ -- Of a team one warp loads, and has few registers: where its tile lies among sequences it reads again.
@ local team, bounds = plan.teams > 1, not mask.residual and #mask.upper + #mask.lower > 0
@ local reads = team and bounds and (problem.packed or problem.seqused_k)
@ -- A tile is claimed when few tiles of keys are left of the one before, as who claims it long before it is needed keeps it from others. Masks
@ -- with lower bounds have rows so short that it then comes too late where a warp loads all, or looks up in memory what a tile visits.
@ local late = not mask.residual and not reads and (plan.q_stages == 1 or #mask.lower == 0 or not (team or mask.reads))
@ include("piece/pipeline.cu", { staged = staged, trusts = trusts, reads = reads, late = late, sparse = mask.words ~= nil and estimates })

@ include("piece/epilogue.cu", { ones = ones, estimates = estimates, few_keys = few_keys })

// ---- the consumers ----
@ local e4m3, steps = problem.dtype == "e4m3", {}
@ steps.few_keys = few_keys
@ steps.estimates, steps.along, steps.along_tiles, steps.lines, steps.ahead = estimates, along and not lines, along_tiles, lines, ahead
@ -- Three warpgroups have no registers to read them ahead.
@ steps.words = mask.words and { ahead = plan.consumers ~= 3 }
@ steps.staged, steps.weighs, steps.ones, steps.prescaled = staged.array, weighs, ones, problem.prescaled
@ -- A cap looks at a tile's scores together, those of keys that are not there among them: these are anything behind packed sequences and in
@ -- caches, and an estimate leaves -inf there.
@ local absent = estimates or problem.paged or problem.seqused_k or problem.packed
@ for _, term in ipairs(score.terms) do
@   steps.drops_absent = steps.drops_absent or absent and term.value:find("tanh", 1, true) and true
@ end
@ include("piece/consumer_steps.cu", { steps = steps })
@ include("piece/consumer.cu", { steps = steps, staged = staged, late = late, estimates = estimates, trusts = trusts, along_tiles = along_tiles, lines = lines })

extern "C" __global__ void $(plan.cluster > 1 and "__cluster_dims__(2, 1, 1) " or "")__launch_bounds__(threads, $(plan.ctas_per_sm)) fk_forward(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if mask.leading_rows > 0 or plan.parts or problem.packed then
    start_next(); // $(problem.packed and "fk_forward_rest, which needs nothing of this kernel" or "fk_forward_combine, which waits for what is written here")
@ end
@ local function init_order()
@   if mask.unlike then
    if (threadIdx.x == 0) mbarrier_init(smem_base() + order_full, counting_threads / 32); // before its fence
@   end
@ end
@ local function order()
@   if mask.unlike then
        order_tiles(p);
@   end
@ end
@ local warp_number = "__shfl_sync(full_warp, threadIdx.x / 32, 0)" -- which the compiler then knows to be the same for all lanes
@ if plan.teams > 1 then
@   local each = plan.teams == 2 and 2 or 1 -- warps of a team that do not compute; one is left where there are three teams
    // Teams share nothing but the SM: while one begins a tile of queries or ends it, the other computes.
    const int number = $(warp_number), loading = number - 4 * teams * consumers;
    const int team = loading >= 0 ? loading$(each == 2 and " / 2" or "") : number / (4 * consumers);
    const u32 smem = smem_base() + team * team_bytes;
@   init_order()
    if (threadIdx.x % (128 * consumers) == 0 && loading < 0) init_barriers(smem);
@   if lines then
    for (int i = 0; i < teams; ++i) init_line(smem_base() + i * team_bytes);
@   end
    __syncthreads();
    if (loading >= 0) {
        setmaxnreg_dec<$(layout.loading_registers)>();
@   if each == 2 then
        if (loading % 2 == 0) {
            Producer(p, smem, team).run();
        } else {
            claim_first(p, smem, team);
@     if mask.residual then
            __syncwarp();
            Scanner(p, smem).run();
@     end
        }
@   else
        if (loading < teams) Producer(p, smem, team).run();
@   end
    } else {
        setmaxnreg_inc<$(layout.registers_given)>();
@   order()
        Consumer(p, smem, number - 4 * consumers * team, team).run();
    }
@ else
    const u32 smem = smem_base();
@ init_order()
    if (threadIdx.x == 0) init_barriers(smem);
@   if lines then
    init_line(smem);
@   end
    $(plan.cluster > 1 and "cluster_sync" or "__syncthreads")();
    const int warp = $(warp_number);
    if (warp >= 4 * consumers) {
        setmaxnreg_dec<$(layout.loading_registers)>();
        if (warp == 4 * consumers) Producer(p, smem).run();
@ if not plan.values_are_keys then
        if (warp == 4 * consumers + 1) ValueProducer(p, smem).run();
@ end
@ if staged.array then
        if (warp == 4 * consumers + 2) {
            claim_first(p, smem);
            __syncwarp();
            ArrayProducer(p, smem).run();
        }
@ else
        if (warp == 4 * consumers + 2$(plan.cluster > 1 and " && cluster_rank() == 0" or "")) claim_first(p, smem);
@ end
@ if mask.residual then
        if (warp == 4 * consumers + 3) Scanner(p, smem).run();
@ end
    } else {
        setmaxnreg_inc<$(layout.registers_given)>();
@ order()
        Consumer(p, smem, warp, 0).run();
    }
@   if plan.cluster > 1 then
    cluster_sync(); // the other CTA may still give back what this one filled
@   end
@ end
}
@ if mask.leading_rows > 0 then

@   include("piece/element.cu")

@   include("piece/combine.cu")
@ end
@ if plan.parts then

@   include("piece/combine_parts.cu")
@ end
@ if problem.dropout then

@   include("piece/keep_mask.cu")
@ end
@ if packs_blocks then

@   include("piece/pack_blocks.cu")
@ end
@ if staged.array then

@   include("piece/align.cu", { staged = staged })
@ end
@ if problem.packed then

@   include("piece/clear_rest.cu")
@ end
