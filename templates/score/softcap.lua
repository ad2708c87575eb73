-- Soft cap: scores stay within (-cap, cap).
return { params = { { "cap", "float" } }, score = "cap * tanh(s / cap)" }
