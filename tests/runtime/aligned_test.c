/* An array of which copies by TMA cannot read the rows: a kernel before copies them where that pays and the workspace
 * has room, and threads read them elsewhere, on the emulator; o has the same bits in each way. */
#include "array_sample.h"
#include "emulated.h"
#include "runtime/object.h"
#include "store.h"

enum { KEYS = 301, WIDE = 304 };

/* In rows of WIDE elements. */
static void *widened(const void *rows, size_t count, size_t bytes) {
    char *const out = calloc(count * WIDE, bytes);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++)
        memcpy(out + i * WIDE * bytes, (const char *)rows + i * KEYS * bytes, KEYS * bytes);
    return out;
}

static void execute(fk_context *context, const fk_kernel *kernel, const sample *s, sample_tensors *t, size_t bytes) {
    void *workspace;
    memset(t->data[3], 0xff, t->elements[3] * 2);
    assert_int_equal(fk_copy_to_device(context, t->args.o, t->data[3], t->elements[3] * 2), FK_OK);
    assert_int_equal(fk_device_malloc(context, bytes, &workspace), FK_OK);
    if (fk_execute(kernel, &t->args, workspace, bytes, NULL) || fk_synchronize(context, NULL))
        fail_msg("%s", fk_last_error());
    fk_device_free(context, workspace);
    sample_fetch(context, s, t);
}

static void same_bits(void **state) {
    (void)state;
    static const emulated how = {"132", "0", "0"};
    static const sample samples[] = {
        {"fwd fp16 d32 bias", "h200", 6, 4, 4, 300, KEYS, FK_BSHD, 0},
        {"fwd bf16 d64 gqa array=x:bf16[h][q][k] score=\"s + x[h][q][k]\"", "h200", 6, 4, 2, 300, KEYS, FK_BHSD, 0},
    };
    for (size_t i = 0; i < emulated_cases(sizeof samples / sizeof *samples); i++) {
        const sample *s = &samples[i];
        const fk_shape shape = {s->batch, s->num_heads_q, s->num_heads_kv, s->seqlen_q, s->seqlen_k};
        fk_context *context = emulated_context("h200", store_dir, &how);
        fk_kernel *kernel = emulated_kernel(context, s->spelling, &shape);
        const size_t bytes = i ? 2 : 4;
        sample_tensors t;
        array_sample arrays;
        assert_true(sample_make(context, s, &t));
        arrays_make(context, &t.p, &t.host, &t.args, &arrays);
        assert_true(kernel->staged);
        fk_array *const array = &t.args.array[0];
        const void *const odd = array->data;
        const int rank = kernel->arrays.decl[0].rank;

        const size_t room = fk_kernel_workspace(kernel, &t.args), rows = (size_t)(4 * s->seqlen_q);
        execute(context, kernel, s, &t, room);
        sample_check(s, &t);
        uint16_t *const copied = malloc(t.elements[3] * 2);
        assert_non_null(copied);
        memcpy(copied, t.data[3], t.elements[3] * 2);

        void *const wide = widened(arrays.host[0], rows, bytes);
        void *on_device;
        assert_int_equal(fk_device_malloc(context, rows * WIDE * bytes, &on_device), FK_OK);
        assert_int_equal(fk_copy_to_device(context, on_device, wide, rows * WIDE * bytes), FK_OK);
        array->data = on_device;
        array->stride[rank - 2] = WIDE, array->stride[rank - 3] = WIDE * s->seqlen_q;
        const size_t least = fk_kernel_workspace(kernel, &t.args);
        assert_int_equal(room, fk_whole_parts(least) + fk_whole_parts(rows * WIDE * bytes));
        execute(context, kernel, s, &t, least);
        assert_memory_equal(copied, t.data[3], t.elements[3] * 2);

        array->data = odd;
        array->stride[rank - 2] = KEYS, array->stride[rank - 3] = KEYS * s->seqlen_q;
        execute(context, kernel, s, &t, least); /* which has no room for the copy */
        assert_memory_equal(copied, t.data[3], t.elements[3] * 2);

        free(copied);
        free(wide);
        fk_device_free(context, on_device);
        arrays_free(context, &arrays);
        fk_kernel_destroy(kernel);
        sample_free(context, &t);
        fk_context_destroy(context);
    }
}

/* Of few pairs a copy costs more than it spares; one row for all queries has no tiles. */
static void who_gets_one(void **state) {
    (void)state;
    static const emulated how = {"132", "0", "0"};
    static const struct {
        fk_shape shape;
        int64_t head_stride, row_stride;
        bool copied;
    } cases[] = {
        {{6, 4, 4, 300, KEYS}, 300 * KEYS, KEYS, true}, {{6, 4, 4, 300, KEYS}, 300 * WIDE, WIDE, false},
        {{1, 4, 4, 300, KEYS}, 300 * KEYS, KEYS, true}, {{1, 4, 4, 60, 61}, 60 * 61, 61, false},
        {{6, 4, 4, 300, KEYS}, WIDE, 0, false},         {{1, 16, 16, 1540, 1541}, 1540 * 1541, 1541, true},
        {{64, 4, 4, 49, 49}, 49 * 49, 49, false},
    };
    fk_context *context = emulated_context("h200", store_dir, &how);
    fk_problem p;
    fk_kernel *kernel;
    assert_int_equal(fk_problem_parse("fwd bf16 d64 array=bias:bf16[b][h][q][k] bias", &p), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fk_args a = FK_ARGS_INIT;
        fk_aligned aligned;
        const fk_shape *s = &cases[i].shape;
        a.batch = s->batch, a.num_heads_q = s->num_heads_q, a.num_heads_kv = s->num_heads_kv;
        a.seqlen_q = s->seqlen_q, a.seqlen_k = s->seqlen_k;
        a.array[0].stride[1] = cases[i].head_stride, a.array[0].stride[2] = cases[i].row_stride;
        a.array[0].stride[3] = 1;
        fk_aligned_lay_out(kernel, &a, &aligned);
        assert_int_equal(aligned.bytes > 0, cases[i].copied);
        if (aligned.bytes) assert_int_equal(aligned.rows, s->num_heads_q * s->seqlen_q);
    }
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits), cmocka_unit_test(who_gets_one)};
    return cmocka_run_group_tests(tests, make_sized_store, remove_store);
}
