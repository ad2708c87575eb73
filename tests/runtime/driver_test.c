/* Opening the driver: what is missing is named, and a good one is read into a device record. */
#include "fake/fake.h"

#include "runtime/driver.h"

static const char *no_driver(void) {
    fk_error err;
    const fk_driver *d;
    setenv("FLASHKILN_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
    EXPECT(fk_driver_open(&d, &err) == FK_NO_DEVICE);
    EXPECT(strstr(err.text, "/nonexistent/libcuda.so.1"));
    EXPECT(fk_device_present_count() == 0);
    return NULL;
}

static const char *old_driver(void) {
    fk_error err;
    const fk_driver *d;
    fake_use("FLASHKILN_LIBCUDA", "old.so");
    EXPECT(fk_driver_open(&d, &err) == FK_NO_DEVICE);
    EXPECT(strstr(err.text, "cuLibraryLoadData"));
    EXPECT(strstr(err.text, "525"));
    return NULL;
}

static const char *failing_driver(void) {
    fk_error err;
    const fk_driver *d;
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    setenv("FAKE_CUDA_FAIL", "cuInit:999", 1);
    EXPECT(fk_driver_open(&d, &err) == FK_NO_DEVICE);
    EXPECT(strstr(err.text, "cuInit: CUDA_ERROR_FAKE (999): a fake explanation"));
    unsetenv("FAKE_CUDA_FAIL"); /* a failure is not remembered */
    EXPECT(fk_driver_open(&d, &err) == FK_OK);
    return NULL;
}

static const char *reads_device(void) {
    fk_device_info info;
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    EXPECT(fk_device_present_count() == 1);
    EXPECT(fk_device_find("cuda:0", &info) == FK_OK);
    EXPECT(strcmp(info.name, "NVIDIA A100-SXM4-80GB") == 0 && strcmp(info.key, "a100") == 0);
    EXPECT(info.ordinal == 0 && info.sm == 80 && info.num_sms == 108 && info.smem_per_block == 166912);
    EXPECT(info.smem_reserved == 1024 && info.registers_per_sm == 65536 && info.l2_bytes == 41943040);
    EXPECT(info.hbm_gbps > 2030 && info.hbm_gbps < 2045 && info.mma_flops > 0);
    EXPECT(fk_device_find("cuda:1", &info) == FK_NO_DEVICE);
    EXPECT(strstr(fk_last_error(), "cuda:1") && strstr(fk_last_error(), "1 CUDA GPU"));
    return NULL;
}

static const char *names_of_devices(void) {
    fk_device_info info;
    EXPECT(fk_device_find("a100", &info) == FK_OK && info.sm == 80 && info.ordinal == -1);
    EXPECT(fk_device_find("a1000", &info) == FK_NO_DEVICE && strstr(fk_last_error(), "h200"));
    EXPECT(fk_device_find("cuda:x", &info) == FK_NO_DEVICE && strstr(fk_last_error(), "cuda:x"));
    EXPECT(fk_device_find("cuda", &info) == FK_NO_DEVICE && strstr(fk_last_error(), "cuda:0"));
    EXPECT(fk_device_find(NULL, &info) == FK_BAD_ARGUMENT && fk_device_find("a100", NULL) == FK_BAD_ARGUMENT);
    return NULL;
}

static void all(void **state) {
    (void)state;
    fake_build("cuda", "", "cuda.so");
    fake_build("cuda", "-DNO_LIBRARY", "old.so");
    fake_run(no_driver);
    fake_run(old_driver);
    fake_run(failing_driver);
    fake_run(reads_device);
    fake_run(names_of_devices);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
