/* Products by wgmma against their definition: every layout of the operands, written into shared memory element by
 * element. */
#include "harness.h"
#include "runtime/emulator/half.h"

enum { M = 64, N = 80, MAX_K = 160, A_BYTES = 16384, B_BYTES = 24576, WORDS = (A_BYTES + B_BYTES) / 4 };

/* Operands: rows of `swizzle` bytes, which hold 128 bytes of k at most; 0: of 16 bytes, the step's other half apart;
 * transposed: rows of 64 elements of one k. */
typedef struct form {
    uint32_t depth, swizzle;
    bool trans_a, trans_b;
    const char *dtype;
    uint16_t (*narrow)(float);
} form;

/* Of an element. */
static uint32_t bytes_of(const form *f) {
    return strcmp(f->dtype, "e4m3") == 0 ? 1 : 2;
}

static uint16_t e4m3(float x) {
    return fk_e4m3_from_float(x);
}

/* Byte of element (row, k) in an operand with panels of `rows` rows, or transposed of `depth` rows. From the PTX ISA's
 * figures: the chunk of 16 bytes changes place with the row. */
static uint32_t place(const form *f, uint32_t rows, uint32_t row, uint32_t k, bool transposed) {
    const uint32_t bytes = bytes_of(f), panel = 128 / bytes;
    if (f->swizzle == 0) return k / 8 * (f->depth * 128) + row * 16 + k % 8 * 2;
    const uint32_t line = transposed ? row / 64 * f->depth + k : k / panel * rows + row;
    const uint32_t byte = (transposed ? row : k) % panel * bytes;
    const uint32_t per_128 = 128 / f->swizzle, chunk = byte / 16 ^ line / per_128 % (f->swizzle / 16);
    return line * f->swizzle + chunk * 16 + byte % 16;
}

static float a[M][MAX_K], b[N][MAX_K];

/* The image of shared memory: A, and B behind it. */
static void fill(uint32_t *image, const form *f) {
    uint32_t random = 11;
    memset(image, 0xff, A_BYTES + B_BYTES);
    for (uint32_t i = 0; i < (M + N) * f->depth; ++i) {
        random = random * 1664525u + 1013904223u;
        const float x = (float)(random >> 27) - 16.0f; /* sums are exact in float */
        const uint32_t row = i / f->depth, k = i % f->depth;
        const uint16_t h = f->narrow(x);
        const uint32_t at = row < M ? place(f, M, row, k, f->trans_a) : A_BYTES + place(f, N, row - M, k, f->trans_b);
        *(row < M ? &a[row][k] : &b[row - M][k]) = x;
        memcpy((char *)image + at, &h, bytes_of(f));
    }
}

/* Two accumulators from the same operands: one added to, the other first without what was there, then added to. `held`:
 * A of the latter's first two steps comes from registers once, of a K-major tile with a swizzle of 128 bytes. `line`:
 * of a depth of 16, the latter has the same tiles once more in one product. */
