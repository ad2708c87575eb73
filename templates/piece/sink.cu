@ -- Brings the scores of the row's sinks into scope: sink1, sink2, ...; they do not depend on the row of queries, but for its head
@ -- where rows are of several: `of`.
@ for _, name in ipairs({ "b", "h", "seqlen_q", "seqlen_k", "diag" }) do
@   if score.sink_uses[name] then
    const int $(name) = $(of).$(name);
@   end
@ end
@ for i, param in ipairs(score.params) do
@   if param.in_sinks then
    const $(param.type) $(param.name) = $(param.type == "float" and "__int_as_float" or "")(p.score_value[$(i - 1)]);
@   end
@ end
@ for i, term in ipairs(score.sinks) do
    const float sink$(i) = $(term.value);
@ end
