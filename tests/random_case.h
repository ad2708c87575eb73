/* A trial of a random problem while it runs, and what judges its results. */
#ifndef FK_TESTS_RANDOM_CASE_H
#define FK_TESTS_RANDOM_CASE_H

#include "random_element.h"
#include "random_grads.h"
#include "random_trial.h"

/* Host memory holds whole allocations, padding included; device memory mirrors it. */
typedef struct trial {
    const drawn *d;
    fk_problem problem;
    fk_context *context, *kernels; /* kernels: where the one under test comes from */
    fk_kernel *kernel;
    void *host[NUM_TENSORS], *again[NUM_TENSORS]; /* again: results of the second run */
    void *device[NUM_TENSORS], *device_lse, *device_dlse, *workspace;
    void *device_lengths[4]; /* cu_seqlens_q, cu_seqlens_k, seqused_k, page_table */
    void *device_state;      /* of dropout */
    float *descale[3];       /* of q, k, v: e4m3 */
    void *device_descale[3];
    size_t workspace_bytes;
    float *lse, *dlse;
    double *exact[NUM_TENSORS], *eager[NUM_TENSORS], *exact_lse, *eager_lse; /* of results, and of o */
    fk_array array[FK_MAX_ARRAYS];                                           /* declared arrays, on the host */
    void *array_host[FK_MAX_ARRAYS], *array_device[FK_MAX_ARRAYS];
    size_t array_bytes[FK_MAX_ARRAYS], num_arrays;
    grads grads;
    verdict *verdict;
} trial;

extern const char *const tensor_name[NUM_TENSORS];

/** Keeps the reason. @return false */
bool complain(trial *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Against float64; NaN must stay where a row belongs to no sequence. */
bool check_lse(trial *t);
/** Compares a result with float64 and with eager; leaves poison in its host memory where it has been compared. */
bool check_values(trial *t, int tensor);
/** After check_values, all of a result's memory must be poison. */
bool check_padding(trial *t, int tensor);
/** The gradients of arrays. */
bool check_array_grads(trial *t);

static inline bool is_result(const drawn *d, int tensor) {
    return d->backward ? tensor >= DQ : tensor == O;
}

static inline int num_tensors(const drawn *d) {
    return d->backward ? NUM_TENSORS : DOUT;
}

static inline int64_t row_at(const layout *l, int64_t b, int64_t s, int64_t h) {
    return l->offset + b * l->stride[0] + s * l->stride[1] + h * l->stride[2];
}

static inline size_t lse_count(const drawn *d) {
    return (size_t)(d->tensor[Q].size[0] * d->args.num_heads_q * d->tensor[Q].size[1]);
}

static inline size_t value_count(const layout *l) {
    return (size_t)(l->size[0] * l->size[1] * l->size[2] * l->dim);
}

static inline fk_dtype dtype_of(const drawn *d, int tensor) {
    if (d->kv_e4m3 && (tensor == K || tensor == V)) return FK_E4M3;
    return tensor == O ? output_dtype(d->dtype) : d->dtype;
}

static inline size_t tensor_bytes(const drawn *d, int tensor) {
    return (size_t)d->tensor[tensor].elements * element_bytes(dtype_of(d, tensor));
}

#endif
