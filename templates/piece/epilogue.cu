@ local half_weights = estimates and problem.dtype == "fp16"
@ if half_weights then
// Halves below 2^-14 are multiples of 2^-24: of so many keys' weights rounding takes up to keys 2^-25, of a sum of keys 2^-14 no more than it takes
// of any half. Rows of less, as the first ones of a window may have, are computed once more.
__device__ __forceinline__ float least_sum(int keys) { return fminf(float(keys) * 0x1p-14f, 1.0f); }

@ end
// O = acc / l and lse = m + log l. A row that saw no key has l = 0: its output is 0, its lse -inf. `inverse` is
// what the rows of acc are to be multiplied by.$(estimates and " `low`: the reference was too high." or "")
__device__ __forceinline__ void finish_rows(float (&inverse)[m_atoms][2], float (&lse)[m_atoms][2], $(estimates and "bool (&low)[2], " or "")$(half_weights and "float least, " or "")const float (&m_i)[m_atoms][2],
                                            const float (&l_i)[m_atoms][2], $(few_keys == "bounds" and "const bool (&lone)[2], " or few_keys and "const float (&lost)[2], " or "")const Params &p, const Where &at) {
@ if #score.sinks > 0 and not problem.joins_heads then
@   include("piece/sink.cu", { of = "at" })
@ end
@ if problem.kv_dtype == "e4m3" then
@   local weighed = plan.operands == "e4m3" -- weights of 8 bits count in units
@   if weighed then
    constexpr float weight_unit = 1.0f / (1 << int(weight_log2));
@   end
@   if not weighed and #score.terms == 0 then
    const float unit = scale_of(p, at, p.scale); // of the reference, as it is without descales
@   end
    const float factor = value_descale(p, at)$(weighed and " * weight_unit" or "")$(problem.dropout and " * p.dropout_scale" or "");
@ end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ local fast = plan.family == "wgmma" -- other warps' products wait
@ local function log(x) return fast and "lg2(" .. x .. ") * 0.6931471805599453f" or "logf(" .. x .. ")" end
@ local natural = #score.terms > 0 and "m_i[m][r] * score_unit(p)" or "m_i[m][r] * p.scale" -- of the row's reference
@ if problem.dtype == "fp32" and #score.terms > 0 then natural = "m_i[m][r]" end
@ local factor, unit = problem.dropout and "p.dropout_scale" or "1.0f", "" -- of acc / l; and of l
@ if problem.kv_dtype == "e4m3" then
@   local weighed = plan.operands == "e4m3"
@   if #score.terms == 0 then natural = weighed and "m_i[m][r] * at.scale * 0.6931471805599453f" or "m_i[m][r] * unit" end
@   factor, unit = "factor", weighed and " * weight_unit" or ""
@ end
@ local prescaled = plan.family == "wgmma" and problem.prescaled
@ if prescaled then natural = "m_i[m][r] * 0.6931471805599453f" end
            const float sum = $(ones and "l_i[m][r]" or "quad_sum(l_i[m][r])");$(ones and " // all lanes of a row have the sums of a product" or "")
@ if estimates then
            low[r] = sum < $(half_weights and "least" or "0x1p-64f");
@ end
@ if #score.sinks == 0 and (ones or prescaled) then -- without a choice, which would be a branch of which the products' loop loses its uniform registers
            const float l = sum$(unit);
            inverse[m][r] = $(factor) * rcp(fmaxf(l, 0x1p-100f)); // where l is 0, acc is
            lse[m][r] = $(natural) + $(log("l"));
@ elseif #score.sinks == 0 then
            const float l = sum$(unit);
@   if few_keys == "bounds" then -- of a lone key l is the weight
            const float rounded = lone[r] ? lower_$(problem.dtype)(pack_$(problem.dtype)(l, 0.0f)) : l; // as acc has the weights
@   elseif few_keys then
            const float rounded = l - quad_sum(lost[r]); // as acc has the weights
@   end
            inverse[m][r] = l == 0.0f ? 0.0f : $(factor) $(fast and "* rcp(" .. (few_keys and "rounded" or "l") .. ")" or "/ l");
            lse[m][r] = l == 0.0f ? NEG_INF : $(problem.dtype == "fp32" and #score.terms == 0 and "fmaf(m_i[m][r], p.scale, logf(l))" or natural .. " + " .. log("l"));
@ else
@   if problem.joins_heads then
            Where own = at;
            own.h = row_head(p, at, at.q_first + warp_row() + 16 * m + 8 * r + int(threadIdx.x) % 32 / 4);
@     include("piece/sink.cu", { of = "own" })
@   end
            float top = $(natural);
@   for i = 1, #score.sinks do
            top = fmaxf(top, sink$(i));
@   end
            top = top == NEG_INF ? 0.0f : top;
            const float keys = expf($(natural) - top); // what the sinks leave of the row's weights
            float l = sum$(unit) * keys;
@   for i = 1, #score.sinks do
            l += expf(sink$(i) - top);
@   end
            inverse[m][r] = l == 0.0f ? 0.0f : keys$(factor ~= "1.0f" and " * " .. factor or "") / l;
            lse[m][r] = l == 0.0f ? NEG_INF : top + $(log("l"));
@ end
        }
}

