/* What the graph tests run: a problem with inputs on the GPU, NaNs behind the end of every sequence, and what a replay
 * may change kept in device memory, in two versions. */
#ifndef FK_TESTS_GRAPH_SAMPLE_H
#define FK_TESTS_GRAPH_SAMPLE_H

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

enum { TAIL = 3, PAGE = 24, MAX_OUTPUTS = 6, MAX_BUFFERS = 32 };
enum { NAN_BITS = 0xffff }; /* in fp16 and in bf16; as bytes, of a float too */

typedef struct graph_case {
    const char *spelling;
    int64_t batch, num_heads_q, num_heads_kv, seqlen_q, seqlen_k;
    bool changes; /* the second version of the device-resident state gives another result */
} graph_case;

typedef struct output {
    void *device, *host[2]; /* results of the two versions */
    size_t bytes;
    bool exact, halves; /* bitwise equal from run to run; of fp16 or bf16, else float */
} output;

typedef struct graph_sample {
    fk_context *context;
    const graph_case *c;
    fk_problem p;
    fk_args args;
    fk_kernel *forward, *backward;
    void *workspace, *forward_workspace, *buffer[MAX_BUFFERS];
    size_t workspace_bytes, forward_workspace_bytes;
    output out[MAX_OUTPUTS];
    int num_buffers, num_outputs;
    uint32_t seed;
} graph_sample;

static inline void *graph_device(graph_sample *s, size_t bytes) {
    void *memory;
    assert_true(s->num_buffers < MAX_BUFFERS);
    if (fk_device_malloc(s->context, bytes + 256, &memory)) fail_msg("%s", fk_last_error());
    s->buffer[s->num_buffers++] = memory;
    return memory;
}

static inline void graph_copy(graph_sample *s, void *device, const void *host, size_t bytes) {
    if (fk_copy_to_device(s->context, device, host, bytes)) fail_msg("%s", fk_last_error());
}

/* ---- tensors ---- */

/* [outer, rows + TAIL, width] of 2-byte elements: numbers (or, for outputs, nothing yet) in the rows, NaNs behind them.
 */
static inline void *graph_tensor(graph_sample *s, size_t outer, size_t rows, size_t width, bool numbers) {
    const size_t all = outer * (rows + TAIL) * width;
    uint16_t *host = malloc(all * 2);
    assert_non_null(host);
    memset(host, 0xff, all * 2);
    for (size_t i = 0; numbers && i < all; i++) {
        if (i / width % (rows + TAIL) >= rows) continue;
        s->seed = s->seed * 1664525u + 1013904223u;
        const float x = (float)(s->seed >> 8) / 8388608.0f - 1.0f;
        host[i] = s->p.dtype == FK_BF16 ? fk_bf16_from_float(x) : fk_fp16_from_float(x);
    }
    void *device = graph_device(s, all * 2);
    graph_copy(s, device, host, all * 2);
    free(host);
    return device;
}

static inline void graph_output(graph_sample *s, void *device, size_t bytes, bool exact, bool halves) {
    output *o = &s->out[s->num_outputs++];
    *o = (output){device, {malloc(bytes), malloc(bytes)}, bytes, exact, halves};
    assert_true(o->host[0] && o->host[1] && s->num_outputs <= MAX_OUTPUTS);
}

static inline void graph_stride(int64_t stride[3], int64_t rows, int64_t heads, int64_t dim) {
    stride[0] = (rows + TAIL) * heads * dim, stride[1] = heads * dim, stride[2] = dim;
}

