/* Text to tokens, one ahead; and the complaint with a caret that every error of the parser ends in. */
#ifndef FK_GEN_EXPR_LEX_H
#define FK_GEN_EXPR_LEX_H

#include "expr_node.h"

typedef enum fk_expr_token_kind { TOKEN_END, TOKEN_INT, TOKEN_FLOAT, TOKEN_NAME, TOKEN_SIGN } fk_expr_token_kind;

typedef struct fk_expr_token {
    fk_expr_token_kind kind;
    size_t start, length; /* in the text */
    int64_t i;
    double f;
} fk_expr_token;

typedef struct fk_expr_lexer {
    const char *text;
    size_t length;
    fk_expr_token token; /* the current one */
    fk_status status;    /* the first complaint's */
    fk_error *err;
} fk_expr_lexer;

/* Reads the first token. */
void fk_expr_lex_start(fk_expr_lexer *lex, const char *text, fk_error *err);
/* Moves on. After a complaint the current token is TOKEN_END for ever. */
void fk_expr_lex_next(fk_expr_lexer *lex);
bool fk_expr_lex_is(const fk_expr_lexer *lex, const char *sign);
/* Fails with FK_BAD_PROBLEM: the message, then the text with a caret below byte `at`. Returns NULL. The first counts.
 */
const fk_expr *fk_expr_complain(fk_expr_lexer *lex, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
