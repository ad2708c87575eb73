#include "random_element.h"

#include <string.h>

size_t element_bytes(fk_dtype dtype) {
    return dtype == FK_FP32 ? sizeof(float) : sizeof(uint16_t);
}

void *element_at(void *memory, fk_dtype dtype, int64_t at) {
    return (char *)memory + (size_t)at * element_bytes(dtype);
}

static uint32_t bits_at(const void *memory, fk_dtype dtype, int64_t at) {
    return dtype == FK_FP32 ? ((const uint32_t *)memory)[at] : ((const uint16_t *)memory)[at];
}

static void set_bits(void *memory, fk_dtype dtype, int64_t at, uint32_t bits) {
    if (dtype == FK_FP32)
        ((uint32_t *)memory)[at] = bits;
    else
        ((uint16_t *)memory)[at] = (uint16_t)bits;
}

double element_get(const void *memory, fk_dtype dtype, int64_t at) {
    uint32_t word = bits_at(memory, dtype, at);
    if (dtype == FK_FP16) {
        const uint16_t low = (uint16_t)word;
        _Float16 half;
        memcpy(&half, &low, sizeof half);
        return (double)half;
    }
    if (dtype == FK_BF16) word <<= 16;
    float single;
    memcpy(&single, &word, sizeof single);
    return (double)single;
}

void element_set(void *memory, fk_dtype dtype, int64_t at, double value) {
    const float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, sizeof word);
    if (dtype == FK_BF16) word = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    if (dtype == FK_FP16) {
        const _Float16 half = (_Float16)value;
        uint16_t low;
        memcpy(&low, &half, sizeof low);
        word = low;
    }
    set_bits(memory, dtype, at, word);
}

void element_poison(void *memory, fk_dtype dtype, int64_t at) {
    set_bits(memory, dtype, at, UINT32_MAX);
}

bool element_is_poison(const void *memory, fk_dtype dtype, int64_t at) {
    return bits_at(memory, dtype, at) == (dtype == FK_FP32 ? UINT32_MAX : UINT16_MAX);
}

double element_half_ulp(fk_dtype dtype) {
    return dtype == FK_FP32 ? 0x1p-22 : dtype == FK_FP16 ? 0x1p-11 : 0x1p-8;
}
