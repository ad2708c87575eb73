/* Is a plan's kernel right? Small inputs, all results against float64, at two scales of the scores. */
#ifndef FK_RUNTIME_TUNE_CHECK_H
#define FK_RUNTIME_TUNE_CHECK_H

#include "tune_data.h"

typedef struct fk_tune_check fk_tune_check;

/** Draws the inputs and computes the references, once for all plans of a problem. `shape` is cut to what the CPU can
 *  do. */
fk_status fk_tune_check_create(fk_context *context, const fk_problem *canonical, const fk_shape *shape,
                               fk_tune_check **out, fk_error *err);
void fk_tune_check_destroy(fk_tune_check *check);
/** Runs `kernel`. `*error`: the largest error as a share of what is allowed, when it is finite; `reason`: "" if the
 *  kernel is right. A failure of the launch is a reason too, but for those that no plan is to blame for. */
fk_status fk_tune_check_run(fk_tune_check *check, const fk_kernel *kernel, double *error, char reason[160],
                            fk_error *err);

#endif
