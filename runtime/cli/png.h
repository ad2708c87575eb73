/* Pictures of few colours as PNG files. */
#ifndef FK_CLI_PNG_H
#define FK_CLI_PNG_H

#include <stdint.h>
#include <stdio.h>

/** Writes width x height pixels, rows from the top, each the number of a colour. width < 65535; errors are left in
 * `out`. */
void png_write(FILE *out, uint32_t width, uint32_t height, const uint8_t (*colour)[3], uint32_t num_colours,
               const uint8_t *pixels);

#endif
