/* Bugs planted in what two CTAs send each other that have half of all columns each: sums of scores, weights, and
 * numbers of rows, which know by each other that what they overwrite was read. */
#include "plant.h"

static const plan_wanted variants[] = {
    {"fwd bf16 d320 causal", "h200", 2, 0, 1, 1},
    {"fwd fp16 d320 keep=\"q < 256 && (q + k) % 3 != 0\"", "h200", 2, 0, 1, 2},
};

#define IN_FLIGHT "race at smem_base() + |is in flight|already has its |lacks |deadlock: "

static int emit(void **state) {
    return emit_plan(*state);
}

static void test_untouched(void **state) {
    (void)state;
    expect("untouched", source.text, NULL);
}

/* What is sent is read before it is there. */
static void test_removed_wait(void **state) {
    (void)state;
    assert_int_equal(plant_each("wait_sent(sent_bar(0), half_parity, s_atoms * 512);", "", IN_FLIGHT), 1);
    assert_int_equal(plant_each("wait_sent(sent_bar(1), half_parity ^ 1, weight_parts * 512);", "", IN_FLIGHT), 1);
    assert_int_equal(plant_each("wait_sent(bar, rows_parity, 128);", "", IN_FLIGHT), 1);
}

/* Sums leave before the weights have come, and may overwrite those before, which the other CTA has not read. */
static void test_sent_too_early(void **state) {
    (void)state;
    int count = 0;
    for (int i = 0; i < 2; ++i) {
        char late[96], early[96];
        snprintf(late, sizeof late, "receive_weights(weights[%d]);\n        send_sums(sums);", i);
        snprintf(early, sizeof early, "send_sums(sums);\n        receive_weights(weights[%d]);", i);
        count += plant_each(late, early, IN_FLIGHT);
    }
    assert_int_equal(count, source.plan.overlap);
}

static void test_wrong_bytes(void **state) {
    (void)state;
    assert_int_equal(plant_each("half_parity, s_atoms * 512);", "half_parity, s_atoms * 512 + 16);",
                                "lacks 0 of 1 arrivals and 16 bytes"),
                     1);
    assert_int_equal(plant_each("half_parity ^= 1;", "", IN_FLIGHT), 1);
}

#define TESTS_OF(index)                                                                                                \
    cmocka_unit_test_prestate_setup_teardown(test_untouched, emit, discard, (void *)&variants[index]),                 \
        cmocka_unit_test_prestate_setup_teardown(test_removed_wait, emit, discard, (void *)&variants[index]),          \
        cmocka_unit_test_prestate_setup_teardown(test_sent_too_early, emit, discard, (void *)&variants[index]),        \
        cmocka_unit_test_prestate_setup_teardown(test_wrong_bytes, emit, discard, (void *)&variants[index])

int main(void) {
    const struct CMUnitTest tests[] = {TESTS_OF(0), TESTS_OF(1)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
