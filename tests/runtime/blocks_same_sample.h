/* A predicate over blocks, and a table with the same blocks in the same plan: the same results, bit by bit. */
#ifndef FK_TESTS_BLOCKS_SAME_SAMPLE_H
#define FK_TESTS_BLOCKS_SAME_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"
#include "launch.h"
#include "runtime/emulator/half.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAME_HEADS = 3, SAME_LENGTH = 330, SAME_DIM = 64, SAME_ROWS = SAME_HEADS * SAME_LENGTH };
enum { SAME_ELEMENTS = SAME_ROWS * SAME_DIM, SAME_INPUTS = 4 };
enum { SAME_O, SAME_LSE, SAME_DQ, SAME_DK, SAME_DV, SAME_OUTPUTS };
#define SAME_SEEN "(5 * i + 3 * j) % 7 < 3 || i == j"

/* On the device: q, k, v and dout; and the outputs. */
typedef struct same_tensors {
    void *in[SAME_INPUTS], *out[SAME_OUTPUTS], *bits;
    int64_t blocks, words;
} same_tensors;

static inline void *same_memory(fk_context *context, size_t bytes) {
    void *device;
    if (fk_device_malloc(context, bytes, &device)) fail_msg("%s", fk_last_error());
    return device;
}

static inline size_t same_bytes(int output) {
    return output == SAME_LSE ? SAME_ROWS * sizeof(float) : SAME_ELEMENTS * 2;
}

static inline same_tensors same_make(fk_context *context, int64_t block) {
    same_tensors t = {.blocks = (SAME_LENGTH + block - 1) / block};
    uint16_t *data = malloc(SAME_ELEMENTS * 2);
    uint32_t random = 1;
    assert_non_null(data);
    for (int n = 0; n < SAME_INPUTS; n++) {
        for (int i = 0; i < SAME_ELEMENTS; i++) {
            random = random * 1664525u + 1013904223u;
            data[i] = fk_bf16_from_float((float)(random >> 8) / 8388608.0f - 1.0f);
        }
        t.in[n] = same_memory(context, SAME_ELEMENTS * 2);
        if (fk_copy_to_device(context, t.in[n], data, SAME_ELEMENTS * 2)) fail_msg("%s", fk_last_error());
    }
    free(data);
    for (int n = 0; n < SAME_OUTPUTS; n++)
        t.out[n] = same_memory(context, SAME_ELEMENTS * 2);
    t.words = (t.blocks + 31) / 32;
    int32_t *bits = calloc((size_t)(t.blocks * t.words), 4);
    assert_non_null(bits);
    for (int64_t i = 0; i < t.blocks; i++)
        for (int64_t j = 0; j < t.blocks; j++)
            if ((5 * i + 3 * j) % 7 < 3 || i == j) bits[i * t.words + j / 32] |= (int32_t)(1u << j % 32);
    const size_t bytes = (size_t)(t.blocks * t.words) * 4;
    t.bits = same_memory(context, bytes);
    if (fk_copy_to_device(context, t.bits, bits, bytes)) fail_msg("%s", fk_last_error());
    free(bits);
    return t;
}

static inline void same_free(fk_context *context, same_tensors *t) {
    for (int n = 0; n < SAME_INPUTS; n++)
        fk_device_free(context, t->in[n]);
    for (int n = 0; n < SAME_OUTPUTS; n++)
        fk_device_free(context, t->out[n]);
    fk_device_free(context, t->bits);
}

/* Runs `spelling` and copies all outputs to `results`; the backward pass finds o and lse. */
static inline void same_run(fk_context *context, const char *spelling, const same_tensors *t, uint16_t *results) {
    fk_problem p;
    fk_kernel *kernel = NULL;
    fk_args a = FK_ARGS_INIT;
    a.batch = 1, a.num_heads_q = a.num_heads_kv = SAME_HEADS, a.seqlen_q = a.seqlen_k = SAME_LENGTH;
    a.q = t->in[0], a.k = t->in[1], a.v = t->in[2], a.dout = t->in[3];
    a.o = t->out[SAME_O], a.lse = t->out[SAME_LSE];
    a.dq = t->out[SAME_DQ], a.dk = t->out[SAME_DK], a.dv = t->out[SAME_DV];
    a.array[0] = (fk_array){
        .data = t->bits, .stride = {0, 0, t->words, 1}, .size = {[2] = (int32_t)t->blocks, [3] = (int32_t)t->words}};
    if (fk_problem_parse(spelling, &p) || fk_args_layout(&p, FK_BSHD, &a) || fk_kernel_create(context, &p, &kernel) ||
        launch_once(context, kernel, &a))
        fail_msg("%s: %s", spelling, fk_last_error());
    fk_kernel_destroy(kernel);
    for (int n = 0; n < SAME_OUTPUTS; n++)
        if (fk_copy_from_device(context, results + n * SAME_ELEMENTS, t->out[n], same_bytes(n)))
            fail_msg("%s", fk_last_error());
}

/* Outputs [first, last) of both, in a plan of `op`. */
static inline void same_compare(const char *device, const char *plan_for, const char *plan, const char *op, int block,
                                const same_tensors *t, int first, int last) {
    static uint16_t by_predicate[SAME_OUTPUTS * SAME_ELEMENTS], by_table[SAME_OUTPUTS * SAME_ELEMENTS];
    char predicate[160], table[160];
    const char *const words = first == SAME_DQ ? " deterministic" : "";
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = device, options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    options.planning.plan = plan;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    snprintf(predicate, sizeof predicate, "%s bf16 d64 blocks(%d)=\"%s\"%s", op, block, SAME_SEEN, words);
    snprintf(table, sizeof table, "%s bf16 d64 block_bits(%d)%s", op, block, words);
    same_run(context, predicate, t, by_predicate);
    same_run(context, table, t, by_table);
    for (int n = first; n < last; n++)
        if (memcmp(by_predicate + n * SAME_ELEMENTS, by_table + n * SAME_ELEMENTS, same_bytes(n)) != 0)
            fail_msg("%s, blocks of %d, %s: output %d of predicate and table differ", op, block, plan, n);
    fk_context_destroy(context);
}

/* Both passes of both families; dq's sum has no order but where that is asked for. */
static inline void same_run_all(const char *device, const char *plan_for, bool wgmma) {
    static const char *const plans[2][3] = {
        {"mma m64 n64 w4 s2 c2 r1", "mma m64 n64 w4 s1 c2", "mma m64 n64 w4 s1 c2 d1"},
        {"wgmma m128 n64 w20 s4 c1 q2 k4 t1 o2", "wgmma m128 n128 w12 s2 c1 q1 k3 t1 o1",
         "wgmma m64 n128 w12 s2 c1 q2 k2 o1"},
    };
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = device, options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    for (int block = 48; block <= 64; block += 16) {
        same_tensors t = same_make(context, block);
        same_compare(device, plan_for, plans[wgmma][0], "fwd", block, &t, SAME_O, SAME_DQ);
        same_compare(device, plan_for, plans[wgmma][1], "bwd", block, &t, SAME_DK, SAME_OUTPUTS);
        same_compare(device, plan_for, plans[wgmma][2], "bwd", block, &t, SAME_DQ, SAME_OUTPUTS);
        same_free(context, &t);
    }
    fk_context_destroy(context);
}

#endif
