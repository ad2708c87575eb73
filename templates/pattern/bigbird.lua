-- BigBird (Zaheer et al. 2020, arXiv 2007.14062): `window` blocks to either side of the diagonal, `global` block rows and
-- columns, and `random` blocks a row: the columns are cut into stretches of blocks_k / random, and a row sees one block of
-- each, drawn by (seed, head, row, stretch).
local stretch = "max(blocks_k / max(random, 1), 1)"
return {
  params = { { "window", "int", 1 }, { "global", "int", 1 }, { "random", "int", 3 }, { "seed", "int", 0 } },
  block = "abs(i - j) <= window || global > 0 && min(i, j) < global || random > 0 && j % " .. stretch
    .. " == hash(hash(hash(seed, h), i), j / " .. stretch .. ") % " .. stretch,
}
