/* The dropout mask: its conformance vector, that every way to compute it gives the same bits, among them the kernels'
 * own text, and that it is as random as attention needs. The seeds are fixed, so the statistics are the same in every
 * run; their limits are at five standard deviations, and a planted fault must exceed them. TestU01's verdict is in
 * docs/dropout.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/dropout.h"
#include "runtime/emulator/emulator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t seed = 0x0123456789abcdef, offset = 0xfedcba9876543210;

static void test_conformance_vector(void **state) {
    (void)state;
    /* Rows 0, 1, 8 and 100,003, columns 0 .. 7 and 1,000,000 .. 1,000,007 of batch 3, head 5: the table of
     * docs/dropout.md. */
    static const uint32_t rows[4] = {0, 1, 8, 100003};
    static const uint8_t expected[4][16] = {{54, 73, 3, 94, 173, 36, 138, 246, 67, 94, 187, 196, 161, 90, 5, 8},
                                            {69, 57, 113, 213, 189, 112, 132, 64, 38, 104, 7, 10, 33, 69, 207, 106},
                                            {70, 92, 126, 24, 171, 132, 228, 93, 95, 82, 222, 223, 227, 116, 162, 156},
                                            {197, 88, 11, 158, 184, 132, 216, 28, 135, 144, 57, 167, 65, 5, 77, 204}};
    const fk_dropout given = fk_dropout_open(seed, offset, 3, 5);
    for (int r = 0; r < 4; r++)
        for (uint32_t c = 0; c < 16; c++)
            assert_int_equal(fk_dropout_byte(&given, rows[r], c < 8 ? c : 1000000 + c - 8), expected[r][c]);
    /* The published answer of Philox4x32-10 for an all-zero counter and key. */
    static const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const fk_dropout d = fk_dropout_open(0, 0, 0, 0);
    assert_memory_equal(d.key, zero, sizeof zero);
}

static void test_threshold(void **state) {
    (void)state;
    static const struct {
        double p;
        int32_t dropped;
    } cases[] = {{0, 0},     {1e-9, 1},   {0.001, 1}, {0.1, 26},        {0.2, 51},      {0.25, 64},
                 {0.5, 128}, {0.75, 192}, {0.9, 230}, {0.9999999, 255}, {2.5 / 256, 2}, {3.5 / 256, 3}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int32_t dropped = -1;
        assert_int_equal(fk_dropout_threshold(cases[k].p, &dropped, NULL), FK_OK);
        assert_int_equal(dropped, cases[k].dropped);
        int kept = 0;
        for (int byte = 0; byte < 256; byte++)
            kept += fk_dropout_keep_byte((uint8_t)byte, dropped);
        assert_int_equal(kept, 256 - dropped); /* so the scale's product with the keep probability is 1 */
        assert_true(fk_dropout_scale(dropped) == (float)(256.0 / kept));
    }
    static const double wrong[] = {-0.1, 1, 1.5, (double)NAN};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        fk_error err;
        int32_t dropped = -1;
        assert_int_equal(fk_dropout_threshold(wrong[k], &dropped, &err), FK_BAD_ARGUMENT);
        assert_non_null(strstr(err.text, "must be in [0, 1)"));
        assert_int_equal(dropped, -1);
    }
}

static void test_block_is_the_definition(void **state) {
    (void)state;
    enum { ROWS = 45, COLS = 70, STRIDE = 80 };
    static const uint32_t corners[][2] = {{0, 0}, {7, 9}, {16, 32}, {0x7fffffc0, 12345}, {3, 0xffffffe0u - COLS}};
    static uint8_t keep[ROWS * STRIDE];
    for (size_t k = 0; k < sizeof corners / sizeof *corners; k++) {
        const fk_dropout d = fk_dropout_open(seed, offset, 1, 2);
        memset(keep, 7, sizeof keep);
        fk_dropout_mask(&d, 77, corners[k][0], corners[k][1], ROWS, COLS, keep, STRIDE);
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t j = 0; j < STRIDE; j++) {
                const bool one = fk_dropout_keep(seed, offset, 1, 2, corners[k][0] + i, corners[k][1] + j, 77);
                assert_int_equal(keep[i * STRIDE + j], j < COLS ? one : 7);
            }
    }
}

/* ---- statistics --------------------------------------------------------------------------------------- */

enum { N = 1024 };
typedef uint8_t matrix[N][N];
static matrix here, there;

static fk_dropout source(int d_seed, int d_offset, uint32_t batch, uint32_t head) {
    return fk_dropout_open(seed + (uint64_t)d_seed, offset + (uint64_t)d_offset, batch, head);
}

static void fill(matrix out, fk_dropout d, int32_t dropped) {
    fk_dropout_mask(&d, dropped, 0, 0, N, N, &out[0][0], N);
}

/* In standard deviations from what independent elements of the keep probability give: the number kept; the spread of
 * the row sums; of the column sums; and of the sums over 16 x 32 blocks. */
