@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own = walk == "q" and "k" or "q"
@ local fused, texts = score.derivatives_use_s, { device = function(text) return text end } -- of texts without s, read once
@ local function is_number(text) return tonumber((text:gsub("f$", ""))) ~= nil end
@ -- Which pairs of a tile share the element that a read reads: all of them, those of one own or walked row, none, or who knows.
@ local function kind(read)
@   local by_own, by_walk, mixed = false, false, false
@   for d = 1, #read.index do
@     local uses_own, uses_walk = read["uses_" .. own][d], read["uses_" .. walk][d]
@     by_own, by_walk, mixed = by_own or uses_own, by_walk or uses_walk, mixed or uses_own and uses_walk
@   end
@   return mixed and "runs" or by_own and by_walk and "pairs" or by_own and "own" or by_walk and "walk" or "all"
@ end
@ -- Do neighbouring keys have elements that are the last stride apart?
@ local function by_rows(read)
@   local only = plan.family == "wgmma" and walk == "q" and not problem.deterministic and read.index[#read.index] == "k" and not arrays[read.slot + 1].clamp[#read.index]
@   for d = 1, #read.index - 1 do only = only and not read.uses_k[d] end
@   return only
@ end
@ -- changes: is the gradient of s another one than that of the last term's score? Arrays get theirs from the walk over q alone.
@ local reads, changes, guarded = {}, fused, fused
@ for i, term in ipairs(score.terms) do
@   changes, guarded = changes or term.ds, guarded or term.ds
@   for _, read in ipairs(walk == "q" and term.reads or {}) do
@     guarded = guarded or not is_number(read.derivative)
@     local id = #reads + 1
@     local grad = "p.array_grad[" .. read.slot .. "]"
@     local live = {} -- does the gradient have elements of their own along the rows?
@     for _, variable in ipairs({ own, walk }) do
@       local strides = {}
@       for d = 1, #read.index do
@         if read["uses_" .. variable][d] then strides[#strides + 1] = grad .. ".stride[" .. (d - 1) .. "] != 0" end
@       end
@       live[variable] = table.concat(strides, " || ")
@     end
@     reads[id] = { id = id, slot = read.slot, term = i, kind = kind(read), grad = grad, derivative = read.derivative, once = read.once, rank = #read.index,
@       place = read.array .. "_grad_at(p, " .. table.concat(read.index, ", ") .. ")", live = live }
@     reads[id].in_rows = reads[id].kind == "pairs" and by_rows(read)
@   end
@ end
@ local function of_kind(kinds)
@   local list = {}
@   for _, read in ipairs(reads) do
@     if kinds:find(read.kind, 1, true) then list[#list + 1] = read end
@   end
@   return list
@ end
@ local sums = #reads > 0
@ local staged_grad -- the read of the array whose gradient is sent by tiles
@ for _, read in ipairs(reads) do
@   if arrays[read.slot + 1].staged_grad then staged_grad = read end
@ end
@ local function index(name, text) return score.reads_along[name] and "min(" .. text .. ", at.seqlen_" .. name .. " - 1)" or text end
@ local own_index = index(own, "opaque(at." .. own .. "_first) + warp_row() + 16 * m + 8 * r + lane / 4")
@ if fused then
@   texts = { first = not sums and #score.terms == 1 and score.rest:match("^tanhf%b()$"), at_once = true, raw_scale = "p.scale" }
@   include("piece/score_values.cu", { texts = texts })

@ end
@ if texts.caps then
// unit times the derivative of tanh at factor x, where ShortTanh serves, to 2^-15.
struct SlopeAtOnce {
    float c0, c2, c4;
    __device__ __forceinline__ SlopeAtOnce(float factor, float unit) {
        const float square = factor * factor;
        c0 = unit * 9.999796709e-1f;
        c2 = (unit *= square) * -9.970500642e-1f;
        c4 = (unit *= square) * 6.016482497e-1f;
    }
    __device__ __forceinline__ float operator()(float x) const {
        const float square = x * x;
        return fmaf(square, fmaf(square, c4, c2), c0);
    }
};

@ end
@ if sums then
// What a thread has summed for gradients of arrays, of one head: the sum over all its pairs, or over a run of pairs that read one
// element, which lies at `at`.
struct ArraySums {
@   for _, read in ipairs(of_kind("all runs")) do
    float sum_$(read.id) = 0.0f; // $(read.place)
@     if read.kind == "runs" then
    i64 at_$(read.id) = 0;
@     end
@   end
};

@ end
@ -- With `text`, what it reads.
@ local function scalars(text)
@   local function is_read(name) return not text or text:find("%f[%w_]" .. name .. "%f[^%w_]") end
@   include("piece/score_scalars.cu", { readers = "in_terms", of = "at", wants = is_read })
@ end
@ if fused then
// Of tile n in one pass, so that nothing is kept meanwhile: raw scores q . k, -inf where they are masked, become P, and dP - delta
// becomes dS, the gradient of s = scale q . k.
@ else
// dS of tile n, the gradient of the last term's score, becomes that of s = scale q . k.
@ end
@ local lse_type = walk == "q" and "u32 lse" or "const float (&lse)[m_atoms][2]"
__device__ __forceinline__ void score_backward($(fused and "float (&acc)[m_atoms][s_atoms][4], " or "")float (&dp)[m_atoms][s_atoms][4], $(fused and lse_type .. ", " or "")int n,
                                               const Params &p, const Where &at$(sums and ", ArraySums &sums" or "")$(staged_grad and ", u32 tile" or "")) {
    const int lane = lane_anew(); // registers are dearer here than a few operations
@ if staged_grad then
    const u32 first = word_place(tile);
    const bool boxed = $(staged_grad.grad).boxed; // the gradient takes the tile's place in the stage, from where it is sent
@ end
@ scalars()
@ if texts.caps then
    const float factor = tanh_factor(p, at), unit = $(score.factor);
    ShortTanh tanh(factor, log2_e * unit);
    // Of factors below those, whose higher powers vanish, the argument is its own tanh, which what follows for large ones would have as 0.
    if (fabsf(factor) <= 0x1p-60f && fabsf(factor) >= 0x1p-126f) tanh.limit = 0x1p60f;
@   local looks_past_masked = plan.family == "wgmma"
@   local function at_once(masked)
        const SlopeAtOnce slope(factor, unit * factor * rcp(p.scale));
#pragma unroll
        for (int i = 0; i < s_atoms * 2; ++i) {
@     if walk == "q" then
            const float2 lse_pair = ld_shared_f32x2(lse + (warp_col() + 8 * (i / 2) + 2 * (lane % 4)) * 4);
@     end
#pragma unroll
            for (int m = 0; m < m_atoms; ++m)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    float &x = acc[m][i / 2][2 * r + i % 2], &g = dp[m][i / 2][2 * r + i % 2];
@     if masked then
                    const bool seen = x != NEG_INF;
                    x = seen ? x : 0.0f;
@     end
                    const float by_slope = g * slope(x);
                    x = $(masked and "!seen ? 0.0f : " or "")ex2(fmaf(x, tanh.over(x), -$(walk == "q" and "(i % 2 ? lse_pair.y : lse_pair.x)" or "lse[m][r]")));
                    g = $(masked and "!seen ? 0.0f : " or "")x * by_slope;
                }
        }
@   end
    if (tanh.serves(largest(acc))) { // then none is masked, and what follows are two polynomials and an exponential
@   at_once()
        return;
    }
@   if looks_past_masked then
    if (tanh.serves(largest<true>(acc))) {
@     at_once(true)
        return;
    }
@   end
@   texts.large = looks_past_masked -- at least one of the warp is
@ end
@ for _, read in ipairs(of_kind("own pairs")) do
    float own_$(read.id)[m_atoms][2] = {};
@ end
@ for _, read in ipairs(of_kind("pairs")) do
    const bool by_$(own)_$(read.id) = $(read.live[own]), by_$(walk)_$(read.id) = $(read.live[walk]);
@   if read.in_rows then
    const bool aligned_$(read.id) = has_rows($(read.grad), $(read.rank));
    float block_$(read.id)[m_atoms][2][2]; // [query][key of eight]
@   end
@ end
#pragma unroll
    for (int i = 0; i < s_atoms * 2; ++i) {
@ if score.uses[walk] then
        const int $(walk) = $(index(walk, "n * " .. plan.score_block .. " + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2"));
@ end
@ if fused and walk == "q" then
        const float2 lse_pair = ld_shared_f32x2(lse + (warp_col() + 8 * (i / 2) + 2 * (lane % 4)) * 4);
@ end
@ for _, read in ipairs(of_kind("walk pairs")) do
        float walk_$(read.id) = 0.0f;
@ end
#pragma unroll
        for (int m = 0; m < m_atoms; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
@ if score.uses[own] then
                const int $(own) = $(own_index);
@ end
@ if fused then
                const bool seen = acc[m][i / 2][2 * r + i % 2] != NEG_INF;
                const Scaled s_0 = {seen ? acc[m][i / 2][2 * r + i % 2] : 0.0f, p.scale};
@   for t, term in ipairs(score.terms) do
                float s_$(t);
                {
                    const auto s = s_$(t - 1);
                    s_$(t) = $(texts.device(term.value));
                }
@   end
@   if problem.dtype == "fp32" then
                const float weight = seen ? probability(s_$(#score.terms), $(walk == "q" and "i % 2 ? lse_pair.y : lse_pair.x" or "lse[m][r]"), $(problem.dropout and "p.dropout_scale" or "1.0f")) : 0.0f;
@   else
                const float weight = seen ? ex2(fmaf(s_$(#score.terms), log2_e, $(walk == "q" and "-(i % 2 ? lse_pair.y : lse_pair.x)" or "-lse[m][r]"))) : 0.0f;
@   end
                acc[m][i / 2][2 * r + i % 2] = weight;
                float g = weight * dp[m][i / 2][2 * r + i % 2];
@ else
                float g = dp[m][i / 2][2 * r + i % 2];
@ end
@ if guarded then
                const bool none = g == 0.0f; // then what it is multiplied by need not be finite
@ end
@ for t = #score.terms, 1, -1 do
@   local term = score.terms[t]
                {
@   if fused then
                    const auto s = s_$(t - 1);
@   end
@   for _, read in ipairs(reads) do
@     if read.term == t then
@       local x = is_number(read.derivative) and "g * " .. read.derivative or "none ? 0.0f : g * (" .. texts.device(read.derivative) .. ")"
                    const float x_$(read.id) = $(x);
@       if read.kind == "all" then
                    sums.sum_$(read.id) += x_$(read.id);
@       elseif read.kind == "runs" then
                    const i64 at_$(read.id) = $(read.place);
                    if (at_$(read.id) != sums.at_$(read.id)) {
                        add_gradient($(read.grad), sums.at_$(read.id), sums.sum_$(read.id));
                        sums.at_$(read.id) = at_$(read.id);
                        sums.sum_$(read.id) = 0.0f;
                    }
                    sums.sum_$(read.id) += x_$(read.id);
@       else
@         if read.kind ~= "walk" then
                    own_$(read.id)[m][r] += x_$(read.id);
@         end
@         if read.kind ~= "own" then
                    walk_$(read.id) += x_$(read.id);
@         end
@         if read.in_rows then
                    block_$(read.id)[m][i % 2][r] = x_$(read.id);
@           if read == staged_grad then
                    if (boxed) st_shared_u32(word_place(first, i, r), __float_as_uint(x_$(read.id)));
@           end
@         elseif read.once then
                    if ($(read.grad).once) {
                        if (n * $(plan.score_block) + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2 < at.seqlen_$(walk) &&
                            opaque(at.$(own)_first) + warp_row() + 16 * m + 8 * r + lane / 4 < at.seqlen_$(own))
                            $(read.grad).data[$(read.place)] = x_$(read.id);
                    } else
@         end
@         if read.kind == "pairs" and not read.in_rows then
                    if (by_$(own)_$(read.id) && by_$(walk)_$(read.id)) add_gradient($(read.grad), $(read.place), x_$(read.id));
@         end
@       end
@     end
@   end
@   if term.ds then
                    g *= $(is_number(term.ds) and term.ds or "(" .. texts.device(term.ds) .. ")");
@   end
                }
@ end
@ if changes then
                dp[m][i / 2][2 * r + i % 2] = none ? 0.0f : g;
@ end
            }
@ for _, read in ipairs(of_kind("pairs")) do
@   if read.in_rows then
        if (i % 2 == 1 && $(read == staged_grad and "!boxed && " or "")by_$(own)_$(read.id) && by_$(walk)_$(read.id)) {
#pragma unroll
            for (int m = 0; m < m_atoms; ++m) {
                const int q = n * $(plan.score_block) + warp_col() + 8 * (i / 2) + block_row(lane), k = opaque(at.k_first) + warp_row() + 16 * m + block_col(lane);
                const float4 four = transpose_block(block_$(read.id)[m], lane);
                if (q < at.seqlen_q && k < at.seqlen_k) add_row($(read.grad), $(read.place), $(read.rank - 1), four, min(at.seqlen_k - k, 4), aligned_$(read.id));
            }
        }
@   end
@ end
@ for _, read in ipairs(of_kind("walk pairs")) do
        $(read.kind == "pairs" and "if (by_" .. walk .. "_" .. read.id .. " && !by_" .. own .. "_" .. read.id .. ") " or ""){
            float sum = walk_$(read.id);
#pragma unroll
            for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(full_warp, sum, step);
@   if score.uses[own] then
            const int $(own) = at.$(own)_first; // along which the gradient has one element
@   end
            if (lane < 4) add_gradient($(read.grad), $(read.place), sum);
        }
@ end
    }
@ for _, read in ipairs(of_kind("own pairs")) do
@   if read.kind == "pairs" then
    if (!by_$(walk)_$(read.id))
@   end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int $(own) = $(own_index);
@   if score.uses[walk] then
            const int $(walk) = n * $(plan.score_block); // along which the gradient has one element
@   end
            float sum = own_$(read.id)[m][r];
            sum += __shfl_xor_sync(full_warp, sum, 1);
            sum += __shfl_xor_sync(full_warp, sum, 2);
            if (lane % 4 == 0) add_gradient($(read.grad), $(read.place), sum);
        }
@ end
}
@ if sums then

// What is left in the sums when the CTA is done with a head.
__device__ __forceinline__ void flush(ArraySums &sums, const Params &p, const Where &at) {
@   for _, read in ipairs(of_kind("all runs")) do
@     if read.kind == "runs" then
    add_gradient($(read.grad), sums.at_$(read.id), sums.sum_$(read.id));
@     else
    {
@       scalars(read.place)
        float sum = sums.sum_$(read.id);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
        if (threadIdx.x % 32 == 0) add_gradient($(read.grad), $(read.place), sum);
    }
@     end
    sums.sum_$(read.id) = 0.0f;
@   end
}
@ end
