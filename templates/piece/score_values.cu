@ -- What terms compute with, besides arrays. texts.device: a term's text with the functions below, which are as exact as scores are
@ -- where they are rounded to 16 bits: tanh as score_tanh, 1 / x as rcp(x).
@ function texts.device(text)
@   for _, divisor in ipairs(problem.dtype ~= "fp32" and { "([%w_]+%b())", "([%a_][%w_]*)%f[^%w_(]" } or {}) do
@     text = text:gsub("()%f[%w.]1%.0f / " .. divisor, function(at, x) -- but of x / 1 / y
@       if not text:sub(1, at - 1):find("/ $") then return "rcp(" .. x .. ")" end
@     end)
@   end
@   return (text:gsub("%f[%w_]tanhf%(", texts.large and "large_tanh(" or "score_tanh("))
@ end
@ -- texts.first: the first term. If it is a tanh, and else free of s, texts.caps has its parts: arguments are small as a rule, and a
@ -- tile's are looked at. texts.small: in front of the scores; texts.at_once: scores go on at one go where they are.
@ if texts.first and problem.dtype ~= "fp32" then
@   local before, argument, behind = texts.first:match("^(.-)%f[%w_]tanhf(%b())(.*)$")
@   local caps = argument and not (before .. behind):find("%f[%w_]s%f[^%w_]")
@   local known = { s = true, fabsf = true }
@   for _, param in ipairs(score.params) do known[param.name] = true end
@   for name in (argument or ""):gmatch("%f[%w_.][%a_][%w_]*") do caps = caps and known[name] end
@   local _, reads_of_s = (argument or ""):gsub("%f[%w_]s%f[^%w_]", "") -- of more than one the factor at s = 0 tells nothing
@   caps = caps and reads_of_s == 1
@   local bare = caps and #score.terms == 1 and (before .. behind):find("^[()%s]*$") -- nothing but a tanh
@   texts.caps = caps and { before = before, argument = argument, behind = behind, bare = bare }
@ end
@ local calls_tanh = false
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

// tanh(x), off by some 2^-23: a score may be as large as it likes, and lse is to be exact. score_tanh: of any x, where 2^-23 would be a large
// share of it off by x^3 / 3.
@   if problem.dtype ~= "fp32" then
__device__ __forceinline__ float large_tanh(Scaled x) { return fmaf(-2.0f, rcp(1.0f + ex2(x * (2.0f * log2_e))), 1.0f); }
__device__ __forceinline__ float large_tanh(float x) { return large_tanh(Scaled{x, 1.0f}); }
__device__ __forceinline__ float score_tanh(Scaled x) {
    const float y = x;
    return fabsf(y) < 0x1p-7f ? y : large_tanh(x);
}
@   end
__device__ __forceinline__ float score_tanh(float x) {
@   if problem.dtype == "fp32" then
    return tanhf(x);
@   else
    return score_tanh(Scaled{x, 1.0f});
@   end
}
@ end
@ if texts.caps and texts.small then

// The same of x = y tanh_unit, where |y| < 2: to 2^-18, without the unit of exponentials (the minimax polynomial, from one to
// the seventh power).
constexpr float tanh_unit = 0.3125f;
__device__ __forceinline__ float small_tanh(float y) {
    const float u = y * y;
    return y * fmaf(u, fmaf(u, fmaf(u, -1.165012243e-5f, 3.878909112e-4f), -1.016517078e-2f), 3.124990906e-1f);
}
@ end
@ if texts.caps and texts.at_once then

// What a raw score is multiplied by to be the argument of the first term's tanh; infinite where it is not just multiplied.
__device__ __forceinline__ float factor_of(Scaled x) { return x.factor; }
__device__ __forceinline__ float factor_of(float) { return __int_as_float(0x7f800000); }
__device__ __forceinline__ float tanh_factor(const Params &p, const Where &at) {
@   for i, param in ipairs(score.params) do
@     if texts.caps.argument:find("%f[%w_]" .. param.name .. "%f[^%w_]") then
    const $(param.type) $(param.name) = $(param.type == "float" and "__int_as_float" or "")(p.score_value[$(i - 1)]);
@     end
@   end
    const Scaled s = {0.0f, $(texts.raw_scale)};
    return factor_of($(texts.device(texts.caps.argument)));
}

