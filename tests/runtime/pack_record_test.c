/* Records of one's own beside a pack, on a fake driver and a fake NVRTC: they go before it, where their kernels can be
 * compiled or are there already; where not, what is there serves. */
#include "fake/fake.h"

#include "cache/vfs.h"
#include "runtime/advice.h"
#include "runtime/object.h"

static const char spelling[] = "fwd fp16 d72 causal";
static char pack_path[300], store_dir[300], plan[FK_MAX_PLAN];

static fk_context *open_context(fk_cache_mode mode, const char *packs) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = NULL;
    options.cache_dir = store_dir, options.cache_mode = (int32_t)mode, options.packs = packs;
    if (fk_context_create(&options, &context)) fprintf(stderr, "%s\n", fk_last_error());
    return context;
}

/* A store and a pack of this process's own, neither there yet. */
static void prepare(void) {
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    unsetenv("FLASHKILN_TUNING");
    snprintf(pack_path, sizeof pack_path, "%s/a-%d.fkpack", fake_dir, (int)getpid());
    snprintf(store_dir, sizeof store_dir, "%s/store-%d", fake_dir, (int)getpid());
    setenv("FLASHKILN_CACHE_DIR", store_dir, 1);
}

/* A pack of the model's kernel. */
static bool build_pack(void) {
    const char *all[] = {spelling}, *gpu = "a100";
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    return fk_pack_build(pack_path, all, 1, &gpu, 1, NULL, NULL, NULL, NULL) == FK_OK;
}

static bool begin(void) {
    prepare();
    return build_pack();
}

/* Of a plan that the model has third. */
static bool add_record(fk_context *context) {
    const fk_problem p = parsed(spelling);
    fk_tuning_record r = {.shape = {4, 32, 32, 4096, 4096},
                          .registers = -1,
                          .spill_bytes = -1,
                          .rigor = FK_RIGOR_MEASURE,
                          .samples = 32,
                          .us = 1000,
                          .spread = 0.001};
    char line[FK_TUNING_LINE_MAX];
    fk_plan_info *plans;
    fk_device_info runs;
    size_t count;
    if (fk_context_devices(context, &runs, NULL) || fk_plan_list(&p, "a100", NULL, &plans, &count)) return false;
    fk_plan_spell(&plans[2], plan, sizeof plan);
    fk_free(plans);
    r.sm = runs.sm, r.num_sms = runs.num_sms, r.clock_ghz = runs.clock_ghz, r.hbm_gbps = runs.hbm_gbps;
    strcpy(r.problem, spelling);
    strcpy(r.device, runs.name);
    strcpy(r.plan, plan);
    strcpy(r.generator, fk_advice_generator(r.problem, r.plan));
    const size_t size = fk_tuning_write(&r, fk_advice_buckets(), line);
    return size > 0 && fk_tuning_append(&fk_vfs_posix, store_dir, r.device, line, size, NULL) == FK_OK;
}

/* Where a kernel comes from (0: compiled, 1: the store, 2: a pack), and 10 more if its plan is the record's; -1: there
 * is none. */
static int kernel_of(fk_context *context) {
    const fk_problem p = parsed(spelling);
    char line[FK_MAX_PLAN];
    fk_kernel *kernel;
    fk_kernel_info info;
    if (!context || fk_kernel_create(context, &p, &kernel)) {
        fprintf(stderr, "%s\n", fk_last_error());
        return -1;
    }
    fk_kernel_describe(kernel, &info);
    fk_plan_spell(&info.plan, line, sizeof line);
    fk_kernel_destroy(kernel);
    return info.from_store + (strcmp(line, plan) == 0 ? 10 : 0);
}

static const char *a_record_goes_before_a_pack(void) {
    EXPECT(begin());
    fk_context *context = open_context(FK_CACHE_NORMAL, pack_path);
    EXPECT(kernel_of(context) == 2);
    EXPECT(add_record(context));
    fk_context_destroy(context);
    EXPECT(kernel_of(open_context(FK_CACHE_NORMAL, pack_path)) == 10);
    EXPECT(kernel_of(open_context(FK_CACHE_NORMAL, pack_path)) == 11);
    EXPECT(kernel_of(open_context(FK_CACHE_NO_JIT, pack_path)) == 11);
    return NULL;
}

static const char *a_pack_serves_without_compiling(void) {
    EXPECT(begin());
    fk_context *context = open_context(FK_CACHE_NORMAL, "");
    EXPECT(context && add_record(context));
    fk_context_destroy(context);
    EXPECT(kernel_of(open_context(FK_CACHE_NO_JIT, pack_path)) == 2);
    return NULL;
}

/* The store has the model's kernel alone. */
static const char *the_store_serves_without_compiling(void) {
    EXPECT(begin());
    fk_context *context = open_context(FK_CACHE_NORMAL, "");
    EXPECT(kernel_of(context) == 0);
    EXPECT(add_record(context));
    fk_context_destroy(context);
    EXPECT(kernel_of(open_context(FK_CACHE_NO_JIT, "")) == 1);
    EXPECT(kernel_of(open_context(FK_CACHE_NORMAL, "")) == 10);
    return NULL;
}

/* What compiled the pack was another process. */
static const char *nor_is_there_nvrtc(void) {
    fflush(NULL);
    prepare();
    const pid_t builder = fork();
    if (builder == 0) _exit(!build_pack());
    int status = 1;
    EXPECT(waitpid(builder, &status, 0) == builder && status == 0);
    setenv("FLASHKILN_NVRTC", "/nonexistent/libnvrtc.so", 1);
    fk_context *context = open_context(FK_CACHE_NORMAL, "");
    EXPECT(context && add_record(context));
    fk_context_destroy(context);
    EXPECT(kernel_of(open_context(FK_CACHE_NORMAL, pack_path)) == 2);
    EXPECT(kernel_of(open_context(FK_CACHE_NORMAL, "")) == -1);
    return NULL;
}

static void in_turn(void **state) {
    (void)state;
    setenv("FLASHKILN_PACK", "", 1);
    fake_build("cuda", "", "cuda.so");
    fake_build("nvrtc", "", "nvrtc.so");
    fake_run(a_record_goes_before_a_pack);
    fake_run(a_pack_serves_without_compiling);
    fake_run(the_store_serves_without_compiling);
    fake_run(nor_is_there_nvrtc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_turn)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
