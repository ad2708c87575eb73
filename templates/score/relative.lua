-- Relative position bias in buckets, as in T5: bucket maps the distance of key and query, from -reach to reach (what is
-- farther counts as that far), to a row of the table. It is an array, so that any rule for the buckets is exact.
return {
  params = { "reach", { "table", "float[h][]" }, { "bucket", "int[]" } },
  score = "s + table[h][bucket[k - q - diag + reach]]",
}
