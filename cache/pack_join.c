/* Many packs to one. */
#include "pack_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    const fk_pack *pack;
    size_t row;
} source;

typedef struct join {
    source *source; /* of each part */
    fk_pack_part *part;
    char *names; /* target and spelling of each part */
    size_t count;
} join;

static fk_status fetch(void *user, size_t i, fk_entry *out, fk_error *err) {
    const source *from = &((const join *)user)->source[i];
    char note[160];
    if (fk_pack_read(from->pack, from->row, out, note, sizeof note)) return FK_OK;
    return fk_fail(err, FK_IO, "pack %s, record %zu: %s", fk_pack_path(from->pack), from->row, note);
}

static bool in_earlier(fk_pack *const *packs, size_t p, const uint8_t *row) {
    for (size_t i = 0; i < p; ++i) {
        const fk_pack *pack = packs[i];
        size_t low = 0, high = pack->count;
        while (low < high) {
            const size_t middle = low + (high - low) / 2;
            const int order = fk_pack_compare(pack->index + middle * FK_PACK_INDEX, row);
            if (order == 0) return true;
            if (order < 0)
                low = middle + 1;
            else
                high = middle;
        }
    }
    return false;
}

/* Lists what is written. A record must be read for its name: the index has but its digest. */
static fk_status collect(fk_pack *const *packs, size_t count, join *j, fk_error *err) {
    size_t room = 0;
    enum { NAME = 16 + FK_MAX_SPELLING };
    for (size_t p = 0; p < count; ++p)
        room += packs[p]->count;
    j->source = calloc(room + 1, sizeof *j->source);
    j->part = calloc(room + 1, sizeof *j->part);
    j->names = malloc(room * NAME + 1);
    if (!j->source || !j->part || !j->names) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu kernels", room);
    for (size_t p = 0; p < count; ++p) {
        for (size_t row = 0; row < packs[p]->count; ++row) {
            const fk_pack_item item = fk_pack_item_at(packs[p], row);
            char *name = j->names + j->count * NAME;
            fk_entry entry;
            if (in_earlier(packs, p, packs[p]->index + row * FK_PACK_INDEX)) continue;
            j->source[j->count] = (source){packs[p], row};
            const fk_status status = fetch(j, j->count, &entry, err);
            if (status) return status;
            fk_entry_free(&entry);
            memcpy(name, entry.target, sizeof entry.target);
            memcpy(name + 16, entry.spelling, sizeof entry.spelling);
            fk_pack_part *part = &j->part[j->count++];
            *part = (fk_pack_part){.target = name, .spelling = name + 16, .min_driver = item.min_driver};
            memcpy(part->gpu, item.gpu, sizeof part->gpu);
        }
    }
    return FK_OK;
}

/* ---- info ---------------------------------------------------------------------------------------------- */

static int compare_lines(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_joined(const char *line, const char *const *joined) {
    while (*joined && strncmp(line, *joined, strlen(*joined)) != 0)
        joined++;
    return *joined != NULL;
}

/* Moves the lines of `info` that are joined to line[], and leaves the rest in `info`. */
static size_t split(char *info, const char *const *joined, char **line) {
    size_t count = 0, used = 0;
    for (char *at = info, *next; *at; at = next) {
        const size_t length = strcspn(at, "\n");
        next = at + length + (at[length] == '\n');
        if (is_joined(at, joined) && (line[count] = strndup(at, length)) != NULL) {
            ++count;
            continue;
        }
        memmove(info + used, at, (size_t)(next - at));
        used += (size_t)(next - at);
    }
    info[used] = 0;
    return count;
}

/* What texts begin with alike, in whole lines. */
static size_t common(const char *a, const char *b) {
    size_t length = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        if (a[i] == '\n') length = i + 1;
    return length;
}

/* The lines that are not joined, which all packs must share, and then the sorted union of the others. */
static fk_status join_info(fk_pack *const *packs, size_t count, const char *const *joined, char **out, fk_error *err) {
    size_t bytes = 1, num_lines = 0, used;
    fk_status status = FK_OK;
    for (size_t p = 0; p < count; ++p)
        bytes += strlen(packs[p]->info) + 1;
    char *info = malloc(bytes), *other = malloc(bytes), **line = malloc(bytes * sizeof *line);
    if (!info || !other || !line) status = fk_fail(err, FK_NO_MEMORY, "no memory for the info of %zu packs", count);
    for (size_t p = 0; p < count && !status; ++p) {
        char *text = strcpy(p ? other : info, packs[p]->info);
        num_lines += split(text, joined, line + num_lines);
        if (p && strcmp(info, other) != 0) {
            const size_t alike = common(info, other);
            status = fk_fail(err, FK_BAD_ARGUMENT, "pack %s says \"%.120s\", and %s \"%.120s\"", packs[p]->path,
                             other + alike, packs[0]->path, info + alike);
        }
    }
    used = info && !status ? strlen(info) : 0;
    if (num_lines) qsort(line, num_lines, sizeof *line, compare_lines);
    for (size_t i = 0; i < num_lines && !status; ++i)
        if (!i || strcmp(line[i - 1], line[i]) != 0) used += (size_t)sprintf(info + used, "%s\n", line[i]);
    for (size_t i = 0; i < num_lines; ++i)
        free(line[i]);
    free(line);
    free(other);
    *out = info;
    return status;
}

fk_status fk_pack_join(const char *path, fk_pack *const *packs, size_t count, const char *const *joined,
                       const uint8_t *secret, fk_error *err) {
    join j = {0};
    char *info = NULL;
    fk_status status = join_info(packs, count, joined, &info, err);
    if (!status) status = collect(packs, count, &j, err);
    const fk_pack_content content = {info, j.part, j.count, fetch, &j, secret};
    if (!status) status = fk_pack_write(path, packs[0]->vfs, &content, err);
    free(info);
    free(j.source);
    free(j.part);
    free(j.names);
    return status;
}
