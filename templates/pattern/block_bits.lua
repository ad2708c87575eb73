-- Any blocks, packed: bit j % 32 of word j / 32 of a row says whether block row i sees block column j. Rows count from the
-- first query.
return { params = { { "block_bits", "int[b][h][][]" } }, top_left = true, block = "bit(block_bits[b][h][i][j >> 5], j)" }
