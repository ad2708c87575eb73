-- ALiBi (Press et al. 2021, arXiv 2108.12409): a penalty that grows with the distance, one slope for each head.
return { params = { { "slope", "float[h]" } }, score = "s - slope[h] * abs(q + diag - k)" }
