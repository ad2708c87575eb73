-- Dilation: query q sees every step-th key, counted from its own position.
return { params = { { "step", "int", nil, nil, 1 } }, keep = "(q + diag - k) % step == 0" }
