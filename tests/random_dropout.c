#include "random_dropout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void draw_dropout(rng *r, drawn *out) {
    static const double common[] = {0, 0.001, 0.1, 0.1, 0.2, 0.5, 0.51, 0.9};
    fk_args *a = &out->args;
    a->dropout_p = rng_chance(r, 70) ? common[rng_range(r, 0, 7)] : (double)rng_range(r, 0, 999) / 1000;
    a->dropout_seed = rng_chance(r, 20) ? 0 : rng_next(r);
    a->dropout_offset = rng_chance(r, 20) ? (uint64_t)rng_range(r, 0, 3) : rng_next(r);
    if (!rng_chance(r, 50)) return;
    out->state[0] = a->dropout_seed;
    out->state[1] = a->dropout_offset;
    a->dropout_state = out->state;
    a->dropout_seed = a->dropout_offset = 12345; /* must not matter */
}

static fk_status find_mask(fk_context *context, const fk_kernel *kernel, const fk_args *args, uint8_t *mask,
                           size_t bytes) {
    void *device = NULL;
    fk_status status = fk_device_malloc(context, bytes, &device);
    memset(mask, 7, bytes);
    if (!status) status = fk_copy_to_device(context, device, mask, bytes);
    if (!status) status = fk_keep_mask(kernel, args, device, NULL);
    if (!status) status = fk_synchronize(context, NULL);
    if (!status) status = fk_copy_from_device(context, mask, device, bytes);
    fk_device_free(context, device);
    return status;
}

fk_status check_keep_mask(fk_context *context, const fk_kernel *kernel, const fk_problem *problem, const drawn *d,
                          const fk_args *args, char *complaint, size_t size) {
    const fk_args *a = &d->args;
    const size_t count = (size_t)(a->batch * a->num_heads_q) * (size_t)(a->seqlen_q * a->seqlen_k);
    uint8_t *mask = malloc(count), *expected = malloc(count);
    fk_status status = mask && expected ? find_mask(context, kernel, args, mask, count) : FK_NO_MEMORY;
    if (!status) status = fk_reference_keep_mask(problem, a, expected);
    for (size_t i = 0; i < count && !status; i++) {
        if (mask[i] == expected[i]) continue;
        status = FK_CHECK_FAILED;
        snprintf(complaint, size, "element %zu of the keep mask is %d, not %d", i, mask[i], expected[i]);
    }
    free(mask);
    free(expected);
    return status;
}
