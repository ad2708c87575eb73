@ -- Brings into scope what the score's terms ("in_terms") or sinks ("in_sinks") read and `wants` says, of the place `of`.
@ local uses = readers == "in_terms" and score.uses or score.sink_uses
@ for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@   if uses[name] and wants(name) then
    const int $(name) = $(of).$(name);
@   end
@ end
@ for i, param in ipairs(score.params) do
@   if param[readers] and wants(param.name) then
    const $(param.type) $(param.name) = $(param.type == "float" and "__int_as_float" or "")(p.score_value[$(i - 1)]);
@   end
@ end
