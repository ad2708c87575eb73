/* The store: one self-describing file per compiled kernel, DIR/v2/ab/<key>.<target> (cache/FORMAT.md).
 *
 * What it keeps: a get returns exactly the bytes that some put was given, or it is a miss with a named reason. No fault
 * of the disk, another process or another user is an error here, and none can yield another image.
 *
 * A note is "NAME" or "NAME: detail"; the names are listed in cache/FORMAT.md. All functions may be called from any
 * thread, and forked processes may share a store. A child that is forked while a thread holds a lock (compiles) holds
 * it, too, until it ends or calls exec: whoever asks for that key meanwhile waits its 60 s, then compiles for himself.
 */
#ifndef FK_CACHE_STORE_H
#define FK_CACHE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "flashkiln.h"
#include "gen/error.h"

typedef struct fk_store fk_store;
struct fk_vfs;

typedef struct fk_entry {
    char key[65]; /* 64 lower-case hex digits */
    char spelling[FK_MAX_SPELLING];
    char target[16]; /* "sm_80", "sm_90a": a cubin; "compute_80": PTX; "emu": a shared object of this host */
    char entry[64];  /* the kernel's symbol */
    char compiler[96];
    int32_t registers, spill_bytes, serialized_wgmma, smem_static, smem_dynamic, threads;
    double compile_ms; /* kept to the microsecond */
    int64_t image_bytes;
    void *image; /* malloc'ed; a get puts a zero byte behind it, so that PTX is a C string */
    char *text;  /* malloc'ed CUDA source; null if none was stored */
} fk_entry;

/** Opens the store of `dir`; null means $FLASHKILN_CACHE_DIR, else $XDG_CACHE_HOME/flashkiln, else
 * $HOME/.cache/flashkiln. A directory that cannot be used gives a store that only misses; fk_store_reason says why.
 * Nothing is created before the first put or lock.
 *  @param mode  fk_cache_mode. READ_ONLY and NO_JIT never write; OFF touches nothing
 *  @return FK_BAD_ARGUMENT (mode), FK_NO_MEMORY */
fk_status fk_store_open(const char *dir, int mode, fk_store **out, fk_error *err);
/** The same on other system calls: tests inject faults here. `vfs` must outlive the store. */
fk_status fk_store_open_with(const char *dir, int mode, const struct fk_vfs *vfs, fk_store **out, fk_error *err);
void fk_store_close(fk_store *store);
/** Lets it grow without a limit: a folder of one's own, that goes when the work is done. */
void fk_store_keep_all(fk_store *store);
/** Makes its directory now, and not with the first entry. @return FK_IO: it cannot, or what is there is not trusted */
fk_status fk_store_make(fk_store *store, fk_error *err);
/** Removes all that a store made, and its directory, if nothing else is in it. */
void fk_store_destroy(fk_store *store);

/** Why this store always misses, as a note; "" if it works. */
const char *fk_store_reason(const fk_store *store);
/** The directory, without "/v2"; "" if none is known. */
const char *fk_store_dir(const fk_store *store);
/** The entry's file, whether or not it exists; "" if the store is disabled or `size` is too small. */
void fk_store_entry_path(const fk_store *store, const char key[65], const char *target, char *out, size_t size);

/** Reads and checks one entry. `note` becomes "hit", or the reason of the miss; `out` is written on a hit only.
 *  A damaged entry is removed in mode NORMAL. */
bool fk_store_get(fk_store *store, const char key[65], const char *target, fk_entry *out, char *note, size_t note_size);
/** Publishes one entry; the first writer of a key wins. `note` becomes "stored", or says why not; false is no error. */
bool fk_store_put(fk_store *store, const fk_entry *entry, char *note, size_t note_size);
/** Removes an entry that its device refuses, so that a put can replace it; in mode NORMAL only. */
void fk_store_drop(fk_store *store, const char key[65], const char *target);
/** Frees image and text, and makes them null. */
void fk_entry_free(fk_entry *entry);

/** Waits until no other process or thread holds `key`, 60 s at most, then goes on: it only saves duplicate compiles.
 *  Look again with fk_store_get once it returns. Every lock needs its unlock, of the same key. */
void fk_store_lock(fk_store *store, const char key[65]);
void fk_store_unlock(fk_store *store, const char key[65]);
/** Around a fork: a child has no thread that could give back what another thread of the parent's holds. */
void fk_store_hold(fk_store *store);
void fk_store_release(fk_store *store);

/** All entries, newest first; `whole`: also checksum and image. `*entries` is malloc'ed. @return FK_IO, FK_NO_MEMORY */
fk_status fk_store_list(fk_store *store, bool whole, fk_cache_entry **entries, size_t *count, fk_error *err);
/** fk_cache_prune. */
fk_status fk_store_prune(fk_store *store, int64_t max_bytes, size_t *removed, int64_t *removed_bytes, fk_error *err);

#endif
