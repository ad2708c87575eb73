/* Files of records, from one directory to another. */
#include "advice.h"
#include "object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/vfs.h"

/* The records that count, one for each problem, bucket, GPU. */
typedef struct winners {
    fk_tuning_record *at;
    size_t count, room, refused;
} winners;

static bool same_key(const fk_tuning_record *a, const fk_tuning_record *b) {
    const fk_bucket x = fk_bucket_of(fk_advice_buckets(), &a->shape), y = fk_bucket_of(fk_advice_buckets(), &b->shape);
    return fk_bucket_equal(&x, &y) && a->num_sms == b->num_sms && strcmp(a->problem, b->problem) == 0 &&
           strcmp(a->device, b->device) == 0;
}

static fk_tuning_record *find(const winners *w, const fk_tuning_record *r) {
    for (size_t i = 0; i < w->count; i++)
        if (same_key(&w->at[i], r)) return &w->at[i];
    return NULL;
}

static fk_status add(winners *w, const fk_tuning_record *r, fk_error *err) {
    fk_tuning_record *old = find(w, r);
    if (old) {
        if (fk_tuning_replaces(old, r, fk_advice_is_fresh)) *old = *r;
        return FK_OK;
    }
    if (w->count == w->room) {
        const size_t room = w->room ? 2 * w->room : 16;
        fk_tuning_record *grown = realloc(w->at, room * sizeof *grown);
        if (!grown) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu tuning records", room);
        w->at = grown;
        w->room = room;
    }
    w->at[w->count++] = *r;
    return FK_OK;
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
        const size_t length = fk_tuning_write(&w->at[i], fk_advice_buckets(), line);
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
    winners have = {NULL, 0, 0, 0}, come = {NULL, 0, 0, 0};
    fk_status status = fk_tuning_load(&fk_vfs_posix, path, &theirs, err);
    if (!status) status = fk_tuning_load_dir(&fk_vfs_posix, dir, &ours, err);
    if (!status) status = fold(&ours, &have, err);
    if (!status) status = fold(&theirs, &come, err);
    *taken = 0;
    for (size_t i = 0; i < come.count && !status; i++) {
        const fk_tuning_record *old = find(&have, &come.at[i]);
        char line[FK_TUNING_LINE_MAX];
        if (old && !fk_tuning_replaces(old, &come.at[i], fk_advice_is_fresh)) continue;
        const size_t size = fk_tuning_write(&come.at[i], fk_advice_buckets(), line);
        status = fk_tuning_append(&fk_vfs_posix, dir, come.at[i].device, line, size, err);
        *taken += !status;
    }
    *refused = come.refused;
    free(have.at);
    free(come.at);
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
    if (whole && asprintf(&name, "%s.%ld.tmp", path, (long)getpid()) < 0)
        return fk_fail(err, FK_NO_MEMORY, "no memory for the name of %s", path);
    FILE *file = fopen(whole ? name : path, "we");
    bool good = file && fputs(text, file) >= 0;
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
    winners have = {NULL, 0, 0, 0};
    char *text = NULL;
    if (!path) return fk_refuse(FK_BAD_ARGUMENT, "path is null");
    fk_status status = fk_tuning_load_dir(&fk_vfs_posix, dir, &ours, &err);
    if (!status) status = fold(&ours, &have, &err);
    if (!status) status = spell(&have, &text, &err);
    if (!status) status = write_file(path, text, &err);
    if (!status && written) *written = have.count;
    free(text);
    free(have.at);
    free(ours.bytes);
    return status ? fk_report(&err) : FK_OK;
}
