/* Enqueueing: checks, one parameter block on the stack, one driver call a kernel. Nothing here allocates, locks,
 * synchronises or touches a file (the emulator, which runs the kernels itself, aside). */
#include "object.h"

#include <string.h>

/* The kernel's block ends where its problem's terms need no more (bind.c). */
static size_t ends_at(const fk_kernel *kernel, size_t score_offset, size_t array_offset) {
    if (kernel->grad) return sizeof(fk_backward_params);
    const size_t num_arrays = (size_t)kernel->arrays.count;
    const size_t bytes = num_arrays                 ? array_offset + num_arrays * sizeof(fk_array_param)
                         : kernel->has_score_values ? score_offset + sizeof kernel->score_value
                                                    : score_offset;
    return (bytes + 7) / 8 * 8;
}

/* Maps come first, and align what the text declares to their 64 bytes. */
_Static_assert(offsetof(fk_launch_block, params) == FK_ALL_MAPS * sizeof(fk_tensor_map), "nothing between them");
_Static_assert(sizeof(fk_forward_params) + 64 <= sizeof(fk_launch_block) - offsetof(fk_launch_block, params) &&
                   sizeof(fk_backward_params) + 64 <= sizeof(fk_launch_block) - offsetof(fk_launch_block, params),
               "the driver may read a block rounded up to 64 bytes");

static size_t num_maps(const fk_kernel *kernel) {
    const bool grad = fk_stages_grad(&kernel->problem, kernel->grad, kernel->staged);
    return (size_t)fk_num_tensor_maps(kernel) + (kernel->staged > 0 ? 1u : 0u) + (grad ? 1u : 0u);
}

size_t fk_param_bytes(const fk_kernel *kernel) {
    const size_t bytes =
        kernel->problem.op == FK_BACKWARD
            ? ends_at(kernel, offsetof(fk_backward_params, score_value), offsetof(fk_backward_params, array))
            : ends_at(kernel, offsetof(fk_forward_params, score_value), offsetof(fk_forward_params, array));
    return fk_takes_maps(kernel) ? (num_maps(kernel) * sizeof(fk_tensor_map) + bytes + 63) / 64 * 64 : bytes;
}

void *fk_param_block(const fk_kernel *kernel, fk_launch_block *l) {
    return fk_takes_maps(kernel) ? (void *)&l->map[FK_ALL_MAPS - num_maps(kernel)] : (void *)&l->params;
}

/* `args`: null where no kernel reads tiles. */
static fk_status make_maps(const fk_kernel *kernel, const fk_args *args, fk_launch_block *l, fk_error *err) {
    if (!fk_takes_maps(kernel)) return FK_OK;
    const fk_array_param *arrays =
        kernel->problem.op == FK_BACKWARD ? l->params.backward.array : l->params.forward.array;
    const void *const copy = args && kernel->staged ? arrays[kernel->staged - 1].copy : NULL;
    if (args) return fk_tensor_maps_make(kernel, args, l->params.forward.values, copy, l->map, err);
    memset(l->map, 0, sizeof l->map);
    return FK_OK;
}

static fk_status prepare(const fk_kernel *kernel, const fk_args *args, const fk_workspace *workspace,
                         fk_launch_block *out, fk_error *err) {
    if (kernel->problem.op == FK_BACKWARD)
        return fk_backward_prepare(kernel, args, workspace, &out->params.backward, out->grid, err);
    return fk_forward_prepare(kernel, args, workspace, &out->params.forward, out->grid, err);
}

/* Before CUDA 12.3 drivers do not capture such a launch as what it is. */
#define EARLY_DRIVER 12030

static int launch_one(const fk_kernel *kernel, int i, fk_grid grid, void *stream, void **arguments) {
    static const fk_cu_attribute early = {FK_CU_PROGRAMMATIC_SERIALIZATION, {1}};
    const fk_driver *d = kernel->context->driver;
    const fk_kernel_launch *k = &kernel->launch[i];
    const fk_cu_launch launch = {grid.x, grid.y, grid.z, (unsigned)k->threads, 1, 1, (unsigned)k->smem_bytes,
                                 stream, &early, 1};
    if (kernel->early >> i & 1 && kernel->context->driver_version >= EARLY_DRIVER)
        return d->launch_with(&launch, kernel->function[i], arguments, NULL);
    return d->launch(kernel->function[i], grid.x, grid.y, grid.z, (unsigned)k->threads, 1, 1, (unsigned)k->smem_bytes,
                     stream, arguments, NULL);
}

