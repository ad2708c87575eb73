#include "tune_tail.h"
#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAIL_BYTES = 1 << 20 };
/* Of the largest value: what rounding the weights, the sums in another order and the results may come to, many times
 * over. */
static const double SAME = 0x1p-4;

/* The results that a plan computes and that lie as the problem's tensors do. */
static bool is_compared(const fk_tune_data *d, const fk_tune_piece *piece) {
    const bool forward = d->problem.op == FK_FORWARD;
    return forward ? piece->field == offsetof(fk_args, o)
                   : piece->field == offsetof(fk_args, dq) || piece->field == offsetof(fk_args, dk) ||
                         piece->field == offsetof(fk_args, dv);
}

static size_t tail_bytes(const fk_tune_piece *piece) {
    return piece->bytes < TAIL_BYTES ? piece->bytes : TAIL_BYTES;
}

static char *tail_of(const fk_tune_piece *piece) {
    return (char *)piece->device + (piece->bytes - tail_bytes(piece));
}

fk_status fk_tune_tail_poison(const fk_tune_data *d, fk_error *err) {
    char *nan = malloc(TAIL_BYTES);
    if (!nan) return fk_fail(err, FK_NO_MEMORY, "no memory for %d bytes", TAIL_BYTES);
    memset(nan, 0xff, TAIL_BYTES);
    fk_status status = FK_OK;
    for (int i = 0; i < d->num_pieces && !status; i++)
        if (is_compared(d, &d->piece[i]) &&
            fk_copy_to_device(d->context, tail_of(&d->piece[i]), nan, tail_bytes(&d->piece[i])))
            status = fk_fail(err, FK_LAUNCH_FAILED, "%s", fk_last_error());
    free(nan);
    return status;
}

/* Fetches the end of a result as `*count` floats; null: `status` says why. */
static float *fetch(const fk_tune_data *d, const fk_tune_piece *piece, size_t *count, fk_status *status,
                    fk_error *err) {
    static const int64_t dense[3] = {0, 0, 0};
    const int32_t stored = fk_output_dtype(d->problem.dtype);
    const size_t bytes = tail_bytes(piece);
    *count = bytes / (size_t)fk_dtype_bytes(stored);
    void *raw = malloc(bytes);
    float *values = malloc(*count * sizeof *values);
    if (!raw || !values)
        *status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu results", *count);
    else if ((*status = fk_copy_from_device(d->context, raw, tail_of(piece), bytes)))
        fk_fail(err, *status, "%s", fk_last_error());
    else
        fk_walk_decode(stored, raw, dense, 0, 0, 0, (int)*count, values);
    free(raw);
    if (*status) {
        free(values);
        return NULL;
    }
    return values;
}

static void compare(const float *first, const float *now, size_t count, char reason[160]) {
    double largest = 0, apart = 0;
    for (size_t i = 0; i < count; i++) {
        if (isnan(now[i]) != isnan(first[i])) {
            snprintf(reason, 160, "wrong: at the size that is timed a result is NaN, and the first plan's is not");
            return;
        }
        if (isnan(first[i])) continue;
        largest = fmax(largest, fabs((double)first[i]));
        apart = fmax(apart, fabs((double)first[i] - (double)now[i]));
    }
    if (apart > SAME * largest)
        snprintf(reason, 160, "wrong: at the size that is timed it is off by %.3g from the first plan, of at most %.3g",
                 apart, largest);
}

fk_status fk_tune_tail_compare(const fk_tune_data *d, fk_tune_tail *tail, char reason[160], fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < d->num_pieces && !status && !reason[0]; i++) {
        size_t count;
        if (!is_compared(d, &d->piece[i])) continue;
        float *now = fetch(d, &d->piece[i], &count, &status, err);
        if (status) return status;
        if (tail->seen)
            compare(tail->first[i], now, count, reason);
        else
            tail->first[i] = now, now = NULL;
        free(now);
    }
    tail->seen = true;
    return status;
}

void fk_tune_tail_free(fk_tune_tail *tail) {
    for (int i = 0; i < FK_TUNE_PIECES; i++)
        free(tail->first[i]);
    *tail = (fk_tune_tail){.seen = false};
}
