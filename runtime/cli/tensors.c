#include "tensors.h"
#include "half.h"
#include "npy.h"
#include "output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const axis_names[2][4] = {{"batch", "seqlen", "heads", "dim"}, {"batch", "heads", "seqlen", "dim"}};

/* Places of the axes in a file's shape. */
static int seqlen_axis(int layout) {
    return layout == FK_BSHD ? 1 : 2;
}
static int heads_axis(int layout) {
    return layout == FK_BSHD ? 2 : 1;
}

static void shape_of(const tensors *t, const fk_problem *p, tensor which, int64_t out[4]) {
    const fk_args *a = &t->args;
    const bool keys = which == TENSOR_K || which == TENSOR_V || which == TENSOR_DK || which == TENSOR_DV;
    const bool values = which == TENSOR_V || which == TENSOR_O || which == TENSOR_DOUT || which == TENSOR_DV;
    out[0] = p->packed ? 1 : a->batch;
    out[seqlen_axis(t->layout)] = p->packed ? (keys ? a->total_k : a->total_q) : keys ? a->seqlen_k : a->seqlen_q;
    out[heads_axis(t->layout)] = keys ? a->num_heads_kv : a->num_heads_q;
    out[3] = values ? p->head_dim_v : p->head_dim;
}

void tensors_point(fk_args *args, void *const data[NUM_TENSORS], int count) {
    args->q = data[TENSOR_Q];
    args->k = data[TENSOR_K];
    args->v = data[TENSOR_V];
    args->o = data[TENSOR_O];
    args->lse = data[TENSOR_LSE];
    if (count <= TENSOR_DOUT) return;
    args->dout = data[TENSOR_DOUT];
    args->dq = data[TENSOR_DQ];
    args->dk = data[TENSOR_DK];
    args->dv = data[TENSOR_DV];
}

static int32_t dtype_of(const fk_problem *p, tensor which) {
    if (which == TENSOR_K || which == TENSOR_V) return kv_dtype(p);
    return which == TENSOR_O ? output_dtype(p->dtype) : p->dtype;
}

/* Sizes in args are set: checks the heads, fills strides and byte counts, and allocates what is not there: NaN, until
 * the device's is copied over it. */
static cli_exit complete(tensors *t, const fk_problem *p) {
    const fk_args *a = &t->args;
    if (!p->gqa && a->num_heads_q != a->num_heads_kv)
        return cli_fail(CLI_BAD_INPUT,
                        "num_heads_kv is %lld; num_heads_q is %lld and both must be equal unless gqa is spelled",
                        (long long)a->num_heads_kv, (long long)a->num_heads_q);
    if (a->num_heads_q % a->num_heads_kv != 0)
        return cli_fail(CLI_BAD_INPUT, "num_heads_q is %lld; a multiple of num_heads_kv, %lld, is needed",
                        (long long)a->num_heads_q, (long long)a->num_heads_kv);
    const fk_status status = fk_args_layout(p, (fk_layout)t->layout, &t->args);
    if (status != FK_OK) return cli_fail_status(status);
    for (int i = 0; i < t->count; i++) {
        int64_t shape[4];
        shape_of(t, p, (tensor)i, shape);
        const size_t rows = (size_t)(shape[0] * shape[1]) * (size_t)shape[2];
        const int32_t dtype = dtype_of(p, (tensor)i);
        t->bytes[i] = i == TENSOR_LSE ? sizeof(float) * rows : element_bytes(dtype) * rows * (size_t)shape[3];
        if (t->data[i]) continue;
        t->data[i] = malloc(t->bytes[i]);
        if (!t->data[i]) return cli_fail(CLI_FAILED, "no memory for a tensor of %zu bytes", t->bytes[i]);
        memset(t->data[i], 0xff, t->bytes[i]);
    }
    tensors_point(&t->args, t->data, t->count);
    return CLI_OK;
}

static tensors begin(const fk_problem *p, int layout, const fk_args *lengths) {
    return (tensors){.args = *lengths, .layout = layout, .count = p->op == FK_BACKWARD ? NUM_TENSORS : TENSOR_DOUT};
}

void tensors_free(tensors *t) {
    for (int i = 0; i < NUM_TENSORS; i++)
        free(t->data[i]);
    *t = (tensors){.args = FK_ARGS_INIT};
}

/* ---- files ------------------------------------------------------------------------------------------------ */

static npy_type native_type(int32_t dtype) {
    static const npy_type types[] = {NPY_FP16, NPY_BITS, NPY_FP32, NPY_UINT8}; /* by fk_dtype; e4m3's are bits */
    return types[dtype];
}

