#include "json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 16 }; /* of what is stepped over */

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
        c->at++;
}

static bool take(cursor *c, char what) {
    skip_space(c);
    if (c->at == c->end || *c->at != what) return false;
    c->at++;
    return true;
}

static bool at(cursor *c, char what) {
    skip_space(c);
    return c->at < c->end && *c->at == what;
}

static bool take_word(cursor *c, const char *word) {
    const size_t size = strlen(word);
    if ((size_t)(c->end - c->at) < size || memcmp(c->at, word, size) != 0) return false;
    c->at += size;
    return true;
}

/* ---- strings ---- */

/* \uXXXX of printable ASCII; nothing that this library writes needs more. -1: not that */
static int take_code(cursor *c) {
    int code = 0;
    if (c->end - c->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char digit = *c->at++;
        const int value = digit >= '0' && digit <= '9'   ? digit - '0'
                          : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                          : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                         : -1;
        if (value < 0) return -1;
        code = code * 16 + value;
    }
    return code;
}

/* `out` null: stepped over, where control characters may be escaped and text may be long. */
static bool take_text(cursor *c, char *out, size_t size) {
    size_t used = 0;
    if (!take(c, '"')) return false;
    while (c->at < c->end && *c->at != '"') {
        int byte = (unsigned char)*c->at++;
        if (byte < 0x20) return false;
        if (byte == '\\') {
            static const char escaped[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
            if (c->at == c->end) return false;
            const char kind = *c->at++;
            const char *found = kind ? strchr(escaped, kind) : NULL;
            byte = kind == 'u' ? take_code(c) : found ? meant[found - escaped] : -1;
            if (byte < 0) return false;
            if (out && (byte < 0x20 || byte >= 0x7f)) return false;
        }
        if (out && (byte == 0x7f || used + 1 >= size)) return false;
        if (out) out[used++] = (char)byte;
    }
    if (out) out[used] = 0;
    return take(c, '"');
}

/* ---- numbers ---- */

static bool is_digit(const cursor *c) {
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

/* Not strtod, which follows the program's locale. Digits beyond the 18th are dropped. */
static bool take_number(cursor *c, double *out) {
    skip_space(c);
    const bool negative = c->at < c->end && *c->at == '-';
    uint64_t mantissa = 0;
    int scale = 0, digits = 0, exponent = 0;
    c->at += negative;
    if (!is_digit(c)) return false;
    const bool leading_zero = *c->at == '0';
    for (int count = 0; is_digit(c); c->at++, count++) {
        if (leading_zero && count > 0) return false;
        if (digits < 18)
            mantissa = mantissa * 10 + (uint64_t)(*c->at - '0'), digits += mantissa > 0;
        else if (scale < 10000)
            scale++;
    }
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!is_digit(c)) return false;
        for (; is_digit(c); c->at++) {
            if (digits >= 18 || scale < -10000) continue;
            mantissa = mantissa * 10 + (uint64_t)(*c->at - '0'), digits += mantissa > 0, scale--;
        }
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        const bool below = c->at < c->end && *c->at == '-';
        if (c->at < c->end && (*c->at == '-' || *c->at == '+')) c->at++;
        if (!is_digit(c)) return false;
        for (; is_digit(c); c->at++)
            if (exponent < 10000) exponent = exponent * 10 + (*c->at - '0');
        scale += below ? -exponent : exponent;
    }
    const double size = mantissa ? (double)((long double)mantissa * powl(10.0L, scale)) : 0;
    *out = negative ? -size : size;
    return isfinite(size);
}

/* ---- values ---- */

static bool skip_value(cursor *c, int depth) {
    double number;
    if (depth > MAX_DEPTH) return false;
    if (at(c, '"')) return take_text(c, NULL, 0);
    if (take(c, '[')) {
        if (take(c, ']')) return true;
        do
            if (!skip_value(c, depth + 1)) return false;
        while (take(c, ','));
        return take(c, ']');
    }
    if (take(c, '{')) {
        if (take(c, '}')) return true;
        do
            if (!take_text(c, NULL, 0) || !take(c, ':') || !skip_value(c, depth + 1)) return false;
        while (take(c, ','));
        return take(c, '}');
    }
    return take_word(c, "true") || take_word(c, "false") || take_word(c, "null") || take_number(c, &number);
}

static bool take_field(cursor *c, const fk_json_field *field) {
    double *numbers = field->target;
    if (field->kind == FK_JSON_TEXT) return take_text(c, field->target, field->size);
    if (field->kind == FK_JSON_NUMBER) return take_number(c, numbers);
    if (!take(c, '[')) return false;
    for (size_t i = 0; i < field->size; i++)
        numbers[i] = NAN;
    for (size_t i = 0; i < field->size && !at(c, ']'); i++)
        if ((i > 0 && !take(c, ',')) || !take_number(c, &numbers[i])) return false;
    return take(c, ']');
}

static bool take_member(cursor *c, const fk_json_field *fields, size_t num_fields, uint64_t *seen) {
    char name[64];
    const cursor begin = *c;
    if (!take_text(c, name, sizeof name)) { /* too long, or odd: none of ours */
        *c = begin;
        return take_text(c, NULL, 0) && take(c, ':') && skip_value(c, 0);
    }
    if (!take(c, ':')) return false;
    for (size_t i = 0; i < num_fields; i++) {
        if (strcmp(fields[i].name, name) != 0) continue;
        if (*seen >> i & 1) return false;
        *seen |= (uint64_t)1 << i;
        return take_field(c, &fields[i]);
    }
    return skip_value(c, 0);
}

bool fk_json_read(const char *text, size_t size, const fk_json_field *fields, size_t num_fields) {
    cursor c = {text, text + size};
    uint64_t seen = 0;
    if (!take(&c, '{')) return false;
    if (!take(&c, '}')) {
        do
            if (!take_member(&c, fields, num_fields, &seen)) return false;
        while (take(&c, ','));
        if (!take(&c, '}')) return false;
    }
    skip_space(&c);
    if (c.at != c.end) return false;
    for (size_t i = 0; i < num_fields; i++)
        if (fields[i].required && !(seen >> i & 1)) return false;
    return true;
}

/* ---- writing ---- */

static size_t put(char *out, size_t room, size_t used, char byte) {
    if (used < room) out[used] = byte;
    return used + 1;
}

size_t fk_json_write_text(const char *text, char *out, size_t room) {
    size_t used = put(out, room, 0, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') used = put(out, room, used, '\\');
        used = put(out, room, used, *text);
    }
    used = put(out, room, used, '"');
    if (used < room) out[used] = 0;
    return used;
}

/* Not through printf's %f, which follows the locale. */
size_t fk_json_write_number(double value, char *out, size_t room) {
    const double size = fabs(value);
    const bool wide = size >= 9e9;
    const long long scaled = llround(wide ? size : size * 1e6);
    const long long whole = wide ? scaled : scaled / 1000000;
    long long part = wide ? 0 : scaled % 1000000;
    int digits = part ? 6 : 0;
    for (; digits > 0 && part % 10 == 0; digits--)
        part /= 10;
    const char *sign = value < 0 && scaled ? "-" : "";
    const int used = digits ? snprintf(out, room, "%s%lld.%0*lld", sign, whole, digits, part)
                            : snprintf(out, room, "%s%lld", sign, whole);
    return used < 0 ? room : (size_t)used;
}
