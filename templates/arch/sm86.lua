-- Ampere, consumer and inference (RTX 3090, A10): as sm_80 with 99 KB for a block.
return { inherits = "sm80", name = "sm_86" }
