#include "half.h"

#include "flashkiln.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint16_t fp16_of(float value) {
    uint32_t x;
    memcpy(&x, &value, sizeof x);
    const uint32_t sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* from 65520 on */
    if (x < 0x38800000)
        return (uint16_t)(sign | (uint32_t)lrintf(ldexpf(fabsf(value), 24))); /* subnormal below 2^-14 */
    x -= 112u << 23;
    x += 0xfff + (x >> 13 & 1);
    return (uint16_t)(sign | x >> 13);
}

static uint16_t bf16_of(float value) {
    uint32_t x;
    memcpy(&x, &value, sizeof x);
    if ((x & 0x7fffffff) > 0x7f800000) return (uint16_t)(x >> 16 | 0x40);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

uint16_t half_of(float value, int32_t dtype) {
    return dtype == FK_BF16 ? bf16_of(value) : fp16_of(value);
}

float half_value(uint16_t bits, int32_t dtype) {
    float value;
    if (dtype == FK_BF16) {
        const uint32_t x = (uint32_t)bits << 16;
        memcpy(&value, &x, sizeof value);
        return value;
    }
    const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 31)
        value = mantissa ? NAN : INFINITY;
    else
        value = exponent ? ldexpf((float)(mantissa | 0x400), exponent - 25) : ldexpf((float)mantissa, -24);
    return bits & 0x8000 ? -value : value;
}

static uint8_t e4m3_of(float value) {
    if (isnan(value)) return 0x7f;
    const uint8_t sign = signbit(value) ? 0x80 : 0;
    const float magnitude = fminf(fabsf(value), 448.0f);
    const int exponent = magnitude < 0x1p-6f ? -6 : ilogbf(magnitude);
    const int eighths = (int)lrintf(ldexpf(magnitude, 3 - exponent)); /* up to 16, of 2^exponent */
    return (uint8_t)(sign | ((exponent + 6) * 8 + eighths));
}

static float e4m3_value(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float value = (bits & 0x7f) == 0x7f ? NAN
                        : exponent            ? ldexpf((float)(mantissa | 8), exponent - 10)
                                              : ldexpf((float)mantissa, -9);
    return bits & 0x80 ? -value : value;
}

int32_t kv_dtype(const fk_problem *problem) {
    return problem->kv_e4m3 ? FK_E4M3 : problem->dtype;
}

int32_t output_dtype(int32_t dtype) {
    return dtype == FK_E4M3 ? FK_BF16 : dtype;
}

size_t element_bytes(int32_t dtype) {
    return dtype == FK_FP32 ? sizeof(float) : dtype == FK_E4M3 ? 1 : sizeof(uint16_t);
}

size_t kv_sram_bytes(const fk_problem *problem, const fk_plan_info *plan) {
    const bool widened = problem->kv_e4m3 || (problem->dtype == FK_E4M3 && strcmp(plan->family, "mma") == 0);
    const bool parted = problem->dtype == FK_FP32 && plan->k_stages > 0;
    return widened ? sizeof(uint16_t) : parted ? 3 * sizeof(uint16_t) : element_bytes(kv_dtype(problem));
}

float element_get(const void *data, size_t i, int32_t dtype) {
    if (dtype == FK_FP32) return ((const float *)data)[i];
    if (dtype == FK_E4M3) return e4m3_value(((const uint8_t *)data)[i]);
    return half_value(((const uint16_t *)data)[i], dtype);
}

void element_set(void *data, size_t i, float value, int32_t dtype) {
    if (dtype == FK_FP32)
        ((float *)data)[i] = value;
    else if (dtype == FK_E4M3)
        ((uint8_t *)data)[i] = e4m3_of(value);
    else
        ((uint16_t *)data)[i] = half_of(value, dtype);
}
