// Before: the rows of $(staged.array.name) once more, so that copies by TMA can read them where they begin anywhere (runtime/aligned.c). What repeats
// is copied once.
extern "C" __global__ void __launch_bounds__(256) fk_align(const __grid_constant__ Params p) {
    if (is_off(p)) return;
    const Array &from = p.array[$(staged.slot)];
    constexpr int bytes = $(staged.array.bytes), last = $(staged.array.rank - 1), chunk = 4 / bytes; // elements of a word
    constexpr int batch = 2 * bytes; // words of a lane that are on their way at once
    const int lane = threadIdx.x % 32, warps = gridDim.x * 8, num_keys = from.size[last], stride = int(from.stride[last]) * bytes;
    int num_rows = 1;
    for (int d = 0; d < last; ++d) num_rows *= from.stride[d] ? from.size[d] : 1;
    for (int row = blockIdx.x * 8 + threadIdx.x / 32; row < num_rows; row += warps) {
        const char *start = static_cast<const char *>(from.data);
        for (int d = last - 1, rest = row; d >= 0; --d) {
            if (!from.stride[d]) continue;
            start += rest % from.size[d] * from.stride[d] * bytes;
            rest /= from.size[d];
        }
        u32 *to = reinterpret_cast<u32 *>(static_cast<char *>(from.copy) + i64(row) * from.copy_pitch * bytes);
        for (int first = lane; first * chunk < num_keys; first += 32 * batch) {
            u32 words[batch];
#pragma unroll
            for (int i = 0; i < batch; ++i) {
                const int k = min(chunk * (first + 32 * i), num_keys - 1);
@ if staged.array.bytes == 2 then
                words[i] = ld_global_half_at(start, k, stride) | ld_global_half_at(start, min(k + 1, num_keys - 1), stride) << 16;
@ else
                words[i] = ld_global_at(start, k, stride);
@ end
            }
#pragma unroll
            for (int i = 0; i < batch; ++i)
                if (chunk * (first + 32 * i) < num_keys) to[first + 32 * i] = words[i];
        }
    }
}
