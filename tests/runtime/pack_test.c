/* Kernels from packs, on a fake driver and a fake NVRTC: what is launched is what would be if it had been compiled
 * here, and whatever is wrong with a pack is told. */
#include "fake/fake.h"

#include "cache/vfs.h"
#include "gen/embedded.h"
#include "runtime/object.h"

#include <dlfcn.h>
#include <pthread.h>

static char pack_path[300], store_dir[300];

static void use_fakes(void) {
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    snprintf(pack_path, sizeof pack_path, "%s/a.fkpack", fake_dir);
    snprintf(store_dir, sizeof store_dir, "%s/store-%d", fake_dir, (int)getpid());
}

static fk_context *open_context(fk_cache_mode mode, const char *packs) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = NULL;
    use_fakes();
    options.cache_dir = store_dir, options.cache_mode = (int32_t)mode, options.packs = packs;
    if (fk_context_create(&options, &context)) fprintf(stderr, "%s\n", fk_last_error());
    return context;
}

static const char *const spellings[] = {"fwd fp16 d64 causal", "bwd fp16 d64 causal",
                                        "fwd fp16 d64 window(64,0) softcap(50)", "fwd bf16 d128 gqa alibi dropout",
                                        "fwd fp16 d64 packed causal"};
enum { SPELLINGS = sizeof spellings / sizeof *spellings };

static fk_status build_pack(const char *gpu, fk_pack_progress *progress) {
    use_fakes();
    return fk_pack_build(pack_path, spellings, SPELLINGS, &gpu, 1, NULL, NULL, NULL, progress);
}

static int compiles(void) {
    char path[300];
    snprintf(path, sizeof path, "%s/nvrtc.so", fake_dir);
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return handle ? *(int *)dlsym(handle, "fake_nvrtc_compiles") : 0;
}

/* ---- the same launches ---------------------------------------------------------------------------------- */

static bool same_arrays(const fk_array_list *a, const fk_array_list *b) {
    return a->count == b->count && !memcmp(a->decl, b->decl, (size_t)a->count * sizeof *a->decl) &&
           !memcmp(a->clamp, b->clamp, (size_t)a->count * sizeof *a->clamp);
}

static bool same_launch(const fk_kernel *a, const fk_kernel *b) {
    const fk_plan_info *p = &a->info.plan, *q = &b->info.plan;
    bool same = a->num_launches == b->num_launches;
    for (int i = 0; i < a->num_launches && same; i++)
        same = !strcmp(a->launch[i].entry, b->launch[i].entry) && a->launch[i].threads == b->launch[i].threads &&
               a->launch[i].smem_bytes == b->launch[i].smem_bytes && a->launch[i].grid == b->launch[i].grid;
    return same && a->d_pad == b->d_pad && a->dq_block_m == b->dq_block_m && a->leading_rows == b->leading_rows &&
           a->most_keys == b->most_keys && a->pattern == b->pattern && a->grad == b->grad && a->once == b->once &&
           !memcmp(a->mask_value, b->mask_value, sizeof a->mask_value) &&
           !memcmp(a->score_value, b->score_value, sizeof a->score_value) &&
           a->has_score_values == b->has_score_values && same_arrays(&a->arrays, &b->arrays) &&
           fk_param_bytes(a) == fk_param_bytes(b) && !strcmp(p->family, q->family) && p->block_m == q->block_m &&
           p->block_n == q->block_n && p->warps == q->warps && p->stages == q->stages && p->sm == q->sm &&
           p->smem_bytes == q->smem_bytes && p->ctas_per_sm == q->ctas_per_sm && p->dq_kernel == q->dq_kernel &&
           a->info.image.smem_dynamic == b->info.image.smem_dynamic && !strcmp(a->info.image.key, b->info.image.key);
}