/* Sequences of a packed batch lie in one tensor; keys of a paged one in pages, each with a tail of its own. */
static inline void graph_tensors(graph_sample *s) {
    fk_args *a = &s->args;
    const bool packed = s->p.packed, paged = s->p.paged, backward = s->p.op == FK_BACKWARD;
    const int64_t d = s->p.head_dim, dv = s->p.head_dim_v, hq = a->num_heads_q, hkv = a->num_heads_kv;
    const int64_t outer_q = packed ? 1 : a->batch, rows_q = packed ? a->batch * a->seqlen_q : a->seqlen_q;
    const int64_t pages = a->batch * ((a->seqlen_k + PAGE - 1) / PAGE);
    const int64_t outer_k = paged ? pages : outer_q, rows_k = paged    ? PAGE
                                                              : packed ? a->batch * a->seqlen_k
                                                                       : a->seqlen_k;
    const size_t q_width = (size_t)(hq * d), o_width = (size_t)(hq * dv), k_width = (size_t)(hkv * d),
                 v_width = (size_t)(hkv * dv);
    graph_stride(a->q_stride, rows_q, hq, d), graph_stride(a->o_stride, rows_q, hq, dv);
    graph_stride(a->k_stride, rows_k, hkv, d), graph_stride(a->v_stride, rows_k, hkv, dv);
    a->total_q = rows_q + TAIL, a->total_k = rows_k + TAIL;
    a->q = graph_tensor(s, (size_t)outer_q, (size_t)rows_q, q_width, true);
    a->k = graph_tensor(s, (size_t)outer_k, (size_t)rows_k, k_width, true);
    a->v = graph_tensor(s, (size_t)outer_k, (size_t)rows_k, v_width, true);
    a->o = graph_tensor(s, (size_t)outer_q, (size_t)rows_q, o_width, false);
    const size_t lse_bytes = (size_t)(hq * (packed ? a->total_q : a->batch * a->seqlen_q)) * sizeof(float);
    a->lse = graph_device(s, lse_bytes);
    graph_output(s, a->o, (size_t)(outer_q * (rows_q + TAIL)) * o_width * 2, true, true);
    graph_output(s, a->lse, lse_bytes, true, false);
    if (!backward) return;
    memcpy(a->dout_stride, a->o_stride, sizeof a->o_stride), memcpy(a->dq_stride, a->q_stride, sizeof a->q_stride);
    memcpy(a->dk_stride, a->k_stride, sizeof a->k_stride), memcpy(a->dv_stride, a->v_stride, sizeof a->v_stride);
    a->dout = graph_tensor(s, (size_t)outer_q, (size_t)rows_q, o_width, true);
    a->dq = graph_tensor(s, (size_t)outer_q, (size_t)rows_q, q_width, false);
    a->dk = graph_tensor(s, (size_t)outer_k, (size_t)rows_k, k_width, false);
    a->dv = graph_tensor(s, (size_t)outer_k, (size_t)rows_k, v_width, false);
    graph_output(s, a->dq, (size_t)(outer_q * (rows_q + TAIL)) * q_width * 2, s->p.deterministic, true);
    graph_output(s, a->dk, (size_t)(outer_k * (rows_k + TAIL)) * k_width * 2, true, true);
    graph_output(s, a->dv, (size_t)(outer_k * (rows_k + TAIL)) * v_width * 2, true, true);
}

/* The arrays that the spellings here declare: `slope`, one float a head, and its gradient. */
static inline void graph_arrays(graph_sample *s) {
    float slope[64];
    if (!s->p.num_scores) return;
    for (int i = 0; i < 64; i++)
        slope[i] = 0.01f * (float)(i + 1);
    void *device = graph_device(s, sizeof slope);
    graph_copy(s, device, slope, sizeof slope);
    s->args.array[0] = (fk_array){.data = device, .stride = {1}};
    if (!s->p.grad) return;
    s->args.array_grad[0] = (fk_array_grad){.data = graph_device(s, sizeof slope), .stride = {1}};
    graph_output(s, s->args.array_grad[0].data, (size_t)s->args.num_heads_q * sizeof(float), s->p.deterministic, false);
}

/* ---- what a replay may change ---- */

/* Version 0 or 1 of seed and offset, boundaries of sequences, lengths and pages, to where the arguments point. */
static inline void graph_state(graph_sample *s, int version) {
    const fk_args *a = &s->args;
    const int64_t batch = a->batch, pages = (a->seqlen_k + PAGE - 1) / PAGE;
    int32_t cu_q[16] = {0}, cu_k[16] = {0}, used[16], table[512];
    const uint64_t dropout[2] = {0x1234567890abcdef + (uint64_t)version, 77};
    for (int b = 0; b < batch; b++) { /* inner boundaries move; no sequence is longer than seqlen */
        const bool inner = b + 1 < batch;
        cu_q[b + 1] = (int32_t)((b + 1) * s->c->seqlen_q - (inner ? 5 * (b + 1) + 3 * version : 0));
        cu_k[b + 1] = (int32_t)((b + 1) * s->c->seqlen_k - (inner ? 7 * (b + 1) + 2 * version : 0));
        used[b] = (int32_t)(a->seqlen_k - 9 * b - 11 * version);
    }
    if (batch > 1) cu_q[batch] = cu_q[batch - 1] + 1, cu_k[batch] = cu_k[batch - 1]; /* one query, and no key */
    assert_true(batch < 16 && batch * pages <= 512);
    for (int i = 0; i < batch * pages; i++) /* version 1 goes through the pages backwards */
        table[i] = version ? (int32_t)(batch * pages) - 1 - i : i;
    if (s->p.dropout) graph_copy(s, (void *)(uintptr_t)a->dropout_state, dropout, sizeof dropout);
    if (s->p.packed) {
        graph_copy(s, (void *)(uintptr_t)a->cu_seqlens_q, cu_q, sizeof cu_q);
        graph_copy(s, (void *)(uintptr_t)a->cu_seqlens_k, cu_k, sizeof cu_k);
    }
    if (s->p.seqused_k) graph_copy(s, (void *)(uintptr_t)a->seqused_k, used, sizeof used);
    if (s->p.paged) graph_copy(s, (void *)(uintptr_t)a->page_table, table, (size_t)(batch * pages) * sizeof *table);
}

