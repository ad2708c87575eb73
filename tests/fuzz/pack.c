/* A pack of any bytes: as they are, and with every digest made to fit, as whoever forges one would. */
#include "fuzz.h"

#include "cache/pack_format.h"
#include "cache/sha256.h"

#include <errno.h>

static const uint8_t *file;
static size_t file_size;

static int open_file(int dir, const char *path, int flags, mode_t mode) {
    return (void)dir, (void)path, (void)flags, (void)mode, 1000;
}
static int close_file(int fd) {
    return (void)fd, 0;
}
static int stat_file(int fd, struct stat *out) {
    memset(out, 0, sizeof *out);
    out->st_mode = S_IFREG | 0600;
    out->st_size = (off_t)file_size;
    return (void)fd, 0;
}
static ssize_t read_file(int fd, void *bytes, size_t size, off_t offset) {
    (void)fd;
    if (offset < 0 || (size_t)offset >= file_size) return 0;
    if (size > file_size - (size_t)offset) size = file_size - (size_t)offset;
    memcpy(bytes, file + offset, size);
    return (ssize_t)size;
}

static void use(const uint8_t *data, size_t size) {
    fk_vfs vfs = fk_vfs_posix;
    fk_pack *pack;
    fk_error err;
    vfs.open = open_file, vfs.close = close_file, vfs.stat_fd = stat_file, vfs.read_at = read_file;
    file = data;
    file_size = size;
    if (fk_pack_open_with("fuzz", &vfs, &pack, &err)) {
        MUST(err.text[0]);
        return;
    }
    char note[160], line[100];
    uint8_t key[32];
    fk_pack_info_line(pack, "generator", line, sizeof line);
    fk_pack_signer(pack, key);
    for (size_t i = 0; i < fk_pack_count(pack); ++i) {
        fk_entry entry;
        size_t first;
        if (!fk_pack_read(pack, i, &entry, note, sizeof note)) continue;
        const size_t count = fk_pack_find(pack, entry.target, entry.spelling, &first);
        MUST(first <= i && i < first + count);
        MUST(((char *)entry.image)[entry.image_bytes] == 0);
        fk_entry_free(&entry);
    }
    fk_pack_close(pack);
}

/* Names, digests and root that fit. */
static void forge(uint8_t *bytes, size_t size) {
    if (size < FK_PACK_HEADER) return;
    const size_t count = (size_t)fk_pack_load(bytes + FK_PACK_COUNT, 4);
    const size_t info = (size_t)fk_pack_load(bytes + FK_PACK_INFO_BYTES, 4);
    if (count > size / FK_PACK_INDEX || info > size || FK_PACK_HEADER + count * FK_PACK_INDEX + info > size) return;
    fk_pack_store(bytes + FK_PACK_FILE_BYTES, 8, size);
    for (size_t i = 0; i < count; ++i) {
        uint8_t *row = bytes + FK_PACK_HEADER + i * FK_PACK_INDEX;
        const uint64_t at = fk_pack_load(row + FK_PACK_ROW_OFFSET, 8),
                       length = fk_pack_load(row + FK_PACK_ROW_BYTES, 8);
        fk_sha256 sha;
        fk_entry_header header;
        if (at > size || length > size - at) continue;
        fk_sha256_start(&sha);
        fk_sha256_add(&sha, bytes + at, length);
        fk_sha256_finish(&sha, row + FK_PACK_ROW_DIGEST);
        if (count == 1 && fk_entry_header_read((const char *)bytes + at, length, &header, (fk_note){NULL, 0}))
            fk_pack_name(header.entry.target, header.entry.spelling, row);
    }
    fk_pack_root(bytes, bytes + FK_PACK_HEADER, count * FK_PACK_INDEX + info, bytes + FK_PACK_ROOT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    use(data, size);
    uint8_t *copy = malloc(size + 1);
    MUST(copy);
    memcpy(copy, data, size);
    forge(copy, size);
    use(copy, size);
    free(copy);
    return 0;
}
