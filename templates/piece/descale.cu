@ local kv_head = problem.gqa and (plan.family == "wgmma" and "at.kv_head" or "at.h / p.heads_per_kv") or "at.h"
// What elements of a batch entry's kv head count for.
__device__ __forceinline__ float descale(const float *of, int b, i64 batch_stride, int kv_head, i64 head_stride) {
    return of ? of[b * batch_stride + kv_head * head_stride] : 1.0f;
}

// `scale` with q_descale and k_descale.
__device__ __forceinline__ float scale_of(const Params &p, const Where &at, float scale) {
    const int kv_head = $(kv_head);
    const float q = descale(p.q_descale, at.b, p.q_descale_batch_stride, kv_head, p.q_descale_head_stride);
    const float k = descale(p.k_descale, at.b, p.k_descale_batch_stride, kv_head, p.k_descale_head_stride);
    return fmaxf(scale * q * k, 0x1p-100f); // a score of -inf stays one
}

// What scores are multiplied by: softmax_scale$(#score.terms > 0 and "" or " log2(e)"), q_descale and k_descale.
__device__ __forceinline__ float scale_of(const Params &p, const Where &at) { return scale_of(p, at, $(#score.terms > 0 and "p.scale" or "p.scale_log2")); }

__device__ __forceinline__ float value_descale(const Params &p, const Where &at) {
    return descale(p.v_descale, at.b, p.v_descale_batch_stride, $(kv_head), p.v_descale_head_stride);
}
