/* The keep mask on a real GPU, for its own plans and, through PTX, those of others: as fk_keep_mask tells it and as the
 * results of both passes show it. Skips itself, by name, without a GPU. */
#include "runtime/dropout_sample.h"

static void one_mask_for_all(void **state) {
    (void)state;
    static const char *const plans[] = {NULL, "a100", "rtx3090", "t4"};
    static const char *const spellings[] = {"bwd fp16 d64 dv256 dropout", "bwd fp16 d128 dv256 dropout deterministic",
                                            "bwd fp16 d256 dropout"};
    uint8_t *first = NULL;
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < 3; j++) {
            const sample s = {spellings[j], plans[i], 2, 3, 3, 250, 243, j ? FK_BSHD : FK_BHSD, 0};
            uint8_t *mask = dropout_check_mask("cuda:0", &s, 0.3);
            if (first) assert_memory_equal(mask, first, 2 * 3 * 250 * 243);
            free(first);
            first = mask;
        }
    free(first);
}

static void kept_is_rarer(void **state) {
    (void)state;
    const sample s = {"bwd bf16 d128 dropout", NULL, 3, 2, 2, 127, 128, FK_BSHD, 0};
    free(dropout_check_mask("cuda:0", &s, 0.9));
}

static void infinite_weights(void **state) {
    (void)state;
    dropout_check_infinite("cuda:0", NULL, 64);
    dropout_check_infinite("cuda:0", NULL, 256);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_mask_for_all), cmocka_unit_test(kept_is_rarer),
                                       cmocka_unit_test(infinite_weights)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/dropout_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    printf("on %s, sm_%d\n", device.name, device.sm);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
