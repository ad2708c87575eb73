/* The tuner from end to end: on the emulator, where kernels are right; on a fake GPU, which computes nothing, so that
 * every plan is wrong; and without a GPU. */
#include "fake/fake.h"

#include "emulated.h"
#include "runtime/tune_check.h"
#include "runtime/tune_data.h"
#include "runtime/tune_rig.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[256];

static int setup(void **state) {
    (void)state;
    unsetenv("FLASHKILN_TUNING");
    return scratch_make(dir, sizeof dir) && setenv("FLASHKILN_CACHE_DIR", dir, 1) == 0 ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return scratch_remove(dir) ? 0 : -1;
}

static const emulated plain = {"4", "0", "0"};

/* Each search is checked for what any must give. */
static size_t tuned(fk_context *context, const char *spelling, fk_tune_options options, fk_trial **trials) {
    const fk_problem p = parsed(spelling);
    size_t count;
    if (fk_tune(context, &p, &options, NULL, NULL, trials, &count)) fail_msg("%s: %s", spelling, fk_last_error());
    assert_true(count > 0 && (*trials)[0].state == FK_TRIAL_TIMED && (*trials)[0].us > 0);
    for (size_t i = 1; i < count; i++) {
        const fk_trial *a = &(*trials)[i - 1], *b = &(*trials)[i];
        assert_true(b->state != FK_TRIAL_TIMED || (a->state == FK_TRIAL_TIMED && a->us <= b->us));
        if (b->state == FK_TRIAL_REJECTED) fail_msg("%s: %s", spelling, b->reason);
    }
    assert_true((*trials)[0].error > 0 && (*trials)[0].error <= 1);
    return count;
}

static const fk_tune_options small = {
    .struct_size = sizeof small, .shape = {1, 2, 0, 0, 64}, .rigor = FK_RIGOR_MEASURE, .jobs = 2, .budget_ms = 4000};

