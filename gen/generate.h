/* problem + device -> plan -> CUDA text. No CUDA, no driver, no GPU, no clock: same input, same bytes. */
#ifndef FK_GEN_GENERATE_H
#define FK_GEN_GENERATE_H

#include "problem.h"

fk_status fk_device_lookup(const char *key, fk_device_info *out, fk_error *err); /* table only */
/** Completes a live device's record (name, sm, sizes set by the driver) with the table's rates: same key, else same sm.
 */
void fk_device_complete(fk_device_info *live);

/** fk_plan_list for a device record. */
fk_status fk_plan_enumerate(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                            fk_plan_info **plans, size_t *count, fk_error *err);
/** The chosen plan alone. */
fk_status fk_plan_best(const fk_problem *p, const fk_device_info *device, const fk_plan_options *options,
                       fk_plan_info *out, fk_error *err);
/** fk_plan_tiles. The pairs are those of one head: a mask that reads b or h is judged for all of them at once. */
fk_status fk_plan_count_tiles(const fk_problem *p, const fk_plan_info *plan, const fk_plan_options *options,
                              fk_tile_counts *out, fk_error *err);

/** Everything that is launched by: text and its launch facts. */
typedef struct fk_source {
    char *text; /* malloc'ed */
    char entry[64];
    char spelling[FK_MAX_SPELLING];
    fk_plan_info plan;
    int32_t threads;
    int32_t q_order; /* +1: later query tiles see more keys, so they start first; -1: the reverse */
    fk_mask_param param[FK_MAX_MASKS * FK_MAX_MASK_VALUES]; /* values of fk_forward_params.mask_value, in order */
    int32_t num_params;
} fk_source;

fk_status fk_source_create(const fk_problem *p, const fk_device_info *device, const fk_plan_info *plan,
                           const char *template_dir, bool standalone, fk_source *out, fk_error *err);
void fk_source_free(fk_source *source);

#endif
