/* What score terms add to the forward pass, of which the models of both families take their share. */
#include "plan.h"

#include <math.h>

/* Bytes that an SM reads from L2 in a clock, of arrays with an element for each score; and the clocks of a read that is
 * waited for, with so many atoms of 8 keys at once: guessed, not measured. */
static const double PAIRS_RATE = 40.0, READ_CLOCKS = 800.0, READS_AT_ONCE = 4.0;

fk_score_work fk_model_score(const fk_problem_terms *terms) {
    static const char *const varying[] = {"s", "k", NULL}; /* what follows from the row is computed once for it */
    const fk_problem_score *score = &terms->score;
    fk_score_work work = {.lanes = score->along ? 1 : 0,
                          .along = score->along}; /* one multiply-add, where the products do not add them */
    for (int i = 0; i < score->num_terms && !score->along; ++i)
        work.lanes += fk_expr_lanes(i + 1 < score->num_terms ? score->term[i].value : score->rest, varying);
    work.at_once = score->num_terms > 0 && !score->along;
    for (int i = 0; i < terms->arrays.count; ++i) {
        for (int t = 0; t < score->num_terms; ++t)
            if (fk_expr_uses(score->term[t].value, terms->arrays.decl[i].name)) work.at_once = false;
        if (!fk_score_reads_pairs(terms, i)) continue;
        ++work.pairs;
        work.bytes += fk_array_element_bytes(&terms->arrays.decl[i]);
    }
    work.l2 = work.bytes / PAIRS_RATE;
    return work;
}

double fk_model_waits(const fk_score_work *score, double atoms) {
    return score->pairs ? READ_CLOCKS * ceil(atoms / READS_AT_ONCE) : 0;
}
