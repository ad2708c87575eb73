/* Text to image: the kernel, the three headers and one appended line are compiled in a private directory that is gone
 * when the call returns, or when a later process finds it an hour old. No shell is involved; the compiler sees no path
 * but its own directory's files. */
#include "gen/embedded.h"
#include "image.h"
#include "runtime/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

#define HEADER "device.hpp"
#define ABI "abi.hpp"
#define HOPPER "hopper_device.hpp"
#define SOURCE "kernel.cu"
#define IMAGE "kernel.so"
#define LOG "log"
#define FOLDER "flashkiln-emu-"
static const char *const files[] = {ABI, HEADER, HOPPER, SOURCE, IMAGE, LOG};

static const fk_embedded_file *embedded(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "runtime/emulator/%s", name);
    for (const fk_embedded_file *f = fk_embedded; f->path; ++f)
        if (strcmp(f->path, path) == 0) return f;
    return NULL;
}

static bool is_program(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) && access(path, X_OK) == 0;
}

/* Looks where execvp would. The result is absolute, since the compiler is started in another directory. */
static bool find_in_path(const char *name, char *out, size_t size) {
    char here[4096];
    if (!getcwd(here, sizeof here)) here[0] = 0;
    const char *dirs = strchr(name, '/') ? NULL : secure_getenv("PATH");
    if (!dirs) dirs = strchr(name, '/') ? "" : "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        const size_t n = strcspn(dirs, ":");
        const char *first = n ? dirs : name;
        const int length = snprintf(out, size, "%s%s%.*s%s%s", *first == '/' ? "" : here, *first == '/' ? "" : "/",
                                    (int)n, dirs, n ? "/" : "", name);
        if (length > 0 && (size_t)length < size && is_program(out)) return true;
        if (!dirs[n]) return false;
        dirs += n + 1;
    }
}

static fk_status find_compiler(char *out, size_t size, fk_error *err) {
    static const char *const names[] = {"c++", "g++", "clang++"};
    const char *asked = secure_getenv("FLASHKILN_CXX");
    if (asked && *asked) {
        if (find_in_path(asked, out, size)) return FK_OK;
        return fk_fail(err, FK_NO_COMPILER, "FLASHKILN_CXX is '%s', which is not a program", asked);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (find_in_path(names[i], out, size)) return FK_OK;
    return fk_fail(
        err, FK_NO_COMPILER,
        "the emulator needs a C++ compiler: none of c++, g++, clang++ is in PATH and FLASHKILN_CXX is not set");
}

static bool write_file(int dir, const char *name, const char *const *parts, const size_t *sizes, size_t count) {
    const int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!f) {
        if (fd >= 0) close(fd);
        return false;
    }
    bool good = true;
    for (size_t i = 0; i < count; ++i)
        good = fwrite(parts[i], 1, sizes[i], f) == sizes[i] && good;
    return fclose(f) == 0 && good;
}

static bool write_sources(int dir, const char *text, const char *const *entries, size_t num_entries) {
    char list[768] = "", tail[1024];
    size_t used = 0;
    for (size_t i = 0; i < num_entries && used < sizeof list; ++i)
        used += (size_t)snprintf(list + used, sizeof list - used, "FK_EMU_ENTRY(%s) ", entries[i]);
    const int n = snprintf(tail, sizeof tail, "\n#line 1 \"emulator\"\nFK_EMU_EXPORT(%s)\n", list);
    const fk_embedded_file *abi = embedded(ABI), *header = embedded(HEADER), *hopper = embedded(HOPPER);
    if (used >= sizeof list || !abi || !header || !hopper) return false;
    return write_file(dir, ABI, &abi->text, &abi->size, 1) &&
           write_file(dir, HEADER, &header->text, &header->size, 1) &&
           write_file(dir, HOPPER, &hopper->text, &hopper->size, 1) &&
           write_file(dir, SOURCE, (const char *const[]){text, tail}, (const size_t[]){strlen(text), (size_t)n}, 2);
}

/* Runs the compiler in `path`; its messages go to the file LOG there. */
static fk_status run_compiler(const char *compiler, const char *path, bool sanitize, int *exit_code, fk_error *err) {
    const char *const args[] = {compiler,
                                "-x",
                                "c++",
                                "-include",
                                HEADER,
                                SOURCE,
                                "-o",
                                IMAGE,
                                "-w",
                                "-fmax-errors=5",
                                "-fdiagnostics-color=never",
                                FK_EMU_FLAGS,
                                FK_EMU_SANITIZE,
                                NULL};
    enum { COUNT = sizeof args / sizeof *args, SANITIZE = sizeof((const char *[]){FK_EMU_SANITIZE}) / sizeof *args };
    char *argv[COUNT];
    memcpy(argv, args, sizeof argv);
    if (!sanitize) argv[COUNT - 1 - SANITIZE] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, path);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, LOG, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child;
    int state = 0, code = posix_spawn(&child, compiler, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (code != 0) return fk_fail(err, FK_NO_COMPILER, "cannot start %s: %s", compiler, strerror(code));
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        continue;
    /* A process that ignores SIGCHLD learns no exit status: then the image alone tells. */
    *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return FK_OK;
}

