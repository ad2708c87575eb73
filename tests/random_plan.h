/* Any plan that the planner calls legal, and not the one that it would choose: a tuner, a record or a caller may. */
#ifndef FK_TESTS_RANDOM_PLAN_H
#define FK_TESTS_RANDOM_PLAN_H

#include "random_draw.h"

/** Writes a plan of the drawn problem for a GPU, as a rule the same for all seeds that share a kernel; some come in
 *  parts, or with the other choice of turns. false: there is none; fk_last_error says why. */
bool random_plan(const drawn *d, const char *gpu, char out[FK_MAX_PLAN]);

#endif
