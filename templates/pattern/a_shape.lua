-- A-shape, as of StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): the first `sink` blocks, and the last `recent` ones up to
-- the row's own.
return {
  params = { { "sink", "int", 1, nil, 0 }, { "recent", "int", 4, nil, 0 } },
  block = "j <= i && (j < sink || i - j < recent)",
}