/* A time below the tensor cores' floor is judged only where tiles can be counted. */
static void visits_that_arrays_decide(void **state) {
    (void)state;
    static const struct {
        const char *spelling;
        bool known;
    } cases[] = {
        {"fwd bf16 d64", true},
        {"fwd bf16 d64 causal bias", true},
        {"fwd bf16 d64 butterfly(64)", true},
        {"fwd bf16 d64 document", false},
        {"fwd bf16 d64 causal block_bits(128)", false},
        {"fwd bf16 d64 array=last:int[b] keep=\"k <= last[b]\"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fk_problem p = parsed(cases[i].spelling);
        fk_problem canonical;
        bool known = false;
        fk_error err = {.text = ""};
        if (fk_problem_normalise(&p, &canonical, &err) || fk_tune_visits_known(&canonical, NULL, &known, &err))
            fail_msg("%s: %s", cases[i].spelling, err.text);
        if (known != cases[i].known) fail_msg("%s", cases[i].spelling);
    }
}

static void what_is_found_is_used(void **state) {
    (void)state;
    fk_context *context = emulated_context("t4", dir, &plain);
    fk_trial *trials;
    fk_kernel *kernel;
    fk_kernel_info info;
    const fk_problem p = parsed("fwd fp16 d64 causal");
    char found[FK_MAX_PLAN], used[FK_MAX_PLAN];
    const size_t count = tuned(context, "fwd fp16 d64 causal", small, &trials);
    fk_plan_spell(&trials[0].plan, found, sizeof found);
    int choices = 0;
    for (size_t i = 0; i < count; i++)
        choices += trials[i].plan.chosen == FK_CHOSEN_BY_RULE;
    assert_int_equal(choices, 1);
    fk_free(trials);
    fk_context_destroy(context);
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = "emu", options.plan_for = "t4", options.cache_dir = dir;
    options.planning.shape = small.shape;
    assert_int_equal(fk_context_create(&options, &context), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    fk_plan_spell(&info.plan, used, sizeof used);
    assert_true(info.from_store && info.plan.chosen == FK_CHOSEN_BY_RECORD);
    assert_string_equal(used, found);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
}

/* A search of a list compiles ahead of itself: nothing is timed, and the search finds its kernels. */
static void what_is_compiled_ahead_is_found(void **state) {
    (void)state;
    fk_context *context = emulated_context("t4", dir, &plain);
    fk_trial *trials;
    fk_tune_options options = small;
    size_t count;
    const fk_problem p = parsed("fwd fp16 d256 causal");
    char path[300];
    options.compile_only = 1, options.budget_ms = 0; /* a minute: the machine may be busy */
    assert_int_equal(fk_tune(context, &p, &options, NULL, NULL, &trials, &count), FK_OK);
    for (size_t i = 0; i < count; i++) {
        assert_true(trials[i].state == FK_TRIAL_SKIPPED && trials[i].samples == 0);
        assert_string_equal(trials[i].reason, "it was to be compiled only");
    }
    snprintf(path, sizeof path, "%s/tune-emulator-of-tesla-t4.jsonl", dir);
    assert_int_equal(access(path, F_OK), -1);
    fk_kernel *kernel;
    fk_kernel_info info;
    assert_int_equal(fk_kernel_create(context, &p, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_true(count > 0 && info.from_store);
    fk_kernel_destroy(kernel);
    fk_free(trials);
    fk_context_destroy(context);
    const fk_problem here = parsed("fwd fp16 d256"); /* by no helper */
    context = emulated_context("t4", dir, &plain);
    options.jobs = -1;
    assert_int_equal(fk_tune(context, &here, &options, NULL, NULL, &trials, &count), FK_OK);
    assert_true(count > 0 && trials[0].state == FK_TRIAL_SKIPPED);
    assert_int_equal(fk_kernel_create(context, &here, &kernel), FK_OK);
    assert_int_equal(fk_kernel_describe(kernel, &info), FK_OK);
    assert_true(info.from_store);
    fk_kernel_destroy(kernel);
    fk_free(trials);
    fk_context_destroy(context);
    fk_context_options closed = FK_CONTEXT_OPTIONS_INIT;
    closed.device = "emu", closed.plan_for = "t4", closed.cache_dir = dir, closed.cache_mode = FK_CACHE_READ_ONLY;
    assert_int_equal(fk_context_create(&closed, &context), FK_OK);
    assert_int_equal(fk_tune(context, &here, &options, NULL, NULL, &trials, &count), FK_IO);
    assert_non_null(strstr(fk_last_error(), "the cache mode is not NORMAL"));
    fk_context_destroy(context);
}

/* Inputs for every kind of problem: the one plan of head dim 256, so that each takes one compile. */
static void every_kind_of_problem(void **state) {
    (void)state;
    static const char *const spellings[] = {"fwd fp16 d256",
                                            "bwd fp16 d256 causal",
                                            "fwd fp16 d256 gqa packed causal",
                                            "fwd fp16 d256 seqused_k",
                                            "fwd fp16 d256 gqa causal split paged",
                                            "fwd fp16 d256 dropout",
                                            "fwd fp16 d256 document",
                                            "fwd fp16 d256 key_padding softcap(50)",
                                            "fwd fp16 d256 bits",
                                            "bwd fp16 d256 bias grad=bias",
                                            "fwd fp16 d256 relative(8)"};
    fk_context *context = emulated_context("t4", dir, &plain);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        fk_trial *trials;
        fk_tune_options options = small;
        options.dry_run = 1, options.jobs = -1, options.budget_ms = 1;
        tuned(context, spellings[i], options, &trials);
        fk_free(trials);
    }
    fk_context_destroy(context);
    assert_true(rmdir(dir) != 0); /* the store has kernels */
    char path[300];
    snprintf(path, sizeof path, "%s/tune-emulator-of-tesla-t4.jsonl", dir);
    assert_int_equal(access(path, F_OK), -1); /* but no record was written */
}

static void bad_options_are_named(void **state) {
    (void)state;
    const fk_problem p = parsed("fwd fp16 d64");
    fk_context *context = emulated_context("t4", dir, &plain);
    const fk_tune_options bad[] = {{.struct_size = 8, .rigor = 1},
                                   {.struct_size = sizeof bad[0], .rigor = FK_RIGOR_MODEL},
                                   {.struct_size = sizeof bad[0], .rigor = 9},
                                   {.struct_size = sizeof bad[0], .rigor = 1, .budget_ms = -1},
                                   {.struct_size = sizeof bad[0], .rigor = 1, .jobs = -2},
                                   {.struct_size = sizeof bad[0], .rigor = 1, .shape = {.seqlen_q = -4}}};
    static const char *const fields[] = {"struct_size", "rigor", "rigor", "budget_ms", "jobs", "seqlen_q"};
    fk_trial *trials;
    size_t count;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fk_tune(context, &p, &bad[i], NULL, NULL, &trials, &count), FK_BAD_ARGUMENT);
        assert_non_null(strstr(fk_last_error(), fields[i]));
    }
    assert_int_equal(fk_tune(NULL, &p, NULL, NULL, NULL, &trials, &count), FK_BAD_ARGUMENT);
    assert_int_equal(fk_tune(context, &p, NULL, NULL, NULL, NULL, &count), FK_BAD_ARGUMENT);
    fk_context_destroy(context);
}

/* ALiBi's own: with slopes below 0 scores would grow with the distance, and rows be computed twice. */
static void slopes_are_those_of_alibi(void **state) {
    (void)state;
    const fk_problem p = parsed("fwd fp16 d64 alibi");
    const fk_shape shape = {1, 4, 4, 64, 64};
    static const float slopes[] = {0.25f, 0.0625f, 0.015625f, 0.00390625f};
    fk_context *context = emulated_context("t4", dir, &plain);
    fk_tune_data data;
    fk_problem canonical;
    fk_error err;
    assert_int_equal(fk_problem_canonical(&p, &canonical), FK_OK);
    assert_int_equal(fk_tune_data_make(context, &canonical, &shape, true, &data, &err), FK_OK);
    assert_memory_equal(data.device.array[0].data, slopes, sizeof slopes);
    fk_tune_data_free(&data);
    fk_context_destroy(context);
}

/* A kernel whose results are planted with errors is found out. */
static void wrong_results_are_found(void **state) {
    (void)state;
    const fk_problem p = parsed("fwd fp16 d64"), other = parsed("fwd fp16 d64 causal");
    const fk_shape shape = {1, 1, 1, 64, 64};
    fk_context *context = emulated_context("t4", dir, &plain);
    fk_tune_check *check;
    fk_kernel *right, *wrong = NULL;
    double error;
    char reason[160];
    fk_error err;
    fk_problem canonical;
    assert_int_equal(fk_problem_canonical(&p, &canonical), FK_OK);
    assert_int_equal(fk_tune_check_create(context, &canonical, &shape, &check, &err), FK_OK);
    assert_int_equal(fk_kernel_create(context, &p, &right) || fk_kernel_create(context, &other, &wrong), FK_OK);
    assert_int_equal(fk_tune_check_run(check, right, &error, reason, &err), FK_OK);
    assert_true(!reason[0] && error > 0 && error < 1);
    assert_int_equal(fk_tune_check_run(check, wrong, &error, reason, &err), FK_OK);
    assert_true(strncmp(reason, "wrong: o is off by", 18) == 0 && error > 1);
    fk_kernel_destroy(right);
    fk_kernel_destroy(wrong);
    fk_tune_check_destroy(check);
    fk_context_destroy(context);
}

/* ---- a GPU that computes nothing ---- */

static const char *all_plans_are_wrong(void) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_tune_options how = small;
    fk_context *context;
    fk_trial *trials;
    size_t count;
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    options.cache_dir = dir;
    if (fk_context_create(&options, &context)) return fk_last_error();
    how.shape = (fk_shape){1, 2, 2, 256, 256};
    if (fk_tune(context, &p, &how, NULL, NULL, &trials, &count) != FK_CHECK_FAILED) return "wrong results were timed";
    if (!strstr(fk_last_error(), "wrong: ") || !strstr(fk_last_error(), "not finite")) return fk_last_error();
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel:700", 1); /* a fault ends the CUDA context: no plan is judged by it */
    if (fk_tune(context, &p, &how, NULL, NULL, &trials, &count) != FK_LAUNCH_FAILED) return "a fault was passed over";
    setenv("FAKE_CUDA_FAIL", "cuEventCreate:999", 1);
    if (fk_tune(context, &p, &how, NULL, NULL, &trials, &count) != FK_LAUNCH_FAILED) return "no events, no error";
    unsetenv("FAKE_CUDA_FAIL");
    fk_context_destroy(context);
    options.plan_for = "t4";
    if (fk_context_create(&options, &context)) return fk_last_error();
    if (fk_tune(context, &p, &how, NULL, NULL, &trials, &count) != FK_UNSUPPORTED) return "timed for another GPU";
    fk_context_destroy(context);
    return NULL;
}

