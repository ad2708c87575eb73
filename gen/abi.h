/* The kernels' parameter blocks, once for both sides: the runtime fills the struct, and templates print the
 * same list as CUDA. Fields are ordered by size, so that neither compiler pads between them. */
#ifndef FK_GEN_ABI_H
#define FK_GEN_ABI_H

#include "flashkiln.h"

#include <stdbool.h>

/** Family wgmma, backward: do warps of their own add to dq's sum, or give leave to? Where tiles of keys are to add in
 * turn, and where it has buffers for it: of those the first tile to come stores the sum. */
static inline bool fk_has_adders(const fk_problem *p, int q_stages, int head_rows) {
    return p->op == FK_BACKWARD && !head_rows && (p->deterministic || q_stages == 2);
}

/** Is the gradient of the staged array (fk_source's) added by tiles as well, in no order? */
static inline bool fk_stages_grad(const fk_problem *p, uint32_t grad, int staged) {
    return staged > 0 && (grad >> (staged - 1) & 1) && !p->deterministic;
}

/* X(C type, CUDA type, name). Strides are in elements: batch, row (sequence), head. */

/* Dropout's: docs/dropout.md. d of 256 values of a byte are dropped. */
#define FK_DROPOUT_WIDE_PARAMS(X)                                                                                      \
    X(uint8_t *, u8 *, keep_mask) /* of fk_keep_mask alone: [batch, num_heads_q, seqlen_q, seqlen_k] */                \
    X(const uint64_t *, const u64 *, dropout_state) /* {seed, offset}; null: the two that follow */                    \
    X(uint64_t, u64, dropout_seed)                                                                                     \
    X(uint64_t, u64, dropout_offset)
#define FK_DROPOUT_PARAMS(X)                                                                                           \
    X(uint32_t, u32, dropout_rare)   /* min(d, 256 - d) in each byte */                                                \
    X(uint32_t, u32, dropout_invert) /* all ones if d <= 128: to drop is the rarer outcome */                          \
    X(float, float, dropout_scale)   /* 256 / (256 - d) */                                                             \
    X(float, float, dropout_keep)    /* its inverse */                                                                 \
    X(float, float, dropout_scale_log2)

/* Of the two sides of L2 one bit for each SM. */
#define FK_MOST_SIDED_SMS 256
typedef struct fk_sides {
    uint32_t of_sm[FK_MOST_SIDED_SMS / 32];
} fk_sides;

