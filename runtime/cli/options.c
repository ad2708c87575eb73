#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

option option_flag(const char *name, bool *target, const char *help) {
    return (option){.name = name, .help = help, .kind = OPTION_FLAG, .target = target};
}

option option_text(const char *name, const char *metavar, const char **target, const char *help) {
    return (option){.name = name, .metavar = metavar, .help = help, .kind = OPTION_TEXT, .target = target};
}

option option_list(const char *name, const char *metavar, option_texts *target, const char *help) {
    return (option){.name = name, .metavar = metavar, .help = help, .kind = OPTION_TEXTS, .target = target};
}

option option_int(const char *name, const char *metavar, int64_t *target, double min, double max, const char *help) {
    return (option){name, metavar, help, OPTION_INT, target, min, max, NULL};
}

option option_real(const char *name, const char *metavar, double *target, double min, double max, const char *help) {
    return (option){name, metavar, help, OPTION_REAL, target, min, max, NULL};
}

option option_choice(const char *name, const char *metavar, int *target, const char *const *choices, const char *help) {
    return (option){name, metavar, help, OPTION_CHOICE, target, 0, 0, choices};
}

option option_bytes(const char *name, int64_t *target, const char *help) {
    return (option){.name = name, .metavar = "SIZE", .help = help, .kind = OPTION_BYTES, .target = target};
}

option option_numbers(const char *name, const char *metavar, option_ints *target, double min, double max,
                      const char *help) {
    return (option){name, metavar, help, OPTION_INTS, target, min, max, NULL};
}

/* Fills `message` and returns false, so that a parser ends with `return refuse(...)`. */
__attribute__((format(printf, 2, 3))) static bool refuse(char message[OPTION_MESSAGE], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(message, OPTION_MESSAGE, format, args);
    va_end(args);
    return false;
}

static const char *range_of(const option *o, char out[80]) {
    snprintf(out, 80, "%.15g to %.15g", o->min, o->max);
    return out;
}

/* Reads an integer within the option's range; `stop` receives where it ends. */
static bool read_int(const option *o, const char *text, int64_t *out, char **stop) {
    errno = 0;
    const long long value = strtoll(text, stop, 10);
    if (*stop == text || errno || (double)value < o->min || (double)value > o->max) return false;
    *out = value;
    return true;
}

static bool parse_int(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    char *stop = NULL, range[80];
    int64_t value = 0;
    if (read_int(o, text, &value, &stop) && *stop == '\0') {
        *(int64_t *)o->target = value;
        return true;
    }
    return refuse(message, "%s: \"%.100s\" is not an integer of %s", o->name, text, range_of(o, range));
}

static bool parse_ints(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    option_ints ints = *(const option_ints *)o->target;
    char *stop = NULL, range[80];
    ints.count = 0;
    for (const char *p = text; ints.count < ints.most; p = stop + 1) {
        if (!read_int(o, p, &ints.value[ints.count], &stop) || (*stop != ',' && *stop != '\0')) break;
        ints.count++;
        if (*stop == '\0') {
            if (ints.count < ints.least) break;
            *(option_ints *)o->target = ints;
            return true;
        }
    }
    return refuse(message, "%s: \"%.100s\" is not %s, each %s", o->name, text, o->metavar, range_of(o, range));
}

static bool parse_real(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    char *stop = NULL, range[80];
    const double value = strtod(text, &stop);
    if (stop != text && *stop == '\0' && isfinite(value) && value >= o->min && value <= o->max) {
        *(double *)o->target = value;
        return true;
    }
    return refuse(message, "%s: \"%.100s\" is not a number of %s", o->name, text, range_of(o, range));
}

static bool parse_choice(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(text, o->choices[i]) == 0) {
            *(int *)o->target = i;
            return true;
        }
    }
    char list[200] = "";
    for (int i = 0; o->choices[i]; i++) {
        const size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s %s", i ? "," : "", o->choices[i]);
    }
    return refuse(message, "%s: \"%.100s\" is none of%s", o->name, text, list);
}

