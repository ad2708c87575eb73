/* One launch, with a workspace of its own where the kernel needs one. */
#ifndef FK_TESTS_LAUNCH_H
#define FK_TESTS_LAUNCH_H

#include "flashkiln.h"

#include <stddef.h>

/** Returns when the launch is done. */
static inline fk_status launch_once(fk_context *context, const fk_kernel *kernel, const fk_args *args) {
    void *workspace = NULL;
    const size_t bytes = fk_kernel_workspace(kernel, args);
    fk_status status = bytes ? fk_device_malloc(context, bytes, &workspace) : FK_OK;
    if (!status) status = fk_execute(kernel, args, workspace, bytes, NULL);
    if (!status) status = fk_synchronize(context, NULL);
    fk_device_free(context, workspace);
    return status;
}

#endif
