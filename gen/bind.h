/* Structs <-> Lua tables. Strict both ways: a field that the other side does not know is an error that names it.
 * All of these run in bodies of fk_lua_call. */
#ifndef FK_GEN_BIND_H
#define FK_GEN_BIND_H

#include "lua_host.h"
#include "problem.h"
#include "term.h"

#include <stdbool.h>

/** One candidate of an arch file. */
typedef struct fk_tile {
    int block_m, block_n, warps, stages, q_in_regs, ctas;
    int q_stages, k_stages, turns, overlap; /* wgmma: fk_plan_info's */
    bool parts;                             /* wgmma: fk_plan_info's */
    int head_rows;                          /* wgmma, backward: fk_plan_info's */
    bool walks_q;   /* CTAs own keys and walk over queries: the backward pass, but for its kernel of dq */
    bool dq_kernel; /* backward: dq comes from a kernel of its own */
    bool adders;    /* backward: warps of their own add to dq's sum, or give leave to */
    bool wgmma;     /* of that family: all warpgroups but the last compute, 64 rows each */
} fk_tile;
/** The family's name: which kernel file. */
const char *fk_tile_family(const fk_tile *tile);
/** wgmma: warpgroups that compute; else 0. */
int fk_tile_teams(const fk_tile *tile);
/** Does a kernel of the tile copy tiles of an array, where scores read one (fk_score_staged)? */
bool fk_tile_stages(const fk_problem *p, const fk_tile *tile);
/* Of a team. */
int fk_tile_consumers(const fk_tile *tile);
/** Do elements of 8 bits become operands of 16 on their way to shared memory? Family mma has no products of 8 bits. */
bool fk_tile_widens(const fk_problem *p, const fk_tile *tile);
/** fp32: do elements become their parts on their way to shared memory, and not in each warp that reads them? */
bool fk_tile_parted(const fk_problem *p, const fk_tile *tile);
/** Do k and v of 8 bits become those of 16 in the workspace before (templates/piece/widen.cu)? Copies by TMA cannot. */
bool fk_tile_widens_before(const fk_problem *p, const fk_tile *tile);
/** fk_dtype of what is multiplied. */
int32_t fk_operand_dtype(const fk_problem *p, const fk_tile *tile);
/** CTAs of a cluster, which share a tile of keys: two where head_dim is above 128 and a tile has 128 keys, of which a
 * CTA has registers for 64; or which halve a tile (fk_tile_halved). Else 1. */
int fk_tile_cluster(const fk_problem *p, const fk_tile *tile);
/** Whether the CTAs of a cluster have the same queries and keys, and each half of all columns: scores, and backward dP,
 * are sums of what both have. */
bool fk_tile_halved(const fk_problem *p, const fk_tile *tile);
/** Whether such CTAs take the values out of the tiles of keys, whose first columns they are (`latent`): each has half
 * of these columns, and half of the others. */
bool fk_tile_takes_values_from_keys(const fk_problem *p, const fk_tile *tile);
/** May each side of L2 have heads of its own (groups.c: fk_has_sides)? */
bool fk_tile_may_have_sides(const fk_problem *p, const fk_tile *tile);
/** May tiles come in parts (templates/piece/parts.cu, split_keys.cu), which fk_problem_may_have_parts allows? `sm`: of
 * the primitives. */
bool fk_tile_may_have_parts(const fk_problem *p, const fk_tile *tile, int sm, const char *template_dir);

#define FK_MAX_TILES 72

/** templates/arch/NAME.lua after inheritance; what C needs of it. */
typedef struct fk_arch {
    int sm; /* of its row in the registry; at most the device's */
    char name[16], family[16];
    int mma_k;
    bool async_copy, bf16, vector_add, early_start;
    bool e4m3;                                         /* it has an instruction that makes halves of e4m3 */
    bool fp32;                                         /* it has tiles for fp32 */
    fk_tile tile[FK_MAX_TILES], dq_tile[FK_MAX_TILES]; /* dq_tile: of the backward pass's kernel of dq */
    int num_tiles, num_dq_tiles;
    int wgmma_flops; /* per SM and clock; 0: it has none */
} fk_arch;
/** Pushes the arch table of the registry's row for `device_sm` and reads it, with the tiles of the problem's op and
 * dtype. */
void fk_bind_read_arch(lua_State *L, int device_sm, const fk_problem *p, fk_arch *out);

