/* The arrays that a problem's masks and scores read, filled by their names, on the host and on the device. */
#ifndef FK_TESTS_ARRAY_SAMPLE_H
#define FK_TESTS_ARRAY_SAMPLE_H

#include "sample.h"

typedef struct array_sample {
    void *host[FK_MAX_ARRAYS], *device[FK_MAX_ARRAYS];
    size_t count, bytes[FK_MAX_ARRAYS];
} array_sample;

/* Element j of so many that lie beside each other along the last dimension. */
static inline int32_t array_int(const char *name, int64_t j, int64_t last) {
    const uint32_t mixed = (uint32_t)j * 2654435761u;
    if (strcmp(name, "bits") == 0) return (int32_t)(mixed ^ mixed >> 15) | 1; /* each row sees its first key */
    if (strcmp(name, "length") == 0) return (int32_t)(40 + mixed % 200);
    return (int32_t)(j % last * 4 / last); /* of documents, which do not decrease */
}

static inline float array_float(const char *name, int64_t j) {
    return strcmp(name, "slope") == 0 ? ldexpf(0.25f, -5 * (int)j) : (float)(j * 37 % 61) / 61 - 0.4f;
}

/* Of one entry of a batch, which repeats; rows follow each other without a gap. */
static inline void array_make(fk_context *context, size_t i, const fk_array_decl *decl, const fk_args *a,
                              array_sample *out, fk_array *array) {
    const int64_t extents[] = {(a->seqlen_k + 31) / 32, a->batch, a->num_heads_q, a->seqlen_q, a->seqlen_k};
    const int bytes = decl->type == FK_FLOAT32 || decl->type == FK_INT32 ? 4 : 2;
    int64_t elements = 1;
    for (int d = decl->rank - 1; d >= 0; d--) {
        array->size[d] = extents[decl->dim[d]];
        array->stride[d] = decl->dim[d] == FK_DIM_BATCH && decl->rank > 1 ? 0 : elements;
        if (array->stride[d]) elements *= array->size[d];
    }
    out->bytes[i] = (size_t)elements * (size_t)bytes;
    out->host[i] = malloc(out->bytes[i]);
    assert_non_null(out->host[i]);
    for (int64_t j = 0; j < elements; j++) {
        if (decl->type == FK_INT32)
            ((int32_t *)out->host[i])[j] = array_int(decl->name, j, array->size[decl->rank - 1]);
        else if (decl->type == FK_FLOAT32)
            ((float *)out->host[i])[j] = array_float(decl->name, j);
        else
            ((uint16_t *)out->host[i])[j] = decl->type == FK_BFLOAT16 ? fk_bf16_from_float(array_float(decl->name, j))
                                                                      : fk_fp16_from_float(array_float(decl->name, j));
    }
    array->data = out->host[i];
    if (fk_device_malloc(context, out->bytes[i], &out->device[i]) ||
        fk_copy_to_device(context, out->device[i], out->host[i], out->bytes[i]))
        fail_msg("%s", fk_last_error());
}

/* `host` and `device` have the sizes. */
static inline void arrays_make(fk_context *context, const fk_problem *p, fk_args *host, fk_args *device,
                               array_sample *out) {
    fk_array_decl decl[FK_MAX_ARRAYS];
    assert_int_equal(fk_problem_arrays(p, decl, &out->count), FK_OK);
    for (size_t i = 0; i < out->count; i++) {
        array_make(context, i, &decl[i], host, out, &host->array[i]);
        device->array[i] = host->array[i];
        device->array[i].data = out->device[i];
    }
}

static inline void arrays_free(fk_context *context, array_sample *a) {
    for (size_t i = 0; i < a->count; i++) {
        free(a->host[i]);
        fk_device_free(context, a->device[i]);
    }
}

#endif
