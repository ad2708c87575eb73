/* What a launcher needs to know of a kernel, as text. In the store the generator says it anew each time; a pack brings
 * it along, so that no Lua is needed. There is one spelling only: a reader spells what it read and compares. */
#include "packs.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "flashkiln launch 6\n"

/* How many a source has room for. */
#define ROOM(member) ((int32_t)(sizeof((fk_source *)0)->member / sizeof *((fk_source *)0)->member))

/* In the order of the lines, each an int32 between two limits. */
#define FIELD(name, member, low, high)                                                                                 \
    { name, offsetof(fk_source, member), low, high }
static const struct field {
    const char *name;
    size_t offset;
    int32_t low, high;
} fields[] = {
    FIELD("sm", plan.sm, 70, 999),
    FIELD("block_m", plan.block_m, 1, 4096),
    FIELD("block_n", plan.block_n, 1, 4096),
    FIELD("warps", plan.warps, 1, 32),
    FIELD("stages", plan.stages, 0, 64),
    FIELD("q_in_regs", plan.q_in_regs, 0, 1),
    FIELD("ctas_per_sm", plan.ctas_per_sm, 1, 64),
    FIELD("smem_bytes", plan.smem_bytes, 0, 1 << 20),
    FIELD("plan_registers", plan.registers, 0, 1024),
    FIELD("dq_kernel", plan.dq_kernel, 0, 1),
    FIELD("q_stages", plan.q_stages, 0, 64),
    FIELD("k_stages", plan.k_stages, 0, 64),
    FIELD("turns", plan.turns, 0, 1),
    FIELD("overlap", plan.overlap, 0, 8),
    FIELD("parts", plan.parts, 0, 1),
    FIELD("head_rows", plan.head_rows, 0, 4096),
    FIELD("d_pad", d_pad, 8, 2 * FK_MAX_HEAD_DIM),
    FIELD("dq_block_m", dq_block_m, 0, 4096),
    FIELD("pattern", pattern, 0, 1),
    FIELD("most_keys", most_keys, 1, FK_MAX_SEQLEN),
    FIELD("leading_rows", leading_rows, 0, FK_MAX_SEQLEN),
    FIELD("main_kernel", main_kernel, 0, FK_MAX_KERNELS - 1),
    FIELD("early", early, 0, (1 << FK_MAX_KERNELS) - 1),
    FIELD("grad", grad, 0, (1 << FK_MAX_ARRAYS) - 1),
    FIELD("once", once, 0, (1 << FK_MAX_ARRAYS) - 1),
    FIELD("staged", staged, 0, FK_MAX_ARRAYS),
    FIELD("mask_values", num_params, 0, ROOM(param)),
    FIELD("score_values", num_score_params, 0, ROOM(score_param)),
    FIELD("kernels", num_kernels, 1, ROOM(kernel)),
    FIELD("arrays", arrays.count, 0, ROOM(arrays.decl)),
};
enum { FIELDS = sizeof fields / sizeof *fields };

