@ -- The first and the last key that the mask's bounds leave a row: k_min, where there are lower ones, and k_max.
            int k_max = at.seqlen_k - 1;
@ for _, bound in ipairs(mask.upper_at) do
            k_max = min(k_max, $(bound));
@ end
@ if #mask.lower_at > 0 then
            int k_min = 0;
@   for _, bound in ipairs(mask.lower_at) do
            k_min = max(k_min, $(bound));
@   end
@ end
