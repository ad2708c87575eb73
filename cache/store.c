/* The store's acts on one entry: open, get, put, drop. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fk_status fk_store_open_with(const char *dir, int mode, const fk_vfs *vfs, fk_store **out, fk_error *err) {
    if (mode < FK_CACHE_NORMAL || mode > FK_CACHE_SEALED)
        return fk_fail(err, FK_BAD_ARGUMENT, "cache_mode is %d, need %d to %d", mode, FK_CACHE_NORMAL, FK_CACHE_SEALED);
    fk_store *store = vfs->resize(NULL, sizeof *store);
    if (!store) return fk_fail(err, FK_NO_MEMORY, "no memory for a store of %zu bytes", sizeof *store);
    memset(store, 0, sizeof *store);
    if (pthread_mutex_init(&store->mutex, NULL)) {
        free(store);
        return fk_fail(err, FK_NO_MEMORY, "no memory for the store's mutex");
    }
    store->vfs = vfs;
    store->writable = mode == FK_CACHE_NORMAL;
    if (mode == FK_CACHE_OFF || mode == FK_CACHE_SEALED)
        snprintf(store->reason, sizeof store->reason, "off: the cache mode is %s",
                 mode == FK_CACHE_OFF ? "OFF" : "SEALED");
    else
        fk_store_resolve(store, dir);
    *out = store;
    return FK_OK;
}

fk_status fk_store_open(const char *dir, int mode, fk_store **out, fk_error *err) {
    return fk_store_open_with(dir, mode, &fk_vfs_posix, out, err);
}

void fk_store_close(fk_store *store) {
    if (!store) return;
    while (store->held) {
        fk_held_lock *next = store->held->next;
        store->vfs->close(store->held->fd);
        free(store->held);
        store->held = next;
    }
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

void fk_store_keep_all(fk_store *store) {
    store->max_bytes = INT64_MAX;
    store->own = true;
}

fk_status fk_store_make(fk_store *store, fk_error *err) {
    char note[512] = "";
    const int dir = fk_store_open_dir(store, true, (fk_note){note, sizeof note});
    if (dir < 0) return fk_fail(err, FK_IO, "%s: %s", store->dir, note);
    store->vfs->close(dir);
    return FK_OK;
}

void fk_store_destroy(fk_store *store) {
    const fk_note none = {NULL, 0};
    char name[3];
    fk_store_prune(store, 0, NULL, NULL, NULL);
    const int root = store->reason[0] ? -1 : fk_store_open_root(store, false, none);
    if (root < 0) return;
    for (int i = 0; i < 256; ++i) {
        snprintf(name, sizeof name, "%02x", i);
        unlinkat(root, name, AT_REMOVEDIR); /* stays where others' files are in it */
    }
    unlinkat(root, "locks", 0);
    store->vfs->close(root);
    const int dir = fk_vfs_open_retry(store->vfs, AT_FDCWD, store->dir, O_RDONLY | O_DIRECTORY, 0);
    if (dir < 0) return;
    unlinkat(dir, "v2", AT_REMOVEDIR);
    store->vfs->close(dir);
    rmdir(store->dir);
}

const char *fk_store_reason(const fk_store *store) {
    return store->reason;
}
const char *fk_store_dir(const fk_store *store) {
    return store->dir;
}

void fk_store_entry_path(const fk_store *store, const char key[65], const char *target, char *out, size_t size) {
    char name[FK_ENTRY_NAME_MAX];
    if (!size) return;
    out[0] = 0;
    if (store->reason[0] || !fk_key_valid(key) || !fk_target_valid(target)) return;
    fk_entry_name_join(key, target, name);
    if (snprintf(out, size, "%s/v2/%.2s/%s", store->dir, key, name) >= (int)size) out[0] = 0;
}

bool fk_store_get(fk_store *store, const char key[65], const char *target, fk_entry *out, char *note_text,
                  size_t note_size) {
    const fk_note note = {note_text, note_size};
    const fk_vfs *vfs = store->vfs;
    char name[FK_ENTRY_NAME_MAX];
    struct stat seen;
    if (store->reason[0]) return fk_note_miss(note, "%s", store->reason);
    if (!fk_key_valid(key) || !fk_target_valid(target)) return fk_note_miss(note, "field: not a key or not a target");
    fk_entry_name_join(key, target, name);
    const int root = fk_store_open_root(store, false, note);
    if (root < 0) return false;
    const int shard = fk_store_open_shard(store, root, key, false, note);
    vfs->close(root);
    if (shard < 0) return false;
    const fk_found what = fk_file_read(store, shard, name, true, out, &seen, note);
    if (what == FK_FOUND_DAMAGED && store->writable) fk_file_remove(store, shard, name, &seen);
    if (what == FK_FOUND_GOOD) {
        fk_note_miss(note, "hit");
        /* Eviction goes by this time; hourly is enough for it and spares the disk. */
        if (store->writable && llabs((long long)(vfs->now() - seen.st_mtim.tv_sec)) > FK_STALE_SECONDS)
            vfs->touch(shard, name);
    }
    vfs->close(shard);
    return what == FK_FOUND_GOOD;
}

bool fk_store_put(fk_store *store, const fk_entry *entry, char *note_text, size_t note_size) {
    const fk_note note = {note_text, note_size};
    char name[FK_ENTRY_NAME_MAX];
    if (store->reason[0]) return fk_note_miss(note, "%s", store->reason);
    if (!store->writable) return fk_note_miss(note, "read-only: the cache mode forbids writing");
    if (!fk_key_valid(entry->key) || !fk_target_valid(entry->target))
        return fk_note_miss(note, "field: key is not 64 hex digits, or target not 1 to 15 of a-z, 0-9 and _");
    if (!entry->image || entry->image_bytes < 1) return fk_note_miss(note, "field: there is no image");
    if (entry->image_bytes > store->max_bytes)
        return fk_note_miss(note, "size: image_bytes is %lld, the whole store may hold %lld",
                            (long long)entry->image_bytes, (long long)store->max_bytes);
    if (!fk_image_check(entry->target, entry->image, (size_t)entry->image_bytes, note)) return false;
    fk_entry_name_join(entry->key, entry->target, name);
    const int root = fk_store_open_root(store, true, note);
    if (root < 0) return false;
    const int shard = fk_store_open_shard(store, root, entry->key, true, note);
    const bool stored = shard >= 0 && fk_file_publish(store, shard, name, entry, note);
    if (shard >= 0) store->vfs->close(shard);
    if (stored) {
        fk_note_miss(note, "stored");
        fk_store_sweep(store, root);
    }
    store->vfs->close(root);
    return stored;
}

void fk_store_drop(fk_store *store, const char key[65], const char *target) {
    const fk_vfs *vfs = store->vfs;
    const fk_note none = {NULL, 0};
    char name[FK_ENTRY_NAME_MAX];
    if (store->reason[0] || !store->writable || !fk_key_valid(key) || !fk_target_valid(target)) return;
    fk_entry_name_join(key, target, name);
    const int root = fk_store_open_root(store, false, none);
    if (root < 0) return;
    const int shard = fk_store_open_shard(store, root, key, false, none);
    if (shard >= 0) {
        vfs->unlink(shard, name); /* gone already, or it stays: the put will say so */
        vfs->close(shard);
    }
    vfs->close(root);
}

void fk_entry_free(fk_entry *entry) {
    if (!entry) return;
    free(entry->image);
    free(entry->text);
    entry->image = NULL;
    entry->text = NULL;
}
