/* Files of records: writers at once, what others left behind, and the n-th call on the outside world failing. */
#include "folder.h"
#include "tuning.h"

#include <errno.h>

#include "cache/vfs.h"

static int setup(void **state) {
    read_buckets(state);
    return make_folder(state);
}

static void path_to(const char *name, char out[4096]) {
    snprintf(out, 4096, "%s/%s", dir, name);
}

static const char file[] = "tune-nvidia-a100-sxm4-80gb.jsonl";

static fk_status append_record(const fk_vfs *vfs, const fk_tuning_record *r) {
    char line[FK_TUNING_LINE_MAX];
    return fk_tuning_append(vfs, dir, r->device, line, line_of(r, line), NULL);
}

/* Records of the folder: good ones; `*bad` the others. */
static size_t count_records(size_t *bad) {
    fk_tuning_text text;
    fk_tuning_record r;
    size_t good = 0;
    *bad = 0;
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, false, &text, NULL), FK_OK);
    for (char *at = text.bytes, *end = at + text.size, *next; at < end; at = next) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        next = newline ? newline + 1 : end;
        if (newline == at) continue;
        const bool read = fk_tuning_read(at, (size_t)((newline ? newline : end) - at), &r);
        good += read, *bad += !read;
    }
    free(text.bytes);
    return good;
}

static void appends_and_loads(void **state) {
    (void)state;
    char path[4096];
    size_t bad;
    fk_tuning_record r = sample_record();
    assert_int_equal(count_records(&bad), 0);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    strcpy(r.device, "NVIDIA H200");
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    path_to(file, path);
    assert_int_equal(mode_of(path), 0600);
    path_to("tune-nvidia-h200.jsonl", path);
    assert_true(fixture_exists(path));
    assert_int_equal(count_records(&bad), 3);
    assert_int_equal(bad, 0);
}

/* However many files there are, and whatever a GPU is called. */
static void reads_all_files(void **state) {
    (void)state;
    enum { FILES = 150 };
    char path[4096];
    size_t bad;
    fk_tuning_record r = sample_record();
    for (int i = 0; i < FILES; i++) {
        snprintf(r.device, sizeof r.device, "GPU %d", i);
        assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    }
    assert_int_equal(count_records(&bad), FILES);
    strcpy(r.device, "---");
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    path_to("tune-unnamed.jsonl", path);
    assert_true(fixture_exists(path));
    assert_int_equal(count_records(&bad), FILES + 1);
}

/* What a crash left half-written, at every length, costs its own line alone. */
static void appends_behind_a_torn_line(void **state) {
    (void)state;
    char path[4096], line[FK_TUNING_LINE_MAX];
    size_t bad;
    const fk_tuning_record r = sample_record();
    const size_t size = line_of(&r, line);
    path_to(file, path);
    for (size_t n = 0; n <= size; n++) {
        fixture_spill(path, (const uint8_t *)line, n);
        assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
        assert_int_equal(count_records(&bad), n >= size - 1 ? 2 : 1);
        assert_int_equal(bad, n > 0 && n < size - 1);
    }
}

static void writers_at_once(void **state) {
    (void)state;
    enum { PROCESSES = 8, EACH = 100 };
    size_t bad;
    for (int p = 0; p < PROCESSES; p++) {
        if (fork() != 0) continue;
        fk_tuning_record r = sample_record();
        for (int i = 0; i < EACH; i++) {
            r.us = p * EACH + i + 1;
            if (append_record(&fk_vfs_posix, &r) != FK_OK) _exit(1);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int how;
        assert_true(wait(&how) > 0 && how == 0);
    }
    assert_int_equal(count_records(&bad), PROCESSES * EACH);
    assert_int_equal(bad, 0);
}

/* Neither a link, nor a fifo, nor a file that others may write to is read or written. */
static void distrusts_what_others_can_write(void **state) {
    (void)state;
    char path[4096], other[4096];
    size_t bad;
    const fk_tuning_record r = sample_record();
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    path_to(file, path);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(count_records(&bad), 0);
    fk_tuning_text text;
    fk_error err;
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, true, &text, &err), FK_IO);
    assert_true(strstr(err.text, file) && strstr(err.text, "0666") && !text.bytes);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_IO);
    path_to("elsewhere", other);
    assert_int_equal(chmod(path, 0600) || rename(path, other) || symlink(other, path), 0);
    assert_int_equal(count_records(&bad), 0);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_IO);
    assert_int_equal(unlink(path) || mkfifo(path, 0600), 0);
    assert_int_equal(count_records(&bad), 0);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_IO);
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, true, &text, &err), FK_IO);
    assert_int_equal(unlink(path) || chmod(dir, 0777), 0);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_IO);
    assert_int_equal(fk_tuning_append(&fk_vfs_posix, dir, r.device, NULL, 0, &err), FK_IO);
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, true, &text, &err), FK_IO);
    chmod(dir, 0700);
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, "/nowhere/at/all", true, &text, &err), FK_OK);
    assert_true(text.size == 0);
}

