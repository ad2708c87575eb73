/* Plans with what tuning records say of them: docs/tuning.md. */
#ifndef FK_RUNTIME_ADVICE_H
#define FK_RUNTIME_ADVICE_H

#include "cache/tuning.h"
#include "gen/generate.h"

/* Whose records count. */
typedef struct fk_advice {
    const char *dir; /* of the user's records, as fk_store_open takes it: null is the default one */
    bool no_dir;     /* only those that came with the library */
    bool emulated;
} fk_advice;

/** fk_plan_enumerate, and the plan of the record that counts moved to the front, its `reason` naming the record. */
fk_status fk_plan_advised(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                          const fk_advice *advice, fk_plan_info **plans, size_t *count, fk_error *err);
/** The same without plans that serve rows of some lengths alone, unless the options name one. */
fk_status fk_plan_for_all(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                          const fk_advice *advice, fk_plan_info **plans, size_t *count, fk_error *err);

/** Whether there is any record for that problem, GPU and shape: far cheaper than planning. */
fk_status fk_advice_find(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                         const fk_advice *advice, bool *found, fk_error *err);
/** Whether the user's own records have a search of that very shape on that very GPU with the sources at hand. */
fk_status fk_advice_is_tuned(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                             const fk_advice *advice, int32_t rigor, bool *tuned, fk_error *err);
/** Whether records are left aside: by the options, or by $FLASHKILN_TUNING. */
bool fk_advice_is_off(const fk_plan_options *options);
/** @return FK_BAD_ARGUMENT: FLASHKILN_TUNING says neither on nor off */
fk_status fk_advice_check_environment(fk_error *err);
/** The table of buckets that came with the library. */
const fk_buckets *fk_advice_buckets(void);
/** More than there are files that kernels are written by. */
enum { FK_ADVICE_MAX_FILES = 512 };
/** 16 hex digits (generators.c): of all Lua, and of the templates that kernels of the plan's family, for problems of
 *  this one's direction, may be made of. Both as records have them. */
const char *fk_advice_generator(const char *problem, const char *plan);
/** Whether a record was made with the sources at hand; of others it is older news. */
bool fk_advice_is_fresh(const fk_tuning_record *record);

#endif
