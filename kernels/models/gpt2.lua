-- GPT-2: causal, head_dim 64, attn_pdrop 0.1 while training; text is generated one token at a time.
local list = {}
for _, dtype in ipairs { "fp16", "bf16" } do
  for _, words in ipairs { "fwd %s d64 causal", "bwd %s d64 causal", "fwd %s d64 causal dropout", "bwd %s d64 causal dropout",
                           "fwd %s d64 seqused_k causal split" } do
    list[#list + 1] = words:format(dtype)
  end
end
return list
