/* Mask files and mask expressions, before they are one predicate (problem.h). */
#ifndef FK_GEN_PROBLEM_MASK_H
#define FK_GEN_PROBLEM_MASK_H

#include "expr.h"
#include "lua_host.h"

/** templates/mask/NAME.lua */
typedef struct fk_mask_file {
    char keep[FK_MAX_EXPR];
    char param[FK_MAX_MASK_VALUES][32];
    int num_params;
} fk_mask_file;

/** The variables of every mask, without params: FK_MASK_NUM_SYMBOLS ints. */
enum { FK_MASK_NUM_SYMBOLS = 7 };
extern const fk_expr_symbol fk_mask_symbols[FK_MASK_NUM_SYMBOLS];

fk_status fk_mask_file_load(fk_lua *lua, const char *name, fk_mask_file *out, fk_error *err);
/** Parses a predicate over fk_mask_symbols and the params of `file` (may be null). */
fk_status fk_mask_parse(fk_expr_pool *pool, const char *text, const fk_mask_file *file, const fk_expr **out,
                        fk_error *err);
/** Whether a spelling may say it: templates/mask/NAME.lua, built in or in fk_template_dir. `name` need not end. */
bool fk_mask_exists(const char *name, size_t length);
/** For messages: the names of the built-in mask files, each with a space before it, and where more are looked for. */
void fk_mask_names(char *out, size_t size);

#endif