/** gen/layout.lua's answer; what C needs of it. */
typedef struct fk_smem_layout {
    int bytes, d_pad, dv_pad;
    int col_warps;         /* warps that share one warp's worth of keys, where CTAs own keys; else 1 */
    int d_depth, dv_depth; /* columns of a CTA over which S and dP are summed up: of the same */
    int held_k, held_v;    /* steps of 16 columns of K, of V that stay in registers: backward, family wgmma */
    int kv_buffers;        /* of K and V there */
    int registers;         /* about how many a thread has there; else 0 */
    int registers_given;   /* to a thread that computes, family wgmma; else 0 */
    int dq_share;          /* atoms of 16 x 16 of dQ that a warp sums up at a time, at most; family mma */
    bool walks_q, wgmma;   /* of the tile */
    bool scans;            /* tiles are looked for in a mask that is no bound */
    bool long_walk;        /* by a long text, of a pattern */
    bool pattern;          /* ... but a pattern */
    bool runs;             /* a mask leaves each query a run of keys, whose ends are looked up beforehand */
    bool bits;             /* a mask comes as words of 32 keys */
    bool mask_rows;        /* which reads arrays along queries or keys alone */
    bool window;           /* it has two bounds, and what they are no array says */
    int staged;            /* bytes of an element where tiles of an array are copied beside those of K, or Q; 0: none */
    bool lines;            /* the tensor cores add lines along the keys */
    bool unstaged;         /* tiles of an array could be copied, but not into the buffers of this tile */
} fk_smem_layout;
/** Where a mask is no bound: tiles of keys to look for, whether in a pattern, whether those of a tile of queries may be
 * counted beforehand, and how many of its arrays are read along queries, along keys alone (fk_array_list_reads_row).
 * And the bytes of an element of an array that scores read, of which tiles can be copied (fk_score_staged), or of its
 * gradient's where that takes the tile's place; or 0. How many hashes of its own queries a tile keeps. Whether the mask
 * comes as words of 32 keys, and whether the tensor cores add lines along the keys. Backward: whether the walk over the
 * pattern takes registers from the warps that compute, and whether the scores' way back needs them again. */
typedef struct fk_mask_scan {
    bool needed, pattern, counted, window, runs, bits, lines, long_walk, fused;
    int query_rows, key_rows, staged, own;
} fk_mask_scan;
/** Pushes the layout table and reads it. `arch`: absolute index of the arch table. */
void fk_bind_read_layout(lua_State *L, const fk_problem *p, const fk_tile *tile, int arch, fk_mask_scan scan,
                         fk_smem_layout *out);

/** The printed forms of a mask; made outside of bodies, which could not free them. */
typedef struct fk_mask_texts {
    char *keep, *residual, *residual_keep, *words;
    char *over_own, *own[FK_EXPR_MAX_OWN];                             /* intervals */
    char *upper[FK_EXPR_MAX_BOUNDS], *lower[FK_EXPR_MAX_BOUNDS];       /* intervals */
    char *upper_at[FK_EXPR_MAX_BOUNDS], *lower_at[FK_EXPR_MAX_BOUNDS]; /* at one query; bounds of q: at one key */
} fk_mask_texts;
/** `split`: one of the mask's; `words`: its words, where the kernel takes them, or NULL. */
fk_status fk_mask_texts_create(const fk_problem_mask *mask, const fk_expr_split *split, const fk_expr *words,
                               fk_mask_texts *out, fk_error *err);
void fk_mask_texts_free(fk_mask_texts *texts);

/** The same of scores (bind_score.c). */
typedef struct fk_score_texts {
    char
        *text[2 + FK_MAX_BENDS +
              FK_MAX_SCORES * (2 + FK_MAX_SCORE_READS * (1 + FK_MAX_RANK))]; /* in the order in which they are pushed */
    int count;
} fk_score_texts;
fk_status fk_score_texts_create(const fk_problem_score *score, fk_score_texts *out, fk_error *err);
void fk_score_texts_free(fk_score_texts *texts);

/* The names that a template sees (docs/templates.md). Each pushes one table. */
void fk_bind_push_problem(lua_State *L, const fk_problem *p, const char *spelling);
/** `summary`: lines of text. */
void fk_bind_push_plan(lua_State *L, const fk_problem *p, const fk_tile *tile, const char *summary);
/** How long a kernel's own tiles are. */
typedef struct fk_tile_order {
    int q_order;               /* +1 if later ones are the longer ones, else -1 */
    int leading, leading_rows; /* fk_tiles_leading's; fk_source's */
    bool unlike;               /* some are far longer than others, and where is known at run time alone */
    bool shifts; /* the tiles that they walk over begin at the first key that their first query sees of its run */
} fk_tile_order;
void fk_bind_push_mask(lua_State *L, const fk_problem_terms *terms, const fk_mask_texts *texts,
                       const fk_tile_order *order);
/** A field of the table on top: the name that an array has in emitted text. */
void fk_bind_set_array(lua_State *L, const char *field, const fk_array_decl *array);
/** The field reads_along of the table on top: are arrays read by q, by k itself, which must then stay inside? */
void fk_bind_set_reads_along(lua_State *L, bool q, bool k);
void fk_bind_push_score(lua_State *L, const fk_problem *p, const fk_problem_terms *terms, const fk_score_texts *texts);
/** Do scores read array i at their own keys, whose neighbours lie beside each other? */
bool fk_score_reads_pairs(const fk_problem_terms *terms, int i);
/** One more than the array that they read at their own query and key, a tile of which can be copied as K's are; 0:
 * none. */
int fk_score_staged(const fk_problem_terms *terms, bool backward);
/** Does the way back need the scores, so that it is one with the way there? */
bool fk_score_fused(const fk_problem_score *score);
/** `staged`: fk_source's. */
void fk_bind_push_arrays(lua_State *L, const fk_problem *p, const fk_problem_terms *terms, int staged);
/** `wgmma`: the maps for TMA stand before the block; that of a staged array first. */
void fk_bind_push_params(lua_State *L, const fk_problem *p, bool wgmma, const fk_problem_terms *terms, int staged);

#endif
