/* What the verbs share. The program includes the public header alone: what it can do, any program can. */
#ifndef FK_CLI_CLI_H
#define FK_CLI_CLI_H

#include "options.h"
#include "table.h"

#include "flashkiln.h"

/* Exit codes; every --help ends with them. */
typedef enum cli_exit {
    CLI_OK = 0,
    CLI_USAGE = 1,        /* unknown verb or option, or an option's value out of range */
    CLI_BAD_INPUT = 2,    /* bad problem or argument: spelling, shape, .npy contents */
    CLI_UNAVAILABLE = 3,  /* no plan, GPU or compiler for it here */
    CLI_IO = 4,           /* a file could not be read or written */
    CLI_CHECK_FAILED = 5, /* --check, spills, or a cache entry */
    CLI_FAILED = 6        /* template, compiler, launch, memory, or a bug */
} cli_exit;

typedef struct cli_verb {
    const char *name, *arguments, *summary;
    const char *notes; /* shown by --help below the options; "" for none */
    cli_exit (*main)(const struct cli_verb *verb, int argc, char **argv);
} cli_verb;

extern const cli_verb verb_devices, verb_plan, verb_gen, verb_build, verb_run, verb_explain, verb_pattern, verb_tune,
    verb_cache, verb_pack;

/** Parses a verb's options; argv is overwritten with the other words. With --help it prints that instead.
 *  @return false: leave with *exit_code */
bool cli_begin(const cli_verb *verb, const option *options, size_t num_options, int *argc, char **argv,
               cli_exit *exit_code);

/** Prints "flashkiln: ..." on stderr and returns `code`. */
cli_exit cli_fail(cli_exit code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Prints fk_last_error and returns the exit code that stands for `status`. */
cli_exit cli_fail_status(fk_status status);
cli_exit cli_exit_of(fk_status status);
/** For what could not be printed: standard output has failed, or there was no memory. */
cli_exit cli_fail_print(const char *verb);

/** Rewrites one line on stderr when that is a terminal; "" clears it. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** What the planner is asked for, in every verb that plans. */
typedef struct cli_planning {
    option_ints shape;
    int rule; /* -1: not given */
    const char *template_dir, *plan;
    bool reproducible;
} cli_planning;
#define CLI_PLANNING_INIT                                                                                              \
    { {5, 5, 0, {0}}, -1, NULL, NULL, false }
option cli_gpu_option(const char **gpu);
option cli_json_option(bool *json);
option cli_shape_option(cli_planning *planning);
option cli_rule_option(cli_planning *planning);
option cli_plan_option(cli_planning *planning);
option cli_reproducible_option(cli_planning *planning);
option cli_template_option(cli_planning *planning);
fk_plan_options cli_plan_options(const cli_planning *planning);
/** Before the first spelling is read: its masks may be files of --template-dir. Refuses --rule beside --plan. */
cli_exit cli_use_planning(const cli_planning *planning);

/** Parses the words as one spelling; `spelling` receives its canonical form. */
cli_exit cli_problem(char *const *words, int num_words, fk_problem *problem, char spelling[FK_MAX_SPELLING]);

/** Whether a head dim is above FK_NARROW_HEAD_DIM. */
bool cli_is_wide(const fk_problem *problem);

/** The words as one spelling, or the file that they name. `*list` is freed with fk_free; null: the one is `spelling`.
 */
cli_exit cli_spellings(char *const *words, int num_words, char ***list, size_t *count, char *spelling);
/** Cuts "t4,a100" in place. Every name is looked up. */
cli_exit cli_gpus(char *text, const char **gpus, size_t room, size_t *count);
/** "fwd-bf16-d128-causal.a100": letters, digits and dots stay. Spellings that differ elsewhere get the key's head. */
void cli_file_stem(const char *spelling, const char *gpu, const char *key, char *out, size_t size);

/* Quantities for people. Each fills `out` and returns it. */
#define CLI_QUANTITY 32
const char *cli_bytes(double bytes, char out[CLI_QUANTITY]); /* 16 KB, 1.21 GB; K = 1024 */
const char *cli_time_us(double us, char out[CLI_QUANTITY]);  /* 812 us, 1.21 ms */

double cli_median(double *values, size_t count); /* sorts them; count is at least 1 */

/** Where the tiles lie in shared memory and what they add up to: the story of the block sizes. */
void cli_print_plan(const char *indent, const fk_problem *problem, const fk_plan_info *plan, const fk_device_info *gpu);
/** Why `taken`, of the candidates that fk_plan_list gave. */
void cli_print_choice(const char *indent, const fk_plan_info *plans, size_t count, const fk_plan_info *taken,
                      const fk_shape *shape);
const char *cli_shape_text(const fk_shape *shape, char out[128]);

/** Where sizes are given, the plan that fk_kernel_create_for takes for them, if it is not `chosen`. */
fk_status cli_print_plan_for(const fk_problem *problem, const char *gpu, const fk_plan_options *how,
                             const fk_plan_info *chosen);

#endif
