-- ViT: all patches see each other; head_dim 64, in ViT-H 80; no dropout on attention.
local list = {}
for _, dtype in ipairs { "fp16", "bf16" } do
  for _, d in ipairs { 64, 80 } do
    for _, op in ipairs { "fwd", "bwd" } do list[#list + 1] = ("%s %s d%d"):format(op, dtype, d) end
  end
end
return list