cli_exit tensors_convert(const char *path, int32_t dtype, const npy_array *in, void **out) {
    const npy_type native = native_type(dtype);
    const char *name = dtype == FK_BF16 ? "bf16" : dtype == FK_E4M3 ? "e4m3" : "fp16";
    static const double largest[] = {65504.0, 3.3895314e38, 0, 448}; /* by fk_dtype */
    if (in->type != native && dtype == FK_FP32)
        return cli_fail(CLI_BAD_INPUT, "%s: dtype is %s; fp32 needs <f4", path, npy_type_name(in->type));
    if (in->type != NPY_FP32 && in->type != native)
        return cli_fail(CLI_BAD_INPUT, "%s: dtype is %s; %s needs %s or <f4", path, npy_type_name(in->type), name,
                        npy_type_name(native));
    const size_t bytes = (size_t)in->count * element_bytes(dtype);
    void *to = malloc(bytes);
    if (!to) return cli_fail(CLI_FAILED, "%s: no memory for %lld elements", path, (long long)in->count);
    if (in->type == native) memcpy(to, in->data, bytes);
    const float *values = in->data;
    for (int64_t i = 0; i < in->count && in->type != native; i++) {
        element_set(to, (size_t)i, values[i], dtype);
        const bool too_large = dtype == FK_E4M3 ? fabsf(values[i]) > 448 : !isfinite(element_get(to, (size_t)i, dtype));
        if (isfinite(values[i]) && too_large) {
            free(to);
            return cli_fail(CLI_BAD_INPUT, "%s: element %lld is %g; the largest %s is %g", path, (long long)i,
                            (double)values[i], name, largest[dtype]);
        }
    }
    *out = to;
    return CLI_OK;
}

static cli_exit read_tensor(const char *path, const fk_problem *p, int32_t dtype, void **out, int64_t shape[4]) {
    npy_array array = {0};
    char message[NPY_MESSAGE];
    cli_exit code = npy_read(path, 4 - p->packed, &array, message);
    if (code != CLI_OK) return cli_fail(code, "%s", message);
    shape[0] = 1;
    for (int i = 0; i < array.rank; i++)
        shape[i + p->packed] = array.shape[i];
    code = tensors_convert(path, dtype, &array, out);
    npy_free(&array);
    return code;
}

static cli_exit check_shape(const tensors *t, const fk_problem *p, const char *path, tensor which,
                            const int64_t have[4]) {
    static const char *const like[] = {"spelled", "in q", "in k", "", "", "in q"};
    int64_t want[4];
    shape_of(t, p, which, want);
    for (int i = 0; i < 4; i++)
        if (have[i] != want[i])
            return cli_fail(CLI_BAD_INPUT, "%s: shape[%d], %s, is %lld; %lld is needed, as %s", path, i - p->packed,
                            axis_names[t->layout][i], (long long)have[i], (long long)want[i],
                            i == 3 ? "spelled" : like[which]);
    return CLI_OK;
}

/* Rows behind the last sequence are no fault. */
static cli_exit check_totals(const char *const path[NUM_TENSORS], fk_args *args, int64_t rows_q, int64_t rows_k) {
    if (rows_q < args->total_q || rows_k < args->total_k) {
        const bool q = rows_q < args->total_q;
        return cli_fail(CLI_BAD_INPUT, "%s: has %lld rows; the sequences end at row %lld",
                        path[q ? TENSOR_Q : TENSOR_K], (long long)(q ? rows_q : rows_k),
                        (long long)(q ? args->total_q : args->total_k));
    }
    args->total_q = rows_q;
    args->total_k = rows_k;
    return CLI_OK;
}

/* Q and K give the sizes. */
static cli_exit read_all(const char *const path[NUM_TENSORS], const fk_problem *p, tensors *t) {
    static const tensor inputs[] = {TENSOR_Q, TENSOR_K, TENSOR_V, TENSOR_DOUT};
    const size_t count = t->count > TENSOR_DOUT ? 4 : 3;
    int64_t shape[4][4];
    const int s = seqlen_axis(t->layout), h = heads_axis(t->layout);
    cli_exit code = CLI_OK;
    for (size_t i = 0; i < count && code == CLI_OK; i++)
        code = read_tensor(path[inputs[i]], p, dtype_of(p, inputs[i]), &t->data[inputs[i]], shape[i]);
    if (code != CLI_OK) return code;
    t->args.num_heads_q = shape[0][h];
    t->args.num_heads_kv = shape[1][h];
    if (p->packed) {
        code = check_totals(path, &t->args, shape[0][s], shape[1][s]);
    } else {
        t->args.batch = shape[0][0];
        t->args.seqlen_q = shape[0][s];
        t->args.seqlen_k = shape[1][s];
    }
    for (size_t i = 0; i < count && code == CLI_OK; i++)
        code = check_shape(t, p, path[inputs[i]], inputs[i], shape[i]);
    return code == CLI_OK ? complete(t, p) : code;
}

