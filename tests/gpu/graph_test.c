/* Every entry captured in a CUDA graph and replayed after what lies in device memory has changed: seed and offset,
 * lengths and boundaries of sequences, pages. Replays give the bits of direct launches; forward and deterministic
 * backward give the same bits 50 times over; NaNs behind the sequences' ends reach no result, and rows there stay as
 * they were. Skips itself, by name, without a GPU. */
#include "gpu/graph_sample.h"

#include <dlfcn.h>

#define RUNS 50

/* ---- graphs, which the library itself has no need of ---- */

typedef struct graph_driver {
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*exec_destroy)(void *exec);
    int (*graph_destroy)(void *graph);
} graph_driver;

static graph_driver driver;
static fk_context *context;
static void *stream;

static bool open_driver(void) {
    static const char *const names[] = {
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuStreamCreate",
        "cuStreamDestroy_v2",
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuGraphExecDestroy",
        "cuGraphDestroy",
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *primary;
    _Static_assert(sizeof names / sizeof *names == sizeof driver / sizeof(void *), "a name for each function");
    for (size_t i = 0; library && i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(library, names[i]);
        if (!function) return false;
        memcpy((char *)&driver + i * sizeof(void *), &function, sizeof function);
    }
    enum { NON_BLOCKING = 1 };
    return library && !driver.retain(&primary, 0) && !driver.set_current(primary) &&
           !driver.stream_create(&stream, NON_BLOCKING);
}

static void *capture(graph_sample *s) {
    void *graph = NULL, *exec = NULL;
    enum { MODE_GLOBAL = 0 }; /* whatever a capture must not do is an error */
    assert_int_equal(driver.begin(stream, MODE_GLOBAL), 0);
    graph_enqueue(s, stream);
    assert_int_equal(driver.end(stream, &graph), 0);
    assert_int_equal(driver.instantiate(&exec, graph, 0), 0);
    assert_int_equal(driver.graph_destroy(graph), 0);
    return exec;
}

/* ---- comparing ---- */

static void wait_for(graph_sample *s) {
    if (fk_synchronize(context, stream)) fail_msg("%s: %s", s->c->spelling, fk_last_error());
}

static float value_at(const graph_sample *s, const output *o, const void *data, size_t i) {
    if (!o->halves) return ((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return s->p.dtype == FK_BF16 ? fk_bf16_to_float(bits) : fk_fp16_to_float(bits);
}

/* dq without `deterministic` is summed in another order each time: then equal is nearly equal. */
static void check_output(graph_sample *s, int i, int version, const char *what) {
    const output *o = &s->out[i];
    void *now = malloc(o->bytes);
    assert_non_null(now);
    if (fk_copy_from_device(context, now, o->device, o->bytes)) fail_msg("%s", fk_last_error());
    const size_t count = memcmp(now, o->host[version], o->bytes) == 0 ? 0 : o->bytes / (o->halves ? 2 : 4);
    for (size_t at = 0; at < count; at++) {
        const float got = value_at(s, o, now, at), want = value_at(s, o, o->host[version], at);
        const bool same =
            isnan(want) ? isnan(got) : got == want || (!o->exact && fabsf(got - want) <= 0.01f + 0.02f * fabsf(want));
        if (!same)
            fail_msg("%s, %s: output %d, element %zu is %g, not %g", s->c->spelling, what, i, at, (double)got,
                     (double)want);
    }
    free(now);
}

/* Direct launches with a version of the state; outputs begin as NaNs, and what is still NaN then is tail. */
static void run_directly(graph_sample *s, int version) {
    graph_state(s, version);
    graph_poison(s);
    graph_enqueue(s, stream);
    wait_for(s);
    for (int i = 0; i < s->num_outputs; i++)
        if (fk_copy_from_device(context, s->out[i].host[version], s->out[i].device, s->out[i].bytes))
            fail_msg("%s", fk_last_error());
}

/* Of o: [outer, rows + TAIL, width]. A packed batch ends before its tail, in which nothing is written. */
static void check_rows(const graph_sample *s, int version) {
    const fk_args *a = &s->args;
    const uint16_t *o = s->out[0].host[version];
    const int64_t width = a->o_stride[1], rows = s->p.packed ? a->total_q - TAIL : s->c->seqlen_q;
    const int64_t all = (int64_t)s->out[0].bytes / 2 / width;
    for (int64_t row = 0; row < all; row++) {
        const bool tail = row % (rows + TAIL) >= rows;
        const bool nan = isnan(value_at(s, &s->out[0], o, (size_t)(row * width)));
        if (nan != tail && !(s->p.packed && nan)) /* rows of a packed tensor may belong to no sequence */
            fail_msg("%s: row %d of o is %s", s->c->spelling, (int)row, nan ? "NaN" : "written, but behind the end");
    }
}

static void run_case(const graph_case *c) {
    graph_sample s;
    graph_make(context, c, &s);
    for (int version = 1; version >= 0; version--) {
        run_directly(&s, version);
        check_rows(&s, version);
    }
    bool differs = false;
    for (int i = 0; i < s.num_outputs; i++)
        differs |= s.out[i].exact && memcmp(s.out[i].host[0], s.out[i].host[1], s.out[i].bytes) != 0;
    if (differs != c->changes)
        fail_msg("%s: the second version gives %s", c->spelling, differs ? "another result" : "the same");
    void *exec = capture(&s);
    for (int run = 0; run < RUNS;
         run++) { /* the versions in turn, so that nothing of the last run is mistaken for this one's */
        const int version = run % 2;
        graph_state(&s, version);
        graph_poison(&s);
        assert_int_equal(driver.launch(exec, stream), 0);
        wait_for(&s);
        for (int i = 0; i < s.num_outputs; i++)
            check_output(&s, i, version, "replayed");
    }
    for (int run = 0; run < RUNS; run++) { /* of version 1, which the last replay left */
        graph_enqueue(&s, stream);
        wait_for(&s);
        for (int i = 0; i < s.num_outputs; i++)
            check_output(&s, i, 1, "run again");
    }
    assert_int_equal(driver.exec_destroy(exec), 0);
    print_message("%s: %d replays and %d runs\n", c->spelling, RUNS, RUNS);
    graph_free(&s);
}

static void run_cases(const graph_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++)
        run_case(&cases[i]);
}

/* ---- cases ---- */

static void forward(void **state) {
    (void)state;
    static const graph_case cases[] = {
        {"fwd bf16 d64 causal", 2, 4, 4, 300, 300, false},
        {"fwd fp16 d128 gqa causal", 2, 8, 2, 132, 355, false},
        {"fwd fp16 d64 alibi causal", 2, 4, 4, 257, 257, false},
        {"fwd bf16 d64 causal dropout", 2, 4, 4, 300, 300, true},
        {"fwd bf16 d128 packed causal", 4, 4, 4, 150, 170, true},
        {"fwd fp16 d64 packed dropout gqa", 4, 4, 2, 68, 132, true},
        {"fwd bf16 d128 seqused_k", 3, 4, 4, 100, 300, true},
        {"fwd bf16 d128 split gqa", 2, 8, 2, 3, 1000, false},
        {"fwd bf16 d128 split seqused_k causal", 3, 4, 4, 2, 700, true},
        {"fwd bf16 d128 paged causal", 2, 4, 4, 130, 260, true},
        {"fwd bf16 d128 paged(8) causal", 2, 4, 4, 130, 260, true},
        {"fwd bf16 d64 split paged seqused_k gqa", 3, 8, 2, 1, 500, true},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void backward(void **state) {
    (void)state;
    static const graph_case cases[] = {
        {"bwd bf16 d64 causal", 2, 4, 4, 300, 300, false},
        {"bwd fp16 d128 gqa", 1, 8, 2, 132, 355, false},
        {"bwd bf16 d64 causal dropout", 2, 4, 4, 300, 300, true},
        {"bwd bf16 d128 packed causal", 4, 4, 4, 150, 170, true},
        {"bwd fp16 d64 packed dropout gqa", 4, 4, 2, 68, 132, true},
        {"bwd bf16 d64 seqused_k", 3, 4, 4, 100, 300, true},
        {"bwd fp16 d64 alibi causal grad=slope", 2, 4, 4, 257, 257, false},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

static void deterministic_backward(void **state) {
    (void)state;
    static const graph_case cases[] = {
        {"bwd bf16 d64 causal deterministic", 2, 8, 8, 700, 700, false},
        {"bwd fp16 d128 gqa deterministic", 1, 8, 2, 300, 515, false},
        {"bwd bf16 d128 causal dropout deterministic", 2, 4, 4, 300, 300, true},
        {"bwd bf16 d64 packed causal deterministic", 4, 4, 4, 150, 170, true},
        {"bwd fp16 d64 alibi causal grad=slope deterministic", 2, 4, 4, 257, 257, false},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),
        cmocka_unit_test(backward),
        cmocka_unit_test(deterministic_backward),
    };
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = "cuda:0", options.cache_mode = FK_CACHE_OFF;
    if (fk_context_create(&options, &context) || !open_driver()) {
        printf("skipped: gpu/graph_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    driver.stream_destroy(stream);
    fk_context_destroy(context);
    return failed;
}
