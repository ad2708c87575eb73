@ -- What terms compute with, besides arrays. texts.device: a term's text with the functions below, which are as exact as scores are
@ -- where they are rounded to 16 bits: tanh as score_tanh, 1 / x as rcp(x).
@ function texts.device(text)
@   if problem.dtype ~= "fp32" then text = text:gsub("%f[%w.]1%.0f / ([%w_]+%b())", "rcp(%1)"):gsub("%f[%w.]1%.0f / ([%a_][%w_]*)%f[^%w_(]", "rcp(%1)") end
@   return (text:gsub("%f[%w_]tanhf%(", "score_tanh("))
@ end
@ local calls_tanh = false -- and texts.caps: a tile's arguments are looked at first
@ for _, term in ipairs(score.terms) do calls_tanh = calls_tanh or term.value:find("tanhf(", 1, true) end
constexpr float log2_e = 1.4426950408889634f;

// A float with a factor that is the same for many: what terms multiply it by goes to the factor, once for all of them.
struct Scaled {
    float x, factor;
    __device__ __forceinline__ operator float() const { return x * factor; }
};
template <class T> __device__ __forceinline__ Scaled operator*(Scaled a, T b) { return {a.x, a.factor * b}; }
template <class T> __device__ __forceinline__ Scaled operator*(T a, Scaled b) { return {b.x, a * b.factor}; }
template <class T> __device__ __forceinline__ Scaled operator/(Scaled a, T b) { return {a.x, a.factor / b}; }
__device__ __forceinline__ float operator*(Scaled a, Scaled b) { return float(a) * float(b); }
__device__ __forceinline__ float operator/(Scaled a, Scaled b) { return float(a) / float(b); }
@ if calls_tanh then

// tanh(x), off by some 2^-23: a score may be as large as it likes, and lse is to be exact.
@   if problem.dtype ~= "fp32" then
__device__ __forceinline__ float score_tanh(Scaled x) { return fmaf(-2.0f, rcp(1.0f + ex2(x * (2.0f * log2_e))), 1.0f); }
@   end
__device__ __forceinline__ float score_tanh(float x) {
@   if problem.dtype == "fp32" then
    return tanhf(x);
@   else
    return score_tanh(Scaled{x, 1.0f});
@   end
}
@ end
@ if texts.caps then

// The same of x = y tanh_unit, where |y| < 2: to 2^-18, without the unit of exponentials (the minimax polynomial, from one to
// the seventh power).
constexpr float tanh_unit = 0.3125f;
__device__ __forceinline__ float small_tanh(float y) {
    const float u = y * y;
    return y * fmaf(u, fmaf(u, fmaf(u, -1.165012243e-5f, 3.878909112e-4f), -1.016517078e-2f), 3.124990906e-1f);
}
@   if texts.weighs then

__device__ __forceinline__ Scaled as_scaled(Scaled x) { return x; }
__device__ __forceinline__ Scaled as_scaled(float x) { return {x, 1.0f}; }

// unit tanh(factor x) where |factor x| < 0.35, as exact, from one to the fifth power: both factors are in the coefficients.
struct ShortTanh {
    float c1, c3, c5;
    static __device__ __forceinline__ float most(float factor) { // where the factor is out of bounds, its powers might be, too
        const float size = fabsf(factor);
        return size > 0x1p-20f && size < 0x1p20f ? 0.35f * rcp(size) : 0.0f;
    }
    __device__ __forceinline__ ShortTanh(float factor, float unit) {
        factor = __int_as_float(opaque(__float_as_int(factor))); // a few operations for each tile, and no registers between them
        const float square = factor * factor, cube = factor * square * unit;
        c1 = 9.999971308e-1f * factor * unit;
        c3 = -3.329095410e-1f * cube;
        c5 = 1.239503125e-1f * cube * square;
    }
    __device__ __forceinline__ float over(float x) const { // divided by x
        const float u = x * x;
        return fmaf(u, fmaf(u, c5, c3), c1);
    }
    __device__ __forceinline__ float operator()(float x) const { return x * over(x); }
};
@   end
@ end