@ if plan.family == "wgmma" then
__device__ __forceinline__ void store_lse(const float (&lse)[m_atoms][2], const Params &p, const Leaving &there) {
    const int lane = lane_anew(), row = warp_row() + lane / 4;
    if (!p.lse || lane % 4 != 0) return;
    float *out = p.lse + $(problem.packed and "i64(there.h) * p.total_q" or "i64(there.b * p.num_heads_q + there.h) * p.seqlen_q") + there.first + row;
#pragma unroll
    for (int r = 0; r < 2; ++r)
        if (row + 8 * r < there.rows) out[8 * r] = lse[0][r];
}
@ else
__device__ __forceinline__ void store_lse(const float (&lse)[m_atoms][2], int row_0, const Params &p, const Where &at) {
    const int lane = lane_anew();
    if (!p.lse || lane % 4 != 0) return;
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int q = at.q_first + row_0 + 16 * m + 8 * r + lane / 4;
            if (q < at.seqlen_q) p.lse[lse_start(p, at, at.h) + q] = lse[m][r];
        }
}
@ end
@ if plan.family == "wgmma" then

@   if mask.leading_rows > 0 then
@     include("piece/store_part.cu")

@   end
@   if plan.parts then
@     include("piece/store_own_part.cu")

@   end
@   include("piece/scaled_block.cu")

@   include(plan.q_stages == 2 and "piece/store_tma.cu" or layout.out_panels > 0 and "piece/store_panels.cu" or "piece/store_direct.cu")
@ else

__device__ __forceinline__ void store_output(float (&o)[m_atoms][o_atoms][4], const float (&m_i)[m_atoms][2],
                                             const float (&l_i)[m_atoms][2], u32 tile_o, const Params &p, const Where &at) {
    const int row_0 = int(opaque(threadIdx.x) / 32) * rows_per_warp;
    float inverse[m_atoms][2], lse[m_atoms][2];
    finish_rows(inverse, lse, m_i, l_i, p, at);
@ local sliced = problem.slices > 1
    $(sliced and "if (at.slice == 0) " or "")store_lse(lse, row_0, p, at);
    __syncthreads(); // every warp is done with the tiles that the output overlays
    Output *out = p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + at.h * p.o_head_stride + at.q_first * p.o_row_stride$(sliced and " + at.slice * slice_dim" or "");
    store_rows<block_m, dv_pad, $(sliced and "slice_dim" or "head_dim_v"), false>(o, inverse, tile_o, row_0, 0, out, p.o_row_stride, at.seqlen_q - at.q_first);
}
@ end
