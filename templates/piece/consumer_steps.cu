@ -- The steps of a warpgroup that computes, as functions of the table `steps` that write them into Consumer::run: templates/kernel/
@ -- forward_wgmma.cu. They speak of run's variables: s, o, m_i, l_i, m_scaled, weights, walk, at, q, started, settled, dropout.
@ local e4m3 = problem.dtype == "e4m3"
@ steps.far = score.strays_far and plan.operands ~= "e4m3" and not steps.prescaled
@ local scale = #score.terms > 0 and "score_scale(p)" or problem.kv_dtype == "e4m3" and "at.scale" or steps.prescaled and "1.0f" or "p.scale_log2"
@ -- Weights of e4m3 have too little range for estimates: tiles are taken with the maximum until one was full, for then each row has a
@ -- maximum of many keys, and masked tiles do without it as well.
@ steps.settles = e4m3
@ -- Of wide values of e4m3 the exponentials of half the keys come before the wait for P V, and those of the others beside the conversions of
@ -- the first half. The comparison between the halves is a border that the compiler moves none across. Dropout leaves no registers for it;
@ -- and at head dim 128, where there are three warpgroups, the others hide what one waits for, and the comparison costs more than it saves.
@ local in_halves = e4m3 and not steps.ones and plan.overlap == 1 and layout.dv_pad > 128 and plan.block_n >= 64 and not problem.dropout
@ local first_atoms = plan.block_n // 64 * 4 -- sums of eight weights are of four atoms
@ -- Of the pair that has half of all columns each, sums over the CTA's columns become the scores of its half of the keys.
@ local acc, n = plan.halved and "sums" or "s", plan.halved and "own_half(walk.n)" or "walk.n"
@ local q_operand = plan.q_in_regs and "q_regs" or "tile_q + group * (64 * 128)"
@ -- Warpgroups issue their products one after another, so that one's weights are computed under the others' products. Left to
@ -- themselves some fall into step, and all compute weights at once. Barrier first_turn + g: the turn of group g.
@ function steps.take_turn()
@   if plan.turns then
        named_barrier_sync(first_turn + group, 256);
@   end
@ end
@ function steps.pass_turn()
@   if plan.turns then
        named_barrier_arrive(first_turn + (group + 1 == consumers ? 0 : group + 1), 256);
@   end
@ end
@ -- Where a row of tiles lies is found for each masked tile anew, but for packed sequences, among which it must be looked up.
@ local mask_at = (mask.residual and not problem.packed or plan.parts) and "claimed(p, smem, q)" or "at"
@ local stages_keys = layout.k_row_bytes > 0
@ local mask_rows = (layout.q_row_bytes > 0 and ", smem + smem_q_rows + q.index() * q_row_bytes" or "") ..
@   (stages_keys and ", smem + smem_k_rows + k.index() * k_row_bytes" .. (plan.halved and " + cluster_rank() * (4 * half_n)" or "") or "")
@ local done_with_k = stages_keys and "// K is given back when the mask has read its rows" or "release_k();"
@ local whole = mask.residual and "walk.whole(group)" or "walk.whole()"
@ -- Of a tile that is not whole.
@ function steps.mask_scores(first)
@   local words = not steps.words and "" or (first or not steps.words.ahead) and ", MaskWords(" .. n .. ", p, " .. mask_at .. ")" or ", mask_words"
            mask_tile(s, $(n), p, $(mask_at)$(mask_rows .. words));
@   if mask_rows ~= "" then
            __syncwarp(); // all lanes have read them
@   end
@ end
@ -- Walks go from the last key backwards: where no mask is, the first tile alone may have keys that are none.
@ local masks_later = #mask.upper + #mask.lower > 0 or mask.residual or mask.words or steps.weighs
@ function steps.mask_step()
        if (!$(whole)) {
@   steps.mask_scores(true)
        }
@   if stages_keys then
        release_k();
@   end
@ end
@ function steps.raise_step()
            wgmma_wait<0>(registers(o));
            raise_maximum(s, m_i, l_i, o, $(scale)$(plan.halved and ", [&](float (&m)[m_atoms][2]) { share_maximum(m); }" or ""));
@   if steps.prescaled then
            lower_scores(s, m_i);
@   else
            scale_maximum(m_scaled, m_i, $(scale));
@     if steps.far then
            take_differences(s, m_scaled, m_i, $(scale));
