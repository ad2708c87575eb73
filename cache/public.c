/* The store's part of flashkiln.h. These calls look at a directory, whatever mode contexts use it in. */
#include "store.h"

#include <stdio.h>
#include <string.h>

fk_status fk_cache_path(const char *dir, char *out, size_t size) {
    fk_error err;
    fk_store *store;
    if (!out || !size) return fk_fail(&err, FK_BAD_ARGUMENT, "out is null, or its size 0"), fk_report(&err);
    if (fk_store_open(dir, FK_CACHE_READ_ONLY, &store, &err) != FK_OK) return fk_report(&err);
    const char *path = fk_store_dir(store);
    fk_status status = FK_OK;
    if (!*path)
        status = fk_fail(&err, FK_IO, "cache %s", fk_store_reason(store));
    else if (strlen(path) >= size)
        status = fk_fail(&err, FK_BAD_ARGUMENT, "size is %zu, the path needs %zu bytes", size, strlen(path) + 1);
    else
        memcpy(out, path, strlen(path) + 1);
    fk_store_close(store);
    return status == FK_OK ? FK_OK : fk_report(&err);
}

static fk_status list(const char *dir, bool whole, fk_cache_entry **entries, size_t *count) {
    fk_error err;
    fk_store *store;
    if (!entries || !count) return fk_fail(&err, FK_BAD_ARGUMENT, "entries or count is null"), fk_report(&err);
    if (fk_store_open(dir, FK_CACHE_READ_ONLY, &store, &err) != FK_OK) return fk_report(&err);
    const fk_status status = fk_store_list(store, whole, entries, count, &err);
    fk_store_close(store);
    return status == FK_OK ? FK_OK : fk_report(&err);
}

fk_status fk_cache_list(const char *dir, fk_cache_entry **entries, size_t *count) {
    return list(dir, false, entries, count);
}

fk_status fk_cache_verify(const char *dir, fk_cache_entry **entries, size_t *count) {
    return list(dir, true, entries, count);
}

fk_status fk_cache_prune(const char *dir, int64_t max_bytes, size_t *removed, int64_t *removed_bytes) {
    fk_error err;
    fk_store *store;
    if (fk_store_open(dir, FK_CACHE_NORMAL, &store, &err) != FK_OK) return fk_report(&err);
    const fk_status status = fk_store_prune(store, max_bytes, removed, removed_bytes, &err);
    fk_store_close(store);
    return status == FK_OK ? FK_OK : fk_report(&err);
}
