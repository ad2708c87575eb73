/* Bugs planted in real kernels: one edit of the text that the generator emits, and the emulator names what it breaks.
 * The untouched text passes, so a report means the edit. */
#include "harness.h"

#include "runtime/object.h"

/* With 300 rows the last query tile sees masked and full key tiles, one of which reaches past the end; and their number
 * is odd, so that the output overlays the stage that was read last. Where there are full tiles, the vote about the
 * softmax's range is one more barrier: with 60 rows there are none. */
enum { SEQLEN = 300, FEW = 60 };

/* A kernel of each kind of main loop, whatever the planner prefers. With one stage the output overlays Q, and K only
 * where head_dim_v is larger: then every barrier counts. */
typedef struct variant {
    const char *spelling, *gpu;
    int32_t stages, q_in_regs;
    int barriers, waits; /* in the text */
} variant;

static variant variants[] = {
    {"fwd fp16 d32 causal", "a100", 2, 1, 4, 2},          /* cp.async, double-buffered, Q in registers */
    {"fwd bf16 d64 dv128 causal", "rtx3090", 1, 0, 5, 1}, /* cp.async, K and V in turn */
    {"fwd fp16 d32 dv128 causal", "t4", 1, 0, 5, 0},      /* copies through registers */
};

static fk_source source;
static fk_kernel kernel; /* no more of it than a launch's parameters take */
static fk_args args;
static void *memory[5]; /* q, k, v, o, lse */

static void allocate(void) {
    const size_t row[5] = {(size_t)kernel.problem.head_dim * 2, (size_t)kernel.problem.head_dim * 2,
                           (size_t)kernel.problem.head_dim_v * 2, (size_t)kernel.problem.head_dim_v * 2, sizeof(float)};
    fk_error err = {FK_OK, ""};
    for (int i = 0; i < 5; i++) {
        if (fk_emu_malloc(SEQLEN * row[i], &memory[i], &err)) fail_msg("%s", err.text);
        memset(memory[i], 0, SEQLEN * row[i]);
    }
    args = (fk_args)FK_ARGS_INIT;
    args.q = memory[0], args.k = memory[1], args.v = memory[2], args.o = memory[3], args.lse = memory[4];
    args.batch = args.num_heads_q = args.num_heads_kv = 1;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &args), FK_OK);
}

static int emit(void **state) {
    const variant *v = *state;
    fk_device_info device;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info *plans = NULL;
    size_t count = 0, i = 0;
    fk_error err = {FK_OK, ""};
    memset(&kernel, 0, sizeof kernel);
    assert_int_equal(fk_problem_parse(v->spelling, &kernel.problem), FK_OK);
    assert_int_equal(fk_problem_canonical(&kernel.problem, &kernel.problem), FK_OK);
    if (fk_device_lookup(v->gpu, &device, &err) ||
        fk_plan_enumerate(&kernel.problem, &device, &options, &plans, &count, &err))
        fail_msg("%s for %s: %s", v->spelling, v->gpu, err.text);
    while (i < count && !(plans[i].legal && plans[i].stages == v->stages && plans[i].q_in_regs == v->q_in_regs))
        i++;
    assert_true(i < count);
    if (fk_source_create(&kernel.problem, &device, &plans[i], NULL, false, &source, &err)) fail_msg("%s", err.text);
    free(plans);
    kernel.info.plan = source.plan;
    kernel.launch[0] = source.kernel[0];
    kernel.num_launches = 1;
    kernel.l2_bytes = device.l2_bytes;
    allocate();
    return 0;
}

static int discard(void **state) {
    (void)state;
    fk_source_free(&source);
    for (int i = 0; i < 5; i++)
        fk_emu_free(memory[i]);
    return 0;
}

/* Whether `text` has one of `words`, which '|' separates. */
static bool has_one(const char *text, const char *words) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save, *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (strstr(text, word)) return true;
    return false;
}

static fk_status launch(const fk_emu_image *image, int64_t seqlen, uint64_t seed, fk_error *err) {
    const fk_kernel_launch *main_kernel = &source.kernel[0];
    fk_args some = args;
    fk_forward_params p;
    fk_grid grids[FK_MAX_KERNELS];
    fk_emu_options o = strict;
    o.seed = seed;
    some.seqlen_q = some.seqlen_k = seqlen;
    if (fk_forward_prepare(&kernel, &some, NULL, &p, grids, err)) fail_msg("%s", err->text);
    return fk_emu_launch_grid(image, main_kernel->entry, &p, fk_param_bytes(&kernel),
                              (fk_emu_grid){grids[0].x, grids[0].y, grids[0].z}, (uint32_t)main_kernel->threads,
                              (size_t)source.plan.smem_bytes, &o, NULL, err);
}

/* Launches `text` under a few schedules. Each must end with a message that has one of `words`, for many rows or for
 * few; well, if null. */
