/* Halves by arithmetic, apart from the library's own: not every compiler has a type for them. */
#ifndef FK_TESTS_HALF_VALUE_H
#define FK_TESTS_HALF_VALUE_H

#include <math.h>
#include <stdint.h>

static inline double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                             : exponent == 0 ? ldexp(mantissa, -24)
                                             : ldexp(1024 + mantissa, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

/** The nearest half, even where two are as near; infinite from 65520 on. */
static inline uint16_t half_of(double x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double magnitude = fabs(x);
    if (isnan(x)) return 0x7e00 | sign;
    if (magnitude >= 65520) return 0x7c00 | sign;
    int exponent = -13;                                    /* below 2^-14 halves are 2^-24 apart */
    if (magnitude >= 0x1p-14) frexp(magnitude, &exponent); /* it is below 2^exponent */
    const int steps =
        (int)nearbyint(ldexp(magnitude, 11 - exponent)); /* up to 2048, which is the next exponent's first */
    return (uint16_t)(sign | (((exponent + 13) << 10) + steps));
}

#endif
