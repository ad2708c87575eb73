/* Command-line options as a table: one row per option serves parsing, range checks and --help.
 * Values are written to the row's target, which keeps its default when the option is not given. */
#ifndef FK_CLI_OPTIONS_H
#define FK_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum option_kind {
    OPTION_FLAG,   /* bool *: no value */
    OPTION_TEXT,   /* const char **: points into argv */
    OPTION_INT,    /* int64_t *: within min .. max */
    OPTION_REAL,   /* double *: finite and within min .. max */
    OPTION_CHOICE, /* int *: the index of the value in `choices` */
    OPTION_BYTES,  /* int64_t *: 4096, 512K, 100M, 2G */
    OPTION_INTS,   /* option_ints *: "1,2,3", each within min .. max */
    OPTION_TEXTS   /* option_texts *: may be given several times */
} option_kind;

#define OPTION_MAX_INTS 8
typedef struct option_ints {
    int least, most; /* how many must, and may, be given */
    int count;       /* how many were; 0: not given */
    int64_t value[OPTION_MAX_INTS];
} option_ints;

#define OPTION_MAX_TEXTS 8
typedef struct option_texts {
    int count;
    const char *value[OPTION_MAX_TEXTS]; /* point into argv */
} option_texts;

typedef struct option {
    const char *name;    /* "--gpu", "-o" */
    const char *metavar; /* "KEY"; NULL for a flag */
    const char *help;    /* '\n' starts another line */
    option_kind kind;
    void *target;
    double min, max;
    const char *const *choices; /* ends with NULL */
} option;

/* The rows of a table, one constructor per kind, so that targets are type-checked. */
option option_flag(const char *name, bool *target, const char *help);
option option_text(const char *name, const char *metavar, const char **target, const char *help);
option option_list(const char *name, const char *metavar, option_texts *target, const char *help);
option option_int(const char *name, const char *metavar, int64_t *target, double min, double max, const char *help);
option option_real(const char *name, const char *metavar, double *target, double min, double max, const char *help);
option option_choice(const char *name, const char *metavar, int *target, const char *const *choices, const char *help);
option option_bytes(const char *name, int64_t *target, const char *help);
option option_numbers(const char *name, const char *metavar, option_ints *target, double min, double max,
                      const char *help);

#define OPTION_MESSAGE 512
/** Parses argv[0 .. argc): options in any order, "--name value" or "--name=value"; "--" ends them. Other words are
 *  collected in words[0 .. *num_words), which has room for argc of them.
 *  @return false: `message` is one sentence that names option, value and limit */
bool options_parse(const option *options, size_t num_options, int argc, char **argv, char **words, int *num_words,
                   char message[OPTION_MESSAGE]);
/** The aligned list that --help shows, on stdout. */
void options_print(const option *options, size_t num_options);

/** Joins words into one spelling, so that it may be given with or without quotes around it. A shell takes the quotes
 *  off keep="...", score="..." and blocks(64)="...": they are put back. @return false if it does not fit `size` */
bool options_join_spelling(char *const *words, int num_words, char *out, size_t size);

#endif
