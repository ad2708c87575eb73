/* The bytes of a pack (FORMAT.md), shared by who reads and who writes them. All numbers are little-endian. */
#ifndef FK_CACHE_PACK_FORMAT_H
#define FK_CACHE_PACK_FORMAT_H

#include "internal.h"
#include "pack.h"

enum {
    FK_PACK_HEADER = 152, /* magic 8, count 4, info_bytes 4, file_bytes 8, root 32, key 32, signature 64 */
    FK_PACK_COUNT = 8,    /* offsets of the header's fields */
    FK_PACK_INFO_BYTES = 12,
    FK_PACK_FILE_BYTES = 16,
    FK_PACK_ROOT = 24,
    FK_PACK_KEY = 56,
    FK_PACK_SIGNATURE = 88,
    FK_PACK_INDEX = 104, /* a row: name 32, digest 32, gpu 16, offset 8, bytes 8, min_driver 4, zero 4 */
    FK_PACK_ROW_DIGEST = 32,
    FK_PACK_ROW_GPU = 64,
    FK_PACK_ROW_OFFSET = 80,
    FK_PACK_ROW_BYTES = 88,
    FK_PACK_ROW_DRIVER = 96
};
#define FK_PACK_MAGIC "FKPACK1\n"
#define FK_PACK_SIGNED "flashkiln pack 1" /* stands before the root in what is signed, with its zero */

struct fk_pack {
    const fk_vfs *vfs;
    int fd;
    struct stat st;
    size_t count;
    int64_t bytes;
    uint8_t header[FK_PACK_HEADER];
    uint8_t *index; /* and info behind it, with a zero */
    const char *info;
    char path[];
};

static inline uint64_t fk_pack_load(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}
static inline void fk_pack_store(uint8_t *at, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; ++i)
        at[i] = (uint8_t)(value >> (8 * i));
}

/** SHA-256 of target and spelling, each with its zero: what the index is sorted by. */
void fk_pack_name(const char *target, const char *spelling, uint8_t name[32]);
/** SHA-256 of the header up to its root, of index and of info: with the rows' digests, of every byte. */
void fk_pack_root(const uint8_t *header, const uint8_t *index, size_t index_and_info_bytes, uint8_t root[32]);
/** Rows sorted by name, then GPU. */
int fk_pack_compare(const uint8_t *a, const uint8_t *b);
/** What is signed: FK_PACK_SIGNED with its zero, and the root. */
void fk_pack_message(const uint8_t root[32], uint8_t message[sizeof FK_PACK_SIGNED + 32]);

/** Whether info is text: lines without control characters. */
bool fk_pack_is_text(const char *info, size_t bytes);

#endif
