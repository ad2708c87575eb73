/* Tables of blocks in each form, packed to bits on any device. */
#ifndef FK_TESTS_BLOCKS_SAMPLE_H
#define FK_TESTS_BLOCKS_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"

#include <stdlib.h>
#include <string.h>

typedef struct blocks_size {
    int64_t tables, rows, columns;
    int percent; /* that are shown */
} blocks_size;

static inline void *blocks_upload(fk_context *context, const void *host, size_t bytes) {
    void *device;
    if (fk_device_malloc(context, bytes, &device) || fk_copy_to_device(context, device, host, bytes))
        fail_msg("%s", fk_last_error());
    return device;
}

/* Packs `in`, whose pointers are the host's, and compares with `expected`; null: bits may hold anything. */
static inline void blocks_check(fk_context *context, const fk_kernel *kernel, const fk_blocks *in, size_t data_bytes,
                                size_t index_bytes, const int32_t *expected, size_t words) {
    fk_blocks on_device = *in;
    int32_t *bits = malloc(words * 4 + 8);
    assert_non_null(bits);
    memset(bits, 0x5a, words * 4 + 8); /* whatever was there; and nothing is written behind */
    void *out = blocks_upload(context, bits, words * 4 + 8), *data = blocks_upload(context, in->data, data_bytes);
    void *indices = in->indices ? blocks_upload(context, in->indices, index_bytes) : NULL;
    void *others = in->others ? blocks_upload(context, in->others, sizeof *in->others) : NULL;
    on_device.data = data, on_device.indices = indices, on_device.others = others;
    if (fk_pack_blocks(kernel, &on_device, out, NULL) || fk_synchronize(context, NULL) ||
        fk_copy_from_device(context, bits, out, words * 4 + 8) ||
        (others && fk_copy_from_device(context, in->others, others, sizeof *in->others)))
        fail_msg("%s", fk_last_error());
    if (expected) assert_memory_equal(bits, expected, words * 4);
    assert_int_equal(bits[words], 0x5a5a5a5a);
    fk_device_free(context, out);
    fk_device_free(context, data);
    fk_device_free(context, indices);
    fk_device_free(context, others);
    free(bits);
}

/* Bools in rows that are `width` apart. */
static inline void blocks_check_wide(fk_context *context, const fk_kernel *kernel, const blocks_size *s,
                                     const uint8_t *bools, int64_t width, const int32_t *expected) {
    const int64_t all = s->tables * s->rows, words = (s->columns + 31) / 32;
    uint8_t *wide = malloc((size_t)(all * width));
    assert_non_null(wide);
    memset(wide, 0xff, (size_t)(all * width)); /* what lies between rows is none of them */
    for (int64_t row = 0; row < all; row++)
        memcpy(wide + row * width, bools + row * s->columns, (size_t)s->columns);
    const fk_blocks in = {sizeof in, FK_BLOCK_BOOLS, s->tables, s->rows, s->columns, width, wide, NULL, NULL};
    blocks_check(context, kernel, &in, (size_t)(all * width), 0, expected, (size_t)(all * words));
    free(wide);
}

/* Floats in rows that are `width` apart: -inf where a bool is 0, else 0, by turns -0. Of what `odd` is where the last
 * bool is not 0, the word is said. */
static inline void blocks_check_floats(fk_context *context, const fk_kernel *kernel, const blocks_size *s,
                                       const uint8_t *bools, int64_t width, const int32_t *expected) {
    static const struct {
        fk_block_format format;
        size_t bytes;
        uint32_t lowest, odd;
    } forms[] = {
        {FK_BLOCK_FP32, 4, 0xff800000, 1}, {FK_BLOCK_FP16, 2, 0xfc00, 0x7e00}, {FK_BLOCK_BF16, 2, 0xff80, 0x3f80}};
    const int64_t all = s->tables * s->rows, words = (s->columns + 31) / 32;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const size_t bytes = forms[i].bytes, size = (size_t)(all * width) * bytes;
        const uint32_t minus_zero = 1u << (8 * bytes - 1);
        char *added = malloc(size);
        assert_non_null(added);
        memset(added, 0x11, size); /* what lies between rows is none of them */
        size_t last = size;
        for (int64_t n = 0; n < all * s->columns; n++) {
            const uint32_t element = bools[n] == 0 ? forms[i].lowest : n % 2 ? minus_zero : 0;
            const size_t at = (size_t)(n / s->columns * width + n % s->columns) * bytes;
            memcpy(added + at, &element, bytes);
            if (bools[n]) last = at;
        }
        fk_blocks in = {sizeof in, (int32_t)forms[i].format, s->tables, s->rows, s->columns, width, added, NULL, NULL};
        blocks_check(context, kernel, &in, size, 0, expected, (size_t)(all * words));
        int32_t others = 0;
        in.others = &others;
        blocks_check(context, kernel, &in, size, 0, expected, (size_t)(all * words));
        assert_int_equal(others, 0);
        if (last < size) {
            memcpy(added + last, &forms[i].odd, bytes);
            blocks_check(context, kernel, &in, size, 0, NULL, (size_t)(all * words));
            assert_int_equal(others, 1);
        }
        free(added);
    }
}

