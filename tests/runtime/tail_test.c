/* NaNs past the ends of sequences in the wgmma family's kernels, whose copies take whole tiles; on the emulator. */
#include "emulated.h"
#include "store.h"
#include "tail_sample.h"

static void with_schedule(const emulated *e) {
    fk_context *context = emulated_context("h200", store_dir, e);
    for (int i = 0; i < NUM_TAIL_SPELLINGS; i++) {
        const fk_kernel_info info = tail_run(context, tail_spellings[i]);
        assert_string_equal(info.plan.family, "wgmma");
    }
    fk_context_destroy(context);
}

static void one_sm(void **state) {
    (void)state;
    with_schedule(&(emulated){"1", "0", "1"});
}

static void three_sms(void **state) {
    (void)state;
    with_schedule(&(emulated){"3", "5", "0"});
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_sm), cmocka_unit_test(three_sms)};
    return cmocka_run_group_tests(tests, make_store, remove_store);
}
