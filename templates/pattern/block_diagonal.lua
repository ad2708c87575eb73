-- Blocks on the diagonal.
return { block = "i == j" }
