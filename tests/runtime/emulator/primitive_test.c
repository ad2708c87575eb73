/* Each primitive against its definition, written element by element from the PTX ISA's figures. */
#include "harness.h"
#include "runtime/emulator/half.h"

#include <math.h>

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void run(const char *body, const params *p, uint32_t threads, size_t smem_bytes) {
    fk_emu_image *image = load_body(body);
    fk_error err = {FK_OK, ""};
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const fk_emu_options options = {.seed = seed, .poison = true, .check_races = true, .late_copies = seed & 1};
        if (fk_emu_launch(image, p, sizeof *p, 1, threads, smem_bytes, &options, &err) != FK_OK)
            fail_msg("%s", err.text);
    }
    fk_emu_unload(image);
}

static void test_shuffles_and_votes(void **state) {
    (void)state;
    uint32_t *out = device_words(10 * 64);
    const params p = {out, NULL, 0};
    run("const u32 t = threadIdx.x, l = t & 31; const u32 all = 0xffffffffu; u32 *o = p.out + 10 * t;"
        "o[0] = __shfl_xor_sync(all, t * 3u, 5);"
        "o[1] = (u32)__shfl_sync(all, (int)t - 100, 7);"
        "o[2] = __float_as_uint(__shfl_xor_sync(all, (float)t * 0.5f, 16));"
        "o[3] = __ballot_sync(all, l % 3 == 0);"
        "o[4] = (u32)__any_sync(all, t == 40);"
        "o[5] = (u32)__all_sync(all, t < 40);"
        "o[6] = __shfl_up_sync(all, t, 3, 8);"
        "o[7] = __shfl_down_sync(all, t, 3, 8);"
        "o[8] = __shfl_sync(all, t, 9, 8);"
        "if (l < 16) o[9] = __shfl_xor_sync(0x0000ffffu, t, 1);"
        "else o[9] = __ballot_sync(0xffff0000u, l & 1);",
        &p, 64, 0);
    for (uint32_t t = 0; t < 64; ++t) {
        const uint32_t *o = out + 10 * t, l = t % 32, warp = t - l;
        float f;
        memcpy(&f, &o[2], 4);
        assert_int_equal(o[0], 3 * (t ^ 5));
        assert_int_equal((int32_t)o[1], (int32_t)warp + 7 - 100);
        assert_true(f == (float)(t ^ 16) * 0.5f);
        assert_int_equal(o[3], 0x49249249);
        assert_int_equal(o[4], warp == 32);
        assert_int_equal(o[5], warp == 0);
        assert_int_equal(o[6], l % 8 >= 3 ? t - 3 : t);
        assert_int_equal(o[7], l % 8 < 5 ? t + 3 : t);
        assert_int_equal(o[8], t / 8 * 8 + 1);
        assert_int_equal(o[9], l < 16 ? (t ^ 1) : 0xaaaa0000u);
    }
    fk_emu_free(out);
}

static void test_ldmatrix(void **state) {
    (void)state;
    enum { ROWS = 40, WORDS = ROWS * 4 };
    uint32_t *in = device_words(WORDS + 32), *out = device_words(32 * 8), random = 1;
    uint16_t memory[ROWS][8];
    for (uint32_t i = 0; i < ROWS * 8; ++i)
        memory[i / 8][i % 8] = (uint16_t)next_random(&random);
    memcpy(in, memory, sizeof memory);
    for (uint32_t i = 0; i < 32; ++i)
        in[WORDS + i] = next_random(&random) % ROWS; /* the row that lane i points at */
    const params p = {out, in, WORDS};
    run("const u32 t = threadIdx.x; const u32 s = smem_base();"
        "for (int i = t; i < p.n; i += 32) st_shared_u32(s + 4 * i, p.in[i]);"
        "__syncwarp();"
        "u32 r[4], q[4];"
        "ldmatrix_x4(r, s + 16 * p.in[p.n + t]); ldmatrix_x4_trans(q, s + 16 * p.in[p.n + t]);"
        "for (int i = 0; i < 4; ++i) { p.out[8 * t + i] = r[i]; p.out[8 * t + 4 + i] = q[i]; }",
        &p, 32, sizeof memory);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            for (uint32_t e = 0; e < 2; ++e) {
                const uint32_t row = lane / 4, column = lane % 4 * 2 + e;
                const uint16_t plain = (uint16_t)(out[8 * lane + i] >> 16 * e);
                const uint16_t trans = (uint16_t)(out[8 * lane + 4 + i] >> 16 * e);
                assert_int_equal(plain, memory[in[WORDS + 8 * i + row]][column]);
                assert_int_equal(trans, memory[in[WORDS + 8 * i + column]][row]);
            }
        }
    }
    fk_emu_free(in);
    fk_emu_free(out);
}

/* Puts element `e` of a register array of packed halves. */
static void put_half(uint32_t *regs, uint32_t e, uint16_t h) {
    regs[e / 2] = (regs[e / 2] & ~(0xffffu << 16 * (e % 2))) | (uint32_t)h << 16 * (e % 2);
}

