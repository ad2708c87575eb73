// ---- gradients of declared arrays, before and after ----

@ local slots = {}
@ for slot, array in ipairs(arrays) do
@   if array.grad then slots[#slots + 1] = { slot - 1, array } end
@ end
// Calls each(offset) for the elements of a gradient: rows of its last dimension for blocks, their elements for threads.
template <int RANK, class Each> __device__ __forceinline__ void for_elements(const ArrayGrad &grad, const Each &each) {
    i64 rows = 1;
#pragma unroll
    for (int d = 0; d < RANK - 1; ++d) rows *= grad.size[d];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        i64 rest = row, at = 0;
#pragma unroll
        for (int d = RANK - 2; d >= 0; --d) {
            at += rest % grad.size[d] * grad.stride[d];
            rest /= grad.size[d];
        }
        for (i64 i = threadIdx.x; i < grad.size[RANK - 1]; i += 256) each(at + i * grad.stride[RANK - 1]);
    }
}

extern "C" __global__ void __launch_bounds__(256) fk_backward_clear(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@ for _, entry in ipairs(slots) do
    if (p.array_grad[$(entry[1])].clear) {
        const ArrayGrad &grad = p.array_grad[$(entry[1])]; // $(entry[2].declared)
@   if problem.deterministic then
        if (grad.exact)
            for_elements<$(entry[2].rank)>(grad, [&](i64 at) {
                for (int i = 0; i < $(exact_words); ++i) grad.exact[at * $(exact_words) + i] = 0;
            });
        else
@   end
        for_elements<$(entry[2].rank)>(grad, [&](i64 at) { grad.data[at] = 0.0f; });
    }
@ end
}
@ if problem.deterministic then

// The float nearest to an exact sum, but for a double's rounding before.
__device__ __forceinline__ float exact_sum(const u64 *words) {
    if (words[$(exact_words - 1)]) return __int_as_float(0x7fc00000);
    i64 part[$(exact_words - 1)], carry = 0;
    for (int i = 0; i < $(exact_words - 1); ++i) {
        const i64 sum = i64(words[i]) + carry;
        part[i] = sum & 0xffffffff;
        carry = sum >> 32;
    }
    // Below zero the parts are those of 2^288 more: of them all but the lowest one that is not zero are complemented.
    const bool negative = carry < 0;
    i64 one = 1;
    double sum = 0.0, unit = 1.401298464324817e-45;
    for (int i = 0; i < $(exact_words - 1); ++i) {
        if (negative) {
            const i64 digit = (0xffffffff - part[i]) + one;
            part[i] = digit & 0xffffffff;
            one = digit >> 32;
        }
        sum += double(part[i]) * unit;
        unit *= 4294967296.0;
    }
    return float(negative ? -sum : sum);
}

extern "C" __global__ void __launch_bounds__(256) fk_backward_arrays(const __grid_constant__ Params p) {
    if (is_off(p)) return;
@   for _, entry in ipairs(slots) do
    if (p.array_grad[$(entry[1])].exact) {
        const ArrayGrad &grad = p.array_grad[$(entry[1])]; // $(entry[2].declared)
        for_elements<$(entry[2].rank)>(grad, [&](i64 at) { grad.data[at] = exact_sum(grad.exact + at * $(exact_words)); });
    }
@   end
}
@ end
@ local sink_reads = 0
@ for _, term in ipairs(score.sinks) do sink_reads = sink_reads + #term.reads end
@ if sink_reads > 0 then

// A sink is a column without key and value: its P is exp(sink - lse), its dP is 0, so that d sink = -sum of P * delta over the
// rows of a head. A block a head.
extern "C" __global__ void __launch_bounds__(256) fk_backward_sinks(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const int head = blockIdx.y + gridDim.y * blockIdx.z;
    if (head >= p.batch * p.num_heads_q) return;
    const int entry = quotient(head, p.num_heads_q, p.heads_inverse), h = head - entry * p.num_heads_q;
    const Sequence at = sequence(p, entry);
@   include("piece/score_scalars.cu", { readers = "in_sinks", of = "at", wants = function(name) return name ~= "h" end })
    const i64 rows = padded_start(p, at, h);
@   for _, term in ipairs(score.sinks) do
@     if #term.reads > 0 then
    {
@       if problem.dtype == "fp32" then
        const float sink_score = $(term.value);
@       else
        const float sink_log2 = ($(term.value)) * 1.4426950408889634f;
@       end
        float sum = 0.0f;
@       local weight = "ex2(sink_log2 - p.lse_log2[rows + q])"
@       if problem.dtype == "fp32" then weight = "exp_of_sum(sink_score - p.lse_log2[rows + q], 0.0f, " .. (problem.dropout and "p.dropout_scale)" or "1.0f)") end
        for (int q = threadIdx.x; q < at.seqlen_q; q += 256) sum -= $(weight) * p.delta[rows + q];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(full_warp, sum, step);
        if (threadIdx.x % 32 == 0) {
@       for _, read in ipairs(term.reads) do
            add_gradient(p.array_grad[$(read.slot)], $(read.array)_grad_at(p, $(table.concat(read.index, ", "))), sum * ($(read.derivative)));
@       end
        }
    }
@     end
@   end
}
@ end
