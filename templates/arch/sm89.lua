-- Ada (L4, L40S, RTX 4090): as sm_86, and converts e4m3.
return { inherits = "sm86", name = "sm_89", e4m3 = true }
