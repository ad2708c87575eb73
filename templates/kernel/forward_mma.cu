@ include("piece/prelude.cu")

@ include("piece/primitives.cu")

// ---- pieces ----
@ include("piece/params.cu")

@ if #mask.upper + #mask.lower + #score.terms + #score.sinks > 0 or mask.residual then
@   include("piece/interval.cu")

@ end
@ if #arrays > 0 then
@   include("piece/array.cu")

@ end
@ include("piece/sequence.cu")

@ -- Where staged tiles leave no registers for it, the end works its tile out once more; and so does whoever computes it once more where
@ -- one warp has wide rows.
@ local again = problem.split and not problem.packed and not arch.async_copy
@ local one_warp = problem.split and not problem.packed and plan.warps == 1 and layout.d_pad > 128
@ if again or one_warp then
@   include("piece/place.cu")

@ end
@ include("piece/schedule.cu", { again = again or one_warp })

@ include("piece/tile.cu")

@ if plan.parted then
@   include("piece/float_parts.cu")

@ end
@ -- Elements of 8 bits become operands on their way to shared memory: those of K and V, and Q's if they are like them.
@ local widens_q = plan.widens and problem.dtype == problem.kv_dtype
@ include("piece/tile_copy.cu", { copy = "TileCopy", element = "Element", widens = widens_q })
@ local key_copy = plan.widens and not widens_q and "KeyCopy" or "TileCopy"

@ if key_copy == "KeyCopy" then
@   include("piece/tile_copy.cu", { copy = key_copy, element = "KeyElement", widens = true })

