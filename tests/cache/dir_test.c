/* Where the store is, and whom it trusts: the chain of directories, the reasons of a disabled store, owners, modes,
 * links. */
#include "folder.h"

static void expect_dir(const char *argument, const char *expected) {
    char out[4096];
    assert_int_equal(fk_cache_path(argument, out, sizeof out), FK_OK);
    assert_string_equal(out, expected);
}

static void directory_chain(void **state) {
    (void)state;
    char out[4096], longest[FK_STORE_DIR_MAX + 1], here[2048], expected[4096];
    assert_int_equal(fk_cache_path(NULL, out, sizeof out), FK_IO); /* HOME is unset too */
    assert_non_null(strstr(fk_last_error(), "disabled: no directory given"));
    setenv("HOME", "relative", 1);
    assert_int_equal(fk_cache_path(NULL, out, sizeof out), FK_IO);
    setenv("HOME", "/h", 1);
    expect_dir(NULL, "/h/.cache/flashkiln");
    setenv("XDG_CACHE_HOME", "relative/is/ignored", 1);
    expect_dir(NULL, "/h/.cache/flashkiln");
    setenv("XDG_CACHE_HOME", "/x", 1);
    expect_dir(NULL, "/x/flashkiln");
    setenv("FLASHKILN_CACHE_DIR", "", 1);
    expect_dir(NULL, "/x/flashkiln");
    setenv("FLASHKILN_CACHE_DIR", "/f", 1);
    expect_dir(NULL, "/f");
    expect_dir("/given", "/given");
    assert_non_null(getcwd(here, sizeof here));
    snprintf(expected, sizeof expected, "%s/some/where", here);
    expect_dir("some/where", expected);

    assert_int_equal(fk_cache_path("/given", out, 6), FK_BAD_ARGUMENT);
    assert_non_null(strstr(fk_last_error(), "size is 6, the path needs 7 bytes"));
    assert_int_equal(fk_cache_path("/given", out, 7), FK_OK);
    assert_int_equal(fk_cache_path("/given", NULL, 7), FK_BAD_ARGUMENT);
    memset(longest, 'a', sizeof longest - 1);
    longest[0] = '/';
    longest[sizeof longest - 1] = 0;
    assert_int_equal(fk_cache_path(longest, out, sizeof out), FK_IO);
    assert_non_null(strstr(fk_last_error(), "has 3800 bytes, limit 3799"));
}

static void a_disabled_store_says_why(void **state) {
    (void)state;
    char path[100];
    fk_store *store = open_store(NULL, FK_CACHE_NORMAL); /* no HOME */
    assert_memory_equal(fk_store_reason(store), "disabled: no directory", 22);
    assert_string_equal(fk_store_dir(store), "");
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 0);
    assert_string_equal(note, fk_store_reason(store));
    assert_false(fixture_put(store, 1, 64, note, sizeof note));
    assert_string_equal(note, fk_store_reason(store));
    fixture_path(store, 1, path, sizeof path);
    assert_string_equal(path, "");
    fk_store_lock(store, path);
    fk_store_unlock(store, path);
    fk_store_close(store);

    static const char *const bad[] = {"abc", "0", "-5", "1x", "99999999999999999999", "16777217"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        setenv("FLASHKILN_CACHE_MAX_MB", bad[i], 1);
        assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
        assert_memory_equal(note, "disabled: $FLASHKILN_CACHE_MAX_MB is \"", 38);
        assert_non_null(strstr(note, bad[i]));
    }
}

static void directories_that_cannot_be(void **state) {
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/file", dir);
    fixture_spill(path, (const uint8_t *)"x", 1);
    fk_store *store = open_store(path, FK_CACHE_NORMAL);
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 0);
    assert_memory_equal(note, "refused: not a folder", 21);
    assert_false(fixture_put(store, 1, 64, note, sizeof note));
    fk_store_close(store);

    store = open_store("/proc/flashkiln/cache", FK_CACHE_NORMAL);
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 0);
    assert_string_equal(note, "absent");
    assert_false(fixture_put(store, 1, 64, note, sizeof note));
    assert_memory_equal(note, "io: cannot make: ", 17);
    fk_store_close(store);

    snprintf(path, sizeof path, "%s/made/on/demand", dir);
    store = open_store(path, FK_CACHE_NORMAL);
    assert_true(fixture_put(store, 1, 64, note, sizeof note));
    assert_int_equal(mode_of(path), 0700);
    scratch_remove(path); /* under a live store */
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 0);
    assert_true(fixture_put(store, 1, 64, note, sizeof note));
    assert_int_equal(fixture_get(store, 1, 64, note, sizeof note), 1);
    fk_store_close(store);
}

