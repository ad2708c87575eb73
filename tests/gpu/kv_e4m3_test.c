/* Keys and values of 8 bits beside queries of 16, on a real GPU: each byte is what it stands for by each way of
 * converting it, and results are those of kernels of 16 bits. Skips itself, by name, without a GPU. */
#include "runtime/kv_e4m3_sample.h"

#include <stdio.h>

static void all_bytes(void **state) {
    (void)state;
    fk_device_info device;
    assert_int_equal(fk_device_find("cuda:0", &device), FK_OK);
    kv_all_bytes("cuda:0", NULL, device.sm >= 89);
    kv_all_bytes("cuda:0", "t4", false); /* that GPU's way, through PTX */
    if (device.sm >= 80) kv_all_bytes("cuda:0", "a100", false);
    if (device.sm >= 89) kv_all_bytes("cuda:0", "l4", true);
}

static void results_are_those_of_the_same_values_in_16(void **state) {
    (void)state;
    static const kv_sample samples[] = {
        {"d128 gqa causal split", "a100", "mma m16 n32 w1 s1 c4 r1", 4, 16, 4, 3, 3000, 0, 5},
        {"d64 gqa split paged(16)", "a100", "mma m32 n64 w2 s1 c4 r1", 4, 16, 4, 1, 3000, 16, 4},
        {"d128 causal paged(64)", "a100", "mma m64 n64 w4 s1 c2", 2, 8, 8, 500, 1111, 64, 0},
        {"d256 window(300,0) split paged", "a100", "mma m32 n16 w2 s1 c2", 2, 8, 8, 20, 1500, 33, 3},
    };
    static const kv_sample on_hopper[] = {
        {"d128 gqa causal", "h200", "wgmma m128 n128 w12 s2 c1 r1 q2 k3 t1 o1", 2, 8, 2, 700, 1500, 0, 0},
        {"d64 gqa window(300,0) paged(16)", "h200", "wgmma m128 n64 w20 s4 c1 q2 k4 o2", 2, 8, 4, 500, 1111, 48, 0},
        {"d256 dropout", "h200", NULL, 2, 4, 4, 300, 777, 0, 0},
        {"d72 dv40 softcap(5) causal", "h200", NULL, 2, 4, 4, 333, 900, 0, 0},
    };
    fk_device_info device;
    assert_int_equal(fk_device_find("cuda:0", &device), FK_OK);
    for (size_t i = 0; i < sizeof samples / sizeof *samples && device.sm >= 80; i++)
        kv_compare(&samples[i], "cuda:0", NULL);
    for (size_t i = 0; i < sizeof on_hopper / sizeof *on_hopper && device.sm == 90; i++)
        kv_compare(&on_hopper[i], "cuda:0", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_bytes),
                                       cmocka_unit_test(results_are_those_of_the_same_values_in_16)};
    fk_device_info device;
    if (fk_device_find("cuda:0", &device)) {
        printf("skipped: gpu/kv_e4m3_test needs a GPU: %s\n", fk_last_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
