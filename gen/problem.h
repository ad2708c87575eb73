/* The problem beyond its public face: what its masks mean. */
#ifndef FK_GEN_PROBLEM_H
#define FK_GEN_PROBLEM_H

#include "array.h"

#include <string.h>

fk_status fk_problem_read(const char *spelling, fk_problem *out, fk_error *err);        /* fk_problem_parse */
fk_status fk_problem_write(const fk_problem *p, char *out, size_t size, fk_error *err); /* fk_problem_spell */
fk_status fk_problem_normalise(const fk_problem *in, fk_problem *out, fk_error *err);   /* fk_problem_canonical */

/** fk_problem_normalise that also says which term was at fault: the i'th score, FK_MAX_SCORES + the i'th mask; -1: none
 */
fk_status fk_problem_check(const fk_problem *in, fk_problem *out, int *bad_term, fk_error *err);
/** "fp16", "bf16", "fp32" or "e4m3". */
const char *fk_dtype_name(int32_t dtype);
static inline int fk_dtype_bytes(int32_t dtype) {
    return dtype == FK_FP32 ? 4 : dtype == FK_E4M3 ? 1 : 2;
}
/** Of k and v: what q has, or e4m3. */
static inline int32_t fk_kv_dtype(const fk_problem *p) {
    return p->kv_e4m3 ? FK_E4M3 : p->dtype;
}
/** What a kernel's tiles of keys read an element of k or v as: family wgmma of `kv_e4m3` as one of q. */
static inline int fk_walked_element_bytes(const fk_problem *p, bool wgmma) {
    return fk_dtype_bytes(wgmma ? p->dtype : fk_kv_dtype(p));
}
/** Of o: what q, k and v have, but for e4m3, whose precision is too little for a result. */
static inline int32_t fk_output_dtype(int32_t dtype) {
    return dtype == FK_E4M3 ? FK_BF16 : dtype;
}
fk_status fk_problem_check_head_dim(const char *field, int64_t value, int most, fk_error *err);

/* Run-time integers that a mask may read besides q, k, b (batch) and h (query head):
 * seqlen_q, seqlen_k, diag (seqlen_k - seqlen_q, or 0 when top-left), and its own params. */
typedef struct fk_mask_param {
    char name[48]; /* unique in the kernel: "window0_left" */
    int32_t value;
    bool divides; /* something is divided by it */
} fk_mask_param;

typedef struct fk_problem_mask {
    const fk_expr *keep; /* all terms conjoined, params renamed to unique names; NULL: every key is seen */
    const fk_expr *by_q; /* the same in words whose bounds are of q, where files have them */
    /* Of keep, by the variable of the tiles that a CTA walks over: k; in the backward pass q, and for the kernel of
     * dq k. */
    fk_expr_split split, split_k;
    /* The same by k where sorted arrays leave each query a run of keys, which a kernel before can look up for all heads
     * (templates/piece/runs.cu); has_runs: they do. By queries and by keys: which arrays. */
    fk_expr_split runs;
    bool has_runs;
    int run_q, run_k;
    const fk_expr *words; /* of split.residual: fk_expr_words */
    fk_mask_param param[FK_MAX_MASKS * FK_MAX_MASK_VALUES];
    int num_params;
    bool in_blocks; /* some term is a pattern: what it says is the same for many keys */
    /* Of so many queries (where diag is a multiple of them) and keys both residuals say the same; 0: they read neither.
     */
    int block_q, block_k;
    bool open_q,
        open_k; /* of several of its blocks at once the residual says nothing: it has hashes, or arrays, of them */
    /* Forward, of a long walk: the residual where hashes of a tile's own queries are worked out once for it. */
    const fk_expr *over_own, *own[FK_EXPR_MAX_OWN];
    int num_own;
    bool long_walk; /* of so many operations that its text stands once, and whose walk over tiles takes registers */
} fk_problem_mask;

/* A run-time number of a score, unique in the kernel: "softcap0_cap". */
typedef struct fk_score_param {
    char name[48];
    bool is_float, nonzero;
    double value;
} fk_score_param;

/* An element of an array whose gradient is asked for. */
typedef struct fk_score_read {
    int array;                 /* its place in fk_problem_terms.arrays */
    const fk_expr *element;    /* the read, such as slope[h] */
    const fk_expr *derivative; /* of the term's value by that element */
} fk_score_read;

#define FK_MAX_SCORE_READS 8

typedef struct fk_score_term {
    const fk_expr *value; /* over s, the score before this term */
    const fk_expr *ds;    /* d value / d s; NULL for a sink */
    fk_score_read read[FK_MAX_SCORE_READS];
    int num_reads;
} fk_score_term;

#define FK_MAX_BENDS 4

