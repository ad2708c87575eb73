/* What a search needs of a real device: helper processes that compile, the check, and a timer. */
#ifndef FK_RUNTIME_TUNE_RIG_H
#define FK_RUNTIME_TUNE_RIG_H

#include "object.h"
#include "tune_search.h"

typedef struct fk_tune_device fk_tune_device;

/** `trials`: of canonical problem `p`, in the search's order; all must outlive it. Nothing is asked of the driver
 * before the rig's `prepare`. */
fk_status fk_tune_device_open(fk_context *context, const fk_problem *p, const fk_shape *shape, const fk_trial *trials,
                              size_t count, fk_tune_device **out, fk_error *err);
void fk_tune_device_close(fk_tune_device *device);
fk_tune_rig fk_tune_device_rig(fk_tune_device *device);
/** The compiler of the images, once one is open; else "". */
const char *fk_tune_device_compiler(const fk_tune_device *device);

/** Does no array say which keys a problem's masks leave, so that the tiles that a plan visits are known without it? */
fk_status fk_tune_visits_known(const fk_problem *canonical, const char *template_dir, bool *known, fk_error *err);

#endif
