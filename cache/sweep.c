/* Acts on all entries: list, prune, and the sweep behind a put. Other processes add and remove files meanwhile, so a
 * file that is gone when its turn comes is skipped, and nothing is removed but what was looked at. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct item {
    char name[FK_ENTRY_NAME_MAX]; /* of an entry or a temporary */
    char shard[3];
    struct stat st;
} item;

typedef struct items {
    item *at;
    size_t count, room;
} items;

typedef struct removals {
    size_t files;
    int64_t bytes;
    size_t left; /* files that could not be removed, the last one for `reason` */
    int reason;
} removals;

static fk_status add_item(const fk_store *store, items *all, const item *one, fk_error *err) {
    if (all->count == all->room) {
        const size_t room = all->room ? 2 * all->room : 64;
        item *bigger = store->vfs->resize(all->at, room * sizeof *bigger);
        if (!bigger) return fk_fail(err, FK_NO_MEMORY, "no memory for a list of %zu cache entries", room);
        all->at = bigger;
        all->room = room;
    }
    all->at[all->count++] = *one;
    return FK_OK;
}

/* Appends the files of one open folder, which it closes. */
static fk_status scan_folder(const fk_store *store, int fd, const char *shard, items *all, fk_error *err) {
    const fk_vfs *vfs = store->vfs;
    fk_status status = FK_OK;
    char key[65], target[16];
    DIR *list = vfs->list_open(fd);
    if (!list) {
        status = fk_fail(err, FK_IO, "cannot list %s/v2/%s: %s", store->dir, shard, strerror(errno));
        vfs->close(fd);
        return status;
    }
    while (status == FK_OK) {
        errno = 0;
        const struct dirent *d = vfs->list_next(list);
        if (!d && errno) status = fk_fail(err, FK_IO, "cannot list %s/v2/%s: %s", store->dir, shard, strerror(errno));
        if (!d) break;
        item one;
        memcpy(one.shard, shard, sizeof one.shard);
        if (strlen(d->d_name) >= sizeof one.name) continue;
        strcpy(one.name, d->d_name);
        if (!fk_file_is_temporary(one.name) &&
            (!fk_entry_name_split(one.name, key, target) || memcmp(one.name, shard, 2)))
            continue;
        if (!vfs->stat_at(fd, one.name, &one.st)) status = add_item(store, all, &one, err);
    }
    vfs->list_close(list);
    return status;
}

/* Collects entries and temporaries of all folders under `root`. A folder that is not trusted is left alone, which
 * `told` says: whoever asks for entries is to know that a get refuses what is there. */
static fk_status scan(const fk_store *store, int root, bool told, items *all, fk_error *err) {
    const fk_vfs *vfs = store->vfs;
    fk_status status = FK_OK;
    const int fd = fk_vfs_open_retry(vfs, root, ".", O_RDONLY | O_DIRECTORY, 0);
    DIR *list = fd >= 0 ? vfs->list_open(fd) : NULL;
    if (!list) {
        status = fk_fail(err, FK_IO, "cannot list %s/v2: %s", store->dir, strerror(errno));
        if (fd >= 0) vfs->close(fd);
        return status;
    }
    while (status == FK_OK) {
        errno = 0;
        const struct dirent *d = vfs->list_next(list);
        if (!d && errno) status = fk_fail(err, FK_IO, "cannot list %s/v2: %s", store->dir, strerror(errno));
        if (!d) break;
        if (strlen(d->d_name) != 2 || strspn(d->d_name, "0123456789abcdef") != 2) continue;
        char shard[3], why[160] = "";
        strcpy(shard, d->d_name);
        const int folder = fk_store_open_shard(store, root, shard, false, (fk_note){why, sizeof why});
        if (folder >= 0)
            status = scan_folder(store, folder, shard, all, err);
        else if (told && errno != ENOENT)
            status = fk_fail(err, FK_IO, "cache %s/v2: %s", store->dir, why);
    }
    vfs->list_close(list);
    return status;
}

