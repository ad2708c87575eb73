/* fk_pack_blocks, and tables beside predicates, on a real GPU. Skips itself, by name, without one. */
#include "runtime/blocks_same_sample.h"
#include "runtime/blocks_sample.h"

#include <stdio.h>

static void all_forms_become_the_same_bits(void **state) {
    (void)state;
    blocks_run_all("cuda:0", NULL);
    blocks_run_all("cuda:0", "a100");
}

static void predicate_and_table_agree(void **state) {
    (void)state;
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) fail_msg("%s", fk_last_error());
    same_run_all("cuda:0", "a100", false);
    if (device.sm == 90) same_run_all("cuda:0", NULL, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_forms_become_the_same_bits),
                                       cmocka_unit_test(predicate_and_table_agree)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/blocks_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
