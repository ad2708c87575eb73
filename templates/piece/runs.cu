@ local q, k = mask.runs.q, mask.runs.k
// ---- before: which keys each query sees of those that $(q) and $(k) leave ----
//
// Both arrays are sorted, so that these keys follow each other. runs: of all batch entries the first keys, then the last ones; where
// there is none the last stands before the first. Both grow with the query. Rows are whole tiles of queries, which are copied beside them.
__device__ __forceinline__ i64 run_at(const Params &p, int b, int q) {
    return i64(b) * (int(u32(p.seqlen_q + block_m - 1) / block_m) * block_m) + q;
}
__device__ __forceinline__ int first_key_array_at(const Params &p, int b, int q) { return p.runs[run_at(p, b, q)]; }
__device__ __forceinline__ int last_key_array_at(const Params &p, int b, int q) { return p.runs[run_at(p, p.batch + b, q)]; }

// Of an interval of queries, of one batch entry.
@ for _, name in ipairs({ "first_key_array", "last_key_array" }) do
__device__ __forceinline__ Interval $(name)_iv_at(const Params &p, Interval b, Interval q) {
    return {$(name)_at(p, int(b.lo), int(q.lo)), $(name)_at(p, int(b.lo), int(q.hi))};
}
@ end

// How many keys a thread compares at a time: the places between which a key is looked for become as many times fewer.
constexpr int ways = 4;

extern "C" __global__ void __launch_bounds__(128) fk_forward_runs(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    start_next();
    const int b = blockIdx.y + gridDim.y * blockIdx.z, q = blockIdx.x * 128 + threadIdx.x;
    if (b >= p.batch || q >= run_at(p, 1, 0)) return;
    const u32 num_keys = sequence(p, b).seqlen_k;
    const int id = $(q)_at(p, b, min(q, p.seqlen_q - 1));
    u32 step = 1, below = 0, up_to = 0; // keys whose ids are below this one, and up to it
    while (step <= num_keys / ways) step *= ways;
    for (; step > 0; step /= ways) {
        u32 more_below = 0, more_up_to = 0;
#pragma unroll
        for (u32 i = 1; i < ways; ++i) {
            const u32 at_below = below + i * step, at_up_to = up_to + i * step;
            more_below += at_below <= num_keys && $(k)_at(p, b, at_below - 1) < id;
            more_up_to += at_up_to <= num_keys && $(k)_at(p, b, at_up_to - 1) <= id;
        }
        below += more_below * step;
        up_to += more_up_to * step;
    }
    p.runs[run_at(p, b, q)] = int(below);
    p.runs[run_at(p, p.batch + b, q)] = int(up_to) - 1;
}
