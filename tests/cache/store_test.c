/* What the store promises its callers: round trips, modes, listing, pruning and eviction. */
#include "folder.h"

#include <errno.h>

static void round_trip(void **state) {
    (void)state;
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_string_equal(note, "absent");
    assert_int_equal(fixture_count(dir, ""), 0); /* looking creates nothing */
    for (unsigned seed = 1; seed <= 20; ++seed) {
        const size_t bytes = 64 + seed * seed * 300;
        assert_true(put(FK_CACHE_NORMAL, seed, bytes));
        assert_string_equal(note, "stored");
        assert_false(put(FK_CACHE_NORMAL, seed, bytes));
        assert_string_equal(note, "present");
    }
    for (unsigned seed = 1; seed <= 20; ++seed)
        assert_int_equal(get(FK_CACHE_NORMAL, seed, 64 + seed * seed * 300), 1);
    assert_int_equal(fixture_count(dir, "tmp."), 0);
    assert_int_equal(fixture_count(dir, ""), 20);

    char shard[4096];
    strcpy(shard, path_of(1));
    assert_int_equal(mode_of(shard), 0600);
    *strrchr(shard, '/') = 0;
    assert_int_equal(mode_of(shard), 0700);
}

static void modes(void **state) {
    (void)state;
    static const int reading[] = {FK_CACHE_READ_ONLY, FK_CACHE_NO_JIT};
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    fixture_set_age(path_of(1), 10000);
    for (int i = 0; i < 2; ++i) {
        assert_int_equal(get(reading[i], 1, 64), 1);
        assert_false(put(reading[i], 2, 64));
        assert_memory_equal(note, "read-only: ", 11);
    }
    assert_int_equal(get(FK_CACHE_OFF, 1, 64), 0);
    assert_memory_equal(note, "off: ", 5);
    assert_false(put(FK_CACHE_OFF, 2, 64));

    uint8_t bytes[1024];
    const size_t size = fixture_slurp(path_of(1), bytes, sizeof bytes);
    fixture_spill(path_of(1), bytes, size - 1);
    assert_int_equal(get(FK_CACHE_READ_ONLY, 1, 64), 0);
    assert_true(fixture_exists(path_of(1))); /* damage is removed by those who may write */
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_false(fixture_exists(path_of(1)));
    assert_int_equal(fixture_count(dir, ""), 0);

    fk_store *store;
    fk_error err;
    assert_int_equal(fk_store_open(dir, 5, &store, &err), FK_BAD_ARGUMENT);
    assert_string_equal(err.text, "cache_mode is 5, need 0 to 4");
}

/* What a device refuses is dropped and replaced; those who may not write drop nothing. */
static void drop(void **state) {
    (void)state;
    static const int modes_in_order[] = {FK_CACHE_OFF, FK_CACHE_READ_ONLY, FK_CACHE_NO_JIT, FK_CACHE_NORMAL};
    char key[65], no_key[65] = "../../x";
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    assert_true(put(FK_CACHE_NORMAL, 2, 64));
    fixture_key(1, key);
    for (size_t i = 0; i < sizeof modes_in_order / sizeof *modes_in_order; ++i) {
        fk_store *store;
        assert_int_equal(fk_store_open(dir, modes_in_order[i], &store, NULL), FK_OK);
        fk_store_drop(store, key, "sm_90"); /* another target, no such entry */
        fk_store_drop(store, no_key, "sm_80");
        assert_int_equal(fixture_count(dir, ""), 2);
        fk_store_drop(store, key, "sm_80");
        assert_int_equal(fixture_exists(path_of(1)), modes_in_order[i] != FK_CACHE_NORMAL);
        fk_store_close(store);
    }
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 2, 64), 1);
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
}

/* While a reader finds damage, another process mends it: the reader must not remove the mended file. */
static char *mended, *in_place;
static ssize_t read_then_mend(int fd, void *bytes, size_t size) {
    const ssize_t got = read(fd, bytes, size);
    if (fixture_exists(mended) && rename(mended, in_place)) abort();
    return got;
}

static void damage_mended_meanwhile_is_kept(void **state) {
    (void)state;
    uint8_t bytes[1024];
    char aside[4096], path[4096];
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    snprintf(path, sizeof path, "%s", path_of(1));
    snprintf(aside, sizeof aside, "%s/aside", dir);
    const size_t size = fixture_slurp(path, bytes, sizeof bytes);
    assert_int_equal(rename(path, aside), 0);
    bytes[size - 1] ^= 1;
    fixture_spill(path, bytes, size);
    fixture_set_age(path, 100), fixture_set_age(aside, 100); /* as much alike as two files can be */
    mended = aside;
    in_place = path;
    fk_vfs vfs = fk_vfs_posix;
    vfs.read = read_then_mend;
    fk_store *store;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 0);
    assert_memory_equal(note, "checksum: ", 10);
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 1);
    fk_store_close(store);
}