// The largest of the lane's numbers in atoms `first` to `last` - 1, without sign; SEEN: of those that are not masked. As integers floats
// without sign have the same order, and of three integers one instruction takes the largest.
template <bool SEEN = false> __device__ __forceinline__ float largest(const float (&x)[m_atoms][s_atoms][4], int first = 0, int last = s_atoms) {
    const auto size = [](float x) { return SEEN && x == NEG_INF ? 0.0f : fabsf(x); };
    int most[2] = {};
#pragma unroll
    for (int m = 0; m < m_atoms; ++m)
#pragma unroll
        for (int i = first; i < last; ++i) {
            const int larger = __float_as_int(fmaxf(size(x[m][i][0]), size(x[m][i][1])));
            most[i % 2] = max(most[i % 2], max(larger, __float_as_int(fmaxf(size(x[m][i][2]), size(x[m][i][3])))));
        }
    return __int_as_float(max(most[0], most[1]));
}

@ -- Weights of bf16 are rounded by up to 2^-9, and a line, off by 2^-14 of a score of at most 12.5 (2^-10), is as good; outputs of fp16
@ -- would be a fifth worse, and the backward pass has nothing for LARGER ones.
@ local short = problem.op == "fwd" and problem.dtype == "bf16" and texts.caps.bare and { limit = "0.25f", score = "12.5f", "9.999373e-1f", "-3.252054e-1f" }
@   or { limit = "0.35f", "9.999971e-1f", "-3.329095410e-1f", "1.239503125e-1f" }
@ local larger = { "9.999971e-1f", "-3.330923161e-1f", "1.301545920e-1f", "-4.002951586e-2f" }
// unit tanh(factor x) as x over(x), without the unit of exponentials: minimax polynomials.
template <int TERMS> struct AtOnce {
    float c[TERMS];

    __device__ __forceinline__ float over(float x) const {
        const float square = x * x;
        float sum = c[TERMS - 1];
#pragma unroll
        for (int i = TERMS - 2; i >= 0; --i) sum = fmaf(square, sum, c[i]);
        return sum;
    }
    __device__ __forceinline__ float operator()(float x) const { return x * over(x); }
};

// Of small arguments, $(#short == 2 and "a line to 2^-14" or "to 2^-18").
struct ShortTanh : AtOnce<$(#short)> {
    float limit; // of |x|

    // Where the factor's powers might leave a float's range, it serves nothing.
    __device__ __forceinline__ ShortTanh(float factor, float unit) {
        const float size = fabsf(factor);
        limit = $(short.limit) * rcp(size);
@ if short.score then
        limit = fminf(limit, $(short.score) * log2_e * rcp(fabsf(unit * factor)));
@ end
        if (!(size > 0x1p-60f && size < 0x1p16f)) limit = 0.0f;
        unit *= factor;
@ for i, c in ipairs(short) do
        c[$(i - 1)] = unit * $(c);
@   if i < #short then
        unit *= factor * factor;
@   end
@ end
    }
    __device__ __forceinline__ void hold() { // the compiler does not compute it again
#pragma unroll
        for (float &x : c) x = __int_as_float(opaque(__float_as_int(x)));
        limit = __int_as_float(opaque(__float_as_int(limit)));
    }
    // Does it serve all of the warp's numbers, of which `most` is the lane's largest?
    __device__ __forceinline__ bool serves(float most) const { return !__any_sync(full_warp, !(most < limit)); }
};
@ if problem.op == "fwd" then

// Of arguments below 0.625, to 2^-18, where a ShortTanh serves something.
struct LargerTanh : AtOnce<$(#larger)> {
    float square; // of the factor

    __device__ __forceinline__ LargerTanh(const ShortTanh &tanh) {
        square = tanh.c[1] * rcp(tanh.c[0]) * ($(short[1]) / $(short[2]));
        c[0] = tanh.c[0] * ($(larger[1]) / $(short[1])), c[1] = tanh.c[1] * ($(larger[2]) / $(short[2]));
        c[2] = c[1] * square * ($(larger[3]) / $(larger[2])), c[3] = c[2] * square * ($(larger[4]) / $(larger[3]));
    }
    __device__ __forceinline__ bool serves(float most) const { return !__any_sync(full_warp, !(most * most * square < 0.625f * 0.625f)); }
};
@ end
@ end
