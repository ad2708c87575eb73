/* One wgmma against its definition: every layout of its operands, written into shared memory element by element. */
#include "harness.h"
#include "runtime/emulator/half.h"

enum { M = 64, N = 80, K = 16, A_BYTES = 8192, B_BYTES = 16384, WORDS = (A_BYTES + B_BYTES) / 4 };

/* Byte of element (row, k) in an operand whose rows of eight are `swizzle` bytes each; transposed: rows of 64 elements
 * of one k, in panels of 2048 bytes. From the PTX ISA's figures: the chunk of 16 bytes changes place with the row. */
static uint32_t place(uint32_t row, uint32_t k, uint32_t swizzle, bool transposed) {
    const uint32_t line = transposed ? row / 64 * 16 + k : row;
    const uint32_t byte = (transposed ? row % 64 : k) * 2;
    const uint32_t per_128 = 128 / swizzle, chunk = byte / 16 ^ line / per_128 % (swizzle / 16);
    return line * swizzle + chunk * 16 + byte % 16;
}

static float a[M][K], b[N][K];

/* The image of shared memory: A, and B behind it. */
static void fill(uint32_t *image, uint32_t swizzle, bool trans_a, bool trans_b, uint16_t (*narrow)(float)) {
    uint32_t random = 11;
    memset(image, 0xff, A_BYTES + B_BYTES);
    for (uint32_t i = 0; i < (M + N) * K; ++i) {
        random = random * 1664525u + 1013904223u;
        const float x = (float)(random >> 27) - 16.0f; /* sums are exact in float */
        const uint32_t row = i / K, k = i % K;
        const uint16_t h = narrow(x);
        const uint32_t at = row < M ? place(row, k, swizzle, trans_a) : A_BYTES + place(row - M, k, swizzle, trans_b);
        *(row < M ? &a[row][k] : &b[row - M][k]) = x;
        memcpy((char *)image + at, &h, 2);
    }
}

/* Two accumulators from the same operands, in groups of their own: the second one twice the product. */
static void check(uint32_t swizzle, int trans_a, int trans_b, const char *dtype, uint16_t (*narrow)(float)) {
    char body[2048];
    snprintf(body, sizeof body,
             "const u32 s = smem_base(), lane = threadIdx.x %% 32, warp = threadIdx.x / 32;\n"
             "for (u32 i = threadIdx.x; i < p.n; i += 128) st_shared_u32(s + 4 * i, p.in[i]);\n"
             "fence_proxy_async(); __syncthreads();\n"
             "const u64 a = wgmma_descriptor<%u>(s, 2048, %u), b = wgmma_descriptor<%u>(s + 8192, 2048, %u);\n"
             "float one[40], two[40]; for (int i = 0; i < 40; ++i) one[i] = i, two[i] = 7;\n"
             "wgmma_fence(); wgmma_m64k16_%s<%d, %d>(one, a, b, true); wgmma_commit();\n"
             "wgmma_m64k16_%s<%d, %d>(two, a, b, false); wgmma_m64k16_%s<%d, %d>(two, a, b, true); wgmma_commit();\n"
             "wgmma_wait<1>(); wgmma_release(one);\n"
             "u32 *out = p.out + threadIdx.x * 80;\n"
             "for (int i = 0; i < 40; ++i) out[i] = __float_as_uint(one[i]);\n"
             "wgmma_wait<0>(); wgmma_release(two);\n"
             "for (int i = 0; i < 40; ++i) out[40 + i] = __float_as_uint(two[i]);\n",
             swizzle, 8 * swizzle, swizzle, 8 * swizzle, dtype, trans_a, trans_b, dtype, trans_a, trans_b, dtype,
             trans_a, trans_b);
    uint32_t *in = device_words(WORDS), *out = device_words(128 * 80);
    fill(in, swizzle, trans_a, trans_b, narrow);
    fk_emu_image *image = load_body(body);
    const params p = {out, in, WORDS};
    for (uint64_t seed = 0; seed < 4; ++seed) {
        const fk_emu_options options = {.seed = seed, .late_copies = seed & 1, .check_races = true};
        fk_error err = {FK_OK, ""};
        memset(out, 0xff, 128 * 80 * 4);
        if (fk_emu_launch(image, &p, sizeof p, 1, 128, A_BYTES + B_BYTES, &options, &err) != FK_OK)
            fail_msg("%s", err.text);
        for (uint32_t t = 0; t < 128; ++t)
            for (uint32_t i = 0; i < 40; ++i) {
                const uint32_t m = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + t % 4 * 2 + i % 2;
                float sum = 0, got[2];
                for (uint32_t k = 0; k < K; ++k)
                    sum += a[m][k] * b[n][k];
                memcpy(&got[0], &out[t * 80 + i], 4);
                memcpy(&got[1], &out[t * 80 + 40 + i], 4);
                assert_true(got[0] == (float)i + sum);
                assert_true(got[1] == 2 * sum);
            }
    }
    fk_emu_unload(image);
    fk_emu_free(in);
    fk_emu_free(out);
}

static void test_k_major(void **state) {
    (void)state;
    check(128, 0, 0, "bf16", fk_bf16_from_float);
    check(64, 0, 0, "bf16", fk_bf16_from_float);
    check(32, 0, 0, "fp16", fk_fp16_from_float);
}

static void test_transposed(void **state) {
    (void)state;
    check(128, 1, 0, "fp16", fk_fp16_from_float);
    check(128, 0, 1, "bf16", fk_bf16_from_float);
    check(128, 1, 1, "bf16", fk_bf16_from_float);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_k_major),
        cmocka_unit_test(test_transposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
