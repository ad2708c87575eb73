-- Blocks at most `window` from the diagonal.
return { params = { { "window", "int", nil, nil, 0 } }, block = "abs(i - j) <= window" }
