/* Shared by the files of the store, by nobody else.
 *
 * No file descriptor outlives a call, but for held locks: a store is a path, a mode and a policy, so a deleted cache
 * directory comes back, and fork is harmless, but that a child holds the locks that were held (store.h). */
#ifndef FK_CACHE_INTERNAL_H
#define FK_CACHE_INTERNAL_H

#include <pthread.h>
#include <sys/stat.h>

#include "store.h"
#include "vfs.h"

enum {
    FK_STORE_DIR_MAX = 3800,     /* bytes of the directory's path with its zero: leaves room for an entry in PATH_MAX */
    FK_ENTRY_NAME_MAX = 96,      /* 64 digits, a dot and a target */
    FK_ENTRY_HEADER_MAX = 8192,  /* bytes of a header: FK_MAX_SPELLING and the other fields fit */
    FK_ENTRY_TRAILER_BYTES = 32, /* SHA-256 */
    FK_STALE_SECONDS = 3600,     /* a temporary this old has no writer; an entry is touched this often at most */
};
#define FK_ENTRY_MAX_BYTES ((int64_t)64 << 20) /* a cubin has 10 to 500 KB; a header asking for more is damage */

typedef struct fk_held_lock {
    struct fk_held_lock *next;
    pthread_t owner; /* a thread that timed out must not release another's */
    char key[65];
    int fd;
} fk_held_lock;

struct fk_store {
    const fk_vfs *vfs;
    bool writable; /* mode NORMAL */
    bool shared;   /* $FLASHKILN_CACHE_SHARED=1: other users' directories and entries are trusted */
    bool own;      /* nobody else's, and without a cap: fk_store_keep_all */
    int64_t max_bytes;
    char dir[FK_STORE_DIR_MAX];
    char reason[512]; /* a note: why it always misses, or "" */
    pthread_mutex_t mutex;
    fk_held_lock *held; /* guarded by mutex */
};

/* ---- note.c: the reasons ------------------------------------------------------------------------------- */

typedef struct fk_note {
    char *text; /* may be null */
    size_t size;
} fk_note;

/** Writes a note; always false, so that `return fk_note_miss(note, ...)` reads well. */
bool fk_note_miss(fk_note note, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- entry.c, image.c: bytes of one file, no file system ----------------------------------------------- */

typedef struct fk_entry_header {
    fk_entry entry; /* image and text are not set */
    int64_t compile_us, text_bytes;
    size_t size; /* bytes of the header itself */
} fk_entry_header;

bool fk_key_valid(const char *key);
bool fk_target_valid(const char *target);
/** Splits "<key>.<target>"; false if `name` is no entry's. */
bool fk_entry_name_split(const char *name, char key[65], char target[16]);
void fk_entry_name_join(const char *key, const char *target, char out[FK_ENTRY_NAME_MAX]);

/** Spells the header; false names the field that cannot be stored. */
bool fk_entry_header_write(const fk_entry *entry, char out[FK_ENTRY_HEADER_MAX], size_t *size, fk_note note);
/** Reads the header at the start of `bytes`, accepting only what fk_entry_header_write spells. */
bool fk_entry_header_read(const char *bytes, size_t size, fk_entry_header *out, fk_note note);
int64_t fk_entry_file_bytes(const fk_entry_header *header);
/** Does the image hold code for `target`? */
bool fk_image_check(const char *target, const void *image, size_t size, fk_note note);

/* ---- dir.c: directories and who may be trusted --------------------------------------------------------- */

/** Fills dir or reason from the argument and the environment. */
void fk_store_resolve(fk_store *store, const char *dir);
/** Opens DIR itself, as the next opens DIR/v2. */
int fk_store_open_dir(const fk_store *store, bool create, fk_note note);
/** Opens DIR/v2, checked; `create`: makes what is missing. -1: errno ENOENT if absent, else a refusal; note says why.
 */
int fk_store_open_root(const fk_store *store, bool create, fk_note note);
/** Opens the folder of the key, named by its first two digits, likewise. */
int fk_store_open_shard(const fk_store *store, int root, const char *key, bool create, fk_note note);
bool fk_store_trusts(const fk_store *store, const struct stat *st, const char *what, fk_note note);
int fk_vfs_open_retry(const fk_vfs *vfs, int dir, const char *path, int flags, mode_t mode); /* past EINTR */

/* ---- file.c: one entry's file -------------------------------------------------------------------------- */

typedef enum fk_found {
    FK_FOUND_GOOD,
    FK_FOUND_ABSENT,
    FK_FOUND_FAILED,  /* could not be read now: out of memory or descriptors, an I/O error */
    FK_FOUND_REFUSED, /* not trusted: owner, mode, a link */
    FK_FOUND_DAMAGED  /* its bytes cannot be what a put wrote */
} fk_found;

/** Reads the entry `name` of the open folder. `whole`: checks everything and fills image and text; else only the header
 *  and the file's size. `out` is written on GOOD only; `seen` on all but ABSENT, and FAILED before it was opened. */
fk_found fk_file_read(const fk_store *store, int shard, const char *name, bool whole, fk_entry *out, struct stat *seen,
                      fk_note note);
/** Writes a temporary and publishes it as `name`, unless that exists. */
bool fk_file_publish(const fk_store *store, int shard, const char *name, const fk_entry *entry, fk_note note);
/** Unlinks `name` if it still is the file that `seen` describes. */
bool fk_file_remove(const fk_store *store, int shard, const char *name, const struct stat *seen);
bool fk_file_is_temporary(const char *name);

/* ---- sweep.c: many entries ----------------------------------------------------------------------------- */

/** After a put: removes stale temporaries and, beyond the cap, the least recently used entries down to 80 % of it. */
void fk_store_sweep(fk_store *store, int root);

#endif
