/* NVRTC: images and resource use from the real one where there is one, failures from fakes. */
#include "fake/fake.h"

#include "gen/term.h"
#include "runtime/compile.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static const char good[] = "#line 7 \"templates/kernel/probe.cu\"\n"
                           "extern \"C\" __global__ void fk_forward(float *o) {\n"
                           "    __shared__ float s[256];\n"
                           "    s[threadIdx.x] = o[threadIdx.x];\n"
                           "    __syncthreads();\n"
                           "    o[threadIdx.x] = s[255 - threadIdx.x];\n"
                           "}\n";
static const char bad[] = "#line 7 \"templates/kernel/probe.cu\"\n"
                          "extern \"C\" __global__ void fk_forward(float *o) { *o = nothing; }\n";

/* Reads an accumulator while products that write it are in flight. */
static const char unordered[] =
    "#define R(i) \"+f\"(acc[i])\n"
    "extern \"C\" __global__ void fk_forward(float *o, unsigned long long a, int n) {\n"
    "    float acc[8] = {};\n"
    "    asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
    "    for (int i = 0; i < n; i++) {\n"
    "        asm volatile(\"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 \"\n"
    "                     \"{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %8, 1, 1, 1, 0, 0;\"\n"
    "                     : R(0), R(1), R(2), R(3), R(4), R(5), R(6), R(7) : \"l\"(a + i) : \"memory\");\n"
    "        acc[3] += 1.0f;\n"
    "    }\n"
    "    asm volatile(\"wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n"
    "    for (int i = 0; i < 8; i++) o[threadIdx.x * 8 + i] = acc[i];\n"
    "}\n";

static const char *real_nvrtc(void) {
    static const char *const targets[] = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a"};
    fk_error err;
    fk_image image;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        EXPECT(fk_compile(good, "fk_forward", targets[i], &image, &err) == FK_OK);
        EXPECT(memcmp(image.bytes, "\177ELF", 4) == 0 && image.size > 500);
        EXPECT(image.registers > 0 && image.registers < 40 && image.spill_bytes == 0 && image.stack_bytes == 0);
        EXPECT(image.serialized_wgmma == 0);
        EXPECT(image.smem_static == 1024 || image.smem_static == 2048); /* sm_90a: and what the driver reserves */
        EXPECT(image.compile_ms > 0 && strncmp(image.compiler, "NVRTC 1", 7) == 0 && strstr(image.compiler, "(build "));
        free(image.bytes);
    }
    EXPECT(fk_compile(good, "fk_forward", "compute_75", &image, &err) == FK_OK);
    EXPECT(strstr(image.bytes, ".target sm_75") && ((char *)image.bytes)[image.size - 1] == 0);
    EXPECT(image.registers == -1 && image.spill_bytes == -1);
    free(image.bytes);
    EXPECT(fk_compile(unordered, "fk_forward", "sm_90a", &image, &err) == FK_OK);
    EXPECT(image.serialized_wgmma == 1 && image.spill_bytes == 0);
    free(image.bytes);
    EXPECT(fk_compile(bad, "fk_forward", "sm_80", &image, &err) == FK_COMPILE_FAILED);
    EXPECT(strstr(err.text, "templates/kernel/probe.cu(7): error: identifier \"nothing\" is undefined"));
    EXPECT(fk_compile(good, "fk_forward", "sm_12", &image, &err) == FK_COMPILE_FAILED && strstr(err.text, "sm_12"));
    return NULL;
}

static const char *no_nvrtc(void) {
    fk_error err;
    fk_image image;
    setenv("FLASHKILN_NVRTC", "/nonexistent/libnvrtc.so.13", 1);
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_NO_COMPILER);
    EXPECT(strstr(err.text, "/nonexistent/libnvrtc.so.13") && strstr(err.text, "FLASHKILN_NVRTC"));
    return NULL;
}

static const char *incomplete_nvrtc(void) {
    fk_error err;
    fk_image image;
    fake_use("FLASHKILN_NVRTC", "incomplete.so");
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_NO_COMPILER);
    EXPECT(strstr(err.text, "nvrtcGetPTX") && strstr(err.text, "12.0"));
    return NULL;
}

static const char *fake_nvrtc(void) {
    fk_error err;
    fk_image image;
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    setenv("FAKE_NVRTC_SPILL", "12", 1);
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_OK);
    EXPECT(strcmp((char *)image.bytes + 64, "--gpu-architecture=sm_80 --std=c++17 -default-device --no-source-include "
                                            "--ptxas-options=-v --minimal --no-cache ") == 0);
    EXPECT(image.registers == 168 && image.spill_bytes == 24 && image.stack_bytes == 16 && image.smem_static == 1024);
    free(image.bytes);
    setenv("FAKE_NVRTC", "refuse", 1);
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_COMPILE_FAILED);
    EXPECT(strstr(err.text, "templates/kernel/forward_mma.cu(12): error") && strstr(err.text, "NVRTC 12.9"));
    setenv("FAKE_NVRTC", "empty", 1);
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_COMPILE_FAILED);
    EXPECT(fk_compile("", "fk_forward", "sm_80", &image, &err) == FK_COMPILE_FAILED && strstr(err.text, "error 3"));
    return NULL;
}

