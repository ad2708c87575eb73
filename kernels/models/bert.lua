-- BERT: sees both ways, head_dim 64, attention_probs_dropout_prob 0.1; batches are padded (seqused_k), packed, or of one length.
local list = {}
for _, dtype in ipairs { "fp16", "bf16" } do
  for _, rows in ipairs { "", " seqused_k", " packed" } do
    for _, op in ipairs { "fwd", "bwd" } do
      for _, dropout in ipairs { "", " dropout" } do
        list[#list + 1] = ("%s %s d64%s%s"):format(op, dtype, rows, dropout)
      end
    end
  end
end
return list