static void check_form(const form *f, bool held, bool line) {
    static const char hold[] =
        "u32 held[2][4]; for (u32 i = 0; i < 8; ++i) {\n"
        "  const u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i % 2 * 8;\n"
        "  const u32 chunk = (i / 2 ^ row) % 8;\n"
        "  held[i / 4][i % 4] = ld_shared_u32(s + row * 128 + chunk * 16 + threadIdx.x % 4 * 4);\n"
        "}\n";
    const uint32_t stride = 8 * (f->swizzle ? f->swizzle : 16);
    char body[2048];
    snprintf(body, sizeof body,
             "const u32 s = smem_base();\n"
             "for (u32 i = threadIdx.x; i < p.n; i += 128) st_shared_u32(s + 4 * i, p.in[i]);\n"
             "fence_proxy_async(); __syncthreads();\n"
             "const u64 a = wgmma_descriptor<%u>(s, %u, %u), b = wgmma_descriptor<%u>(s + %u, %u, %u);\n"
             "#define PRODUCT wgmma_m64k%u_%s<%d, %d>\n"
             "%sfloat one[40], two[40]; for (int i = 0; i < 40; ++i) one[i] = i, two[i] = 7;\n"
             "PRODUCT(one, a, b, true); %s%s\n"
             "wgmma_wait<%d>(one);\n"
             "u32 *out = p.out + threadIdx.x * 80;\n"
             "for (int i = 0; i < 40; ++i) out[i] = __float_as_uint(one[i]);\n"
             "wgmma_wait<0>(two);\n"
             "for (int i = 0; i < 40; ++i) out[40 + i] = __float_as_uint(two[i]);\n",
             f->swizzle, f->depth * 128, stride, f->swizzle, A_BYTES, f->depth * 128, stride, f->depth, f->dtype,
             f->trans_a ? 0 : M, f->trans_b ? 0 : N, held ? hold : "",
             line   ? "PRODUCT(two, a, b, a, b);"
             : held ? "PRODUCT(two, held, a, b);"
                    : "PRODUCT(two, a, b);",
             line ? "" : "PRODUCT(two, a, b, true);", line ? 1 : 2);
    uint32_t *in = device_words(WORDS), *out = device_words(128 * 80);
    fill(in, f);
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
                for (uint32_t k = 0; k < f->depth; ++k)
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

static void check(const form *f) {
    check_form(f, false, false);
}

static void test_k_major(void **state) {
    (void)state;
    check(&(form){16, 128, false, false, "bf16", fk_bf16_from_float});
    check(&(form){16, 64, false, false, "bf16", fk_bf16_from_float});
    check(&(form){16, 32, false, false, "fp16", fk_fp16_from_float});
}

static void test_transposed(void **state) {
    (void)state;
    check(&(form){16, 128, true, false, "fp16", fk_fp16_from_float});
    check(&(form){16, 128, false, true, "bf16", fk_bf16_from_float});
    check(&(form){16, 128, true, true, "bf16", fk_bf16_from_float});
}

/* Steps within a panel, and on to the next one. */
static void test_depth(void **state) {
    (void)state;
    check(&(form){96, 128, false, false, "bf16", fk_bf16_from_float});
    check(&(form){96, 128, false, true, "fp16", fk_fp16_from_float});
    check(&(form){96, 128, true, false, "bf16", fk_bf16_from_float});
}

/* Registers for the first steps, shared memory for the others. */
static void test_held(void **state) {
    (void)state;
    check_form(&(form){96, 128, false, false, "bf16", fk_bf16_from_float}, true, false);
    check_form(&(form){48, 128, false, true, "fp16", fk_fp16_from_float}, true, false);
}

/* One more step, of tiles of its own. */
static void test_line(void **state) {
    (void)state;
    check(&(form){16, 0, false, false, "bf16", fk_bf16_from_float});
    check_form(&(form){16, 0, false, false, "fp16", fk_fp16_from_float}, false, true);
}

/* Bytes: 32 in a step, 128 in a panel. */
static void test_e4m3(void **state) {
    (void)state;
    check(&(form){32, 128, false, false, "e4m3", e4m3});
    check(&(form){96, 128, false, false, "e4m3", e4m3});
    check(&(form){160, 128, false, false, "e4m3", e4m3});
}

/* Of a sum of products of 8 bits what is below 2^-13 of the largest is lost, each by itself. */
static void test_e4m3_cut_off(void **state) {
    (void)state;
    const form f = {32, 128, false, false, "e4m3", e4m3};
    static const char body[] = "const u32 s = smem_base();\n"
                               "for (u32 i = threadIdx.x; i < p.n; i += 128) st_shared_u32(s + 4 * i, p.in[i]);\n"
                               "fence_proxy_async(); __syncthreads();\n"
                               "float acc[40];\n"
                               "wgmma_m64k32_e4m3<64, 80>(acc, wgmma_descriptor<128>(s, 4096, 1024), "
                               "wgmma_descriptor<128>(s + 16384, 4096, 1024));\n"
                               "wgmma_wait<0>(acc);\n"
                               "for (int i = 0; i < 40; ++i) p.out[threadIdx.x * 40 + i] = __float_as_uint(acc[i]);\n";
    static const struct {
        float small, sum;
    } cases[] = {{0.125f, 256}, {0.25f, 256 + 31 / 32.0f}}; /* products of 2^-6 and 2^-5 beside one of 2^8 */
    fk_emu_image *image = load_body(body);
    uint32_t *in = device_words(WORDS), *out = device_words(128 * 40);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        memset(in, 0, WORDS * sizeof *in);
        for (uint32_t row = 0; row < M + N; ++row)
            for (uint32_t k = 0; k < f.depth; ++k)
                ((uint8_t *)in)[row < M ? place(&f, M, row, k, false) : A_BYTES + place(&f, N, row - M, k, false)] =
                    fk_e4m3_from_float(k == 0    ? 16
                                       : row < M ? 0.125f
                                                 : cases[c].small);
        const params p = {out, in, WORDS};
        const fk_emu_options options = {.seed = c};
        fk_error err = {FK_OK, ""};
        if (fk_emu_launch(image, &p, sizeof p, 1, 128, A_BYTES + B_BYTES, &options, &err) != FK_OK)
            fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 128 * 40; ++i) {
            float got;
            memcpy(&got, &out[i], 4);
            assert_true(got == cases[c].sum);
        }
    }
    fk_emu_unload(image);
    fk_emu_free(in);
    fk_emu_free(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_k_major),      cmocka_unit_test(test_transposed), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_held),         cmocka_unit_test(test_line),       cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_e4m3_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
