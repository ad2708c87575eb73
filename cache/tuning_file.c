/* Records on disk: DIR/tune-<gpu>.jsonl, one file for each GPU. Writers append whole lines in one write; a line that a
 * crash tore costs itself alone, since every append begins on a line of its own. */
#include "internal.h"
#include "tuning.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 64 << 20, NAME_MAX_BYTES = 64 }; /* a hundred thousand records */

static bool is_record_file(const char *name) {
    const size_t size = strlen(name);
    return size > 11 && size < NAME_MAX_BYTES && strncmp(name, "tune-", 5) == 0 &&
           strcmp(name + size - 6, ".jsonl") == 0;
}

/* "NVIDIA H200" -> "tune-nvidia-h200.jsonl"; a name without a letter or digit -> "tune-unnamed.jsonl" */
static void file_name(const char *device, char out[NAME_MAX_BYTES]) {
    size_t used = (size_t)snprintf(out, NAME_MAX_BYTES, "tune");
    bool gap = true;
    for (; *device && used + 8 < NAME_MAX_BYTES; device++) {
        const unsigned char c = (unsigned char)*device;
        if (!isalnum(c)) {
            gap = true;
            continue;
        }
        if (gap) out[used++] = '-';
        gap = false;
        out[used++] = (char)tolower(c);
    }
    snprintf(out + used, NAME_MAX_BYTES - used, "%s.jsonl", used == 4 ? "-unnamed" : "");
}

/* Adds all of `fd` to `out`, which it leaves as it was where that fails. */
static fk_status read_all(const fk_vfs *vfs, int fd, const char *what, fk_tuning_text *out, fk_error *err) {
    size_t used = out->size;
    for (;;) {
        enum { CHUNK = 1 << 16 };
        char *grown = vfs->resize(out->bytes, used + CHUNK);
        if (!grown) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu bytes of tuning records", used + CHUNK);
        out->bytes = grown;
        ssize_t n;
        do
            n = vfs->read(fd, grown + used, CHUNK - 1);
        while (n < 0 && errno == EINTR);
        if (n < 0) return fk_fail(err, FK_IO, "%s: %s", what, strerror(errno));
        if (n == 0) break;
        used += (size_t)n;
        if (used - out->size > TEXT_MAX)
            return fk_fail(err, FK_IO, "%s: more than %d bytes of records", what, TEXT_MAX);
    }
    if (used > out->size && out->bytes[used - 1] != '\n') out->bytes[used++] = '\n'; /* torn; others may follow */
    out->size = used;
    return FK_OK;
}

fk_status fk_tuning_load(const fk_vfs *vfs, const char *path, fk_tuning_text *out, fk_error *err) {
    *out = (fk_tuning_text){NULL, 0};
    const int fd = fk_vfs_open_retry(vfs, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | FK_VFS_FOLLOW, 0);
    if (fd < 0) return fk_fail(err, FK_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    if (vfs->stat_fd(fd, &st) || !S_ISREG(st.st_mode)) {
        vfs->close(fd);
        return fk_fail(err, FK_IO, "%s: must be a file of records, not a pipe or a directory", path);
    }
    const fk_status status = read_all(vfs, fd, path, out, err);
    vfs->close(fd);
    if (status == FK_OK) return FK_OK;
    free(out->bytes);
    *out = (fk_tuning_text){NULL, 0};
    return status;
}

static fk_status read_file(const fk_store *store, int dir, const char *name, fk_tuning_text *out, fk_error *err) {
    const fk_vfs *vfs = store->vfs;
    struct stat st;
    char note[160] = "";
    const int fd = fk_vfs_open_retry(vfs, dir, name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0) return fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, strerror(errno));
    fk_status status;
    if (vfs->stat_fd(fd, &st) || !S_ISREG(st.st_mode))
        status = fk_fail(err, FK_IO, "%s/%s: not a regular file", store->dir, name);
    else if (!fk_store_trusts(store, &st, name, (fk_note){note, sizeof note}))
        status = fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, note);
    else
        status = read_all(vfs, fd, name, out, err);
    vfs->close(fd);
    return status;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

typedef char record_file[NAME_MAX_BYTES];

static fk_status list_files(const fk_vfs *vfs, DIR *list, record_file **names, size_t *count, fk_error *err) {
    size_t room = 0;
    for (;;) {
        errno = 0;
        const struct dirent *d = vfs->list_next(list);
        if (!d) return errno ? fk_fail(err, FK_IO, "cannot list tuning records: %s", strerror(errno)) : FK_OK;
        if (!is_record_file(d->d_name)) continue;
        if (*count == room) {
            room = room ? 2 * room : 16;
            record_file *grown = vfs->resize(*names, room * sizeof *grown);
            if (!grown) return fk_fail(err, FK_NO_MEMORY, "no memory to list tuning records");
            *names = grown;
        }
        strcpy((*names)[(*count)++], d->d_name);
    }
}