/* Reads a file whole, with a zero and `extra` bytes of room behind it. */
static char *read_file(int dir, const char *name, size_t extra, size_t *size) {
    const int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    struct stat s;
    if (!f || fstat(fd, &s) != 0) {
        if (f)
            fclose(f);
        else if (fd >= 0)
            close(fd);
        return NULL;
    }
    *size = (size_t)s.st_size;
    char *bytes = malloc(*size + 1 + extra);
    if (bytes && fread(bytes, 1, *size, f) != *size) {
        free(bytes);
        bytes = NULL;
    }
    if (bytes) bytes[*size] = 0;
    fclose(f);
    return bytes;
}

/* The work between the making and the removal of the directory. */
static fk_status compile_in(int dir, const char *path, const char *text, const char *const *entries, size_t num_entries,
                            bool sanitize, void **image, size_t *size, char compiler[96], fk_error *err) {
    char program[4096];
    size_t log_size = 0, bytes_size = 0;
    int exit_code = 0;
    fk_status status = find_compiler(program, sizeof program, err);
    if (status != FK_OK) return status;
    if (dir < 0 || !write_sources(dir, text, entries, num_entries))
        return fk_fail(err, FK_IO, "emulator: cannot write to %s: %s", path, strerror(errno));
    status = run_compiler(program, path, sanitize, &exit_code, err);
    if (status != FK_OK) return status;
    char *bytes = exit_code ? NULL : read_file(dir, IMAGE, sizeof(fk_emu_trailer), &bytes_size);
    if (!bytes) {
        char *log = read_file(dir, LOG, 0, &log_size);
        status = fk_fail(err, FK_COMPILE_FAILED, "%s ended with %d:\n%s", program, exit_code, log ? log : "");
        free(log);
        return status;
    }
    const char *mark = memmem(bytes, bytes_size, FK_EMU_COMPILER_MARK, strlen(FK_EMU_COMPILER_MARK));
    snprintf(compiler, 96, "%.95s", mark ? mark + strlen(FK_EMU_COMPILER_MARK) : program);
    const fk_emu_trailer trailer = fk_emu_seal(bytes, bytes_size);
    memcpy(bytes + bytes_size, &trailer, sizeof trailer);
    *image = bytes;
    *size = bytes_size + sizeof trailer;
    return FK_OK;
}

/* Of a directory that is left open. */
static bool holds_only_ours(int dir) {
    const int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    bool only = list;
    if (!list && again >= 0) close(again);
    for (const struct dirent *d; list && (d = readdir(list));) {
        bool ours = d->d_name[0] == '.';
        for (size_t i = 0; i < sizeof files / sizeof *files; ++i)
            ours = ours || strcmp(d->d_name, files[i]) == 0;
        only = only && ours;
    }
    if (list) closedir(list);
    return only;
}

static void remove_files(int dir) {
    for (size_t i = 0; dir >= 0 && i < sizeof files / sizeof *files; ++i)
        unlinkat(dir, files[i], 0);
    if (dir >= 0) close(dir);
}

/* Removes the directories of processes that were killed, once in a process. Their age tells, as no process id does
 * where containers share a directory; a compiler takes seconds. What holds other files is not ours, and stays. */
static void remove_litter(const char *base) {
    enum { STALE_SECONDS = 3600 };
    static bool done;
    struct stat s;
    DIR *list = __atomic_exchange_n(&done, true, __ATOMIC_RELAXED) ? NULL : opendir(base);
    if (!list) return;
    for (const struct dirent *d; (d = readdir(list));) {
        if (strncmp(d->d_name, FOLDER, strlen(FOLDER)) != 0) continue;
        const int dir = openat(dirfd(list), d->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (dir >= 0 && fstat(dir, &s) == 0 && s.st_uid == geteuid() && time(NULL) - s.st_mtime > STALE_SECONDS &&
            holds_only_ours(dir)) {
            remove_files(dir);
            unlinkat(dirfd(list), d->d_name, AT_REMOVEDIR);
        } else if (dir >= 0) {
            close(dir);
        }
    }
    closedir(list);
}

fk_status fk_emu_compile(const char *text, const char *const *entries, size_t num_entries,
                         const fk_emu_options *options, void **image, size_t *size, double *compile_ms,
                         char compiler[96], fk_error *err) {
    const double start = fk_now_ms();
    const bool sanitize = options && options->sanitize;
#ifndef FK_FIBER_ASAN
    if (sanitize)
        return fk_fail(err, FK_UNSUPPORTED,
                       "emulator: sanitize needs a library that is itself built with AddressSanitizer");
#endif
    char path[4096];
    const char *base = secure_getenv("TMPDIR");
    if (!base || !*base) base = "/tmp";
    remove_litter(base);
    const int n = snprintf(path, sizeof path, "%s/" FOLDER "XXXXXX", base);
    if (n < 0 || (size_t)n >= sizeof path || !mkdtemp(path))
        return fk_fail(err, FK_IO, "emulator: cannot make the directory %s: %s", path, strerror(errno));
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const fk_status status = compile_in(dir, path, text, entries, num_entries, sanitize, image, size, compiler, err);
    remove_files(dir);
    rmdir(path);
    *compile_ms = fk_now_ms() - start;
    return status;
}
