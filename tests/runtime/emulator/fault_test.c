/* Planted bugs: each must end the launch with a sentence that names it, and leave the process as it was. */
#include "harness.h"

#include <signal.h>

static uint32_t *out, *in;

/* Runs `body` (4 warps, 1 KiB of shared memory) under several schedules. `words` are parts of the message that every
 * schedule must give, separated by '|'; NULL: the kernel is right. */
static void expect(const char *body, const fk_emu_options *options, const char *words) {
    fk_emu_image *image = load_body(body);
    const params p = {out, in, 1024};
    struct sigaction before, after;
    sigaction(SIGSEGV, NULL, &before);
    for (uint64_t seed = 0; seed < 5; ++seed) {
        fk_emu_options o = *options;
        fk_error err = {FK_OK, ""};
        o.seed = seed;
        const fk_status status = fk_emu_launch(image, &p, sizeof p, 3, 128, 1024, &o, &err);
        if (status != (words ? FK_LAUNCH_FAILED : FK_OK))
            fail_msg("seed %d: status %d %s", (int)seed, status, err.text);
        for (const char *w = words; w && *w;) {
            char part[128];
            const size_t n = strcspn(w, "|");
            snprintf(part, sizeof part, "%.*s", (int)n, w);
            if (!strstr(err.text, part)) fail_msg("seed %d: no '%s' in: %s", (int)seed, part, err.text);
            w += n + (w[n] == '|');
        }
    }
    sigaction(SIGSEGV, NULL, &after);
    assert_ptr_equal((void *)(uintptr_t)before.sa_handler, (void *)(uintptr_t)after.sa_handler);
    fk_emu_unload(image);
}

static void test_deadlock(void **state) {
    (void)state;
    expect(
        "if (threadIdx.x < 96) __syncthreads(); else if (threadIdx.x < 112) __shfl_xor_sync(0xffffffffu, 1, 1);",
        &strict,
        "deadlock: block|96 of 128 threads wait at __syncthreads, 16 have exited|warp 0: lanes 0-31 at __syncthreads|"
        "warp 3: lanes 0-15 wait in __shfl_xor_sync for lanes 16-31, exited");
    expect("float c[4]; u32 a[4] = {}; if (threadIdx.x == 37) mma_m16n8k16_fp16(c, a, 0, 0); __syncthreads();", &strict,
           "deadlock: block|127 of 128 threads wait at __syncthreads|"
           "warp 1: lane 5 waits in mma_m16n8k16_fp16 for lanes 0-4, 6-31, at __syncthreads");
    expect(
        "const u32 l = threadIdx.x % 32; if (l < 8) __syncwarp(0x000001ffu); else if (l > 15) __syncwarp(0xffff0100u);"
        "else __syncthreads();",
        &strict,
        "32 of 128 threads wait at __syncthreads|warp 3: lanes 0-7 wait in __syncwarp for lane 8, at __syncthreads|"
        "warp 3: lanes 16-31 wait in __syncwarp for lane 8, at __syncthreads");
}

static void test_exited_threads_do_not_count(void **state) {
    (void)state;
    expect("if (threadIdx.x % 32 >= 16) return; __syncthreads(); if (threadIdx.x >= 64) return; __syncthreads();",
           &strict, NULL);
}

static void test_divergence(void **state) {
    (void)state;
    expect("u32 r[4], a[4] = {}; float c[4]; if (threadIdx.x == 32) ldmatrix_x4(r, smem_base());"
           "else mma_m16n8k16_bf16(c, a, 0, 0);",
           &strict, "warp 1 diverged|ldmatrix_x4|mma_m16n8k16_bf16");
    expect("if (threadIdx.x & 1) __ballot_sync(0xffffffffu, 1); else __ballot_sync(0xfffffffdu, 1);", &strict,
           "__ballot_sync in warp|0xffffffff|0xfffffffd");
    expect(
        "if (threadIdx.x == 3) __any_sync(0xfffffff0u, 1); else if (threadIdx.x % 32 > 3) __any_sync(0xfffffff0u, 1);",
        &strict, "thread 3: __any_sync: mask 0xfffffff0 does not name lane 3");
    expect("if (threadIdx.x % 32 < 16) __shfl_xor_sync(0x0000ffffu, 1, 16);", &strict,
           "__shfl_xor_sync in warp|which is not in mask 0x0000ffff");
}

