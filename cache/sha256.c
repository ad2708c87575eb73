/* SHA-256 as FIPS 180-4 section 6.2 writes it. The eight working variables rotate by renaming, not by moving. */
#include "sha256.h"

#include <string.h>

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t rotr(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static inline uint32_t load_be32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* One round; i counts it, and decides which of v[0..7] plays a to h. */
static inline void round_step(uint32_t v[8], int i, uint32_t w) {
    const uint32_t a = v[-i & 7], b = v[(1 - i) & 7], c = v[(2 - i) & 7];
    const uint32_t e = v[(4 - i) & 7], f = v[(5 - i) & 7], g = v[(6 - i) & 7];
    const uint32_t ch = g ^ (e & (f ^ g)), maj = (a & b) | (c & (a | b));
    const uint32_t t1 = v[(7 - i) & 7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ch + round_constant[i] + w;
    v[(3 - i) & 7] += t1;
    v[(7 - i) & 7] = t1 + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + maj;
}

static void compress(uint32_t state[8], const uint8_t *block) {
    uint32_t v[8], w[64];
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 16; ++i)
        w[i] = load_be32(block + 4 * i);
    for (int i = 16; i < 64; ++i) {
        const uint32_t x = w[i - 15], y = w[i - 2];
        w[i] = w[i - 16] + (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + w[i - 7] + (rotr(y, 17) ^ rotr(y, 19) ^ y >> 10);
    }
    for (int i = 0; i < 64; i += 8) {
        round_step(v, i, w[i]);
        round_step(v, i + 1, w[i + 1]);
        round_step(v, i + 2, w[i + 2]);
        round_step(v, i + 3, w[i + 3]);
        round_step(v, i + 4, w[i + 4]);
        round_step(v, i + 5, w[i + 5]);
        round_step(v, i + 6, w[i + 6]);
        round_step(v, i + 7, w[i + 7]);
    }
    for (int i = 0; i < 8; ++i)
        state[i] += v[i];
}

void fk_sha256_start(fk_sha256 *sha) {
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, initial, sizeof initial);
    sha->bytes = 0;
}

void fk_sha256_add(fk_sha256 *sha, const void *bytes, size_t size) {
    const uint8_t *p = bytes;
    const size_t held = sha->bytes % 64;
    sha->bytes += size;
    if (held) {
        const size_t room = 64 - held, take = size < room ? size : room;
        if (take) memcpy(sha->block + held, p, take);
        if (take < room) return;
        compress(sha->state, sha->block);
        p += take;
        size -= take;
    }
    for (; size >= 64; p += 64, size -= 64)
        compress(sha->state, p);
    if (size) memcpy(sha->block, p, size);
}

void fk_sha256_finish(fk_sha256 *sha, uint8_t out[32]) {
    static const uint8_t padding[64] = {0x80};
    const uint64_t bits = sha->bytes * 8;
    fk_sha256_add(sha, padding, 1 + (119 - sha->bytes % 64) % 64);
    uint8_t length[8];
    for (int i = 0; i < 8; ++i)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    fk_sha256_add(sha, length, 8);
    for (int i = 0; i < 32; ++i)
        out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void fk_sha256_finish_hex(fk_sha256 *sha, char out[65]) {
    uint8_t digest[32];
    fk_sha256_finish(sha, digest);
    for (int i = 0; i < 32; ++i) {
        out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    out[64] = 0;
}
