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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_survives),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(what_is_too_large_becomes_infinite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