#define FK_FORWARD_PARAMS(X)                                                                                           \
    X(const void *, const Element *, q)                                                                                \
    X(const void *, const KeyElement *, k)                                                                             \
    X(const void *, const KeyElement *, v)                                                                             \
    X(void *, Output *, o)                                                                                             \
    X(float *, float *, lse)                                                                                           \
    X(const float *, const float *, q_descale) /* e4m3: [batch, kv head]; null: 1 */                                   \
    X(const float *, const float *, k_descale)                                                                         \
    X(const float *, const float *, v_descale)                                                                         \
    X(void *, u8 *, values)   /* e4m3: workspace, as templates/piece/values.cu has them; kv_e4m3: widen.cu, k too */   \
    X(int32_t *, int *, runs) /* workspace [2, batch, queries of whole tiles]: templates/piece/runs.cu */              \
    X(uint8_t *, u8 *,                                                                                                 \
      seen) /* workspace [batch, num_heads_q, 64 queries, tiles + 1]: templates/piece/seen_tiles.cu */                 \
    X(const int32_t *, const int *, page_table)   /* paged */                                                          \
    X(float *, float *, o_partial)                /* workspace [num_splits, partial_rows, head_dim_v], or of parts */  \
    X(float *, float *, lse_partial)              /* workspace [num_splits, partial_rows] */                           \
    X(uint64_t *, u64 *, claims)                  /* workspace of a persistent grid */                                 \
    X(const int32_t *, const int *, cu_seqlens_q) /* [batch + 1], packed */                                            \
    X(const int32_t *, const int *, cu_seqlens_k)                                                                      \
    X(const int32_t *, const int *, seqused_k) /* [batch] */                                                           \
    X(const int32_t *, const int *, condition) /* or null; nothing is done unless it is condition_value */             \
    FK_DROPOUT_WIDE_PARAMS(X)                                                                                          \
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
    X(int64_t, i64, q_descale_batch_stride)                                                                            \
    X(int64_t, i64, q_descale_head_stride)                                                                             \
    X(int64_t, i64, k_descale_batch_stride)                                                                            \
    X(int64_t, i64, k_descale_head_stride)                                                                             \
    X(int64_t, i64, v_descale_batch_stride)                                                                            \
    X(int64_t, i64, v_descale_head_stride)                                                                             \
    X(int64_t, i64, page_table_stride)                                                                                 \
    X(int64_t, i64, partial_rows) /* rows of lse */                                                                    \
    X(uint64_t, u64, epoch)       /* persistent: of this launch alone */                                               \
    X(fk_sides, Sides, sides)     /* persistent, where sided */                                                        \
    X(int32_t, int, num_heads_q)                                                                                       \
    X(int32_t, int, heads_per_kv) /* num_heads_q / num_heads_kv */                                                     \
    X(int32_t, int, seqlen_q)                                                                                          \
    X(int32_t, int, seqlen_k)                                                                                          \
    X(int32_t, int, diag)                                                                                              \
    X(int32_t, int, batch)                                                                                             \
    X(int32_t, int, total_q)     /* packed: rows of q; lse is [num_heads_q, total_q] */                                \
    X(int32_t, int, num_tiles)   /* persistent: of all heads */                                                        \
    X(uint32_t, u32, last_claim) /* persistent: how many claims come before the last one */                            \
    X(int32_t, int, sided)       /* persistent: each side of L2 has heads of its own */                                \
    X(int32_t, int, num_heads_kv)                                                                                      \
    X(int32_t, int, value_tiles)          /* e4m3: tiles of keys of a kv head in values; kv_e4m3: keys */              \
    X(int32_t, int, group_tiles)          /* persistent: tiles of the heads that share L2 */                           \
    X(uint32_t, u32, group_tiles_inverse) /* floor(2^32 / group_tiles), at most 2^32 - 1 */                            \
    X(int32_t, int, group_heads)          /* packed, persistent: heads that share L2 */                                \
    X(uint32_t, u32, group_inverse)       /* floor(2^32 / group_heads), at most 2^32 - 1 */                            \
    X(uint32_t, u32, last_group_inverse)  /* persistent: the same of the last group, which may have fewer heads */     \
    X(int32_t, int, row_heads)            /* query heads of a kv head that share a tile's rows; 1: none do */          \
    X(uint32_t, u32, row_heads_inverse)   /* floor(2^32 / row_heads), at most 2^32 - 1 */                              \
    X(int32_t, int, own_heads)            /* num_heads_q / row_heads */                                                \
    X(uint32_t, u32, own_heads_inverse)                                                                                \
    X(int32_t, int, first_part) /* persistent: the number of the first part of a tile that is split; INT32_MAX */      \
    X(int32_t, int, num_splits)                                                                                        \
    X(uint32_t, u32, splits_inverse) /* floor(2^32 / num_splits), at most 2^32 - 1 */                                  \
    X(int32_t, int, late_part)       /* templates/piece/parts.cu: the first part of tiles in late_splits parts */      \
    X(int32_t, int, late_tile)       /* the first of these tiles */                                                    \
    X(int32_t, int, late_splits)                                                                                       \
    X(uint32_t, u32, late_inverse) /* floor(2^32 / late_splits), at most 2^32 - 1 */                                   \
    X(int32_t, int, page_size)                                                                                         \
    X(uint32_t, u32, page_inverse)  /* floor(2^32 / page_size), at most 2^32 - 1 */                                    \
    X(uint32_t, u32, heads_inverse) /* floor(2^32 / num_heads_q), at most 2^32 - 1 */                                  \
    X(int32_t, int, condition_value)                                                                                   \
    X(float, float, scale_log2) /* softmax_scale * log2(e) */                                                          \
    X(float, float, scale)                                                                                             \
    FK_DROPOUT_PARAMS(X)

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
    X(float *, float *, lse_log2) /* workspace, alike: lse * log2(e), fp32: lse; +inf for a row without keys */        \
    X(float *, float *,                                                                                                \
      dq_acc) /* workspace [batch * num_heads_q, q_padded, d_pad], fp32 sum of dq / scale; or null */                  \
    X(uint32_t *, u32 *, claims) /* workspace, persistent: how many tiles were claimed; early: CTAs of each kv head    \
                                    that are done; or what parts of leading tiles leave; or null */                    \
    X(uint32_t *, u32 *, added)  /* workspace [batch * num_heads_q, q_padded / block_m]: one past the tile of keys     \
                                    that added last to a tile of dq, for each CTA of a cluster, or how many tiles have \
                                    come (templates/piece/adds.cu); or null */                                         \
    X(uint8_t *, u8 *,                                                                                                 \
      seen) /* workspace [batch, num_heads_q, 64 queries, tiles + 1]: templates/piece/seen_tiles.cu */                 \
    X(int32_t *, int *, order) /* workspace [batch], packed with head_rows: sequences by their work; or null */        \
    X(const int32_t *, const int *, cu_seqlens_q) /* [batch + 1], packed */                                            \
    X(const int32_t *, const int *, cu_seqlens_k)                                                                      \
    X(const int32_t *, const int *, seqused_k) /* [batch] */                                                           \
    X(const int32_t *, const int *, condition) /* or null; nothing is done unless it is condition_value */             \
    FK_DROPOUT_WIDE_PARAMS(X)                                                                                          \
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
    X(int32_t, int, q_padded) /* seqlen_q rounded up to block_m; packed: whole tiles of all sequences */               \
    X(int32_t, int, diag)                                                                                              \
    X(int32_t, int, batch)                                                                                             \
    X(int32_t, int, total_q)                /* packed: rows of q; lse is [num_heads_q, total_q] */                     \
    X(int32_t, int, group_heads)            /* packed: query heads that share L2 */                                    \
    X(int32_t, int, kv_group_heads)         /* packed or persistent: their kv heads */                                 \
    X(uint32_t, u32, group_inverse)         /* floor(2^32 / group_heads), at most 2^32 - 1 */                          \
    X(uint32_t, u32, kv_group_inverse)      /* the same of kv_group_heads */                                           \
    X(uint32_t, u32, last_kv_group_inverse) /* persistent: the same of the last group, which may have fewer heads */   \
    X(int32_t, int, num_tiles)              /* persistent: of keys, of all heads */                                    \
    X(int32_t, int, group_tiles)            /* persistent: of the heads that share L2 */                               \
    X(uint32_t, u32, group_tiles_inverse)   /* floor(2^32 / group_tiles), at most 2^32 - 1 */                          \
    X(int32_t, int, num_splits)             /* of the keys that most queries see (templates/piece/split_keys.cu) */    \
    X(uint32_t, u32, splits_inverse)        /* floor(2^32 / num_splits), at most 2^32 - 1 */                           \
    X(int32_t, int, part_heads)             /* of a group, in a split: as many splits as share out its heads ... */    \
    X(int32_t, int, query_splits)           /* ... have each so many, which share out their queries */                 \
    X(uint32_t, u32, query_splits_inverse)  /* floor(2^32 / query_splits), at most 2^32 - 1 */                         \
    X(uint32_t, u32, heads_inverse)         /* floor(2^32 / num_heads_q), at most 2^32 - 1 */                          \
    X(uint32_t, u32, kv_heads_inverse)      /* floor(2^32 / num_heads_kv), at most 2^32 - 1 */                         \
    X(int32_t, int, total_k)                /* packed: rows of k */                                                    \
    X(int32_t, int, condition_value)                                                                                   \
    X(float, float, scale_log2)                                                                                        \
    X(float, float, scale)                                                                                             \
    FK_DROPOUT_PARAMS(X)