static void spreads(matrix m, int32_t dropped, double z[4]) {
    const double p = (256 - dropped) / 256.0, variance = p * (1 - p);
    double total = 0, rows = 0, cols = 0, blocks = 0;
    static double col[N], block[N / 32];
    memset(col, 0, sizeof col);
    for (int i = 0; i < N; i++) {
        double row = 0;
        if (i % 16 == 0) memset(block, 0, sizeof block);
        for (int j = 0; j < N; j++) {
            row += m[i][j];
            col[j] += m[i][j];
            block[j / 32] += m[i][j];
        }
        total += row;
        rows += pow(row - N * p, 2) / (N * variance);
        for (int b = 0; i % 16 == 15 && b < N / 32; b++)
            blocks += pow(block[b] - 512 * p, 2) / (512 * variance);
    }
    for (int j = 0; j < N; j++)
        cols += pow(col[j] - N * p, 2) / (N * variance);
    z[0] = (total - (double)N * N * p) / (N * sqrt(variance));
    z[1] = (rows - N) / sqrt(2.0 * N);
    z[2] = (cols - N) / sqrt(2.0 * N);
    z[3] = (blocks - N * N / 512) / sqrt(2.0 * N * N / 512);
}

/* The correlation of a[i][j] with b[i + di][j + dj], likewise. */
static double correlation(matrix a, matrix b, int di, int dj, int32_t dropped) {
    const double p = (256 - dropped) / 256.0;
    double sum = 0;
    for (int i = 0; i + di < N; i++)
        for (int j = 0; j + dj < N; j++)
            sum += (a[i][j] - p) * (b[i + di][j + dj] - p);
    return sum / (p * (1 - p) * sqrt((double)(N - di) * (N - dj)));
}

static void assert_random(int32_t dropped) {
    static const int lags[][2] = {{0, 1}, {0, 2}, {0, 7}, {0, 8},  {0, 16}, {0, 32}, {0, 64}, {1, 0},
                                  {2, 0}, {7, 0}, {8, 0}, {16, 0}, {64, 0}, {1, 1},  {8, 8},  {16, 32}};
    double z[4];
    fill(here, source(0, 0, 0, 0), dropped);
    spreads(here, dropped, z);
    for (int k = 0; k < 4; k++)
        assert_true(fabs(z[k]) < 5);
    for (size_t k = 0; k < sizeof lags / sizeof *lags; k++)
        assert_true(fabs(correlation(here, here, lags[k][0], lags[k][1], dropped)) < 5);
    const fk_dropout others[] = {source(1, 0, 0, 0), source(0, 1, 0, 0), source(0, 0, 1, 0), source(0, 0, 0, 1)};
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
        fill(there, others[k], dropped);
        assert_true(fabs(correlation(here, there, 0, 0, dropped)) < 5);
        assert_true(fabs(correlation(here, there, 0, 1, dropped)) < 5);
        assert_true(fabs(correlation(here, there, 1, 0, dropped)) < 5);
    }
}

static void test_frequency_and_independence(void **state) {
    (void)state;
    static const int32_t dropped[] = {1, 26, 128, 200};
    for (size_t k = 0; k < sizeof dropped / sizeof *dropped; k++)
        assert_random(dropped[k]);
}

static void test_planted_faults_are_seen(void **state) {
    (void)state;
    double z[4];
    fill(here, source(0, 0, 0, 0), 26);
    spreads(here, 27, z); /* a threshold off by one */
    assert_true(fabs(z[0]) > 5);
    memcpy(there, here, sizeof there);
    for (int i = 0; i < N; i += 16) /* one row of 16 a copy of its neighbour */
        memcpy(there[i + 3], there[i + 2], N);
    assert_true(fabs(correlation(there, there, 1, 0, 26)) > 5);
    assert_true(fabs(correlation(here, there, 0, 0, 26)) > 5); /* two seeds with nearly the same mask */
    for (int i = 0; i < N; i++) /* the same sequence of rows in each 16: column sums spread */
        memcpy(there[i], here[i % 16], N);
    spreads(there, 26, z);
    assert_true(fabs(z[2]) > 5);
}

/* ---- the kernels' text, compiled for the emulator ------------------------------------------------------ */

