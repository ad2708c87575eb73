/* Tiles that come in parts: in how many, and whether that pays (parts.c). */
#ifndef FK_RUNTIME_PARTS_H
#define FK_RUNTIME_PARTS_H

#include "object.h"

/** How the last tiles come in parts: so many of them in `splits` parts each, and the very last ones in
 * late_splits; 0: none do. `clocks`: that the last round takes. `k_tiles`: that each visits. */
typedef struct fk_parts {
    int64_t tiles, late_tiles;
    int32_t splits, late_splits;
    int64_t clocks;
} fk_parts;
fk_parts fk_parts_choose(const fk_problem *p, const fk_plan_info *plan, int64_t ctas, int64_t tiles, int64_t k_tiles);
/** Backward, of a kernel whose plan has parts: in how many each tile of keys comes on `device`; 1: it stays whole.
 * Packed: `shape` has the longest sequence's lengths, and total_k is that of all; 0: all are as long. */
int32_t fk_key_parts_choose(const fk_problem *p, const fk_plan_info *plan, const fk_device_info *device,
                            const fk_shape *shape, int64_t total_k);
/** Into how many of so many parts the heads of a group are shared out; the rest share out their queries. */
int32_t fk_head_parts(int64_t parts, int64_t group);
/** Backward: how many keys of a head come in parts, if any do. */
int64_t fk_leading_keys(const fk_kernel *kernel, const fk_args *args);
/** Whether a kernel that can do so is worth compiling, for so many heads of a batch. */
bool fk_parts_pay(const fk_problem *p, const fk_plan_info *plan, int64_t ctas, double heads, double seqlen_q,
                  double seqlen_k);
/** Whether it is where SMs have a tile each at most; `instead`: another plan for these sizes, whose tiles are whole, or
 * NULL. */
bool fk_parts_pay_alone(const fk_problem *p, const fk_plan_info *plan, const fk_plan_info *instead, int64_t ctas,
                        const fk_shape *s);
/** Whether tiles of so many queries are fewer than CTAs. */
bool fk_tiles_alone(const fk_shape *s, int32_t rows, int64_t ctas);
/** Whether tiles take so nearly the same time that the last round alone is worth parts, or all are in one round. */
bool fk_parts_alike(const fk_problem *p, int64_t ctas, int64_t tiles, double seqlen_q, double seqlen_k);

#endif
