-- Sparse Transformer, strided (Child et al. 2019, arXiv 1904.10509): the last `stride` blocks, and every stride-th.
return { params = { { "stride", "int", nil, nil, 1 } }, block = "abs(i - j) < stride || (i - j) % stride == 0" }