/* C += A B for small integers, which are exact in any order of summation. in: 6 registers and 4 floats of each lane. */
static void check_mma(const char *call, uint32_t k_size, uint16_t (*narrow)(float)) {
    enum { WORDS = 10 };
    uint32_t *in = device_words(32 * WORDS), *out = device_words(32 * 4), random = 7;
    float a[16][16], b[16][8], c[16][8];
    for (uint32_t i = 0; i < 256; ++i)
        a[i / 16][i % 16] = (float)(next_random(&random) % 33) - 16.0f;
    for (uint32_t i = 0; i < 128; ++i) {
        b[i / 8][i % 8] = (float)(next_random(&random) % 33) - 16.0f;
        c[i / 8][i % 8] = (float)(next_random(&random) % 1001) - 500.0f;
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t group = lane >> 2, quad = lane & 3;
        uint32_t *regs = in + WORDS * lane;
        for (uint32_t i = 0; i < (k_size == 16 ? 8u : 4u); ++i) {
            const uint32_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
            put_half(regs, i, narrow(a[row][quad * 2 + (i & 1) + (i >= 4 ? 8 : 0)]));
        }
        for (uint32_t i = 0; i < k_size / 4; ++i)
            put_half(regs + 4, i, narrow(b[quad * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group]));
        for (uint32_t i = 0; i < 4; ++i)
            memcpy(regs + 6 + i, &c[i < 2 ? group : group + 8][quad * 2 + (i & 1)], 4);
    }
    char body[1024];
    snprintf(body, sizeof body,
             "const u32 *in = p.in + 10 * threadIdx.x; float c[4]; u32 a[4]; const u32 b0 = in[4], b1 = in[5];"
             "for (int i = 0; i < 4; ++i) { a[i] = in[i]; c[i] = __uint_as_float(in[6 + i]); }"
             "%s;"
             "for (int i = 0; i < 4; ++i) p.out[4 * threadIdx.x + i] = __float_as_uint(c[i]);",
             call);
    const params p = {out, in, 0};
    run(body, &p, 32, 0);
    for (uint32_t lane = 0; lane < 32; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            const uint32_t m = i < 2 ? lane >> 2 : (lane >> 2) + 8, n = (lane & 3) * 2 + (i & 1);
            float expected = c[m][n], got;
            for (uint32_t k = 0; k < k_size; ++k)
                expected += a[m][k] * b[k][n];
            memcpy(&got, &out[4 * lane + i], 4);
            assert_true(got == expected);
        }
    }
    fk_emu_free(in);
    fk_emu_free(out);
}

static void test_mma(void **state) {
    (void)state;
    check_mma("mma_m16n8k16_fp16(c, a, b0, b1)", 16, fk_fp16_from_float);
    check_mma("mma_m16n8k16_bf16(c, a, b0, b1)", 16, fk_bf16_from_float);
    check_mma("mma_m16n8k8_fp16(c, a[0], a[1], b0)", 8, fk_fp16_from_float);
}

/* Of parts of floats the sum is exact, and then truncated to float. */
static void test_mma_parts(void **state) {
    (void)state;
    check_mma("mma_m16n8k16_parts(c, a, b0, b1)", 16, fk_bf16_from_float);
    static const struct {
        float c, product, sum;
    } cases[] = {{1, -0x1p-30f, 0x1.fffffep-1f},
                 {1, 0x1.8p-24f, 1},
                 {-1, -0x1.8p-24f, -1},
                 {0x1p20f, 0x1p-3f, 0x1p20f + 0x1p-3f}};
    uint32_t *in = device_words(2), *out = device_words(32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        in[0] = fk_bf16_from_float(cases[i].product);
        memcpy(in + 1, &cases[i].c, 4);
        const params p = {out, in, 0};
        run("const bool first = threadIdx.x % 4 == 0; const u32 one = first ? 0x3f80 : 0, a[4] = {one, one, 0, 0};"
            "float c[4]; for (float &x : c) x = __uint_as_float(p.in[1]);"
            "mma_m16n8k16_parts(c, a, first ? p.in[0] : 0, 0);"
            "p.out[threadIdx.x] = __float_as_uint(c[threadIdx.x % 4]);",
            &p, 32, 0);
        for (uint32_t lane = 0; lane < 32; ++lane) {
            float got;
            memcpy(&got, &out[lane], 4);
            assert_true(got == cases[i].sum);
        }
    }
    fk_emu_free(in);
    fk_emu_free(out);
}

/* Every 16-bit value times one, through the tensor core's own conversion: lane l's value comes back in row l / 4. */
static void check_mma_values(const char *mma, const char *one, float (*widen)(uint16_t)) {
    enum { COUNT = 65536 };
    uint32_t *out = device_words(COUNT);
    char body[1024];
    snprintf(body, sizeof body,
             "const u32 l = threadIdx.x;"
             "for (u32 first = 0; first < 65536; first += 8) {"
             "    float c[4] = {}; const u32 a[4] = {l %% 4 == 0 ? first + l / 4 : 0, 0, 0, 0};"
             "    %s(c, a, l == 0 ? %s : 0, 0);"
             "    if (l %% 4 == 0) p.out[first + l / 4] = __float_as_uint(c[0]);"
             "}",
             mma, one);
    const params p = {out, NULL, 0};
    run(body, &p, 32, 0);
    for (uint32_t h = 0; h < COUNT; ++h) {
        const float expected = widen((uint16_t)h);
        float got;
        memcpy(&got, &out[h], 4);
        assert_true(isnan(expected) ? isnan(got) : got == expected);
    }
    fk_emu_free(out);
}