static const char *model_and_compiler_choose(void) {
    const fk_problem p = parsed("fwd fp16 d64 causal");
    fk_trial *trials;
    size_t count;
    fk_plan_info *plans;
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    if (fk_tune_modelled(&p, "t4", NULL, dir, &trials, &count)) return fk_last_error();
    if (trials[0].state != FK_TRIAL_TIMED || trials[0].registers != 168 || trials[0].samples) return "the first trial";
    fk_free(trials);
    if (fk_plan_list(&p, "t4", NULL, &plans, &count)) return fk_last_error();
    if (plans[0].chosen != FK_CHOSEN_BY_MODELLED_RECORD || !strstr(plans[0].reason, "modelled")) return plans[0].reason;
    fk_free(plans);
    return NULL;
}

static void a_gpu_that_computes_nothing(void **state) {
    (void)state;
    fake_build("cuda", "", "cuda.so");
    fake_build("nvrtc", "", "nvrtc.so");
    fake_run(all_plans_are_wrong);
    fake_run(model_and_compiler_choose);
}

static int count_calls(void *calls, const fk_tune_progress *progress) {
    (void)progress;
    return ++*(int *)calls, 0;
}

/* How often the file has the word. */
static int count_word(FILE *file, const char *word) {
    char line[4096];
    int count = 0;
    rewind(file);
    while (fgets(line, sizeof line, file))
        for (const char *at = line; (at = strstr(at, word)); at += strlen(word))
            ++count;
    return count;
}

