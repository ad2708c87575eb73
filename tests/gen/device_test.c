/* The device table: sane rows, exact lookup, and live GPUs that take the rates of the row they are. */
#include "gen/generate.h"
#include "test.h"

#include <stdlib.h>

static void test_every_row_is_sane(void **state) {
    (void)state;
    assert_true(fk_device_table_size() >= 12);
    for (size_t i = 0; i < fk_device_table_size(); ++i) {
        fk_device_info d, found;
        fk_error err;
        assert_int_equal(fk_device_table(i, &d), FK_OK);
        assert_int_equal(fk_device_lookup(d.key, &found, &err), FK_OK);
        assert_memory_equal(&d, &found, sizeof d); /* keys are unique */
        assert_int_equal(d.ordinal, -1);
        assert_true(d.sm >= 75 && d.num_sms >= 20);
        assert_true(d.smem_per_block + d.smem_reserved <= d.smem_per_sm);
        assert_int_equal(d.smem_reserved, d.sm >= 80 ? 1024 : 0);
        assert_int_equal(d.registers_per_sm, 65536);
        assert_int_equal(d.threads_per_sm % 512, 0);
        assert_true(d.blocks_per_sm >= 16 && d.l2_bytes >= 4 << 20);
        /* Tensor peak in TFLOP/s: between a T4 and a B200. */
        const double peak = d.num_sms * d.clock_ghz * d.mma_flops * 1e-3;
        assert_true(peak > 50 && peak < 1000);
        assert_true(d.hbm_gbps >= 300 && d.hbm_gbps <= 8000);
        assert_true(d.exp_rate > 0 && d.issue_rate > 0 && d.smem_rate > 0);
    }
}

static void test_unknown_names_list_the_known(void **state) {
    (void)state;
    fk_device_info d;
    fk_error err;
    assert_int_equal(fk_device_lookup("a1000", &d, &err), FK_NO_DEVICE);
    assert_message(err.text, "unknown GPU \"a1000\"");
    assert_message(err.text, " t4 ");
    assert_message(err.text, " h200 ");
    assert_int_equal(fk_device_lookup(NULL, &d, &err), FK_NO_DEVICE);
    assert_int_equal(fk_device_table(1000, &d), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "index is 1000: must be below");
    assert_int_equal(fk_device_table(0, NULL), FK_BAD_ARGUMENT);
}

static fk_device_info live(const char *name, int sm, int num_sms) {
    fk_device_info d = {.sm = sm, .num_sms = num_sms};
    memcpy(d.name, name, strlen(name));
    return d;
}

static void test_live_devices_take_the_rates_of_their_row(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int sm, sms;
        const char *key;
        double gbps, mma;
    } cases[] = {
        {"NVIDIA H200", 90, 132, "h200", 4800, 2560},
        {"NVIDIA L40S", 89, 142, "l40s", 864, 1024},
        {"NVIDIA L4", 89, 58, "l4", 300, 1024},
        {"NVIDIA A100-SXM4-40GB", 80, 108, "a100", 2039, 2048},
        {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", 80, 42, "", 2039, 2048},
        {"NVIDIA GeForce RTX 3090 Ti", 86, 84, "", 936, 512}, /* the nearest size of sm_86 */
        {"NVIDIA Thor", 101, 20, "", 8000, 2048},             /* sm_100 is the nearest lower row */
        {"NVIDIA GeForce GTX 1080", 61, 20, "", 320, 1024},   /* nothing lower: the first row */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_device_info d = live(cases[i].name, cases[i].sm, cases[i].sms);
        fk_device_complete(&d);
        assert_string_equal(d.key, cases[i].key);
        assert_true(d.hbm_gbps == cases[i].gbps);
        assert_true(d.mma_flops == cases[i].mma);
    }
}

static void test_what_the_driver_said_stays(void **state) {
    (void)state;
    fk_device_info d = live("NVIDIA H200", 90, 132);
    d.hbm_gbps = 4000;
    d.clock_ghz = 1.2;
    d.l2_bytes = 1 << 20;
    d.registers_per_sm = 32768;
    fk_device_complete(&d);
    assert_true(d.hbm_gbps == 4000 && d.clock_ghz == 1.2 && d.l2_bytes == 1 << 20 && d.registers_per_sm == 32768);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_is_sane),
        cmocka_unit_test(test_unknown_names_list_the_known),
        cmocka_unit_test(test_live_devices_take_the_rates_of_their_row),
        cmocka_unit_test(test_what_the_driver_said_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
