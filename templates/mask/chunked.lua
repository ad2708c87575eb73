-- Chunks: the sequence is cut every size keys, and query q sees the keys of its own chunk.
return {
  params = { { "size", "int", nil, nil, 1 } },
  keep = "k >= (q + diag) / size * size && k < (q + diag >= 0 ? (q + diag) / size * size + size : 0)",
  by_q = "q + diag >= k / size * size && q + diag < k / size * size + size",
}