static void test_races(void **state) {
    (void)state;
#define SLOT "const u32 t = threadIdx.x, s = smem_base() + 4 * t; (void)s;"
    /* Read after write, write after read, write after write, in other warps. */
    expect(SLOT "st_shared_u32(s, t); p.out[t] = ld_shared_u32(smem_base() + 4 * (127 - t));", &strict,
           "race at smem_base() + |with no __syncthreads between");
    expect(SLOT "st_shared_u32(s, t); __syncthreads(); u32 v = ld_shared_u32(smem_base() + 4 * (127 - t)); "
                "st_shared_u32(s, v);",
           &strict, "race at smem_base() + |with no __syncthreads between");
    expect("if (threadIdx.x % 64 == 0) st_shared_v4(smem_base(), make_uint4(0, 0, 0, 0));", &strict,
           "race at smem_base() + 0: st_shared_v4 by warp|wrote it, with no __syncthreads between");
    expect(SLOT
           "st_shared_u32(s, t); __syncthreads(); u32 v = ld_shared_u32(smem_base() + 4 * (127 - t)); __syncthreads(); "
           "st_shared_u32(s, v);",
           &strict, NULL);
    /* Within a warp a __syncwarp or any warp operation is enough, and nothing less. */
    expect(SLOT "st_shared_u32(s, t); p.out[t] = ld_shared_u32(smem_base() + 4 * (t ^ 1));", &strict,
           "race|with no __syncwarp between");
    expect(SLOT "st_shared_u32(s, t); __syncwarp(); p.out[t] = ld_shared_u32(smem_base() + 4 * (t ^ 1));", &strict,
           NULL);
    expect(SLOT "st_shared_u32(s, t); u32 r[4]; ldmatrix_x4(r, smem_base() + (t / 32) * 128); st_shared_u32(s, r[0]);",
           &strict, NULL);
    expect(SLOT "u32 v = ld_shared_u32(smem_base() + t / 32 * 128); if (t % 32 == 7) st_shared_u32(smem_base() + t / "
                "32 * 128, v);",
           &strict, "race|with no __syncwarp between");
    /* Switched off, the same kernel runs. */
    const fk_emu_options lenient = {.poison = true};
    expect(SLOT "st_shared_u32(s, t); p.out[t] = ld_shared_u32(smem_base() + 4 * (127 - t));", &lenient, NULL);
}

static void test_shared_bounds(void **state) {
    (void)state;
    expect("if (threadIdx.x == 5) st_shared_u32(smem_base() + 1024, 1);", &strict,
           "thread 5: st_shared_u32: 4 bytes at smem_base() + 1024 are outside the block's 1024 bytes");
    expect("if (threadIdx.x == 5) ld_shared_v4(smem_base() - 16);", &strict,
           "thread 5: ld_shared_v4|smem_base() + -16");
    expect("u32 r[4]; ldmatrix_x4(r, smem_base() + threadIdx.x * 16);", &strict,
           "ldmatrix_x4: 16 bytes at smem_base() + 1|are outside");
    expect("if (threadIdx.x == 5) st_shared_u32(0xfffffffcu, 1);", &strict, "outside the block's 1024 bytes");
    expect("if (threadIdx.x == 5) st_shared_v4(smem_base() + 8, make_uint4(1, 2, 3, 4));", &strict,
           "st_shared_v4: shared address smem_base() + 8 is not 16-byte aligned");
    expect("if (threadIdx.x == 9) ld_shared_u32(smem_base() + 2);", &strict,
           "ld_shared_u32: shared address smem_base() + 2 is not 4-byte aligned");
}

static void test_global_faults(void **state) {
    (void)state;
    SKIP_UNDER_TSAN;
    expect("if (threadIdx.x == 37) p.out[p.n] = 1;", &strict,
           "thread 37 touched address 0x|, 0 bytes past an allocation of 4096 bytes");
    expect("if (threadIdx.x == 37) ld_global_v4(p.in + p.n + 4);", &strict,
           "thread 37 touched|16 bytes past an allocation of 4096 bytes");
    expect("if (threadIdx.x == 37) p.out[-4] = 1;", &strict,
           "thread 37 touched|16 bytes before an allocation of 4096 bytes");
    expect("if (threadIdx.x == 1) *(volatile int *)16 = 1;", &strict,
           "thread 1 touched address 0x10, outside every allocation");
    expect("if (threadIdx.x == 64) st_global_v4(p.out + 1, make_uint4(0, 0, 0, 0));", &strict,
           "thread 64: st_global_v4: global address 0x|is not 16-byte aligned");
    expect("if (threadIdx.x == 2) cp_async_16(smem_base(), p.in + 2, true);", &strict, "cp_async_16: global address");
#ifdef __x86_64__ /* elsewhere the CPU lets it pass, as GPUs do */
    expect("if (threadIdx.x == 2) p.out[0] = 5 / (u32)(p.n - 1024);", &strict, "thread 2: integer division by zero");
#endif
}

