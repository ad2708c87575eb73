/* The generator's public functions: the internal ones, with their failures reported. */
#include "generate.h"
#include "term.h"

#include <stdlib.h>
#include <string.h>

int fk_version(void) {
    return FK_VERSION_MAJOR * 10000 + FK_VERSION_MINOR * 100 + FK_VERSION_PATCH;
}

const char *fk_status_name(fk_status status) {
    switch (status) {
#define FK_NAME(name)                                                                                                  \
    case name:                                                                                                         \
        return #name;
        FK_NAME(FK_OK)
        FK_NAME(FK_BAD_ARGUMENT)
        FK_NAME(FK_BAD_PROBLEM)
        FK_NAME(FK_UNSUPPORTED)
        FK_NAME(FK_NO_DEVICE)
        FK_NAME(FK_NO_COMPILER)
        FK_NAME(FK_COMPILE_FAILED)
        FK_NAME(FK_NO_JIT)
        FK_NAME(FK_NO_MEMORY)
        FK_NAME(FK_IO)
        FK_NAME(FK_TEMPLATE_ERROR)
        FK_NAME(FK_LAUNCH_FAILED)
        FK_NAME(FK_CHECK_FAILED)
        FK_NAME(FK_INTERNAL)
#undef FK_NAME
    }
    return "unknown fk_status";
}

void fk_free(void *memory) {
    free(memory);
}

/* Success leaves the thread's last error as it was. */
static fk_status report(fk_status status, const fk_error *err) {
    return status == FK_OK ? FK_OK : fk_report(err);
}

fk_status fk_problem_parse(const char *spelling, fk_problem *out) {
    fk_error err;
    return report(fk_problem_read(spelling, out, &err), &err);
}

fk_status fk_problem_spell(const fk_problem *problem, char *out, size_t size) {
    fk_error err;
    return report(fk_problem_write(problem, out, size, &err), &err);
}

fk_status fk_problem_canonical(const fk_problem *problem, fk_problem *out) {
    fk_error err;
    return report(fk_problem_normalise(problem, out, &err), &err);
}

/* A null argument is the caller's slip, found before any work. */
static fk_status check_not_null(const void *pointer, const char *name) {
    fk_error err;
    return pointer ? FK_OK : report(fk_fail(&err, FK_BAD_ARGUMENT, "%s is null", name), &err);
}

fk_status fk_problem_arrays(const fk_problem *problem, fk_array_decl *out, size_t *count) {
    fk_error err;
    fk_problem p;
    fk_array_list list;
    fk_status status = check_not_null(out, "out");
    if (status == FK_OK) status = check_not_null(count, "count");
    if (status != FK_OK) return status;
    status = fk_problem_normalise(problem, &p, &err);
    if (status == FK_OK) status = fk_problem_list_arrays(&p, &list, &err);
    if (status != FK_OK) return fk_report(&err);
    memcpy(out, list.decl, (size_t)list.count * sizeof *out);
    *count = (size_t)list.count;
    return FK_OK;
}

fk_status fk_problem_blocks(const fk_problem *problem, int32_t *rows, int32_t *columns) {
    fk_error err;
    fk_problem p;
    fk_status status = check_not_null(rows, "rows");
    if (status == FK_OK) status = check_not_null(columns, "columns");
    if (status != FK_OK) return status;
    status = fk_problem_normalise(problem, &p, &err);
    if (status != FK_OK) return fk_report(&err);
    int i = 0;
    while (i < p.num_masks && fk_mask_kind(&p.mask[i]) != FK_TERM_PATTERN)
        ++i;
    *rows = i < p.num_masks ? p.mask[i].value[0] : 0;
    *columns = i < p.num_masks ? p.mask[i].value[1] : 0;
    return FK_OK;
}

fk_status fk_shape_complete(const fk_problem *problem, fk_shape *shape) {
    fk_error err;
    fk_problem p;
    fk_status status = check_not_null(problem, "problem");
    if (status == FK_OK) status = check_not_null(shape, "shape");
    if (status != FK_OK) return status;
    status = fk_problem_normalise(problem, &p, &err);
    if (status == FK_OK) status = fk_shape_fill(&p, shape, shape, &err);
    return report(status, &err);
}

fk_status fk_plan_spell(const fk_plan_info *plan, char *out, size_t size) {
    fk_error err;
    char text[FK_MAX_PLAN];
    fk_status status = check_not_null(plan, "plan");
    if (status == FK_OK) status = check_not_null(out, "out");
    if (status != FK_OK) return status;
    fk_plan_write(plan, text);
    if (strlen(text) >= size)
        return report(fk_fail(&err, FK_BAD_ARGUMENT, "size is %zu, the plan needs %zu bytes", size, strlen(text) + 1),
                      &err);
    memcpy(out, text, strlen(text) + 1);
    return FK_OK;
}

fk_status fk_plan_tiles(const fk_problem *problem, const fk_plan_info *plan, const fk_plan_options *options,
                        fk_tile_counts *out) {
    fk_error err;
    fk_status status = check_not_null(problem, "problem");
    if (status == FK_OK) status = check_not_null(plan, "plan");
    if (status == FK_OK) status = check_not_null(out, "out");
    if (status != FK_OK) return status;
    return report(fk_plan_count_tiles(problem, plan, options, out, &err), &err);
}

fk_status fk_plan_tile_map(const fk_problem *problem, const fk_plan_info *plan, const fk_plan_options *options,
                           int64_t head, uint8_t *out, size_t size) {
    fk_error err;
    fk_status status = check_not_null(problem, "problem");
    if (status == FK_OK) status = check_not_null(plan, "plan");
    if (status == FK_OK) status = check_not_null(out, "out");
    if (status != FK_OK) return status;
    return report(fk_plan_map_tiles(problem, plan, options, head, out, size, &err), &err);
}
