/* Records decide plans: of fk_plan_list, fk_generate and kernels alike, and only where they may. */
#include "cache/tuning.h"
#include "cache/vfs.h"
#include "emulated.h"
#include "gen/embedded.h"
#include "runtime/advice.h"
#include "scratch.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static char dir[256];
static fk_problem problem;
static char taken[FK_MAX_PLAN]; /* a legal plan that the model does not choose */

static int setup(void **state) {
    (void)state;
    fk_plan_info *plans;
    size_t count;
    unsetenv("FLASHKILN_TUNING");
    if (!scratch_make(dir, sizeof dir) || setenv("FLASHKILN_CACHE_DIR", dir, 1)) return -1;
    if (fk_problem_parse("fwd fp16 d72 causal", &problem) || fk_plan_list(&problem, "t4", NULL, &plans, &count))
        return -1;
    fk_plan_spell(&plans[2], taken, sizeof taken);
    fk_free(plans);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return scratch_remove(dir) ? 0 : -1;
}

static fk_tuning_record record(const char *device, int32_t sm, int32_t num_sms, const char *plan) {
    fk_tuning_record r = {.shape = {4, 32, 32, 4096, 4096},
                          .sm = sm,
                          .num_sms = num_sms,
                          .clock_ghz = 1.59,
                          .hbm_gbps = 320,
                          .registers = -1,
                          .spill_bytes = -1,
                          .rigor = FK_RIGOR_MEASURE,
                          .samples = 32,
                          .us = 1000,
                          .spread = 0.001};
    strcpy(r.problem, "fwd fp16 d72 causal");
    strcpy(r.device, device);
    strcpy(r.plan, plan);
    strcpy(r.generator, fk_advice_generator(r.problem, r.plan));
    return r;
}

static void add(const fk_tuning_record *r) {
    char line[FK_TUNING_LINE_MAX];
    const size_t size = fk_tuning_write(r, fk_advice_buckets(), line);
    assert_true(size > 0);
    assert_int_equal(fk_tuning_append(&fk_vfs_posix, dir, r->device, line, size, NULL), FK_OK);
}

static fk_plan_info first_plan(const char *gpu, const fk_plan_options *options) {
    fk_plan_info *plans, first;
    size_t count;
    if (fk_plan_list(&problem, gpu, options, &plans, &count)) fail_msg("%s", fk_last_error());
    first = plans[0];
    for (size_t i = 0; i < count; i++)
        assert_int_equal(plans[i].chosen != 0, i == 0);
    fk_free(plans);
    return first;
}

static bool is_taken(const fk_plan_info *plan) {
    char line[FK_MAX_PLAN];
    fk_plan_spell(plan, line, sizeof line);
    return strcmp(line, taken) == 0;
}

static void a_record_decides(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    fk_plan_info plan = first_plan("t4", NULL), generated;
    char *text;
    assert_true(!is_taken(&plan) && plan.chosen == FK_CHOSEN_BY_RULE);
    const fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    plan = first_plan("t4", NULL);
    assert_true(is_taken(&plan) && plan.chosen == FK_CHOSEN_BY_RECORD);
    assert_true(strstr(plan.reason, "own record: measured 1000.0 us") && strstr(plan.reason, "q4096 k4096 h"));
    assert_int_equal(fk_generate(&problem, "t4", NULL, &text, &generated), FK_OK);
    assert_true(is_taken(&generated));
    fk_free(text);
    options.shape.seqlen_q = 512; /* another bucket */
    plan = first_plan("t4", &options);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RULE);
    options.shape = (fk_shape){3, 30, 30, 5000, 5000}; /* the same one */
    plan = first_plan("t4", &options);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RECORD);
    plan = first_plan("a100", NULL); /* sm_75 has no kin there */
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RULE);
}

