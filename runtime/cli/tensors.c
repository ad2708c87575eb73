#include "tensors.h"
#include "half.h"
#include "npy.h"
#include "output.h"

#include <math.h>
#include <stdlib.h>

static const char *const axis_names[2][4] = {{"batch", "seqlen", "heads", "dim"}, {"batch", "heads", "seqlen", "dim"}};

/* Places of the axes in a file's shape. */
static int seqlen_axis(int layout) {
    return layout == FK_BSHD ? 1 : 2;
}
static int heads_axis(int layout) {
    return layout == FK_BSHD ? 2 : 1;
}

static void shape_of(int layout, int64_t batch, int64_t seqlen, int64_t heads, int64_t dim, int64_t out[4]) {
    out[0] = batch;
    out[seqlen_axis(layout)] = seqlen;
    out[heads_axis(layout)] = heads;
    out[3] = dim;
}

/* Sizes in args are set: checks the heads, fills strides and byte counts, and allocates O and lse. The host's O is NaN
 * until the kernel's is copied over it. */
static cli_exit complete(tensors *t, const fk_problem *p) {
    const fk_args *a = &t->args;
    const size_t rows_q = (size_t)(a->batch * a->num_heads_q) * (size_t)a->seqlen_q;
    const size_t rows_k = (size_t)(a->batch * a->num_heads_kv) * (size_t)a->seqlen_k;
    if (!p->gqa && a->num_heads_q != a->num_heads_kv)
        return cli_fail(CLI_BAD_INPUT,
                        "num_heads_kv is %lld; num_heads_q is %lld and both must be equal unless gqa is spelled",
                        (long long)a->num_heads_kv, (long long)a->num_heads_q);
    if (a->num_heads_q % a->num_heads_kv != 0)
        return cli_fail(CLI_BAD_INPUT, "num_heads_q is %lld; a multiple of num_heads_kv, %lld, is needed",
                        (long long)a->num_heads_q, (long long)a->num_heads_kv);
    const fk_status status = fk_args_layout(p, t->layout, &t->args);
    if (status != FK_OK) return cli_fail_status(status);
    t->q_bytes = 2 * rows_q * (size_t)p->head_dim;
    t->k_bytes = 2 * rows_k * (size_t)p->head_dim;
    t->v_bytes = 2 * rows_k * (size_t)p->head_dim_v;
    t->o_bytes = 2 * rows_q * (size_t)p->head_dim_v;
    t->lse_bytes = sizeof(float) * rows_q;
    t->o = malloc(t->o_bytes);
    t->lse = malloc(t->lse_bytes);
    if (!t->o || !t->lse) return cli_fail(CLI_FAILED, "no memory for o and lse, %zu bytes", t->o_bytes + t->lse_bytes);
    for (size_t i = 0; i < t->o_bytes / 2; i++)
        t->o[i] = 0xffff;
    for (size_t i = 0; i < rows_q; i++)
        t->lse[i] = NAN;
    return CLI_OK;
}

static void point_args(tensors *t) {
    t->args.q = t->q;
    t->args.k = t->k;
    t->args.v = t->v;
    t->args.o = t->o;
    t->args.lse = t->lse;
}

void tensors_free(tensors *t) {
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    free(t->lse);
    *t = (tensors){.args = FK_ARGS_INIT};
}

/* ---- files ------------------------------------------------------------------------------------------------ */