static int newest_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->st.st_mtim.tv_sec != y->st.st_mtim.tv_sec) return x->st.st_mtim.tv_sec < y->st.st_mtim.tv_sec ? 1 : -1;
    if (x->st.st_mtim.tv_nsec != y->st.st_mtim.tv_nsec) return x->st.st_mtim.tv_nsec < y->st.st_mtim.tv_nsec ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void sort_items(items *all) {
    if (all->count > 1) qsort(all->at, all->count, sizeof *all->at, newest_first);
}

/* Whether it is gone, be it by another process. */
static bool remove_item(const fk_store *store, int root, const item *one, removals *gone) {
    const fk_note none = {NULL, 0};
    const int shard = fk_store_open_shard(store, root, one->shard, false, none);
    if (shard < 0) return errno == ENOENT;
    errno = 0; /* stays what it is where the file is another one by now */
    const bool removed = fk_file_remove(store, shard, one->name, &one->st), gone_before = errno == ENOENT;
    if (removed) {
        gone->files += 1;
        gone->bytes += one->st.st_size;
    } else if (errno && !gone_before) {
        gone->left += 1;
        gone->reason = errno;
    }
    store->vfs->close(shard);
    return removed || gone_before;
}

/* Removes temporaries that no writer can still hold, and takes all temporaries off the list. */
static void drop_temporaries(const fk_store *store, int root, items *all, removals *gone) {
    const time_t now = store->vfs->now();
    size_t kept = 0;
    for (size_t i = 0; i < all->count; ++i) {
        const item *one = &all->at[i];
        if (!fk_file_is_temporary(one->name))
            all->at[kept++] = *one;
        else if (store->own ||
                 llabs((long long)(now - one->st.st_mtim.tv_sec)) > FK_STALE_SECONDS) /* or back in time */
            remove_item(store, root, one, gone);
    }
    all->count = kept;
}

static int64_t total_bytes(const items *all) {
    int64_t total = 0;
    for (size_t i = 0; i < all->count; ++i)
        total += all->at[i].st.st_size;
    return total;
}

/* Removes the least recently used until `goal` bytes hold; for 0 those without a byte, too. */
static void evict(const fk_store *store, int root, items *all, int64_t goal, removals *gone) {
    int64_t total = total_bytes(all);
    sort_items(all);
    for (size_t i = all->count; i-- > 0 && (total > goal || goal == 0);) {
        if (remove_item(store, root, &all->at[i], gone)) total -= all->at[i].st.st_size;
    }
}

void fk_store_sweep(fk_store *store, int root) {
    items all = {NULL, 0, 0};
    removals gone = {0};
    fk_error ignored;
    if (store->own) return;
    /* The entry is published: nothing that fails from here on may matter to the caller. */
    if (scan(store, root, false, &all, &ignored) == FK_OK) {
        drop_temporaries(store, root, &all, &gone);
        if (total_bytes(&all) > store->max_bytes) evict(store, root, &all, store->max_bytes / 5 * 4, &gone);
    }
    free(all.at);
}

/* Opens the root of an enabled store; *root is -1 and the status FK_OK if there is none yet. */
static fk_status open_existing(const fk_store *store, int *root, fk_error *err) {
    char text[512] = "";
    const fk_note note = {text, sizeof text};
    *root = -1;
    if (store->reason[0]) return fk_fail(err, FK_IO, "cache %s", store->reason);
    *root = fk_store_open_root(store, false, note);
    if (*root < 0 && errno != ENOENT) return fk_fail(err, FK_IO, "cache directory %s: %s", store->dir, text);
    return FK_OK;
}

static fk_found read_item(const fk_store *store, int root, const item *one, bool whole, fk_entry *entry,
                          struct stat *seen, fk_note note) {
    const int shard = fk_store_open_shard(store, root, one->shard, false, note);
    if (shard < 0) return errno == ENOENT ? FK_FOUND_ABSENT : FK_FOUND_FAILED;
    const fk_found what = fk_file_read(store, shard, one->name, whole, entry, seen, note);
    store->vfs->close(shard);
    if (what == FK_FOUND_GOOD && whole) fk_entry_free(entry);
    return what;
}

