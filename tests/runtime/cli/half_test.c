/* Conversions to 16 bits: exact both ways for every bit pattern, and ties to even in between. */
#include "runtime/cli/half.h"

#include "flashkiln.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void every_pattern_survives(void **state) {
    (void)state;
    for (int32_t dtype = FK_FP16; dtype <= FK_BF16; dtype++)
        for (uint32_t bits = 0; bits < 65536; bits++) {
            const float value = half_value((uint16_t)bits, dtype);
            if (isnan(value))
                assert_true(isnan(half_value(half_of(value, dtype), dtype)));
            else
                assert_int_equal(half_of(value, dtype), bits);
        }
}

/* Between two neighbours lo < hi: the midpoint goes to the even one, its float neighbours to the nearer one. */
static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    static const uint16_t largest[] = {0x7bff, 0x7f7f};
    for (int32_t dtype = FK_FP16; dtype <= FK_BF16; dtype++)
        for (uint16_t lo = 0; lo < largest[dtype]; lo++) {
            const uint16_t hi = (uint16_t)(lo + 1);
            const float middle = (float)(((double)half_value(lo, dtype) + (double)half_value(hi, dtype)) / 2);
            assert_int_equal(half_of(middle, dtype), lo & 1 ? hi : lo);
            assert_int_equal(half_of(nextafterf(middle, 0), dtype), lo);
            assert_int_equal(half_of(nextafterf(middle, INFINITY), dtype), hi);
            assert_int_equal(half_of(-middle, dtype), 0x8000 | (lo & 1 ? hi : lo));
        }
}

static void what_is_too_large_becomes_infinite(void **state) {
    (void)state;
    assert_int_equal(half_of(65519.0f, FK_FP16), 0x7bff);
    assert_int_equal(half_of(65520.0f, FK_FP16), 0x7c00);
    assert_int_equal(half_of(-1e30f, FK_FP16), 0xfc00);
    assert_int_equal(half_of(3.4e38f, FK_BF16), 0x7f80);
    assert_int_equal(half_of(-INFINITY, FK_BF16), 0xff80);
}

/* e4m3 by the table of its values: 2^-9 to 448, no infinity. */
static void e4m3(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 256; bits++) {
        const uint8_t at = (uint8_t)bits;
        uint8_t back = 0;
        const float value = element_get(&at, 0, FK_E4M3);
        const int exponent = (int)(bits >> 3 & 15), mantissa = (int)(bits & 7);
        element_set(&back, 0, value, FK_E4M3);
        if ((bits & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            assert_int_equal(back & 0x7f, 0x7f);
            continue;
        }
        const double want = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
        assert_true((double)value == (bits & 0x80 ? -want : want));
        assert_int_equal(back, bits);
    }
    static const float values[] = {1e9f, -450, 436, 26, 27, 0x1p-10f, 0x1.8p-10f, 0x1.fp-7f};
    static const uint8_t want[] = {0x7e, 0xfe, 0x7e, 0x5d, 0x5e, 0, 1, 8}; /* 27 lies between 26 and 28 */
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        uint8_t got;
        element_set(&got, 0, values[i], FK_E4M3);
        assert_int_equal(got, want[i]);
    }
    assert_int_equal(element_bytes(FK_E4M3), 1);
    assert_int_equal(output_dtype(FK_E4M3), FK_BF16);
    assert_int_equal(output_dtype(FK_FP16), FK_FP16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_survives),
        cmocka_unit_test(e4m3),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(what_is_too_large_becomes_infinite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