/* All forms of one random table. */
static inline void blocks_run(fk_context *context, const fk_kernel *kernel, const blocks_size *s) {
    const int64_t all = s->tables * s->rows, words = (s->columns + 31) / 32, width = s->columns + 3;
    uint8_t *bools = calloc((size_t)(all * s->columns), 1);
    int32_t *expected = calloc((size_t)(all * words), 4), *counts = calloc((size_t)all, 4);
    int32_t *lists = malloc((size_t)(all * width) * 4), *indptr = calloc((size_t)all + 1, 4);
    int32_t *indices = malloc((size_t)(all * s->columns + 1) * 4);
    uint32_t random = (uint32_t)(s->columns * 77 + s->percent);
    assert_true(bools && expected && counts && lists && indptr && indices);
    memset(lists, 0x7f, (size_t)(all * width) * 4); /* what is no entry is no column */
    for (int64_t row = 0; row < all; row++) {
        indptr[row + 1] = indptr[row];
        for (int64_t j = s->columns - 1; j >= 0; j--) { /* no form needs an order */
            random = random * 1664525 + 1013904223;
            if ((int)(random >> 16) % 100 >= s->percent) continue;
            bools[row * s->columns + j] = (uint8_t)(1 + j % 255);
            expected[row * words + j / 32] |= (int32_t)(1u << j % 32);
            lists[row * width + counts[row]++] = (int32_t)j;
            indices[indptr[row + 1]++] = (int32_t)j;
        }
    }
    fk_blocks in = FK_BLOCKS_INIT;
    in.tables = s->tables, in.rows = s->rows, in.columns = s->columns;
    in.format = FK_BLOCK_BOOLS, in.data = bools;
    blocks_check(context, kernel, &in, (size_t)(all * s->columns), 0, expected, (size_t)(all * words));
    blocks_check_wide(context, kernel, s, bools, s->columns + 5, expected);
    blocks_check_wide(context, kernel, s, bools, (s->columns + 15) / 16 * 16, expected); /* of 16 at a time */
    blocks_check_floats(context, kernel, s, bools, s->columns, expected);
    blocks_check_floats(context, kernel, s, bools, s->columns + 5, expected);
    in.format = FK_BLOCK_LISTS, in.data = counts, in.indices = lists, in.width = width;
    blocks_check(context, kernel, &in, (size_t)all * 4, (size_t)(all * width) * 4, expected, (size_t)(all * words));
    in.format = FK_BLOCK_BSR, in.data = indptr, in.indices = indices, in.tables = 1, in.rows = all;
    blocks_check(context, kernel, &in, (size_t)(all + 1) * 4, (size_t)(all * s->columns + 1) * 4, expected,
                 (size_t)(all * words));
    free(bools), free(expected), free(counts), free(lists), free(indptr), free(indices);
}

static inline void blocks_run_all(const char *device, const char *plan_for) {
    static const blocks_size sizes[] = {{1, 1, 1, 100}, {1, 5, 31, 40},  {6, 3, 32, 50},  {2, 4, 33, 20},
                                        {1, 2, 70, 0},  {3, 1, 100, 90}, {1, 3, 1030, 7}, {1, 3, 48, 30},
                                        {2, 2, 96, 60}, {1, 2, 1056, 50}};
    static const char *const spellings[] = {"fwd fp16 d64 block_bits(64)", "bwd fp16 d64 block_bits(64x128) dropout",
                                            "fwd fp16 d64 bits"};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    options.device = device, options.plan_for = plan_for, options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_problem p;
        fk_kernel *kernel;
        if (fk_problem_parse(spellings[i], &p) || fk_kernel_create(context, &p, &kernel))
            fail_msg("%s", fk_last_error());
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
            blocks_run(context, kernel, &sizes[n]);
        fk_kernel_destroy(kernel);
    }
    fk_context_destroy(context);
}

#endif
