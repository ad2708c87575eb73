-- Dilation: query q sees every step-th key, counted from its own position.
return { params = { "step" }, keep = "(q + diag - k) % step == 0" }
