/* Dropout of a launch: its arguments checked, what kernels read of them, and the launch that writes the keep mask. */
#include "dropout.h"
#include "object.h"

#include <math.h>
#include <string.h>

fk_status fk_dropout_check(const fk_problem *p, const fk_args *a, fk_error *err) {
    int32_t dropped;
    if (!p->dropout && a->dropout_p != 0)
        return fk_fail(err, FK_BAD_ARGUMENT, "dropout_p is %g; it must be 0 unless the problem says dropout",
                       a->dropout_p);
    const fk_status status =
        p->dropout ? fk_check_aligned("dropout_state", a->dropout_state, sizeof(uint64_t), err) : FK_OK;
    return status ? status : fk_dropout_threshold(a->dropout_p, &dropped, err);
}

fk_dropout_fields fk_dropout_fields_of(const fk_problem *p, const fk_args *a) {
    int32_t dropped = 0;
    if (!p->dropout) return (fk_dropout_fields){.keep = 1, .scale = 1};
    fk_dropout_threshold(a->dropout_p, &dropped, NULL); /* has been checked */
    const bool drops_rarely = dropped <= 128;
    const float scale = fk_dropout_scale(dropped);
    return (fk_dropout_fields){.state = a->dropout_state,
                               .seed = a->dropout_seed,
                               .offset = a->dropout_offset,
                               .rare = (uint32_t)(drops_rarely ? dropped : 256 - dropped) * 0x01010101,
                               .invert = drops_rarely ? UINT32_MAX : 0,
                               .scale = scale,
                               .keep = (float)(256 - dropped) / 256,
                               .scale_log2 = (float)log2((double)scale)};
}

fk_dropout fk_dropout_of_head(const fk_args *a, int64_t b, int64_t h) {
    const uint64_t *state = a->dropout_state;
    return fk_dropout_open(state ? state[0] : a->dropout_seed, state ? state[1] : a->dropout_offset, (uint32_t)b,
                           (uint32_t)h);
}

/* ---- the keep mask ------------------------------------------------------------------------------------ */

static fk_status check_mask(const fk_problem *p, const fk_args *a, fk_error *err) {
    int64_t elements;
    if (a->struct_size != sizeof *a)
        return fk_fail(err, FK_BAD_ARGUMENT, "args->struct_size is %zu; FK_ARGS_INIT makes it %zu", a->struct_size,
                       sizeof *a);
    if (!p->dropout) return fk_fail(err, FK_BAD_ARGUMENT, "the problem has no keep mask; it must say dropout");
    fk_status status = fk_args_check_sizes(p, a, err);
    if (!status) status = fk_dropout_check(p, a, err);
    if (!status && (__builtin_mul_overflow(a->batch * a->num_heads_q * a->seqlen_q, a->seqlen_k, &elements) ||
                    elements > (int64_t)1 << 60))
        status =
            fk_fail(err, FK_BAD_ARGUMENT, "the mask has %lld x %lld x %lld x %lld elements; it may have 2^60",
                    (long long)a->batch, (long long)a->num_heads_q, (long long)a->seqlen_q, (long long)a->seqlen_k);
    return status;
}

#define KEEP_MASK_PARAMS                                                                                               \
    .keep_mask = out, .dropout_state = d.state, .dropout_seed = d.seed, .dropout_offset = d.offset,                    \
    .num_heads_q = (int32_t)a->num_heads_q, .seqlen_q = (int32_t)a->seqlen_q, .seqlen_k = (int32_t)a->seqlen_k,        \
    .batch = (int32_t)a->batch, .heads_inverse = fk_inverse(a->num_heads_q), .dropout_rare = d.rare,                   \
    .dropout_invert = d.invert

fk_status fk_keep_mask_prepare(const fk_kernel *kernel, const fk_args *a, uint8_t *out, fk_launch_block *block,
                               fk_error *err) {
    fk_status status = check_mask(&kernel->problem, a, err);
    if (status) return status;
    const fk_dropout_fields d = fk_dropout_fields_of(&kernel->problem, a);
    if (kernel->problem.op == FK_BACKWARD)
        block->params.backward = (fk_backward_params){KEEP_MASK_PARAMS};
    else
        block->params.forward = (fk_forward_params){KEEP_MASK_PARAMS};
    for (int i = 0; i < kernel->num_launches; i++) {
        const bool is_mask = kernel->launch[i].grid == FK_GRID_KEEP_MASK;
        block->grid[i] = is_mask ? fk_grid_keep_mask(kernel, a) : (fk_grid){0, 0, 0};
    }
    return FK_OK;
}

fk_status fk_reference_keep_mask(const fk_problem *problem, const fk_args *args, uint8_t *out) {
    fk_error err;
    fk_problem p;
    int32_t dropped;
    if (!problem || !args || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !problem ? "problem" : !args ? "args" : "out");
    if (fk_problem_normalise(problem, &p, &err) || check_mask(&p, args, &err)) return fk_report(&err);
    fk_dropout_threshold(args->dropout_p, &dropped, NULL);
    const uint32_t rows = (uint32_t)args->seqlen_q, cols = (uint32_t)args->seqlen_k;
    for (int64_t head = 0; head < args->batch * args->num_heads_q; head++) {
        const fk_dropout d = fk_dropout_of_head(args, head / args->num_heads_q, head % args->num_heads_q);
        fk_dropout_mask(&d, dropped, 0, 0, rows, cols, out + (size_t)head * rows * cols, cols);
    }
    return FK_OK;
}
