/* Packed sequences on a real GPU: unequal lengths, more sequences than a grid's y and z count, plans for other GPUs,
 * NaNs in rows of no sequence and in keys that are not used, new lengths under the same arguments. Skips itself, by
 * name, without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "runtime/emulator/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct packed_case {
    const char *spelling, *plan_for; /* a backward problem; null: the device itself */
    int64_t batch, num_heads_q, num_heads_kv;
    int64_t longest, others; /* the first sequence's length, and the most that the others have */
} packed_case;

enum { LENGTHS_Q, LENGTHS_K, USED_K, NUM_LENGTHS };
enum { T_Q, T_K, T_V, T_O, T_DOUT, T_DQ, T_DK, T_DV, NUM_TENSORS };
static const char *const tensor_name[NUM_TENSORS] = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"};

typedef struct packed_run {
    const packed_case *c;
    fk_problem forward, backward;
    fk_context *context;
    fk_args args, host;
    int32_t *lengths[NUM_LENGTHS];
    uint16_t *data[NUM_TENSORS];
    void *device[NUM_TENSORS], *device_lengths[NUM_LENGTHS], *device_lse;
    size_t elements[NUM_TENSORS], rows_q;
} packed_run;

static bool of_keys(int tensor) {
    return tensor == T_K || tensor == T_V || tensor == T_DK || tensor == T_DV;
}

static void call(fk_status status) {
    if (status) fail_msg("%s", fk_last_error());
}

static void *allocate(size_t bytes) {
    void *out = malloc(bytes);
    assert_non_null(out);
    memset(out, 0xff, bytes);
    return out;
}

static uint32_t next(uint32_t *state) {
    return (*state = *state * 1664525u + 1013904223u) >> 8;
}

/* Rows of no sequence before the first one and behind the last. */
static void draw_lengths(packed_run *r, uint32_t seed) {
    const packed_case *c = r->c;
    for (int side = 0; side < 2; side++) {
        int32_t *cu = r->lengths[side];
        cu[0] = (int32_t)(next(&seed) % 20);
        for (int64_t b = 0; b < c->batch; b++)
            cu[b + 1] = cu[b] + (int32_t)(b == 0 ? c->longest : (int64_t)next(&seed) % (c->others + 1));
    }
    for (int64_t b = 0; b < c->batch; b++)
        r->lengths[USED_K][b] = (int32_t)(next(&seed) % (uint32_t)(c->longest + 5));
}

static bool is_used(const packed_run *r, int64_t b, int64_t key) {
    return !r->backward.seqused_k || key < r->lengths[USED_K][b];
}

/* Numbers in rows of sequences, in used keys; NaN elsewhere. */
static void fill(packed_run *r, int tensor) {
    const int32_t *cu = r->lengths[of_keys(tensor) ? LENGTHS_K : LENGTHS_Q];
    const int64_t rows = of_keys(tensor) ? r->host.total_k : r->host.total_q;
    const size_t width = r->elements[tensor] / (size_t)rows;
    uint32_t seed = (uint32_t)tensor + 1;
    memset(r->data[tensor], 0xff, r->elements[tensor] * 2);
    for (int64_t b = 0; b < r->c->batch && (tensor <= T_V || tensor == T_DOUT); b++)
        for (int64_t row = cu[b]; row < cu[b + 1]; row++)
            for (size_t i = 0; i < width && (!of_keys(tensor) || is_used(r, b, row - cu[b])); i++) {
                const float x = ((float)next(&seed) + (float)next(&seed) - 16777216.0f) / 6000000.0f;
                r->data[tensor][(size_t)row * width + i] =
                    r->backward.dtype == FK_BF16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
            }
    call(fk_copy_to_device(r->context, r->device[tensor], r->data[tensor], r->elements[tensor] * 2));
}

static void point(fk_args *a, void *const t[NUM_TENSORS]) {
    a->q = t[T_Q], a->k = t[T_K], a->v = t[T_V], a->o = t[T_O], a->dout = t[T_DOUT];
    a->dq = t[T_DQ], a->dk = t[T_DK], a->dv = t[T_DV];
}

