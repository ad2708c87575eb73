/* 16-bit floats as bits, and elements of tensors, of e4m3 too. dtype is fk_dtype. */
#ifndef FK_CLI_HALF_H
#define FK_CLI_HALF_H

#include <flashkiln.h>

#include <stddef.h>
#include <stdint.h>

/** Rounds to nearest even; what exceeds the largest finite value becomes infinite, NaN stays NaN. */
uint16_t half_of(float value, int32_t dtype);
/** Exact. */
float half_value(uint16_t bits, int32_t dtype);

/** Of k and v. */
int32_t kv_dtype(const fk_problem *problem);
/** Of o: the problem's, but bf16 of e4m3. */
int32_t output_dtype(int32_t dtype);
size_t element_bytes(int32_t dtype);
/** Of an element of k and v in shared memory: family mma makes 16 bits of 8 on the way there, and may make three parts
 * of fp32. */
size_t kv_sram_bytes(const fk_problem *problem, const fk_plan_info *plan);
/** Element i of an array. */
float element_get(const void *data, size_t i, int32_t dtype);
/** Rounds as half_of; what exceeds 448, the largest e4m3, becomes that. */
void element_set(void *data, size_t i, float value, int32_t dtype);

#endif
