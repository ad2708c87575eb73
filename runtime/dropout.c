/* Four elements share a random word: (i, j), (i + 8, j), (i, j + 8), (i + 8, j + 8), of which one thread holds all four
 * whether its tensor-core accumulators hold S or its transpose. The word is a function of (i, j) with bit 3 of each
 * cleared; the byte, of bit 3 of each. docs/dropout.md says why, and what was tested. */
#include "runtime/dropout.h"

/* For the counters a and b: odd, and such that no (di, dj) nearer than 69,600 to (0, 0) has row di + col dj = 0 modulo
 * 2^32. */
static const uint32_t a_row = 0xbb67b0cb, a_col = 0x6a09e667, b_row = 0xa54ff6b9, b_col = 0x3c6ef373, last = 0x9e3779b1;

/* Philox4x32-10 of Salmon et al. 2011: x is the counter and becomes the result. */
static void philox(uint32_t x[4], uint32_t key_0, uint32_t key_1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p = (uint64_t)x[0] * 0xd2511f53, q = (uint64_t)x[2] * 0xcd9e8d57;
        x[0] = (uint32_t)(q >> 32) ^ x[1] ^ key_0;
        x[1] = (uint32_t)q;
        x[2] = (uint32_t)(p >> 32) ^ x[3] ^ key_1;
        x[3] = (uint32_t)p;
        key_0 += 0x9e3779b9;
        key_1 += 0xbb67ae85;
    }
}

fk_status fk_dropout_threshold(double p, int32_t *dropped, fk_error *err) {
    if (!(p >= 0 && p < 1)) return fk_fail(err, FK_BAD_ARGUMENT, "dropout p is %g, must be in [0, 1)", p);
    const int32_t kept = (int32_t)(256 * (1 - p) + 0.5);
    if (p > 0)
        *dropped = kept < 1 ? 255 : kept > 255 ? 1 : 256 - kept;
    else
        *dropped = 0;
    return FK_OK;
}

float fk_dropout_scale(int32_t dropped) {
    return 256.0f / (float)(256 - dropped);
}

fk_dropout fk_dropout_open(uint64_t seed, uint64_t offset, uint32_t batch, uint32_t head) {
    fk_dropout d = {{(uint32_t)offset, (uint32_t)(offset >> 32), batch, head}};
    philox(d.key, (uint32_t)seed, (uint32_t)(seed >> 32));
    return d;
}

static uint32_t word_at(const fk_dropout *d, uint32_t i, uint32_t j) {
    const uint32_t *key = d->key;
    const uint32_t a = key[0] + (i & ~8u) * a_row + (j & ~8u) * a_col;
    const uint32_t b = (key[1] | 1) + (i & ~9u) * b_row + (j & ~9u) * b_col; /* odd */
    uint32_t x = a * b + key[2];
    x ^= x >> 16;
    const uint32_t y = x * b + a, z = x * last + key[2];
    return (y & 0xffff0000) | z >> 16; /* a product's upper half is its better one */
}

uint8_t fk_dropout_byte(const fk_dropout *d, uint32_t i, uint32_t j) {
    return (uint8_t)(word_at(d, i, j) >> 8 * ((i >> 3 & 1) + 2 * (j >> 3 & 1)));
}

bool fk_dropout_keep_byte(uint8_t byte, int32_t dropped) {
    return dropped <= 128 ? byte < 256 - dropped : byte >= dropped;
}

bool fk_dropout_keep(uint64_t seed, uint64_t offset, uint32_t batch, uint32_t head, uint32_t i, uint32_t j,
                     int32_t dropped) {
    const fk_dropout d = fk_dropout_open(seed, offset, batch, head);
    return fk_dropout_keep_byte(fk_dropout_byte(&d, i, j), dropped);
}

/* The 256 bytes of the 16 x 16 block at (i, j), multiples of 16. */
static void block_bytes(const fk_dropout *d, uint32_t i, uint32_t j, uint8_t out[16][16]) {
    for (uint32_t r = 0; r < 8; r++)
        for (uint32_t c = 0; c < 8; c++) {
            const uint32_t word = word_at(d, i + r, j + c);
            out[r][c] = (uint8_t)word;
            out[r + 8][c] = (uint8_t)(word >> 8);
            out[r][c + 8] = (uint8_t)(word >> 16);
            out[r + 8][c + 8] = (uint8_t)(word >> 24);
        }
}

void fk_dropout_bytes(const fk_dropout *d, uint32_t row, uint32_t col, uint32_t rows, uint32_t cols, uint8_t *out,
                      size_t stride) {
    uint8_t block[16][16];
    for (uint32_t i = row & ~15u; i - (row & ~15u) < rows + row % 16; i += 16)
        for (uint32_t j = col & ~15u; j - (col & ~15u) < cols + col % 16; j += 16) {
            block_bytes(d, i, j, block);
            for (uint32_t r = 0; r < 16; r++)
                for (uint32_t c = 0; c < 16; c++)
                    if (i + r - row < rows && j + c - col < cols)
                        out[(i + r - row) * stride + (j + c - col)] = block[r][c];
        }
}

void fk_dropout_mask(const fk_dropout *d, int32_t dropped, uint32_t row, uint32_t col, uint32_t rows, uint32_t cols,
                     uint8_t *out, size_t stride) {
    fk_dropout_bytes(d, row, col, rows, cols, out, stride);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            out[r * stride + c] = fk_dropout_keep_byte(out[r * stride + c], dropped);
}