/* Turns what was read into 16-bit elements of the problem's dtype. Frees nothing. */
static cli_exit convert(const char *path, const fk_problem *p, const npy_array *in, uint16_t **out) {
    const npy_type native = p->dtype == FK_BF16 ? NPY_BITS : NPY_FP16;
    const char *name = p->dtype == FK_BF16 ? "bf16" : "fp16";
    if (in->type != NPY_FP32 && in->type != native)
        return cli_fail(CLI_BAD_INPUT, "%s: dtype is %s; %s needs %s or <f4", path, npy_type_name(in->type), name,
                        npy_type_name(native));
    uint16_t *to = malloc((size_t)in->count * sizeof *to);
    if (!to) return cli_fail(CLI_FAILED, "%s: no memory for %lld elements", path, (long long)in->count);
    const uint16_t *bits = in->data;
    const float *values = in->data;
    for (int64_t i = 0; i < in->count; i++) {
        to[i] = in->type == NPY_FP32 ? half_of(values[i], p->dtype) : bits[i];
        if (in->type == NPY_FP32 && isfinite(values[i]) && !isfinite(half_value(to[i], p->dtype))) {
            free(to);
            return cli_fail(CLI_BAD_INPUT, "%s: element %lld is %g; the largest %s is %g", path, (long long)i,
                            (double)values[i], name, p->dtype == FK_BF16 ? 3.3895314e38 : 65504.0);
        }
    }
    *out = to;
    return CLI_OK;
}

static cli_exit read_tensor(const char *path, const fk_problem *p, uint16_t **out, int64_t shape[4]) {
    npy_array array = {0};
    char message[NPY_MESSAGE];
    cli_exit code = npy_read(path, 4, &array, message);
    if (code != CLI_OK) return cli_fail(code, "%s", message);
    for (int i = 0; i < 4; i++)
        shape[i] = array.shape[i];
    code = convert(path, p, &array, out);
    npy_free(&array);
    return code;
}

static cli_exit check_shape(const char *path, int layout, const int64_t have[4], const int64_t want[4],
                            const char *than) {
    for (int i = 0; i < 4; i++)
        if (have[i] != want[i])
            return cli_fail(CLI_BAD_INPUT, "%s: shape[%d], %s, is %lld; %lld is needed, as %s", path, i,
                            axis_names[layout][i], (long long)have[i], (long long)want[i], i == 3 ? "spelled" : than);
    return CLI_OK;
}

static cli_exit read_all(const char *const path[3], const fk_problem *p, tensors *t) {
    int64_t q[4], k[4], v[4], want[4];
    const int s = seqlen_axis(t->layout), h = heads_axis(t->layout);
    cli_exit code = read_tensor(path[0], p, &t->q, q);
    if (code == CLI_OK) code = read_tensor(path[1], p, &t->k, k);
    if (code == CLI_OK) code = read_tensor(path[2], p, &t->v, v);
    if (code != CLI_OK) return code;
    t->args.batch = q[0];
    t->args.num_heads_q = q[h];
    t->args.seqlen_q = q[s];
    t->args.num_heads_kv = k[h];
    t->args.seqlen_k = k[s];
    shape_of(t->layout, q[0], q[s], q[h], p->head_dim, want);
    code = check_shape(path[0], t->layout, q, want, "spelled");
    shape_of(t->layout, q[0], k[s], k[h], p->head_dim, want);
    if (code == CLI_OK) code = check_shape(path[1], t->layout, k, want, "in q");
    shape_of(t->layout, q[0], k[s], k[h], p->head_dim_v, want);
    if (code == CLI_OK) code = check_shape(path[2], t->layout, v, want, "in k");
    return code == CLI_OK ? complete(t, p) : code;
}

cli_exit tensors_read(const char *q_path, const char *k_path, const char *v_path, const fk_problem *problem, int layout,
                      tensors *out) {
    tensors t = {.args = FK_ARGS_INIT, .layout = layout};
    const char *const path[3] = {q_path, k_path, v_path};
    const cli_exit code = read_all(path, problem, &t);
    if (code != CLI_OK) {
        tensors_free(&t);
        return code;
    }
    point_args(&t);
    *out = t;
    return CLI_OK;
}

/* ---- random ----------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float next_normal(uint64_t *state) {
    const double u = ((double)(next_random(state) >> 11) + 1) * 0x1p-53; /* in (0, 1] */
    const double phase = (double)(next_random(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * phase));
}

void tensors_draw_normal(uint64_t seed, float *out, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        out[i] = next_normal(&seed);
}

