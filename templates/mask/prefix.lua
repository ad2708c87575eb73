-- Prefix-LM: causal, but every query sees the first prefix[b] keys.
return { params = { { "prefix", "int[b]" } }, keep = "k <= max(q + diag, max(prefix[b], 0) - 1)" }
