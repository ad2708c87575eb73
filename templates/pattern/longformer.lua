-- Longformer (Beltagy et al. 2020, arXiv 2004.05150): `window` blocks to either side, every dilation-th, and `global` block
-- rows and columns.
return {
  params = { { "window", "int", nil, nil, 0 }, { "dilation", "int", 1, nil, 1 }, { "global", "int", 0, nil, 0 } },
  block = "abs(i - j) <= min(window, 1073741824 / max(dilation, 1)) * dilation && (i - j) % dilation == 0 || global > 0 && min(i, j) < global",
}
