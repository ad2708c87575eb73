/* Reading a pack. Nothing of the file is believed before it is checked: sizes before memory is asked for, the root's
 * digest before the index is read, the index's order and sums before a record is looked for, and a record's digest
 * before its bytes are parsed. */
#include "pack_format.h"

#include "sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fk_pack_name(const char *target, const char *spelling, uint8_t name[32]) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, target, strlen(target) + 1);
    fk_sha256_add(&sha, spelling, strlen(spelling) + 1);
    fk_sha256_finish(&sha, name);
}

void fk_pack_root(const uint8_t *header, const uint8_t *index, size_t bytes, uint8_t root[32]) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, header, FK_PACK_ROOT);
    fk_sha256_add(&sha, index, bytes);
    fk_sha256_finish(&sha, root);
}

int fk_pack_compare(const uint8_t *a, const uint8_t *b) {
    const int names = memcmp(a, b, FK_PACK_ROW_DIGEST);
    return names ? names : memcmp(a + FK_PACK_ROW_GPU, b + FK_PACK_ROW_GPU, FK_PACK_GPU);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

static bool read_exactly(const fk_pack *pack, void *bytes, size_t size, int64_t offset, fk_note note) {
    for (size_t at = 0; at < size;) {
        const ssize_t n = pack->vfs->read_at(pack->fd, (uint8_t *)bytes + at, size - at, (off_t)offset + (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fk_note_miss(note, "io: read: %s", strerror(errno));
        if (n == 0) return fk_note_miss(note, "truncated: it ends at byte %lld", (long long)offset + (long long)at);
        at += (size_t)n;
    }
    return true;
}

static bool check_header(fk_pack *pack, size_t *info_bytes, fk_note note) {
    const uint8_t *h = pack->header;
    if (memcmp(h, FK_PACK_MAGIC, FK_PACK_COUNT)) return fk_note_miss(note, "header: not a version 1 pack");
    pack->count = (size_t)fk_pack_load(h + FK_PACK_COUNT, 4);
    *info_bytes = (size_t)fk_pack_load(h + FK_PACK_INFO_BYTES, 4);
    const uint64_t bytes = fk_pack_load(h + FK_PACK_FILE_BYTES, 8);
    if (pack->count > FK_PACK_MAX_RECORDS || *info_bytes > FK_PACK_MAX_INFO)
        return fk_note_miss(note, "header: %zu records and %zu bytes of info, limits %d and %d", pack->count,
                            *info_bytes, FK_PACK_MAX_RECORDS, FK_PACK_MAX_INFO);
    if (bytes != (uint64_t)pack->bytes)
        return fk_note_miss(note, "%s: %lld bytes, its header says %llu",
                            bytes > (uint64_t)pack->bytes ? "truncated" : "size", (long long)pack->bytes,
                            (unsigned long long)bytes);
    if (FK_PACK_HEADER + pack->count * FK_PACK_INDEX + *info_bytes > bytes)
        return fk_note_miss(note, "header: index and info do not fit the file");
    return true;
}

static bool gpu_valid(const uint8_t *gpu) {
    const size_t size = strnlen((const char *)gpu, FK_PACK_GPU);
    if (size == 0 || size == FK_PACK_GPU || strspn((const char *)gpu, "abcdefghijklmnopqrstuvwxyz0123456789_") != size)
        return false;
    for (size_t i = size; i < FK_PACK_GPU; ++i)
        if (gpu[i]) return false;
    return true;
}

bool fk_pack_is_text(const char *info, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
        const unsigned char c = (unsigned char)info[i];
        if ((c < 0x20 && c != '\n') || c == 0x7f) return false;
    }
    return true;
}

/* Rows in order, and records one behind another from the info's end to the file's: so that none can lie outside, nor
 * over another. */
static bool check_index(const fk_pack *pack, size_t info_bytes, fk_note note) {
    uint64_t next = FK_PACK_HEADER + pack->count * FK_PACK_INDEX + info_bytes;
    for (size_t i = 0; i < pack->count; ++i) {
        const uint8_t *row = pack->index + i * FK_PACK_INDEX;
        const uint64_t bytes = fk_pack_load(row + FK_PACK_ROW_BYTES, 8);
        if (i && fk_pack_compare(row - FK_PACK_INDEX, row) >= 0) return fk_note_miss(note, "index: not sorted");
        if (!gpu_valid(row + FK_PACK_ROW_GPU)) return fk_note_miss(note, "index: row %zu names no GPU", i);
        if (fk_pack_load(row + FK_PACK_ROW_DRIVER + 4, 4)) return fk_note_miss(note, "index: row %zu is not padded", i);
        if (fk_pack_load(row + FK_PACK_ROW_OFFSET, 8) != next || bytes < 1 || bytes > (uint64_t)pack->bytes - next)
            return fk_note_miss(note, "index: record %zu lies outside the file, or over another", i);
        next += bytes;
    }
    if (next != (uint64_t)pack->bytes) return fk_note_miss(note, "index: bytes behind the last record");
    return fk_pack_is_text(pack->info, info_bytes) || fk_note_miss(note, "header: the info is no text");
}

static bool read_all(fk_pack *pack, fk_note note) {
    size_t info_bytes = 0;
    uint8_t root[32];
    if (pack->vfs->stat_fd(pack->fd, &pack->st)) return fk_note_miss(note, "io: stat: %s", strerror(errno));
    if (!S_ISREG(pack->st.st_mode)) return fk_note_miss(note, "refused: not a regular file");
    pack->bytes = pack->st.st_size;
    if (pack->bytes < FK_PACK_HEADER) return fk_note_miss(note, "truncated: %lld bytes", (long long)pack->bytes);
    if (!read_exactly(pack, pack->header, FK_PACK_HEADER, 0, note) || !check_header(pack, &info_bytes, note))
        return false;
    const size_t index_bytes = pack->count * FK_PACK_INDEX;
    pack->index = pack->vfs->resize(NULL, index_bytes + info_bytes + 1);
    if (!pack->index) return fk_note_miss(note, "memory: no %zu bytes", index_bytes + info_bytes);
    pack->info = (const char *)pack->index + index_bytes;
    pack->index[index_bytes + info_bytes] = 0;
    if (!read_exactly(pack, pack->index, index_bytes + info_bytes, FK_PACK_HEADER, note)) return false;
    fk_pack_root(pack->header, pack->index, index_bytes + info_bytes, root);
    if (memcmp(root, pack->header + FK_PACK_ROOT, sizeof root))
        return fk_note_miss(note, "checksum: SHA-256 of header, index and info differs from the one written");
    return check_index(pack, info_bytes, note);
}

fk_status fk_pack_open_with(const char *path, const fk_vfs *vfs, fk_pack **out, fk_error *err) {
    char text[256] = "";
    const size_t size = strlen(path) + 1;
    fk_pack *pack = vfs->resize(NULL, sizeof *pack + size);
    if (!pack) return fk_fail(err, FK_NO_MEMORY, "no memory to open the pack %s", path);
    memset(pack, 0, sizeof *pack);
    memcpy(pack->path, path, size);
    pack->vfs = vfs;
    /* O_NONBLOCK: a fifo in a pack's place must not hang us. */
    pack->fd = fk_vfs_open_retry(vfs, AT_FDCWD, path, O_RDONLY | O_NONBLOCK | FK_VFS_FOLLOW, 0);
    const bool good = pack->fd >= 0 ? read_all(pack, (fk_note){text, sizeof text})
                                    : fk_note_miss((fk_note){text, sizeof text}, "%s", strerror(errno));
    if (good) {
        *out = pack;
        return FK_OK;
    }
    fk_pack_close(pack);
    return fk_fail(err, strncmp(text, "memory", 6) ? FK_IO : FK_NO_MEMORY, "pack %s: %s", path, text);
}

fk_status fk_pack_open(const char *path, fk_pack **out, fk_error *err) {
    return fk_pack_open_with(path, &fk_vfs_posix, out, err);
}

void fk_pack_close(fk_pack *pack) {
    if (!pack) return;
    if (pack->fd >= 0) pack->vfs->close(pack->fd);
    free(pack->index);
    free(pack);
}

/* ---- looking ------------------------------------------------------------------------------------------- */

const char *fk_pack_path(const fk_pack *pack) {
    return pack->path;
}
size_t fk_pack_count(const fk_pack *pack) {
    return pack->count;
}
int64_t fk_pack_bytes(const fk_pack *pack) {
    return pack->bytes;
}
const char *fk_pack_text(const fk_pack *pack) {
    return pack->info;
}

void fk_pack_info_line(const fk_pack *pack, const char *name, char *out, size_t size) {
    const size_t length = strlen(name);
    const char *line = pack->info;
    if (size) out[0] = 0;
    while (line && *line) {
        if (strncmp(line, name, length) == 0 && strncmp(line + length, ": ", 2) == 0) {
            line += length + 2;
            snprintf(out, size, "%.*s", (int)strcspn(line, "\n"), line);
            return;
        }
        line = strchr(line, '\n');
        if (line) ++line;
    }
}

fk_pack_item fk_pack_item_at(const fk_pack *pack, size_t i) {
    const uint8_t *row = pack->index + i * FK_PACK_INDEX;
    fk_pack_item item = {.min_driver = (uint32_t)fk_pack_load(row + FK_PACK_ROW_DRIVER, 4),
                         .bytes = (int64_t)fk_pack_load(row + FK_PACK_ROW_BYTES, 8)};
    memcpy(item.gpu, row + FK_PACK_ROW_GPU, sizeof item.gpu);
    memcpy(item.digest, row + FK_PACK_ROW_DIGEST, sizeof item.digest);
    return item;
}

size_t fk_pack_find(const fk_pack *pack, const char *target, const char *spelling, size_t *first) {
    uint8_t name[32];
    size_t low = 0, high = pack->count, count = 0;
    fk_pack_name(target, spelling, name);
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (memcmp(pack->index + middle * FK_PACK_INDEX, name, sizeof name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    while (low + count < pack->count && !memcmp(pack->index + (low + count) * FK_PACK_INDEX, name, sizeof name))
        ++count;
    *first = low;
    return count;
}

/* Copies [from, from + size) with a zero behind it. */
static char *copy_text(const fk_vfs *vfs, const uint8_t *from, size_t size) {
    char *copy = vfs->resize(NULL, size + 1);
    if (copy) memcpy(copy, from, size), copy[size] = 0;
    return copy;
}

/* The bytes of a record are those of an entry without its trailer; the index holds the digest. */
static bool parse_record(const fk_pack *pack, const uint8_t *row, const uint8_t *bytes, size_t size, fk_entry *out,
                         fk_note note) {
    fk_sha256 sha;
    fk_entry_header header;
    uint8_t digest[32];
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, bytes, size);
    fk_sha256_finish(&sha, digest);
    if (memcmp(digest, row + FK_PACK_ROW_DIGEST, sizeof digest))
        return fk_note_miss(note, "checksum: SHA-256 differs from the one in the index");
    if (!fk_entry_header_read((const char *)bytes, size, &header, note)) return false;
    if (fk_entry_file_bytes(&header) != (int64_t)size + FK_ENTRY_TRAILER_BYTES)
        return fk_note_miss(note, "size: the record has %zu bytes, its header says other", size);
    fk_pack_name(header.entry.target, header.entry.spelling, digest);
    if (memcmp(digest, row, sizeof digest)) return fk_note_miss(note, "name: the record is of another problem");
    const size_t text_size = (size_t)header.text_bytes, image_size = (size_t)header.entry.image_bytes;
    const uint8_t *text = bytes + header.size, *image = text + text_size;
    if (!fk_image_check(header.entry.target, image, image_size, note)) return false;
    header.entry.text = copy_text(pack->vfs, text, text_size);
    header.entry.image = copy_text(pack->vfs, image, image_size);
    if (!header.entry.text || !header.entry.image) {
        fk_entry_free(&header.entry);
        return fk_note_miss(note, "memory: no %zu bytes", size);
    }
    *out = header.entry;
    return true;
}

bool fk_pack_read(const fk_pack *pack, size_t i, fk_entry *out, char *note_text, size_t note_size) {
    const fk_note note = {note_text, note_size};
    const uint8_t *row = pack->index + i * FK_PACK_INDEX;
    const uint64_t size = fk_pack_load(row + FK_PACK_ROW_BYTES, 8), offset = fk_pack_load(row + FK_PACK_ROW_OFFSET, 8);
    if (size > 2 * FK_ENTRY_MAX_BYTES + FK_ENTRY_HEADER_MAX)
        return fk_note_miss(note, "size: the record has %llu bytes", (unsigned long long)size);
    uint8_t *bytes = pack->vfs->resize(NULL, (size_t)size);
    if (!bytes) return fk_note_miss(note, "memory: no %llu bytes", (unsigned long long)size);
    const bool good = read_exactly(pack, bytes, (size_t)size, (int64_t)offset, note) &&
                      parse_record(pack, row, bytes, (size_t)size, out, note);
    free(bytes);
    if (good) fk_note_miss(note, "hit");
    return good;
}
