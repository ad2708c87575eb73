-- Sliding window: query q sees keys within [q + diag - left, q + diag + right].
return { params = { "left", "right" }, keep = "k >= q + diag - left && k <= q + diag + right" }