/* With options that it does not know it would compile nothing. */
static const char *older_nvrtc(const char *file, const char *last) {
    fk_error err;
    fk_image image;
    fake_use("FLASHKILN_NVRTC", file);
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_OK);
    const char *behind = strstr((char *)image.bytes + 64, "--ptxas-options=-v ");
    EXPECT(behind && strcmp(behind + strlen("--ptxas-options=-v "), last) == 0);
    free(image.bytes);
    return NULL;
}

static const char *nvrtc_12_0(void) {
    return older_nvrtc("nvrtc_12_0.so", "");
}

static const char *nvrtc_12_4(void) {
    return older_nvrtc("nvrtc_12_4.so", "--minimal ");
}

static const char *folder(void) {
    fk_error err;
    fk_image image;
    setenv("FLASHKILN_CUDA_LIB", fake_dir, 1); /* holds a libnvrtc.so.13 */
    EXPECT(fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_OK);
    EXPECT(strncmp(image.compiler, "NVRTC 12.9", 10) == 0);
    free(image.bytes);
    return NULL;
}

static void *compile_on(void *done) {
    fk_error err;
    fk_image image;
    while (!__atomic_load_n((bool *)done, __ATOMIC_RELAXED))
        if (fk_compile(good, "fk_forward", "sm_80", &image, &err) == FK_OK) free(image.bytes);
    return NULL;
}

static void *recall_on(void *done) {
    while (!__atomic_load_n((bool *)done, __ATOMIC_RELAXED))
        fk_term_recall(FK_TERM_MASK, "unknown", 7, NULL);
    return NULL;
}

static void *look_on(void *user) {
    fk_store *store = user;
    char key[65];
    memset(key, 'a', 64), key[64] = 0;
    for (int i = 0; i < 3000; i++) {
        fk_store_lock(store, key);
        fk_store_unlock(store, key);
    }
    return NULL;
}

/* A child that inherits a lock waits for a thread that it does not have. */
static const char *fork_beside_others(void) {
    fk_error err;
    fk_image image;
    fk_store *store;
    bool done = false;
    pthread_t compiles, recalls, looks;
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    setenv("FAKE_NVRTC", "slow", 1);
    EXPECT(fk_store_open(fake_dir, FK_CACHE_NORMAL, &store, &err) == FK_OK);
    EXPECT(pthread_create(&compiles, NULL, compile_on, &done) == 0 &&
           pthread_create(&recalls, NULL, recall_on, &done) == 0 && pthread_create(&looks, NULL, look_on, store) == 0);
    usleep(60000);
    for (int i = 0; i < 20; i++) {
        int how = -1;
        const pid_t pid = fk_compile_fork(store);
        if (pid == 0) {
            alarm(5);
            fk_term_recall(FK_TERM_MASK, "unknown", 7, NULL);
            fk_store_hold(store);
            _exit(fk_compile(good, "fk_forward", "sm_80", &image, &err) != FK_OK);
        }
        EXPECT(pid > 0 && waitpid(pid, &how, 0) == pid && how == 0);
    }
    __atomic_store_n(&done, true, __ATOMIC_RELAXED);
    pthread_join(compiles, NULL);
    pthread_join(recalls, NULL);
    pthread_join(looks, NULL);
    fk_store_close(store);
    return NULL;
}

static void fakes(void **state) {
    (void)state;
    fake_build("nvrtc", "", "nvrtc.so");
    fake_build("nvrtc", "", "libnvrtc.so.13");
    fake_build("nvrtc", "-DINCOMPLETE", "incomplete.so");
    fake_build("nvrtc", "-DMINOR=0", "nvrtc_12_0.so");
    fake_build("nvrtc", "-DMINOR=4", "nvrtc_12_4.so");
    fake_run(no_nvrtc);
    fake_run(incomplete_nvrtc);
    fake_run(fake_nvrtc);
    fake_run(nvrtc_12_0);
    fake_run(nvrtc_12_4);
    fake_run(folder);
    fake_run(fork_beside_others);
}

static void real(void **state) {
    (void)state;
    fk_error err;
    fk_image image;
    const fk_status status = fk_compile(good, "fk_forward", "sm_80", &image, &err);
    if (status == FK_NO_COMPILER) {
        print_message("skipped without NVRTC: %s\n", err.text);
        skip();
    }
    assert_int_equal(status, FK_OK);
    free(image.bytes);
    fake_run(real_nvrtc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fakes), cmocka_unit_test(real)};
    return cmocka_run_group_tests(tests, fake_start, fake_stop);
}
