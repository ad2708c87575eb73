-- Soft cap: scores stay within (-cap, cap).
-- 1 / cap is the same for all pairs, and divided once.
return { params = { { "cap", "float" } }, score = "cap * tanh(s * (1 / cap))" }