static const char *search_in_vain(FILE *log) {
    const fk_problem p = parsed("fwd fp16 d64");
    fk_tune_options how = small;
    fk_trial *trials;
    size_t count;
    int calls = 0;
    setenv("FLASHKILN_LOG", "1", 1);
    fk_context *context = emulated_context("t4", dir, &plain);
    if (fk_tune(context, &p, &how, count_calls, &calls, &trials, &count) != FK_IO) return "no FK_IO";
    if (calls || !strstr(fk_last_error(), "0777")) return fk_last_error();
    how.dry_run = 1;
    how.budget_ms = 60000;
    if (fk_tune(context, &p, &how, NULL, NULL, &trials, &count)) return fk_last_error();
    const int compiled = count_word(log, "compiled in");
    return compiled < (int)count || compiled > (int)count + how.jobs ? "plans are compiled twice" : NULL;
}

static const char *in_a_refused_store(void) {
    FILE *log = tmpfile();
    const int errors = dup(2);
    if (!log || errors < 0 || chmod(dir, 0777) || dup2(fileno(log), 2) != 2) return "no file for the log";
    const char *wrong = search_in_vain(log);
    dup2(errors, 2); /* where it is told */
    return wrong;
}

/* Where no record can be written nothing is timed for one; and what helpers cannot store is not compiled by them. */
static void a_store_that_others_can_write(void **state) { /* before others, as a process reads FLASHKILN_LOG once */
    (void)state;
    fake_run(in_a_refused_store);
    chmod(dir, 0700);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(a_store_that_others_can_write), cmocka_unit_test(visits_that_arrays_decide),
        WITH_FOLDER(what_is_found_is_used),         WITH_FOLDER(what_is_compiled_ahead_is_found),
        WITH_FOLDER(every_kind_of_problem),         WITH_FOLDER(bad_options_are_named),
        WITH_FOLDER(wrong_results_are_found),       WITH_FOLDER(slopes_are_those_of_alibi),
        WITH_FOLDER(a_gpu_that_computes_nothing)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
