-- The attention of common transformers, forward and backward, for training and for serving:
--   flashkiln pack build kernels/common.lua --gpu t4,rtx3090,a100,h200 --skip-unsupported -o attention.fkpack
--   flashkiln pack hits attention.fkpack kernels/models/*.lua --gpu t4,rtx3090,a100,h200
-- (t4 has no bf16). Window sizes, caps and slopes are run-time values: one kernel serves them all.
local list = {}

local function add(words) list[#list + 1] = words end

-- As it is, and trained with dropout on the attention weights.
local function training(words)
  add("fwd " .. words)
  add("bwd " .. words)
end
local function with_dropout(words)
  training(words)
  training(words .. " dropout")
end

for _, dtype in ipairs { "fp16", "bf16" } do
  for _, d in ipairs { 64, 80, 128 } do
    local head = ("%s d%d"):format(dtype, d)
    training(head)
    training(head .. " causal")
  end

  local d64, d128 = dtype .. " d64", dtype .. " d128"
  -- encoders: padded, packed
  for _, rows in ipairs { "", " seqused_k", " packed" } do with_dropout(d64 .. rows) end
  -- decoders of the first generation
  with_dropout(d64 .. " causal")
  training(d64 .. " packed causal")
  -- relative position bias, which is learnt
  for _, mask in ipairs { "", " causal" } do
    add("fwd " .. d64 .. " bias" .. mask)
    add("fwd " .. d64 .. " bias" .. mask .. " dropout")
    add("bwd " .. d64 .. " grad=bias bias" .. mask)
    add("bwd " .. d64 .. " grad=bias bias" .. mask .. " dropout")
  end
  -- decoders with grouped heads, whole, packed, and with a sliding window
  for _, head in ipairs { d64 .. " gqa", d128 .. " gqa" } do
    training(head .. " causal")
    training(head .. " packed causal")
  end
  training(d128 .. " packed causal")
  training(d128 .. " gqa window(4095,0)")
  -- few queries against many keys: generating text, from a cache in one piece, or in pages
  for _, head in ipairs { d64, d128, d64 .. " gqa", d128 .. " gqa" } do
    add("fwd " .. head .. " seqused_k causal split")
    add("fwd " .. head .. " seqused_k causal split paged")
  end
  add("fwd " .. d128 .. " gqa seqused_k window(4095,0) split paged")
  for _, head in ipairs { d64, d128 } do -- a cache of 8 bits
    add("fwd kv_e4m3 " .. head .. " gqa seqused_k causal split")
    add("fwd kv_e4m3 " .. head .. " gqa seqused_k causal split paged")
  end
end

-- Some are said twice above, where two reasons ask for them.
local seen, unique = {}, {}
for _, spelling in ipairs(list) do
  if not seen[spelling] then unique[#unique + 1] = spelling end
  seen[spelling] = true
end
return unique