static void make(packed_run *r) {
    const packed_case *c = r->c;
    fk_args a = FK_ARGS_INIT;
    a.batch = c->batch, a.num_heads_q = c->num_heads_q, a.num_heads_kv = c->num_heads_kv;
    a.seqlen_q = a.seqlen_k = c->longest;
    a.total_q = a.total_k = c->longest + c->batch * c->others + 40;
    call(fk_args_layout(&r->backward, FK_BSHD, &a));
    r->rows_q = (size_t)(a.num_heads_q * a.total_q);
    void *host[NUM_TENSORS];
    for (int i = 0; i < NUM_TENSORS; i++) {
        const bool values = i == T_V || i == T_O || i == T_DOUT || i == T_DV;
        const int64_t heads = of_keys(i) ? a.num_heads_kv : a.num_heads_q;
        r->elements[i] = (size_t)(a.total_q * heads * (values ? r->backward.head_dim_v : r->backward.head_dim));
        host[i] = r->data[i] = allocate(r->elements[i] * 2);
        call(fk_device_malloc(r->context, r->elements[i] * 2, &r->device[i]));
    }
    for (int i = 0; i < NUM_LENGTHS; i++) {
        const size_t bytes = (size_t)(c->batch + 1) * sizeof(int32_t);
        r->lengths[i] = allocate(bytes);
        call(fk_device_malloc(r->context, bytes, &r->device_lengths[i]));
    }
    call(fk_device_malloc(r->context, r->rows_q * sizeof(float), &r->device_lse));
    r->args = r->host = a;
    point(&r->args, r->device);
    point(&r->host, host);
    r->args.lse = r->device_lse;
    r->args.cu_seqlens_q = r->device_lengths[LENGTHS_Q], r->host.cu_seqlens_q = r->lengths[LENGTHS_Q];
    r->args.cu_seqlens_k = r->device_lengths[LENGTHS_K], r->host.cu_seqlens_k = r->lengths[LENGTHS_K];
    r->args.seqused_k = r->device_lengths[USED_K], r->host.seqused_k = r->lengths[USED_K];
}

static void release(packed_run *r) {
    for (int i = 0; i < NUM_TENSORS; i++) {
        free(r->data[i]);
        fk_device_free(r->context, r->device[i]);
    }
    for (int i = 0; i < NUM_LENGTHS; i++) {
        free(r->lengths[i]);
        fk_device_free(r->context, r->device_lengths[i]);
    }
    fk_device_free(r->context, r->device_lse);
}

static void execute(packed_run *r, const fk_problem *p) {
    fk_kernel *kernel;
    void *workspace = NULL;
    call(fk_kernel_create(r->context, p, &kernel));
    const size_t bytes = fk_kernel_workspace(kernel, &r->args);
    if (bytes) call(fk_device_malloc(r->context, bytes, &workspace));
    call(fk_execute(kernel, &r->args, workspace, bytes, NULL));
    call(fk_synchronize(r->context, NULL));
    fk_device_free(r->context, workspace);
    fk_kernel_destroy(kernel);
}

/* Against float64; rows of no sequence must still be NaN. `exact` and `eager`: [heads, total, dim]. */
static void check(const packed_run *r, int tensor, const double *exact, const double *eager) {
    const int32_t *cu = r->lengths[of_keys(tensor) ? LENGTHS_K : LENGTHS_Q];
    const int64_t heads = of_keys(tensor) ? r->c->num_heads_kv : r->c->num_heads_q, total = r->host.total_q;
    const int64_t dim = (int64_t)r->elements[tensor] / (heads * total);
    double ours = 0, theirs = 1e-7;
    for (int64_t row = 0; row < total; row++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < dim; i++) {
                const uint16_t bits = r->data[tensor][(row * heads + h) * dim + i];
                const int64_t at = (h * total + row) * dim + i;
                const double got =
                    (double)(r->backward.dtype == FK_BF16 ? fk_bf16_to_float(bits) : fk_fp16_to_float(bits));
                const bool exists = row >= cu[0] && row < cu[r->c->batch];
                if (exists != (bits != 0xffff) || (exists && !isfinite(got)))
                    fail_msg("%s: %s, row %d, head %d is %g", r->c->spelling, tensor_name[tensor], (int)row, (int)h,
                             got);
                if (!exists) continue;
                ours = fmax(ours, fabs(got - exact[at]));
                theirs = fmax(theirs, fabs(eager[at] - exact[at]));
            }
    print_message("%s for %s, %d sequences: error of %s %.2e, eager %.2e\n", r->c->spelling,
                  r->c->plan_for ? r->c->plan_for : "this GPU", (int)r->c->batch, tensor_name[tensor], ours, theirs);
    assert_true(ours <= 2 * theirs);
}