static inline void graph_pointers(graph_sample *s) {
    fk_args *a = &s->args;
    const int64_t pages = (a->seqlen_k + PAGE - 1) / PAGE;
    if (s->p.dropout) a->dropout_p = 0.2, a->dropout_state = graph_device(s, 2 * sizeof(uint64_t));
    if (s->p.packed) a->cu_seqlens_q = graph_device(s, 64), a->cu_seqlens_k = graph_device(s, 64);
    if (s->p.packed)
        a->seqlen_q += 32, a->seqlen_k += 32; /* at least the longest: a sequence may gain from its neighbour */
    if (s->p.seqused_k) a->seqused_k = graph_device(s, 64);
    if (s->p.split) a->num_splits = 3;
    if (!s->p.paged) return;
    a->page_table = graph_device(s, (size_t)(a->batch * pages) * sizeof(int32_t));
    a->page_table_stride = pages, a->page_size = PAGE, a->num_pages = a->batch * pages;
}

/* ---- the whole ---- */

static inline void *graph_workspace(graph_sample *s, const fk_kernel *kernel, size_t *bytes) {
    *bytes = fk_kernel_workspace(kernel, &s->args);
    return *bytes ? graph_device(s, *bytes) : NULL;
}

static inline void graph_make(fk_context *context, const graph_case *c, graph_sample *s) {
    *s = (graph_sample){.context = context, .c = c, .args = FK_ARGS_INIT, .seed = 1};
    fk_args *a = &s->args;
    if (fk_problem_parse(c->spelling, &s->p) || fk_problem_canonical(&s->p, &s->p)) fail_msg("%s", fk_last_error());
    a->batch = c->batch, a->num_heads_q = c->num_heads_q, a->num_heads_kv = c->num_heads_kv;
    a->seqlen_q = c->seqlen_q, a->seqlen_k = c->seqlen_k;
    graph_tensors(s);
    graph_arrays(s);
    graph_pointers(s);
    fk_problem forward = s->p;
    forward.op = FK_FORWARD, forward.deterministic = forward.grad = 0;
    if (fk_kernel_create(context, &forward, &s->forward)) fail_msg("%s: %s", c->spelling, fk_last_error());
    s->forward_workspace = graph_workspace(s, s->forward, &s->forward_workspace_bytes);
    if (s->p.op != FK_BACKWARD) return;
    if (fk_kernel_create(context, &s->p, &s->backward)) fail_msg("%s: %s", c->spelling, fk_last_error());
    s->workspace = graph_workspace(s, s->backward, &s->workspace_bytes);
}

static inline void graph_free(graph_sample *s) {
    fk_kernel_destroy(s->forward);
    fk_kernel_destroy(s->backward);
    for (int i = 0; i < s->num_buffers; i++)
        fk_device_free(s->context, s->buffer[i]);
    for (int i = 0; i < s->num_outputs; i++)
        free(s->out[i].host[0]), free(s->out[i].host[1]);
}

/** Enqueues the forward pass and, for a backward problem, the backward pass behind it. */
static inline void graph_enqueue(graph_sample *s, void *stream) {
    if (fk_execute(s->forward, &s->args, s->forward_workspace, s->forward_workspace_bytes, stream) ||
        (s->backward && fk_execute(s->backward, &s->args, s->workspace, s->workspace_bytes, stream)))
        fail_msg("%s: %s", s->c->spelling, fk_last_error());
}

static inline void graph_poison(graph_sample *s) {
    for (int i = 0; i < s->num_outputs; i++) {
        void *nan = malloc(s->out[i].bytes);
        assert_non_null(nan);
        memset(nan, 0xff, s->out[i].bytes);
        graph_copy(s, s->out[i].device, nan, s->out[i].bytes);
        free(nan);
    }
}

#endif
