/* The n-th call on the outside world fails, for every n and every kind of failure, or the process dies at it. Whatever
 * happens, the store serves right entries or misses, works again afterwards, and leaks neither memory (the sanitizers
 * watch) nor descriptors. */
#include "fixture.h"

#include <errno.h>

enum { BYTES = 600, DEAD = 99 };

typedef enum kind { NONE, FAIL_ONCE, FAIL_FROM, SHORT, DIE } kind;

static struct {
    kind what;
    int error;
    int at;    /* the call that is struck, from 1 */
    int calls; /* so far */
} fault;

static long injected[DIE + 1];

/* Counts a call: must it fail? */
static bool strike(void) {
    ++fault.calls;
    if (fault.calls == fault.at && fault.what != SHORT) ++injected[fault.what];
    if (fault.what == DIE && fault.calls == fault.at) _exit(DEAD);
    const bool now =
        fault.what == FAIL_ONCE ? fault.calls == fault.at : fault.what == FAIL_FROM && fault.calls >= fault.at;
    if (now) errno = fault.error;
    return now;
}

/* What of `size` bytes moves. */
static size_t cut(size_t size) {
    if (fault.what != SHORT || fault.calls != fault.at) return size;
    ++injected[SHORT];
    return 1;
}

static const fk_vfs *const real = &fk_vfs_posix;

static int try_open(int fd, const char *path, int flags, mode_t mode) {
    return strike() ? -1 : real->open(fd, path, flags, mode);
}
static int try_close(int fd) { /* the descriptor is gone even when close fails */
    const bool struck = strike();
    const int rc = real->close(fd);
    if (struck) errno = fault.error;
    return struck ? -1 : rc;
}
static ssize_t try_read(int fd, void *bytes, size_t size) {
    if (strike()) return -1;
    return real->read(fd, bytes, cut(size));
}
static ssize_t try_write(int fd, const void *bytes, size_t size) {
    if (strike()) return -1;
    return real->write(fd, bytes, cut(size));
}
static int try_fsync(int fd) {
    return (void)fd, strike() ? -1 : 0;
}
static int try_stat_fd(int fd, struct stat *out) {
    return strike() ? -1 : real->stat_fd(fd, out);
}
static int try_stat_at(int fd, const char *path, struct stat *out) {
    return strike() ? -1 : real->stat_at(fd, path, out);
}
static int try_mkdir(int fd, const char *path, mode_t mode) {
    return strike() ? -1 : real->mkdir(fd, path, mode);
}
static int try_link(int fd, const char *from, const char *to) {
    return strike() ? -1 : real->link(fd, from, to);
}
static int try_rename(int fd, const char *from, const char *to) {
    return strike() ? -1 : real->rename(fd, from, to);
}
static int try_unlink(int fd, const char *path) {
    return strike() ? -1 : real->unlink(fd, path);
}
static int try_touch(int fd, const char *path) {
    return strike() ? -1 : real->touch(fd, path);
}
static DIR *try_list_open(int fd) {
    return strike() ? NULL : real->list_open(fd);
}
static struct dirent *try_list_next(DIR *list) {
    return strike() ? NULL : real->list_next(list);
}
static int try_list_close(DIR *list) {
    const bool struck = strike();
    const int rc = real->list_close(list);
    return struck ? -1 : rc;
}
static int try_is_remote(int fd) {
    return strike() ? -1 : real->is_remote(fd);
}
static int try_lock(int fd, int64_t offset, int taken) {
    return strike() ? -1 : real->lock(fd, offset, taken);
}
static void *try_resize(void *memory, size_t size) {
    return strike() ? NULL : real->resize(memory, size);
}
static void no_sleep(unsigned ms) {
    (void)ms;
}

static fk_vfs faulty(void) {
    fk_vfs vfs = *real;
    vfs.open = try_open;
    vfs.close = try_close;
    vfs.read = try_read;
    vfs.write = try_write;
    vfs.fsync = try_fsync;
    vfs.stat_fd = try_stat_fd;
    vfs.stat_at = try_stat_at;
    vfs.mkdir = try_mkdir;
    vfs.link = try_link;
    vfs.rename = try_rename;
    vfs.unlink = try_unlink;
    vfs.touch = try_touch;
    vfs.list_open = try_list_open;
    vfs.list_next = try_list_next;
    vfs.list_close = try_list_close;
    vfs.is_remote = try_is_remote;
    vfs.lock = try_lock;
    vfs.resize = try_resize;
    vfs.sleep_ms = no_sleep;
    return vfs;
}

