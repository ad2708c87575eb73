@ -- Brings into scope what the mask reads of a place `at` and `wants` says, as ints (form ""), or as intervals of one point ("_iv").
@ local type, open, close = "int", "", ""
@ if form == "_iv" then type, open, close = "Interval", "iv(", ")" end
@ for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@   if mask.uses[name] and wants(name) then
@     if name ~= "h" or not problem.joins_heads then
    const $(type) $(name .. form) = $(open)at.$(name)$(close);
@     elseif form == "_iv" then -- each row has its own
    const Interval h_iv = {at.h, at.h + p.row_heads - 1};
@     end
@   end
@ end
@ for i, name in ipairs(mask.params) do
    const $(type) $(name .. form) = $(open)p.mask_value[$(i - 1)]$(close);
@   if mask.divides[i] then
    const u32 $(name)_inverse = p.mask_inverse[$(i - 1)];
@   end
@ end
