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