@     end
@   end
@ end
@ -- What happens to the scores of tile walk.n before they are weighed; `first`: nothing is in flight, and there is no maximum yet.
@ function steps.score_step(first)
@   if steps.lines and not first then
        if (line.straight()) {
            const u64 reference[m_atoms] = {line.reference()};
            exponentiate(s, reference, l_i, p.scale_log2);
        } else {
@     steps.any_score_step(first)
        }
@   elseif steps.along and not first then -- such terms cost one instruction a score where they are straight lines
        if (straight) {
            exponentiate_along<behind>(s, line, l_i, p);
@     if stages_keys then
            release_k();
@     end
        } else {
@     steps.any_score_step(first)
        }
@   else
@     steps.any_score_step(first)
@   end
@ end
@ function steps.any_score_step(first)
@   if first and steps.estimates then
        float estimate[m_atoms][2];
        estimate_maximum(s, estimate, $(n), p, at);
@   end
@   if #score.terms > 0 then
@     if first and steps.ahead then
        const KeyPairs<0> key_pairs($(n), p, at);
@     end
@     if first and steps.staged then
        const u32 tile_array = wait_array();
@     end
@     if steps.drops_absent and (first or not (steps.weighs and problem.packed)) then
        drop_absent(s, $(n), at);
@     end
        score_tile(s, $(n), p, at$(steps.ahead and ", key_pairs" or "")$(steps.staged and ", tile_array" or ""));
@     if steps.staged then
        release_array();
@     end
@   end
@   if first then
@     steps.mask_step()
@     if steps.prescaled then
        if (careful) {
            begin_maximum(s, m_i);
@       if plan.halved then
            share_maximum(m_i);
@       end
            lower_scores(s, m_i);
        }
