@ local function indices(type, names)
@   local list = {}
@   for d = 1, #names do list[d] = type .. " " .. names[d] end
@   return table.concat(list, ", ")
@ end
// Gradients of declared arrays: name_grad_at is where that of an element lies, an index outside a dimension its nearest one.
@ for slot, array in ipairs(arrays) do
@   if array.grad then
@     local names, offset = {}, {}
@     for d = 1, array.rank do
@       names[d] = "i" .. (d - 1)
@       offset[d] = names[d] .. " * p.array_grad[" .. (slot - 1) .. "].stride[" .. (d - 1) .. "]"
@     end
__device__ __forceinline__ i64 $(array.name)_grad_at(const Params &p, $(indices("int", names))) {
@     for d, clamp in ipairs(array.clamp) do
@       if clamp then
    $(names[d]) = max(min($(names[d]), p.array[$(slot - 1)].size[$(d - 1)] - 1), 0);
@       end
@     end
    return $(table.concat(offset, " + "));
}
@   end
@ end

@ if problem.deterministic then
// Sums that do not depend on the order: a float is a whole multiple of 2^-149 below 2^277, and integers add exactly. Word i
// counts multiples of 2^(32 i - 149), so that it holds 2^31 of the parts below; the last word counts what is not finite.
@ end
__device__ __forceinline__ void add_gradient(const ArrayGrad &grad, i64 at, float x) {
    if (x == 0.0f) return; // most of what a mask leaves over
@ if problem.slices > 1 and not plan.halved then
    if (blockIdx.x % slices != 0) return; // the others of a tile have the same; fk_backward_sinks counts in y and z
@ end
@ if problem.deterministic then
    const u32 bits = __float_as_uint(x), exponent = bits >> 23 & 255, low = exponent == 0 ? 0 : exponent - 1;
    u64 *words = grad.exact + at * $(exact_words);
    if (exponent == 255) {
        red_add_u64(words + $(exact_words - 1), 1);
        return;
    }
    const u64 magnitude = u64((bits & 0x7fffff) | (exponent == 0 ? 0 : 0x800000)) << low % 32;
    const u64 sign = bits >> 31 ? ~u64(0) : 0; // -y = (y ^ sign) - sign
    red_add_u64(words + low / 32, ((magnitude & 0xffffffff) ^ sign) - sign);
    if (magnitude >> 32) red_add_u64(words + low / 32 + 1, ((magnitude >> 32) ^ sign) - sign);
@ else
    red_add_f32(grad.data + at, x);
@ end
}
@ if plan.family == "wgmma" and walk == "q" and not problem.deterministic then

// Whether keys that are neighbours have elements that are, in rows aligned to 16 bytes.
__device__ __forceinline__ bool has_rows(const ArrayGrad &grad, int rank) {
    i64 parts = u64(grad.data) / 4;
#pragma unroll
    for (int d = 0; d < rank - 1; ++d) parts |= grad.stride[d];
    return grad.stride[rank - 1] == 1 && parts % 4 == 0;
}

// Of a block of 8 queries x 16 keys a lane has queries 2 (lane % 4) + 0..1 of keys lane / 4 and 8 more; transposed, query block_row of four
// neighbouring keys from block_col on: an instruction that adds 16 bytes a lane takes a quarter of the time of four that add 4.
__device__ __forceinline__ int block_row(int lane) { return 2 * (lane % 4) + lane / 4 % 2; }
__device__ __forceinline__ int block_col(int lane) { return lane / 8 % 2 * 8 + lane / 16 * 4; }
__device__ __forceinline__ float4 transpose_block(const float (&x)[2][2], int lane) {
    float pairs[2][2], four[2][2]; // [key % 2][key / 8], [key % 2][key / 2 % 2]
    const bool odd = lane & 4, high = lane & 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float got = __shfl_xor_sync(full_warp, odd ? x[0][r] : x[1][r], 4);
        pairs[0][r] = odd ? got : x[0][r];
        pairs[1][r] = odd ? x[1][r] : got;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const float got = __shfl_xor_sync(full_warp, high ? pairs[j][0] : pairs[j][1], 8);
        four[j][0] = high ? got : pairs[j][0];
        four[j][1] = high ? pairs[j][1] : got;
    }
    return make_float4(four[0][0], four[1][0], four[0][1], four[1][1]);
}

// Adds to the elements of `count` neighbours along dimension `d`, or writes them where nobody else does.
__device__ __forceinline__ void add_row(const ArrayGrad &grad, i64 at, int d, float4 x, int count, bool aligned) {
    const float four[4] = {x.x, x.y, x.z, x.w};
    if (aligned && count == 4) {
        if (grad.once)
            st_global_v4(grad.data + at, make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)));
        else if (x.x != 0.0f || x.y != 0.0f || x.z != 0.0f || x.w != 0.0f) // most of what a mask leaves over
            red_add_f32x4(grad.data + at, four);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i >= count) continue;
        if (grad.once)
            grad.data[at + i * grad.stride[d]] = four[i];
        else
            add_gradient(grad, at + i * grad.stride[d], four[i]);
    }
}
@ end