static void compare(packed_run *r) {
    static const int results[] = {T_O, T_DQ, T_DK, T_DV};
    double *value[2][4];
    for (int n = 0; n < 4; n++) {
        call(fk_copy_from_device(r->context, r->data[results[n]], r->device[results[n]], r->elements[results[n]] * 2));
        for (int kind = 0; kind < 2; kind++)
            value[kind][n] = allocate(r->elements[results[n]] * sizeof(double));
    }
    for (int kind = 0; kind < 2; kind++) {
        const fk_reference_kind k = kind ? FK_REFERENCE_EAGER : FK_REFERENCE_F64;
        double **v = value[kind];
        call(fk_reference(&r->forward, &r->host, k, v[0], NULL));
        call(fk_reference_backward(&r->backward, &r->host, k, v[1], v[2], v[3]));
    }
    for (int n = 0; n < 4; n++) {
        check(r, results[n], value[0][n], value[1][n]);
        free(value[0][n]);
        free(value[1][n]);
    }
}

/* Twice with the same arguments, but for what the arrays hold. */
static void run(const packed_case *c) {
    packed_run r = {.c = c};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = "cuda:0", options.plan_for = c->plan_for, options.cache_mode = FK_CACHE_OFF;
    call(fk_context_create(&options, &r.context));
    call(fk_problem_parse(c->spelling, &r.backward));
    r.forward = r.backward;
    r.forward.op = FK_FORWARD;
    r.forward.deterministic = 0;
    make(&r);
    for (uint32_t version = 1; version <= 2; version++) {
        draw_lengths(&r, version);
        for (int i = 0; i < NUM_LENGTHS; i++)
            call(fk_copy_to_device(r.context, r.device_lengths[i], r.lengths[i],
                                   (size_t)(c->batch + 1) * sizeof(int32_t)));
        for (int i = 0; i < NUM_TENSORS; i++)
            fill(&r, i);
        execute(&r, &r.forward);
        execute(&r, &r.backward);
        compare(&r);
    }
    release(&r);
    fk_context_destroy(r.context);
}

static void unequal_lengths(void **state) {
    (void)state;
    static const packed_case cases[] = {
        {"bwd bf16 d128 packed causal", NULL, 40, 4, 4, 2000, 150},
        {"bwd fp16 d64 gqa packed seqused_k causal", NULL, 9, 8, 2, 1000, 400},
        {"bwd bf16 d128 packed window(200,0) deterministic", NULL, 17, 2, 2, 1500, 300},
        {"bwd fp16 d96 dv40 packed top-left causal", NULL, 33, 3, 3, 700, 90},
        {"bwd bf16 d64 packed keep=\"(q + 2 * k) % 7 != 3\"", NULL, 12, 2, 2, 500, 300},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run(&cases[i]);
}

static void plans_for_other_gpus(void **state) {
    (void)state;
    run(&(packed_case){"bwd fp16 d64 packed seqused_k causal", "t4", 20, 2, 2, 500, 140});
    run(&(packed_case){"bwd bf16 d128 gqa packed causal", "rtx3090", 20, 4, 2, 500, 140});
    run(&(packed_case){"bwd bf16 d64 packed deterministic", "a100", 20, 2, 2, 500, 140});
}

static void many_sequences(void **state) {
    (void)state;
    run(&(packed_case){"bwd fp16 d32 packed causal", NULL, 70000, 2, 2, 300, 3});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unequal_lengths),
        cmocka_unit_test(plans_for_other_gpus),
        cmocka_unit_test(many_sequences),
    };
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/packed_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