static void expect(const char *edit, const char *text, const char *words) {
    fk_emu_image *image = load_entry(text, source.kernel[0].entry);
    for (uint64_t seed = 0; seed < 3; seed++) {
        fk_error err = {FK_OK, ""};
        fk_status status = launch(image, SEQLEN, seed, &err);
        if (!status) status = launch(image, FEW, seed, &err);
        if (status != (words ? FK_LAUNCH_FAILED : FK_OK) || (words && !has_one(err.text, words)))
            fail_msg("%s, sm_%d, %s, seed %d: status %d, not '%s': %s", source.spelling, source.plan.sm, edit,
                     (int)seed, status, words ? words : "no error", err.text);
    }
    fk_emu_unload(image);
}

/* Replaces occurrence `index` of `find` in the text. False: there are fewer. */
static bool plant(const char *find, int index, const char *replacement, const char *words) {
    const char *at = strstr(source.text, find);
    while (at && index-- > 0)
        at = strstr(at + 1, find);
    if (!at) return false;
    const int before = (int)(at - source.text);
    char *text = NULL, edit[160];
    assert_true(asprintf(&text, "%.*s%s%s", before, source.text, replacement, at + strlen(find)) > 0);
    snprintf(edit, sizeof edit, "'%s' for '%s' at byte %d", replacement, find, before);
    expect(edit, text, words);
    free(text);
    return true;
}

/* plant at each occurrence. @return their number */
static int plant_each(const char *find, const char *replacement, const char *words) {
    int count = 0;
    while (plant(find, count, replacement, words))
        count++;
    return count;
}

static void test_untouched(void **state) {
    (void)state;
    expect("untouched", source.text, NULL);
}

/* Whether the reader finds the other thread's cp.async in flight or landed is up to the schedule. */
#define UNORDERED "race at smem_base() + |is in flight"

static void test_removed_barrier(void **state) {
    const variant *v = *state;
    assert_int_equal(plant_each("__syncthreads();", "", UNORDERED), v->barriers);
    assert_int_equal(plant_each("__syncwarp();", "", "with no __syncwarp between"), 1);
}

/* The last warp goes round a barrier of the main loop, and is a tile ahead of the others. */
static void test_skipped_barrier(void **state) {
    (void)state;
    assert_true(plant("__syncthreads();", 2, "if (threadIdx.x < threads - 32) __syncthreads();", UNORDERED));
}

/* Half of warp 1 waits at a second barrier, the other half for it in the next warp operation. */
static void test_deadlock(void **state) {
    (void)state;
    assert_true(plant("__syncthreads();", 2, "__syncthreads(); if (threadIdx.x / 16 == 3) __syncthreads();",
                      "; warp 1: lanes 0-15 wait in "));
}

/* The copy is read, or overwritten, before it has landed. */
static void test_removed_wait(void **state) {
    const variant *v = *state;
    assert_int_equal(plant_each("cp_async_wait<", "cp_async_wait<9 + ", "is in flight"), v->waits);
    if (v->waits) assert_true(plant("int IN_FLIGHT = 0", 0, "int IN_FLIGHT = 1", "is in flight"));
}

static void test_shared_bounds(void **state) {
    (void)state;
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() + stage_bytes", "are outside the block's"));
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() - 16", "are outside the block's"));
    assert_true(plant("smem = smem_base()", 0, "smem = smem_base() + 8", "is not 16-byte aligned"));
}

static void test_global_bounds(void **state) {
    (void)state;
    SKIP_UNDER_TSAN;
    assert_true(plant("copy_q.move(at.q_first", 0, "copy_q.move(1 + at.q_first", "past an allocation"));
    assert_true(plant("copy_k.move(n * block_n", 0, "copy_k.move(1 + n * block_n", "past an allocation"));
    assert_true(plant("copy_v.move(n * block_n", 0, "copy_v.move(n * block_n - 40", " an allocation of "));
    assert_true(plant("smem + smem_k, at.seqlen_k", 0, "smem + smem_k, 1 + at.seqlen_k", "past an allocation"));
    assert_true(plant("*out = p.o", 0, "*out = p.o + 8", "past an allocation"));
    assert_true(plant("row < num_rows && lane", 0, "lane", "past an allocation"));
    assert_true(plant("p.lse[", 0, "p.lse[1 + ", "past an allocation"));
}

int main(void) {
    static const struct {
        const char *name;
        void (*function)(void **state);
    } plants[] = {
        {"untouched", test_untouched},
        {"removed barrier", test_removed_barrier},
        {"skipped barrier", test_skipped_barrier},
        {"deadlock", test_deadlock},
        {"removed wait", test_removed_wait},
        {"shared bounds", test_shared_bounds},
        {"global bounds", test_global_bounds},
    };
    enum { NUM_VARIANTS = sizeof variants / sizeof *variants, NUM_PLANTS = sizeof plants / sizeof *plants };
    struct CMUnitTest tests[NUM_VARIANTS * NUM_PLANTS];
    for (size_t i = 0; i < NUM_VARIANTS * NUM_PLANTS; i++)
        tests[i] = (struct CMUnitTest){plants[i % NUM_PLANTS].name, plants[i % NUM_PLANTS].function, emit, discard,
                                       &variants[i / NUM_PLANTS]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
