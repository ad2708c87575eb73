/* What `tune` found of one problem and shape, and how it is told. */
#ifndef FK_CLI_TUNE_H
#define FK_CLI_TUNE_H

#include "cli.h"

typedef struct tuned {
    char spelling[FK_MAX_SPELLING];
    fk_problem problem;
    fk_shape shape;
    fk_trial *trials; /* fastest first */
    size_t count;
    double seconds;
} tuned;

void tune_print(const tuned *t, bool emulated);
/** All trials of all problems. */
bool tune_print_json(const tuned *all, size_t count);
cli_exit tune_write_csv(const char *path, const tuned *all, size_t count);
/** Modelled time against measured time, a dot for each timed trial, both axes logarithmic. */
cli_exit tune_write_svg(const char *path, const tuned *all, size_t count);

#endif
