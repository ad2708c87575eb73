/* One entry's file. It appears under its name whole, by a link, and is never written to again: readers may hold it open
 * while others publish, replace or remove it. What is read is believed only after its checksum, name and image agree.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "sha256.h"

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

bool fk_file_remove(const fk_store *store, int shard, const char *name, const struct stat *seen) {
    struct stat now;
    return !store->vfs->stat_at(shard, name, &now) && same_file(&now, seen) && !store->vfs->unlink(shard, name);
}

/* Lets `return found(FK_FOUND_X, fk_note_miss(...))` say what and why in one line. */
static fk_found found(fk_found what, bool miss) {
    return (void)miss, what;
}

/* Reads `size` bytes from the start of `fd`. */
static fk_found read_bytes(const fk_vfs *vfs, int fd, uint8_t *bytes, size_t size, fk_note note) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = vfs->read(fd, bytes + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return found(FK_FOUND_FAILED, fk_note_miss(note, "io: read: %s", strerror(errno)));
        if (n == 0)
            return found(FK_FOUND_DAMAGED, fk_note_miss(note, "truncated: it ended at byte %zu of %zu", at, size));
        at += (size_t)n;
    }
    return FK_FOUND_GOOD;
}

/* Checks what the header says against the file's name and size. */
static bool check_header(const fk_entry_header *header, const char *name, int64_t file_bytes, fk_note note) {
    char spelled[FK_ENTRY_NAME_MAX];
    fk_entry_name_join(header->entry.key, header->entry.target, spelled);
    if (strcmp(spelled, name)) return fk_note_miss(note, "name: it holds another kernel, %s", spelled);
    const int64_t need = fk_entry_file_bytes(header);
    if (file_bytes != need)
        return fk_note_miss(note, "%s: %" PRId64 " bytes, its header says %" PRId64,
                            file_bytes < need ? "truncated" : "size", file_bytes, need);
    return true;
}

/* Checks the bytes behind the header and copies them out. */
static fk_found take_body(const fk_store *store, const uint8_t *bytes, const fk_entry_header *header, fk_entry *out,
                          fk_note note) {
    const size_t text_size = (size_t)header->text_bytes, image_size = (size_t)header->entry.image_bytes;
    const uint8_t *text = bytes + header->size, *image = text + text_size;
    fk_sha256 sha;
    uint8_t digest[FK_ENTRY_TRAILER_BYTES];
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, bytes, header->size + text_size + image_size);
    fk_sha256_finish(&sha, digest);
    if (memcmp(digest, image + image_size, sizeof digest))
        return found(FK_FOUND_DAMAGED, fk_note_miss(note, "checksum: SHA-256 differs from the one written"));
    if (!fk_image_check(header->entry.target, image, image_size, note)) return FK_FOUND_DAMAGED;
    char *image_copy = store->vfs->resize(NULL, image_size + 1);
    char *text_copy = text_size ? store->vfs->resize(NULL, text_size + 1) : NULL;
    if (!image_copy || (text_size && !text_copy)) {
        free(image_copy);
        free(text_copy);
        return found(FK_FOUND_FAILED, fk_note_miss(note, "memory: no %zu bytes", image_size + text_size));
    }
    memcpy(image_copy, image, image_size);
    image_copy[image_size] = 0;
    if (text_size) memcpy(text_copy, text, text_size), text_copy[text_size] = 0;
    *out = header->entry;
    out->image = image_copy;
    out->text = text_copy;
    return FK_FOUND_GOOD;
}

static fk_found read_open(const fk_store *store, int fd, const char *name, bool whole, fk_entry *out, struct stat *seen,
                          fk_note note) {
    if (store->vfs->stat_fd(fd, seen))
        return found(FK_FOUND_FAILED, fk_note_miss(note, "io: stat: %s", strerror(errno)));
    if (!S_ISREG(seen->st_mode)) return found(FK_FOUND_REFUSED, fk_note_miss(note, "refused: not a regular file"));
    if (!fk_store_trusts(store, seen, name, note)) return FK_FOUND_REFUSED;
    if (seen->st_size > 2 * FK_ENTRY_MAX_BYTES + FK_ENTRY_HEADER_MAX)
        return found(FK_FOUND_DAMAGED, fk_note_miss(note, "size: %lld bytes", (long long)seen->st_size));
    size_t size = (size_t)seen->st_size;
    if (!whole && size > FK_ENTRY_HEADER_MAX) size = FK_ENTRY_HEADER_MAX;
    uint8_t *bytes = store->vfs->resize(NULL, size + 1);
    if (!bytes) return found(FK_FOUND_FAILED, fk_note_miss(note, "memory: no %zu bytes", size));
    fk_entry_header header;
    fk_found result = read_bytes(store->vfs, fd, bytes, size, note);
    if (result != FK_FOUND_GOOD) goto done;
    if (!fk_entry_header_read((const char *)bytes, size, &header, note) ||
        !check_header(&header, name, seen->st_size, note))
        result = FK_FOUND_DAMAGED;
    else if (whole)
        result = take_body(store, bytes, &header, out, note);
    else
        *out = header.entry;
done:
    free(bytes);
    return result;
}

