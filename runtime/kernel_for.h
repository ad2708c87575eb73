/* How fk_kernel_create_for finds the kernel for some sizes: what its rules share. */
#ifndef FK_RUNTIME_KERNEL_FOR_H
#define FK_RUNTIME_KERNEL_FOR_H

#include "object.h"
#include "short_rows.h"

enum { FK_SIZED_GROUPS = 6 }; /* classes of query heads of a kv head: 1, 2 and 3, 4 to 7, ..., 32 and more */

/** A kernel that is asked for with sizes. */
typedef struct fk_sized {
    fk_context *context;
    const fk_shape *shape;
    fk_bucket bucket;
    fk_short_class class; /* with rows of keys, square or not */
    int32_t group;        /* query heads of a kv head: 1 << group, or up to twice as many */
    bool above; /* backward, rows that are short and not square: more keys than the bucket's name says, a tile or two */
    int32_t variant;
} fk_sized;

/** A kernel that several classes of sizes may ask for. */
typedef struct fk_asked {
    fk_context *context;
    fk_plan_info plan;
    int32_t variant;
    char packed[FK_MAX_PLAN]; /* "", or the plan's line, for a pack's kernel */
} fk_asked;

/** A pack is there to spare compiling, also of kernels for some sizes; and who is sealed has no Lua to plan with. */
bool fk_compiles_for_sizes(fk_context *context);
/** The plan that serves all sizes. */
fk_status fk_sized_plan_for_all(const fk_context *context, const fk_problem *canonical, fk_plan_info *out,
                                fk_error *err);
/** The same as a pack has it; false: none does. */
bool fk_sized_plan_packed(const fk_sized *s, const fk_problem *canonical, fk_plan_info *out);
/** Query heads of a kv head, of those that stand for all of the class's. */
int64_t fk_sized_group(const fk_sized *s, const fk_problem *canonical);
/** Sizes that stand for all of the bucket's, as it must not matter which of them are asked for first. */
fk_shape fk_sized_bucket(const fk_sized *s, const fk_problem *canonical);

/** Whether these sizes want a kernel whose tiles come in parts, and which: forward the last ones, backward all.
 * `instead`: the plan for few rows or heads that they would have, or NULL. */
fk_status fk_wants_parts(const fk_sized *s, const fk_problem *canonical, const fk_plan_info *instead, fk_asked *ask,
                         bool *out, fk_error *err);
fk_status fk_wants_key_parts(const fk_sized *s, const fk_problem *canonical, fk_asked *ask, bool *out, fk_error *err);

#endif