static const char *packed_kernels_are_those_compiled(void) {
    fk_pack_progress progress;
    fk_context_counts counts;
    EXPECT(build_pack("a100", &progress) == FK_OK && progress.built == SPELLINGS && progress.failed == 0);
    fk_context *sealed = open_context(FK_CACHE_SEALED, pack_path), *jit = open_context(FK_CACHE_OFF, "");
    EXPECT(sealed && jit);
    for (int i = 0; i < SPELLINGS; i++) {
        const fk_problem p = parsed(spellings[i]);
        fk_kernel *a, *b;
        EXPECT(fk_kernel_create(jit, &p, &b) == FK_OK);
        const int before = compiles();
        EXPECT(fk_kernel_create(sealed, &p, &a) == FK_OK && compiles() == before);
        EXPECT(a->info.from_store == 2 && strcmp(a->info.store_path, pack_path) == 0);
        if (!same_launch(a, b)) return spellings[i];
        EXPECT(fk_kernel_create(sealed, &p, &a) == FK_OK);
        fk_kernel_destroy(a);
        fk_kernel_destroy(a);
        fk_kernel_destroy(b);
    }
    const fk_problem other = parsed("fwd fp16 d64 window(7,9) softcap(2)"), none = parsed("fwd fp16 d64");
    fk_kernel *kernel;
    EXPECT(fk_kernel_create(sealed, &other, &kernel) == FK_OK && kernel->mask_value[0] == 7 &&
           kernel->mask_value[1] == 9);
    fk_kernel_destroy(kernel);
    EXPECT(fk_kernel_create(sealed, &none, &kernel) == FK_NO_JIT);
    EXPECT(strstr(fk_last_error(), "\"fwd fp16 d64\"") && strstr(fk_last_error(), "sm_80") &&
           strstr(fk_last_error(), "absent"));
    EXPECT(fk_context_count(sealed, &counts) == FK_OK && counts.pack == SPELLINGS + 1 && counts.table == SPELLINGS);
    EXPECT(counts.pack_misses == 1 && counts.failed == 1 && counts.compiled == 0 && counts.store == 0);
    EXPECT(fk_context_count(jit, &counts) == FK_OK && counts.compiled == SPELLINGS && counts.pack_misses == 0);
    fk_context_destroy(sealed);
    fk_context_destroy(jit);
    return NULL;
}

/* ---- packs that do not fit ------------------------------------------------------------------------------ */

static const char *miss(fk_context *context, const char *why) {
    const fk_problem p = parsed(spellings[0]);
    fk_kernel *kernel;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_NO_JIT);
    if (!strstr(fk_last_error(), why)) return strdup(fk_last_error());
    fk_context_destroy(context);
    return NULL;
}

