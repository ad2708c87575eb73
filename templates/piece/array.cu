@ -- Only what may lie outside its dimension is clamped; q, k, b and h along their own are kept inside by who reads.
@ local function indices(type, names)
@   local list = {}
@   for d = 1, #names do list[d] = type .. " " .. names[d] end
@   return table.concat(list, ", ")
@ end
// Declared arrays: name_at reads an element, an index outside a dimension its nearest one.
@ if #mask.upper + #mask.lower > 0 or mask.residual then
// name_iv_at bounds the elements of an int array at indices within intervals.
__device__ __forceinline__ int clamp_index(i64 i, int size) { return int(max(min(i, i64(size) - 1), i64(0))); }
@ end
@ for slot, array in ipairs(arrays) do
@   local a, names = "p.array[" .. (slot - 1) .. "]", {}
@   for d = 1, array.rank do names[d] = "i" .. (d - 1) end
// $(array.declared)
__device__ __forceinline__ $(array.type) $(array.name)_at(const Params &p, $(indices("int", names))) {
@   for d, clamp in ipairs(array.clamp) do
@     if clamp then
    $(names[d]) = max(min($(names[d]), $(a).size[$(d - 1)] - 1), 0);
@     end
@   end
@   local row = "(const " .. (array.bytes == 2 and "u16" or array.type) .. " *)" .. a .. ".data" -- of the last dimension
@   for d = 1, array.rank - 1 do row = row .. " + " .. names[d] .. " * " .. a .. ".stride[" .. (d - 1) .. "]" end
    return $(array.value)($(array.bytes == 2 and "ld_global_half_at" or "ld_global_at")($(row), $(names[array.rank]), int($(a).stride[$(array.rank - 1)]) * $(array.bytes)));
}
@   if array.staged then
@     local at_row = table.move(names, 1, array.rank - 1, 1, {})
// Where the last index is 0.
__device__ __forceinline__ const char *$(array.name)_row_at(const Params &p$(#at_row > 0 and ", " .. indices("int", at_row) or "")) { return (const char *)($(row)); }
@   end
@   if array.key_pairs and plan.family == "wgmma" and walk == "k" then
// The elements at the last index and behind it, as bits: where name_pairs.
__device__ __forceinline__ $(array.bytes == 2 and "u32" or "uint2") $(array.name)_pair_at(const Params &p, $(indices("int", names))) {
    return $(array.bytes == 2 and "ld_global_word_at" or "ld_global_pair_at")($(row), $(names[array.rank]));
}
@     names[array.rank] = nil
// Where the last index is 0.
__device__ __forceinline__ const char *$(array.name)_row_at(const Params &p$(#names > 0 and ", " .. indices("int", names) or "")) { return (const char *)($(row)); }
@     names[array.rank] = "i" .. (array.rank - 1)
@   end
@   if array.key_pairs and plan.family == "wgmma" and walk == "k" or array.staged and array.bytes == 2 then
// Whether neighbours at an even last index may be read together.
__device__ __forceinline__ bool $(array.name)_pairs(const Params &p) {
@     local odd = { a .. ".stride[" .. (array.rank - 1) .. "] ^ 1", "i64(u64(" .. a .. ".data) / " .. array.bytes .. " & 1)" }
@     for d = 1, array.rank - 1 do odd[#odd + 1] = a .. ".stride[" .. (d - 1) .. "] & 1" end
@     local any = "(" .. table.concat(odd, ") | (") .. ")"
    return ($(any)) == 0;
}
@   end
@   if array.type == "int" and (#mask.upper + #mask.lower > 0 or mask.residual) then
__device__ __forceinline__ Interval $(array.name)_iv_at(const Params &p, $(indices("Interval", names))) {
@     local same, low, high = {}, {}, {}
@     for d, name in ipairs(names) do
    const int $(name)_lo = clamp_index($(name).lo, $(a).size[$(d - 1)]), $(name)_hi = clamp_index($(name).hi, $(a).size[$(d - 1)]);
@       if not (array.sorted and d == array.rank) then same[#same + 1] = name .. "_lo == " .. name .. "_hi" end
@       low[d] = name .. "_lo"
@       high[d] = d == array.rank and name .. "_hi" or name .. "_lo"
@     end
@     if array.sorted and #same == 0 then
    return {$(array.name)_at(p, $(low[1])), $(array.name)_at(p, $(high[1]))};
@     elseif array.sorted then
    if (!($(table.concat(same, " && ")))) return iv_all();
    return {$(array.name)_at(p, $(table.concat(low, ", "))), $(array.name)_at(p, $(table.concat(high, ", ")))};
@     else
    return $(table.concat(same, " && ")) ? iv($(array.name)_at(p, $(table.concat(low, ", ")))) : iv_all();
@     end
}
@   end
@ end
