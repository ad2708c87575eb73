/* Memory may end at any point while records are asked, taken over or written out: the answer is FK_NO_MEMORY, nothing
 * leaks, and no half of a file is taken for all of it. The test replaces malloc, which a sanitizer does too, so it
 * skips itself there. */
#include "cache/tuning.h"
#include "cache/vfs.h"
#include "runtime/advice.h"
#include "scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void) {
    return 77;
}

#else

#include "failing_heap.h"

static char dir[256], other[256], file[300];
static bool wrong; /* an act said FK_OK, and did not do it: told when memory is back */

/* Two records of a problem and one of another; the fastest plan is no candidate. */
static int setup(void **state) {
    (void)state;
    static const char *const plans[] = {"mma m64 n32 w4 s1 c1", "mma m64 n16 w4 s1 c1", "mma m16 n16 w1 s9 c1"};
    char lines[3 * FK_TUNING_LINE_MAX];
    size_t size = 0;
    unsetenv("FLASHKILN_TUNING");
    for (int i = 0; i < 3; i++) {
        fk_tuning_record r = {.problem = "fwd fp16 d72 causal",
                              .shape = {4, 28, 28, 4096, 4096},
                              .device = "Tesla T4",
                              .sm = 75,
                              .num_sms = 40,
                              .rigor = FK_RIGOR_MEASURE,
                              .samples = 1,
                              .us = 1000 - 300 * i};
        strcpy(r.plan, plans[i]);
        size += fk_tuning_write(&r, fk_advice_buckets(), lines + size);
    }
    if (!scratch_make(dir, sizeof dir) || !scratch_make(other, sizeof other)) return -1;
    snprintf(file, sizeof file, "%s/out.jsonl", other);
    return fk_tuning_append(&fk_vfs_posix, dir, "Tesla T4", lines, size, NULL) == FK_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    return scratch_remove(dir) && scratch_remove(other) ? 0 : -1;
}

static fk_status advise(void) {
    static fk_problem p;
    fk_device_info device;
    fk_plan_info *plans;
    size_t count;
    const fk_advice advice = {.dir = dir};
    fk_status status = p.struct_size ? FK_OK : fk_problem_parse("fwd fp16 d72 causal", &p);
    if (status == FK_OK) status = fk_device_lookup("t4", &device, NULL);
    if (status == FK_OK) status = fk_plan_advised(&p, &device, NULL, &advice, &plans, &count, NULL);
    if (status != FK_OK) return status;
    wrong |= plans[0].chosen != FK_CHOSEN_BY_RECORD || plans[0].block_n != 16;
    free(plans);
    return FK_OK;
}

static fk_status give_out(void) {
    size_t count = 0;
    const fk_status status = fk_tuning_export(dir, file, &count);
    wrong |= status == FK_OK && count != 1;
    return status;
}

static fk_status take_over(void) {
    char path[400];
    size_t taken = 0;
    snprintf(path, sizeof path, "%s/tune-tesla-t4.jsonl", dir);
    const fk_status status = fk_tuning_import(other, path, &taken, NULL);
    wrong |= status == FK_OK && taken > 1;
    return status;
}

/* Every allocation of the last `last`, once and from there on. */
static long fail_each(fk_status (*act)(void), long last) {
    long failures = 0;
    assert_int_equal(act(), FK_OK); /* what is read once is read */
    heap.calls = 0;
    assert_int_equal(act(), FK_OK);
    const long calls = heap.calls, first = calls > last ? calls - last : 1;
    for (long n = first; n <= calls; n++) {
        for (int once = 0; once < 2; once++) {
            const long live = heap.live;
            heap.calls = 0;
            heap.fail_from = n;
            heap.fail_count = once ? 1 : LONG_MAX;
            const fk_status status = act();
            heap.fail_from = 0;
            if (wrong) fail_msg("allocation %ld%s: done wrongly", n, once ? "" : " and all after it");
            /* stdio, which has no memory for its buffer, says that the file cannot be written; Lua tries again */
            assert_true(status == FK_NO_MEMORY || status == FK_OK || status == FK_IO);
            failures += status != FK_OK;
            assert_int_equal(heap.live, live);
        }
    }
    print_message("faults injected: %ld allocations fail once, and %ld from there on\n", calls - first + 1,
                  calls - first + 1);
    return failures;
}

static void every_allocation_fails(void **state) {
    (void)state;
    assert_int_equal(fk_tuning_export(dir, NULL, NULL), FK_BAD_ARGUMENT); /* the thread's last error has its memory */
    assert_true(fail_each(advise, 200) > 100);
    assert_true(fail_each(give_out, 1000) > 10);
    assert_true(fail_each(take_over, 1000) > 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(every_allocation_fails, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
