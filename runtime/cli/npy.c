#include "npy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *descr;
    size_t size;
} types[] = {{"<f2", 2}, {"<u2", 2}, {"<f4", 4}, {"<i4", 4}, {"|u1", 1}};
enum { NUM_TYPES = sizeof types / sizeof types[0], MAX_HEADER = 65536 };

const char *npy_type_name(npy_type type) {
    return types[type].descr;
}
size_t npy_type_size(npy_type type) {
    return types[type].size;
}

__attribute__((format(printf, 3, 4))) static cli_exit fail(char message[NPY_MESSAGE], cli_exit code, const char *format,
                                                           ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(message, NPY_MESSAGE, format, args);
    va_end(args);
    return code;
}

/* ---- header: a Python dict literal with the keys descr, fortran_order and shape, in any order ------------- */

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
}

static bool accept(cursor *c, const char *token) {
    const size_t n = strlen(token);
    skip_space(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, token, n) != 0) return false;
    c->at += n;
    return true;
}

static bool read_string(cursor *c, char *out, size_t size) {
    if (!accept(c, "'") && !accept(c, "\"")) return false;
    const char quote = c->at[-1];
    const char *stop = memchr(c->at, quote, (size_t)(c->end - c->at));
    if (!stop || (size_t)(stop - c->at) >= size) return false;
    memcpy(out, c->at, (size_t)(stop - c->at));
    out[stop - c->at] = '\0';
    c->at = stop + 1;
    return true;
}

static bool read_shape(cursor *c, npy_array *out) {
    out->rank = 0;
    if (!accept(c, "(")) return false;
    while (!accept(c, ")")) {
        skip_space(c);
        if (out->rank == NPY_MAX_RANK || c->at == c->end || *c->at < '0' || *c->at > '9') return false;
        int64_t axis = 0;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
            if (axis > INT64_MAX / 10 - 1) return false;
            axis = 10 * axis + (*c->at - '0');
        }
        out->shape[out->rank++] = axis;
        if (!accept(c, ",")) return accept(c, ")");
    }
    return true;
}

/* Bytes of what stands for a shape, for a message. */
static int shape_length(const char *at, const char *end) {
    enum { MOST = 80 };
    const size_t most = end - at < MOST ? (size_t)(end - at) : MOST;
    const char *closed = memchr(at, ')', most);
    return closed ? (int)(closed - at) + 1 : (int)most;
}

static bool read_type(const char *descr, npy_array *out) {
    for (int i = 0; i < NUM_TYPES; i++) {
        if (strcmp(descr, types[i].descr) != 0) continue;
        out->type = (npy_type)i;
        return true;
    }
    return false;
}

enum { HAVE_DESCR = 1, HAVE_ORDER = 2, HAVE_SHAPE = 4, HAVE_ALL = 7 };

/* Reads one "key: value"; sets its bit of `have`. */
static cli_exit read_entry(cursor *c, npy_array *out, int *have, char message[NPY_MESSAGE]) {
    char key[32], descr[64];
    if (!read_string(c, key, sizeof key) || !accept(c, ":"))
        return fail(message, CLI_BAD_INPUT, "its header is damaged: no key where one must stand");
    if (strcmp(key, "descr") == 0) {
        if (!read_string(c, descr, sizeof descr))
            return fail(message, CLI_BAD_INPUT, "descr is a structured dtype; <f2, <f4, <u2, <i4 or |u1 is read");
        if (!read_type(descr, out))
            return fail(message, CLI_BAD_INPUT, "dtype is %s; <f2, <f4, <u2 (bfloat16 bits), <i4 or |u1 is read",
                        descr);
        *have |= HAVE_DESCR;
    } else if (strcmp(key, "fortran_order") == 0) {
        if (!accept(c, "False"))
            return fail(message, CLI_BAD_INPUT,
                        "fortran_order is not False; C order is read (numpy.ascontiguousarray)");
        *have |= HAVE_ORDER;
    } else if (strcmp(key, "shape") == 0) {
        skip_space(c);
        const char *shape = c->at;
        if (!read_shape(c, out))
            return fail(message, CLI_BAD_INPUT, "shape is %.*s; a tuple of at most %d integers is needed",
                        shape_length(shape, c->end), shape, NPY_MAX_RANK);
        *have |= HAVE_SHAPE;
    } else {
        return fail(message, CLI_BAD_INPUT, "its header has the key \"%s\"; descr, fortran_order and shape are known",
                    key);
    }
    return CLI_OK;
}

cli_exit npy_parse_header(const char *text, size_t size, npy_array *out, char message[NPY_MESSAGE]) {
    cursor c = {text, text + size};
    int have = 0;
    if (!accept(&c, "{")) return fail(message, CLI_BAD_INPUT, "its header is damaged: no dict");
    bool closed = accept(&c, "}");
    while (!closed) {
        const cli_exit code = read_entry(&c, out, &have, message);
        if (code != CLI_OK) return code;
        const bool comma = accept(&c, ",");
        closed = accept(&c, "}");
        if (!comma && !closed)
            return fail(message, CLI_BAD_INPUT, "its header is damaged at byte %d of %d", (int)(c.at - text),
                        (int)size);
    }
    if (have != HAVE_ALL)
        return fail(message, CLI_BAD_INPUT, "its header lacks %s",
                    !(have & HAVE_DESCR)   ? "descr"
                    : !(have & HAVE_ORDER) ? "fortran_order"
                                           : "shape");
    return CLI_OK;
}

