// Eight neighbours, aligned to 16 bytes, to global memory.
__device__ __forceinline__ void store_elements($(problem.op == "fwd" and "Output" or "Element") *to, const float (&x)[8]) {
    u32 bits[32 / chunk_elements];
#pragma unroll
@ if problem.dtype == "fp32" then
    for (int i = 0; i < 8; ++i) bits[i] = __float_as_uint(x[i]);
    st_global_v4(to + 4, make_uint4(bits[4], bits[5], bits[6], bits[7]));
@ else
    for (int i = 0; i < 4; ++i) bits[i] = pack_$(problem.output_dtype)(x[2 * i], x[2 * i + 1]);
@ end
    st_global_v4(to, make_uint4(bits[0], bits[1], bits[2], bits[3]));
}
@ if problem.op == "bwd" then

__device__ __forceinline__ void load_elements(float (&x)[8], const Element *from) {
    const uint4 v = ld_global_v4(from);
    const u32 bits[4] = {v.x, v.y, v.z, v.w};
@   if problem.dtype == "fp32" then
    const uint4 w = ld_global_v4(from + 4);
    const u32 more[4] = {w.x, w.y, w.z, w.w};
@   end
#pragma unroll
    for (int i = 0; i < 4; ++i) {
@   if problem.dtype == "fp32" then
        x[i] = __uint_as_float(bits[i]);
        x[i + 4] = __uint_as_float(more[i]);
@   else
        const float2 pair = unpack_$(problem.dtype)(bits[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
@   end
    }
}
@ end
