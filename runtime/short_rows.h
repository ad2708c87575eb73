/* Short rows and few heads: where the kernel for all sizes, planned for long rows, does not do as well as another one.
 * Sizes are told apart by classes; short_rows.c says which plan a class has, short_map.c keeps it in packs. */
#ifndef FK_RUNTIME_SHORT_ROWS_H
#define FK_RUNTIME_SHORT_ROWS_H

#include "gen/generate.h"

enum {
    FK_SHORT_STEP = 64,   /* rows of a class */
    FK_SHORT_ROWS = 32,   /* classes of rows: up to 2,048 queries */
    FK_SHORT_BACK = 8,    /* the same backward: up to 512, of which a CTA can sum up dq */
    FK_SHORT_PACKED = 8,  /* and of packed sequences */
    FK_SHORT_HALVES = 32, /* classes of heads, in half octaves: up to 2^15.5, and all that are more; backward, where a
                             CTA has a whole head, an eighth of a round of the SMs, a quarter, and then half rounds: up
                             to 14, and all that are more */
    FK_SHORT_PLANS = 32   /* plans of a map; sizes of others have the kernel for all sizes */
};

typedef struct fk_short_class {
    bool is_short; /* the problem and its rows are of those that may have a plan of their own */
    bool square;   /* there are as many keys as queries */
    int64_t q, k;  /* rows that stand for those of the class, packed of the longest; k: 0 if not square */
    int32_t half;  /* heads of all sequences: which class */
} fk_short_class;

/** Classes of rows in which the problem's kernel for all sizes may not be the best; 0: it always is. */
int fk_short_rows_of(const fk_problem *problem);
/** `problem`: as the caller gave it. */
fk_short_class fk_short_class_of(const fk_problem *problem, const fk_shape *shape, int num_sms);
/** Sizes that stand for the class. `ratio`: query heads of a kv head. */
fk_shape fk_short_shape(const fk_problem *problem, const fk_short_class *class, int64_t ratio, int num_sms);
/** Of plans for those sizes, in the model's order, the one to take; null: that for all sizes. `smem`: bytes that a
 * block may have. */
const fk_plan_info *fk_short_choose(const fk_problem *problem, const fk_short_class *class, const fk_plan_info *plans,
                                    size_t count, const fk_plan_info *for_all, int smem);

/* ---- maps (short_map.c) -------------------------------------------------------------------------------- */

/** Which plan each class has whose rows are as many keys as queries. */
typedef struct fk_short_map {
    uint8_t choice[FK_SHORT_ROWS][FK_SHORT_HALVES]; /* 0: the kernel for all sizes; else the plan's number, from 1 */
    char plan[FK_SHORT_PLANS][FK_MAX_PLAN];
    int count;
} fk_short_map;

/** @return as fk_plan_sweep */
fk_status fk_short_map_make(const fk_problem *canonical, const fk_device_info *device, const char *template_dir,
                            const fk_plan_info *for_all, fk_short_map *out, fk_error *err);

#define FK_SHORT_LINE "short rows: " /* begins the lines of a pack's info that hold maps */
/** The map as such a line, malloc'ed; null: no memory. `spelling`: of the problem's class. */
char *fk_short_map_write(const fk_short_map *map, const char *gpu, const char *spelling);
/** Looks a class up in the lines of a pack's info: that of `gpu`, or of any GPU if it has none. @return the plan's
 * number, from 1, with its line in `plan`; 0: the kernel for all sizes; -1: the info tells nothing of the spelling */
int fk_short_map_find(const char *info, const char *gpu, const char *spelling, const fk_short_class *class,
                      char plan[FK_MAX_PLAN]);

#endif
