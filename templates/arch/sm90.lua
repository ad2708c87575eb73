-- Hopper through mma.sync: as sm_80 with 227 KB for a block.
return { inherits = "sm80", name = "sm_90", vector_add = true }
