-- Sparse Transformer, strided (Child et al. 2019, arXiv 1904.10509): the last `stride` blocks, and every stride-th.
return { params = { "stride" }, block = "abs(i - j) < stride || (i - j) % stride == 0" }