/* As a user who may read the store but not write to it. */
static void unwritable(void **state) {
    (void)state;
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    char shard[4096];
    strcpy(shard, path_of(1));
    assert_int_equal(chmod(shard, 0444), 0);
    *strrchr(shard, '/') = 0;
    chmod(shard, 0555);
    *strrchr(shard, '/') = 0;
    chmod(shard, 0555);
    chmod(dir, 0555);
    const pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(1);
        fk_store *store;
        if (fk_store_open(dir, FK_CACHE_NORMAL, &store, NULL)) _exit(2);
        if (fixture_get(store, 1, 64, note, sizeof note) != 1) _exit(3);
        if (fixture_put(store, 2, 64, note, sizeof note) || strncmp(note, "io: ", 4)) _exit(4);
        if (!strstr(note, "Permission denied")) _exit(5);
        fk_store_close(store);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    strcpy(shard, path_of(1));
    *strrchr(shard, '/') = 0;
    chmod(shard, 0700);
    *strrchr(shard, '/') = 0;
    chmod(shard, 0700);
    assert_int_equal(status, 0);
}

static void others_may_not_write(void **state) {
    (void)state;
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    char levels[4][4096];
    strcpy(levels[0], path_of(1));
    for (int i = 1; i < 4; ++i) {
        memcpy(levels[i], levels[i - 1], sizeof levels[i]);
        *strrchr(levels[i], '/') = 0;
    }
    for (int i = 0; i < 4; ++i) {
        const mode_t right = mode_of(levels[i]);
        static const mode_t wrong[] = {0020, 0002};
        for (int j = 0; j < 2; ++j) {
            chmod(levels[i], right | wrong[j]);
            assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
            assert_memory_equal(note, "refused: mode 0", 15);
            if (i > 0) assert_false(put(FK_CACHE_NORMAL, 1, 64));
            if (i > 0) assert_memory_equal(note, "refused: mode 0", 15);
            setenv("FLASHKILN_CACHE_SHARED", "1", 1);
            assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 1);
            unsetenv("FLASHKILN_CACHE_SHARED");
            assert_int_equal(mode_of(levels[i]), right | wrong[j]); /* never repaired behind the owner's back */
        }
        chmod(levels[i], right);
        if (geteuid() == 0) {
            assert_int_equal(lchown(levels[i], 4711, (gid_t)-1), 0);
            assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
            assert_memory_equal(note, "refused: owned by uid 4711", 26);
            setenv("FLASHKILN_CACHE_SHARED", "1", 1);
            assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 1);
            unsetenv("FLASHKILN_CACHE_SHARED");
            assert_int_equal(lchown(levels[i], 0, (gid_t)-1), 0);
        }
        assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 1);
    }
}

static void a_shared_store_follows_the_umask(void **state) {
    (void)state;
    setenv("FLASHKILN_CACHE_SHARED", "1", 1);
    const mode_t before = umask(002);
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    umask(before);
    char path[4096];
    strcpy(path, path_of(1));
    assert_int_equal(mode_of(path), 0664);
    *strrchr(path, '/') = 0;
    assert_int_equal(mode_of(path), 0775);
}

static void things_that_are_no_files(void **state) {
    (void)state;
    char path[4096], moved[5000];
    size_t removed;
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    strcpy(path, path_of(1));
    snprintf(moved, sizeof moved, "%s/moved", dir);
    assert_int_equal(rename(path, moved), 0);

    assert_int_equal(symlink(moved, path), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_string_equal(note, "refused: a symbolic link");
    assert_false(put(FK_CACHE_NORMAL, 1, 64));
    assert_int_equal(fk_cache_prune(dir, -1, &removed, NULL), FK_OK);
    assert_int_equal(removed, 1);
    assert_false(fixture_exists(path));
    assert_true(fixture_exists(moved)); /* the link went, not what it named */

    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0); /* and does not hang */
    assert_string_equal(note, "refused: not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_string_equal(note, "refused: not a regular file");
    assert_int_equal(rmdir(path), 0);

    *strrchr(path, '/') = 0; /* the shard itself a link */
    snprintf(moved, sizeof moved, "%s/shard", dir);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(symlink(moved, path), 0);
    assert_int_equal(get(FK_CACHE_NORMAL, 1, 64), 0);
    assert_memory_equal(note, "refused: not a folder, or a link", 32);
    assert_false(put(FK_CACHE_NORMAL, 1, 64));

    snprintf(moved, sizeof moved, "%s/link", dir); /* but the user's own path may be one */
    assert_int_equal(symlink(".", moved), 0);
    fk_store *store = open_store(moved, FK_CACHE_NORMAL);
    assert_true(fixture_put(store, 2, 64, note, sizeof note) || fixture_put(store, 3, 64, note, sizeof note));
    fk_store_close(store);
    assert_int_equal(unlink(moved) || symlink("nowhere", moved), 0);
    store = open_store(moved, FK_CACHE_NORMAL);
    assert_false(fixture_put(store, 2, 64, note, sizeof note));
    assert_memory_equal(note, "refused: not a folder, or a link to nowhere", 43);
    fk_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(directory_chain),
        IN_FOLDER(a_disabled_store_says_why),
        IN_FOLDER(directories_that_cannot_be),
        IN_FOLDER(unwritable),
        IN_FOLDER(others_may_not_write),
        IN_FOLDER(a_shared_store_follows_the_umask),
        IN_FOLDER(things_that_are_no_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
