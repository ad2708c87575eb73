/* A pack is written and read while the n-th call on the outside world fails, for every n and every kind of failure: it
 * is either the new pack, whole, or the one that was there; and readers see nothing else while it is replaced. */
#include "packs.h"

#include <errno.h>
#include <sys/wait.h>

typedef enum kind { NONE, FAIL_ONCE, FAIL_FROM, SHORT, DIE, KINDS } kind;
static const char *const kind_names[] = {"none", "fails once", "fails from then on", "short", "process dies"};
enum { DEAD = 99, CALLS = 9 };

static struct {
    kind what;
    int error, at, calls;
} fault;
static const char *const call_names[CALLS] = {"open",  "close",  "read_at", "write", "fsync",
                                              "fstat", "rename", "unlink",  "malloc"};
static long injected[KINDS][CALLS]; /* the table that is printed */

/* Counts a call: must it fail? */
static bool strike(int call) {
    ++fault.calls;
    const bool hit = fault.what == FAIL_FROM ? fault.calls >= fault.at : fault.calls == fault.at;
    if (fault.what == NONE || !hit) return false;
    if (fault.calls == fault.at && (fault.what != SHORT || call == 2 || call == 3)) ++injected[fault.what][call];
    if (fault.what == DIE) _exit(DEAD);
    errno = fault.error;
    return fault.what != SHORT;
}

static const fk_vfs *const real = &fk_vfs_posix;

static int try_open(int fd, const char *path, int flags, mode_t mode) {
    return strike(0) ? -1 : real->open(fd, path, flags, mode);
}
static int try_close(int fd) { /* the descriptor is gone even when close fails */
    const bool struck = strike(1);
    const int rc = real->close(fd);
    if (struck) errno = fault.error;
    return struck ? -1 : rc;
}
static ssize_t try_read_at(int fd, void *bytes, size_t size, off_t offset) {
    if (strike(2)) return -1;
    return real->read_at(fd, bytes, fault.what == SHORT && fault.calls == fault.at ? 1 : size, offset);
}
static ssize_t try_write(int fd, const void *bytes, size_t size) {
    if (strike(3)) return -1;
    return real->write(fd, bytes, fault.what == SHORT && fault.calls == fault.at ? 1 : size);
}
static int try_fsync(int fd) {
    return (void)fd, strike(4) ? -1 : 0;
}
static int try_stat_fd(int fd, struct stat *out) {
    return strike(5) ? -1 : real->stat_fd(fd, out);
}
static int try_rename(int fd, const char *from, const char *to) {
    return strike(6) ? -1 : real->rename(fd, from, to);
}
static int try_unlink(int fd, const char *path) {
    return strike(7) ? -1 : real->unlink(fd, path);
}
static void *try_resize(void *memory, size_t size) {
    return strike(8) ? NULL : real->resize(memory, size);
}

static fk_vfs faulty(void) {
    fk_vfs vfs = *real;
    vfs.open = try_open, vfs.close = try_close, vfs.read_at = try_read_at, vfs.write = try_write;
    vfs.fsync = try_fsync, vfs.stat_fd = try_stat_fd, vfs.rename = try_rename, vfs.unlink = try_unlink;
    vfs.resize = try_resize;
    return vfs;
}

static const unsigned before[] = {1, 2}, after[] = {1, 3, 4};
static const char info_before[] = "generation: 1\n", info_after[] = "generation: 2\n";

/* Replaces the pack and reads it. */
static void work(const char *path, const fk_vfs *vfs) {
    char note[160];
    fk_pack *pack;
    pack_make(path, vfs, after, 3, info_after, NULL, NULL);
    if (fk_pack_open_with(path, vfs, &pack, NULL) != FK_OK) return;
    for (unsigned seed = 1; seed <= 4; ++seed)
        if (pack_get(pack, seed, note, sizeof note) < 0) abort();
    fk_pack_close(pack);
}

static void prepare(const char *path) {
    fk_vfs vfs = faulty();
    fault.what = NONE;
    assert_int_equal(pack_make(path, &vfs, before, 2, info_before, NULL, NULL), FK_OK);
}

/* One of the two packs is there, whole. */
static void check_afterwards(const char *path) {
    char note[160];
    fk_pack *pack;
    fault.what = NONE;
    assert_int_equal(fk_pack_open(path, &pack, NULL), FK_OK);
    const bool is_new = strcmp(fk_pack_text(pack), info_after) == 0;
    const unsigned *seeds = is_new ? after : before;
    assert_int_equal(fk_pack_count(pack), is_new ? 3 : 2);
    for (size_t i = 0; i < fk_pack_count(pack); ++i)
        assert_int_equal(pack_get(pack, seeds[i], note, sizeof note), 1);
    fk_pack_close(pack);
}

static int calls_of_work(const char *path, const fk_vfs *vfs) {
    prepare(path);
    fault.calls = 0;
    work(path, vfs);
    return fault.calls;
}

static void strike_every_call(kind what, int error) {
    const fk_vfs vfs = faulty();
    char *dir = fixture_folder(), path[300];
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    const int calls = calls_of_work(path, &vfs);
    assert_in_range(calls, 30, 1000);
    for (int at = 1; at <= calls; ++at) {
        prepare(path);
        const int fds = fixture_open_fds();
        fault.what = what, fault.error = error, fault.at = at, fault.calls = 0;
        work(path, &vfs);
        assert_int_equal(fixture_open_fds(), fds);
        check_afterwards(path);
    }
    scratch_remove(dir);
    free(dir);
}