cli_exit tensors_read(const char *const path[NUM_TENSORS], const fk_problem *problem, int layout,
                      const fk_args *lengths, tensors *out) {
    tensors t = begin(problem, layout, lengths);
    const cli_exit code = read_all(path, problem, &t);
    if (code == CLI_OK)
        *out = t;
    else
        tensors_free(&t);
    return code;
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

void tensors_draw_normal(uint64_t seed, int32_t dtype, void *out, size_t count) {
    for (size_t i = 0; i < count; i++)
        element_set(out, i, next_normal(&seed), dtype);
}

static void draw(const tensors *t, const fk_problem *p, tensor which, uint64_t seed) {
    const int32_t dtype = dtype_of(p, which);
    tensors_draw_normal(seed, dtype, t->data[which], t->bytes[which] / element_bytes(dtype));
}

cli_exit tensors_draw(const option_ints *shape, const fk_problem *problem, int layout, const fk_args *lengths,
                      tensors *out) {
    tensors t = begin(problem, layout, lengths);
    const int64_t *v = shape->value;
    t.args.batch = v[0];
    t.args.num_heads_q = v[1];
    t.args.num_heads_kv = v[2];
    if (!problem->packed) {
        t.args.seqlen_q = v[3];
        t.args.seqlen_k = v[4];
    }
    const double elements = (double)v[0] * (double)v[1] * (double)v[3] + (double)v[0] * (double)v[2] * (double)v[4];
    if (elements * FK_MAX_HEAD_DIM > 0x1p42)
        return cli_fail(CLI_BAD_INPUT, "--random: the tensors have %.3g rows; 2^34 is the limit", elements);
    const cli_exit code = complete(&t, problem);
    if (code != CLI_OK) {
        tensors_free(&t);
        return code;
    }
    const uint64_t seed = shape->count > 5 ? (uint64_t)v[5] : 0;
    draw(&t, problem, TENSOR_Q, 3 * seed);
    draw(&t, problem, TENSOR_K, 3 * seed + 1);
    draw(&t, problem, TENSOR_V, 3 * seed + 2);
    if (t.count > TENSOR_DOUT) draw(&t, problem, TENSOR_DOUT, ~seed);
    *out = t;
    return CLI_OK;
}

/* ---- results ---------------------------------------------------------------------------------------------- */

static cli_exit stage(const tensors *t, const fk_problem *p, tensor which, output *file, const char *path,
                      bool as_float32) {
    const int32_t dtype = output_dtype(p->dtype);
    npy_array array = {native_type(dtype), 4, {0}, (int64_t)(t->bytes[which] / element_bytes(dtype)), t->data[which]};
    float *values = NULL;
    int64_t shape[4];
    shape_of(t, p, which, shape);
    array.rank -= p->packed;
    memcpy(array.shape, shape + p->packed, (size_t)array.rank * sizeof *shape);
    if (which == TENSOR_LSE) {
        array = (npy_array){NPY_FP32,
                            3 - p->packed,
                            {p->packed ? t->args.num_heads_q : t->args.batch,
                             p->packed ? t->args.total_q : t->args.num_heads_q, t->args.seqlen_q},
                            (int64_t)(t->bytes[which] / sizeof(float)),
                            t->data[which]};
    } else if (as_float32) {
        const size_t bytes = (size_t)array.count * sizeof *values;
        values = malloc(bytes);
        if (!values) return cli_fail(CLI_FAILED, "no memory for %s in float32, %zu bytes", path, bytes);
        for (int64_t i = 0; i < array.count; i++)
            values[i] = element_get(t->data[which], (size_t)i, dtype);
        array.type = NPY_FP32;
        array.data = values;
    }
    cli_exit code = output_open(file, path);
    if (code == CLI_OK) {
        npy_write(file->file, &array);
        code = output_finish(file); /* at once: errno is still that of a write that failed */
    }
    free(values);
    return code;
}

cli_exit tensors_write(const tensors *t, const fk_problem *problem, const char *const path[NUM_TENSORS],
                       bool as_float32) {
    output file[NUM_TENSORS] = {0};
    cli_exit code = CLI_OK;
    for (int i = TENSOR_O; i < t->count && code == CLI_OK; i++)
        if (i != TENSOR_DOUT && path[i]) code = stage(t, problem, (tensor)i, &file[i], path[i], as_float32);
    for (int i = 0; i < NUM_TENSORS && code == CLI_OK; i++)
        code = output_commit(&file[i]);
    for (int i = 0; i < NUM_TENSORS; i++)
        output_discard(&file[i]);
    return code;
}
