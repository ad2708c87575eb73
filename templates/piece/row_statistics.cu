@ -- A row whose lse is rounded by more than weights are told apart by, as where an additive mask hides all keys, counts as one that sees none.
@ local none = score.strays_far and "fabsf(lse) >= 0x1p20f" or "lse == NEG_INF"
@ local fp32 = problem.dtype == "fp32" -- whose lse keeps its unit
@ if fp32 then
// hi + lo += x. What is left of dP - delta may be no larger than the rounding errors of an ordinary sum.
__device__ __forceinline__ void add_exactly(float &hi, float &lo, float x) {
    const float sum = hi + x, added = sum - hi;
    lo += (hi - (sum - added)) + (x - added);
    hi = sum;
}

@ end
// Lanes share a row of O and dO, 8 elements each, so that a warp's reads are whole lines.
constexpr int row_chunks = head_dim_v / 8, row_lanes = row_chunks <= 8 ? 8 : row_chunks <= 16 ? 16 : 32;

// lse of query q$(fp32 and "" or ", in base 2"); +inf where it is none, or sees no key, so that its weights are 0.
__device__ __forceinline__ float row_lse(const Params &p, const Sequence &at, int h, int q) {
    if (q >= at.seqlen_q) return -NEG_INF;
    const float lse = p.lse[lse_start(p, at, h) + q];
@ if fp32 then
    return $(none) ? -NEG_INF : lse;
@ elseif problem.dropout then
    // With P D in place of P (D: the scale of what is kept), dV = P~^T dO and dS = P (dP~ - delta / D) need no other factor.
    return $(none) ? -NEG_INF : lse * 1.4426950408889634f - p.dropout_scale_log2;
@ else
    return $(none) ? -NEG_INF : lse * 1.4426950408889634f;
@ end
}

// delta = rowsum(dO * O) - dlse of query q, from what each of the row's lanes has of the sum; the first of them has it.
__device__ __forceinline__ float row_delta(const Params &p, const Sequence &at, int h, int q, float delta$(fp32 and ", float low" or "")) {
#pragma unroll
@ if fp32 then
    for (int other = row_lanes / 2; other > 0; other /= 2) {
        low += __shfl_xor_sync(full_warp, low, other);
        add_exactly(delta, low, __shfl_xor_sync(full_warp, delta, other));
    }
    if (p.dlse && q < at.seqlen_q) add_exactly(delta, low, -p.dlse[lse_start(p, at, h) + q]);
    delta += low;
@ else
    for (int other = row_lanes / 2; other > 0; other /= 2) delta += __shfl_xor_sync(full_warp, delta, other);
    if (p.dlse && q < at.seqlen_q) delta -= p.dlse[lse_start(p, at, h) + q];
@ end
    return delta$(problem.dropout and " * p.dropout_keep" or "");
}