/* ---- writing ------------------------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t left;
} text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(t->at, t->left, format, args);
    va_end(args);
    const size_t used = n < 0 || (size_t)n >= t->left ? t->left - 1 : (size_t)n;
    t->at += used;
    t->left -= used;
}

/* The longest is below FK_FACTS_BYTES: lines of below 100 bytes, 30 fields, 48 values, 10 kernels and 8 arrays. */
void fk_facts_write(const fk_source *s, const char key[65], char out[FK_FACTS_BYTES]) {
    text t = {out, FK_FACTS_BYTES};
    put(&t, MAGIC "key: %s\nfamily: %s\n", key, s->plan.family);
    for (int i = 0; i < FIELDS; ++i) {
        int32_t value;
        memcpy(&value, (const char *)s + fields[i].offset, sizeof value);
        put(&t, "%s: %" PRId32 "\n", fields[i].name, value);
    }
    for (int i = 0; i < s->num_params; ++i)
        put(&t, "mask_value: %s\n", s->param[i].name);
    for (int i = 0; i < s->num_score_params; ++i)
        put(&t, "score_value: %s %s\n", s->score_param[i].name, s->score_param[i].is_float ? "float" : "int");
    for (int i = 0; i < s->num_kernels; ++i) {
        const fk_kernel_launch *k = &s->kernel[i];
        put(&t, "kernel: %s %" PRId32 " %" PRId32 " %d\n", k->entry, k->threads, k->smem_bytes, (int)k->grid);
    }
    for (int i = 0; i < s->arrays.count; ++i) {
        char type[FK_ARRAY_TYPE_SIZE];
        fk_array_write_type(&s->arrays.decl[i], type);
        put(&t, "array: %s %s %" PRIu32 "\n", s->arrays.decl[i].name, type, s->arrays.clamp[i]);
    }
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The value of the line `name` at *at, which moves behind it. */
static bool take_line(const char **at, const char *name, char *value, size_t size) {
    const size_t length = strlen(name), rest = strlen(*at);
    if (rest < length + 2 || memcmp(*at, name, length) || memcmp(*at + length, ": ", 2)) return false;
    const char *from = *at + length + 2;
    const size_t bytes = strcspn(from, "\n");
    if (from[bytes] != '\n' || bytes >= size) return false;
    memcpy(value, from, bytes);
    value[bytes] = 0;
    *at = from + bytes + 1;
    return true;
}

/* Its words, separated by single spaces, which become zeros. */
static bool cut(char *line, char **word, int count) {
    for (int i = 0; i < count; ++i) {
        word[i] = line;
        line = strchr(line, ' ');
        if (!line != (i == count - 1)) return false;
        if (line) *line++ = 0;
    }
    return true;
}

static bool take_int(const char *word, int64_t low, int64_t high, int64_t *out) {
    char *end;
    *out = strtoll(word, &end, 10);
    return end != word && !*end && *out >= low && *out <= high;
}

static bool read_kernel(char *line, fk_kernel_launch *out) {
    char *word[4];
    int64_t threads, smem, grid;
    if (!cut(line, word, 4) || strlen(word[0]) >= sizeof out->entry) return false;
    if (!take_int(word[1], 32, 1024, &threads) || !take_int(word[2], 0, 1 << 20, &smem) ||
        !take_int(word[3], 0, FK_GRID_REST, &grid))
        return false;
    strcpy(out->entry, word[0]);
    out->threads = (int32_t)threads;
    out->smem_bytes = (int32_t)smem;
    out->grid = (fk_grid_kind)grid;
    return true;
}

static bool read_array(char *line, fk_array_list *arrays, int i) {
    char *word[3], message[160];
    int64_t clamp;
    fk_array_decl decl = {.rank = 0};
    if (!cut(line, word, 3) || strlen(word[0]) >= sizeof decl.name || !take_int(word[2], 0, UINT32_MAX, &clamp))
        return false;
    strcpy(decl.name, word[0]);
    const char *end = fk_array_read_type(word[1], &decl, message);
    arrays->clamp[i] = (uint32_t)clamp;
    return end && !*end && fk_array_check(&decl, &arrays->decl[i], NULL) == FK_OK;
}

static bool read_fields(const char **at, fk_source *out) {
    char line[160];
    if (!take_line(at, "family", out->plan.family, sizeof out->plan.family)) return false;
    for (int i = 0; i < FIELDS; ++i) {
        int64_t value;
        if (!take_line(at, fields[i].name, line, sizeof line) || !take_int(line, fields[i].low, fields[i].high, &value))
            return false;
        const int32_t narrow = (int32_t)value;
        memcpy((char *)out + fields[i].offset, &narrow, sizeof narrow);
    }
    return strcmp(out->plan.family, "mma") == 0 || strcmp(out->plan.family, "wgmma") == 0;
}

static bool read_lists(const char **at, fk_source *out) {
    char line[160], *word[2];
    for (int i = 0; i < out->num_params; ++i)
        if (!take_line(at, "mask_value", out->param[i].name, sizeof out->param[i].name)) return false;
    for (int i = 0; i < out->num_score_params; ++i) {
        fk_score_param *param = &out->score_param[i];
        if (!take_line(at, "score_value", line, sizeof line) || !cut(line, word, 2) ||
            strlen(word[0]) >= sizeof param->name)
            return false;
        strcpy(param->name, word[0]);
        param->is_float = strcmp(word[1], "float") == 0;
    }
    for (int i = 0; i < out->num_kernels; ++i)
        if (!take_line(at, "kernel", line, sizeof line) || !read_kernel(line, &out->kernel[i])) return false;
    for (int i = 0; i < out->arrays.count; ++i)
        if (!take_line(at, "array", line, sizeof line) || !read_array(line, &out->arrays, i)) return false;
    return out->main_kernel < out->num_kernels;
}

/* Whether a run-time value, such as window0_left, is of the term at that place. */
static bool is_of(const char *param, const char *term, int place) {
    char prefix[48];
    const int length = snprintf(prefix, sizeof prefix, "%s%d_", term, place);
    return strncmp(param, prefix, (size_t)length) == 0;
}

/* Values come in the order of the terms. Those that the text holds are of no param. */
static bool take_values(const fk_problem *p, fk_source *out) {
    int masks = 0, scores = 0;
    for (int i = 0; i < p->num_masks; ++i)
        for (int j = 0; j < p->mask[i].num_values; ++j)
            if (masks < out->num_params && is_of(out->param[masks].name, p->mask[i].name, i))
                out->param[masks++].value = p->mask[i].value[j];
    for (int i = 0; i < p->num_scores; ++i)
        for (int j = 0; j < p->score[i].num_values; ++j)
            if (scores < out->num_score_params && is_of(out->score_param[scores].name, p->score[i].name, i))
                out->score_param[scores++].value = p->score[i].value[j];
    return masks == out->num_params && scores == out->num_score_params;
}

fk_status fk_facts_read(const char *facts, const fk_problem *p, fk_source *out, char key[65], fk_error *err) {
    fk_source source;
    char again[FK_FACTS_BYTES];
    const size_t magic = strlen(MAGIC);
    memset(&source, 0, sizeof source);
    const char *at = strncmp(facts, MAGIC, magic) == 0 ? facts + magic : "";
    bool good = take_line(&at, "key", key, 65) && read_fields(&at, &source) && read_lists(&at, &source) && !*at;
    if (good) {
        fk_facts_write(&source, key, again);
        good = strcmp(again, facts) == 0;
    }
    if (!good) return fk_fail(err, FK_CHECK_FAILED, "facts: the lines about the launch are damaged");
    if (p && !take_values(p, &source))
        return fk_fail(err, FK_CHECK_FAILED, "facts: %d and %d run-time values, the problem has others",
                       source.num_params, source.num_score_params);
    source.plan.legal = 1;
    memcpy(out, &source, sizeof source);
    return FK_OK;
}
