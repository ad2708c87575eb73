#include "arrays.h"
#include "half.h"
#include "npy.h"
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

static int64_t declared_size(const fk_args *a, int32_t dim) {
    return dim == FK_DIM_BATCH      ? a->batch
           : dim == FK_DIM_HEADS_Q  ? a->num_heads_q
           : dim == FK_DIM_SEQLEN_Q ? a->seqlen_q
           : dim == FK_DIM_SEQLEN_K ? a->seqlen_k
                                    : 0;
}

/* fk_dtype of the floats of an array. */
static int32_t dtype_of(const fk_array_decl *decl) {
    return decl->type == FK_FLOAT16 ? FK_FP16 : decl->type == FK_BFLOAT16 ? FK_BF16 : FK_FP32;
}

cli_exit arrays_paths(const arrays *a, const char *name, const option_texts *given, const char *path[FK_MAX_ARRAYS]) {
    for (int i = 0; i < given->count; i++) {
        const char *text = given->value[i], *equals = strchr(text, '=');
        char known[FK_MAX_ARRAYS * 34] = "";
        size_t found = a->count;
        if (!equals) return cli_fail(CLI_USAGE, "run: %s: \"%.100s\" is not NAME=FILE.npy", name, text);
        for (size_t j = 0; j < a->count; j++) {
            const size_t length = strlen(a->decl[j].name);
            if ((size_t)(equals - text) == length && !memcmp(text, a->decl[j].name, length)) found = j;
            strcat(strcat(known, " "), a->decl[j].name);
        }
        if (found == a->count)
            return cli_fail(CLI_USAGE, "run: %s: the problem has no array \"%.*s\"; it has%s", name,
                            (int)(equals - text), text, a->count ? known : " none");
        if (path[found]) return cli_fail(CLI_USAGE, "run: %s: %s is given twice", name, a->decl[found].name);
        path[found] = equals + 1;
    }
    return CLI_OK;
}

/* Sizes and strides of a contiguous array of these axes. */
static cli_exit set_shape(const char *path, const fk_array_decl *decl, const int64_t *shape, const fk_args *args,
                          fk_array *out) {
    int64_t stride = 1;
    for (int d = decl->rank - 1; d >= 0; d--) {
        const int64_t want = declared_size(args, decl->dim[d]);
        if (want && shape[d] != want && shape[d] != 1)
            return cli_fail(CLI_BAD_INPUT, "%s: shape[%d] is %lld; %lld, or 1 to repeat it, is needed for %s", path, d,
                            (long long)shape[d], (long long)want, decl->name);
        out->size[d] = want ? want : shape[d];
        out->stride[d] = shape[d] == 1 ? 0 : stride;
        stride *= shape[d];
    }
    return CLI_OK;
}

static cli_exit read_array(const char *path, const fk_args *args, size_t i, arrays *a, fk_array *out) {
    const fk_array_decl *decl = &a->decl[i];
    const npy_type wanted = decl->type == FK_INT32 ? NPY_INT32 : NPY_FP32;
    npy_array file = {0};
    char message[NPY_MESSAGE];
    cli_exit code = npy_read(path, decl->rank, &file, message);
    if (code != CLI_OK) return cli_fail(code, "%s", message);
    const int32_t dtype = dtype_of(decl);
    a->host[i] = file.data;
    a->elements[i] = file.count;
    a->bytes[i] = (size_t)file.count * element_bytes(dtype);
    if (dtype != FK_FP32) {
        code = tensors_convert(path, dtype, &file, &a->host[i]);
        npy_free(&file);
        if (code != CLI_OK) return a->host[i] = NULL, code;
    } else if (file.type != wanted)
        return cli_fail(CLI_BAD_INPUT, "%s: dtype is %s; %s needs %s", path, npy_type_name(file.type), decl->name,
                        npy_type_name(wanted));
    return set_shape(path, decl, file.shape, args, out);
}

static cli_exit draw_array(uint64_t seed, const fk_args *args, size_t i, arrays *a, fk_array *out) {
    const fk_array_decl *decl = &a->decl[i];
    int64_t shape[FK_MAX_RANK], count = 1;
    for (int d = 0; d < decl->rank; d++) {
        shape[d] = declared_size(args, decl->dim[d]);
        if (!shape[d] || decl->type == FK_INT32 || count > ((int64_t)1 << 40) / shape[d])
            return cli_fail(CLI_USAGE, "run: array %s cannot be drawn, as it has %s; give --array %s=FILE.npy",
                            decl->name,
                            decl->type == FK_INT32 ? "ints"
                            : shape[d]             ? "2^40 elements and more"
                                                   : "a dimension of any size",
                            decl->name);
        count *= shape[d];
    }
    a->elements[i] = count;
    a->bytes[i] = (size_t)count * element_bytes(dtype_of(decl));
    a->host[i] = malloc(a->bytes[i]);
    if (!a->host[i]) return cli_fail(CLI_FAILED, "no memory for array %s", decl->name);
    tensors_draw_normal(seed, dtype_of(decl), a->host[i], (size_t)count);
    return set_shape("", decl, shape, args, out);
}

cli_exit arrays_load(const option_texts *given, const fk_problem *problem, bool draw, uint64_t seed, fk_args *args,
                     arrays *out) {
    arrays a = {.count = 0};
    const fk_status status = fk_problem_arrays(problem, a.decl, &a.count);
    if (status != FK_OK) return cli_fail_status(status);
    const char *path[FK_MAX_ARRAYS] = {NULL};
    cli_exit code = arrays_paths(&a, "--array", given, path);
    for (size_t i = 0; i < a.count && code == CLI_OK; i++) {
        if (path[i])
            code = read_array(path[i], args, i, &a, &args->array[i]);
        else if (draw)
            code = draw_array(seed * FK_MAX_ARRAYS + i + 1000, args, i, &a, &args->array[i]);
        else
            code = cli_fail(CLI_USAGE, "run: array %s is missing; give --array %s=FILE.npy", a.decl[i].name,
                            a.decl[i].name);
        args->array[i].data = a.host[i];
    }
    if (code == CLI_OK)
        *out = a;
    else
        arrays_free(&a, NULL);
    return code;
}

fk_status arrays_upload(arrays *a, fk_context *context, fk_args *args) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < a->count && status == FK_OK; i++) {
        status = fk_device_malloc(context, a->bytes[i], &a->device[i]);
        if (status == FK_OK) status = fk_copy_to_device(context, a->device[i], a->host[i], a->bytes[i]);
        args->array[i].data = a->device[i];
    }
    return status;
}

void arrays_free(arrays *a, fk_context *context) {
    for (size_t i = 0; i < a->count; i++) {
        free(a->host[i]);
        if (context) fk_device_free(context, a->device[i]);
    }
    a->count = 0;
}