static void a_hit_is_touched_hourly(void **state) {
    (void)state;
    struct stat st;
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    static const struct {
        int mode;
        long age;
        bool touched;
    } rows[] = {{FK_CACHE_NORMAL, 3000, false}, {FK_CACHE_READ_ONLY, 4000, false}, {FK_CACHE_NORMAL, 4000, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        fixture_set_age(path_of(1), rows[i].age);
        assert_int_equal(get(rows[i].mode, 1, 64), 1);
        assert_int_equal(stat(path_of(1), &st), 0);
        assert_int_equal(time(NULL) - st.st_mtim.tv_sec < 1000, rows[i].touched);
    }
}

static void list_and_verify(void **state) {
    (void)state;
    fk_cache_entry *entries = NULL;
    size_t count = 99;
    assert_int_equal(fk_cache_list(dir, &entries, &count), FK_OK);
    assert_int_equal(count, 0);
    fk_free(entries);
    for (unsigned seed = 1; seed <= 5; ++seed) {
        assert_true(put(FK_CACHE_NORMAL, seed, 64));
        fixture_set_age(path_of(seed), 100 * (long)seed);
    }
    char path[4096], other[5000];
    strcpy(path, path_of(1));
    *strrchr(path, '/') = 0;
    snprintf(other, sizeof other, "%s/tmp.1.abc", path); /* not entries: */
    fixture_spill(other, (const uint8_t *)"x", 1);
    snprintf(other, sizeof other, "%s/README", path);
    fixture_spill(other, (const uint8_t *)"x", 1);
    uint8_t bytes[1024];
    size_t size = fixture_slurp(path_of(3), bytes, sizeof bytes);
    bytes[size - 40] ^= 1; /* in the image: only the checksum sees it */
    fixture_spill(path_of(3), bytes, size);
    fixture_set_age(path_of(3), 300);
    fixture_spill(path_of(4), bytes, 7);
    fixture_set_age(path_of(4), 400);

    for (int whole = 0; whole < 2; ++whole) {
        assert_int_equal((whole ? fk_cache_verify : fk_cache_list)(dir, &entries, &count), FK_OK);
        assert_int_equal(count, 5);
        for (unsigned i = 0; i < 5; ++i) {
            fk_entry want;
            fixture_entry(i + 1, 64, &want);
            assert_string_equal(entries[i].key, want.key);
            assert_string_equal(entries[i].target, "sm_80");
            assert_in_range(entries[i].age_seconds, 100 * (i + 1), 100 * (i + 1) + 60);
            const bool bad = i == 3 || (i == 2 && whole);
            assert_int_equal(entries[i].valid, !bad);
            assert_int_equal(!entries[i].problem[0], !bad);
            assert_string_equal(entries[i].spelling, bad ? "" : want.spelling);
            if (!bad) assert_int_equal(entries[i].smem_dynamic, 65536);
            assert_int_equal(entries[i].file_bytes, i == 3 ? 7 : (int64_t)size);
            fk_entry_free(&want);
        }
        assert_memory_equal(entries[3].problem, "truncated: ", 11);
        if (whole) assert_memory_equal(entries[2].problem, "checksum: ", 10);
        fk_free(entries);
    }
    assert_int_equal(fk_cache_list(dir, NULL, &count), FK_BAD_ARGUMENT);
    assert_int_equal(fk_cache_list(NULL, &entries, &count), FK_IO);
    chmod(dir, 0777);
    assert_int_equal(fk_cache_verify(dir, &entries, &count), FK_IO);
    assert_non_null(strstr(fk_last_error(), "refused: mode 0777"));
}

static void prune(void **state) {
    (void)state;
    size_t removed;
    int64_t bytes;
    struct stat st;
    assert_int_equal(fk_cache_prune(dir, 0, &removed, &bytes), FK_OK); /* of nothing */
    assert_int_equal(removed, 0);
    for (unsigned seed = 1; seed <= 6; ++seed) {
        assert_true(put(FK_CACHE_NORMAL, seed, 5000));
        fixture_set_age(path_of(seed), seed == 2 ? 50 : 100 * (long)seed); /* from newest to oldest: 2 1 3 4 5 6 */
    }
    assert_int_equal(stat(path_of(1), &st), 0);
    char fresh[5000], stale[5000], ahead[5000];
    snprintf(fresh, sizeof fresh, "%.4000s", path_of(1));
    strcpy(strrchr(fresh, '/'), "/tmp.1.fresh");
    snprintf(stale, sizeof stale, "%.4000s", path_of(1));
    strcpy(strrchr(stale, '/'), "/tmp.1.stale");
    fixture_spill(fresh, (const uint8_t *)"x", 1);
    fixture_spill(stale, (const uint8_t *)"xyz", 3);
    fixture_set_age(stale, 3700);
    snprintf(ahead, sizeof ahead, "%.4000s", path_of(1));
    strcpy(strrchr(ahead, '/'), "/tmp.1.ahead");
    fixture_spill(ahead, (const uint8_t *)"wxyz", 4);
    fixture_set_age(ahead, -3700); /* the clock was ahead */
    fixture_spill(path_of(1), (const uint8_t *)"junk", 4);

    assert_int_equal(fk_cache_prune(dir, -1, &removed, &bytes), FK_OK);
    assert_int_equal(removed, 3);
    assert_int_equal(bytes, 3 + 4 + 4);
    assert_true(fixture_exists(fresh));
    assert_false(fixture_exists(ahead));
    assert_false(fixture_exists(stale));
    assert_false(fixture_exists(path_of(1)));

    assert_int_equal(fk_cache_prune(dir, 2 * st.st_size + 10, &removed, &bytes), FK_OK);
    assert_int_equal(removed, 3);
    assert_int_equal(bytes, 3 * st.st_size);
    assert_true(fixture_exists(path_of(2)));
    assert_true(fixture_exists(path_of(3)));
    fixture_spill(path_of(4), (const uint8_t *)"", 0); /* what a full disk left */
    assert_int_equal(fk_cache_prune(dir, 0, NULL, NULL), FK_OK);
    assert_false(fixture_exists(path_of(4)));
    assert_int_equal(fixture_count(dir, ""), 1); /* a writer may still hold the fresh temporary */
    assert_int_equal(fk_cache_prune(dir, -2, NULL, NULL), FK_BAD_ARGUMENT);
}

/* Another process is quicker each time. */
static int unlink_too_late(int folder, const char *path) {
    if (unlinkat(folder, path, 0)) return -1;
    errno = ENOENT;
    return -1;
}

static void two_prune_at_once(void **state) {
    (void)state;
    struct stat st;
    fk_store *store;
    fk_vfs vfs = fk_vfs_posix;
    size_t removed;
    for (unsigned seed = 1; seed <= 6; ++seed) {
        assert_true(put(FK_CACHE_NORMAL, seed, 5000));
        fixture_set_age(path_of(seed), 100 * (long)seed);
    }
    assert_int_equal(stat(path_of(1), &st), 0);
    vfs.unlink = unlink_too_late;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    assert_int_equal(fk_store_prune(store, 4 * st.st_size, &removed, NULL, NULL), FK_OK);
    assert_int_equal(removed, 0);
    assert_int_equal(fixture_count(dir, ""), 4);
    fk_store_close(store);
}

/* A folder of one's own goes with what killed workers left in it. */
static void what_is_ones_own_goes(void **state) {
    (void)state;
    char own[4096], temporary[5000];
    fk_store *store;
    snprintf(own, sizeof own, "%s/own", dir);
    assert_int_equal(fk_store_open(own, FK_CACHE_NORMAL, &store, NULL), FK_OK);
    fk_store_keep_all(store);
    assert_int_equal(fixture_put(store, 1, 64, note, sizeof note), 1);
    fixture_path(store, 1, temporary, sizeof temporary);
    strcpy(strrchr(temporary, '/'), "/tmp.1.fresh");
    fixture_spill(temporary, (const uint8_t *)"x", 1);
    fk_store_destroy(store);
    fk_store_close(store);
    assert_false(fixture_exists(own));
}

/* What every get refuses is not passed over in silence, nor what prune cannot remove. */
static void what_is_left_alone_is_told(void **state) {
    (void)state;
    fk_cache_entry *entries = NULL;
    size_t count, removed;
    char shard[4096], other[4200];
    assert_true(put(FK_CACHE_NORMAL, 1, 64) && put(FK_CACHE_NORMAL, 2, 64));
    strcpy(shard, path_of(1));
    *strrchr(shard, '/') = 0;
    assert_int_equal(chmod(shard, 0777), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_int_equal(fk_cache_verify(dir, &entries, &count), FK_IO);
    assert_true(strstr(fk_last_error(), "refused: mode 0777") && strstr(fk_last_error(), strrchr(shard, '/') + 1));
    assert_int_equal(fk_cache_prune(dir, 0, NULL, NULL), FK_IO);
    assert_int_equal(chmod(shard, 0700), 0);
    snprintf(other, sizeof other, "%s.moved", shard);
    assert_int_equal(rename(shard, other) || symlink(other, shard), 0);
    assert_int_equal(fk_cache_list(dir, &entries, &count), FK_IO);
    assert_int_equal(unlink(shard) || rename(other, shard), 0);
    assert_true(put(FK_CACHE_NORMAL, 3, 64)); /* a sweep that meets such a folder goes on */

    assert_int_equal(unlink(path_of(2)) || mkdir(path_of(2), 0700), 0);
    assert_int_equal(fk_cache_prune(dir, 0, &removed, NULL), FK_IO);
    assert_int_equal(removed, 2);
    assert_non_null(strstr(fk_last_error(), "1 files could not be removed"));
    assert_int_equal(rmdir(path_of(2)), 0);
    assert_int_equal(fk_cache_prune(dir, 0, &removed, NULL), FK_OK);
}

static void a_put_sweeps(void **state) {
    (void)state;
    char stale[5000];
    enum { BYTES = 200000 }; /* five fit in 1 MiB, and 4 in 80 % of it */
    setenv("FLASHKILN_CACHE_MAX_MB", "1", 1);
    for (unsigned seed = 1; seed <= 5; ++seed) {
        assert_true(put(FK_CACHE_NORMAL, seed, BYTES));
        fixture_set_age(path_of(seed), seed == 1 ? 4000 : 1000 * (long)seed + 4000);
    }
    assert_int_equal(fixture_count(dir, ""), 5);
    snprintf(stale, sizeof stale, "%.4000s", path_of(1));
    strcpy(strrchr(stale, '/'), "/tmp.1.stale");
    fixture_spill(stale, (const uint8_t *)"x", 1);
    fixture_set_age(stale, 3700);
    assert_int_equal(get(FK_CACHE_NORMAL, 5, BYTES), 1); /* its use saves the oldest */
    assert_true(put(FK_CACHE_NORMAL, 6, BYTES));
    assert_false(fixture_exists(stale));
    for (unsigned seed = 1; seed <= 6; ++seed)
        assert_int_equal(fixture_exists(path_of(seed)), seed != 4 && seed != 3);
    assert_false(put(FK_CACHE_NORMAL, 7, 2 << 20));
    assert_string_equal(note, "size: image_bytes is 2097152, the whole store may hold 1048576");
}

/* Of one second's entries the older ones go first, whatever their names are. */
static void eviction_goes_by_nanoseconds(void **state) {
    (void)state;
    struct stat st;
    for (unsigned kept = 1; kept <= 3; ++kept) {
        for (unsigned seed = 1; seed <= 3; ++seed) {
            const struct timespec used = {1700000000, seed == kept ? 900 : 100 * (long)seed}, both[2] = {used, used};
            if (!fixture_exists(path_of(seed))) assert_true(put(FK_CACHE_NORMAL, seed, 5000));
            assert_int_equal(utimensat(AT_FDCWD, path_of(seed), both, 0), 0);
        }
        assert_int_equal(stat(path_of(kept), &st), 0);
        assert_int_equal(fk_cache_prune(dir, st.st_size + 10, NULL, NULL), FK_OK);
        for (unsigned seed = 1; seed <= 3; ++seed)
            assert_int_equal(fixture_exists(path_of(seed)), seed == kept);
    }
}

/* A crash of the machine must not leave a name without what it names. */
static bool is_synced;
static int names;
static ssize_t write_unsynced(int fd, const void *bytes, size_t size) {
    is_synced = false;
    return fk_vfs_posix.write(fd, bytes, size);
}
static int sync_it(int fd) {
    is_synced = true;
    return fk_vfs_posix.fsync(fd);
}
static int link_synced(int folder, const char *from, const char *to) {
    assert_true(is_synced);
    ++names;
    return fk_vfs_posix.link(folder, from, to);
}

static void what_has_a_name_is_on_disk(void **state) {
    (void)state;
    fk_vfs vfs = fk_vfs_posix;
    fk_store *store;
    fk_entry entry;
    vfs.write = write_unsynced, vfs.fsync = sync_it, vfs.link = link_synced;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    fixture_entry(1, 5000, &entry);
    assert_true(fk_store_put(store, &entry, note, sizeof note));
    assert_int_equal(names, 1);
    fk_entry_free(&entry);
    fk_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(round_trip),
        IN_FOLDER(modes),
        IN_FOLDER(drop),
        IN_FOLDER(damage_mended_meanwhile_is_kept),
        IN_FOLDER(a_hit_is_touched_hourly),
        IN_FOLDER(list_and_verify),
        IN_FOLDER(prune),
        IN_FOLDER(two_prune_at_once),
        IN_FOLDER(what_is_ones_own_goes),
        IN_FOLDER(what_is_left_alone_is_told),
        IN_FOLDER(a_put_sweeps),
        IN_FOLDER(eviction_goes_by_nanoseconds),
        IN_FOLDER(what_has_a_name_is_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
