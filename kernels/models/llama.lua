-- Llama: causal, head_dim 128 (64 in the 1B of version 3.2), grouped heads from version 2 70B on; trained whole or packed, served
-- from a cache in pages; Mistral's sliding window of 4,096.
local list = {}
for _, dtype in ipairs { "fp16", "bf16" } do
  for _, head in ipairs { "d128", "d128 gqa", "d64 gqa" } do
    for _, words in ipairs { "fwd %s %s causal", "bwd %s %s causal", "fwd %s %s packed causal", "bwd %s %s packed causal",
                             "fwd %s %s seqused_k causal split", "fwd %s %s seqused_k causal split paged" } do
      list[#list + 1] = words:format(dtype, head)
    end
  end
  for _, words in ipairs { "fwd %s d128 gqa window(4095,0)", "bwd %s d128 gqa window(4095,0)",
                           "fwd %s d128 gqa seqused_k window(4095,0) split paged" } do
    list[#list + 1] = words:format(dtype)
  end
end
return list