fk_found fk_file_read(const fk_store *store, int shard, const char *name, bool whole, fk_entry *out, struct stat *seen,
                      fk_note note) {
    /* O_NONBLOCK: a fifo in an entry's place must not hang us. */
    const int fd = fk_vfs_open_retry(store->vfs, shard, name, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return found(FK_FOUND_ABSENT, fk_note_miss(note, "absent"));
    if (fd < 0 && errno == ELOOP && !store->vfs->stat_at(shard, name, seen))
        return found(FK_FOUND_REFUSED, fk_note_miss(note, "refused: a symbolic link"));
    if (fd < 0) return found(FK_FOUND_FAILED, fk_note_miss(note, "io: open: %s", strerror(errno)));
    const fk_found result = read_open(store, fd, name, whole, out, seen, note);
    store->vfs->close(fd);
    return result;
}

bool fk_file_is_temporary(const char *name) {
    return !strncmp(name, "tmp.", 4);
}

static int create_temporary(const fk_store *store, int shard, char name[FK_ENTRY_NAME_MAX]) {
    int fd = -1;
    for (int attempt = 0; attempt < 8; ++attempt) {
        uint64_t random = 0;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
            random = (uint64_t)store->vfs->now() * 8 + (uint64_t)attempt;
        snprintf(name, FK_ENTRY_NAME_MAX, "tmp.%ld.%016" PRIx64, (long)getpid(), random);
        fd = fk_vfs_open_retry(store->vfs, shard, name, O_WRONLY | O_CREAT | O_EXCL, store->shared ? 0666 : 0600);
        if (fd >= 0 || errno != EEXIST) break;
    }
    return fd;
}

static bool write_bytes(const fk_vfs *vfs, int fd, fk_sha256 *sha, const void *bytes, size_t size) {
    if (sha) fk_sha256_add(sha, bytes, size);
    for (size_t at = 0; at < size;) {
        const ssize_t n = vfs->write(fd, (const uint8_t *)bytes + at, size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static bool write_entry(const fk_vfs *vfs, int fd, const fk_entry *entry, const char *header, size_t header_size) {
    fk_sha256 sha;
    uint8_t digest[FK_ENTRY_TRAILER_BYTES];
    fk_sha256_start(&sha);
    if (!write_bytes(vfs, fd, &sha, header, header_size) ||
        (entry->text && !write_bytes(vfs, fd, &sha, entry->text, strlen(entry->text))) ||
        !write_bytes(vfs, fd, &sha, entry->image, (size_t)entry->image_bytes))
        return false;
    fk_sha256_finish(&sha, digest);
    if (!write_bytes(vfs, fd, NULL, digest, sizeof digest)) return false;
    /* Before it gets its name: a crash of the machine must not leave a named file of zeros. */
    int rc;
    do
        rc = vfs->fsync(fd);
    while (rc && errno == EINTR);
    return rc == 0;
}

/* Gives the temporary its name. A link never replaces a file that others may be reading; where there are no hard links,
 * rename does, whole for whole. */
static bool give_name(const fk_vfs *vfs, int shard, const char *temporary, const char *name, fk_note note) {
    if (!vfs->link(shard, temporary, name)) return true;
    int saved = errno;
    struct stat st;
    if (!vfs->stat_at(shard, temporary, &st) && st.st_nlink == 2)
        return true; /* NFS can lose the answer, not the act */
    if (saved == EPERM || saved == EOPNOTSUPP || saved == ENOSYS || saved == EMLINK || saved == EXDEV) {
        if (!vfs->rename(shard, temporary, name)) return true;
        saved = errno;
    }
    if (saved == EEXIST) return fk_note_miss(note, "present: another writer was first");
    return fk_note_miss(note, "io: publish: %s", strerror(saved));
}

bool fk_file_publish(const fk_store *store, int shard, const char *name, const fk_entry *entry, fk_note note) {
    const fk_vfs *vfs = store->vfs;
    char header[FK_ENTRY_HEADER_MAX], temporary[FK_ENTRY_NAME_MAX];
    size_t header_size;
    struct stat st;
    if (!fk_entry_header_write(entry, header, &header_size, note)) return false;
    if (!vfs->stat_at(shard, name, &st)) return fk_note_miss(note, "present");
    const int fd = create_temporary(store, shard, temporary);
    if (fd < 0) return fk_note_miss(note, "io: create: %s", strerror(errno));
    bool good = write_entry(vfs, fd, entry, header, header_size);
    if (!good) fk_note_miss(note, "io: write: %s", strerror(errno));
    if (vfs->close(fd) && good) good = fk_note_miss(note, "io: close: %s", strerror(errno));
    good = good && give_name(vfs, shard, temporary, name, note);
    vfs->unlink(shard, temporary); /* after a rename it is gone already */
    return good;
}
