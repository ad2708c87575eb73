@ include("piece/split_range.cu")
@ local sliced = problem.slices > 1
@ local dim_v, of_slice, first = "head_dim_v", "", ""
@ if sliced then dim_v, of_slice, first = "slice_dim", " + at.slice * slice_dim", "at.slice == 0 && " end

@ if problem.joins_heads then
// Rows of several heads, of whose keys no other CTA has any.
__device__ __forceinline__ void store_joined(const float (&o)[m_atoms][o_atoms][4], const float (&m_i)[m_atoms][2],
                                             const float (&l_i)[m_atoms][2], const Params &p, const Where &at) {
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, row_0 = thread / 32 * rows_per_warp;
    float inverse[m_atoms][2], lse[m_atoms][2];
    finish_rows(inverse, lse, m_i, l_i, p, at);
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own_row = at.q_first + row_0 + 16 * m + 8 * r + lane / 4;
            const int q = row_query(p, own_row), h = row_head(p, at, own_row);
            if (q >= at.seqlen_q) continue;
            if ($(first)lane % 4 == 0 && p.lse) p.lse[lse_start(p, at, h) + q] = lse[m][r];
@   local pair = problem.dtype == "fp32" and "float2" or "u32"
            $(pair) *out = reinterpret_cast<$(pair) *>(p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + h * p.o_head_stride + q * p.o_row_stride$(of_slice)) + lane % 4;
#pragma unroll
            for (int n = 0; n < $(dim_v) / 8; ++n)
                out[4 * n] = $(problem.dtype == "fp32" and "make_float2" or "pack_" .. problem.output_dtype)(o[m][n][2 * r] * inverse[m][r], o[m][n][2 * r + 1] * inverse[m][r]);
        }
}

@ end
// O and lse as far as this split's keys go, in float32; sinks enter where splits are combined. A row that saw no key has O = 0
// and lse = -inf.
__device__ __forceinline__ void store_partial(const float (&o)[m_atoms][o_atoms][4], const float (&m_i)[m_atoms][2],
                                              const float (&l_i)[m_atoms][2], const Params &p, const Where &at) {
    const u32 thread = opaque(threadIdx.x);
    const int lane = thread % 32, row_0 = thread / 32 * rows_per_warp;
@ local factor = problem.dropout and "p.dropout_scale" or "1.0f" -- of acc / l
@ if plan.widens then
@   factor = "factor"
@   if #score.terms == 0 then
    const float unit = scale_of(p, at, p.scale); // of the reference
@   end
    const float factor = value_descale(p, at)$(problem.dropout and " * p.dropout_scale" or "");
@ end
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
@ if problem.joins_heads then
            const int own_row = at.q_first + row_0 + 16 * m + 8 * r + lane / 4;
            const int q = row_query(p, own_row), h = row_head(p, at, own_row);
@ else
            const int q = at.q_first + row_0 + 16 * m + 8 * r + lane / 4, h = at.h;
@ end
            const float l = quad_sum(l_i[m][r]), inverse = l == 0.0f ? 0.0f : $(factor) / l;
            if (q >= at.seqlen_q) continue;
            const i64 row = at.split * p.partial_rows + $(mask.leading_rows > 0 and "i64(at.b * p.num_heads_q + h) * " .. mask.leading_rows or "lse_start(p, at, h)") + q;
@ local natural = #score.terms > 0 and "m_i[m][r] * score_unit(p)" or "m_i[m][r] * p.scale" -- of the row's reference
@ if problem.dtype == "fp32" and #score.terms > 0 then natural = "m_i[m][r]" end
@ if plan.widens and #score.terms == 0 then natural = "m_i[m][r] * unit" end
            if ($(first)lane % 4 == 0) p.lse_partial[row] = l == 0.0f ? NEG_INF : $(problem.dtype == "fp32" and #score.terms == 0 and "fmaf(m_i[m][r], p.scale, logf(l))" or natural .. " + logf(l)");
            float2 *out = reinterpret_cast<float2 *>(p.o_partial + row * head_dim_v$(of_slice)) + lane % 4;
#pragma unroll
            for (int n = 0; n < $(dim_v) / 8; ++n) out[4 * n] = make_float2(o[m][n][2 * r] * inverse, o[m][n][2 * r + 1] * inverse);
        }
}