typedef struct fk_problem_score {
    fk_score_term term[FK_MAX_SCORES]; /* in the order in which they are applied */
    int num_terms;
    const fk_expr *factor, *rest;      /* the last term's value as a product, factor >= 0 the same for all pairs */
    bool along;                        /* the last score is s and a function of q and k, for one q a straight line... */
    const fk_expr *bend[FK_MAX_BENDS]; /* ... where none of these changes its sign, for one k such lines in q */
    int num_bends;
    bool one_slope;                    /* ... and, for all q on the same sides of these, as steep */
    fk_score_term sink[FK_MAX_SCORES]; /* scores of columns without keys: they enter the softmax's sum alone */
    int num_sinks;
    fk_score_param param[FK_MAX_SCORES * FK_MAX_SCORE_VALUES];
    int num_params;
    uint32_t grad; /* bit i: the gradient of array i is asked for */
    uint32_t once; /* bit i: array i has an element for each b, h, q and k, which one pair alone reads, once */
} fk_problem_score;

/* All that the terms of a problem mean. */
typedef struct fk_problem_terms {
    fk_array_list arrays;
    fk_problem_mask mask;
    fk_problem_score score;
} fk_problem_terms;

/** The spelling of a canonical problem with the names of run-time values in place of the values: one kernel serves all
 *  of them, so its text must not tell them apart. */
void fk_problem_write_generic(const fk_problem *p, const fk_problem_terms *terms, char out[FK_MAX_SPELLING]);

/** The spelling of a canonical problem with a star in place of each run-time value: what all problems have in common
 * that one kernel serves. Needs Lua only for gradients of arrays that files declare. */
fk_status fk_problem_write_class(const fk_problem *p, char out[FK_MAX_SPELLING], fk_error *err);

/** Whether a tile's rows may be those of all query heads of a kv head: where there are few queries, fewer tiles read
 * the same keys then. Not with what counts rows by heads: packed sequences and dropout. */
static inline bool fk_problem_joins_heads(const fk_problem *p) {
    return p->split && p->gqa && !p->packed && !p->dropout;
}

/** Does templates/score/bias.lua, or a file of one's own in its place, come first? Tiles of its array are copied. */
static inline bool fk_problem_has_bias(const fk_problem *p) {
    return p->num_scores > 0 && strcmp(p->score[0].name, "bias") == 0;
}

/** Whether kernels of family wgmma multiply Q by the scale before the products, and take 0 for the softmax's reference:
 * where the softmax is as long as the products. At head dims 128 and 256 nothing was gained. */
static inline bool fk_prescales_queries(const fk_problem *p) {
    return p->fast && p->dtype == FK_BF16 && p->head_dim + p->head_dim_v <= 128;
}
/** Whether `fast` of e4m3 does something: P V has room for eight columns of ones, which are the row sums. A product has
 * at most 256 columns. */
static inline bool fk_sums_by_products(const fk_problem *p) {
    return p->fast && p->dtype == FK_E4M3 && p->head_dim_v <= 256 - 8;
}
/** Whether a CTA has no room for all columns of a tile. */
static inline bool fk_is_wide(const fk_problem *p) {
    return p->head_dim > FK_NARROW_HEAD_DIM || p->head_dim_v > FK_NARROW_HEAD_DIM;
}

/** CTAs of family mma that share a tile, each with so many columns of what is summed up: of o, or of dk, dv and dq.
 * Registers hold 256 of o, and backward those of d256. */
static inline int32_t fk_slices(const fk_problem *p) {
    const bool wide_k = p->op == FK_BACKWARD && p->head_dim > FK_NARROW_HEAD_DIM;
    return wide_k || p->head_dim_v > FK_NARROW_HEAD_DIM ? 2 : 1;
}

/** Rows of a tile of e4m3's values, which are transposed: columns of v, and those of ones. */
static inline int32_t fk_value_rows(const fk_problem *p) {
    return p->head_dim_v + (fk_sums_by_products(p) ? 8 : 0);
}

/** Loads the files of masks and scores, and parses. `p` must be canonical. Allocates in `pool`. */
fk_status fk_problem_terms_load(fk_expr_pool *pool, const fk_problem *p, const char *template_dir,
                                fk_problem_terms *out, fk_error *err);
/** Gives `line` each named term of a canonical problem, as fk_term_write has it. */
typedef fk_status fk_term_line(void *user, const char *text, fk_error *err);
fk_status fk_problem_term_lines(const fk_problem *p, const char *template_dir, fk_term_line *line, void *user,
                                fk_error *err);
/** The arrays of a canonical problem; names and types, without `clamp`. */
fk_status fk_problem_list_arrays(const fk_problem *p, fk_array_list *out, fk_error *err);

#endif
