/* Are neighbouring elements of a dropout mask jointly uniform? Groups of 4, 8 or 16 elements in a fixed pattern, here,
 * in the next head, seed or offset, give a 16-bit number made of their highest or of their lowest bits; chi-square over
 * its 65,536 values, for disjoint groups. Not a test of the suite: minutes. Usage: tuples [LOG2_GROUPS [SEED]].
 */
#include "runtime/dropout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The elements (di (k / w), dj (k % w)) for k below n; odd k from the second of two masks. */
typedef struct pattern {
    const char *name;
    int n, w, di, dj;
} pattern;

static const pattern patterns[] = {
    {"a row", 4, 4, 0, 1},         {"a row", 8, 8, 0, 1},          {"a row", 16, 16, 0, 1},
    {"a column", 4, 1, 1, 0},      {"a column", 8, 1, 1, 0},       {"a column", 16, 1, 1, 0},
    {"a square", 4, 2, 1, 1},      {"a square", 16, 4, 1, 1},      {"a square", 4, 2, 8, 8},
    {"a square", 16, 4, 8, 8},     {"a square", 4, 2, 16, 16},     {"a square", 16, 4, 16, 16},
    {"a square", 4, 2, 64, 64},    {"a square", 4, 2, 1024, 1024}, {"a row", 8, 8, 0, 2},
    {"a row", 8, 8, 0, 8},         {"a row", 8, 8, 0, 16},         {"a row", 16, 16, 0, 64},
    {"a row", 16, 16, 0, 256},     {"a column", 8, 1, 2, 0},       {"a column", 8, 1, 8, 0},
    {"a column", 8, 1, 16, 0},     {"a column", 16, 1, 64, 0},     {"a column", 16, 1, 256, 0},
    {"a rectangle", 8, 4, 1, 1},   {"a rectangle", 16, 8, 1, 1},   {"a rectangle", 16, 2, 1, 1},
    {"a rectangle", 16, 8, 8, 16}, {"a rectangle", 16, 2, 16, 8},
};
typedef enum { SAME, HEADS, SEEDS, OFFSETS, SOURCES } source;
static const char *const source_names[] = {"one mask", "two heads in turn", "two seeds in turn", "two offsets in turn"};

/* z-scores of the highest and of the lowest bits. */
static void chi_square(const fk_dropout masks[2], const pattern *p, int log2_groups, double z[2]) {
    static uint32_t count[2][65536];
    memset(count, 0, sizeof count);
    const int bits = 16 / p->n, rows = (p->n - 1) / p->w * p->di + 1, cols = (p->w - 1) * p->dj + 1;
    for (uint32_t g = 0; g < 1u << log2_groups; g++) {
        uint32_t high = 0, low = 0;
        for (int k = 0; k < p->n; k++) {
            const uint32_t i = (g >> 12) * (uint32_t)rows + (uint32_t)(k / p->w * p->di);
            const uint32_t j = (g & 4095) * (uint32_t)cols + (uint32_t)(k % p->w * p->dj);
            const uint8_t byte = fk_dropout_byte(&masks[k % 2], i, j);
            high = high << bits | byte >> (8 - bits);
            low = low << bits | (byte & ((1u << bits) - 1));
        }
        count[0][high]++;
        count[1][low]++;
    }
    for (int end = 0; end < 2; end++) {
        const double expected = ldexp(1, log2_groups - 16);
        double sum = 0;
        for (int k = 0; k < 65536; k++)
            sum += pow(count[end][k] - expected, 2) / expected;
        z[end] = (sum - 65535) / sqrt(2 * 65535.0);
    }
}

int main(int argc, char **argv) {
    const int log2_groups = argc > 1 ? atoi(argv[1]) : 22;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    if (log2_groups < 19 || log2_groups > 31) return fprintf(stderr, "LOG2_GROUPS must be 19 to 31\n"), 2;
    int tests = 0, outside = 0;
    double worst = 0;
    for (int s = SAME; s < SOURCES; s++)
        for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
            const pattern *p = &patterns[k];
            const fk_dropout masks[2] = {fk_dropout_open(seed, 0, 0, 0),
                                         fk_dropout_open(seed + (s == SEEDS), s == OFFSETS, 0, s == HEADS)};
            double z[2];
            chi_square(masks, p, log2_groups, z);
            for (int end = 0; end < 2; end++, tests++) {
                worst = fmax(worst, fabs(z[end]));
                if (fabs(z[end]) < 4) continue;
                printf("%s bits of %d of %s, steps %d and %d, %s: z = %.1f\n", end ? "lowest" : "highest", p->n,
                       p->name, p->di, p->dj, source_names[s], z[end]);
                outside++;
            }
        }
    printf("%d chi-squares of 2^%d groups, largest |z| %.1f, %d of 4 or more\n", tests, log2_groups, worst, outside);
    return outside != 0;
}