@     elseif steps.estimates and (mask.in_blocks or #mask.lower > 0) then -- rows are short: one maximum, not two
        if (careful) {
            begin_maximum(s, m_i);
        } else {
            take_estimate(m_i, estimate, true);
        }
@     else
        begin_maximum(s, m_i);
@       if steps.estimates then
        take_estimate(m_i, estimate, !careful);
@       end
@     end
@     if not steps.prescaled then
@       if plan.halved then
        share_maximum(m_i);
@       end
        scale_maximum(m_scaled, m_i, $(scale));
@     end
@     if steps.far then -- whoever goes on with the reference 0 is computed once more
        take_differences(s, m_scaled, m_i, $(scale));
@     end
@   elseif steps.settles then
        if (!settled || !$(whole)) { // one branch, past which most tiles go
@     if masks_later then
            if (!$(whole)) {
@       steps.mask_scores()
            }
@     end
            if (!settled) {
@     steps.raise_step()
            }
        }
@     if stages_keys then
        release_k();
@     end
@   else
        if (!$(whole)) {
@     if masks_later then
@       steps.mask_scores()
@     end
@     if steps.estimates or steps.prescaled then
            if (careful) { // then no tile is whole
@       steps.raise_step()
            }
@     else
@       steps.raise_step()
@     end
        }
@     if stages_keys then
        release_k();
@     end
@   end
@   if steps.settles then
        settled = settled || $(whole);
@   end
@   if steps.ones then -- scores become weights where these are packed
@   elseif steps.prescaled then
        exponentiate$(first and "_first" or "")(s, l_i);
@   elseif e4m3 and not first then
        const float most = exponentiate$(in_halves and "<0, " .. first_atoms .. ">" or "")(s, m_scaled, l_i, $(scale));
@   else
        exponentiate(s, m_scaled, l_i, $(scale));
@   end
@ end
@ -- The scores become array `into` of packed weights.
@ function steps.pack_step(into)
@   if steps.ones then
        round_weights(weights[$(into)], s, m_scaled, $(scale));
@     return
@   end
#pragma unroll
        for (int j = 0; j < s_atoms / 2; ++j) {
@   if e4m3 then
            u32 rows[2]; // g and g + 8, of 16 keys
#pragma unroll
            for (int r = 0; r < 2; ++r)
                rows[r] = pack_e4m3(s[0][2 * j][2 * r], s[0][2 * j][2 * r + 1], s[0][2 * j + 1][2 * r], s[0][2 * j + 1][2 * r + 1]);
@     if problem.dropout then
            drop_bytes(dropout, rows, 0, j);
@     end
            weights[$(into)][j / 2][j % 2 * 2] = rows[0];
            weights[$(into)][j / 2][j % 2 * 2 + 1] = rows[1];
@   else
            pack_block(weights[$(into)][j], s[0], j);
@     if problem.dropout then
            dropout(weights[$(into)][j], 0, j);
@     end
@   end
        }
@   if plan.halved then
@     if plan.block_n % 32 ~= 0 then -- and an atom besides
#pragma unroll
        for (int r = 0; r < 2; ++r) weights[$(into)][s_atoms / 2][r] = pack_$(plan.operands)(s[0][s_atoms - 1][2 * r], s[0][s_atoms - 1][2 * r + 1]);
@     end
        send_weights(weights[$(into)]);
@   end
@ end
@ local next_tile = mask.residual and "walk = visit(smem, k)" or "walk.next(p, at)"
@ function steps.next_tile_step()
@   if problem.dropout then
        const int n = walk.n;
@   end
        $(next_tile);
@   if steps.lines then
        line.next(walk.n, walk.tiles, group, m_scaled, p, at);
@   end
@   if problem.dropout then
        dropout.move(0, (walk.n - n) * block_n);
@   end
@ end
@ -- Scores that are computed become weights at once where the tile is seen as a whole; if they begin with a tanh, where its arguments are
@ -- small besides, which warps need not agree about.
@ function steps.weigh_whole(seen, from, into)
@   local function weigh(tanh)
            weigh_tile(s, m_scaled, l_i, $(n), p, at$(tanh and ", " .. tanh or ""));
@     if stages_keys then
            release_k();
@     end
@   end
@   if steps.drops_absent and problem.packed then -- a tile that is seen as a whole may have queries that are not there
        drop_absent(s, $(n), at);
@   end
@   local capped = steps.weighs.unit
@   if capped and steps.weighs.in_parts then
        if ($(seen) && short_tanh.limit > 0.0f) {
            const auto wait = [&] {
@     steps.wait_for_pv()
            };
            const auto pack = [&](int first, int last) {
#pragma unroll
                for (int j = first / 2; j < last / 2; ++j) pack_block(weights[$(into)][j], s[0], j);
            };
@     weigh("short_tanh, wait, pack")
        } else {
@     steps.any_score_step(false)
@     steps.weigh_step(from, into)
        }
@     return
@   elseif capped then
        const float most = largest(s);
        const auto larger_tanh = [&] { return LargerTanh(short_tanh); };
        if ($(seen) && short_tanh.serves(most)) {
@     weigh("short_tanh")
        } else if ($(seen) && short_tanh.limit > 0.0f && larger_tanh().serves(most)) {
@     weigh("larger_tanh()")
        } else {
@   else
        if ($(seen)) {
@     weigh()
        } else {
@   end
@   steps.any_score_step(false)
        }
@   steps.weigh_step(from, into)
@ end
@ -- A turn of the loop: S of tile walk.n beside O += P V of the tile before, whose P is in array `from`.
@ function steps.kv_step(from, into)
        const u32 tile_k = wait_k();
@   steps.take_turn()
        gemm_qk($(acc), $(q_operand), tile_k$(steps.lines and ", line.slopes, line.keys" or ""));
@   if plan.halved then -- sums are on their way while P V runs
        wgmma_wait<0>(registers(sums));
@     if mask.residual then
@       steps.next_tile_step()
@     end
        $(done_with_k)
        receive_weights(weights[$(from)]);
        send_sums(sums);
@   end
        const u32 tile_v = wait_v();
        gemm_pv(o, weights[$(from)], tile_v, started);
@   steps.pass_turn()
        started = true;
@   if mask.residual and not plan.halved then -- which tile it is, is read under the products
@     steps.next_tile_step()
@   end
@   if steps.along and steps.along_tiles == 1 then -- and so are the lines
        const bool straight = $(whole) && is_straight($(n), $(n), at.q_first + 64 * group, p, at);
        const Lines line($(n), m_scaled, p, at);
@   elseif steps.along and from == 0 then -- of this tile and the next one
        straight = walk.n > walk.tiles.full_begin && walk.n < walk.tiles.full_end && is_straight(walk.n - 1, walk.n, at.q_first + 64 * group, p, at);
        line = Lines(walk.n - 1, m_scaled, p, at);
@   end
@   if steps.along then
        constexpr int behind = $(steps.along_tiles == 2 and from == 0 and "block_n" or 0);
@   end
@   if steps.ahead then
        const KeyPairs<$(steps.ahead)> key_pairs($(n), p, at);
@   end
@   if steps.staged then
        const u32 tile_array = wait_array();
@   end
@   if steps.words and steps.words.ahead then -- on their way while the products run
        MaskWords mask_words;
        if (!$(whole)) mask_words.read($(n), p, $(mask_at));
@   end
@   if plan.halved then
        add_sums(s, sums);
@   else
        wgmma_wait<1>(registers(s));
        $(done_with_k)
@   end
@   if steps.staged and not problem.dropout then -- without a branch between them a whole tile's reads mix with exponentials; dropout would stand there twice
        if ($(whole)$(steps.estimates and " && !careful" or "")) {
            score_tile(s, $(n), p, at$(steps.ahead and ", key_pairs" or ""), tile_array);
@     if stages_keys then
            release_k();
@     end
            exponentiate(s, m_scaled, l_i, $(scale));
            release_array();
@     steps.weigh_step(from, into)
        } else {
@     steps.any_score_step(false)
@     steps.weigh_step(from, into)
        }
@   elseif steps.weighs then
@     steps.weigh_whole(whole .. (steps.estimates and " && !careful" or ""), from, into)
@   else
@     steps.score_step(false)
@     steps.weigh_step(from, into)
@   end
@   if not mask.residual then
@     steps.next_tile_step()
@   end
@ end
@ -- The exponentials of the second half, and the tile's weights in the array that the products before have read.
@ function steps.second_half(into)
        const bool lowered = __any_sync(full_warp, most > most_weight);
        float alpha[2];
        if (lowered) lower_weights<$(first_atoms)>(s, m_i, m_scaled, l_i, alpha, $(scale));
        wgmma_wait<0>(registers(o)); // by all warps of the warpgroup together, which need not agree about what is lowered
        if (lowered) scale_rows(o, alpha);
        release_v();
        const float most_later = exponentiate<$(first_atoms), s_atoms>(s, m_scaled, l_i, $(scale));
@   steps.pack_step(into)
        if (__any_sync(full_warp, most_later > most_weight)) {
            lower_weights(s, m_i, m_scaled, l_i, alpha, $(scale));
            scale_rows(o, alpha);
@   steps.pack_step(into)
        }
@ end
@ -- Weights straight from scores, which are still there for a reference that has to rise.
@ function steps.round_step(from, into)
@   local function round()
        const u32 most = round_weights(weights[$(into)], s, m_scaled, $(scale));
@   end
@   if from ~= into then
@     round()
@   end
        wgmma_wait<0>(registers(o)); // by all warps of the warpgroup together, which need not agree about what is beyond
        release_v();
        take_sums(l_i, o);
@   if from == into then
@     round()
@   end
        if (__any_sync(full_warp, beyond_range(most))) {
            raise_maximum(s, m_i, l_i, o, $(scale));
            scale_maximum(m_scaled, m_i, $(scale));
            round_weights(weights[$(into)], s, m_scaled, $(scale));
        }
@ end
@ function steps.wait_for_pv()
        wgmma_wait<0>(); // nothing but products and what waits by itself touches o
        release_v();
@ end
@ -- Exponentials become weights: an array of its own is filled before the wait for P V, that which the products read behind it.
@ function steps.weigh_step(from, into)
@   if steps.ones then
@     steps.round_step(from, into)
@     return
@   end
@   if in_halves then
@     steps.second_half(into)
@     return
@   end
@   if from ~= into then
@     steps.pack_step(into)
@   end
@   if e4m3 then -- the first tile's weights are at most those of the reference
        const bool lowered = __any_sync(full_warp, most > most_weight);
        float alpha[2];
        if (lowered) { // before the wait, which the compiler would move the weights behind; o follows
            lower_weights(s, m_i, m_scaled, l_i, alpha, $(scale));
@     if from ~= into then
@       steps.pack_step(into)
@     end
        }
        wgmma_wait<0>(registers(o)); // by all warps of the warpgroup together, which need not agree about what is lowered
        if (lowered) scale_rows(o, alpha);
        release_v();
@   else
@     steps.wait_for_pv()
@   end
@   if from == into then
@     steps.pack_step(into)
@   end
@ end
@ -- The first scores of the tile in buffer q. What stands between their products and the wait for them: `beside`.
@ function steps.first_scores(beside)
            const u32 tile_k = wait_k();
@   if not plan.q_in_regs then
            const u32 tile_q = smem + smem_q + q.index() * q_bytes;
@   end
@   steps.take_turn()
            gemm_qk($(acc), $(q_operand), tile_k$(steps.lines and ", line_step(smem + line_none), line_step(smem + line_keys, 128)" or ""));
@   steps.pass_turn()
@   if beside then
@     beside()
@   end
            wgmma_wait<0>(registers($(acc)));
            $(done_with_k)
@   if plan.halved then
            send_sums(sums);
            add_sums(s, sums);
@   end
@ end