static char *read_template(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/templates/piece/%s", FK_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_true(text && fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

typedef struct params {
    uint64_t dropout_seed, dropout_offset;
    const uint64_t *dropout_state;
    uint32_t batch, head, row, col, dropout_rare, dropout_invert;
    uint32_t *packed; /* [2 blocks of 16 rows][4 blocks of 16 columns][4 registers][32 lanes] */
    float *floats;    /* [2][4][2 atoms][4 registers][32 lanes] */
} params;

static const char *const kernel =
    "extern \"C\" __global__ void __launch_bounds__(32, 1) fk_kernel(const __grid_constant__ Params p) {\n"
    "    Dropout<rows_are_keys> dropout(p, p.batch, p.head, p.row + 48, p.col);\n"
    "    dropout.move(-48, 0);\n"
    "    for (int m = 0; m < 2; ++m)\n"
    "        for (int n = 0; n < 4; ++n) {\n"
    "            u32 w[2], a[4] = {~0u, ~0u, ~0u, ~0u};\n"
    "            dropout(a, m, n);\n"
    "            dropout.signs(w, m, n);\n"
    "            for (int e = 0; e < 4; ++e) p.packed[((m * 4 + n) * 4 + e) * 32 + threadIdx.x] = a[e];\n"
    "            for (int e = 0; e < 8; ++e)\n"
    "                p.floats[((m * 4 + n) * 8 + e) * 32 + threadIdx.x] = dropout.select(w, e / 4, e % 4, 1, 0);\n"
    "        }\n"
    "}\n";

static fk_emu_image *load_piece(bool rows_are_keys) {
    static const char *const entries[] = {"fk_kernel"};
    char *piece = read_template("dropout.cu"), *text = NULL, compiler[96];
    assert_true(asprintf(&text,
                         "typedef unsigned int u32; typedef unsigned long long u64;\n"
                         "struct Params { u64 dropout_seed, dropout_offset; const u64 *dropout_state;\n"
                         "    u32 batch, head, row, col, dropout_rare, dropout_invert; u32 *packed; float *floats; };\n"
                         "constexpr bool rows_are_keys = %s;\n%s%s",
                         rows_are_keys ? "true" : "false", piece, kernel) > 0);
    fk_emu_image *image = NULL;
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    fk_error err = {FK_OK, ""};
    const fk_status status = fk_emu_compile(text, entries, 1, NULL, &bytes, &size, &ms, compiler, &err);
    if (status == FK_OK) assert_int_equal(fk_emu_load(bytes, size, &image, &err), FK_OK);
    free(bytes);
    free(text);
    free(piece);
    if (status == FK_NO_COMPILER) skip();
    if (status != FK_OK) fail_msg("%s", err.text);
    return image;
}

/* Element (r, c) of the kernel's 32 x 64 elements, as the lane that owns it left it: kept or not, in both forms alike.
 */
static bool device_keeps(const params *p, uint32_t r, uint32_t c) {
    const uint32_t block = r / 16 * 4 + c / 16, lane = r % 8 * 4 + c % 8 / 2;
    const uint32_t packed = p->packed[(block * 4 + (r / 8 % 2 + 2 * (c / 8 % 2))) * 32 + lane] >> 16 * (c % 2);
    const float one = p->floats[(block * 8 + c / 8 % 2 * 4 + r / 8 % 2 * 2 + c % 2) * 32 + lane];
    assert_true((packed & 0xffff) == 0xffff ? one == 1 : (packed & 0xffff) == 0 && one == 0);
    return one == 1;
}

/* seed and offset by value, or through memory. */
static void check_piece(bool rows_are_keys, const uint64_t *state) {
    fk_emu_image *image = load_piece(rows_are_keys);
    params p = {.dropout_state = state, .batch = 3, .head = 5};
    if (!state) p.dropout_seed = seed, p.dropout_offset = offset;
    void *packed = NULL, *floats = NULL;
    fk_error err = {FK_OK, ""};
    assert_int_equal(fk_emu_malloc(2 * 4 * 4 * 32 * 4, &packed, &err), FK_OK);
    assert_int_equal(fk_emu_malloc(2 * 4 * 8 * 32 * 4, &floats, &err), FK_OK);
    p.packed = packed;
    p.floats = floats;
    static const int32_t rates[] = {0, 1, 26, 128, 129, 255};
    for (uint32_t k = 0; k < 6; k++) {
        const int32_t dropped = rates[k];
        p.row = k * 48, p.col = k * 0x0f000010;
        p.dropout_rare = (uint32_t)(dropped <= 128 ? dropped : 256 - dropped) * 0x01010101;
        p.dropout_invert = dropped <= 128 ? ~0u : 0;
        if (fk_emu_launch(image, &p, sizeof p, 1, 32, 0, NULL, &err) != FK_OK) fail_msg("%s", err.text);
        for (uint32_t r = 0; r < 32; r++)
            for (uint32_t c = 0; c < 64; c++) {
                const uint32_t i = rows_are_keys ? p.col + c : p.row + r, j = rows_are_keys ? p.row + r : p.col + c;
                assert_int_equal(device_keeps(&p, r, c), fk_dropout_keep(seed, offset, 3, 5, i, j, dropped));
            }
    }
    fk_emu_free(packed);
    fk_emu_free(floats);
    fk_emu_unload(image);
}

static void test_device_text_is_the_definition(void **state) {
    (void)state;
    const uint64_t state_in_memory[2] = {seed, offset};
    for (int rows_are_keys = 0; rows_are_keys < 2; rows_are_keys++) {
        check_piece(rows_are_keys, NULL);
        check_piece(rows_are_keys, state_in_memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conformance_vector),      cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_block_is_the_definition), cmocka_unit_test(test_frequency_and_independence),
        cmocka_unit_test(test_planted_faults_are_seen), cmocka_unit_test(test_device_text_is_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
