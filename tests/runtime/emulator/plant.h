/* Kernels as the generator emits them, with one edit of the text: the emulator must name what it breaks. The untouched
 * text passes, so a report means the edit. */
#ifndef FK_TESTS_EMULATOR_PLANT_H
#define FK_TESTS_EMULATOR_PLANT_H

#include "harness.h"

#include "runtime/object.h"

/* With 300 rows the last query tile sees masked and full key tiles, one of which reaches past the end; and their number
 * is odd, so that the output overlays the stage that was read last. Where there are full tiles, the vote about the
 * softmax's range is one more barrier: with 60 rows there are none. */
enum { SEQLEN = 300, FEW = 60 };

typedef struct plan_wanted {
    const char *spelling, *gpu;
    int32_t stages, q_in_regs, q_stages, overlap; /* the latter two: of family wgmma, with as many stages of K */
} plan_wanted;

static inline bool is_wanted(const plan_wanted *v, const fk_plan_info *plan) {
    return plan->legal && plan->stages == v->stages && plan->q_in_regs == v->q_in_regs &&
           plan->q_stages == v->q_stages && plan->overlap == v->overlap &&
           (plan->q_stages == 0 || plan->k_stages == plan->stages);
}

static fk_source source;
static fk_context plant_context; /* of an emulator with one SM, or a cluster's */
static fk_kernel kernel;         /* no more of it than a launch's parameters take */
static fk_args args;
enum { MEM_CU = 5, MEM_WORKSPACE, NUM_MEMORY, WORKSPACE_BYTES = 1024 };
static void *memory[NUM_MEMORY]; /* q, k, v, o, lse; where a packed problem's sequence begins and ends */

static inline void allocate(void) {
    const size_t row[5] = {(size_t)kernel.problem.head_dim * 2, (size_t)kernel.problem.head_dim * 2,
                           (size_t)kernel.problem.head_dim_v * 2, (size_t)kernel.problem.head_dim_v * 2, sizeof(float)};
    fk_error err = {FK_OK, ""};
    for (int i = 0; i < 5; i++) {
        if (fk_emu_malloc(SEQLEN * row[i], &memory[i], &err)) fail_msg("%s", err.text);
        memset(memory[i], 0, SEQLEN * row[i]);
    }
    if (fk_emu_malloc(2 * sizeof(int32_t), &memory[MEM_CU], &err)) fail_msg("%s", err.text);
    if (fk_emu_malloc(WORKSPACE_BYTES, &memory[MEM_WORKSPACE], &err)) fail_msg("%s", err.text);
    args = (fk_args)FK_ARGS_INIT;
    args.q = memory[0], args.k = memory[1], args.v = memory[2], args.o = memory[3], args.lse = memory[4];
    args.batch = args.num_heads_q = args.num_heads_kv = 1;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    if (kernel.problem.packed) {
        args.total_q = args.total_k = SEQLEN;
        args.cu_seqlens_q = args.cu_seqlens_k = memory[MEM_CU];
        args.seqused_k = (int32_t *)memory[MEM_CU] + 1; /* all */
    }
    assert_int_equal(fk_args_layout(&kernel.problem, FK_BSHD, &args), FK_OK);
}

static inline int emit_plan(const plan_wanted *v) {
    fk_device_info device;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info *plans = NULL;
    size_t count = 0, i = 0;
    fk_error err = {FK_OK, ""};
    memset(&kernel, 0, sizeof kernel);
    plant_context.runs.num_sms = 1;
    kernel.context = &plant_context;
    assert_int_equal(fk_problem_parse(v->spelling, &kernel.problem), FK_OK);
    assert_int_equal(fk_problem_canonical(&kernel.problem, &kernel.problem), FK_OK);
    if (fk_device_lookup(v->gpu, &device, &err) ||
        fk_plan_enumerate(&kernel.problem, &device, &options, &plans, &count, &err))
        fail_msg("%s for %s: %s", v->spelling, v->gpu, err.text);
    while (i < count && !is_wanted(v, &plans[i]))
        i++;
    assert_true(i < count);
    if (fk_source_create(&kernel.problem, &device, &plans[i], NULL, false, &source, &err)) fail_msg("%s", err.text);
    free(plans);
    kernel.info.plan = source.plan;
    kernel.launch[0] = source.kernel[0];
    kernel.num_launches = 1;
    kernel.most_keys = source.most_keys;
    kernel.l2_bytes = device.l2_bytes;
    allocate();
    return 0;
}

static inline int discard(void **state) {
    (void)state;
    fk_source_free(&source);
    for (int i = 0; i < NUM_MEMORY; i++)
        fk_emu_free(memory[i]);
    return 0;
}

/* Whether `text` has one of `words`, which '|' separates. */
static inline bool has_one(const char *text, const char *words) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *save, *word = strtok_r(copy, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (strstr(text, word)) return true;
    return false;
}

static inline fk_status launch(const fk_emu_image *image, int64_t seqlen, uint64_t seed, fk_error *err) {
    const fk_kernel_launch *main_kernel = &source.kernel[0];
    const fk_workspace workspace = {memory[MEM_WORKSPACE], WORKSPACE_BYTES};
    const int32_t cu[2] = {0, (int32_t)seqlen};
    fk_args some = args;
    fk_launch_block l;
    fk_emu_options o = strict;
    o.seed = seed;
    some.seqlen_q = some.seqlen_k = seqlen;
    memcpy(memory[MEM_CU], cu, sizeof cu);
    if (fk_forward_prepare(&kernel, &some, &workspace, &l.params.forward, l.grid, err)) fail_msg("%s", err->text);
    const uint32_t cluster = (uint32_t)fk_plan_cluster(&kernel.problem, &source.plan);
    const bool maps = fk_takes_maps(&kernel);
    if (maps && fk_tensor_maps_make(&kernel, &some, NULL, NULL, l.map, err)) fail_msg("%s", err->text);
    return fk_emu_launch_grid(image, main_kernel->entry, fk_param_block(&kernel, &l), fk_param_bytes(&kernel),
                              (fk_emu_grid){l.grid[0].x, l.grid[0].y, l.grid[0].z, cluster},
                              (uint32_t)main_kernel->threads, (size_t)source.plan.smem_bytes, &o, NULL, err);
}

/* Launches `text` under a few schedules. Each must end with a message that has one of `words`, for many rows or for
 * few; well, if null. */
static inline void expect(const char *edit, const char *text, const char *words) {
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
static inline bool plant(const char *find, int index, const char *replacement, const char *words) {
    const char *at = strstr(source.text, find);
    while (at && index-- > 0)
        at = strstr(at + 1, find);
    if (!at) return false;
    const int before = (int)(at - source.text);
    char *text = NULL, edit[320];
    assert_true(asprintf(&text, "%.*s%s%s", before, source.text, replacement, at + strlen(find)) > 0);
    snprintf(edit, sizeof edit, "'%s' for '%s' at byte %d", replacement, find, before);
    expect(edit, text, words);
    free(text);
    return true;
}

/* plant at each occurrence. @return their number */
static inline int plant_each(const char *find, const char *replacement, const char *words) {
    int count = 0;
    while (plant(find, count, replacement, words))
        count++;
    return count;
}

#endif