/* Describes one entry; false if it is gone by now. */
static bool describe(const fk_store *store, int root, const item *one, bool whole, fk_cache_entry *out) {
    const fk_note note = {out->problem, sizeof out->problem};
    const time_t age = store->vfs->now() - one->st.st_mtim.tv_sec;
    fk_entry entry;
    struct stat seen;
    memset(out, 0, sizeof *out);
    fk_entry_name_split(one->name, out->key, out->target);
    out->file_bytes = one->st.st_size;
    out->age_seconds = age > 0 ? age : 0;
    const fk_found what = read_item(store, root, one, whole, &entry, &seen, note);
    out->valid = what == FK_FOUND_GOOD;
    if (!out->valid) return what != FK_FOUND_ABSENT;
    out->problem[0] = 0;
    memcpy(out->spelling, entry.spelling, sizeof out->spelling);
    memcpy(out->compiler, entry.compiler, sizeof out->compiler);
    out->registers = entry.registers;
    out->spill_bytes = entry.spill_bytes;
    out->smem_dynamic = entry.smem_dynamic;
    return true;
}

fk_status fk_store_list(fk_store *store, bool whole, fk_cache_entry **entries, size_t *count, fk_error *err) {
    items all = {NULL, 0, 0};
    fk_cache_entry *list = NULL;
    size_t used = 0;
    int root;
    fk_status status = open_existing(store, &root, err);
    if (status == FK_OK && root >= 0) status = scan(store, root, true, &all, err);
    if (status != FK_OK) goto done;
    size_t kept = 0;
    for (size_t i = 0; i < all.count; ++i)
        if (!fk_file_is_temporary(all.at[i].name)) all.at[kept++] = all.at[i];
    all.count = kept;
    sort_items(&all);
    list = store->vfs->resize(NULL, (all.count + 1) * sizeof *list);
    if (!list) {
        status = fk_fail(err, FK_NO_MEMORY, "no memory for a list of %zu cache entries", all.count);
        goto done;
    }
    for (size_t i = 0; i < all.count; ++i)
        if (describe(store, root, &all.at[i], whole, &list[used])) ++used;
    *entries = list;
    *count = used;
done:
    free(all.at);
    if (root >= 0) store->vfs->close(root);
    return status;
}

/* Removes what a get would refuse, and takes it off the list. */
static void drop_invalid(const fk_store *store, int root, items *all, removals *gone) {
    const fk_note none = {NULL, 0};
    size_t kept = 0;
    for (size_t i = 0; i < all->count; ++i) {
        const item *one = &all->at[i];
        fk_entry entry;
        struct stat seen;
        const fk_found what = read_item(store, root, one, true, &entry, &seen, none);
        if (what == FK_FOUND_REFUSED || what == FK_FOUND_DAMAGED)
            remove_item(store, root, one, gone);
        else if (what != FK_FOUND_ABSENT)
            all->at[kept++] = *one;
    }
    all->count = kept;
}

fk_status fk_store_prune(fk_store *store, int64_t max_bytes, size_t *removed, int64_t *removed_bytes, fk_error *err) {
    items all = {NULL, 0, 0};
    removals gone = {0};
    int root = -1;
    fk_status status;
    if (max_bytes < -1)
        return fk_fail(err, FK_BAD_ARGUMENT, "max_bytes is %lld, need -1 (no cap) or more", (long long)max_bytes);
    status = open_existing(store, &root, err);
    if (status == FK_OK && root >= 0) status = scan(store, root, true, &all, err);
    if (status != FK_OK) goto done;
    drop_temporaries(store, root, &all, &gone);
    if (max_bytes != 0) drop_invalid(store, root, &all, &gone);
    if (max_bytes >= 0) evict(store, root, &all, max_bytes, &gone);
    if (removed) *removed = gone.files;
    if (removed_bytes) *removed_bytes = gone.bytes;
    if (gone.left)
        status = fk_fail(err, FK_IO, "cache %s: %zu files could not be removed: %s", store->dir, gone.left,
                         strerror(gone.reason));
done:
    free(all.at);
    if (root >= 0) store->vfs->close(root);
    return status;
}
