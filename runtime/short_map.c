/* Which plan classes of short rows have, as a pack tells it: planned once, when the pack is made, since a program that
 * takes its kernels from a pack may have no Lua to plan with. The line is
 *
 *     short rows: GPU: PLAN;PLAN;...: RUNS: SPELLING
 *
 * where runs, such as "0x40 1x3 2x21", go through the classes of heads of one class of rows after another. */
#include "short_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ------------------------------------------------------------------------------------------- */

typedef struct making {
    const fk_problem *problem;
    const fk_plan_info *for_all;
    int smem;
    fk_short_map *map;
} making;

static int number_of(fk_short_map *map, const fk_plan_info *plan) {
    char line[FK_MAX_PLAN];
    fk_plan_write(plan, line);
    for (int i = 0; i < map->count; i++)
        if (strcmp(map->plan[i], line) == 0) return i + 1;
    if (map->count == FK_SHORT_PLANS) return 0;
    memcpy(map->plan[map->count++], line, sizeof line);
    return map->count;
}

static fk_short_class class_at(size_t shape) {
    const int64_t rows = ((int64_t)(shape / FK_SHORT_HALVES) + 1) * FK_SHORT_STEP;
    return (fk_short_class){true, true, rows, rows, (int32_t)(shape % FK_SHORT_HALVES)};
}

static void take(void *user, size_t shape, const fk_plan_info *plans, size_t count) {
    const making *m = user;
    const fk_short_class class = class_at(shape);
    const fk_plan_info *best = fk_short_choose(m->problem, &class, plans, count, m->for_all, m->smem);
    m->map->choice[shape / FK_SHORT_HALVES][shape % FK_SHORT_HALVES] = (uint8_t)(best ? number_of(m->map, best) : 0);
}

fk_status fk_short_map_make(const fk_problem *p, const fk_device_info *device, const char *template_dir,
                            const fk_plan_info *for_all, fk_short_map *out, fk_error *err) {
    enum { CLASSES = FK_SHORT_ROWS * FK_SHORT_HALVES };
    static const int64_t ratio = 8; /* that fk_shape_fill takes, too */
    fk_shape shapes[CLASSES];
    const making m = {p, for_all, device->smem_per_block, out};
    const int classes = fk_short_rows_of(p) * FK_SHORT_HALVES;
    memset(out, 0, sizeof *out);
    if (!for_all->k_stages) return FK_OK;
    for (int i = 0; i < classes; i++) {
        const fk_short_class class = class_at((size_t)i);
        shapes[i] = fk_short_shape(p, &class, p->gqa ? ratio : 1, device->num_sms);
    }
    return fk_plan_sweep(p, device, template_dir, shapes, (size_t)classes, take, (void *)&m, err);
}

char *fk_short_map_write(const fk_short_map *map, const char *gpu, const char *spelling) {
    const uint8_t *choice = map->choice[0];
    enum { CLASSES = sizeof map->choice };
    char *text = malloc(64 + strlen(spelling) + sizeof map->plan + 8 * CLASSES);
    if (!text) return NULL;
    int used = sprintf(text, FK_SHORT_LINE "%s: ", gpu);
    for (int i = 0; i < map->count; i++)
        used += sprintf(text + used, "%s%s", i ? ";" : "", map->plan[i]);
    for (int i = 0, end; i < CLASSES; i = end) {
        for (end = i + 1; end < CLASSES && choice[end] == choice[i];)
            end++;
        used += sprintf(text + used, "%s%dx%d", i ? " " : ": ", choice[i], end - i);
    }
    sprintf(text + used, ": %s", spelling);
    return text;
}

/* ---- finding ------------------------------------------------------------------------------------------ */

/* A line's parts, of which the last goes to its end; false: it has not that many. */
enum { GPU, PLANS, RUNS, SPELLING, PARTS };
static bool split(const char *line, const char *part[PARTS], size_t length[PARTS]) {
    for (int i = 0; i < PARTS; i++) {
        const char *colon = i < SPELLING ? strstr(line, ": ") : NULL;
        part[i] = line;
        length[i] = strcspn(line, "\n");
        if (i == SPELLING) return true;
        if (!colon || (size_t)(colon - line) > length[i]) return false;
        length[i] = (size_t)(colon - line);
        line = colon + 2;
    }
    return false;
}

static bool is(const char *part, size_t length, const char *text) {
    return strlen(text) == length && memcmp(part, text, length) == 0;
}

/* The run that holds class `at`; a line that ends before has none. */
static int choice_at(const char *runs, long at) {
    char *end;
    while (*runs >= '0' && *runs <= '9') {
        const long number = strtol(runs, &end, 10), length = *end == 'x' ? strtol(end + 1, &end, 10) : 0;
        if (length < 1) return 0;
        if (at < length) return number <= FK_SHORT_PLANS ? (int)number : 0;
        at -= length;
        runs = end + (*end == ' ');
    }
    return 0;
}

static int read_line(const char *plans, const char *runs, const fk_short_class *class, char plan[FK_MAX_PLAN]) {
    const int number = choice_at(runs, (class->q / FK_SHORT_STEP - 1) * FK_SHORT_HALVES + class->half);
    for (int i = 1; i < number; i++) {
        plans += strcspn(plans, ";:");
        if (*plans != ';') return 0;
        plans++;
    }
    const size_t length = strcspn(plans, ";:");
    if (!number || !length || length >= FK_MAX_PLAN) return 0;
    memcpy(plan, plans, length);
    plan[length] = 0;
    return number;
}

int fk_short_map_find(const char *info, const char *gpu, const char *spelling, const fk_short_class *class,
                      char plan[FK_MAX_PLAN]) {
    static const char prefix[] = FK_SHORT_LINE;
    int number = -1;
    for (const char *line = info, *next; *line; line = next) {
        const char *part[PARTS];
        size_t length[PARTS];
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        if (strncmp(line, prefix, sizeof prefix - 1) != 0 || !split(line + sizeof prefix - 1, part, length)) continue;
        const bool own = is(part[GPU], length[GPU], gpu);
        if (!is(part[SPELLING], length[SPELLING], spelling) || (!own && number >= 0)) continue;
        number = read_line(part[PLANS], part[RUNS], class, plan);
        if (own) break;
    }
    return number;
}
