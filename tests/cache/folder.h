/* A store folder for each test, and single acts on it. */
#ifndef FK_TESTS_CACHE_FOLDER_H
#define FK_TESTS_CACHE_FOLDER_H

#include "fixture.h"

static char *dir;
static char note[256];

/* Setup and teardown. */
static inline int make_folder(void **state) {
    (void)state;
    fixture_clear_environment();
    dir = fixture_folder();
    return 0;
}

static inline int delete_folder(void **state) {
    (void)state;
    fixture_clear_environment();
    scratch_remove(dir);
    free(dir);
    return 0;
}

static inline fk_store *open_store(const char *path, int mode) {
    fk_store *store = NULL;
    assert_int_equal(fk_store_open(path, mode, &store, NULL), FK_OK);
    return store;
}

/* One act on a store opened for it alone. */
static inline int get(int mode, unsigned seed, size_t bytes) {
    fk_store *store = open_store(dir, mode);
    const int result = fixture_get(store, seed, bytes, note, sizeof note);
    fk_store_close(store);
    return result;
}

static inline bool put(int mode, unsigned seed, size_t bytes) {
    fk_store *store = open_store(dir, mode);
    const bool stored = fixture_put(store, seed, bytes, note, sizeof note);
    fk_store_close(store);
    return stored;
}

static inline char *path_of(unsigned seed) {
    static char path[4096];
    fk_store *store = open_store(dir, FK_CACHE_NORMAL);
    fixture_path(store, seed, path, sizeof path);
    fk_store_close(store);
    return path;
}

static inline mode_t mode_of(const char *path) {
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, delete_folder)

#endif
