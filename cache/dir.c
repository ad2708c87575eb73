/* Where the store is, and whether it may be trusted: an entry is code that will run, so whoever can write to the
 * directory, or to a folder in it, can run code as this user. What belongs to others is refused, never repaired. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_MAX_MB = 512, LARGEST_MAX_MB = 1 << 24 };

static const char *variable(const char *name) {
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

static bool join(fk_store *store, const char *head, const char *tail) {
    const int size = snprintf(store->dir, sizeof store->dir, "%s%s", head, tail);
    if (size < (int)sizeof store->dir) return true;
    store->dir[0] = 0;
    snprintf(store->reason, sizeof store->reason, "disabled: the directory's path has %d bytes, limit %zu", size,
             sizeof store->dir - 1);
    return false;
}

static void resolve_dir(fk_store *store, const char *dir) {
    if (!dir || !*dir) dir = variable("FLASHKILN_CACHE_DIR");
    if (dir && *dir == '/') {
        join(store, dir, "");
    } else if (dir) {
        /* Made absolute now: the program may change its directory between two kernels. */
        char *here = getcwd(NULL, 0);
        if (!here) {
            snprintf(store->reason, sizeof store->reason, "disabled: the current directory has no path: %s",
                     strerror(errno));
        } else if (join(store, here, "/")) {
            const size_t used = strlen(store->dir);
            char head[FK_STORE_DIR_MAX];
            memcpy(head, store->dir, used + 1);
            join(store, head, dir);
        }
        free(here);
    } else {
        const char *xdg = variable("XDG_CACHE_HOME"), *home = variable("HOME");
        /* The XDG specification says that a relative path is to be ignored. */
        if (xdg && *xdg == '/') {
            join(store, xdg, "/flashkiln");
        } else if (home && *home == '/') {
            join(store, home, "/.cache/flashkiln");
        } else {
            snprintf(store->reason, sizeof store->reason,
                     "disabled: no directory given, and $FLASHKILN_CACHE_DIR, "
                     "$XDG_CACHE_HOME and $HOME name none");
        }
    }
}

void fk_store_resolve(fk_store *store, const char *dir) {
    const char *shared = variable("FLASHKILN_CACHE_SHARED"), *max = variable("FLASHKILN_CACHE_MAX_MB");
    store->shared = shared && !strcmp(shared, "1");
    long megabytes = DEFAULT_MAX_MB;
    if (max) {
        char *end;
        errno = 0;
        megabytes = strtol(max, &end, 10);
        if (errno || *end || megabytes < 1 || megabytes > LARGEST_MAX_MB) {
            snprintf(store->reason, sizeof store->reason,
                     "disabled: $FLASHKILN_CACHE_MAX_MB is \"%.40s\", need a whole number from 1 to %d", max,
                     LARGEST_MAX_MB);
            return;
        }
    }
    store->max_bytes = (int64_t)megabytes << 20;
    resolve_dir(store, dir);
}

bool fk_store_trusts(const fk_store *store, const struct stat *st, const char *what, fk_note note) {
    if (store->shared) return true;
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return fk_note_miss(note, "refused: owned by uid %u, not by %u or root: %s", (unsigned)st->st_uid,
                            (unsigned)geteuid(), what);
    if (st->st_mode & 022)
        return fk_note_miss(note, "refused: mode %04o lets others write (FLASHKILN_CACHE_SHARED=1 allows it): %s",
                            (unsigned)(st->st_mode & 07777), what);
    return true;
}

int fk_vfs_open_retry(const fk_vfs *vfs, int dir, const char *path, int flags, mode_t mode) {
    int fd;
    do
        fd = vfs->open(dir, path, flags, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* In a shared store the umask decides, as it does for any other file of the group's. */
static mode_t folder_mode(const fk_store *store) {
    return store->shared ? 0777 : 0700;
}

/* Makes the folders above `path`. Failures show when `path` itself is made. */
static void make_parents(const fk_store *store, const char *path) {
    char part[FK_STORE_DIR_MAX];
    const size_t size = strlen(path);
    for (size_t i = 1; i < size; ++i) {
        if (path[i] != '/') continue;
        memcpy(part, path, i);
        part[i] = 0;
        store->vfs->mkdir(AT_FDCWD, part, folder_mode(store));
    }
}

/* Opens one folder and checks it. Only the store's own directory may be a link: the user chose that path. */
static int open_folder(const fk_store *store, int parent, const char *path, bool create, fk_note note) {
    const fk_vfs *vfs = store->vfs;
    const int flags = O_RDONLY | O_DIRECTORY | (parent == AT_FDCWD ? FK_VFS_FOLLOW : 0);
    int fd = fk_vfs_open_retry(vfs, parent, path, flags, 0);
    if (fd < 0 && errno == ENOENT && create) {
        if (parent == AT_FDCWD) make_parents(store, path);
        if (vfs->mkdir(parent, path, folder_mode(store)) && errno != EEXIST) {
            const int saved = errno;
            fk_note_miss(note, "io: cannot make: %s: %s", strerror(saved), path);
            errno = saved == ENOENT ? EACCES : saved;
            return -1;
        }
        fd = fk_vfs_open_retry(vfs, parent, path, flags, 0);
    }
    if (fd < 0) {
        const int saved = errno == ENOENT && create ? ELOOP : errno; /* there was something that mkdir did not make */
        if (saved == ENOENT)
            fk_note_miss(note, "absent");
        else if (saved == ELOOP || saved == ENOTDIR)
            fk_note_miss(note, "refused: not a folder, or a link%s: %s", parent == AT_FDCWD ? " to nowhere" : "", path);
        else
            fk_note_miss(note, "io: cannot open: %s: %s", strerror(saved), path);
        errno = saved;
        return -1;
    }
    struct stat st;
    bool good = !vfs->stat_fd(fd, &st);
    if (!good) fk_note_miss(note, "io: cannot stat: %s: %s", strerror(errno), path);
    if (good && fk_store_trusts(store, &st, path, note)) return fd;
    vfs->close(fd);
    errno = EPERM;
    return -1;
}

int fk_store_open_dir(const fk_store *store, bool create, fk_note note) {
    return open_folder(store, AT_FDCWD, store->dir, create, note);
}

int fk_store_open_root(const fk_store *store, bool create, fk_note note) {
    const int dir = fk_store_open_dir(store, create, note);
    if (dir < 0) return -1;
    const int root = open_folder(store, dir, "v2", create, note);
    const int saved = errno;
    store->vfs->close(dir);
    errno = saved;
    return root;
}

int fk_store_open_shard(const fk_store *store, int root, const char *key, bool create, fk_note note) {
    const char name[3] = {key[0], key[1], 0};
    return open_folder(store, root, name, create, note);
}
