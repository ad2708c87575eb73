-- Causal: query q sees keys k <= q + diag; diag = seqlen_k - seqlen_q (bottom-right) or 0 (top-left).
return { keep = "k <= q + diag" }
