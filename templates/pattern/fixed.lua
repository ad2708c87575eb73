-- Sparse Transformer, fixed (Child et al. 2019, arXiv 1904.10509): stretches of `stride` blocks; a row sees its own stretch,
-- and of every stretch the last `summary` blocks.
return {
  params = { { "stride", "int", nil, nil, 1 }, { "summary", "int", 1, nil, 0 } },
  block = "i / stride == j / stride || j % stride >= stride - summary",
}
