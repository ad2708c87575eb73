@ if plan.operands == "fp16" then
// Two floats rounded to nearest even, lo in the low half.
__device__ __forceinline__ u32 pack_fp16(float lo, float hi) {
    u32 r;
@   if arch.mma_k == 16 then
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
@   else
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }" : "=r"(r) : "f"(lo), "f"(hi));
@   end
    return r;
}

@ end
@ if problem.output_dtype == "bf16" or problem.dtype == "fp32" then
// Two floats rounded to nearest even, lo in the low half.
@   if arch.bf16 then
__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
@   else
__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
    const auto rounded = [](float x) {
        const u32 bits = __float_as_uint(x);
        return x == x ? bits + 0x7fffu + (bits >> 16 & 1) : 0x7fff0000u;
    };
    return rounded(lo) >> 16 | (rounded(hi) & 0xffff0000u);
}
@   end

@ end
@ if plan.widens or plan.widens_before then
@   if arch.e4m3 then
// Four e4m3, the first in the lowest byte, as two pairs of halves: nothing is lost.
__device__ __forceinline__ uint2 unpack_e4m3_fp16(u32 v) {
    uint2 r;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(r.x), "=r"(r.y) : "r"(v));
    return r;
}
@     if plan.operands == "bf16" then

// The same as pairs of bf16.
__device__ __forceinline__ uint2 unpack_e4m3_bf16(u32 v) {
    const uint2 halves = unpack_e4m3_fp16(v);
    uint2 r;
    asm("{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, %1; cvt.f32.f16 x, l; cvt.f32.f16 y, h; cvt.rn.bf16x2.f32 %0, y, x; }"
        : "=r"(r.x) : "r"(halves.x));
    asm("{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, %1; cvt.f32.f16 x, l; cvt.f32.f16 y, h; cvt.rn.bf16x2.f32 %0, y, x; }"
        : "=r"(r.y) : "r"(halves.y));
    return r;
}
@     end
@   else
@     local fp16 = plan.operands == "fp16"
@     local pair = fp16 and "f16x2" or "bf16x2"
// Four e4m3, the first in the lowest byte, as two pairs of $(fp16 and "halves" or "bf16"): their bits in the place of these, whose exponents count from
// another number, which a product makes up for. Nothing is lost but NaN, which becomes 480.
__device__ __forceinline__ uint2 unpack_e4m3_$(plan.operands)(u32 v) {
    const auto rebiased = [](u32 bytes) { // the upper ones of 16 bits each
        const u32 moved = (bytes & 0x80008000u) | (bytes >> $(fp16 and "1 & 0x3f803f80u" or "4 & 0x07f007f0u"));
        u32 r;
        asm("fma.rn.$(pair) %0, %1, %2, %3;" : "=r"(r) : "r"(moved), "r"($(fp16 and "0x5c005c00u" or "0x7b807b80u")), "r"(0x80008000u));
        return r;
    };
    u32 low, high;
    asm("prmt.b32 %0, %1, 0, 0x1404;" : "=r"(low) : "r"(v));
    asm("prmt.b32 %0, %1, 0, 0x3424;" : "=r"(high) : "r"(v));
    return make_uint2(rebiased(low), rebiased(high));
}
@   end

@ elseif problem.dtype == "e4m3" then
// Four floats rounded to nearest even, the first in the lowest byte; what exceeds 448 becomes 448.
__device__ __forceinline__ u32 pack_e4m3(float a, float b, float c, float d) {
    u32 r;
    asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
        : "=r"(r) : "f"(a), "f"(b), "f"(c), "f"(d));
    return r;
}

@ end
@ if problem.fast and plan.operands == "e4m3" then
// Two floats rounded to nearest even as halves, lo in the low half; negative ones become 0.
__device__ __forceinline__ u32 pack_positive_fp16(float lo, float hi) {
    u32 r;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// x = 0 in the register where x is: of an accumulator that a constant takes the place of, ptxas serialises the products (C7511).
__device__ __forceinline__ void clear_f32(float &x) { asm volatile("mov.b32 %0, 0;" : "+f"(x)); }

// The larger one of the low halves, and of the high ones. ptxas makes one instruction of two that follow each other.
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) {
    u32 r;
    asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

@ end
@ if plan.family == "wgmma" and walk == "k" then
// acc, a pair of zeros or NaNs, with NaN where w, a pair as well, is not finite.
@   if problem.dtype == "fp16" then
__device__ __forceinline__ u32 spoil_fp16(u32 acc, u32 w) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(0), "r"(acc));
    return r;
}
@   else
__device__ __forceinline__ u32 spoil_bf16(u32 acc, u32 w) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(0), "r"(acc));
    return r;
}
@   end

@ end
@ if plan.family == "wgmma" and walk == "k" then
// Two floats in a pair of registers, and out of it: at that place, not where the compiler would rather have them apart.
__device__ __forceinline__ u64 pair_f32(float lo, float hi) {
    u64 r;
    asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "f"(lo), "f"(hi));
    return r;
}

__device__ __forceinline__ void unpair_f32(float &lo, float &hi, u64 pair) {
    asm volatile("mov.b64 {%0, %1}, %2;" : "=f"(lo), "=f"(hi) : "l"(pair));
}

@ end
// 2^x; 0 at -inf.
__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

@ if plan.family == "wgmma" or #score.terms > 0 then
// log2(x) and 1 / x, to one or two units in the last place.
__device__ __forceinline__ float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

@ end
@ local elements = {}
@ for _, array in ipairs(arrays) do elements[array.element] = true end
@ if plan.family == "wgmma" and walk == "k" then -- a slope's parts, rounded weights
@   elements[problem.dtype] = elements[problem.dtype] or layout.line_bytes > 0 or mask.residual or #mask.lower > 0 or score.by_place
@ end
@ if problem.prescaled then elements.bf16 = true end
@ if elements.fp16 or elements.bf16 then
// Of two elements of 16 bits the lower and the upper one.
@ end
@ if elements.fp16 then
__device__ __forceinline__ float lower_fp16(u32 v) {
    float x;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(v));
    return x;
}
__device__ __forceinline__ float upper_fp16(u32 v) {
    float x;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(v));
    return x;
}
@ end
@ if elements.bf16 then
__device__ __forceinline__ float lower_bf16(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float upper_bf16(u32 v) { return __uint_as_float(v & 0xffff0000u); }
@ end
@ if elements.fp16 or elements.bf16 then

@ end
// x, about which the compiler knows nothing: what follows from it is computed where it is used, and not kept in registers
// that the accumulators need.
template <class T> __device__ __forceinline__ T opaque(T x) {
    if constexpr (sizeof(T) == 8) asm volatile("" : "+l"(x));
    else asm volatile("" : "+r"(x));
    return x;
}
@ if problem.op == "bwd" and problem.dtype ~= "fp32" then

@   if problem.dtype == "fp16" then
__device__ __forceinline__ float2 unpack_fp16(u32 v) {
    float2 r;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(r.x), "=f"(r.y) : "r"(v));
    return r;
}
@   else
__device__ __forceinline__ float2 unpack_bf16(u32 v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
@   end
@ end
