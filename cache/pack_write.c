/* Writing a pack. Its bytes follow from its content alone: rows are sorted, nothing holds a time, and a signature of
 * Ed25519 is a function of key and message. The records come twice, for their digests and for their bytes, so that only
 * one is in memory at a time. */
#include "pack_format.h"

#include "sha256.h"
#include "sign.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct writer {
    const char *path;
    const fk_vfs *vfs;
    const fk_pack_content *content;
    size_t *order;  /* row -> part */
    uint8_t *index; /* rows, and the info behind them */
    size_t index_bytes, info_bytes;
    uint8_t header[FK_PACK_HEADER];
    char *temporary;
    int fd;
} writer;

static fk_status no_memory(const writer *w, fk_error *err) {
    return fk_fail(err, FK_NO_MEMORY, "no memory to write the pack %s of %zu kernels", w->path, w->content->count);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b, void *user) {
    const uint8_t *rows = user;
    return fk_pack_compare(rows + *(const size_t *)a * FK_PACK_INDEX, rows + *(const size_t *)b * FK_PACK_INDEX);
}

/* Sorts the rows; two of one name and GPU would make one unreachable. */
static fk_status sort_rows(writer *w, fk_error *err) {
    const size_t count = w->content->count;
    uint8_t *rows = w->vfs->resize(NULL, w->index_bytes + 1);
    if (!rows) return no_memory(w, err);
    memset(rows, 0, w->index_bytes + 1);
    for (size_t i = 0; i < count; ++i) {
        const fk_pack_part *part = &w->content->part[i];
        uint8_t *row = rows + i * FK_PACK_INDEX;
        fk_pack_name(part->target, part->spelling, row);
        snprintf((char *)row + FK_PACK_ROW_GPU, FK_PACK_GPU, "%s", part->gpu);
        fk_pack_store(row + FK_PACK_ROW_DRIVER, 4, part->min_driver);
        w->order[i] = i;
    }
    qsort_r(w->order, count, sizeof *w->order, compare_rows, rows);
    for (size_t i = 0; i < count; ++i)
        memcpy(w->index + i * FK_PACK_INDEX, rows + w->order[i] * FK_PACK_INDEX, FK_PACK_INDEX);
    free(rows);
    for (size_t i = 1; i < count; ++i) {
        const fk_pack_part *part = &w->content->part[w->order[i]];
        if (fk_pack_compare(w->index + (i - 1) * FK_PACK_INDEX, w->index + i * FK_PACK_INDEX) == 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "pack %s: \"%s\" for %s is there twice", w->path, part->spelling,
                           part->gpu);
    }
    return FK_OK;
}

/* ---- records ------------------------------------------------------------------------------------------- */

typedef struct record {
    fk_entry entry;
    char header[FK_ENTRY_HEADER_MAX];
    size_t header_size, text_size;
} record;

static fk_status fetch(const writer *w, size_t row, record *out, fk_error *err) {
    const size_t i = w->order[row];
    const fk_pack_part *part = &w->content->part[i];
    char note[160];
    const fk_status status = w->content->fetch(w->content->user, i, &out->entry, err);
    if (status) return status;
    out->entry.compile_ms = 0;
    out->text_size = out->entry.text ? strlen(out->entry.text) : 0;
    const bool named = !strcmp(out->entry.target, part->target) && !strcmp(out->entry.spelling, part->spelling);
    if (named && fk_entry_header_write(&out->entry, out->header, &out->header_size, (fk_note){note, sizeof note}))
        return FK_OK;
    fk_entry_free(&out->entry);
    return fk_fail(err, FK_BAD_ARGUMENT, "pack %s: the kernel of \"%s\" cannot be written: %s", w->path, part->spelling,
                   named ? note : "name: it is of another problem");
}

/* Fills digests, offsets and sizes. */
static fk_status digest_records(writer *w, uint64_t *end, fk_error *err) {
    uint64_t next = FK_PACK_HEADER + w->index_bytes + w->info_bytes;
    for (size_t i = 0; i < w->content->count; ++i) {
        uint8_t *row = w->index + i * FK_PACK_INDEX;
        record r;
        fk_sha256 sha;
        const fk_status status = fetch(w, i, &r, err);
        if (status) return status;
        const uint64_t bytes = r.header_size + r.text_size + (uint64_t)r.entry.image_bytes;
        fk_sha256_start(&sha);
        fk_sha256_add(&sha, r.header, r.header_size);
        if (r.text_size) fk_sha256_add(&sha, r.entry.text, r.text_size);
        fk_sha256_add(&sha, r.entry.image, (size_t)r.entry.image_bytes);
        fk_sha256_finish(&sha, row + FK_PACK_ROW_DIGEST);
        fk_pack_store(row + FK_PACK_ROW_OFFSET, 8, next);
        fk_pack_store(row + FK_PACK_ROW_BYTES, 8, bytes);
        next += bytes;
        fk_entry_free(&r.entry);
    }
    *end = next;
    return FK_OK;
}

