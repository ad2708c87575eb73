-- Additive bias of any strides; a stride of 0 repeats it over batch, heads, queries or keys.
return { params = { { "bias", "float[b][h][q][k]" } }, score = "s + bias[b][h][q][k]" }