#define FK_MAX_MASK_PARAMS 4 /* run-time values of one mask */
#define FK_MAX_MASK_SLOTS (FK_MAX_MASKS * FK_MAX_MASK_PARAMS)
#define FK_MAX_SCORE_SLOTS (FK_MAX_SCORES * FK_MAX_SCORE_VALUES)

/* A declared array: struct Array of templates/piece/params.cu. */
typedef struct fk_array_param {
    const void *data;
    void *copy; /* workspace: its rows once more, where no tensor map describes them (runtime/aligned.c); else null */
    int64_t stride[FK_MAX_RANK];
    int32_t size[FK_MAX_RANK];
    int32_t boxed, copy_pitch; /* boxed: a tensor map can copy tiles of it, or of `copy`, whose rows have so many
                                * elements (runtime/tensor_map.c) */
} fk_array_param;

/* Its gradient: struct ArrayGrad of the same file. */
typedef struct fk_array_grad_param {
    float *data;
    uint64_t *exact; /* workspace: FK_EXACT_WORDS for each element, which hold its sum without rounding; may be null */
    int64_t stride[FK_MAX_RANK];
    int32_t size[FK_MAX_RANK]; /* 1 where the stride is 0 */
    int32_t once;              /* one pair writes each element, so that it is stored and not added to */
    int32_t clear;             /* it must be cleared: not every element is sure to be written */
    int32_t boxed, unused;     /* boxed: a tensor map can add tiles to it */
} fk_array_grad_param;

/** Up to so many parts of a row of tiles are added up by one thread, more by the four warps of a block. */
#define FK_PARTS_ALONE 8

#define FK_EXACT_WORDS 10

/* struct BlockTable of templates/piece/pack_blocks.cu. */
typedef struct fk_block_params {
    const void *data;
    const int32_t *indices;
    uint32_t *bits;
    int32_t *others;
    int32_t format, columns, width, rows; /* rows: of all tables */
} fk_block_params;

/* What terms need, at the end of each block. The text has as much of it as its problem needs: the kernel's block is a
 * prefix of the host's. */
#define FK_TERM_FIELDS                                                                                                 \
    int32_t mask_value[FK_MAX_MASK_SLOTS];                                                                             \
    uint32_t mask_inverse[FK_MAX_MASK_SLOTS]; /* floor(2^32 / |value|), at most 2^32 - 1; of 0: 0 */                   \
    int32_t score_value[FK_MAX_SCORE_SLOTS];  /* the bits of ints and floats */                                        \
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
    fk_array_grad_param array_grad[FK_MAX_ARRAYS];
} fk_backward_params;

#endif