static int no_link(int fd, const char *from, const char *to) {
    (void)fd, (void)from, (void)to;
    return strike() ? -1 : (errno = EPERM, -1);
}

/* What a program does with a store: entry 1 is there, 2 is there but damaged, 3 and 4 are new. */
static void work(const char *dir, const fk_vfs *vfs) {
    char note[160], key[65];
    fk_store *store;
    fk_cache_entry *entries;
    size_t count;
    if (fk_store_open_with(dir, FK_CACHE_NORMAL, vfs, &store, NULL) != FK_OK) return;
    fixture_key(3, key);
    for (unsigned seed = 1; seed <= 3; ++seed) {
        if (fixture_get(store, seed, BYTES, note, sizeof note) < 0) abort();
        if (!note[0]) abort();
    }
    fk_store_lock(store, key);
    fixture_put(store, 3, BYTES, note, sizeof note);
    fk_store_unlock(store, key);
    if (fixture_get(store, 3, BYTES, note, sizeof note) < 0) abort();
    if (fk_store_list(store, true, &entries, &count, NULL) == FK_OK) free(entries);
    fk_store_prune(store, -1, NULL, NULL, NULL);
    fixture_put(store, 4, BYTES, note, sizeof note);
    fk_store_close(store);
}

static char *prepare(void) {
    static uint8_t bytes[4096];
    char note[160], path[512];
    fk_store *store;
    char *dir = fixture_folder();
    fk_vfs vfs = *real;
    vfs.fsync = try_fsync;
    fault.what = NONE;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    for (unsigned seed = 1; seed <= 2; ++seed)
        assert_true(fixture_put(store, seed, BYTES, note, sizeof note));
    fixture_path(store, 2, path, sizeof path);
    const size_t size = fixture_slurp(path, bytes, sizeof bytes);
    bytes[size / 2] ^= 4;
    fixture_spill(path, bytes, size);
    fixture_path(store, 1, path, sizeof path);
    fixture_set_age(path, 5000); /* so that a hit touches it */
    strcpy(strrchr(path, '/'), "/tmp.1.stale");
    fixture_spill(path, bytes, 10);
    fixture_set_age(path, 5000);
    fk_store_close(store);
    return dir;
}

/* After the fault: nothing wrong is served, and the store works. Entry 1 was never in danger. */
static void check_afterwards(const char *dir) {
    char note[160];
    fk_store *store;
    size_t count;
    fk_cache_entry *entries;
    fk_vfs vfs = *real;
    vfs.fsync = try_fsync;
    fault.what = NONE;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    assert_int_equal(fixture_get(store, 1, BYTES, note, sizeof note), 1);
    for (unsigned seed = 2; seed <= 4; ++seed) {
        const int before = fixture_get(store, seed, BYTES, note, sizeof note);
        assert_in_range(before, 0, 1);
        assert_int_equal(fixture_put(store, seed, BYTES, note, sizeof note), !before);
        assert_int_equal(fixture_get(store, seed, BYTES, note, sizeof note), 1);
    }
    assert_int_equal(fk_store_list(store, true, &entries, &count, NULL), FK_OK);
    assert_int_equal(count, 4);
    for (size_t i = 0; i < count; ++i)
        assert_true(entries[i].valid);
    free(entries);
    fk_store_close(store);
}

static int calls_of_work(const fk_vfs *vfs) {
    char *dir = prepare();
    fault.calls = 0;
    work(dir, vfs);
    const int calls = fault.calls;
    check_afterwards(dir);
    scratch_remove(dir);
    free(dir);
    return calls;
}

static void strike_every_call(kind what, int error, const fk_vfs *vfs) {
    const int calls = calls_of_work(vfs);
    assert_in_range(calls, 100, 2000);
    for (int at = 1; at <= calls; ++at) {
        char *dir = prepare();
        const int fds = fixture_open_fds();
        fault.what = what;
        fault.error = error;
        fault.at = at;
        fault.calls = 0;
        work(dir, vfs);
        assert_in_range(fault.calls, what == FAIL_FROM ? 1 : at, 1000000);
        assert_int_equal(fixture_open_fds(), fds);
        check_afterwards(dir);
        scratch_remove(dir);
        free(dir);
    }
}

