/* Enqueueing: checks, one parameter block on the stack, one driver call a kernel. Nothing here allocates, locks,
 * synchronises or touches a file (the emulator, which runs the kernels itself, aside). */
#include "object.h"

/* The kernel's block ends where its problem's terms need no more (bind.c). */
static size_t ends_at(const fk_kernel *kernel, size_t score_offset, size_t array_offset) {
    if (kernel->grad) return sizeof(fk_backward_params);
    const size_t num_arrays = (size_t)kernel->arrays.count;
    const size_t bytes = num_arrays                 ? array_offset + num_arrays * sizeof(fk_array_param)
                         : kernel->has_score_values ? score_offset + sizeof kernel->score_value
                                                    : score_offset;
    return (bytes + 7) / 8 * 8;
}

size_t fk_param_bytes(const fk_kernel *kernel) {
    return kernel->problem.op == FK_BACKWARD
               ? ends_at(kernel, offsetof(fk_backward_params, score_value), offsetof(fk_backward_params, array))
               : ends_at(kernel, offsetof(fk_forward_params, score_value), offsetof(fk_forward_params, array));
}

static fk_status prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                         fk_launch_block *out, fk_error *err) {
    if (kernel->problem.op == FK_BACKWARD)
        return fk_backward_prepare(kernel, args, workspace, &out->params.backward, out->grid, err);
    return fk_forward_prepare(kernel, args, workspace, &out->params.forward, out->grid, err);
}

static fk_status launch_cuda(const fk_kernel *kernel, fk_launch_block *l, void *stream, fk_error *err) {
    const fk_driver *d = kernel->context->driver;
    void *arguments[] = {&l->params};
    int pushed;
    int result = fk_driver_enter(d, kernel->context->primary, &pushed);
    if (result) return fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
    for (int i = 0; i < kernel->num_launches && !result; i++) {
        const fk_kernel_launch *k = &kernel->launch[i];
        const fk_grid *grid = &l->grid[i];
        if (!grid->x) continue;
        result = d->launch(kernel->function[i], grid->x, grid->y, grid->z, (unsigned)k->threads, 1, 1,
                           (unsigned)k->smem_bytes, stream, arguments, NULL);
    }
    fk_driver_leave(d, pushed);
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
}

static fk_status launch_emulator(const fk_kernel *kernel, const fk_launch_block *l, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < kernel->num_launches && !status; i++) {
        const fk_kernel_launch *k = &kernel->launch[i];
        const fk_emu_grid grid = {l->grid[i].x, l->grid[i].y, l->grid[i].z};
        if (!grid.x) continue;
        status = fk_emu_launch_grid(kernel->image, k->entry, &l->params, fk_param_bytes(kernel), grid,
                                    (uint32_t)k->threads, (size_t)k->smem_bytes, &kernel->context->emulator, NULL, err);
    }
    return status;
}

fk_status fk_execute(const fk_kernel *kernel, const fk_args *args, void *workspace, size_t workspace_bytes,
                     void *stream) {
    if (!kernel || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", kernel ? "args" : "kernel");
    fk_error err;
    fk_launch_block l;
    const fk_workspace memory = {workspace, workspace_bytes};
    fk_status status = prepare(kernel, args, &memory, &l, &err);
    if (!status && kernel->image) status = fk_sequences_check(&kernel->problem, args, &err);
    if (!status) status = kernel->image ? launch_emulator(kernel, &l, &err) : launch_cuda(kernel, &l, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}

fk_status fk_keep_mask(const fk_kernel *kernel, const fk_args *args, uint8_t *out, void *stream) {
    if (!kernel || !args || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !kernel ? "kernel" : !args ? "args" : "out");
    fk_error err;
    fk_launch_block l;
    fk_status status = fk_keep_mask_prepare(kernel, args, out, &l, &err);
    if (!status) status = kernel->image ? launch_emulator(kernel, &l, &err) : launch_cuda(kernel, &l, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}
