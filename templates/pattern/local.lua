-- Blocks at most `window` from the diagonal.
return { params = { "window" }, block = "abs(i - j) <= window" }
