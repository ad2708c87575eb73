@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own = walk == "q" and "k" or "q"
@ -- Index of a pair; where arrays are read by it, it stays within the sequence.
@ local function index(name, text)
@   return score.reads_along[name] and "min(" .. text .. ", at.seqlen_" .. name .. " - 1)" or text
@ end
@ -- The forward pass leaves the last term's factor to the exponentiation.
@ local values = {}
@ for t, term in ipairs(score.terms) do values[t] = term.value end
@ local unit_apart = problem.op == "fwd" and problem.dtype ~= "fp32" -- fp32 has the scores of the backward pass, bit by bit
@ if unit_apart then values[#values] = score.rest end
@ local raw_scale = problem.kv_dtype == "e4m3" and "at.scale" or "p.scale"
@ local texts = { first = values[1], small = true, at_once = weighs, raw_scale = raw_scale }
@ include("piece/score_values.cu", { texts = texts })
@ local caps = texts.caps
@ if weighs and caps then weighs.unit = caps.bare and "score_scale(p)" or "1.0f" end

@ if unit_apart then
// What a score of score_tile is to be multiplied by; and in base 2.
__device__ __forceinline__ float score_unit(const Params &p) {
@   local positive = score.factor == "1.0f"
@   for i, param in ipairs(score.params) do
@     if score.factor:find("%f[%w_]" .. param.name .. "%f[^%w_]") then
    const $(param.type) $(param.name) = $(param.type == "float" and "__int_as_float" or "")(p.score_value[$(i - 1)]);
@       positive = positive or param.nonzero and score.factor == "fabsf(" .. param.name .. ")"
@     end
@   end
    return $(positive and score.factor or "fmaxf(" .. score.factor .. ", 0x1p-126f)"); // of 0 times what a mask hides, -inf, there would be NaN
}
__device__ __forceinline__ float score_scale(const Params &p) { return log2_e * score_unit(p); }

@ end
@ -- What follows from the row or the key is not brought into scope.
@ local function scalars()
@   include("piece/score_scalars.cu", { readers = "in_terms", of = "at", wants = function(name) return name ~= "h" or not problem.joins_heads end })
@ end
@ local row = "opaque(at." .. own .. "_first) + warp_row() + 16 * m + 8 * r + lane / 4"
@ -- The terms after the one numbered `first` - 1, whose score is s_(first - 1).
@ local function apply_terms(first)
@   for t = first, #values do
                float s_$(t);
                {
                    const auto s = s_$(t - 1);
                    s_$(t) = $(texts.device(values[t]));
                }
@   end
@ end
@ -- Arrays that terms read along the keys are read for two neighbours at once: what counts is how many lines of memory a warp asks for.
@ local pairs, staged, slot = {}, nil, nil -- staged: whose tile lies in shared memory
@ for i, array in ipairs(arrays) do
@   if array.key_pairs and plan.family == "wgmma" and walk == "k" then pairs[#pairs + 1] = array end
@   if array.staged then staged, slot = array, i - 1 end
@ end
@ local function indices(array)
@   local list = {}
@   for d in array.declared:gmatch("%[(%l)%]") do list[#list + 1] = d == "k" and "pair_k" or d end
@   return table.concat(list, ", ")
@ end
@ local function pair_type(array) return array.bytes == 2 and "u32" or "uint2" end
@ local function pair_load(array) return array.bytes == 2 and "ld_global_word" or "ld_global_pair" end
@ -- Of score i, whose key is even or odd.
@ local function of_pair(array, pair)
@   if array.bytes == 4 then return ("%s(i %% 2 == 0 ? %s.x : %s.y)"):format(array.value, pair, pair) end
@   return ("i %% 2 == 0 ? lower_%s(%s) : upper_%s(%s)"):format(array.element, pair, array.element, pair)
@ end
@ local together = {} -- may all of them be?
@ for i, array in ipairs(pairs) do together[i] = array.name .. "_pairs(p)" end
@ together = table.concat(together, " && ")
@ -- Of a whole tile the first AHEAD atoms of keys are read while its products run, as far as there are registers.
@ local reads = ahead and #pairs > 0
@ if reads then
template <int AHEAD> struct KeyPairs {
    bool whole;
@   for _, array in ipairs(pairs) do
    const char *$(array.name)_row[2];
    $(pair_type(array)) $(array.name)[2][(AHEAD > 0 ? AHEAD : 1)];
@   end

    __device__ __forceinline__ KeyPairs(int n, const Params &p, const Where &at) : whole(at.seqlen_k % 2 == 0 && (n + 1) * $(plan.score_block) <= at.seqlen_k && $(together)) {
        if (!whole) return;
        const int lane = lane_anew();
@   scalars()
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            constexpr int m = 0;
@   if score.uses.q then
            const int q = $(index("q", row));
@   end
@   for _, array in ipairs(pairs) do
            $(array.name)_row[r] = $(array.name)_row_at($((("p, " .. indices(array)):gsub(", pair_k$", "")))) + i64(n * $(plan.score_block) + 2 * (lane % 4)) * $(array.bytes);
@   end
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
@   for _, array in ipairs(pairs) do
                $(array.name)[r][i] = $(pair_load(array))($(array.name)_row[r] + $(8 * array.bytes) * i);
@   end
            }
        }
    }
};

@ end
@ if staged then
@   include("piece/score_staged.cu", { staged = staged, slot = slot, own = own, walk = walk })

@ end
// Raw scores q . k of tile n become scores$(unit_apart and " but for score_unit" or " in natural units"): s = scale q . k, then the terms in their order.
$(reads and "template <int AHEAD> " or "")__device__ __forceinline__ void score_tile(float (&acc)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at$(reads and ", const KeyPairs<AHEAD> &key_pairs" or "")$(staged and ", u32 tile" or "")) {
    const int lane = lane_anew(); // registers are dearer here than a few operations
@ if staged then
    const u32 first = $(staged.bytes == 2 and "half" or "word")_place(tile);
@ end
@ scalars()
@ if staged then
    if (!p.array[$(slot)].boxed) bring_tile(tile, n, p, at); // then there was no copy
@ end
@ local place = "acc[m][i / 2][2 * r + i % 2]"
@ -- `tanh`: what the first term is a tanh by, where it has been looked at. `weigh`: the score goes on to its weight, "at once"
@ -- where it is nothing but a tanh.
@ local function score_pairs(in_pairs, tanh, by_row, weigh, atoms)
@   local first, last = table.unpack(atoms or { "0", "s_atoms" })
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ if problem.joins_heads and (score.uses.q or score.uses.h) then
            const int row = $(row);
            const int q = $(index("q", "row_query(p, row)")), h = row_head(p, at, row);
@ elseif score.uses[own] then
            const int $(own) = $(index(own, row));
@ end
@ for _, array in ipairs(in_pairs) do
            $(pair_type(array)) $(array.name)_pair;
@ end
@ if staged and (walk == "k" or staged.bytes == 2) then
            $(pair_type(staged)) $(staged.name)_panel[4];
@ end
#pragma unroll
            for (int i = 2 * $(first); i < 2 * $(last); ++i) {
@ if score.uses[walk] then
                const int $(walk) = $(index(walk, "n * " .. plan.score_block .. " + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2"));
@ end
@ if #in_pairs > 0 and not by_row then
                const int pair_k = min(n * $(plan.score_block) + 8 * (i / 2) + 2 * (lane % 4), at.seqlen_k - 2); // even, as seqlen_k is
@ end
@ if staged and walk == "q" and staged.bytes == 4 then
                const auto $(staged.name)_at = [&](const Params &, auto...) { return $(staged.value)(ld_shared_u32(word_place(first, i, r))); };
@ elseif staged then
@   local pair = staged.name .. "_panel[i / 2 % 4]"
                if (i % 8 == 0) read_panel($(staged.name)_panel, first, i, r);
                const auto $(staged.name)_at = [&](const Params &, auto...) { return $(of_pair(staged, pair)); };
@ end
@ for _, array in ipairs(in_pairs) do
@   local pair = array.name .. "_pair"
@   if by_row then
                if (i % 2 == 0) $(pair) = i / 2 < AHEAD ? key_pairs.$(array.name)[r][i / 2 % (AHEAD > 0 ? AHEAD : 1)] : $(pair_load(array))(key_pairs.$(array.name)_row[r] + $(4 * array.bytes) * i);
@   else
                if (i % 2 == 0) $(pair) = $(pair)_at(p, $(indices(array)));
@   end
                const auto $(array.name)_at = [&](const Params &, auto...) { return $(of_pair(array, pair)); };
@ end
@ if tanh then
                const float s_1 = $(texts.device(caps.before))$(tanh:format(place))$(texts.device(caps.behind));
@ elseif weigh ~= "at once" then
                const Scaled s_0 = {$(place), $(raw_scale)};
@ end
@ if weigh == "at once" then
                $(place) = ex2(fmaf($(place), tanh.over($(place)), -scaled[r]));
@ else
@   apply_terms(tanh and 2 or 1)
                $(place) = s_$(#score.terms);
@   if weigh then
                $(place) = ex2(fmaf($(place), unit, -scaled[r]));
@   end
@ end
@ if weigh and not atoms then
                l_i[m][r] += $(place);
@ end
            }
        }
@ end
@ local function score_all(tanh)
@   if reads then
    if (key_pairs.whole) {
@     score_pairs(pairs, tanh, true)
        return;
    }
@   elseif #pairs > 0 then
    if (at.seqlen_k % 2 == 0 && $(together)) {
@     score_pairs(pairs, tanh)
        return;
    }
@   end
@   score_pairs({}, tanh)
@ end
@ if caps then
    u32 bits = 0; // the highest exponent bit but one: of 2 and more
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int i = 0; i < s_atoms; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const Scaled s = {acc[m][i][e], $(raw_scale)};
                acc[m][i][e] = $(texts.device(caps.argument)) * (1.0f / tanh_unit);
                bits |= __float_as_uint(acc[m][i][e]);
            }
    if (!__any_sync(full_warp, bits & 0x40000000u)) {
@   score_all("small_tanh(%s)")
        return;
    }
@   score_all("large_tanh(Scaled{%s, tanh_unit})")
@ else
@   score_all()
@ end
}
@ if weighs then

@   include("piece/score_weigh.cu", { in_parts = caps and weighs.in_parts or false, caps = caps or false, scalars = scalars, score_pairs = score_pairs })
@ end
@ if estimates or along then

// What a raw score of that row would become at key k.
__device__ __forceinline__ float score_at(float raw, int row, int k, const Params &p, const Where &at) {
@   scalars()
@   if problem.joins_heads then
    const int q = $(index("q", "row_query(p, row)")), h = row_head(p, at, row);
@   elseif score.uses.q then
    const int q = $(index("q", "row"));
@   end
    const Scaled s_0 = {raw, $(raw_scale)};
@   apply_terms(1)
    return s_$(#values);
}
@ end
@ if along then

@   include("piece/score_along.cu", { along_tiles = along_tiles, scalars = scalars })
@ end