static void test_stack_overflow(void **state) {
    (void)state;
    SKIP_UNDER_TSAN;
    fk_emu_image *image = load(PROLOGUE "static __noinline__ u32 down(volatile u32 *v, u32 n) {\n"
                                        "    volatile u32 frame[64]; frame[n % 64] = v[0];\n"
                                        "    return n ? down(frame, n - 1) + frame[1] : 0;\n}\n" KERNEL
                                        "{ u32 v[64] = {}; if (threadIdx.x == 70) p.out[0] = down(v, 1000000); }\n");
    const params p = {out, in, 0};
    fk_error err = {FK_OK, ""};
    assert_int_equal(fk_emu_launch(image, &p, sizeof p, 1, 128, 0, NULL, &err), FK_LAUNCH_FAILED);
    assert_string_equal(err.text, "block 0 thread 70: stack overflow");
    fk_emu_unload(image);
}

#define COPY "const u32 t = threadIdx.x, s = smem_base() + t % 32 * 16; if (t >= 32) return;"
static void test_copies_in_flight(void **state) {
    (void)state;
    fk_emu_options eager = strict;
    eager.late_copies = false;
    for (int late = 0; late < 2; ++late) {
        const fk_emu_options *o = late ? &strict : &eager;
        expect(COPY "cp_async_16(s, p.in, true); cp_async_commit(); p.out[t] = ld_shared_u32(s);", o,
               "ld_shared_u32 touches smem_base() + |while the cp_async_16 of thread|in flight");
        expect(COPY "cp_async_16(s, p.in, true); cp_async_wait<0>(); p.out[t] = ld_shared_u32(s);", o, "in flight");
        expect(COPY "cp_async_16(s, p.in, true); cp_async_commit(); cp_async_wait<1>(); p.out[t] = ld_shared_u32(s);",
               o, "in flight");
        expect(COPY "cp_async_16(s, p.in, true); cp_async_commit(); st_shared_u32(s, 1);", o,
               "st_shared_u32 touches smem_base() + |in flight");
        expect(COPY
               "cp_async_16(s, p.in, true); cp_async_commit(); cp_async_wait<0>(); p.out[t] = ld_shared_u32(s ^ 16);",
               o, "race|with no __syncwarp between");
        expect(COPY
               "cp_async_16(s, p.in, true); cp_async_commit(); cp_async_commit(); cp_async_wait<1>(); __syncwarp();"
               "p.out[t] = ld_shared_u32(s ^ 16);",
               o, NULL);
        expect("const u32 t = threadIdx.x; cp_async_16(smem_base() + t % 64 * 16, p.in, false); cp_async_commit();", o,
               "cp_async_16 touches smem_base() + |in flight");
    }
}

/* Without race checks a late copy is poison until the wait, so that a kernel's result shows a missing one. */
static void test_late_copies_are_poison(void **state) {
    (void)state;
    const fk_emu_options late = {.late_copies = true, .poison = true};
    memset(in, 0, 4096);
    expect(COPY "st_shared_u32(s, 5); cp_async_16(s, p.in, true); cp_async_commit(); p.out[t] = ld_shared_u32(s);"
                "cp_async_wait<0>(); p.out[32 + t] = ld_shared_u32(s);",
           &late, NULL);
    for (uint32_t t = 0; t < 32; ++t) {
        assert_int_equal(out[t], 0xffffffffu);
        assert_int_equal(out[32 + t], 0);
    }
}

static void test_poison(void **state) {
    (void)state;
    const fk_emu_options poison = {.poison = true}, plain = {.poison = false};
    const char *body = "p.out[threadIdx.x] = ld_shared_u32(smem_base() + 4 * threadIdx.x);"
                       "st_shared_u32(smem_base() + 4 * threadIdx.x, 1);";
    expect(body, &poison, NULL);
    for (uint32_t t = 0; t < 128; ++t)
        assert_int_equal(out[t], 0xffffffffu);
    expect(body, &plain, NULL);
    for (uint32_t t = 0; t < 128; ++t)
        assert_int_equal(out[t], 0);
}

