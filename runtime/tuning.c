/* Files of records, from one directory to another. */
#include "advice.h"
#include "object.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/vfs.h"

/* The records that count, one for each problem, bucket, GPU; in the order in which their keys came, and in a tree. */
typedef struct winners {
    fk_tuning_record **at;
    void *tree;
    size_t count, room, refused;
} winners;

static int by_key(const void *x, const void *y) {
    const fk_tuning_record *a = x, *b = y;
    const fk_bucket p = fk_bucket_of(fk_advice_buckets(), &a->shape), q = fk_bucket_of(fk_advice_buckets(), &b->shape);
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        if (p.index[i] != q.index[i]) return p.index[i] < q.index[i] ? -1 : 1;
    if (a->num_sms != b->num_sms) return a->num_sms < b->num_sms ? -1 : 1;
    const int order = strcmp(a->problem, b->problem);
    return order ? order : strcmp(a->device, b->device);
}

static fk_tuning_record *find(const winners *w, const fk_tuning_record *r) {
    fk_tuning_record *const *found = tfind(r, &w->tree, by_key);
    return found ? *found : NULL;
}

static fk_status add(winners *w, const fk_tuning_record *r, fk_error *err) {
    fk_tuning_record *old = find(w, r);
    if (old) {
        if (fk_tuning_replaces(old, r, fk_advice_is_fresh)) *old = *r;
        return FK_OK;
    }
    if (w->count == w->room) {
        const size_t room = w->room ? 2 * w->room : 16;
        fk_tuning_record **grown = realloc(w->at, room * sizeof *grown);
        if (!grown) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu tuning records", room);
        w->at = grown;
        w->room = room;
    }
    fk_tuning_record *copy = malloc(sizeof *copy);
    if (copy) *copy = *r;
    if (!copy || !tsearch(copy, &w->tree, by_key)) {
        free(copy);
        return fk_fail(err, FK_NO_MEMORY, "no memory for a tuning record");
    }
    w->at[w->count++] = copy;
    return FK_OK;
}

static void free_winners(winners *w) {
    tdestroy(w->tree, free); /* each record is in both */
    free(w->at);
}

static fk_status fold(const fk_tuning_text *text, winners *w, fk_error *err) {
    fk_tuning_record r;
    fk_status status = FK_OK;
    const char *end = text->bytes + text->size;
    for (const char *at = text->bytes, *next; at < end && !status; at = next) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const size_t size = (size_t)((newline ? newline : end) - at);
        next = newline ? newline + 1 : end;
        if (size == 0) continue;
        if (fk_tuning_read(at, size, &r))
            status = add(w, &r, err);
        else
            w->refused++;
    }
    return status;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lines of the records, sorted so that equal records make equal files; `*out` is malloc'ed. */
static fk_status spell(const winners *w, char **out, fk_error *err) {
    char **lines = calloc(w->count ? w->count : 1, sizeof *lines);
    size_t size = 1;
    fk_status status = lines ? FK_OK : fk_fail(err, FK_NO_MEMORY, "no memory for %zu tuning records", w->count);
    for (size_t i = 0; i < w->count && !status; i++) {
        char line[FK_TUNING_LINE_MAX];
        const size_t length = fk_tuning_write(w->at[i], fk_advice_buckets(), line);
        size += length;
        lines[i] = strndup(line, length);
        if (!lines[i]) status = fk_fail(err, FK_NO_MEMORY, "no memory for a tuning record");
    }
    char *text = status ? NULL : malloc(size);
    if (!status && !text) status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu bytes of tuning records", size);
    if (!status) {
        qsort(lines, w->count, sizeof *lines, by_text);
        char *at = text;
        for (size_t i = 0; i < w->count; i++)
            at = stpcpy(at, lines[i]);
        *at = 0;
        *out = text;
    }
    for (size_t i = 0; lines && i < w->count; i++)
        free(lines[i]);
    free(lines);
    return status;
}

/* ---- import ---- */

static fk_status import(const char *dir, const char *path, size_t *taken, size_t *refused, fk_error *err) {
    fk_tuning_text theirs = {NULL, 0}, ours = {NULL, 0};
    winners have = {.at = NULL}, come = {.at = NULL};
    fk_status status = fk_tuning_load(&fk_vfs_posix, path, &theirs, err);
    if (!status) status = fk_tuning_load_dir(&fk_vfs_posix, dir, true, &ours, err);
    if (!status) status = fold(&ours, &have, err);
    if (!status) status = fold(&theirs, &come, err);
    *taken = 0;
    for (size_t i = 0; i < come.count && !status; i++) {
        const fk_tuning_record *new = come.at[i], *old = find(&have, new);
        char line[FK_TUNING_LINE_MAX];
        if (new->rigor == FK_RIGOR_MODEL && !fk_advice_is_fresh(new)) continue; /* would never count */
        if (old && !fk_tuning_replaces(old, new, fk_advice_is_fresh)) continue;
        const size_t size = fk_tuning_write(new, fk_advice_buckets(), line);
        status = fk_tuning_append(&fk_vfs_posix, dir, new->device, line, size, err);
        *taken += !status;
    }
    *refused = come.refused;
    free_winners(&have);
    free_winners(&come);
    free(ours.bytes);
    free(theirs.bytes);
    return status;
}

fk_status fk_tuning_import(const char *dir, const char *path, size_t *taken, size_t *refused) {
    fk_error err;
    size_t num_taken, num_refused;
    if (!path) return fk_refuse(FK_BAD_ARGUMENT, "path is null");
    if (import(dir, path, &num_taken, &num_refused, &err)) return fk_report(&err);
    if (taken) *taken = num_taken;
    if (refused) *refused = num_refused;
    return FK_OK;
}

/* ---- export ---- */

/* What was there stays until all is written; a pipe or a terminal is written to. */
static fk_status write_file(const char *path, const char *text, fk_error *err) {
    struct stat st;
    char *name = NULL;
    const bool whole = stat(path, &st) != 0 || S_ISREG(st.st_mode);
    FILE *file = NULL;
    for (int attempt = 0; whole && !file && attempt < 100; attempt++) { /* of other threads, and of what crashed */
        free(name);
        if (asprintf(&name, "%s.%ld-%d.tmp", path, (long)getpid(), attempt) < 0)
            return fk_fail(err, FK_NO_MEMORY, "no memory for the name of %s", path);
        file = fopen(name, "wxe");
        if (!file && errno != EEXIST) break;
    }
    if (!whole) file = fopen(path, "we");
    bool good = file && fputs(text, file) >= 0 && (!whole || (fflush(file) == 0 && fsync(fileno(file)) == 0));
    if (file && fclose(file) != 0) good = false;
    if (good && whole) good = rename(name, path) == 0;
    const int reason = errno;
    if (!good && file && whole) unlink(name);
    free(name);
    return good ? FK_OK : fk_fail(err, FK_IO, "%s: %s", path, strerror(reason));
}

fk_status fk_tuning_export(const char *dir, const char *path, size_t *written) {
    fk_error err;
    fk_tuning_text ours = {NULL, 0};
    winners have = {.at = NULL};
    char *text = NULL;
    if (!path) return fk_refuse(FK_BAD_ARGUMENT, "path is null");
    fk_status status = fk_tuning_load_dir(&fk_vfs_posix, dir, true, &ours, &err);
    if (!status) status = fold(&ours, &have, &err);
    if (!status) status = spell(&have, &text, &err);
    if (!status) status = write_file(path, text, &err);
    if (!status && written) *written = have.count;
    free(text);
    free_winners(&have);
    free(ours.bytes);
    return status ? fk_report(&err) : FK_OK;
}
