-- Soft cap: scores stay within (-cap, cap). That cap >= 0 makes it a factor of all scores alike; 1 / cap is divided once.
return { params = { { "cap", "float", nonzero = true } }, score = "abs(cap) * tanh(s * (1 / abs(cap)))" }
