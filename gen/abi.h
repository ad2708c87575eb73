/* The forward kernel's parameter block, once for both sides: the runtime fills the struct, and templates print the
 * same list as CUDA. Fields are ordered by size, so that neither compiler pads between them. */
#ifndef FK_GEN_ABI_H
#define FK_GEN_ABI_H

#include "flashkiln.h"

/* X(C type, CUDA type, name). Strides are in elements: batch, row (sequence), head. */
#define FK_FORWARD_PARAMS(X)                                                                                           \
    X(const void *, const Element *, q)                                                                                \
    X(const void *, const Element *, k)                                                                                \
    X(const void *, const Element *, v)                                                                                \
    X(void *, Element *, o)                                                                                            \
    X(float *, float *, lse)                                                                                           \
    X(int64_t, i64, q_batch_stride)                                                                                    \
    X(int64_t, i64, q_row_stride)                                                                                      \
    X(int64_t, i64, q_head_stride)                                                                                     \
    X(int64_t, i64, k_batch_stride)                                                                                    \
    X(int64_t, i64, k_row_stride)                                                                                      \
    X(int64_t, i64, k_head_stride)                                                                                     \
    X(int64_t, i64, v_batch_stride)                                                                                    \
    X(int64_t, i64, v_row_stride)                                                                                      \
    X(int64_t, i64, v_head_stride)                                                                                     \
    X(int64_t, i64, o_batch_stride)                                                                                    \
    X(int64_t, i64, o_row_stride)                                                                                      \
    X(int64_t, i64, o_head_stride)                                                                                     \
    X(int32_t, int, num_heads_q)                                                                                       \
    X(int32_t, int, heads_per_kv) /* num_heads_q / num_heads_kv */                                                     \
    X(int32_t, int, seqlen_q)                                                                                          \
    X(int32_t, int, seqlen_k)                                                                                          \
    X(int32_t, int, diag)                                                                                              \
    X(int32_t, int, batch)                                                                                             \
    X(uint32_t, u32, heads_inverse) /* floor(2^32 / num_heads_q), at most 2^32 - 1 */                                  \
    X(float, float, scale_log2)     /* softmax_scale * log2(e) */                                                      \
    X(float, float, scale)

#define FK_MAX_MASK_SLOTS (FK_MAX_MASKS * FK_MAX_MASK_VALUES)

typedef struct fk_forward_params {
#define FK_FIELD(ctype, cudatype, name) ctype name;
    FK_FORWARD_PARAMS(FK_FIELD)
#undef FK_FIELD
    int32_t mask_value[FK_MAX_MASK_SLOTS];
} fk_forward_params;

#endif
