/* A pack: many kernels in one read-only file, found by what they compute, so that neither Lua nor NVRTC is needed
 * (cache/FORMAT.md). A pack is read, not mapped: a file that is cut short under a map is a signal, and here it is a
 * miss; and what was checked cannot change afterwards.
 *
 * Its parts are checked before they are used: header and index when it is opened, a record when it is read. Any thread
 * may read an open pack. It keeps its file open, so that it stays itself when another is renamed to its path. */
#ifndef FK_CACHE_PACK_H
#define FK_CACHE_PACK_H

#include "store.h"

typedef struct fk_pack fk_pack;

enum {
    FK_PACK_MAX_RECORDS = 65536,
    FK_PACK_MAX_INFO = 1 << 20,
    FK_PACK_GPU = 16 /* bytes of a GPU's key, with its zero */
};

/** Opens and checks header, index and info. @return FK_IO: names the file and what is wrong; FK_NO_MEMORY */
fk_status fk_pack_open(const char *path, fk_pack **out, fk_error *err);
fk_status fk_pack_open_with(const char *path, const struct fk_vfs *vfs, fk_pack **out, fk_error *err);
void fk_pack_close(fk_pack *pack);

const char *fk_pack_path(const fk_pack *pack);
size_t fk_pack_count(const fk_pack *pack);
int64_t fk_pack_bytes(const fk_pack *pack);
/** Lines of text, "name: value", that describe all of it; the cache does not look at them. */
const char *fk_pack_text(const fk_pack *pack);
/** Of the line `name` of the info; "" if there is none. `out` is cut to `size`. */
void fk_pack_info_line(const fk_pack *pack, const char *name, char *out, size_t size);

typedef struct fk_pack_item {
    char gpu[FK_PACK_GPU];
    uint32_t min_driver; /* CUDA's number, 13000: what the driver must support; 0: none is needed */
    int64_t bytes;       /* of the record */
    uint8_t digest[32];  /* its SHA-256 */
} fk_pack_item;
fk_pack_item fk_pack_item_at(const fk_pack *pack, size_t i);

/** The records of `target` and `spelling`, one for each GPU: from *first on. @return how many */
size_t fk_pack_find(const fk_pack *pack, const char *target, const char *spelling, size_t *first);
/** Reads and checks record i. text: what its launcher needs to know. False: `note` says why, in the words of FORMAT.md.
 */
bool fk_pack_read(const fk_pack *pack, size_t i, fk_entry *out, char *note, size_t note_size);

/* ---- trust --------------------------------------------------------------------------------------------- */

/** 0: not signed; else the signer's public key, whose signature has not been looked at. */
bool fk_pack_signer(const fk_pack *pack, uint8_t key[32]);
/** Whether the signature is right. @return FK_CHECK_FAILED: it is not, or there is none; FK_UNSUPPORTED: this library
 *  cannot tell */
fk_status fk_pack_check_signature(const fk_pack *pack, fk_error *err);
/** Whether `keys` are what fk_pack_check_trust takes. @return FK_BAD_ARGUMENT */
fk_status fk_pack_check_keys(const char *keys, fk_error *err);
/** Whether its kernels may run: `keys` (null or "": no key is asked for) are public keys in hex, separated by commas,
 *  one of which must have signed it; without keys, it must belong to the user or root, and nobody else may write to it,
 *  unless $FLASHKILN_CACHE_SHARED=1. @return FK_CHECK_FAILED; FK_UNSUPPORTED; FK_BAD_ARGUMENT: `keys` */
fk_status fk_pack_check_trust(const fk_pack *pack, const char *keys, fk_error *err);

/* ---- writing ------------------------------------------------------------------------------------------- */

typedef struct fk_pack_part {
    const char *target, *spelling;
    char gpu[FK_PACK_GPU];
    uint32_t min_driver;
} fk_pack_part;

typedef struct fk_pack_content {
    const char *info;
    const fk_pack_part *part; /* in any order */
    size_t count;
    /* Gives part i's entry, which the writer frees; it is asked for twice. compile_ms is not written: equal kernels
     * make equal bytes. */
    fk_status (*fetch)(void *user, size_t i, fk_entry *out, fk_error *err);
    void *user;
    const uint8_t *secret; /* 32 bytes, to sign with; or null */
} fk_pack_content;
/** Writes a temporary beside `path` and renames it. @return FK_IO; FK_BAD_ARGUMENT: what cannot be written; what fetch
 *  and fk_sign return */
fk_status fk_pack_write(const char *path, const struct fk_vfs *vfs, const fk_pack_content *content, fk_error *err);

/** Writes the records of `count` packs to one; where some hold the same, those of the first. Lines of info that begin
 * with one of `joined` (ended by null) are united, all others must be equal. @return as fk_pack_write */
fk_status fk_pack_join(const char *path, fk_pack *const *packs, size_t count, const char *const *joined,
                       const uint8_t *secret, fk_error *err);

#endif