@ end
@ -- Of keys in pages, how many rows of a tile are known to be of one page, and whether that is worth looking up ahead.
@ local together = problem.page_rows > 0 and math.min(plan.block_n, problem.page_rows) or 1
@ local function shares(columns) -- a look-up among the rows that a thread copies
@   local lanes = 2
@   while lanes < columns // 8 do lanes = 2 * lanes end
@   return together % (plan.threads // lanes) == 0 and together > plan.threads // lanes
@ end
@ local looks_ahead = plan.widens and problem.page_rows > 1 and plan.block_n % together == 0 and problem.page_rows % together == 0 and shares(layout.d_pad) and shares(layout.dv_pad)
@ if problem.paged then
@   include("piece/tile_paged.cu", { copy = key_copy, widens = plan.widens, together = together, looks_ahead = looks_ahead })

@ end
@ if problem.joins_heads then
@   include("piece/tile_heads.cu", { widens = widens_q })

@ end
@ include(problem.dtype == "fp32" and "piece/gemm_fp32.cu" or "piece/gemm.cu")

// A warp owns rows_per_warp query rows and sees every key of a tile.
constexpr int rows_per_warp = $(plan.rows_per_warp);
__device__ __forceinline__ int warp_row() { return $(plan.warps == 1 and "0" or "threadIdx.x / 32 * rows_per_warp"); }
__device__ __forceinline__ int warp_col() { return 0; }
constexpr int m_atoms = rows_per_warp / 16; // atoms of 16 query rows
constexpr int s_atoms = block_n / 8;        // atoms of 8 keys
constexpr int o_atoms = dv_pad / 8;         // atoms of 8 value columns

@ -- Each tile takes the maximum where the last keys say little of it (piece/consumer_steps.cu), and of fp32, as the exponent of a large p
@ -- would be too coarse. Where not, full tiles keep the reference of those before, and a row may stray from it.
@ local raises = score.by_place and #mask.upper == 0 or problem.dtype == "fp32"
@ local strays = not raises
@ include("piece/mask.cu", { leads = strays and not mask.residual })

@ if #score.terms > 0 then
@   include("piece/score.cu", { estimates = false, along = false, ahead = false, weighs = false })

@ end
@ include("piece/softmax.cu", { estimates = false, ones = false, strays = strays })

@ if problem.dropout then
@   include("piece/dropout.cu")

@ end
@ include("piece/element.cu")

@ include("piece/store.cu")

@ include("piece/epilogue.cu", { ones = false, estimates = false, few_keys = false })

@ local leads = mask.leading_rows > 0 -- tiles that may come in parts
@ if problem.split or leads then
@   include("piece/split.cu")

@ end
@ -- What is computed once more has no full tile: a flag says so, and their range stays a constant, which uniform registers hold. Where the order
@ -- of tiles goes by the range as well, it is emptied.
@ local careful = strays and not mask.residual and #mask.lower == 0 and not problem.split
@ local waits = plan.widens or plan.parted -- in registers, on its way to shared memory
@ -- S = Q K^T for the warp's rows and the tile of keys.
@ local low = problem.dtype == "fp32" and #score.terms == 0 and ", low" or "" -- s + low is S, of which terms take s alone
@ local fresh = problem.dtype == "fp32" and ", false, true" or "" -- S starts from 0
@ local qk_gemm = "gemm_nt<block_m, block_n, d_pad" .. fresh .. ">(s" .. low .. ", smem + smem_q, warp_row(), tile_k)"
@ if plan.q_in_regs then qk_gemm = "gemm_nt<d_pad>(s, q, tile_k)" end
@ local more = mask.residual and "next >= 0" or "next >= tiles.begin"
@ local next_stage = plan.stages == 2 and " + stage" or ""
@ local function issue_next()
        copy_k.move((next - n) * block_n);
        copy_v.move((next - n) * block_n);
        if ($(more)) {
@   if looks_ahead then
            pages.want(next, block_n);
            copy_k.template issue<true>(smem + smem_k$(next_stage), block_n, pages);
            copy_v.template issue<true>(smem + smem_v$(next_stage), block_n, pages);
            pages.go_ahead();
@   else
            copy_k.template issue<true>(smem + smem_k$(next_stage), block_n);
            copy_v.template issue<true>(smem + smem_v$(next_stage), block_n);
@   end
        }
@ end
@ local function issue_next_k() -- V follows when K is there
        copy_k.move((next - n) * block_n);
        copy_v.move((next - n) * block_n);
        if ($(more)) copy_k.template issue<true>(tile_k, block_n);
@ end
@ -- One step of the loop over key tiles, of which `whole` ones need no mask. It stands there once: a branch a tile costs less than twice
@ -- the text.
@ local function kv_step()
@   if waits then -- K and V wait in registers
@     if plan.stages == 1 then
        __syncthreads(); // every warp is done with the tile before
@     else
        const u32 tile_k = smem + smem_k + stage, tile_v = smem + smem_v + stage;
        stage = stage_bytes - stage;
@     end
        copy_k.land(tile_k);
        copy_v.land(tile_v);
        __syncthreads(); // tile n is there$(plan.stages == 2 and ", and every warp is done with the other stage" or "")
@     issue_next()
        fill(s, 0.0f);
@   if low ~= "" then
        float low[m_atoms][s_atoms][4];
@   end
        $(qk_gemm);
@   elseif plan.stages == 1 then
        copy_k.land(tile_k);
        __syncthreads(); // K(n) is there, and every warp is done with the last V
        copy_v.template issue<false>(tile_v, at.seqlen_k - n * block_n);
        fill(s, 0.0f);
@   if low ~= "" then
        float low[m_atoms][s_atoms][4];
@   end
        $(qk_gemm);
        copy_v.land(tile_v);
        __syncthreads(); // V(n) is there, and every warp is done with K(n)
@     if arch.async_copy then
@       issue_next_k()
@     end
@   else
        const u32 tile_k = smem + smem_k + stage, tile_v = smem + smem_v + stage;
        stage = stage_bytes - stage;
        copy_k.land(tile_k); // and V(n)
        __syncthreads();     // tile n is there, and every warp is done with the other stage
        fill(s, 0.0f);
@   if low ~= "" then
        float low[m_atoms][s_atoms][4];
@   end
        $(qk_gemm);
@     issue_next()
@   end
@   if #score.terms > 0 then
        score_tile(s, n, p, at);
@   end
@   local scale = #score.terms == 0 and (plan.widens and "at.scale" or "p.scale_log2") or problem.dtype == "fp32" and "log2_e" or "score_scale(p)"
@   if raises then
        if (!whole) mask_tile(s, n, p, at);
        raise_maximum(s$(low), m_i, l_i, o, $(scale));
@   elseif mask.residual then
        if (!(whole && settled)) {
            if (!whole) mask_tile(s, n, p, at);
            raise_maximum(s$(low), m_i, l_i, o, $(scale));
            settled = settled || (whole && !lacks_reference(m_i));
        }
@   else
        if (!whole) {
            mask_tile(s, n, p, at);
            raise_maximum(s$(low), m_i, l_i, o, $(scale));
        }
@   end
        scale_maximum(m_scaled, m_i, $(scale));
@   if score.strays_far then
        take_differences(s, m_scaled, m_i, $(scale));
@   end
        exponentiate(s$(low), m_scaled, l_i, $(scale));
@   if plan.stages == 1 and not waits and not arch.async_copy then -- before the branches above the compiler would wait for K with V
@     issue_next_k()
@   end
@   if problem.dropout then
        gemm_pn(o, s, tile_v, dropout);
        dropout.move(0, (next - n) * block_n);
@   else
        gemm_pn(o, s, tile_v);
@   end
@ end
extern "C" __global__ void __launch_bounds__(threads, $(plan.ctas_per_sm)) fk_forward(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if (problem.split or leads) and arch.early_start then
    start_next(); // fk_forward_combine, which waits for what is written here
@ end
    const u32 smem = smem_base();
    const Where at = this_tile(p);
    if (at.b < 0) return;
@ local function tiles(at)
@   local all = "tile_range(p, " .. at .. ")"
@   local share = "split_range(" .. all .. ", p, " .. at .. ")"
@   return problem.split and share or leads and at .. ".split >= 0 ? " .. share .. " : " .. all or all
@ end
    TileRange tiles = $(tiles("at"));
@ if problem.split and strays and not mask.residual then
    if (tiles.full_begin < tiles.full_end && tiles.full_end == tiles.end) --tiles.full_end; // of a share of full tiles one gives the reference
@ end
@ if mask.residual then
    TileScan scan;
    int n = find_tile(scan, tiles.end, tiles, p, at), next;
@ elseif strays and #mask.lower > 0 then
    int n = tiles.full_end < tiles.end || tiles.full_begin == tiles.begin ? tiles.end - 1 : tiles.full_begin - 1, next;
@ else
    int n = tiles.end - 1, next;
@ end

@ if problem.gqa then
    const int kv_head = at.h / p.heads_per_kv;
@ else
    const int kv_head = at.h;
@ end
@ if looks_ahead then
    PagesAhead pages(p, at.b);
@ end
@ local dim_v, of_slice = "head_dim_v", ""
@ if problem.slices > 1 then dim_v, of_slice = "slice_dim", " + at.slice * slice_dim" end
@ if problem.paged then
    PagedTileCopy<block_n, d_pad, head_dim> copy_k(p, p.k, kv_head, p.k_head_stride, p.k_row_stride, p.k_batch_stride, at.b);
    PagedTileCopy<block_n, dv_pad, $(dim_v)> copy_v(p, p.v$(of_slice), kv_head, p.v_head_stride, p.v_row_stride, p.v_batch_stride, at.b);
@ else
    $(key_copy)<block_n, d_pad, head_dim> copy_k(p.k + k_start(at, p.k_batch_stride, p.k_row_stride) + kv_head * p.k_head_stride, p.k_row_stride);
    $(key_copy)<block_n, dv_pad, $(dim_v)> copy_v(p.v$(of_slice) + k_start(at, p.v_batch_stride, p.v_row_stride) + kv_head * p.v_head_stride, p.v_row_stride);
@ end
    copy_k.move(n * block_n);
    copy_v.move(n * block_n);
@ if plan.stages == 1 then
    const u32 tile_k = smem + smem_k, tile_v = smem + smem_v;
@ else
    u32 stage = 0;
@ end
    if (n >= tiles.begin) { // the last tile alone may reach past seqlen_k
@ if problem.joins_heads then
        HeadsTileCopy<block_m, d_pad, head_dim> copy_q(p, p.q + q_start(at, p.q_batch_stride, p.q_row_stride) + at.h * p.q_head_stride);
        copy_q.issue(smem + smem_q, at.q_first, at.q_last + 1 - at.q_first);
@ else
        TileCopy<block_m, d_pad, head_dim> copy_q(p.q + q_start(at, p.q_batch_stride, p.q_row_stride) + at.h * p.q_head_stride, p.q_row_stride);
        copy_q.move(at.q_first);
        copy_q.template issue<false>(smem + smem_q, at.seqlen_q - at.q_first);
@ end
@ if not arch.async_copy or plan.parted then
        copy_q.land(smem + smem_q);
@ end
@ if looks_ahead then
        pages.want(n, at.seqlen_k - n * block_n);
@ end
        copy_k.template issue<false>(smem + smem_k, at.seqlen_k - n * block_n$(looks_ahead and ", pages" or ""));
@ if plan.stages == 2 or waits then
        copy_v.template issue<false>(smem + smem_v, at.seqlen_k - n * block_n$(looks_ahead and ", pages" or ""));
@ end
@ if plan.widens and arch.async_copy then
        copy_q.land(smem + smem_q);
@ end
    }
@ if plan.q_in_regs then
    u32 q[m_atoms][d_pad / 16][4];
@   if arch.async_copy and not plan.widens then
    cp_async_wait<$(plan.stages)>();
@   end
    __syncthreads();
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int j = 0; j < d_pad / 16; ++j) load_a<block_m, d_pad>(q[m][j], smem + smem_q, warp_row(), m, j);
@ end

    float s[m_atoms][s_atoms][4], o[m_atoms][o_atoms][4], m_i[m_atoms][2], m_scaled[m_atoms][2], l_i[m_atoms][2];
    reset(o, m_i, l_i);

@ if problem.dropout then
    Dropout<false> dropout(p, at.b, at.h, at.q_first + warp_row(), n * block_n);

@ end
    // From the last tile to the first, so that the masked ones come early.
@ if mask.residual then
    bool settled = false; // once a full tile was taken with the maximum, and every row of the warp has its reference
@ end
@ if careful then
    bool careful = false;
@ end
@ if strays or mask.residual then
    for (;;) {
@ end
@ if mask.residual then
        for (; n >= 0; n = next) {
            const bool whole = scan.whole();
            next = next_tile(scan, n);
@   kv_step()
        }
@ else
        for (; n >= tiles.begin; n = next) {
            const bool whole = $(careful and "!careful && " or "")n >= tiles.full_begin && n < tiles.full_end;
@   if strays and #mask.lower > 0 then
            // The masked tiles of both ends, then the full ones between them: a maximum that is raised behind these would hide that a row
            // strayed in them.
            next = n == tiles.full_end ? tiles.full_begin - 1 : n - 1;
            if (whole && next < tiles.full_begin) next = -1;
            if (!whole && next < tiles.begin) next = tiles.full_end > tiles.full_begin ? tiles.full_end - 1 : -1;
@   else
            next = n - 1;
@   end
@   kv_step()
        }
@ end
@ if mask.residual then
        int rest = scan.first; // tiles that are not scanned yet
@   if strays then
        if (rest <= tiles.begin) {
            if (!__syncthreads_or(settled && left_range(o, m_i, l_i, at.q_last + 1 - at.q_first))) break;
            // Once more, with the running maximum throughout.
            tiles.full_begin = tiles.full_end = tiles.begin;
            settled = false;
            rest = tiles.end;
            reset(o, m_i, l_i);
        }
@   else
        if (rest <= tiles.begin) break;
@   end
        const int last = find_tile(scan, rest, tiles, p, at);
        if (last < 0) continue;
@ elseif strays then
        if ($(careful and "careful || " or "")tiles.full_begin == tiles.full_end || !__syncthreads_or(left_range(o, m_i, l_i, at.q_last + 1 - at.q_first))) break;
        // Once more, with the running maximum throughout.
@   if one_warp then
        const Where found = this_tile(p, anew());
        tiles = $(tiles("found"));
@   end
@   if careful then
        careful = true;
@   else
        tiles.full_begin = tiles.full_end = tiles.begin;
@   end
        reset(o, m_i, l_i);
        const int last = tiles.end - 1;
@ end
@ if strays or mask.residual then
        copy_k.move((last - n) * block_n);
        copy_v.move((last - n) * block_n);
@ if problem.dropout then
        dropout.move(0, (last - n) * block_n);
@ end
        n = last;
@ if looks_ahead then
        pages.want(n, at.seqlen_k - n * block_n);
@ end
        copy_k.template issue<false>(smem + smem_k$(next_stage), at.seqlen_k - n * block_n$(looks_ahead and ", pages" or ""));
@ if plan.stages == 2 or waits then
        copy_v.template issue<false>(smem + smem_v$(next_stage), at.seqlen_k - n * block_n$(looks_ahead and ", pages" or ""));
@ end
    }
@ end
@ -- Packed: found once more too rather than kept in registers, of which the loop has none to spare.
@ local found = again and "this_tile(p, anew())" or "at"
@ local own = problem.packed and "this_tile(p)" or found
@ if problem.split then
    if (p.num_splits > 1) {
        store_partial(o, m_i, l_i, p, $(found));
        return;
    }
@   if problem.joins_heads then
    if (p.row_heads > 1) {
        store_joined(o, m_i, l_i, p, $(found));
        return;
    }
@   end
@ end
@ if leads then
    int tile;
    Where part = at;
    part.split = part_of(p, int(opaque(blockIdx.y)), tile); // found once more: the loop has no register for it
    if (part.split >= 0) {
        store_partial(o, m_i, l_i, p, part);
        return;
    }
@ end
    store_output(o, m_i, l_i, smem + smem_o, p, $(own));
}
@ if problem.dropout then

@   include("piece/keep_mask.cu")
@ end
@ if packs_blocks then

@   include("piece/pack_blocks.cu")
@ end
@ if problem.split or leads then

@   include("piece/combine.cu")
@ end
@ if problem.packed then

@   include("piece/clear_rest.cu")
@ end
