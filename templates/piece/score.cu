@ -- A CTA owns one tile of queries and walks over tiles of keys, or the other way round.
@ local own, own_block, walk_block = "q", "block_m", "block_n"
@ if walk == "q" then own, own_block, walk_block = "k", "block_n", "block_m" end
@ local score_block = walk == "q" and plan.family == "wgmma" and "part_m" or walk_block -- what accumulators of scores hold
@ -- Index of a pair; where arrays are read by it, it stays within the sequence.
@ local function index(name, text)
@   return score.reads_along[name] and "min(" .. text .. ", at.seqlen_" .. name .. " - 1)" or text
@ end
constexpr float log2_e = 1.4426950408889634f;

// Raw scores q . k of tile n become scores in natural units: s = scale q . k, then the terms in their order.
__device__ __forceinline__ void score_tile(float (&acc)[m_atoms][s_atoms][4], int n, const Params &p, const Where &at) {
    const int lane = opaque(int(threadIdx.x)) % 32; // registers are dearer here than a few operations
@ for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@   if score.uses[name] and not (name == "h" and problem.joins_heads) then
    const int $(name) = at.$(name);
@   end
@ end
@ for i, param in ipairs(score.params) do
@   if param.in_terms then
    const $(param.type) $(param.name) = $(param.type == "float" and "__int_as_float" or "")(p.score_value[$(i - 1)]);
@   end
@ end
@ -- Arrays that terms read along the keys are read for two neighbours at once: what counts is how many lines of memory a warp asks for.
@ local pairs = {}
@ for _, array in ipairs(arrays) do
@   if array.key_pairs and plan.family == "wgmma" and walk == "k" then pairs[#pairs + 1] = array end
@ end
@ local function indices(array)
@   local list = {}
@   for d in array.declared:gmatch("%[(%l)%]") do list[#list + 1] = d == "k" and "pair_k" or d end
@   return table.concat(list, ", ")
@ end
@ local function score_pairs(in_pairs)
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ local row = "opaque(at." .. own .. "_first) + warp_row() + 16 * m + 8 * r + lane / 4"
@ if problem.joins_heads and (score.uses.q or score.uses.h) then
            const int row = $(row);
            const int q = $(index("q", "row_query(p, row)")), h = row_head(p, at, row);
@ elseif score.uses[own] then
            const int $(own) = $(index(own, row));
@ end
@ for _, array in ipairs(in_pairs) do
            uint2 $(array.name)_pair;
@ end
#pragma unroll
            for (int i = 0; i < s_atoms * 2; ++i) {
@ if score.uses[walk] then
                const int $(walk) = $(index(walk, "n * " .. score_block .. " + warp_col() + 8 * (i / 2) + 2 * (lane % 4) + i % 2"));
@ end
@ if #in_pairs > 0 then
                const int pair_k = min(n * block_n + 8 * (i / 2) + 2 * (lane % 4), at.seqlen_k - 2); // even, as seqlen_k is
@ end
@ for _, array in ipairs(in_pairs) do
@   local pair = array.name .. "_pair"
                if (i % 2 == 0) $(pair) = $(pair)_at(p, $(indices(array)));
                const auto $(array.name)_at = [&](const Params &, auto...) { return $(array.type == "float" and "__uint_as_float" or "int")(i % 2 == 0 ? $(pair).x : $(pair).y); };
@ end
                float s = acc[m][i / 2][2 * r + i % 2] * $(problem.dtype == "e4m3" and "at.scale" or "p.scale");
@ for _, term in ipairs(score.terms) do
                s = $(term.value);
@ end
                acc[m][i / 2][2 * r + i % 2] = s;
            }
        }
@ end
@ if #pairs > 0 then
@   local together = {}
@   for i, array in ipairs(pairs) do together[i] = array.name .. "_pairs(p)" end
    if (at.seqlen_k % 2 == 0 && $(table.concat(together, " && "))) {
@   score_pairs(pairs)
        return;
    }
@ end
@ score_pairs({})
}
