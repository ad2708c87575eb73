/* A float is handled as its bits: shifting the exponent field between widths is a multiplication by a power of two,
 * which also turns subnormals of one width into normals of the other. */
#include "half.h"

#include <string.h>

static float from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t to_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float fk_fp16_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    if (magnitude >= 0x7c00u << 13) return from_bits(sign | 0x7f800000u | magnitude);
    return from_bits(sign | to_bits(from_bits(magnitude) * 0x1p112f));
}

uint16_t fk_fp16_from_float(float f) {
    const uint32_t bits = to_bits(f), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (magnitude < 0x38800000u) {
        /* Subnormal: 0.5 has the ulp that a subnormal of fp16 counts in (2^-24), so the sum rounds to it. */
        return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u));
    }
    const uint32_t even = magnitude >> 13 & 1u;
    return (uint16_t)(sign | (magnitude - (112u << 23) + 0xfffu + even) >> 13);
}

float fk_bf16_to_float(uint16_t h) {
    return from_bits((uint32_t)h << 16);
}

uint16_t fk_bf16_from_float(float f) {
    const uint32_t bits = to_bits(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* 4 bits of exponent, and no infinity: all ones are a NaN, what lies below them is finite. */
float fk_e4m3_to_float(uint8_t b) {
    const uint32_t sign = (uint32_t)(b & 0x80) << 24;
    const uint32_t magnitude = (uint32_t)(b & 0x7f) << 20;
    if (magnitude == 0x7fu << 20) return from_bits(sign | 0x7fc00000u);
    return from_bits(sign | to_bits(from_bits(magnitude) * 0x1p120f));
}

uint8_t fk_e4m3_from_float(float f) {
    const uint32_t bits = to_bits(f), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 24 & 0x80u;
    if (magnitude > 0x7f800000u) return 0x7f;
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and above */
    if (magnitude < 0x3c800000u) {
        /* Subnormal: 2^14 has the ulp that a subnormal counts in (2^-9), so the sum rounds to it. */
        return (uint8_t)(sign | (to_bits(from_bits(magnitude) + 0x1p14f) - 0x46800000u));
    }
    const uint32_t even = magnitude >> 20 & 1u;
    return (uint8_t)(sign | (magnitude - (120u << 23) + 0x7ffffu + even) >> 20);
}
