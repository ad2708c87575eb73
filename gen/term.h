/* What masks, scores and patterns have in common: a file of templates/mask, templates/score or templates/pattern, or an
 * expression of the caller's, over variables, values and declared arrays. */
#ifndef FK_GEN_TERM_H
#define FK_GEN_TERM_H

#include "abi.h"
#include "array.h"
#include "lua_host.h"

typedef enum fk_term_kind { FK_TERM_MASK, FK_TERM_SCORE, FK_TERM_PATTERN } fk_term_kind;

enum {
    FK_MAX_TERM_VALUES = FK_MAX_MASK_VALUES > FK_MAX_SCORE_VALUES ? FK_MAX_MASK_VALUES : FK_MAX_SCORE_VALUES,
    FK_MAX_TERM_ARRAYS = 4,
    FK_MAX_FILE_EXPR = 2048 /* bytes: Lua may join a text of many */
};

/** A number of a term: a run-time value, but for patterns, whose text holds it. */
typedef struct fk_term_param {
    char name[32];
    bool is_float;       /* scores only */
    bool has_default;    /* patterns only: it may be left out, if all behind it are */
    int32_t otherwise;   /* its value then */
    int32_t least, most; /* patterns: its range */
    bool nonzero;        /* scores: 0 is no value of it */
} fk_term_param;

/** templates/mask/NAME.lua, templates/score/NAME.lua or templates/pattern/NAME.lua */
typedef struct fk_term_file {
    char expr[FK_MAX_FILE_EXPR]; /* keep; score or sink; block */
    char by_q[FK_MAX_FILE_EXPR]; /* masks: keep in other words, whose bounds are of q; or "". Packs go without */
    bool is_sink;
    bool top_left; /* patterns: rows count from the first query, whatever the problem's alignment */
    fk_term_param param[FK_MAX_TERM_VALUES]; /* in the order in which a spelling gives the values */
    int num_params;
    fk_array_decl array[FK_MAX_TERM_ARRAYS];
    int num_arrays;
} fk_term_file;

/** The variables of every mask, without params: FK_MASK_NUM_SYMBOLS ints. Scores have s besides. */
enum { FK_MASK_NUM_SYMBOLS = 7 };
extern const fk_expr_symbol fk_mask_symbols[FK_MASK_NUM_SYMBOLS];
/** And of every pattern: the block's row and column, batch entry, query head, number of block columns. */
enum { FK_PATTERN_NUM_SYMBOLS = 5 };
extern const fk_expr_symbol fk_pattern_symbols[FK_PATTERN_NUM_SYMBOLS];

/** FK_TERM_PATTERN or FK_TERM_MASK. */
fk_term_kind fk_mask_kind(const fk_mask *mask);
/** Whether a term of that kind with this file has as many values as it needs. */
bool fk_term_takes(fk_term_kind kind, const fk_term_file *file, int num_values);

/** How many scalar params a file may declare. */
int fk_term_max_params(fk_term_kind kind);
/** Runs and reads the file at `path`. In bodies. */
void fk_term_file_read(lua_State *L, fk_term_kind kind, const char *path, fk_term_file *out);
/** What fk_term_file_load takes: a Lua state, or null where there is no Lua. Terms without a file, which is all of them
 * where there is no Lua, are those of fk_term_learn. */
fk_status fk_term_lua_open(const char *template_dir, fk_lua **out, fk_error *err);
fk_status fk_term_file_load(fk_lua *lua, fk_term_kind kind, const char *name, fk_term_file *out, fk_error *err);

/** Parses the expression of a term: a bool for a mask or a pattern, else a float. `file`: whose params may be read, may
 * be null. */
fk_status fk_term_parse(fk_expr_pool *pool, fk_term_kind kind, const char *text, const fk_term_file *file,
                        const fk_array_list *arrays, const fk_expr **out, fk_error *err);

/** The mask of a pattern: `block` with its params and variables replaced. `file`: of a named one, else null.
 * `top_left`: the problem's alignment. */
fk_status fk_pattern_expand(fk_expr_pool *pool, const fk_mask *mask, const fk_term_file *file, bool top_left,
                            const fk_expr *block, const fk_expr **keep, fk_error *err);

/* ---- without Lua (term_text.c): a file as one line, which packs carry ---- */

enum { FK_TERM_TEXT = 3072 }; /* bytes of a line, with its zero: a term's names, types and expression fit */
/** "mask window left:int right:int = k >= q + diag - left && k <= q + diag + right"; "score ...", "sink ...", or
 * "pattern local top-left window:int=1<=8 = abs(i - j) <= window", whose params may have a default and a limit */
void fk_term_write(fk_term_kind kind, const char *name, const fk_term_file *file, char out[FK_TERM_TEXT]);
/** Reads such a line, accepting only what fk_term_write writes. */
fk_status fk_term_read(const char *line, fk_term_kind *kind, char name[32], fk_term_file *out, fk_error *err);
/** Whether a name means here what the line says: by its file, of whatever kind, or by what was learnt. One that means
 * nothing yet agrees. `is_file`: there is a file, so that the line need not be learnt. `lua`: of fk_term_lua_open.
 * @return FK_CHECK_FAILED: the message has both lines */
fk_status fk_term_agree(fk_lua *lua, const char *line, bool *is_file, fk_error *err);
/** Keeps the terms of these lines for as long as the process lives: all, or, on failure, none. Any thread.
 *  @return FK_CHECK_FAILED: a name was learnt by another line, which stays; FK_BAD_PROBLEM; FK_NO_MEMORY */
fk_status fk_term_learn(const char *lines, fk_error *err);
/** Compares with the line of that name that was learnt, if any, as fk_term_agree does. */
fk_status fk_term_agree_learnt(const char *name, const char *line, fk_error *err);
/** False: no line of that name was learnt. `name` need not end. `out` may be null. */
bool fk_term_recall(fk_term_kind kind, const char *name, size_t length, fk_term_file *out);
/** Called once, when a term is first looked for that has no file and was not learnt: to learn what there is, and to say
 * what there is not. */
void fk_term_set_teacher(void (*teach)(char *missing, size_t size));
/** What the teacher said. */
void fk_term_missing(char *out, size_t size);
/** Around a fork: a child has no thread that could give back what another thread of the parent's holds. */
void fk_terms_hold(void);
void fk_terms_release(void);

/** "mask", "score" or "pattern" */
const char *fk_term_kind_name(fk_term_kind kind);
/** For messages: the names of the built-in files, each with a space before it, and where more are looked for. */
void fk_term_names(fk_term_kind kind, char *out, size_t size);
/** What a spelling's word means: templates/KIND/NAME.lua, built in or in fk_template_dir, else what was learnt; false:
 * nothing. `name` need not end. */
bool fk_term_find(const char *name, size_t length, fk_term_kind *out);

#endif
