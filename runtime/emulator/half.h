/* 16-bit floats. To 16 bits: round to nearest even, overflow to infinity, every NaN to 0x7fff, as the GPU's cvt. */
#ifndef FK_RUNTIME_HALF_H
#define FK_RUNTIME_HALF_H

#include <stdint.h>

float fk_fp16_to_float(uint16_t h);
uint16_t fk_fp16_from_float(float f);
float fk_bf16_to_float(uint16_t h);
uint16_t fk_bf16_from_float(float f);

#endif
