-- Documents packed into one sequence: a query sees the keys of its own document. Ids do not decrease along a sequence, so
-- that tiles without a common document are skipped.
return {
  params = { { "doc_q", "int[b][q]:sorted" }, { "doc_k", "int[b][k]:sorted" } },
  keep = "doc_q[b][q] == doc_k[b][k]",
}
