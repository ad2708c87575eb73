-- Padding before the keys: of batch entry b, the keys from first[b] on are there.
return { params = { { "first", "int[b]" } }, keep = "k >= first[b]" }
