#include "dropout.h"
#include "npy.h"
#include "output.h"

#include <stdlib.h>

void dropout_set(const dropout *d, const fk_problem *problem, fk_args *args) {
    if (!problem->dropout) return;
    args->dropout_p = d->p < 0 ? 0.1 : d->p;
    args->dropout_seed = d->seed < 0 ? 0 : (uint64_t)d->seed;
    args->dropout_offset = d->offset < 0 ? 0 : (uint64_t)d->offset;
}

/* The kernel's mask, downloaded into `mask`. */
static fk_status compute(fk_context *context, const fk_kernel *kernel, const fk_args *args, uint8_t *mask,
                         size_t bytes) {
    void *device = NULL;
    fk_status status = fk_device_malloc(context, bytes, &device);
    if (status == FK_OK) status = fk_keep_mask(kernel, args, device, NULL);
    if (status == FK_OK) status = fk_synchronize(context, NULL);
    if (status == FK_OK) status = fk_copy_from_device(context, mask, device, bytes);
    fk_device_free(context, device);
    return status;
}

static cli_exit compare(const fk_problem *problem, const fk_args *args, const uint8_t *mask, size_t bytes) {
    uint8_t *expected = malloc(bytes);
    if (!expected) return cli_fail(CLI_FAILED, "no memory for a keep mask of %zu bytes", bytes);
    const fk_status status = fk_reference_keep_mask(problem, args, expected);
    cli_exit code = status == FK_OK ? CLI_OK : cli_fail_status(status);
    for (size_t i = 0; i < bytes && code == CLI_OK; i++)
        if (mask[i] != expected[i])
            code = cli_fail(CLI_CHECK_FAILED, "check: element %zu of the keep mask is %d, by its definition %d", i,
                            mask[i], expected[i]);
    free(expected);
    return code;
}

cli_exit dropout_write_mask(const dropout *d, fk_context *context, const fk_kernel *kernel, const fk_problem *problem,
                            const fk_args *args, bool check) {
    if (!d->keep_mask) return CLI_OK;
    const size_t bytes = (size_t)(args->batch * args->num_heads_q) * (size_t)(args->seqlen_q * args->seqlen_k);
    uint8_t *mask = malloc(bytes);
    output file = {0};
    if (!mask) return cli_fail(CLI_FAILED, "no memory for a keep mask of %zu bytes", bytes);
    const fk_status status = compute(context, kernel, args, mask, bytes);
    cli_exit code = status == FK_OK ? CLI_OK : cli_fail_status(status);
    if (code == CLI_OK && check) code = compare(problem, args, mask, bytes);
    if (code == CLI_OK) code = output_open(&file, d->keep_mask);
    if (code == CLI_OK) {
        const npy_array array = {
            NPY_UINT8, 4, {args->batch, args->num_heads_q, args->seqlen_q, args->seqlen_k}, (int64_t)bytes, mask};
        npy_write(file.file, &array);
        code = output_commit(&file);
    }
    output_discard(&file);
    free(mask);
    return code;
}
