-- BigBird (Zaheer et al. 2020, arXiv 2007.14062): `window` blocks to either side of the diagonal, `global` block rows and
-- columns, and `random` blocks a row, drawn by (seed, head, row) and with replacement.
local most = 8
local block = "abs(i - j) <= window || global > 0 && min(i, j) < global"
for n = 0, most - 1 do
  block = block .. " || random > " .. n .. " && j == (hash(hash(hash(seed, h), i), " .. n .. ") & 32767) * blocks_k >> 15"
end
return {
  params = { { "window", "int", 1, nil, 0 }, { "global", "int", 1, nil, 0 }, { "random", "int", 3, most, 0 }, { "seed", "int", 0 } },
  block = block,
}
