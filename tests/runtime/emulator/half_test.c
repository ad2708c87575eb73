/* Conversions against definitions: every value, every midpoint between two of them, and its neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/emulator/half.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* The value of sign, exponent and mantissa by the definition of IEEE 754. */
static double value_of(uint32_t h, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(h >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double mantissa = (double)(h & ((1u << mantissa_bits) - 1u));
    double value;
    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa != 0.0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + ldexp(1.0, mantissa_bits), exponent - bias - mantissa_bits);
    return h >> (exponent_bits + mantissa_bits) & 1u ? -value : value;
}

static void check_widening(float (*widen)(uint16_t), int exponent_bits, int mantissa_bits) {
    for (uint32_t h = 0; h < 65536; ++h) {
        const double expected = value_of(h, exponent_bits, mantissa_bits);
        const float got = widen((uint16_t)h);
        if (isnan(expected))
            assert_true(isnan(got));
        else
            assert_int_equal(bits_of(got), bits_of((float)expected));
    }
}

static void test_widening(void **state) {
    (void)state;
    check_widening(fk_fp16_to_float, 5, 10);
    check_widening(fk_bf16_to_float, 8, 7);
}

/* Between neighbours lo and lo + 1 (both of one sign), everything nearer to one goes there, and the middle to the even.
 */
static void check_narrowing(uint16_t (*narrow)(float), int exponent_bits, int mantissa_bits) {
    const uint32_t infinity = ((1u << exponent_bits) - 1u) << mantissa_bits;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t lo = 0; lo < infinity; ++lo) {
            const double below = value_of(lo, exponent_bits, mantissa_bits);
            /* Overflow: infinity stands where the next value would. */
            const double above = lo + 1 == infinity ? below + (below - value_of(lo - 1, exponent_bits, mantissa_bits))
                                                    : value_of(lo + 1, exponent_bits, mantissa_bits);
            const double s = sign ? -1.0 : 1.0;
            const float exact = (float)(s * below), middle = (float)(s * (below + above) / 2.0);
            assert_true((double)middle == s * (below + above) / 2.0); /* a float has bits to spare */
            const uint32_t even = lo + (lo & 1u);
            assert_int_equal(narrow(exact), sign | lo);
            assert_int_equal(narrow(middle), sign | even);
            assert_int_equal(narrow(nextafterf(middle, 0.0f)), sign | lo);
            assert_int_equal(narrow(nextafterf(middle, (float)(s * INFINITY))), sign | (lo + 1));
        }
        assert_int_equal(narrow(sign ? -INFINITY : INFINITY), sign | infinity);
    }
    assert_int_equal(narrow(NAN), 0x7fff);
    assert_int_equal(narrow(-NAN), 0x7fff);
}

static void test_narrowing(void **state) {
    (void)state;
    check_narrowing(fk_fp16_from_float, 5, 10);
    check_narrowing(fk_bf16_from_float, 8, 7);
}

/* e4m3: no infinity, but numbers in its place and one NaN; what is too large becomes the largest. */
static void test_e4m3(void **state) {
    (void)state;
    static const struct {
        float value;
        uint32_t bits;
    } some[] = {{448, 0x7e},   {1, 0x38},   {-1.875f, 0xbf},   {0x1p-6f, 0x08}, {0x1p-9f, 0x01}, {0x7p-9f, 0x07},
                {1e30f, 0x7e}, {464, 0x7e}, {-INFINITY, 0xfe}, {-0.0f, 0x80},   {0x1p-10f, 0},   {0x1.8p-10f, 1},
                {0x3p-10f, 2}, {436, 0x7e}, {432, 0x7e},       {431, 0x7d},     {1e-40f, 0},     {0x1.fp-7f, 0x08}};
    for (size_t i = 0; i < sizeof some / sizeof *some; ++i)
        assert_int_equal(fk_e4m3_from_float(some[i].value), some[i].bits);
    for (uint32_t sign = 0; sign <= 0x80; sign += 0x80)
        for (uint32_t lo = 0; lo < 0x7f; ++lo) {
            const double s = sign ? -1 : 1, below = s * value_of(lo, 5, 3) * 0x1p8; /* a bias of 7 for one of 15 */
            assert_int_equal(bits_of(fk_e4m3_to_float((uint8_t)(sign | lo))), bits_of((float)below));
            assert_int_equal(fk_e4m3_from_float((float)below), sign | lo);
            if (lo == 0x7e) continue;
            const double above = s * value_of(lo + 1, 5, 3) * 0x1p8;
            const float middle = (float)((below + above) / 2);
            assert_int_equal(fk_e4m3_from_float(middle), sign | (lo + (lo & 1u)));
            assert_int_equal(fk_e4m3_from_float(nextafterf(middle, 0.0f)), sign | lo);
            assert_int_equal(fk_e4m3_from_float(nextafterf(middle, (float)(s * INFINITY))), sign | (lo + 1));
        }
    assert_true(isnan(fk_e4m3_to_float(0x7f)) && isnan(fk_e4m3_to_float(0xff)));
    assert_int_equal(fk_e4m3_from_float(NAN), 0x7f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_widening), cmocka_unit_test(test_narrowing),
                                       cmocka_unit_test(test_e4m3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
