@ -- From dP^T, and P^T or the scores, to dS^T, in dP's place; s, dp, n: names of both and of the part of a tile that they are of.
@ if fused then
                subtract_delta($(dp), delta);
@   if problem.dropout then
                drop_gradients($(dp), delta, dropout);
@   end
                score_backward($(s), $(dp), lse, $(n), p, at$(sums));
@ else
@   if problem.dropout then
                score_gradients($(dp), $(s), delta, dropout);
@   else
                subtract_delta($(dp), delta);
                score_gradients($(dp), $(s));
@   end
@   if back then
                score_backward($(dp), $(n), p, at$(sums));
@   end
@ end
