@ -- Brings the scores of the row's sinks into scope: sink1, sink2, ...; they do not depend on the row of queries, but for its head
@ -- where rows are of several: `of`.
@ include("piece/score_scalars.cu", { readers = "in_sinks", of = of, wants = function() return true end })
@ for i, term in ipairs(score.sinks) do
    const float sink$(i) = $(term.value);
@ end
