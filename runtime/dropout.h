/* The dropout mask by its definition (docs/dropout.md): whether attention weight (i, j) of a head is kept is a function
 * of (seed, offset, batch, head, i, j) and the threshold alone. Kernels compute the same bits, sixteen rows by
 * sixteen columns at a time (templates/piece/dropout.cu); this is what they are compared with. */
#ifndef FK_RUNTIME_DROPOUT_H
#define FK_RUNTIME_DROPOUT_H

#include "gen/error.h"

#include <stdbool.h>
#include <stddef.h>

/* The random bytes of one (batch, head): one for each query row i and key column j. */
typedef struct fk_dropout {
    uint32_t key[4];
} fk_dropout;

/** The dropped values of a byte: d = 256 p rounded to nearest, halves down, then clipped to 1 .. 255; 0 for p = 0.
 *  @return FK_BAD_ARGUMENT unless 0 <= p < 1 */
fk_status fk_dropout_threshold(double p, int32_t *dropped, fk_error *err);

/** 1 / (keep probability as realised) = 256 / (256 - dropped), rounded to nearest. */
float fk_dropout_scale(int32_t dropped);

fk_dropout fk_dropout_open(uint64_t seed, uint64_t offset, uint32_t batch, uint32_t head);

/** Uniform on 0 .. 255. */
uint8_t fk_dropout_byte(const fk_dropout *dropout, uint32_t i, uint32_t j);

/** For dropped <= 128 a byte's upper `dropped` values are dropped; above, its upper 256 - dropped values are kept. */
bool fk_dropout_keep_byte(uint8_t byte, int32_t dropped);

/** The definition, in one call. */
bool fk_dropout_keep(uint64_t seed, uint64_t offset, uint32_t batch, uint32_t head, uint32_t i, uint32_t j,
                     int32_t dropped);

/** out[(i - row) * stride + j - col] = fk_dropout_byte(i, j), for rows x cols elements from (row, col) on; about 1 ns
 * each. */
void fk_dropout_bytes(const fk_dropout *dropout, uint32_t row, uint32_t col, uint32_t rows, uint32_t cols, uint8_t *out,
                      size_t stride);

/** Likewise, 1 where kept and 0 where dropped. */
void fk_dropout_mask(const fk_dropout *dropout, int32_t dropped, uint32_t row, uint32_t col, uint32_t rows,
                     uint32_t cols, uint8_t *out, size_t stride);

#endif
