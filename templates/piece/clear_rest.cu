// Packed: rows of no sequence, which lie before the first one and behind the last, become zeros. Where there are none, as a rule, nothing
// is written, which is why results are not cleared as a whole before.$(plan.family == "wgmma" and " It starts beside the kernel before, and ends after it." or "")
@ local function end_last()
@   if plan.family == "wgmma" then
    if (blockIdx.x == 0) wait_for_previous();
@   end
@ end
struct Rest {
    int begin, end, count; // rows before the first sequence; where the last one ends; rows of none

    __device__ __forceinline__ Rest(const int *cu_seqlens, int batch, int total) : begin(cu_seqlens[0]), end(cu_seqlens[batch]) {
        count = begin + max(total - end, 0);
    }
    __device__ __forceinline__ int row(int i) const { return i < begin ? i : end + i - begin; }
};

template <class T> __device__ __forceinline__ void clear_rows(T *x, i64 row_stride, i64 head_stride, int heads, int width, const Rest &rest) {
    constexpr int elements = 16 / sizeof(T);
    const int chunks = width / elements, in_row = heads * chunks;
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; i < i64(rest.count) * in_row; i += gridDim.x * 256) {
        const int row = int(i / in_row), in = int(i - i64(row) * in_row), head = in / chunks;
        st_global_v4(x + rest.row(row) * row_stride + head * head_stride + (in - head * chunks) * elements, make_uint4(0, 0, 0, 0));
    }
}

@ if problem.op == "fwd" then
extern "C" __global__ void __launch_bounds__(256) fk_forward_rest(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const Rest rest(p.cu_seqlens_q, p.batch, p.total_q);
    clear_rows(p.o, p.o_row_stride, p.o_head_stride, p.num_heads_q, head_dim_v, rest);
    for (i64 i = i64(blockIdx.x) * 256 + threadIdx.x; p.lse && i < i64(rest.count) * p.num_heads_q; i += gridDim.x * 256) {
        const int head = int(i / rest.count), row = int(i - i64(head) * rest.count);
        p.lse[i64(head) * p.total_q + rest.row(row)] = NEG_INF;
    }
@   end_last()
}
@ else
extern "C" __global__ void __launch_bounds__(256) fk_backward_rest(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const Rest queries(p.cu_seqlens_q, p.batch, p.total_q), keys(p.cu_seqlens_k, p.batch, p.total_k);
    clear_rows(p.dq, p.dq_row_stride, p.dq_head_stride, p.num_heads_q, head_dim, queries);
    clear_rows(p.dk, p.dk_row_stride, p.dk_head_stride, p.num_heads_kv, head_dim, keys);
    clear_rows(p.dv, p.dv_row_stride, p.dv_head_stride, p.num_heads_kv, head_dim_v, keys);
@   end_last()
}
@ end
