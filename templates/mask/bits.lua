-- Any mask, packed: bit k % 32 of word k / 32 says whether the query sees the key.
return { params = { { "bits", "int[b][h][q][]" } }, keep = "(bits[b][h][q][k >> 5] >> (k & 31) & 1) == 1" }
