/* A plan in one line: "wgmma m192 n128 w16 s4 c1 q2 k4 t1 o1", the family and its tile. Numbers of 0 are left out. */
#include "plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan_word {
    char letter;
    size_t offset;
} plan_word;

#define WORD(letter, member)                                                                                           \
    { letter, offsetof(fk_plan_info, member) }
static const plan_word words[] = {
    WORD('m', block_m),   WORD('n', block_n),  WORD('w', warps),    WORD('s', stages), WORD('c', ctas_per_sm),
    WORD('r', q_in_regs), WORD('q', q_stages), WORD('k', k_stages), WORD('t', turns),  WORD('o', overlap),
    WORD('d', dq_kernel), WORD('p', parts),    WORD('h', head_rows)};
enum { NUM_WORDS = sizeof words / sizeof words[0], LARGEST = 4096 };

static int32_t *value_of(fk_plan_info *plan, int word) {
    return (int32_t *)(void *)((char *)plan + words[word].offset);
}

void fk_plan_write(const fk_plan_info *plan, char out[FK_MAX_PLAN]) {
    fk_plan_info copy = *plan;
    int used = snprintf(out, FK_MAX_PLAN, "%.15s", plan->family);
    for (int i = 0; i < NUM_WORDS; i++) {
        const int32_t value = *value_of(&copy, i);
        if (value && used < FK_MAX_PLAN)
            used += snprintf(out + used, (size_t)(FK_MAX_PLAN - used), " %c%d", words[i].letter, value);
    }
}

static fk_status read_word(const char *text, const char *at, size_t length, fk_plan_info *out, fk_error *err) {
    char *end;
    for (int i = 0; i < NUM_WORDS; i++) {
        if (words[i].letter != *at) continue;
        const long value = isdigit((unsigned char)at[1]) ? strtol(at + 1, &end, 10) : -1;
        if (value < 1 || value > LARGEST || end != at + length)
            return fk_fail(err, FK_BAD_ARGUMENT, "plan \"%.90s\": \"%.*s\" must be %c and a number from 1 to %d", text,
                           (int)length, at, *at, LARGEST);
        if (*value_of(out, i)) return fk_fail(err, FK_BAD_ARGUMENT, "plan \"%.90s\": %c is given twice", text, *at);
        *value_of(out, i) = (int32_t)value;
        return FK_OK;
    }
    return fk_fail(err, FK_BAD_ARGUMENT,
                   "plan \"%.90s\": \"%.*s\" is no part of a plan; m, n, w, s, c, r, q, k, t, o, d, p and h are", text,
                   (int)length, at);
}

fk_status fk_plan_read(const char *text, fk_plan_info *out, fk_error *err) {
    memset(out, 0, sizeof *out);
    if (strlen(text) >= FK_MAX_PLAN)
        return fk_fail(err, FK_BAD_ARGUMENT, "plan has %zu bytes, the limit is %d", strlen(text), FK_MAX_PLAN - 1);
    const char *at = text + strspn(text, " ");
    size_t length = strcspn(at, " ");
    snprintf(out->family, sizeof out->family, "%.*s", (int)length, at);
    if (strcmp(out->family, "mma") != 0 && strcmp(out->family, "wgmma") != 0)
        return fk_fail(err, FK_BAD_ARGUMENT, "plan \"%.90s\": it must begin with its family, mma or wgmma", text);
    for (at += length; *(at += strspn(at, " ")); at += length) {
        length = strcspn(at, " ");
        const fk_status status = read_word(text, at, length, out, err);
        if (status != FK_OK) return status;
    }
    return FK_OK;
}

bool fk_plan_equal(const fk_plan_info *a, const fk_plan_info *b) {
    char first[FK_MAX_PLAN], second[FK_MAX_PLAN];
    if (a->block_m != b->block_m || a->block_n != b->block_n || a->warps != b->warps)
        return false; /* most differ here */
    fk_plan_write(a, first);
    fk_plan_write(b, second);
    return strcmp(first, second) == 0;
}

size_t fk_plan_find(const fk_plan_info *plans, size_t count, const fk_plan_info *plan) {
    size_t at = 0;
    while (at < count && !fk_plan_equal(&plans[at], plan))
        at++;
    return at;
}

void fk_plan_promote(fk_plan_info *plans, size_t index, int32_t chosen) {
    const fk_plan_info taken = plans[index];
    memmove(plans + 1, plans, index * sizeof *plans);
    plans[0] = taken;
    if (index > 0) plans[1].chosen = 0;
    plans[0].chosen = chosen;
}