static bool parse_bytes(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    char *stop = NULL;
    errno = 0;
    const long long value = strtoll(text, &stop, 10);
    const char *unit = stop != text && *stop ? strchr("KMG", *stop) : NULL;
    const int shift = unit ? 10 * (int)(unit - "KMG" + 1) : 0;
    if (stop == text || errno || value < 0 || value > (INT64_MAX >> shift) || stop[shift ? 1 : 0] != '\0') {
        return refuse(message, "%s: \"%.100s\" is not a size of at least 0, such as 4096, 512K, 100M or 2G", o->name,
                      text);
    }
    *(int64_t *)o->target = value << shift;
    return true;
}

static bool parse_text(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    option_texts *texts = o->target;
    if (texts->count == OPTION_MAX_TEXTS)
        return refuse(message, "%s is given more than %d times", o->name, OPTION_MAX_TEXTS);
    texts->value[texts->count++] = text;
    return true;
}

static bool parse_value(const option *o, const char *text, char message[OPTION_MESSAGE]) {
    switch (o->kind) {
    case OPTION_TEXT:
        *(const char **)o->target = text;
        return true;
    case OPTION_INT:
        return parse_int(o, text, message);
    case OPTION_REAL:
        return parse_real(o, text, message);
    case OPTION_CHOICE:
        return parse_choice(o, text, message);
    case OPTION_BYTES:
        return parse_bytes(o, text, message);
    case OPTION_INTS:
        return parse_ints(o, text, message);
    case OPTION_TEXTS:
        return parse_text(o, text, message);
    case OPTION_FLAG:
        break;
    }
    return true;
}

bool options_parse(const option *options, size_t num_options, int argc, char **argv, char **words, int *num_words,
                   char message[OPTION_MESSAGE]) {
    bool ended = false;
    *num_words = 0;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (ended || word[0] != '-' || word[1] == '\0') {
            words[(*num_words)++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            ended = true;
            continue;
        }
        const char *equals = strchr(word, '=');
        const size_t length = equals ? (size_t)(equals - word) : strlen(word);
        const option *o = options, *end = options + num_options;
        while (o < end && !(strlen(o->name) == length && strncmp(o->name, word, length) == 0))
            o++;
        if (o == end) {
            return refuse(message, "unknown option %.100s; --help lists the options", word);
        }
        if (o->kind == OPTION_FLAG) {
            if (equals) {
                return refuse(message, "%s takes no value, \"%.100s\" was given", o->name, equals + 1);
            }
            *(bool *)o->target = true;
            continue;
        }
        if (!equals && i + 1 == argc) {
            return refuse(message, "%s needs a value, %s", o->name, o->metavar);
        }
        if (!parse_value(o, equals ? equals + 1 : argv[++i], message)) return false;
    }
    return true;
}

void options_print(const option *options, size_t num_options) {
    int width = 0;
    for (size_t i = 0; i < num_options; i++) {
        const int w = (int)(strlen(options[i].name) + (options[i].metavar ? 1 + strlen(options[i].metavar) : 0));
        if (w > width) width = w;
    }
    for (size_t i = 0; i < num_options; i++) {
        const option *o = &options[i];
        const int used = printf("  %s%s%s", o->name, o->metavar ? " " : "", o->metavar ? o->metavar : "");
        printf("%*s", 2 + width - used + 2, "");
        for (const char *c = o->help; *c; c++) {
            putchar(*c);
            if (*c == '\n') printf("%*s", width + 4, "");
        }
        putchar('\n');
    }
}

/* Bytes of what stands before an expression: keep=, score= or blocks(64x32)=; 0: nothing does. */
static int expression_key(const char *word) {
    if (strncmp(word, "keep=", 5) == 0) return 5;
    if (strncmp(word, "score=", 6) == 0) return 6;
    const char *end = strncmp(word, "blocks(", 7) == 0 ? strchr(word, ')') : NULL;
    return end && end[1] == '=' ? (int)(end - word) + 2 : 0;
}

bool options_join_spelling(char *const *words, int num_words, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < num_words && n < size; i++) {
        const char *word = words[i], *space = i ? " " : "";
        const int key = expression_key(word);
        const int written = key && word[key] != '"'
                                ? snprintf(out + n, size - n, "%s%.*s\"%s\"", space, key, word, word + key)
                                : snprintf(out + n, size - n, "%s%s", space, word);
        n += (size_t)written;
    }
    return n < size;
}
