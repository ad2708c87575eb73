#include "random_element.h"

#include "half_value.h"

#include <math.h>
#include <string.h>

size_t element_bytes(fk_dtype dtype) {
    return dtype == FK_FP32 ? sizeof(float) : dtype == FK_E4M3 ? 1 : sizeof(uint16_t);
}

fk_dtype output_dtype(fk_dtype dtype) {
    return dtype == FK_E4M3 ? FK_BF16 : dtype;
}

void *element_at(void *memory, fk_dtype dtype, int64_t at) {
    return (char *)memory + (size_t)at * element_bytes(dtype);
}

static uint32_t bits_at(const void *memory, fk_dtype dtype, int64_t at) {
    if (dtype == FK_E4M3) return ((const uint8_t *)memory)[at];
    return dtype == FK_FP32 ? ((const uint32_t *)memory)[at] : ((const uint16_t *)memory)[at];
}

static void set_bits(void *memory, fk_dtype dtype, int64_t at, uint32_t bits) {
    if (dtype == FK_FP32)
        ((uint32_t *)memory)[at] = bits;
    else if (dtype == FK_E4M3)
        ((uint8_t *)memory)[at] = (uint8_t)bits;
    else
        ((uint16_t *)memory)[at] = (uint16_t)bits;
}

static double e4m3_value(uint32_t code) {
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, (int)(code / 8) - 10);
}

/* The e4m3 nearest to |value|, by search: the codes are in the order of what they stand for. */
static uint32_t e4m3_of(double value) {
    uint32_t lo = 0, hi = 0x7e;
    const double magnitude = fmin(fabs(value), 448);
    while (hi - lo > 1) {
        const uint32_t middle = (lo + hi) / 2;
        if (e4m3_value(middle) <= magnitude)
            lo = middle;
        else
            hi = middle;
    }
    const double below = magnitude - e4m3_value(lo), above = e4m3_value(hi) - magnitude;
    const bool up = above < below || (!(below < above) && lo % 2 == 1);
    return (signbit(value) ? 0x80u : 0) | (up ? hi : lo);
}

double element_get(const void *memory, fk_dtype dtype, int64_t at) {
    uint32_t word = bits_at(memory, dtype, at);
    if (dtype == FK_E4M3) return (word & 0x7f) == 0x7f ? NAN : (word & 0x80 ? -1 : 1) * e4m3_value(word & 0x7f);
    if (dtype == FK_FP16) return half_value((uint16_t)word);
    if (dtype == FK_BF16) word <<= 16;
    float single;
    memcpy(&single, &word, sizeof single);
    return (double)single;
}

void element_set(void *memory, fk_dtype dtype, int64_t at, double value) {
    const float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    if (dtype == FK_E4M3) word = e4m3_of(value);
    if (dtype == FK_BF16) word = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    if (dtype == FK_FP16) word = half_of(value);
    set_bits(memory, dtype, at, word);
}

void element_poison(void *memory, fk_dtype dtype, int64_t at) {
    set_bits(memory, dtype, at, UINT32_MAX);
}

bool element_is_poison(const void *memory, fk_dtype dtype, int64_t at) {
    return bits_at(memory, dtype, at) == (dtype == FK_FP32 ? UINT32_MAX : dtype == FK_E4M3 ? UINT8_MAX : UINT16_MAX);
}

double element_half_ulp(fk_dtype dtype) {
    return dtype == FK_FP32 ? 0x1p-22 : dtype == FK_E4M3 ? 0x1p-4 : dtype == FK_FP16 ? 0x1p-11 : 0x1p-8;
}
