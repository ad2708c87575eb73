/* Enqueueing: checks, one parameter block on the stack, one driver call. Nothing here allocates, locks, synchronises or
 * touches a file (the emulator, which runs the kernel itself, aside). */
#include "object.h"

static fk_status launch_cuda(const fk_kernel *kernel, fk_forward_params *params, const fk_grid *grid, void *stream,
                             fk_error *err) {
    const fk_driver *d = kernel->context->driver;
    void *arguments[] = {params};
    int pushed;
    int result = fk_driver_enter(d, kernel->context->primary, &pushed);
    if (!result) {
        result = d->launch(kernel->function, grid->x, grid->y, grid->z, (unsigned)kernel->info.image.threads, 1, 1,
                           (unsigned)kernel->info.image.smem_dynamic, stream, arguments, NULL);
        fk_driver_leave(d, pushed);
    }
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
}

static fk_status launch_emulator(const fk_kernel *kernel, const fk_forward_params *params, const fk_grid *grid,
                                 fk_error *err) {
    const fk_emu_grid emulated = {grid->x, grid->y, grid->z};
    return fk_emu_launch_grid(kernel->image, params, sizeof *params, emulated, (uint32_t)kernel->info.image.threads,
                              (size_t)kernel->info.image.smem_dynamic, &kernel->context->emulator, NULL, err);
}

fk_status fk_execute(const fk_kernel *kernel, const fk_args *args, void *workspace, size_t workspace_bytes,
                     void *stream) {
    (void)workspace; /* fk_kernel_workspace is 0 */
    (void)workspace_bytes;
    if (!kernel || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", kernel ? "args" : "kernel");
    fk_error err;
    fk_forward_params params;
    fk_grid grid;
    fk_status status = fk_forward_prepare(kernel, args, &params, &grid, &err);
    if (!status)
        status = kernel->image ? launch_emulator(kernel, &params, &grid, &err)
                               : launch_cuda(kernel, &params, &grid, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}