static const char *a_driver_that_is_too_old(void) {
    EXPECT(build_pack("a100", NULL) == FK_OK);
    setenv("FAKE_CUDA_VERSION", "11080", 1); /* the fake NVRTC is 12.9 */
    const char *wrong = miss(open_context(FK_CACHE_SEALED, pack_path), "needs CUDA 12.0, the driver has 11.8");
    setenv("FAKE_CUDA_VERSION", "12000", 1);
    const fk_problem p = parsed(spellings[0]);
    fk_context *context = open_context(FK_CACHE_SEALED, pack_path);
    fk_kernel *kernel;
    EXPECT(!wrong && context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* An image for another architecture is not even looked at; one of the same, planned for another GPU, serves. */
static const char *other_gpus(void) {
    EXPECT(build_pack("h200", NULL) == FK_OK);
    const char *wrong = miss(open_context(FK_CACHE_SEALED, pack_path), "absent");
    if (wrong) return wrong;
    setenv("FAKE_CUDA_SM", "90", 1);
    const fk_problem p = parsed(spellings[0]);
    fk_context *context = open_context(FK_CACHE_SEALED, pack_path);
    fk_kernel *kernel;
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    EXPECT(strstr(kernel->info.store_note, "planned for h200") && !strcmp(context->planned.key, "h100"));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    setenv("FAKE_CUDA_SMEM", "49152", 1);
    wrong = miss(open_context(FK_CACHE_SEALED, pack_path), "; a block has 49152 here");
    unsetenv("FAKE_CUDA_SMEM");
    return wrong;
}

static const char *another_build_of_the_library(void) {
    use_fakes();
    const fk_pack_content content = {.info = "generator: 00\nversion: 9.9.9\n"};
    fk_error err;
    EXPECT(fk_pack_write(pack_path, &fk_vfs_posix, &content, &err) == FK_OK);
    const char *wrong = miss(open_context(FK_CACHE_SEALED, pack_path), "9.9.9");
    if (wrong) return wrong;
    fk_context *context = open_context(FK_CACHE_SEALED, NULL);
    EXPECT(context && fk_context_load_pack(context, pack_path) == FK_CHECK_FAILED &&
           strstr(fk_last_error(), "build it anew"));
    EXPECT(fk_context_load_pack(context, "/nonexistent") == FK_IO);
    EXPECT(fk_context_load_pack(NULL, pack_path) == FK_CHECK_FAILED);
    EXPECT(fk_context_load_pack(context, NULL) == FK_BAD_ARGUMENT);
    fk_context_destroy(context);
    return NULL;
}

/* Writes a pack of no kernels, with a term. */
static const char *write_term(const char *line) {
    char info[300];
    fk_error err;
    snprintf(info, sizeof info, "generator: %s\nversion: 0.0.0\nterm: mask b_first = k <= q\nterm: %s\n",
             fk_embedded_digest, line);
    const fk_pack_content content = {.info = info};
    return fk_pack_write(pack_path, &fk_vfs_posix, &content, &err) ? strdup(err.text) : NULL;
}

/* By the context's template_dir, and by packs before; a pack that is refused teaches nothing. */
static const char *names_that_mean_something_else(void) {
    static const char down[] = "mask mine = k <= q", up[] = "mask mine = k >= q";
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *plain = open_context(FK_CACHE_SEALED, ""), *own = NULL;
    fk_problem p;
    char path[320];
    snprintf(path, sizeof path, "%s/mask", fake_dir);
    EXPECT(mkdir(path, 0700) == 0);
    strcat(path, "/mine.lua");
    FILE *file = fopen(path, "w");
    EXPECT(file && fputs("return { keep = 'k >= q' }", file) > 0 && fclose(file) == 0);
    options.cache_dir = store_dir, options.cache_mode = FK_CACHE_SEALED, options.packs = "";
    options.planning.template_dir = fake_dir;
    EXPECT(plain && fk_context_create(&options, &own) == FK_OK);
    EXPECT(!write_term(down) && fk_context_load_pack(own, pack_path) == FK_CHECK_FAILED);
    EXPECT(strstr(fk_last_error(), pack_path) && strstr(fk_last_error(), "templates/mask/mine.lua") &&
           strstr(fk_last_error(), down) && strstr(fk_last_error(), up));
    EXPECT(fk_problem_parse("fwd fp16 d64 b_first", &p) == FK_BAD_PROBLEM);
    EXPECT(fk_context_load_pack(plain, pack_path) == FK_OK &&
           fk_problem_parse("fwd fp16 d64 b_first mine", &p) == FK_OK);
    EXPECT(!write_term(up) && fk_context_load_pack(own, pack_path) == FK_OK);
    EXPECT(fk_context_load_pack(plain, pack_path) == FK_CHECK_FAILED && strstr(fk_last_error(), "opened before"));
    EXPECT(!write_term("mask b_first = k < q") && fk_context_load_pack(plain, pack_path) == FK_CHECK_FAILED);
    EXPECT(!write_term("mask zebra = k <= q\nterm: mask zebra = k < q") &&
           fk_context_load_pack(plain, pack_path) == FK_CHECK_FAILED && strstr(fk_last_error(), "by a later line"));
    EXPECT(fk_problem_parse("fwd fp16 d64 zebra", &p) == FK_BAD_PROBLEM);
    EXPECT(!write_term("mask causal = k >= q + diag") && fk_context_load_pack(plain, pack_path) == FK_CHECK_FAILED);
    EXPECT(strstr(fk_last_error(), "templates/mask/causal.lua"));
    fk_context_destroy(own);
    fk_context_destroy(plain);
    unlink(path);
    return NULL;
}

/* A pack's image that the device refuses: compiled here, with its own launches; where that is forbidden, an error. */
static const char *refused_images(void) {
    const fk_problem p = parsed(spellings[0]);
    fk_kernel *kernel;
    setenv("FAKE_NVRTC", "old", 1);
    EXPECT(build_pack("a100", NULL) == FK_OK);
    unsetenv("FAKE_NVRTC");
    setenv("FAKE_CUDA_REFUSE", "old", 1);
    fk_context *context = open_context(FK_CACHE_SEALED, pack_path);
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_CHECK_FAILED);
    fk_context_destroy(context);
    context = open_context(FK_CACHE_NORMAL, pack_path);
    EXPECT(context && fk_kernel_create(context, &p, &kernel) == FK_OK);
    EXPECT(kernel->info.from_store == 0 && strstr(kernel->info.store_note, "rejected") && compiles() == 1);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return NULL;
}

/* ---- building -------------------------------------------------------------------------------------------- */

static const char *a_compiler_that_dies(void) {
    fk_pack_progress progress;
    use_fakes();
    unlink(pack_path);
    setenv("FAKE_NVRTC", "die", 1);
    EXPECT(build_pack("a100", &progress) == FK_COMPILE_FAILED && strstr(fk_last_error(), "signal 6"));
    EXPECT(progress.failed == SPELLINGS && access(pack_path, F_OK) != 0);
    setenv("FAKE_NVRTC", "refuse", 1);
    EXPECT(build_pack("a100", &progress) == FK_COMPILE_FAILED && strstr(fk_last_error(), "forward_mma.cu(12)"));
    unsetenv("FAKE_NVRTC");
    EXPECT(build_pack("a100", &progress) == FK_OK && progress.built == SPELLINGS && progress.reused == 0);
    return NULL;
}

/* The caller's own child, which ends meanwhile, is his. */
static const char *another_child(void) {
    fk_pack_progress progress;
    int how = 0;
    use_fakes();
    unlink(pack_path);
    const pid_t child = fork();
    if (child == 0) _exit(7);
    EXPECT(build_pack("a100", &progress) == FK_OK && progress.built == SPELLINGS);
    EXPECT(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 7);
    return NULL;
}

/* What is planned for a GPU comes before what runs on it, too. */
static const char *lookups(void) {
    const fk_problem p = parsed(spellings[0]);
    const char *const gpus[] = {"a100", "h100", "h200"};
    fk_pack_info info;
    fk_pack_entry *entries;
    size_t count;
    int64_t index = -2;
    use_fakes();
    EXPECT(fk_pack_build(pack_path, spellings, 1, gpus, 3, NULL, NULL, NULL, NULL) == FK_OK);
    EXPECT(fk_pack_list(pack_path, &info, &entries, &count) == FK_OK && count == 3);
    for (int i = 0; i < 3; i++)
        EXPECT(fk_pack_lookup(pack_path, &p, gpus[i], &index) == FK_OK && index >= 0 &&
               !strcmp(entries[index].gpu, gpus[i]));
    fk_free(entries);
    EXPECT(fk_pack_lookup(pack_path, &p, "t4", &index) == FK_OK && index == -1);
    EXPECT(fk_pack_merge(pack_path, (const char *const[]){NULL}, 1, NULL) == FK_BAD_ARGUMENT);
    fk_pack_options options = FK_PACK_OPTIONS_INIT;
    options.jobs = -5;
    EXPECT(fk_pack_build(pack_path, (const char *const[]){"fwd fp16 d64"}, 1, (const char *const[]){"a100"}, 1,
                         &options, NULL, NULL, NULL) == FK_BAD_ARGUMENT);
    EXPECT(strstr(fk_last_error(), "jobs is -5"));
    return NULL;
}

static const char *what_a_gpu_cannot_run(void) {
    fk_pack_options options = FK_PACK_OPTIONS_INIT;
    fk_pack_progress progress;
    const char *const gpus[] = {"t4", "a100"};
    use_fakes();
    EXPECT(fk_pack_build(pack_path, spellings, SPELLINGS, gpus, 2, NULL, NULL, NULL, NULL) == FK_UNSUPPORTED);
    options.skip_unsupported = 1;
    EXPECT(fk_pack_build(pack_path, spellings, SPELLINGS, gpus, 2, &options, NULL, NULL, &progress) == FK_OK);
    EXPECT(progress.skipped == 1 && progress.reused == 2 * SPELLINGS - 1); /* bf16 on a t4 */
    return NULL;
}

/* ---- threads --------------------------------------------------------------------------------------------- */

static void *create_all(void *arg) {
    fk_context *context = arg;
    for (int i = 0; i < SPELLINGS; i++) {
        const fk_problem p = parsed(spellings[i]);
        fk_kernel *kernel;
        if (fk_kernel_create(context, &p, &kernel) != FK_OK) return context;
        fk_kernel_destroy(kernel);
    }
    return NULL;
}

static const char *threads_share_a_pack(void) {
    enum { THREADS = 8 };
    pthread_t thread[THREADS];
    EXPECT(build_pack("a100", NULL) == FK_OK);
    fk_context *context = open_context(FK_CACHE_SEALED, pack_path);
    EXPECT(context);
    for (int i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&thread[i], NULL, create_all, context) == 0);
    EXPECT(fk_context_load_pack(context, pack_path) == FK_OK);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        EXPECT(pthread_join(thread[i], &failed) == 0 && !failed);
    }
    fk_context_destroy(context);
    return NULL;
}