static void each_call_fails_once(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EINTR, ENOENT};
    const fk_vfs vfs = faulty();
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        strike_every_call(FAIL_ONCE, errors[i], &vfs);
}

static void all_calls_fail_from_the_nth(void **state) {
    (void)state;
    const fk_vfs vfs = faulty();
    strike_every_call(FAIL_FROM, EIO, &vfs);
}

static void short_reads_and_writes(void **state) {
    (void)state;
    const fk_vfs vfs = faulty();
    strike_every_call(SHORT, 0, &vfs);
}

static void without_hard_links(void **state) {
    (void)state;
    fk_vfs vfs = faulty();
    vfs.link = no_link;
    strike_every_call(FAIL_ONCE, EIO, &vfs);
}

/* Interrupted opens, reads, writes and syncs are tried again: nothing may be missed for a signal's sake. */
static void interrupts_cost_nothing(void **state) {
    (void)state;
    fk_vfs vfs = *real;
    vfs.open = try_open;
    vfs.read = try_read;
    vfs.write = try_write;
    vfs.fsync = try_fsync;
    char note[160];
    bool struck = true;
    int at = 0;
    while (struck) {
        ++at;
        char *dir = prepare();
        fk_store *store;
        assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
        fault.what = FAIL_ONCE;
        fault.error = EINTR;
        fault.at = at;
        fault.calls = 0;
        assert_true(fixture_put(store, 3, BYTES, note, sizeof note));
        assert_int_equal(fixture_get(store, 3, BYTES, note, sizeof note), 1);
        struck = fault.calls >= at;
        fk_store_close(store);
        scratch_remove(dir);
        free(dir);
    }
    assert_true(at > 15);
}

/* NFS may do a link and lose its answer: the link count tells. */
static int link_without_answer(int fd, const char *from, const char *to) {
    return real->link(fd, from, to) ? -1 : (errno = EIO, -1);
}

static void a_link_whose_answer_is_lost(void **state) {
    (void)state;
    char note[160];
    fk_vfs vfs = *real;
    vfs.link = link_without_answer;
    char *dir = fixture_folder();
    fk_store *store;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, NULL), FK_OK);
    assert_true(fixture_put(store, 1, BYTES, note, sizeof note));
    assert_string_equal(note, "stored");
    assert_int_equal(fixture_count(dir, "tmp."), 0);
    fk_store_close(store);
    scratch_remove(dir);
    free(dir);
}

static void death_at_every_call(void **state) {
    (void)state;
    const fk_vfs vfs = faulty();
    const int calls = calls_of_work(&vfs);
    for (int at = 1; at <= calls; ++at) {
        char *dir = prepare();
        const pid_t child = fork();
        if (child == 0) {
            fault.what = DIE;
            fault.at = at;
            fault.calls = 0;
            work(dir, &vfs);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), DEAD);
        ++injected[DIE]; /* the child's count died with it */
        check_afterwards(dir);
        assert_in_range(fixture_count(dir, "tmp."), 0, 2); /* a dead writer's litter, gone after an hour */
        scratch_remove(dir);
        free(dir);
    }
}

static int print_points(void **state) {
    (void)state;
    print_message(
        "faults injected: %ld calls fail once, from %ld on all fail, %ld are short, at %ld the process dies\n",
        injected[FAIL_ONCE], injected[FAIL_FROM], injected[SHORT], injected[DIE]);
    return 0;
}

int main(void) {
    fixture_clear_environment();
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0); /* thousands of folders: spare the disk */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_fails_once),    cmocka_unit_test(all_calls_fail_from_the_nth),
        cmocka_unit_test(short_reads_and_writes),  cmocka_unit_test(without_hard_links),
        cmocka_unit_test(interrupts_cost_nothing), cmocka_unit_test(a_link_whose_answer_is_lost),
        cmocka_unit_test(death_at_every_call),
    };
    return cmocka_run_group_tests(tests, NULL, print_points);
}
