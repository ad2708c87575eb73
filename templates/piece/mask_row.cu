@ -- Where rows g and g + 8 of atom m lie, as far as the mask reads it: `first` is the lane's first row, `own` what rows are, "q" or "k".
@ local index = problem.joins_heads and "row_query(p, row)" or "row"
@ if mask.uses[own] or mask.uses.h or own == "k" then
                const int row = first + 16 * m + 8 * r;
@ end
@ if mask.uses[own] then
                const int $(own) = $(mask.reads_along[own] and "min(" .. index .. ", at.seqlen_" .. own .. " - 1)" or index);
@ end
@ if problem.joins_heads and mask.uses.h then
                const int h = row_head(p, at, row);
@ end