static void build_again(const fk_pack_progress *progress, void *user) {
    fk_status *status = user;
    if (progress->built == 0 && *status == FK_OK) *status = build_pack("a100", NULL);
}

/* Whoever is done first would remove the parts of the other. */
static const char *another_builder(void) {
    const char *const gpu = "a100";
    fk_status status = FK_OK;
    use_fakes();
    unlink(pack_path);
    setenv("FAKE_NVRTC", "slow", 1);
    EXPECT(fk_pack_build(pack_path, spellings, SPELLINGS, &gpu, 1, NULL, build_again, &status, NULL) == FK_OK);
    EXPECT(status == FK_IO && strstr(fk_last_error(), "another process builds it"));
    unsetenv("FAKE_NVRTC");
    EXPECT(build_pack("a100", NULL) == FK_OK);
    return NULL;
}

/* A pack's kernels are of the model's plans: who asks for a plan, or by another rule, gets no other one in its place.
 */
static const char *plans_of_ones_own(void) {
    const fk_problem p = parsed(spellings[0]);
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context;
    fk_kernel *kernel;
    EXPECT(build_pack("a100", NULL) == FK_OK);
    options.cache_dir = store_dir, options.cache_mode = FK_CACHE_NO_JIT, options.packs = pack_path;
    for (int i = 0; i < 3; i++) {
        options.planning.plan = i == 1 ? "mma m64 n32 w4 s1 c1" : NULL;
        options.planning.rule = i == 2 ? FK_RULE_PAPER : FK_RULE_MODEL;
        EXPECT(fk_context_create(&options, &context) == FK_OK);
        const fk_status status = fk_kernel_create(context, &p, &kernel);
        if (status != (i ? FK_NO_JIT : FK_OK)) return i == 1 ? "a plan" : "a rule";
        if (!status) fk_kernel_destroy(kernel);
        fk_context_destroy(context);
    }
    return NULL;
}

