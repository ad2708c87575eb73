/* Floats of 16 bits, and of 8. Rounded to nearest even; overflow to infinity, of e4m3 to 448; every NaN to 0x7fff,
 * 0x7f, as the GPU's cvt. */
#ifndef FK_RUNTIME_HALF_H
#define FK_RUNTIME_HALF_H

#include <stdint.h>

float fk_fp16_to_float(uint16_t h);
uint16_t fk_fp16_from_float(float f);
float fk_bf16_to_float(uint16_t h);
uint16_t fk_bf16_from_float(float f);
float fk_e4m3_to_float(uint8_t b);
uint8_t fk_e4m3_from_float(float f);

#endif