static void each_call_fails_once(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EINTR, ENOENT};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        strike_every_call(FAIL_ONCE, errors[i]);
}

static void all_calls_fail_from_the_nth(void **state) {
    (void)state;
    strike_every_call(FAIL_FROM, EIO);
}

static void short_reads_and_writes(void **state) {
    (void)state;
    strike_every_call(SHORT, 0);
}

static void death_at_every_call(void **state) {
    (void)state;
    const fk_vfs vfs = faulty();
    char *dir = fixture_folder(), path[300];
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    const int calls = calls_of_work(path, &vfs);
    for (int at = 1; at <= calls; ++at) {
        int status;
        prepare(path);
        const pid_t child = fork();
        if (child == 0) {
            fault.what = DIE, fault.at = at, fault.calls = 0;
            work(path, &vfs);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == DEAD);
        ++injected[DIE][0];
        check_afterwards(path);
    }
    scratch_remove(dir);
    free(dir);
}

/* A signal costs nothing: what was interrupted is tried again. */
static void interrupts_cost_nothing(void **state) {
    (void)state;
    char *dir = fixture_folder(), path[300], note[160];
    fk_vfs vfs = *real;
    fk_pack *pack;
    vfs.open = try_open, vfs.read_at = try_read_at, vfs.write = try_write, vfs.fsync = try_fsync;
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    bool struck = true;
    int at = 0;
    while (struck) {
        fault.what = FAIL_ONCE, fault.error = EINTR, fault.at = ++at, fault.calls = 0;
        assert_int_equal(pack_make(path, &vfs, after, 3, info_after, NULL, NULL), FK_OK);
        assert_int_equal(fk_pack_open_with(path, &vfs, &pack, NULL), FK_OK);
        assert_int_equal(pack_get(pack, 3, note, sizeof note), 1);
        struck = fault.calls >= at;
        fk_pack_close(pack);
    }
    assert_true(at > 15);
    scratch_remove(dir);
    free(dir);
}

/* A crash of the machine must not leave a pack's name on bytes that are not there. */
static bool is_synced;
static ssize_t write_unsynced(int fd, const void *bytes, size_t size) {
    is_synced = false;
    return real->write(fd, bytes, size);
}
static int sync_it(int fd) {
    is_synced = true;
    return real->fsync(fd);
}
static int rename_synced(int folder, const char *from, const char *to) {
    assert_true(is_synced);
    return real->rename(folder, from, to);
}

static void what_has_a_name_is_on_disk(void **state) {
    (void)state;
    char *dir = fixture_folder(), path[300];
    fk_vfs vfs = *real;
    vfs.write = write_unsynced, vfs.fsync = sync_it, vfs.rename = rename_synced;
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    assert_int_equal(pack_make(path, &vfs, after, 3, info_after, NULL, NULL), FK_OK);
    assert_true(is_synced && fixture_exists(path));
    scratch_remove(dir);
    free(dir);
}

/* Readers open, find and read while two packs are renamed over each other: always one of the two. */
static void readers_while_it_is_replaced(void **state) {
    (void)state;
    enum { READERS = 4, READS = 300, WRITES = 300 };
    char *dir = fixture_folder(), path[300], note[160];
    fk_vfs vfs = *real;
    vfs.fsync = try_fsync;
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    prepare(path);
    for (int r = 0; r < READERS; ++r) {
        if (fork() != 0) continue;
        for (int i = 0; i < READS; ++i) {
            fk_pack *pack;
            if (fk_pack_open(path, &pack, NULL) != FK_OK) _exit(1);
            const bool is_new = strcmp(fk_pack_text(pack), info_after) == 0;
            for (int seed = 1; seed <= 4; ++seed) {
                const bool there = seed == 1 || (seed == 2) != is_new;
                if (pack_get(pack, (unsigned)seed, note, sizeof note) != there) _exit(2);
            }
            fk_pack_close(pack);
        }
        _exit(0);
    }
    for (int i = 0; i < WRITES; ++i)
        assert_int_equal(i % 2 ? pack_make(path, &vfs, before, 2, info_before, NULL, NULL)
                               : pack_make(path, &vfs, after, 3, info_after, NULL, NULL),
                         FK_OK);
    for (int r = 0; r < READERS; ++r) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    scratch_remove(dir);
    free(dir);
}

static int print_points(void **state) {
    (void)state;
    print_message("faults injected      ");
    for (int c = 0; c < CALLS; ++c)
        print_message("%8s", call_names[c]);
    print_message("\n");
    for (int k = FAIL_ONCE; k < DIE; ++k) {
        print_message("  %-19s", kind_names[k]);
        for (int c = 0; c < CALLS; ++c)
            print_message("%8ld", injected[k][c]);
        print_message("\n");
    }
    print_message("  %-19s%8ld, one at each call\n", kind_names[DIE], injected[DIE][0]);
    return 0;
}

int main(void) {
    fixture_clear_environment();
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_fails_once),       cmocka_unit_test(all_calls_fail_from_the_nth),
        cmocka_unit_test(short_reads_and_writes),     cmocka_unit_test(death_at_every_call),
        cmocka_unit_test(interrupts_cost_nothing),    cmocka_unit_test(readers_while_it_is_replaced),
        cmocka_unit_test(what_has_a_name_is_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, print_points);
}