static void test_mma_values(void **state) {
    (void)state;
    check_mma_values("mma_m16n8k16_fp16", "0x3c00u", fk_fp16_to_float);
    check_mma_values("mma_m16n8k16_bf16", "0x3f80u", fk_bf16_to_float);
}

static void test_memory(void **state) {
    (void)state;
    uint32_t *in = device_words(32 * 4), *out = device_words(32 * 16);
    for (uint32_t i = 0; i < 128; ++i)
        in[i] = i * 0x01010101u;
    const params p = {out, in, 0};
    run("const u32 t = threadIdx.x; const u32 s = smem_base() + 64 * t; uint4 v = ld_global_v4(p.in + 4 * t);"
        "st_shared_v4(s, v); st_shared_u32(s + 4, ld_shared_u32(s) + 1);"
        "cp_async_16(s + 16, p.in + 4 * t, true); cp_async_16(s + 32, nullptr, false); cp_async_commit();"
        "st_shared_v4(s + 48, make_uint4(t, 1, 2, 3));"
        "cp_async_wait<0>();"
        "for (int i = 0; i < 4; ++i) st_global_v4(p.out + 16 * t + 4 * i, ld_shared_v4(s + 16 * i));",
        &p, 32, 32 * 64);
    for (uint32_t t = 0; t < 32; ++t) {
        const uint32_t *o = out + 16 * t, *v = in + 4 * t;
        assert_int_equal(o[0], v[0]);
        assert_int_equal(o[1], v[0] + 1);
        assert_memory_equal(o + 2, v + 2, 8);
        assert_memory_equal(o + 4, v, 16);
        for (uint32_t i = 0; i < 4; ++i) {
            assert_int_equal(o[8 + i], 0);
            assert_int_equal(o[12 + i], i ? i : t);
        }
    }
    fk_emu_free(in);
    fk_emu_free(out);
}

static void test_builtins(void **state) {
    (void)state;
    uint32_t *out = device_words(32);
    const params p = {out, NULL, -7};
    run("if (threadIdx.x != 31) return; u32 *o = p.out; const float nan = __uint_as_float(0x7fc00000u);"
        "*o++ = __popc(0xf0f0u); *o++ = __ffs(0x10); *o++ = __ffs(0); *o++ = __clz(1); *o++ = __clz(0);"
        "*o++ = __brev(0x00000005u); *o++ = (u32)min(3, -2); *o++ = (u32)max(p.n, (i64)-9); *o++ = (u32)abs(-5);"
        "*o++ = __float_as_uint(fmaxf(nan, 2.0f)); *o++ = __float_as_uint(fminf(2.0f, nan));"
        "*o++ = pack_fp16(1.0f, -2.0f); *o++ = pack_bf16(1.0f, -2.0f);"
        "*o++ = __float_as_uint(ex2(-__uint_as_float(0x7f800000u))); *o++ = __float_as_uint(ex2(3.0f));"
        "*o++ = __float_as_uint(ex2(-130.0f)); *o++ = __float_as_uint(lg2(8.0f)); *o++ = __float_as_uint(lg2(0.0f));"
        "*o++ = blockDim.x + gridDim.x + blockIdx.x + threadIdx.y; *o++ = (u32)max(1u, 2u); *o++ = __int_as_float(0) "
        "== 0.0f;"
        "const float4 f = make_float4(1, 2, 3, 4); *o++ = (u32)(f.x + f.y + f.z + f.w); *o++ = (u32)fabsf(-3.0f);"
        "*o++ = (u32)(logf(expf(1.0f)) + tanhf(0.0f) + exp2f(2.0f) + 0.5f); *o++ = __umulhi(0x80000000u, 6u);",
        &p, 32, 0);
    static const uint32_t expected[] = {8,
                                        5,
                                        0,
                                        31,
                                        32,
                                        0xa0000000u,
                                        (uint32_t)-2,
                                        (uint32_t)-7,
                                        5,
                                        0x40000000u,
                                        0x40000000u,
                                        0xc0003c00u,
                                        0xc0003f80u,
                                        0,
                                        0x41000000u,
                                        0,
                                        0x40400000u,
                                        0xff800000u,
                                        33,
                                        2,
                                        1,
                                        10,
                                        3,
                                        5,
                                        3};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i)
        assert_int_equal(out[i], expected[i]);
    fk_emu_free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffles_and_votes), cmocka_unit_test(test_ldmatrix),   cmocka_unit_test(test_mma),
        cmocka_unit_test(test_mma_parts),          cmocka_unit_test(test_mma_values), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_builtins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
