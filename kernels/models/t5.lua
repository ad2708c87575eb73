-- T5: a learnt relative position bias in encoder and decoder, none between them; head_dim 64, dropout 0.1.
local list = {}
for _, dtype in ipairs { "fp16", "bf16" } do
  for _, dropout in ipairs { "", " dropout" } do
    for _, words in ipairs { "fwd %s d64 bias%s", "bwd %s d64 grad=bias bias%s", "fwd %s d64 bias causal%s",
                             "bwd %s d64 grad=bias bias causal%s", "fwd %s d64%s", "bwd %s d64%s" } do
      list[#list + 1] = words:format(dtype, dropout)
    end
  end
end
return list
