/* The whole way on the emulator: spelling -> plan -> text -> image -> store -> launch, against the reference. Broad
 * random coverage is tests/random_problems.c; here is one small case of each kind of path. */
#include "sample.h"
#include "store.h"

#include <pthread.h>
#include <unistd.h>

#define LONG                                                                                                           \
    "hash(hash(5, i), j) % 5 < 2 && (i + j * 3 + 7 * i * j) % 11 != 3 || i == j && (j * 3 + i * 5 + 1) % 7 != 2 || "   \
    "hash(i, h) % 97 == 4 && i - j < 100"

static const sample samples[] = {
    {"fwd fp16 d32 causal", "a100", 1, 2, 2, 200, 200, FK_BSHD, 0},
    {"fwd bf16 d64 gqa causal", "a100", 2, 4, 2, 70, 150, FK_BHSD, 0},
    {"fwd fp16 d40 dv24", "rtx3090", 1, 1, 1, 65, 33, FK_BSHD, 72},
    {"fwd fp16 d64 causal top-left", "t4", 1, 2, 2, 130, 70, FK_BSHD, 0},
    {"fwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\"", "a100", 1, 1, 1, 150, 150, FK_BSHD, 0},
    /* hashes of keys in a long predicate: a tile's blocks are asked about, but not of rows of several heads */
    {"fwd fp16 d32 blocks(64)=\"" LONG "\"", "a100", 1, 2, 2, 140, 333, FK_BSHD, 0},
    {"fwd fp16 d32 gqa split blocks(64)=\"" LONG "\"", "a100", 1, 8, 2, 40, 700, FK_BSHD, 0},
    /* the first tiles in parts of their keys */
    {"fwd fp16 d64 gqa longformer(64,1,1,2) top-left dropout", "a100", 1, 2, 1, 300, 8300, FK_BSHD, 0},
    {"fwd fp16 d64 bigbird(64) top-left", "t4", 2, 1, 1, 60, 9000, FK_BSHD, 0},
};

static void run(const sample *s, bool expect_stored) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel_info info;
    options.device = "emu", options.plan_for = s->plan_for, options.cache_dir = store_dir;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    assert_true(fk_context_is_emulator(context));
    assert_true(sample_run(context, s, &info));
    if (info.from_store != expect_stored)
        fail_msg("%s: from_store %d: %s", s->spelling, info.from_store, info.store_note);
    assert_string_equal(info.image.target, "emu");
    fk_context_destroy(context);
}

static void compiled(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        run(&samples[i], false);
}

static void from_the_store(void **state) {
    (void)state;
    run(&samples[0], true);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

enum { THREADS = 8 };

typedef struct caller {
    pthread_t thread;
    fk_context *context;
    const sample_tensors *tensors;
    void *o;
    fk_kernel_info info;
    fk_status status;
} caller;

/* Asks for the kernel and launches it on shared inputs, into an output of its own. */
static void *call(void *user) {
    caller *c = user;
    fk_kernel *kernel = NULL;
    fk_args args = c->tensors->args;
    args.lse = NULL;
    c->status = fk_device_malloc(c->context, c->tensors->elements[3] * 2, &c->o);
    args.o = c->o;
    if (!c->status) c->status = fk_kernel_create(c->context, &c->tensors->p, &kernel);
    if (!c->status) c->status = fk_kernel_describe(kernel, &c->info);
    if (!c->status) c->status = launch_once(c->context, kernel, &args);
    if (c->status) fprintf(stderr, "%s\n", fk_last_error());
    fk_kernel_destroy(kernel);
    return NULL;
}

/* First calls of eight threads, in two contexts over one store: one compile, and everybody's result is the same. */
static void threads(void **state) {
    (void)state;
    static const sample s = {"fwd bf16 d48 causal", "a100", 1, 2, 2, 130, 200, FK_BSHD, 0};
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context[2];
    sample_tensors tensors;
    caller callers[THREADS];
    options.device = "emu", options.cache_dir = store_dir;
    for (int i = 0; i < 2; i++)
        assert_int_equal(fk_context_create(&options, &context[i]), FK_OK);
    assert_true(sample_make(context[0], &s, &tensors));
    for (int i = 0; i < THREADS; i++) {
        callers[i] = (caller){.context = context[i % 2], .tensors = &tensors};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(callers[i].status, FK_OK);
        assert_int_equal(callers[i].info.from_store, callers[i % 2].info.from_store);
        assert_memory_equal(callers[i].o, callers[0].o, tensors.elements[3] * 2);
    }
    assert_int_equal(callers[0].info.from_store + callers[1].info.from_store, 1);
    for (int i = 0; i < THREADS; i++)
        fk_device_free(callers[i].context, callers[i].o);
    sample_free(context[0], &tensors);
    fk_context_destroy(context[0]);
    fk_context_destroy(context[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(compiled), cmocka_unit_test(from_the_store),
                                       cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
