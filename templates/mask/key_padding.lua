-- Padding behind the keys: of batch entry b, the first length[b] keys are there.
return { params = { { "length", "int[b]" } }, keep = "k < length[b]" }
