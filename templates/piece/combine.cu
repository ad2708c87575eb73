// The results of a row's splits, each O weighted by the sum that it was divided by. A CTA takes a row; groups of threads share
// its columns, take four splits at a time in turn, and add up what they have in the order of the groups: no order is left to
// chance. The floats in shared memory:
constexpr int combine_threads = 128; // and the most splits that there can be
constexpr int combine_lanes = head_dim_v <= 32 ? 8 : head_dim_v <= 64 ? 16 : head_dim_v <= 128 ? 32 : $(problem.slices > 1 and "128" or "64");
constexpr int combine_groups = combine_threads / combine_lanes;
constexpr int combine_top = 0, combine_sum = 4, combine_weight = 8, combine_acc = 8 + combine_threads;

// op(of all threads), the same in each; uses the 4 floats at `shared`.
template <class Op> __device__ __forceinline__ float reduce_block(float x, u32 shared, Op op) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = op(x, __shfl_xor_sync(full_warp, x, step));
    if (threadIdx.x % 32 == 0) st_shared_u32(shared + threadIdx.x / 32 * 4, __float_as_uint(x));
    __syncthreads();
    const uint4 warps = ld_shared_v4(shared);
    return op(op(__uint_as_float(warps.x), __uint_as_float(warps.y)), op(__uint_as_float(warps.z), __uint_as_float(warps.w)));
}

@ local early = arch.early_start
// A thread's four columns of what the splits found of a row.
struct SplitColumns {
    static constexpr int rounds_ahead = 3; // of four splits for each group, which are read at once: a read is waited for longer than it takes
    const int group, num_splits;
    const bool there; // are there such columns?
    const float *from;
    const i64 stride;
    uint4 ahead[4 * rounds_ahead];

    // Of a round, the first of the group's four splits.
    __device__ __forceinline__ int first_of(int round) const { return 4 * (round * combine_groups + group); }
    __device__ __forceinline__ uint4 read(int split) const { return $(early and "ld_global_last_v4" or "ld_global_v4")(from + split * stride); }

    // Reads the first of them, whose weights may be known later.
    __device__ __forceinline__ SplitColumns(i64 row, const Params &p)
        : group(threadIdx.x / combine_lanes), num_splits(p.num_splits), there(threadIdx.x % combine_lanes * 4 < head_dim_v),
          from(p.o_partial + row * head_dim_v + threadIdx.x % combine_lanes * 4), stride(p.partial_rows * head_dim_v) {
#pragma unroll
        for (int round = 0; round < rounds_ahead; ++round) {
            if (!there || first_of(round) >= num_splits) break; // one branch for four, as most rows have few
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (first_of(round) + i < num_splits) ahead[4 * round + i] = read(first_of(round) + i);
        }
    }

    // acc += weight * o, of splits that have a weight: of others memory may hold anything.
    static __device__ __forceinline__ void add(float (&acc)[4], u32 weight_bits, uint4 o) {
        const float weight = __uint_as_float(weight_bits);
        if (weight == 0.0f) return;
        acc[0] = fmaf(weight, __uint_as_float(o.x), acc[0]);
        acc[1] = fmaf(weight, __uint_as_float(o.y), acc[1]);
        acc[2] = fmaf(weight, __uint_as_float(o.z), acc[2]);
        acc[3] = fmaf(weight, __uint_as_float(o.w), acc[3]);
    }

    // The sums, to shared memory: [group][lane][4].
    __device__ __forceinline__ void sum(u32 smem) const {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (there) {
#pragma unroll
            for (int round = 0; round < rounds_ahead; ++round) {
                if (first_of(round) >= num_splits) break;
                const uint4 weights = ld_shared_v4(smem + (combine_weight + first_of(round)) * 4);
                add(acc, weights.x, ahead[4 * round]);
                add(acc, weights.y, ahead[4 * round + 1]);
                add(acc, weights.z, ahead[4 * round + 2]);
                add(acc, weights.w, ahead[4 * round + 3]);
            }
            for (int round = rounds_ahead; first_of(round) < num_splits; ++round) {
                const int split = first_of(round);
                const uint4 weights = ld_shared_v4(smem + (combine_weight + split) * 4);
                const u32 bits[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (bits[i] != 0) add(acc, bits[i], read(split + i));
            }
        }
        st_shared_v4(smem + (combine_acc + threadIdx.x * 4) * 4, make_uint4(__float_as_uint(acc[0]), __float_as_uint(acc[1]),
                                                                           __float_as_uint(acc[2]), __float_as_uint(acc[3])));
    }
};

// The groups' sums of eight columns, times `factor`, to the output.
__device__ __forceinline__ void store_sum(u32 smem, float factor, Output *out) {
    float acc[8] = {};
#pragma unroll
    for (int group = 0; group < combine_groups; ++group) {
        const u32 from = smem + (combine_acc + (group * combine_lanes + 2 * threadIdx.x) * 4) * 4;
        const uint4 a = ld_shared_v4(from), b = ld_shared_v4(from + 16);
        const u32 bits[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[i] += __uint_as_float(bits[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i] *= factor;
    store_elements(out + threadIdx.x * 8, acc);
}

extern "C" __global__ void __launch_bounds__(combine_threads) fk_forward_combine(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ if early then
    wait_for_previous();
@ end
    const u32 smem = smem_base();
    const int head = blockIdx.y + gridDim.y * blockIdx.z;
    int q = blockIdx.x;
    Where at;
@ if problem.packed then
    if (head >= p.num_heads_q) return;
    static_cast<Sequence &>(at) = sequence(p, find_sequence<1>(p.cu_seqlens_q, p.batch, q));
    at.h = head;
    if (q < 0 || q >= at.seqlen_q) return;
@ else
    if (head >= p.batch * p.num_heads_q) return;
    static_cast<Sequence &>(at) = sequence(p, quotient(head, p.num_heads_q, p.heads_inverse));
    at.h = head - at.b * p.num_heads_q;
@ end
@ if #score.sinks > 0 then
@   include("piece/sink.cu", { of = "at" })
@ end
@ local parts = mask.leading_rows > 0 -- of a head's first rows alone
    const i64 row = lse_start(p, at, at.h) + q, part_row = $(parts and "i64(head) * " .. mask.leading_rows .. " + q" or "row");
    const SplitColumns columns(part_row, p);
    const float lse = int(threadIdx.x) < p.num_splits ? p.lse_partial[threadIdx.x * p.partial_rows + part_row] : NEG_INF;
    float top = reduce_block(lse, smem + combine_top * 4, [](float a, float b) { return fmaxf(a, b); });
@ for i = 1, #score.sinks do
    top = fmaxf(top, sink$(i));
@ end
    top = top == NEG_INF ? 0.0f : top;
    const float weight = expf(lse - top);
    st_shared_u32(smem + (combine_weight + threadIdx.x) * 4, __float_as_uint(weight));
    float sum = reduce_block(weight, smem + combine_sum * 4, [](float a, float b) { return a + b; });
@ for i = 1, #score.sinks do
    sum += expf(sink$(i) - top);
@ end
    columns.sum(smem);
    __syncthreads();
    if (threadIdx.x == 0 && p.lse) p.lse[row] = sum == 0.0f ? NEG_INF : top + logf(sum);
    if (threadIdx.x * 8 < head_dim_v)
        store_sum(smem, sum == 0.0f ? 0.0f : 1.0f / sum,
                  p.o + q_start(at, p.o_batch_stride, p.o_row_stride) + at.h * p.o_head_stride + q * p.o_row_stride);
}
