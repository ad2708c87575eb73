/* The kernels' parameter blocks, once for both sides: the runtime fills the struct, and templates print the
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

/* The backward kernels' block: one for all of a problem's kernels. */
#define FK_BACKWARD_PARAMS(X)                                                                                          \
    X(const void *, const Element *, q)                                                                                \
    X(const void *, const Element *, k)                                                                                \
    X(const void *, const Element *, v)                                                                                \
    X(const void *, const Element *, o)                                                                                \
    X(const void *, const Element *, dout)                                                                             \
    X(void *, Element *, dq)                                                                                           \
    X(void *, Element *, dk)                                                                                           \
    X(void *, Element *, dv)                                                                                           \
    X(const float *, const float *, lse)  /* [batch, num_heads_q, seqlen_q], natural log */                            \
    X(const float *, const float *, dlse) /* gradient of lse, the same shape; may be null */                           \
    X(float *, float *, delta)            /* workspace [batch * num_heads_q, q_padded]: rowsum(dO * O) - dlse */       \
    X(float *, float *, lse_log2)         /* workspace, the same shape: lse * log2(e); +inf for a row without keys */  \
    X(float *, float *, dq_acc) /* workspace [batch * num_heads_q, q_padded, d_pad], fp32 sum of dq / scale */         \
    X(uint32_t *, u32 *, turn)  /* workspace [batch * num_heads_q, q tiles]: deterministic dq; else null */            \
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
    X(int64_t, i64, dout_batch_stride)                                                                                 \
    X(int64_t, i64, dout_row_stride)                                                                                   \
    X(int64_t, i64, dout_head_stride)                                                                                  \
    X(int64_t, i64, dq_batch_stride)                                                                                   \
    X(int64_t, i64, dq_row_stride)                                                                                     \
    X(int64_t, i64, dq_head_stride)                                                                                    \
    X(int64_t, i64, dk_batch_stride)                                                                                   \
    X(int64_t, i64, dk_row_stride)                                                                                     \
    X(int64_t, i64, dk_head_stride)                                                                                    \
    X(int64_t, i64, dv_batch_stride)                                                                                   \
    X(int64_t, i64, dv_row_stride)                                                                                     \
    X(int64_t, i64, dv_head_stride)                                                                                    \
    X(int32_t, int, num_heads_q)                                                                                       \
    X(int32_t, int, num_heads_kv)                                                                                      \
    X(int32_t, int, heads_per_kv) /* num_heads_q / num_heads_kv */                                                     \
    X(int32_t, int, seqlen_q)                                                                                          \
    X(int32_t, int, seqlen_k)                                                                                          \
    X(int32_t, int, q_padded) /* seqlen_q rounded up to block_m */                                                     \
    X(int32_t, int, diag)                                                                                              \
    X(int32_t, int, batch)                                                                                             \
    X(uint32_t, u32, heads_inverse)    /* floor(2^32 / num_heads_q), at most 2^32 - 1 */                               \
    X(uint32_t, u32, kv_heads_inverse) /* floor(2^32 / num_heads_kv), at most 2^32 - 1 */                              \
    X(float, float, scale_log2)                                                                                        \
    X(float, float, scale)

#define FK_MAX_MASK_SLOTS (FK_MAX_MASKS * FK_MAX_MASK_VALUES)
#define FK_MAX_SCORE_SLOTS (FK_MAX_SCORES * FK_MAX_SCORE_VALUES)

/* A declared array: struct Array of templates/piece/params.cu. */
typedef struct fk_array_param {
    const void *data;
    int64_t stride[FK_MAX_RANK];
    int32_t size[FK_MAX_RANK];
} fk_array_param;

/* What terms need, at the end of each block. The text has as much of it as its problem needs: the kernel's block is a
 * prefix of the host's. */
#define FK_TERM_FIELDS                                                                                                 \
    int32_t mask_value[FK_MAX_MASK_SLOTS];                                                                             \
    int32_t score_value[FK_MAX_SCORE_SLOTS]; /* the bits of ints and floats */                                         \
    fk_array_param array[FK_MAX_ARRAYS];

typedef struct fk_forward_params {
#define FK_FIELD(ctype, cudatype, name) ctype name;
    FK_FORWARD_PARAMS(FK_FIELD)
#undef FK_FIELD
    FK_TERM_FIELDS
} fk_forward_params;

typedef struct fk_backward_params {
#define FK_FIELD(ctype, cudatype, name) ctype name;
    FK_BACKWARD_PARAMS(FK_FIELD)
#undef FK_FIELD
    FK_TERM_FIELDS
} fk_backward_params;

#endif