/* What is too much to read is not written. */
static void grows_to_a_limit(void **state) {
    (void)state;
    char path[4096];
    fk_tuning_text text;
    fk_error err;
    const fk_tuning_record r = sample_record();
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_OK);
    path_to(file, path);
    assert_int_equal(truncate(path, (64 << 20) - 10), 0);
    assert_int_equal(append_record(&fk_vfs_posix, &r), FK_IO);
    fk_tuning_record other = r;
    strcpy(other.device, "another GPU");
    assert_int_equal(append_record(&fk_vfs_posix, &other), FK_OK); /* the limit is a file's */
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, true, &text, NULL), FK_OK);
    assert_true(text.size > 64 << 20);
    free(text.bytes);
    assert_int_equal(truncate(path, (64 << 20) + 1), 0);
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, true, &text, &err), FK_IO);
    assert_non_null(strstr(err.text, "67108864"));
    assert_int_equal(fk_tuning_load_dir(&fk_vfs_posix, dir, false, &text, NULL), FK_OK);
    free(text.bytes);
}

/* ---- faults ---- */

static struct {
    int error, at, calls;
    bool from, cut; /* all calls from `at` on; or one that moves a single byte */
} fault;

static bool strike(void) {
    ++fault.calls;
    const bool now = !fault.cut && (fault.from ? fault.calls >= fault.at : fault.calls == fault.at);
    if (now) errno = fault.error;
    return now;
}
static size_t cut(size_t size) {
    return fault.cut && fault.calls == fault.at && size > 1 ? 1 : size;
}
static int try_open(int fd, const char *path, int flags, mode_t mode) {
    return strike() ? -1 : fk_vfs_posix.open(fd, path, flags, mode);
}
static int try_close(int fd) {
    const bool struck = strike();
    const int rc = fk_vfs_posix.close(fd);
    return struck ? -1 : rc;
}
static ssize_t try_read(int fd, void *bytes, size_t size) {
    return strike() ? -1 : fk_vfs_posix.read(fd, bytes, cut(size));
}
static ssize_t try_write(int fd, const void *bytes, size_t size) {
    return strike() ? -1 : fk_vfs_posix.write(fd, bytes, cut(size));
}
static int try_stat_fd(int fd, struct stat *out) {
    return strike() ? -1 : fk_vfs_posix.stat_fd(fd, out);
}
static int try_mkdir(int fd, const char *path, mode_t mode) {
    return strike() ? -1 : fk_vfs_posix.mkdir(fd, path, mode);
}
static DIR *try_list_open(int fd) {
    return strike() ? NULL : fk_vfs_posix.list_open(fd);
}
static struct dirent *try_list_next(DIR *list) {
    return strike() ? NULL : fk_vfs_posix.list_next(list);
}
static int try_list_close(DIR *list) {
    const bool struck = strike();
    const int rc = fk_vfs_posix.list_close(list);
    return struck ? -1 : rc;
}
static void *try_resize(void *memory, size_t size) {
    return strike() ? NULL : fk_vfs_posix.resize(memory, size);
}

static void strike_each_call(int error, bool from, bool cut_short) {
    fk_vfs vfs = fk_vfs_posix;
    vfs.open = try_open, vfs.close = try_close, vfs.read = try_read, vfs.write = try_write;
    vfs.stat_fd = try_stat_fd, vfs.mkdir = try_mkdir, vfs.resize = try_resize;
    vfs.list_open = try_list_open, vfs.list_next = try_list_next, vfs.list_close = try_list_close;
    const fk_tuning_record r = sample_record();
    const int open_fds = fixture_open_fds();
    char path[4096];
    size_t bad, before, want = 0;
    path_to(file, path);
    for (int at = 1;; at++) { /* until one that is never reached */
        fk_tuning_text text = {NULL, 0};
        fault = (typeof(fault)){error, at, 0, from, cut_short};
        const fk_status appended = append_record(&vfs, &r);
        assert_true(appended == FK_OK || appended == FK_IO || appended == FK_NO_MEMORY);
        const fk_status loaded = fk_tuning_load_dir(&vfs, dir, false, &text, NULL);
        assert_true(loaded == FK_OK || loaded == FK_NO_MEMORY);
        free(text.bytes);
        const bool passed = fault.calls < at;
        before = want;
        want = count_records(&bad);
        assert_true(appended != FK_OK || want == before + 1);
        assert_int_equal(bad, 0); /* a single byte, then the rest: the line is whole in the end */
        assert_int_equal(fixture_open_fds(), open_fds);
        if (passed) {
            print_message("faults injected: %d\n", at - 1);
            return;
        }
    }
}

static void every_call_fails_once(void **state) {
    (void)state;
    strike_each_call(EIO, false, false);
}
static void every_call_fails_from_then_on(void **state) {
    (void)state;
    strike_each_call(ENOSPC, true, false);
}
static void every_call_is_interrupted(void **state) {
    (void)state;
    strike_each_call(EINTR, false, false);
}
static void every_transfer_is_short(void **state) {
    (void)state;
    strike_each_call(0, false, true);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, delete_folder)

int main(void) {
    const struct CMUnitTest tests[] = {WITH_FOLDER(appends_and_loads),
                                       WITH_FOLDER(reads_all_files),
                                       WITH_FOLDER(appends_behind_a_torn_line),
                                       WITH_FOLDER(writers_at_once),
                                       WITH_FOLDER(distrusts_what_others_can_write),
                                       WITH_FOLDER(grows_to_a_limit),
                                       WITH_FOLDER(every_call_fails_once),
                                       WITH_FOLDER(every_call_fails_from_then_on),
                                       WITH_FOLDER(every_call_is_interrupted),
                                       WITH_FOLDER(every_transfer_is_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
