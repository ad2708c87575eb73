-- Flat block butterfly (Dao et al. 2021, arXiv 2112.00029): block row i and column j are equal or differ in one bit, of
-- strides below `stride` (0: all); with `global` block rows and columns that are full, Pixelated Butterfly's low-rank part.
return {
  params = { { "stride", "int", 0, nil, 0 }, { "global", "int", 0, nil, 0 } },
  block = "popcount(i ^ j) <= 1 && (stride == 0 || (i ^ j) < stride) || global > 0 && min(i, j) < global",
}
