-- Attention sink: one more column of scores, learned for each head, without a key and a value: it takes its share of the
-- softmax and adds nothing to the output.
return { params = { { "sink", "float[h]" } }, sink = "sink[h]" }
