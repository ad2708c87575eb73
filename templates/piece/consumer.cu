@ local arrays_of_p = plan.overlap == 2 and 2 or 1
@ local pair, shares = plan.cluster > 1, plan.cluster > 1 and not plan.halved
@ local operands = problem.element_bytes == 1 -- known ahead, as products of 8 bits are short: elsewhere that is slower (1 %)
@ local give_back, give_back_q = shares and "give_back" or "mbarrier_arrive", pair and "give_back_q" or "mbarrier_arrive"
@ if steps.drops_absent then
// What pages and rows that are not used have in a tile behind the last key is anything, and so is what other sequences have behind the last query:
// scores become 0, as where rows end.
__device__ __forceinline__ void drop_absent(float (&s)[m_atoms][s_atoms][4], int n, const Where &at) {
    const int lane = lane_anew(), keys = at.seqlen_k - $(plan.score_key)(at, n);
@   if problem.packed then
    const int rows = at.seqlen_q - at.q_first - warp_row(); // of the warp's and those behind it
    if (rows < rows_per_warp)
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (lane / 4 + 8 * r >= rows)
#pragma unroll
                for (int i = 0; i < s_atoms; ++i) s[0][i][2 * r] = s[0][i][2 * r + 1] = 0.0f;
@   end
    if (keys >= $(plan.score_block)) return;
#pragma unroll
    for (int i = 0; i < s_atoms; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (8 * i + lane % 4 * 2 + e % 2 >= keys) s[0][i][e] = 0.0f;
}

@ end
struct Consumer {
    const Params &p;
    const u32 smem;
    const int warp, group; // which of the consumers' warps and warpgroups
@ if plan.turns then
    const int first_turn; // of the team's named barriers
@ end
    const bool leader = threadIdx.x % 32 == 0; // arrives for its warp
@ if shares then
    const u32 rank = cluster_rank(), other; // of the cluster's CTAs; and how far away the other one's shared memory is
@ end
    $(operands and "Operands<k_stages, k_bytes>" or "Ring<k_stages>") k;
    $(operands and "Operands<v_stages, v_bytes>" or "Ring<v_stages>") v;
@ if staged.array then
    u32 array_parity = 0;
@ end
@ if plan.halved then
    u32 half_parity = 0, rows_parity = 0; // of what the other CTA's warp sends (piece/add_half.cu)
@ end
@ if plan.q_stages == 2 then
    int held = -1; // the buffer of Q that is still to be given back
@ end
    int behind = 0; // tiles of the CTA's behind the walk's

    __device__ __forceinline__ Consumer(const Params &p_, u32 smem_, int warp_, int team)
        : p(p_), smem(smem_), warp(warp_), group(warp_ / 4)$(operands and ", k(operand_k(smem_ + smem_k)), v(operand_v(smem_ + smem_v))" or "")$(plan.turns and ", first_turn(1 + team * consumers)" or "")$(shares and ", other(cluster_map(smem_, rank ^ 1) - smem_)" or "") {}

    __device__ __forceinline__ u32 wait_k() const {
        mbarrier_wait(smem + k_full + 8 * k.index(), k.parity());
        return $(operands and "k.operand" or "operand_k(smem + smem_k + k.index() * k_bytes)");
    }
    __device__ __forceinline__ u32 wait_v() const {
        mbarrier_wait(smem + v_full + 8 * v.index(), v.parity());
        return $(operands and "v.operand" or "operand_v(smem + smem_v + v.index() * v_bytes)");
    }
@ if staged.array then
    __device__ __forceinline__ u32 wait_array() const {
        mbarrier_wait(smem + array_full + 8 * group, array_parity);
        return smem + smem_array + group * array_bytes;
    }
    __device__ __forceinline__ void release_array() {
        fence_proxy_async(); // reads are done before the next copy, which arrivals alone do not order
        __syncwarp();
        if (leader) mbarrier_arrive(smem + array_empty + 8 * group);
        array_parity ^= 1;
    }
@ end
@ if shares then
    // Each producer fills buffers of both CTAs.
    __device__ __forceinline__ void give_back(u32 bar) const {
        mbarrier_arrive(bar);
        cluster_arrive(bar + other);
    }
@ end
@ if pair then
    // The first CTA's producer says what comes next.
    __device__ __forceinline__ void give_back_q(u32 bar) const {
        mbarrier_arrive(bar);
        if ($(shares and "rank" or "cluster_rank()") != 0) cluster_publish($(shares and "bar + other" or "cluster_map(bar, 0)"));
    }
@ end
@ if plan.halved then
@   include("piece/add_half.cu")

@ end
    __device__ __forceinline__ void release_k() {
@ if not plan.values_are_keys then
        if (leader) $(give_back)(smem + k_empty + 8 * k.index());
@ end
        k.next();
    }
    __device__ __forceinline__ void release_v() {
        if (leader) $(give_back)(smem + v_empty + 8 * v.index());
        v.next();
    }
@ if plan.q_stages == 2 then
    // Gives back the buffer of Q from which TMA stores the tile before, which takes a while.
    __device__ __forceinline__ void release_held() {
        if (held >= 0 && elect_lane()) { // the lane that stored
            tma_store_wait_read<0>();
            $(give_back_q)(smem + q_empty + 8 * held);
        }
        held = -1;
    }
@ end
    __device__ __forceinline__ void release_q(int index) const {
        if (leader) $(give_back_q)(smem + q_empty + 8 * index);
    }
    // Tiles that other warpgroups of the CTA need. The producer may send the later ones only when it has the held buffer back.
    __device__ __forceinline__ void skip(int num_tiles) {
@ if plan.q_stages == 2 then
        if (num_tiles > 0) release_held();
@ end
        for (; num_tiles > 0; --num_tiles) {
@ steps.take_turn()
@ steps.pass_turn()
            wait_k();
            release_k();
            wait_v();
            release_v();
@ if staged.array then
            wait_array();
            release_array();
@ end
        }
    }
@ local skips = layout.k_row_bytes > 0 or mask.words ~= nil -- documents and the like: the first tiles of a row may be others' alone
@ if skips then
    // Goes past the tiles that come first for other warpgroups alone.
    __device__ __forceinline__ void skip_unseen(Visit &walk) {
        while (walk.none(group) && !walk.last()) {
            skip(1);
            wait_k();
            walk = visit(smem, k);
        }
    }
@ end

@ local at_end = mask.residual and "walk.last()" or "walk.n < 0"
@ local bounds = not mask.residual and #mask.upper + #mask.lower > 0
    // Which key tiles the rows of this warpgroup visit in the tile at hand. Returns how many of the CTA's come before them.
    __device__ __forceinline__ int begin_walk($(mask.residual and "Visit" or "TileWalk") &walk, const Where &at, $(bounds and "const Ring<q_stages> &q" or "int word")) {
@ if bounds then
        const u32 place = tile_place(smem, q) + tile_ranges + 32 * group;
        const uint4 range = ld_shared_v4(place), others = ld_shared_v4(place + 16);
        walk.n = same(range.x), walk.tiles = {same(range.y), same(range.z), same(range.w), walk.n + 1};
        behind = same(others.y);
        return same(others.x);
@ elseif mask.residual then
        wait_k();
        walk = visit(smem, k);
        if (walk.n < 0) release_k()$(plan.values_are_keys and ", release_v()" or "");
        return 0;
@ else
        walk = TileWalk(p, at, is_careful(word));
        return 0;
@ end
    }

@ local half_weights = estimates and problem.dtype == "fp16"
@ if half_weights and bounds then
    // How many key tiles these rows visit of the tile in buffer q.
    __device__ __forceinline__ int walked_tiles(const Ring<q_stages> &q) const {
        const u32 range = tile_place(smem, q) + tile_ranges + 32 * group;
        return int(ld_shared_u32(range)) + 1 - int(ld_shared_u32(range + 4));
    }

@ end
@ -- The rows of the tile in buffer q, of which `word` was read.
@ local function open_tile()
        at = $(shares and "own_rows(claimed(p, smem, q))" or "claimed(p, smem, q)");
        lead = begin_walk(walk, at, $(bounds and "q" or "word"));
@   if plan.q_in_regs then
@     local pairs = problem.element_bytes == 1 and 2 or 1 -- elements that copies take for one
@     local row = "warp_row()"
@     if mask.residual then -- the loop has no registers for addresses that are needed once more in the end
@       row = "row"
        const int row = opaque(warp_row());
@     end
#pragma unroll
        for (int j = 0; j < d_pad / $(16 * pairs); ++j)
            load_a<block_m, $(layout.d_cols // pairs)>(q_regs[j], smem + smem_q + q.index() * q_bytes, $(row), 0, j);
@     if steps.prescaled then
#pragma unroll
        for (int j = 0; j < d_pad / 16; ++j) scale_block(q_regs[j], p.scale_log2);
@     end
@   elseif steps.prescaled then
        scale_queries(smem + smem_q + q.index() * q_bytes, p.scale_log2);
@   end
@ end
@ local function store_tile()
@   if plan.q_stages == 1 then
            store_rows(o, inverse, spoiled, $(layout.out_panels > 0 and "smem, " or "")p, there);
@   else
            stage_rows(o, inverse, spoiled, smem + smem_q + done.index() * q_bytes);
            send_rows<block_m, $(layout.dv_cols), head_dim_v>(smem + smem_q + done.index() * q_bytes, 16 * warp, p.map_o, $(problem.packed and "16 * warp, there.rows" or "there.first + 16 * warp, p.seqlen_q"), 0,
                                               there.h, $(problem.packed and "there.first, p.o + there.first * p.o_row_stride + there.h * p.o_head_stride, p.o_row_stride" or "there.b"));
@   end
            $(plan.halved and "if (cluster_rank() == 0) " or "")store_lse(lse, p, there);
@ end
@ -- The rows of the tile before, in o, leave. Of wide rows of e4m3, and beside terms, no register is left to keep which are a lane's.
@ local store_lane = (plan.q_stages == 1 and problem.dtype == "e4m3" or #score.terms > 0 and #score.sinks == 0) and "lane_anew()" or "int(threadIdx.x) % 32"
@ local function store_step(parts)
        {
            const Leaving there(p, smem, done);
@   if problem.dtype == "e4m3" and plan.consumers > 2 then
            const int warp = same(int(opaque(threadIdx.x) / 32)); // not kept through the loop, which has no register for it
@   end
@   if mask.leading_rows > 0 then
            if (there.split >= 0) {
                store_part(o, inverse, lse, spoiled, p, there);
            } else {
@     store_tile()
            }
@   else
@     store_tile()
@   end
@   if parts then
            if (there.claim >= p.first_part) store_part(o, lse, p, there);
@   end
@   if plan.q_stages == 2 then
            held = done.index();
@   end
            const int row = warp_row() + $(store_lane) / 4;
            const bool left = (row < there.rows && spoiled[0]) || (row + 8 < there.rows && spoiled[1]);
            if (__any_sync(full_warp, left) && optimistic && leader)
@ if pair then
                cluster_store_u32(cluster_map(smem + q_redo + ((done.slot() * 2 + $(shares and "rank" or "cluster_rank()")) * 4 * consumers + warp) * 4, 0), 1);
@ else
                st_shared_u32(smem + q_redo + (done.slot() * 4 * consumers + warp) * 4, 1);
@ end
            __syncwarp(); // before any lane gives back the buffer
        }
@ end
@ local residue, low = steps.few_keys == "bounds" and ", lone" or steps.few_keys and ", lost" or "", steps.estimates and ", low" or ""
@ local function finish_step(where)
@   if steps.few_keys == "bounds" then
            bool lone[2];
            find_lone_keys(lone, p, $(where));
@   end
@   if steps.estimates then
            bool low[2];
@   end
@   local keys = bounds and "block_n * walked_tiles(done)" or where .. ".seqlen_k"
            finish_rows(inverse, lse$(low)$(half_weights and ", least_sum(" .. keys .. ")" or ""), m_i, l_i$(residue), p, $(where));
            find_strays(spoiled$(low), $(steps.prescaled and "lse" or "m_i, l_i" .. (steps.far and ", score_scale(p)" or "")));
@ end
@ -- The last P V of a tile, from array `from`. Beside it what the rows of O are to be multiplied by, and the next tile's queries.
@ local function last_step(from)
@   if steps.few_keys == "tile" then
        float lost[2] = {};
@     if from == 0 then
        if (!started) sum_lost(lost, s);
@     end
@   end
@   if plan.q_stages == 1 then
        release_q(q.index()); // all scores are there
@   end
@   if plan.halved then
        receive_weights(weights[$(from)]);
@   end
        gemm_pv(o, weights[$(from)], wait_v(), started);
        done = q;
        q.next();
@   if plan.q_stages == 2 then
@     if late and #mask.lower > 0 then
        // The producer claims a tile when few tiles of keys are left, to which others must have come, and this warpgroup be past them.
        const int word = behind <= k_stages ? next_word(q) : flush;
@     else
        const int word = next_word(q);
@     end
        opened = is_tile(word);
@     if plan.parts then
        follows_whole = u32(word) < u32(p.first_part);
@     end
@   elseif not steps.ones then
        if ($(mask.residual and "opaque(walk.word) & 1" or "opaque(walk.n) < 0")) // it is; but the compiler may not mix what follows with the products
@   end
@   if not steps.ones then
        {
@     if plan.halved then
            add_row_sums(l_i$(steps.few_keys == "tile" and ", lost" or ""));
@     end
@     finish_step((problem.packed or not (problem.kv_dtype == "e4m3" or #score.sinks > 0)) and "at" or "claimed(p, smem, done)")
        }
@   end
        optimistic = $((estimates or steps.prescaled) and "!careful" or trusts and "!is_careful(claim(smem, done))" or steps.settles and "settled" or "walk.tiles.full_end > walk.tiles.full_begin");
@   if bounds then
        trail = behind;
@   end
@   if plan.q_stages == 2 then
        if (opened) {
@     open_tile()
        }
@   end
        wgmma_wait<0>(registers(o));
        release_v();
@   if steps.ones then
        take_sums(l_i, o);
@     finish_step("claimed(p, smem, done)")
@   end
@ end
    __device__ __forceinline__ int next_word(const Ring<q_stages> &q) const {
        mbarrier_wait(smem + q_full + 8 * q.index(), q.parity());
        return claim(smem, q);
    }
    static __device__ __forceinline__ bool is_tile(int word) { return word >= 0 || is_redo(word); }

    __device__ __forceinline__ void run() {
@ if plan.turns then
        if (group == consumers - 1) {
@   steps.pass_turn()
        }
@ end
        float s[m_atoms][s_atoms][4], o[m_atoms][o_atoms][4], m_i[m_atoms][2], l_i[m_atoms][2];
@ if plan.halved then
        float sums[m_atoms][block_n / 8][4]; // over the CTA's own columns
@ end
@ if not steps.prescaled then
        u64 m_scaled[m_atoms];
@ end
        float inverse[m_atoms][2], lse[m_atoms][2];
        u32 spoiled[2]; // whether rows g and g + 8 left their range
        u32 weights[$(arrays_of_p)][p_steps][4];
@ if plan.q_in_regs then
@   local pairs = problem.element_bytes == 1 and 2 or 1 -- elements that copies take for one
        u32 q_regs[d_pad / $(16 * pairs)][4];
@ end
        Ring<q_stages> q, done;
        $(mask.residual and "Visit" or "TileWalk") walk;
        Where at;
        int lead, trail = 0;
        bool optimistic;
@ if plan.q_stages == 2 then
        bool opened = false, ahead = false; // what there is of the tile in buffer q: its rows; and its first scores
@   if plan.parts then
        bool follows_whole; // whether it is no part, nor to be computed once more, and so the one before neither
@   end
@ end
        for (;;) {
            $(plan.q_stages == 2 and "if (!opened) " or ""){
                const int word = next_word(q);
                if (!is_tile(word)) {
@ if plan.q_stages == 2 then
                    release_held();
@ end
@ if plan.q_stages == 2 or layout.out_panels > 0 then
                    tma_store_wait<0>(); // what is computed once more is stored once more, behind it
@ end
                    if (word == no_more) return;
                    release_q(q.index());
                    q.next();
                    continue;
                }
@ open_tile()
            }
            $(plan.q_stages == 2 and "if (!ahead) " or ""){
@ if bounds then
                skip(lead);
@ elseif skips then
                skip_unseen(walk);
@ end
                if (walk.n >= 0) {
@ steps.first_scores()
                }
            }
@ if plan.q_stages == 2 then
            opened = ahead = false;
@ end
            reset(m_i, l_i);
            if (walk.n >= 0) {
                bool started = false; // whether o holds something
@ if lines then
                Line line(smem, group);
@ end
@ if steps.weighs and steps.weighs.unit then
                ShortTanh short_tanh(tanh_factor(p, at), $(steps.weighs.unit));
                short_tanh.hold();
@ end
@ if steps.along and along_tiles == 2 then
                bool straight = false;
                Lines line;
@ end
@ if estimates or steps.prescaled then
                const bool careful = is_careful(claim(smem, q)); // each tile takes the maximum
@ end
@ if steps.settles then
                bool settled = false; // once a full tile was taken with the maximum: every row has its reference
@ end
@ if problem.dropout then
                Dropout<false> dropout(p, ld_shared_v4(smem + dropout_keys + 16 * q.index()), at.q_first + warp_row(), $(plan.halved and "own_half(walk.n) * half_n" or "walk.n * block_n"));
@   if steps.prescaled and plan.q_stages == 1 then
                __syncwarp(); // all lanes have read the key, before the leader gives Q back
@   end
@ end
@ if not plan.q_in_regs then
                const u32 tile_q = smem + smem_q + q.index() * q_bytes;
@ end
                {
@ steps.score_step(true)
@ steps.pack_step(0)
@ if not mask.residual then
@   steps.next_tile_step()
@ end
                }
@ if plan.q_stages == 2 then
                release_held(); // by now the store has read it
@ end
                for (;;) {
                    if ($(at_end)) {
@ last_step(0)
                        break;
                    }
                    {
@ steps.kv_step(0, arrays_of_p - 1)
                    }
@ if arrays_of_p == 2 then
                    if ($(at_end)) {
@   last_step(1)
                        break;
                    }
                    {
@   steps.kv_step(1, 0)
                    }
@ end
                }
            } else {
@ if plan.q_stages == 1 then
                release_q(q.index());
@ else
                release_held();
@ end
                fill(o, 0.0f);
@ if steps.estimates then
                bool low[2];
@ end
                finish_rows(inverse, lse$(low)$(half_weights and ", 0.0f" or ""), m_i, l_i$(steps.few_keys and ", {}" or ""), p, at);
                spoiled[0] = spoiled[1] = 0;
                optimistic = false;
@ if bounds then
                trail = behind;
@ end
                done = q;
                q.next();
            }
@ if bounds then
            skip(trail);
@ end
@ if plan.q_stages == 2 then
            ahead = opened && walk.n >= 0$(plan.parts and " && follows_whole" or "")$(bounds and " && lead < k_stages" or skips and " && !walk.none(group)" or "");
            if (ahead) {
@   if bounds then
                skip(lead);
@   end
@   steps.first_scores(store_step) -- of a whole tile
                continue;
            }
@ end
@ store_step(plan.parts)
        }
    }
};