static fk_status launch_cuda(const fk_kernel *kernel, const fk_args *args, fk_launch_block *l, void *stream,
                             fk_error *err) {
    const fk_driver *d = kernel->context->driver;
    void *arguments[] = {fk_param_block(kernel, l)};
    int pushed;
    int result = fk_driver_enter(d, kernel->context->primary, &pushed);
    if (result) return fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
    const fk_status status = make_maps(kernel, args, l, err);
    for (int i = 0; i < kernel->num_launches && !result && !status; i++)
        if (l->grid[i].x) result = launch_one(kernel, i, l->grid[i], stream, arguments);
    fk_driver_leave(d, pushed);
    return status ? status : fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
}

static fk_status launch_emulator(const fk_kernel *kernel, const fk_args *args, fk_launch_block *l, fk_error *err) {
    fk_status status = make_maps(kernel, args, l, err);
    for (int i = 0; i < kernel->num_launches && !status; i++) {
        const fk_kernel_launch *k = &kernel->launch[i];
        const bool clusters = k->grid == FK_GRID_PERSISTENT; /* other kernels have none */
        const fk_emu_grid grid = {l->grid[i].x, l->grid[i].y, l->grid[i].z,
                                  clusters ? (uint32_t)fk_plan_cluster(&kernel->problem, &kernel->info.plan) : 1};
        if (!grid.x) continue;
        status = fk_emu_launch_grid(kernel->image, k->entry, fk_param_block(kernel, l), fk_param_bytes(kernel), grid,
                                    (uint32_t)k->threads, (size_t)k->smem_bytes, &kernel->context->emulator, NULL, err);
    }
    return status;
}

fk_status fk_launch_alone(const fk_kernel *kernel, int entry, void *params, size_t bytes, fk_grid grid, void *stream,
                          fk_error *err) {
    const fk_kernel_launch *k = &kernel->launch[entry];
    if (kernel->image) {
        const fk_emu_grid emu_grid = {grid.x, grid.y, grid.z, 1};
        return fk_emu_launch_grid(kernel->image, k->entry, params, bytes, emu_grid, (uint32_t)k->threads,
                                  (size_t)k->smem_bytes, &kernel->context->emulator, NULL, err);
    }
    const fk_driver *d = kernel->context->driver;
    void *arguments[] = {params};
    int pushed, result = fk_driver_enter(d, kernel->context->primary, &pushed);
    if (!result) {
        result = d->launch(kernel->function[entry], grid.x, grid.y, grid.z, (unsigned)k->threads, 1, 1,
                           (unsigned)k->smem_bytes, stream, arguments, NULL);
        fk_driver_leave(d, pushed);
    }
    return fk_driver_check(d, result, FK_LAUNCH_FAILED, "launching the kernel", err);
}

fk_status fk_execute(const fk_kernel *kernel, const fk_args *args, void *workspace, size_t workspace_bytes,
                     void *stream) {
    if (!kernel || !args) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", kernel ? "args" : "kernel");
    fk_error err;
    fk_launch_block l;
    const fk_workspace memory = {workspace, workspace_bytes};
    fk_status status = prepare(kernel, args, &memory, &l, &err);
    if (!status && kernel->image) status = fk_sequences_check(&kernel->problem, args, &err);
    if (!status)
        status = kernel->image ? launch_emulator(kernel, args, &l, &err) : launch_cuda(kernel, args, &l, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}

fk_status fk_keep_mask(const fk_kernel *kernel, const fk_args *args, uint8_t *out, void *stream) {
    if (!kernel || !args || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !kernel ? "kernel" : !args ? "args" : "out");
    fk_error err;
    fk_launch_block l;
    fk_status status = fk_keep_mask_prepare(kernel, args, out, &l, &err);
    if (!status)
        status = kernel->image ? launch_emulator(kernel, NULL, &l, &err) : launch_cuda(kernel, NULL, &l, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}