static void records_can_be_left_aside(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    const fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    options.reproducible = 1;
    fk_plan_info plan = first_plan("t4", &options);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RULE);
    static const char *const off[] = {"off", "OFF", "0"};
    for (size_t i = 0; i < 3; i++) {
        setenv("FLASHKILN_TUNING", off[i], 1);
        plan = first_plan("t4", NULL);
        assert_int_equal(plan.chosen, FK_CHOSEN_BY_RULE);
    }
    setenv("FLASHKILN_TUNING", "on", 1);
    plan = first_plan("t4", NULL);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RECORD);
    unsetenv("FLASHKILN_TUNING");
    options = (fk_plan_options)FK_PLAN_OPTIONS_INIT;
    options.rule = FK_RULE_PAPER;
    plan = first_plan("t4", &options);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_RULE);
    options.rule = FK_RULE_MODEL, options.plan = "mma m64 n64 w4 s1 c1";
    plan = first_plan("t4", &options);
    assert_int_equal(plan.chosen, FK_CHOSEN_BY_CALLER);
}

/* A record cannot make a kernel that does not fit, or no kernel at all. */
static void bad_advice_is_passed_over(void **state) {
    (void)state;
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    r.us = 2000;
    add(&r);
    static const char *const bad[] = {"mma m4096 n4096 w32 s9 c9", "wgmma m64 n64 w8 s2 c1 q1 k2 o1", "nonsense",
                                      "mma m64 n64 w4 s7 c2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        strcpy(r.plan, bad[i]);
        r.us = 1;
        add(&r);
    }
    const fk_plan_info plan = first_plan("t4", NULL);
    assert_true(plan.chosen == FK_CHOSEN_BY_RECORD && is_taken(&plan));
}

static void kin_gives_advice_where_none_of_its_own_is(void **state) {
    (void)state;
    fk_tuning_record r = record("NVIDIA GeForce RTX 2080 Ti", 75, 68, taken);
    add(&r);
    const fk_plan_info plan = first_plan("t4", NULL);
    assert_true(plan.chosen == FK_CHOSEN_BY_RECORD && strstr(plan.reason, "nearest GPU"));
}

