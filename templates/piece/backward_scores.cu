@ -- What the families share between their products and their loops.
@ include("piece/mask.cu", { leads = false })

@ if problem.dropout then
@   include("piece/dropout.cu")

@ end
@ include("piece/backward_tile.cu")

@ -- Score terms: the way there and the way back are one where the way back needs the scores.
@ if #score.terms > 0 and not score.derivatives_use_s then
@   include("piece/score.cu", { estimates = false, along = false, ahead = false, weighs = false })

@ end
@ if score.goes_back then
@   include("piece/score_backward.cu")

@ end
@ include("piece/element.cu")

