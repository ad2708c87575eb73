/* Memory may end at any point between a spelling and its CUDA text: the answer is FK_NO_MEMORY, and nothing leaks.
 * The test replaces malloc, which a sanitizer does too, so it skips itself there. */
#include "gen/generate.h"
#include "test.h"

#include <limits.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void) {
    return 77;
}

#else

#include "failing_heap.h"

/* The whole way of the data above NVRTC. */
static fk_status generate(char **text, fk_error *err) {
    fk_problem p;
    fk_device_info device;
    fk_plan_info plan;
    fk_tile_counts tiles;
    fk_source source;
    fk_status status = fk_problem_read("fwd fp16 d64 window(100,0) keep=\"(q - k) % 3 == 0\"", &p, err);
    if (status == FK_OK) status = fk_device_lookup("a100", &device, err);
    if (status == FK_OK) status = fk_plan_best(&p, &device, NULL, &plan, err);
    if (status == FK_OK) status = fk_plan_count_tiles(&p, &plan, NULL, &tiles, err);
    if (status == FK_OK) status = fk_source_create(&p, &device, &plan, NULL, false, &source, err);
    if (status == FK_OK) *text = source.text;
    return status;
}

static void test_every_failing_allocation(void **state) {
    (void)state;
    char *expected = NULL;
    fk_error err = {.text = ""};
    heap.calls = 0;
    if (generate(&expected, &err) != FK_OK) fail_msg("%s", err.text);
    const long calls = heap.calls;
    assert_true(calls > 1000);
    long failures = 0, injected = 0;
    /* All of the first thousand, then every so many; failing once, and failing from there on. */
    for (long n = 1; n <= calls; n += n < 1000 ? 1 : calls / 100) {
        for (long count = 1; count < LONG_MAX; count = count == 1 ? LONG_MAX - 1 : LONG_MAX) {
            char *text = NULL;
            ++injected;
            const long live = heap.live;
            heap.calls = 0;
            heap.fail_from = n;
            heap.fail_count = count;
            const fk_status status = generate(&text, &err);
            heap.fail_from = 0;
            if (status == FK_OK) {                               /* Lua collects garbage and tries once more */
                if (heap.calls >= n) assert_int_equal(count, 1); /* a run may have a few allocations less */
                assert_string_equal(text, expected);
            } else {
                ++failures;
                if (status != FK_NO_MEMORY) fail_msg("allocation %ld: %s", n, err.text);
                assert_message(err.text, "memory");
            }
            free(text);
            assert_int_equal(heap.live, live);
        }
    }
    assert_true(failures > 1000);
    print_message("faults injected: %ld of %ld allocations fail, once or from there on; %ld end in FK_NO_MEMORY\n",
                  injected, 2 * calls, failures);
    free(expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_failing_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
