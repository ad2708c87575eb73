/* NumPy's .npy files: tensors of 8-, 16- and 32-bit elements, little-endian, in C order, read whole and checked to the
 * byte. Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef FK_CLI_NPY_H
#define FK_CLI_NPY_H

#include "cli.h"

typedef enum npy_type {
    NPY_FP16,  /* <f2 */
    NPY_BITS,  /* <u2: bfloat16 bits */
    NPY_FP32,  /* <f4 */
    NPY_INT32, /* <i4 */
    NPY_UINT8  /* |u1 */
} npy_type;

#define NPY_MAX_RANK 4
typedef struct npy_array {
    npy_type type;
    int rank;
    int64_t shape[NPY_MAX_RANK];
    int64_t count; /* the product of shape */
    void *data;    /* malloc'ed */
} npy_array;

const char *npy_type_name(npy_type type);
size_t npy_type_size(npy_type type);

#define NPY_MESSAGE 512
/** Reads a file of exactly `rank` axes, all positive.
 *  @return CLI_OK, CLI_IO (cannot be read) or CLI_BAD_INPUT; `message` then names path, field, value and limit, and
 *  nothing is allocated */
cli_exit npy_read(const char *path, int rank, npy_array *out, char message[NPY_MESSAGE]);
void npy_free(npy_array *array);

/** Writes header and data; the stream keeps its error for whoever closes it. */
void npy_write(FILE *file, const npy_array *array);

/** Parses the text of a header, for npy_read and its tests. `data` and `count` are left alone. */
cli_exit npy_parse_header(const char *text, size_t size, npy_array *out, char message[NPY_MESSAGE]);

#endif