static void kernels_take_the_advice(void **state) {
    (void)state;
    static const emulated plain = {"4", "0", "0"};
    fk_kernel *kernel;
    fk_kernel_info info;
    const fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    fk_context *context = emulated_context("t4", dir, &plain);
    assert_int_equal(fk_kernel_create(context, &problem, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_true(is_taken(&info.plan) && info.plan.chosen == FK_CHOSEN_BY_RECORD);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

/* Sizes for which there is a record get its plan, and all others one kernel. */
static void kernels_of_a_size(void **state) {
    (void)state;
    static const emulated plain = {"4", "0", "0"};
    const fk_shape tuned = {4, 32, 32, 5000, 4000}, other = {4, 32, 32, 512, 512}, third = {1, 1, 1, 64, 64},
                   bad = {1, 1, 0, 64, 64};
    fk_kernel *all, *one, *again, *none, *last;
    fk_kernel_info info;
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    r.shape = (fk_shape){4, 32, 32, 4096, 4096};
    fk_context *context = emulated_context("t4", dir, &plain);
    assert_int_equal(fk_kernel_create(context, &problem, &all), FK_OK);
    add(&r);
    assert_int_equal(fk_kernel_create_for(context, &problem, &other, &none), FK_OK);
    assert_ptr_equal(none, all);
    assert_int_equal(fk_kernel_create_for(context, &problem, &tuned, &one), FK_OK);
    assert_ptr_not_equal(one, all);
    assert_int_equal(fk_kernel_create_for(context, &problem, &tuned, &again), FK_OK);
    assert_ptr_equal(one, again);
    assert_int_equal(fk_kernel_create_for(context, &problem, &third, &last), FK_OK);
    assert_ptr_equal(last, all);
    assert_int_equal(fk_kernel_describe(one, &info), FK_OK);
    assert_true(is_taken(&info.plan));
    assert_int_equal(fk_kernel_create_for(context, &problem, &bad, &last), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "1, 1, 0, 64, 64"));
    setenv("FLASHKILN_TUNING", "off", 1);
    fk_kernel *off;
    assert_int_equal(fk_kernel_create_for(context, &problem, &tuned, &off), FK_OK);
    assert_ptr_equal(off, all);
    unsetenv("FLASHKILN_TUNING");
    fk_kernel *const held[] = {all, one, again, none, last, off};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        fk_kernel_destroy(held[i]);
    fk_context_destroy(context);
}

/* Queries that fill half of a tile or less have a kernel of their own, where a launch has enough of them. */
static void kernels_of_few_queries(void **state) {
    (void)state;
    static const emulated plain = {"4", "0", "0"};
    static const struct {
        fk_shape shape;
        bool own;
    } cases[] = {{{212, 32, 32, 77, 77}, true},
                 {{2, 4, 4, 77, 77}, false},
                 {{64, 32, 32, 200, 200}, false},
                 {{16, 8, 8, 4, 4096}, true}, /* decoding: of this every percent counts */
                 {{16, 8, 8, 4, 20}, false}};
    fk_problem wide;
    fk_kernel *all, *sized;
    fk_kernel_info info, of_all;
    fk_context *context = emulated_context("h200", dir, &plain);
    assert_int_equal(fk_problem_parse("fwd bf16 d64", &wide), FK_OK);
    assert_int_equal(fk_kernel_create(context, &wide, &all), FK_OK);
    assert_int_equal(fk_kernel_describe(all, &of_all), FK_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(fk_kernel_create_for(context, &wide, &cases[i].shape, &sized), FK_OK);
        assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
        assert_true((sized != all) == cases[i].own);
        if (cases[i].own) assert_true(2 * info.plan.block_m <= of_all.plan.block_m);
        fk_kernel_destroy(sized);
    }
    fk_kernel_destroy(all);
    fk_context_destroy(context);
}

/* A context of T4 plans that may compile nothing. Its store, which is made, has the kernel for all sizes and the
 * record. */
static fk_context *without_a_compiler(char store[256], const fk_tuning_record *r) {
    static const emulated plain = {"4", "0", "0"};
    char line[FK_TUNING_LINE_MAX];
    fk_kernel *kernel;
    assert_true(scratch_make(store, 256));
    fk_context *context = emulated_context("t4", store, &plain);
    assert_int_equal(fk_kernel_create(context, &problem, &kernel), FK_OK);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    const size_t size = fk_tuning_write(r, fk_advice_buckets(), line);
    assert_int_equal(fk_tuning_append(&fk_vfs_posix, store, r->device, line, size, NULL), FK_OK);
    setenv("FLASHKILN_CACHE_MODE", "no-jit", 1);
    context = emulated_context("t4", store, &plain);
    unsetenv("FLASHKILN_CACHE_MODE");
    return context;
}

/* Where nothing may be compiled, a record takes away no kernel that was there before it. */
static void a_record_without_a_compiler(void **state) {
    (void)state;
    static const emulated plain = {"4", "0", "0"};
    char store[256];
    fk_kernel *kernel;
    fk_kernel_info info;
    const fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    fk_context *context = without_a_compiler(store, &r);
    assert_int_equal(fk_kernel_create(context, &problem, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_true(info.from_store && !is_taken(&info.plan));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    context = emulated_context("t4", store, &plain); /* where it may be, the record's plan is what is made */
    assert_int_equal(fk_kernel_create(context, &problem, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_true(is_taken(&info.plan));
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    assert_true(scratch_remove(store));
}

/* Where nothing may be compiled, the kernel for all sizes serves those whose record's kernel is not there. */
static void sizes_without_a_compiler(void **state) {
    (void)state;
    const fk_shape tuned = {32, 32, 32, 500, 500};
    char store[256];
    fk_kernel *sized;
    fk_kernel_info info;
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    r.shape = (fk_shape){32, 32, 32, 512, 512}; /* not what the kernel for all sizes is planned for */
    fk_context *context = without_a_compiler(store, &r);
    assert_int_equal(fk_kernel_create_for(context, &problem, &tuned, &sized), FK_OK);
    assert_int_equal(fk_kernel_describe(sized, &info), FK_OK);
    assert_true(info.from_store && !is_taken(&info.plan));
    fk_kernel_destroy(sized);
    fk_context_destroy(context);
    assert_true(scratch_remove(store));
}

static void moves_between_directories(void **state) {
    (void)state;
    char path[300], other[256];
    size_t count, refused;
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    strcpy(r.plan, "mma m64 n64 w4 s1 c2"), r.us = 900;
    add(&r);
    strcpy(r.device, "NVIDIA H200"), r.sm = 90, r.num_sms = 132;
    add(&r);
    assert_true(scratch_make(other, sizeof other));
    snprintf(path, sizeof path, "%s/out.jsonl", other);
    assert_int_equal(fk_tuning_export(dir, path, &count), FK_OK);
    assert_int_equal(count, 2); /* the winners */
    FILE *file = fopen(path, "a");
    assert_true(file && fputs("{\"flashkiln_tuning\":1,\nnonsense\n", file) >= 0 && fclose(file) == 0);
    assert_int_equal(fk_tuning_import(other, path, &count, &refused), FK_OK);
    assert_true(count == 2 && refused == 2);
    assert_int_equal(fk_tuning_import(other, path, &count, &refused), FK_OK); /* nothing that would count */
    assert_int_equal(count, 0);
    setenv("FLASHKILN_CACHE_DIR", other, 1);
    const fk_plan_info plan = first_plan("t4", NULL);
    assert_true(plan.chosen == FK_CHOSEN_BY_RECORD && strstr(plan.reason, "900.0 us"));
    setenv("FLASHKILN_CACHE_DIR", dir, 1);
    assert_int_equal(fk_tuning_import(other, "/nowhere/at/all", NULL, NULL), FK_IO);
    assert_int_equal(fk_tuning_export(dir, "/nowhere/at/all", NULL), FK_IO);
    scratch_remove(other);
}

/* Records that may not be read are no reason to write that there are none. */
static void moves_all_or_nothing(void **state) {
    (void)state;
    char path[300], own[300], other[256];
    struct stat before, after;
    size_t count;
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    assert_true(scratch_make(other, sizeof other));
    snprintf(path, sizeof path, "%s/out.jsonl", other);
    snprintf(own, sizeof own, "%s/tune-tesla-t4.jsonl", dir);
    assert_int_equal(fk_tuning_export(dir, path, &count), FK_OK);
    assert_int_equal(stat(path, &before) || chmod(own, 0666), 0);
    assert_int_equal(fk_tuning_export(dir, path, &count), FK_IO);
    assert_non_null(strstr(fk_last_error(), own));
    assert_int_equal(fk_tuning_import(dir, path, &count, NULL), FK_IO);
    assert_true(stat(path, &after) == 0 && after.st_ino == before.st_ino && after.st_size == before.st_size);
    assert_int_equal(chmod(own, 0600), 0);
    scratch_remove(other);
}

static void *export_often(void *path) {
    size_t failed = 0;
    for (int i = 0; i < 100; i++)
        failed += fk_tuning_export(dir, path, NULL) != FK_OK;
    return (void *)failed;
}

static void threads_that_export_to_one_file(void **state) {
    (void)state;
    char path[300], other[256];
    pthread_t thread[3];
    fk_tuning_record r = record("Tesla T4", 75, 40, taken);
    add(&r);
    assert_true(scratch_make(other, sizeof other));
    snprintf(path, sizeof path, "%s/out.jsonl", other);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, export_often, path), 0);
    for (int i = 0; i < 3; i++) {
        void *failed;
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    assert_true(scratch_remove(other));
}

/* Ten thousand of them are many for a list that is searched from its beginning: it took 15 s. */
static void moves_many(void **state) {
    (void)state;
    enum { PROBLEMS = 10000, MOST_SECONDS = 5 };
    char path[300], other[256];
    size_t count, refused;
    assert_true(scratch_make(other, sizeof other));
    snprintf(path, sizeof path, "%s/in.jsonl", other);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 2 * PROBLEMS; i++) {
        char line[FK_TUNING_LINE_MAX];
        fk_tuning_record r = record("Tesla T4", 75, 40, taken);
        snprintf(r.problem, sizeof r.problem, "fwd fp16 d64 keep=\"k <= q + %d\"", i * 7919 % PROBLEMS);
        r.us = i < PROBLEMS ? 1000 : 500;
        assert_true(fwrite(line, fk_tuning_write(&r, fk_advice_buckets(), line), 1, file) == 1);
    }
    assert_int_equal(fclose(file), 0);
    const clock_t begin = clock();
    assert_int_equal(fk_tuning_import(other, path, &count, &refused), FK_OK);
    assert_true(count == PROBLEMS && refused == 0);
    assert_int_equal(fk_tuning_export(other, path, &count), FK_OK);
    assert_int_equal(count, PROBLEMS);
    if (clock() - begin > MOST_SECONDS * CLOCKS_PER_SEC) fail_msg("%.1f s", (double)(clock() - begin) / CLOCKS_PER_SEC);
    scratch_remove(other);
}

/* A record grows old with its own family's templates, for its own direction. */
static void generators(void **state) {
    (void)state;
    static const char *const problems[] = {"fwd bf16 d64", "bwd bf16 d64"};
    static const char *const plans[] = {"mma m128 n64 w4 s2 c2", "wgmma m128 n128 w12 s2 c1 q2 k2 o1"};
    const char *seen[4];
    int num_files = 0;
    while (fk_embedded[num_files].path)
        num_files++;
    assert_true(num_files < FK_ADVICE_MAX_FILES);
    for (int i = 0; i < 4; i++) {
        seen[i] = fk_advice_generator(problems[i / 2], plans[i % 2]);
        assert_int_equal(strspn(seen[i], "0123456789abcdef"), 16);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(seen[i], seen[j]);
    }
    fk_tuning_record r = record("NVIDIA H200", 90, 132, plans[1]);
    assert_true(fk_advice_is_fresh(&r));
    strcpy(r.plan, plans[0]);
    assert_false(fk_advice_is_fresh(&r));
}

/* What ships: every line is a record, and its plan is one that the planner knows. Those that have grown old are told.
 */
static void shipped_records_are_sound(void **state) {
    (void)state;
    int count = 0, old = 0;
    for (const fk_embedded_file *f = fk_embedded; f->path; f++) {
        if (strncmp(f->path, "cache/tuned/", 12) != 0 || !strstr(f->path, ".jsonl")) continue;
        const char *end = f->text + f->size;
        for (const char *at = f->text, *next; at < end; at = next) {
            fk_tuning_record r;
            fk_plan_info plan;
            const char *newline = memchr(at, '\n', (size_t)(end - at));
            assert_non_null(newline);
            next = newline + 1;
            if (!fk_tuning_read(at, (size_t)(newline - at), &r)) fail_msg("%s: %.100s", f->path, at);
            assert_int_equal(fk_plan_read(r.plan, &plan, NULL), FK_OK);
            assert_null(strstr(r.device, FK_TUNING_EMULATOR));
            count++;
            old += !fk_advice_is_fresh(&r);
        }
    }
    print_message("%d of %d shipped records are of other sources and do not count\n", old, count);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {WITH_FOLDER(a_record_decides),
                                       WITH_FOLDER(records_can_be_left_aside),
                                       WITH_FOLDER(bad_advice_is_passed_over),
                                       WITH_FOLDER(kin_gives_advice_where_none_of_its_own_is),
                                       WITH_FOLDER(kernels_take_the_advice),
                                       WITH_FOLDER(kernels_of_a_size),
                                       WITH_FOLDER(kernels_of_few_queries),
                                       WITH_FOLDER(sizes_without_a_compiler),
                                       WITH_FOLDER(a_record_without_a_compiler),
                                       WITH_FOLDER(moves_between_directories),
                                       WITH_FOLDER(moves_many),
                                       WITH_FOLDER(moves_all_or_nothing),
                                       WITH_FOLDER(threads_that_export_to_one_file),
                                       cmocka_unit_test(generators),
                                       cmocka_unit_test(shipped_records_are_sound)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
