/* One seed -> one random problem over everything that both passes support: what is computed, its sizes, its memory
 * layout and its inputs. Kernels are shared by kernel_reuse consecutive seeds, because compiling one takes longer than
 * running it: the spelling's words come from seed / kernel_reuse, all run-time values from the seed itself. */
#ifndef FK_TESTS_RANDOM_DRAW_H
#define FK_TESTS_RANDOM_DRAW_H

#include "flashkiln.h"

#include <stdbool.h>

#define KERNEL_REUSE 4        /* unless asked otherwise */
extern uint64_t kernel_reuse; /* at least 1 */

/* splitmix64: any 64-bit state will do, zero included. */
typedef struct rng {
    uint64_t state;
} rng;
uint64_t rng_next(rng *r);
/** Uniform in lo .. hi, both included. */
int64_t rng_range(rng *r, int64_t lo, int64_t hi);
/** True in `percent` of 100 calls. */
bool rng_chance(rng *r, int percent);
double rng_normal(rng *r);

/* A tensor of elements [batch, seqlen, head, dim] within one allocation of `elements`; its first element is at
 * `offset`. Everything between and around the rows is padding. */
typedef struct layout {
    int64_t size[3], dim; /* size and stride: batch, seqlen, head */
    int64_t stride[3];
    int64_t offset, elements;
} layout;

enum { Q, K, V, O, DOUT, DQ, DK, DV, NUM_TENSORS };

#define MAX_SEQUENCES 40 /* of a packed problem, and of one with seqused_k */
#define MAX_TABLE 8192   /* entries of a page table, and pages */

typedef struct drawn {
    uint64_t seed;
    char spelling[FK_MAX_SPELLING]; /* as drawn; not canonical */
    const char *plan_for;           /* key of the device table */
    fk_dtype dtype;
    fk_args args;               /* sizes, softmax_scale and strides; no pointers but to the lengths below */
    layout tensor[NUM_TENSORS]; /* those from DOUT on in the backward pass */
    uint64_t state[2];          /* seed and offset of dropout; args may point to it */
    bool backward, deterministic, dropout, packed, seqused_k, split, fast, kv_e4m3;
    int32_t paged;                                                                   /* as fk_problem has it */
    int32_t cu_q[MAX_SEQUENCES + 1], cu_k[MAX_SEQUENCES + 1], used_k[MAX_SEQUENCES]; /* args points to them */
    int32_t table[MAX_TABLE];                                                        /* and to this */
    int32_t page_rows[MAX_TABLE]; /* of each page, how many rows some sequence uses */
    bool descaled[3];             /* e4m3: are there descales of q (not with kv_e4m3), k, v? */
    bool wants_lse, wants_dlse;
    double scale_qk, scale_v, offset_q, offset_k; /* of the normal inputs */
    double ramp; /* keys grow to 1 + |ramp| times that, towards the end (> 0) or the beginning (< 0) of the sequence */
    uint64_t emulator_seed; /* schedule; 0: ascending */
    bool late_copies;
    int emulator_sms; /* so few that CTAs of a persistent grid fetch several tiles; 0: as many as the GPU has */
} drawn;

typedef struct draw_limits {
    const char *plan_for; /* null: drawn from the table */
    bool e4m3;            /* its tensor cores take that, which is drawn more often then */
    bool fp16_only;       /* the GPU planned for has no bf16, which fp32 takes as well */
    bool gpu;             /* longer sequences, guards behind tensors, more heads than fit a 16-bit grid */
} draw_limits;

void draw_problem(uint64_t seed, const draw_limits *limits, drawn *out);

#endif