static void in_turn(void **state) {
    (void)state;
    setenv("FLASHKILN_PACK", "", 1);
    fake_build("cuda", "", "cuda.so");
    fake_build("nvrtc", "", "nvrtc.so");
    fake_run(packed_kernels_are_those_compiled);
    fake_run(a_driver_that_is_too_old);
    fake_run(other_gpus);
    fake_run(plans_of_ones_own);
    fake_run(another_build_of_the_library);
    fake_run(names_that_mean_something_else);
    fake_run(refused_images);
    fake_run(a_compiler_that_dies);
    fake_run(another_child);
    fake_run(another_builder);
    fake_run(lookups);
    fake_run(what_a_gpu_cannot_run);
    fake_run(threads_share_a_pack);
}

/* ---- facts: no GPU, no compiler ---------------------------------------------------------------------------- */

static void facts_round_trip(void **state) {
    (void)state;
    static const char *const list[] = {"fwd bf16 d128 causal",
                                       "bwd bf16 d128 causal deterministic",
                                       "fwd e4m3 d128 gqa causal",
                                       "fwd bf16 d128 gqa seqused_k causal split paged",
                                       "bwd bf16 d64 grad=bias bias causal dropout",
                                       "bwd fp16 d64 sink softcap(30) window(9,0)",
                                       "fwd bf16 d64 butterfly(64) window(9,3)",
                                       "fwd fp32 d64 document"};
    static const char *const gpus[] = {"a100", "h200"};
    char key[65], back[65], facts[FK_FACTS_BYTES];
    memset(key, '7', 64), key[64] = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        for (size_t g = 0; g < 2; g++) {
            const fk_problem p = parsed(list[i]);
            fk_device_info device;
            fk_plan_info plan;
            fk_source source, again;
            fk_error err;
            assert_int_equal(fk_device_named(gpus[g], &device, NULL), FK_OK);
            const fk_plan_options options = FK_PLAN_OPTIONS_INIT;
            if (fk_plan_best(&p, &device, &options, &plan, &err) == FK_UNSUPPORTED) continue;
            assert_int_equal(fk_source_create(&p, &device, &plan, NULL, false, &source, &err), FK_OK);
            fk_facts_write(&source, key, facts);
            if (fk_facts_read(facts, &p, &again, back, &err) != FK_OK) fail_msg("%s: %s\n%s", list[i], err.text, facts);
            assert_string_equal(key, back);
            assert_int_equal(again.num_params, source.num_params);
            for (int v = 0; v < source.num_params; v++)
                assert_int_equal(again.param[v].value, source.param[v].value);
            for (int v = 0; v < source.num_score_params; v++)
                assert_true(again.score_param[v].value == source.score_param[v].value &&
                            again.score_param[v].is_float == source.score_param[v].is_float);
            assert_true(same_arrays(&again.arrays, &source.arrays));
            assert_int_equal(again.main_kernel, source.main_kernel);
            const size_t length = strlen(facts);
            for (size_t at = 0; at < length; at++) { /* a line less, a digit more: refused, or read as it says */
                const char kept = facts[at];
                facts[at] = 0;
                assert_int_equal(fk_facts_read(facts, &p, &again, back, &err), FK_CHECK_FAILED);
                facts[at] = kept;
            }
            fk_source_free(&source);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_turn), cmocka_unit_test(facts_round_trip)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