/* ---- files -------------------------------------------------------------------------------------------- */

/* Reads magic, version and header; the stream is left at the first element. */
static cli_exit read_header(FILE *file, npy_array *out, char message[NPY_MESSAGE]) {
    unsigned char lead[12];
    const bool read = fread(lead, 1, 8, file) == 8;
    if (ferror(file)) return fail(message, CLI_IO, "%s", strerror(errno)); /* of a directory */
    if (!read || memcmp(lead, "\x93NUMPY", 6) != 0)
        return fail(message, CLI_BAD_INPUT, "is no .npy file: its first bytes are not \\x93NUMPY");
    if (lead[6] < 1 || lead[6] > 3)
        return fail(message, CLI_BAD_INPUT, "format version is %d; 1 to 3 are read", lead[6]);
    const size_t length_bytes = lead[6] == 1 ? 2 : 4;
    if (fread(lead + 8, 1, length_bytes, file) != length_bytes)
        return fail(message, CLI_BAD_INPUT, "ends within its header");
    size_t length = 0;
    for (size_t i = length_bytes; i > 0; i--)
        length = length << 8 | lead[7 + i];
    if (length > MAX_HEADER)
        return fail(message, CLI_BAD_INPUT, "header length is %zu; at most %d is read", length, MAX_HEADER);
    char *text = malloc(length + 1);
    if (!text) return fail(message, CLI_FAILED, "no memory for its header of %zu bytes", length);
    const cli_exit code = fread(text, 1, length, file) == length
                              ? npy_parse_header(text, length, out, message)
                              : fail(message, CLI_BAD_INPUT, "ends within its header of %zu bytes", length);
    free(text);
    return code;
}

static cli_exit read_data(FILE *file, npy_array *out, char message[NPY_MESSAGE]) {
    struct stat st;
    const int64_t size = (int64_t)npy_type_size(out->type);
    out->count = 1;
    for (int i = 0; i < out->rank; i++) {
        if (out->shape[i] <= 0) return fail(message, CLI_BAD_INPUT, "shape[%d] is 0; at least 1 is needed", i);
        if (out->count > INT64_MAX / 8 / out->shape[i])
            return fail(message, CLI_BAD_INPUT, "shape[%d] is %lld; the whole exceeds 2^60 elements", i,
                        (long long)out->shape[i]);
        out->count *= out->shape[i];
    }
    const long start = ftell(file);
    if (start < 0 || fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode))
        return fail(message, CLI_IO, "is not a regular file");
    const int64_t have = (int64_t)st.st_size - start, need = out->count * size;
    if (have != need)
        return fail(message, CLI_BAD_INPUT, "%s: its shape needs %lld bytes of %s behind the header, it has %lld",
                    have < need ? "is truncated" : "has trailing bytes", (long long)need, npy_type_name(out->type),
                    (long long)have);
    out->data = malloc((size_t)need);
    if (!out->data) return fail(message, CLI_FAILED, "no memory for its %lld bytes", (long long)need);
    if (fread(out->data, 1, (size_t)need, file) != (size_t)need) return fail(message, CLI_IO, "%s", strerror(errno));
    return CLI_OK;
}

cli_exit npy_read(const char *path, int rank, npy_array *out, char message[NPY_MESSAGE]) {
    char reason[NPY_MESSAGE] = "";
    npy_array array = {0};
    FILE *file = fopen(path, "rbe");
    if (!file) return fail(message, CLI_IO, "%.200s: %s", path, strerror(errno));
    cli_exit code = read_header(file, &array, reason);
    if (code == CLI_OK && array.rank != rank)
        code = fail(reason, CLI_BAD_INPUT, "shape has %d axes; %d are needed", array.rank, rank);
    if (code == CLI_OK) code = read_data(file, &array, reason);
    fclose(file);
    if (code == CLI_OK) {
        *out = array;
    } else {
        npy_free(&array);
        fail(message, code, "%.200s: %.300s", path, reason);
    }
    return code;
}

void npy_free(npy_array *array) {
    free(array->data);
    array->data = NULL;
}

void npy_write(FILE *file, const npy_array *array) {
    char header[256], shape[128] = "";
    for (int i = 0; i < array->rank; i++) {
        const size_t n = strlen(shape);
        snprintf(shape + n, sizeof shape - n, i + 1 < array->rank ? "%lld, " : "%lld", (long long)array->shape[i]);
    }
    if (array->rank == 1) strcat(shape, ",");
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                          npy_type_name(array->type), shape);
    while ((10 + length + 1) % 64 != 0) /* the data starts at a multiple of 64 */
        header[length++] = ' ';
    header[length++] = '\n';
    const unsigned char lead[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(length & 0xff), (unsigned char)(length >> 8)};
    fwrite(lead, 1, sizeof lead, file);
    fwrite(header, 1, (size_t)length, file);
    fwrite(array->data, npy_type_size(array->type), (size_t)array->count, file);
}
