/* 16-bit floats as bits. dtype is fk_dtype. */
#ifndef FK_CLI_HALF_H
#define FK_CLI_HALF_H

#include <stdint.h>

/** Rounds to nearest even; what exceeds the largest finite value becomes infinite, NaN stays NaN. */
uint16_t half_of(float value, int32_t dtype);
/** Exact. */
float half_value(uint16_t bits, int32_t dtype);

#endif