static uint16_t *draw(size_t bytes, uint64_t seed, int32_t dtype) {
    uint16_t *out = malloc(bytes);
    for (size_t i = 0; out && i < bytes / 2; i++)
        out[i] = half_of(next_normal(&seed), dtype);
    return out;
}

cli_exit tensors_draw(const option_ints *shape, const fk_problem *problem, int layout, tensors *out) {
    tensors t = {.args = FK_ARGS_INIT, .layout = layout};
    const int64_t *v = shape->value;
    t.args.batch = v[0];
    t.args.num_heads_q = v[1];
    t.args.num_heads_kv = v[2];
    t.args.seqlen_q = v[3];
    t.args.seqlen_k = v[4];
    const double elements = (double)v[0] * (double)v[1] * (double)v[3] + (double)v[0] * (double)v[2] * (double)v[4];
    if (elements * FK_MAX_HEAD_DIM > 0x1p42)
        return cli_fail(CLI_BAD_INPUT, "--random: the tensors have %.3g rows; 2^34 is the limit", elements);
    cli_exit code = complete(&t, problem);
    if (code == CLI_OK) {
        const uint64_t seed = shape->count > 5 ? (uint64_t)v[5] : 0;
        t.q = draw(t.q_bytes, 3 * seed, problem->dtype);
        t.k = draw(t.k_bytes, 3 * seed + 1, problem->dtype);
        t.v = draw(t.v_bytes, 3 * seed + 2, problem->dtype);
        if (!t.q || !t.k || !t.v) code = cli_fail(CLI_FAILED, "no memory for random q, k and v");
    }
    if (code != CLI_OK) {
        tensors_free(&t);
        return code;
    }
    point_args(&t);
    *out = t;
    return CLI_OK;
}

/* ---- results ---------------------------------------------------------------------------------------------- */

static cli_exit stage_o(const tensors *t, const fk_problem *p, output *file, const char *path, bool as_float32) {
    const fk_args *a = &t->args;
    npy_array array = {p->dtype == FK_BF16 ? NPY_BITS : NPY_FP16, 4, {0}, (int64_t)(t->o_bytes / 2), t->o};
    float *values = NULL;
    shape_of(t->layout, a->batch, a->seqlen_q, a->num_heads_q, p->head_dim_v, array.shape);
    if (as_float32) {
        values = malloc(2 * t->o_bytes);
        if (!values) return cli_fail(CLI_FAILED, "no memory for o in float32, %zu bytes", 2 * t->o_bytes);
        for (int64_t i = 0; i < array.count; i++)
            values[i] = half_value(t->o[i], p->dtype);
        array.type = NPY_FP32;
        array.data = values;
    }
    const cli_exit code = output_open(file, path);
    if (code == CLI_OK) npy_write(file->file, &array);
    free(values);
    return code;
}

static cli_exit stage_lse(const tensors *t, output *file, const char *path) {
    const fk_args *a = &t->args;
    const npy_array array = {
        NPY_FP32, 3, {a->batch, a->num_heads_q, a->seqlen_q}, (int64_t)(t->lse_bytes / sizeof(float)), t->lse};
    const cli_exit code = output_open(file, path);
    if (code == CLI_OK) npy_write(file->file, &array);
    return code;
}

cli_exit tensors_write(const tensors *t, const fk_problem *problem, const char *o_path, const char *lse_path,
                       bool as_float32) {
    output o = {0}, lse = {0};
    cli_exit code = CLI_OK;
    if (o_path) code = stage_o(t, problem, &o, o_path, as_float32);
    if (code == CLI_OK && lse_path) code = stage_lse(t, &lse, lse_path);
    if (code == CLI_OK) code = output_finish(&o);
    if (code == CLI_OK) code = output_finish(&lse);
    if (code == CLI_OK) code = output_commit(&o);
    if (code == CLI_OK) code = output_commit(&lse);
    output_discard(&o);
    output_discard(&lse);
    return code;
}