/* In the order of their names, so that equal directories give equal advice. */
static fk_status read_files(const fk_store *store, int dir, bool all, fk_tuning_text *out, fk_error *err) {
    record_file *names = NULL;
    size_t count = 0;
    DIR *list = store->vfs->list_open(dir);
    if (!list) {
        const int reason = errno;
        store->vfs->close(dir);
        if (reason == ENOMEM) return fk_fail(err, FK_NO_MEMORY, "no memory to list tuning records");
        return fk_fail(err, FK_IO, "%s: %s", store->dir, strerror(reason));
    }
    fk_status status = list_files(store->vfs, list, &names, &count, err);
    if (count) qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count && status == FK_OK; i++) {
        status = read_file(store, dirfd(list), names[i], out, err);
        if (status == FK_IO && !all) status = FK_OK; /* what cannot be read is no advice */
    }
    free(names);
    store->vfs->list_close(list);
    return status;
}

fk_status fk_tuning_load_dir(const fk_vfs *vfs, const char *dir, bool all, fk_tuning_text *out, fk_error *err) {
    fk_store *store;
    char note[512] = "";
    *out = (fk_tuning_text){NULL, 0};
    fk_status status = fk_store_open_with(dir, FK_CACHE_READ_ONLY, vfs, &store, err);
    if (status != FK_OK) return status;
    const int fd = store->reason[0] ? -1 : fk_store_open_dir(store, false, (fk_note){note, sizeof note});
    if (fd >= 0)
        status = read_files(store, fd, all, out, err);
    else if (store->reason[0] || errno != ENOENT)
        status = fk_fail(err, FK_IO, "tuning records: %s", store->reason[0] ? store->reason : note);
    if (status == FK_IO && !all) status = FK_OK;
    fk_store_close(store);
    if (status == FK_OK) return FK_OK;
    free(out->bytes);
    *out = (fk_tuning_text){NULL, 0};
    return status;
}

/* No lines: only whether they could be. */
static fk_status append(const fk_store *store, int dir, const char *name, const char *lines, size_t size,
                        fk_error *err) {
    const fk_vfs *vfs = store->vfs;
    struct stat st;
    char note[160] = "";
    const int flags = O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK;
    const int fd = fk_vfs_open_retry(vfs, dir, name, flags, store->shared ? 0666 : 0600);
    if (fd < 0) return fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, strerror(errno));
    fk_status status = FK_OK;
    if (vfs->stat_fd(fd, &st) || !S_ISREG(st.st_mode))
        status = fk_fail(err, FK_IO, "%s/%s: not a regular file", store->dir, name);
    else if (!fk_store_trusts(store, &st, name, (fk_note){note, sizeof note}))
        status = fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, note);
    else if ((uint64_t)st.st_size + size > TEXT_MAX)
        status = fk_fail(err, FK_IO, "%s/%s: more than %d bytes of records", store->dir, name, TEXT_MAX);
    for (size_t at = 0; at < size && status == FK_OK;) {
        const ssize_t n = vfs->write(fd, lines + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) status = fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, strerror(n ? errno : ENOSPC));
        at += n > 0 ? (size_t)n : 0;
    }
    if (vfs->close(fd) && status == FK_OK) status = fk_fail(err, FK_IO, "%s/%s: %s", store->dir, name, strerror(errno));
    return status;
}

fk_status fk_tuning_append(const fk_vfs *vfs, const char *dir, const char *device, const char *lines, size_t size,
                           fk_error *err) {
    fk_store *store;
    char note[512] = "", name[NAME_MAX_BYTES];
    fk_status status = fk_store_open_with(dir, FK_CACHE_NORMAL, vfs, &store, err);
    if (status != FK_OK) return status;
    char *text = vfs->resize(NULL, size + 1);
    const int fd = store->reason[0] ? -1 : fk_store_open_dir(store, true, (fk_note){note, sizeof note});
    file_name(device, name);
    if (!text) {
        status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu bytes of tuning records", size);
    } else if (fd < 0) {
        status = fk_fail(err, FK_IO, "tuning records: %s", store->reason[0] ? store->reason : note);
    } else {
        text[0] = '\n'; /* what a crash left of the line before ends here */
        if (size) memcpy(text + 1, lines, size);
        status = append(store, fd, name, text, size ? size + 1 : 0, err);
    }
    if (fd >= 0) vfs->close(fd);
    free(text);
    fk_store_close(store);
    return status;
}
