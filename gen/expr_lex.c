/* Text to tokens. Numbers are read without regard to the locale: the dot never reaches strtod. */
#include "expr_lex.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NUMBER 48 /* bytes of a number */
#define MAX_SHOWN 160 /* bytes of the text in a message */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

const fk_expr *fk_expr_complain(fk_expr_lexer *lex, size_t at, const char *format, ...) {
    if (lex->status != FK_OK) return NULL;
    char what[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);

    const size_t first = at > MAX_SHOWN / 2 ? at - MAX_SHOWN / 2 : 0;
    char line[MAX_SHOWN + 1], caret[MAX_SHOWN + 2];
    size_t shown = 0, spaces = 0;
    for (; shown < MAX_SHOWN && first + shown < lex->length; ++shown) {
        const unsigned char c = (unsigned char)lex->text[first + shown];
        line[shown] = c < ' ' || c == 127 ? ' ' : (char)c;
        const bool continues = (c & 0xc0) == 0x80; /* inside a UTF-8 sequence: no column of its own */
        if (first + shown < at && !continues) caret[spaces++] = ' ';
    }
    line[shown] = 0;
    memcpy(caret + spaces, "^", 2);
    lex->status =
        fk_fail(lex->err, FK_BAD_PROBLEM, "expression, column %zu: %s\n    %s\n    %s", at + 1, what, line, caret);
    lex->token.kind = TOKEN_END;
    return NULL;
}

void fk_expr_lex_start(fk_expr_lexer *lex, const char *text, fk_error *err) {
    *lex = (fk_expr_lexer){.text = text, .length = strlen(text), .status = FK_OK, .err = err};
    if (lex->length > FK_EXPR_MAX_TEXT)
        fk_expr_complain(lex, 0, "the text has %zu bytes; the limit is %d", lex->length, FK_EXPR_MAX_TEXT);
    fk_expr_lex_next(lex);
}

bool fk_expr_lex_is(const fk_expr_lexer *lex, const char *sign) {
    return lex->token.kind == TOKEN_SIGN && strlen(sign) == lex->token.length &&
           memcmp(lex->text + lex->token.start, sign, lex->token.length) == 0;
}

/* `digits` with the dot taken out; `scale` digits of it were behind the dot. */
static void read_float(fk_expr_lexer *lex, const char *digits, long scale, const char *exponent) {
    fk_expr_token *token = &lex->token;
    long power = exponent ? strtol(exponent, NULL, 10) : 0;
    power = power > 9999 ? 9999 : power < -9999 ? -9999 : power;
    char text[2 * MAX_NUMBER];
    snprintf(text, sizeof text, "%se%ld", digits, power - scale);
    token->kind = TOKEN_FLOAT;
    token->f = strtod(text, NULL);
    if (isinf((float)token->f)) fk_expr_complain(lex, token->start, "this number exceeds the largest float, 3.4e38");
}

static void read_int(fk_expr_lexer *lex, const char *digits, int base) {
    fk_expr_token *token = &lex->token;
    errno = 0;
    const unsigned long long value = strtoull(digits, NULL, base);
    token->kind = TOKEN_INT;
    token->i = (int64_t)value;
    if (errno || value > INT32_MAX)
        fk_expr_complain(lex, token->start, "this number exceeds the largest int, %d", INT32_MAX);
}

/* Everything that could belong to a number, so that 12ab and 1.2.3 are one bad number, not two tokens. */
static size_t number_length(const char *text) {
    size_t n = 0;
    const bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    while (is_digit(text[n]) || is_letter(text[n]) || text[n] == '.' ||
           (n > 0 && !hex && (text[n] == '+' || text[n] == '-') && (text[n - 1] == 'e' || text[n - 1] == 'E')))
        ++n;
    return n;
}

static void lex_number(fk_expr_lexer *lex) {
    const char *text = lex->text + lex->token.start;
    const size_t length = lex->token.length = number_length(text);
    char number[MAX_NUMBER + 1] = "", digits[MAX_NUMBER + 1] = "";
    if (length > MAX_NUMBER) {
        fk_expr_complain(lex, lex->token.start, "a number of %zu bytes; the limit is %d", length, MAX_NUMBER);
        return;
    }
    memcpy(number, text, length);
    if (number[0] == '0' && (number[1] == 'x' || number[1] == 'X')) {
        if (length > 2 && strspn(number + 2, "0123456789abcdefABCDEF") == length - 2)
            read_int(lex, number + 2, 16);
        else
            fk_expr_complain(lex, lex->token.start, "'%s' is not a number", number);
        return;
    }
    const size_t whole = strspn(number, "0123456789");
    if (whole == length) {
        if (length > 1 && number[0] == '0')
            fk_expr_complain(lex, lex->token.start, "'%s' would be octal in C; write it without the leading 0", number);
        else
            read_int(lex, number, 10);
        return;
    }
    size_t at = whole, fraction = 0;
    memcpy(digits, number, whole);
    if (number[at] == '.') {
        fraction = strspn(number + at + 1, "0123456789");
        memcpy(digits + whole, number + at + 1, fraction);
        at += 1 + fraction;
    }
    const char *exponent = NULL;
    if (number[at] == 'e' || number[at] == 'E') {
        exponent = number + at + 1;
        at += number[at + 1] == '+' || number[at + 1] == '-' ? 2 : 1;
        const size_t n = strspn(number + at, "0123456789");
        at = n ? at + n : 0;
    }
    if (at > whole && (number[at] == 'f' || number[at] == 'F')) ++at;
    if (whole + fraction == 0 || at != length)
        fk_expr_complain(lex, lex->token.start, "'%s' is not a number", number);
    else
        read_float(lex, digits, (long)fraction, exponent);
}

void fk_expr_lex_next(fk_expr_lexer *lex) {
    static const char *const pairs[] = {"<<", ">>", "<=", ">=", "==", "!=", "&&", "||"};
    fk_expr_token *token = &lex->token;
    if (lex->status != FK_OK) return;
    size_t at = token->start + token->length;
    while (is_space(lex->text[at]))
        ++at;
    *token = (fk_expr_token){.kind = TOKEN_END, .start = at};
    const char *text = lex->text + at;
    if (is_digit(*text) || (*text == '.' && is_digit(text[1]))) {
        lex_number(lex);
    } else if (is_letter(*text)) {
        token->kind = TOKEN_NAME;
        while (is_letter(text[token->length]) || is_digit(text[token->length]))
            ++token->length;
    } else if (*text) {
        token->kind = TOKEN_SIGN;
        token->length = 1;
        for (size_t i = 0; i < sizeof pairs / sizeof *pairs; ++i) {
            if (strncmp(text, pairs[i], 2) == 0) token->length = 2;
        }
        if (token->length == 1 && !strchr("+-*/%&^|~!<>?:()[],", *text)) {
            if (*text == '=')
                fk_expr_complain(lex, at, "'=' assigns in C; write '==' to compare");
            else if (*text > ' ' && *text < 127)
                fk_expr_complain(lex, at, "'%c' has no meaning in an expression", *text);
            else
                fk_expr_complain(lex, at, "byte 0x%02x has no meaning in an expression", (unsigned char)*text);
        }
    }
}