static fk_status write_bytes(const writer *w, const void *bytes, size_t size, fk_error *err) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = w->vfs->write(w->fd, (const uint8_t *)bytes + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fk_fail(err, FK_IO, "pack %s cannot be written: %s", w->path, strerror(errno));
        at += (size_t)n;
    }
    return FK_OK;
}

static fk_status write_records(const writer *w, fk_error *err) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < w->content->count && !status; ++i) {
        record r;
        status = fetch(w, i, &r, err);
        if (status) break;
        status = write_bytes(w, r.header, r.header_size, err);
        if (!status && r.text_size) status = write_bytes(w, r.entry.text, r.text_size, err);
        if (!status) status = write_bytes(w, r.entry.image, (size_t)r.entry.image_bytes, err);
        fk_entry_free(&r.entry);
    }
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static fk_status make_header(writer *w, uint64_t end, fk_error *err) {
    uint8_t message[sizeof FK_PACK_SIGNED + 32];
    uint8_t *h = w->header;
    memcpy(h, FK_PACK_MAGIC, FK_PACK_COUNT);
    fk_pack_store(h + FK_PACK_COUNT, 4, w->content->count);
    fk_pack_store(h + FK_PACK_INFO_BYTES, 4, w->info_bytes);
    fk_pack_store(h + FK_PACK_FILE_BYTES, 8, end);
    fk_pack_root(h, w->index, w->index_bytes + w->info_bytes, h + FK_PACK_ROOT);
    if (!w->content->secret) return FK_OK;
    fk_pack_message(h + FK_PACK_ROOT, message);
    const fk_status status = fk_sign_public(w->content->secret, h + FK_PACK_KEY, err);
    return status ? status : fk_sign(w->content->secret, message, sizeof message, h + FK_PACK_SIGNATURE, err);
}

/* A rename would put a file in the place of a pipe or device. */
static fk_status create(writer *w, fk_error *err) {
    struct stat st;
    const size_t size = strlen(w->path) + 40;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode))
        return fk_fail(err, FK_IO, "pack %s cannot be written: is no regular file", w->path);
    w->temporary = w->vfs->resize(NULL, size);
    if (!w->temporary) return no_memory(w, err);
    for (int attempt = 0; attempt < 100; ++attempt) { /* names left by killed processes are stepped over */
        snprintf(w->temporary, size, "%s.%ld-%d.tmp", w->path, (long)getpid(), attempt);
        w->fd = fk_vfs_open_retry(w->vfs, AT_FDCWD, w->temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (w->fd >= 0 || errno != EEXIST) break;
    }
    return w->fd >= 0 ? FK_OK : fk_fail(err, FK_IO, "pack %s cannot be written: %s", w->path, strerror(errno));
}

static fk_status write_file(writer *w, fk_error *err) {
    fk_status status = create(w, err);
    if (status) return status;
    status = write_bytes(w, w->header, sizeof w->header, err);
    if (!status) status = write_bytes(w, w->index, w->index_bytes + w->info_bytes, err);
    if (!status) status = write_records(w, err);
    int rc = 0;
    while (!status && (rc = w->vfs->fsync(w->fd)) && errno == EINTR) {
    }
    if (w->vfs->close(w->fd) && !status) rc = -1;
    if (!status && !rc) rc = w->vfs->rename(AT_FDCWD, w->temporary, w->path);
    if (!status && rc) status = fk_fail(err, FK_IO, "pack %s cannot be written: %s", w->path, strerror(errno));
    if (status) w->vfs->unlink(AT_FDCWD, w->temporary);
    return status;
}

fk_status fk_pack_write(const char *path, const fk_vfs *vfs, const fk_pack_content *content, fk_error *err) {
    writer w = {.path = path, .vfs = vfs, .content = content, .fd = -1};
    uint64_t end = 0;
    fk_status status = FK_OK;
    w.index_bytes = content->count * FK_PACK_INDEX;
    w.info_bytes = strlen(content->info);
    if (content->count > FK_PACK_MAX_RECORDS || w.info_bytes > FK_PACK_MAX_INFO)
        return fk_fail(err, FK_BAD_ARGUMENT, "pack %s: %zu kernels and %zu bytes of info; limits %d and %d", path,
                       content->count, w.info_bytes, FK_PACK_MAX_RECORDS, FK_PACK_MAX_INFO);
    if (!fk_pack_is_text(content->info, w.info_bytes))
        return fk_fail(err, FK_BAD_ARGUMENT, "pack %s: info has a control character other than line feeds", path);
    w.order = vfs->resize(NULL, (content->count + 1) * sizeof *w.order);
    w.index = vfs->resize(NULL, w.index_bytes + w.info_bytes + 1);
    if (!w.order || !w.index) status = no_memory(&w, err);
    if (!status) memcpy(w.index + w.index_bytes, content->info, w.info_bytes);
    if (!status) status = sort_rows(&w, err);
    if (!status) status = digest_records(&w, &end, err);
    if (!status) status = make_header(&w, end, err);
    if (!status) status = write_file(&w, err);
    free(w.temporary);
    free(w.index);
    free(w.order);
    return status;
}
