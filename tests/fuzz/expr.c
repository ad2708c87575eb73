/* Expressions: what is parsed is printed, and what is printed parses to the same print. */
#include "fuzz.h"

#include "gen/expr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fk_expr_symbol symbols[] = {{"q", FK_EXPR_INT, 0},   {"k", FK_EXPR_INT, 0},   {"b", FK_EXPR_INT, 0},
                                             {"h", FK_EXPR_INT, 0},   {"s", FK_EXPR_FLOAT, 0}, {"diag", FK_EXPR_INT, 0},
                                             {"x", FK_EXPR_FLOAT, 1}, {"n", FK_EXPR_INT, 2}};
    enum { COUNT = sizeof symbols / sizeof *symbols };
    char *text = fuzz_text(data, size), *printed = NULL, *again = NULL;
    fk_expr_pool *pool = fk_expr_pool_create();
    const fk_expr *e, *f;
    fk_error err;
    MUST(pool);
    if (fk_expr_parse(pool, text, symbols, COUNT, &e, &err) == FK_OK) {
        if (fk_expr_print(e, FK_EXPR_C, &printed, &err) == FK_OK) {
            MUST(fk_expr_parse(pool, printed, symbols, COUNT, &f, &err) == FK_OK);
            MUST(fk_expr_print(f, FK_EXPR_C, &again, &err) == FK_OK);
            MUST(strcmp(printed, again) == 0);
        }
        fk_expr_differentiate(pool, e, "s", &f, &err);
    } else {
        MUST(err.status && err.text[0]);
    }
    free(printed);
    free(again);
    fk_expr_pool_destroy(pool);
    free(text);
    return 0;
}