/* The fault of the first block in order is reported, whatever the number of OS threads. */
static void test_fault_is_deterministic(void **state) {
    (void)state;
    fk_emu_image *image = load_body("if (blockIdx.x >= 17 && threadIdx.x == blockIdx.x) st_shared_u32(0, 0);");
    const params p = {out, in, 0};
    for (int i = 0; i < 20; ++i) {
        fk_error err = {FK_OK, ""};
        setenv("FLASHKILN_EMU_THREADS", i % 2 ? "4" : "1", 1);
        assert_int_equal(fk_emu_launch(image, &p, sizeof p, 64, 128, 64, NULL, &err), FK_LAUNCH_FAILED);
        assert_non_null(strstr(err.text, "block 17 thread 17: st_shared_u32"));
    }
    unsetenv("FLASHKILN_EMU_THREADS");
    fk_emu_unload(image);
}

/* Every block of a three-dimensional grid runs once and knows where it is; faults say so too. */
static void test_grid(void **state) {
    (void)state;
    fk_emu_image *image = load_body(
        "if (threadIdx.x == 0) p.out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] += 1 + gridDim.z;"
        "if (p.n && threadIdx.x == 9 && blockIdx.x == 4 && blockIdx.y == 2 && blockIdx.z == 1) st_shared_u32(0, 0);");
    const fk_emu_grid grid = {5, 3, 7, 1};
    for (uint64_t seed = 0; seed < 3; ++seed) {
        fk_error err = {FK_OK, ""};
        const fk_emu_options o = {.seed = seed};
        params p = {out, in, 0};
        memset(out, 0, 4096);
        assert_int_equal(fk_emu_launch_grid(image, "fk_kernel", &p, sizeof p, grid, 32, 0, &o, NULL, &err), FK_OK);
        for (uint32_t i = 0; i < 1024; ++i)
            assert_int_equal(out[i], i < 5 * 3 * 7 ? 8 : 0);
        p.n = 1;
        assert_int_equal(fk_emu_launch_grid(image, "fk_kernel", &p, sizeof p, grid, 32, 0, &o, NULL, &err),
                         FK_LAUNCH_FAILED);
        assert_non_null(strstr(err.text, "block (4, 2, 1) thread 9: st_shared_u32"));
    }
    fk_emu_unload(image);
}

static void test_bad_launches(void **state) {
    (void)state;
    static const struct {
        size_t param_bytes, smem_bytes;
        uint32_t grid_x, threads;
        const char *words;
    } bad[] = {{8, 0, 1, 32, "param_bytes is 8, the kernel takes 24"},
               {sizeof(params), 0, 0, 32, "grid.x is 0, must be 1 to 2147483647"},
               {sizeof(params), 0, 0x80000000u, 32, "grid.x is 2147483648"},
               {sizeof(params), 0, 1, 0, "threads is 0"},
               {sizeof(params), 0, 1, 48, "threads is 48, must be a multiple of 32"},
               {sizeof(params), 0, 1, 1056, "threads is 1056"},
               {sizeof(params), 2000000, 1, 32, "smem_bytes is 2000000"}};
    fk_emu_image *image = load_body("");
    const params p = {out, in, 0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        fk_error err = {FK_OK, ""};
        assert_int_equal(
            fk_emu_launch(image, &p, bad[i].param_bytes, bad[i].grid_x, bad[i].threads, bad[i].smem_bytes, NULL, &err),
            FK_BAD_ARGUMENT);
        assert_non_null(strstr(err.text, bad[i].words));
    }
    static const struct {
        fk_emu_grid grid;
        const char *words;
    } grids[] = {{{1, 65536, 1, 1}, "grid.y is 65536, must be 1 to 65535"},
                 {{1, 1, 0, 1}, "grid.z is 0"},
                 {{65536, 65535, 2, 1}, "grid is 65536 x 65535 x 2"}};
    for (size_t i = 0; i < sizeof grids / sizeof *grids; ++i) {
        fk_error err = {FK_OK, ""};
        assert_int_equal(fk_emu_launch_grid(image, "fk_kernel", &p, sizeof p, grids[i].grid, 32, 0, NULL, NULL, &err),
                         FK_BAD_ARGUMENT);
        assert_non_null(strstr(err.text, grids[i].words));
    }
    fk_emu_unload(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_exited_threads_do_not_count),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_races),
        cmocka_unit_test(test_shared_bounds),
        cmocka_unit_test(test_global_faults),
        cmocka_unit_test(test_stack_overflow),
        cmocka_unit_test(test_copies_in_flight),
        cmocka_unit_test(test_late_copies_are_poison),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_fault_is_deterministic),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_bad_launches),
    };
    out = device_words(1024);
    in = device_words(1024);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fk_emu_free(out);
    fk_emu_free(in);
    return failed;
}
