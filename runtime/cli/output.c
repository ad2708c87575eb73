#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cli_exit fail_errno(const char *path, const char *what) {
    return cli_fail(CLI_IO, "%s: %s: %s", path, what, strerror(errno));
}

/* The folder that holds the last name of a path. */
static bool stat_folder(const char *path, struct stat *out) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    const bool good = folder && stat(folder, out) == 0;
    free(folder);
    return good;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Also of files that are not there yet. Pipes and devices may be written to twice. */
static bool is_same(const char *a, const char *b) {
    struct stat x, y;
    const bool a_there = stat(a, &x) == 0, b_there = stat(b, &y) == 0;
    if (a_there != b_there || (a_there && !S_ISREG(x.st_mode))) return false;
    if (!a_there && (strcmp(last_name(a), last_name(b)) != 0 || !stat_folder(a, &x) || !stat_folder(b, &y)))
        return false;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

cli_exit output_check(const char *verb, const named_file *files, int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const named_file *out = &files[i], *other = &files[j];
            if (i == j || !out->option || !out->path || !other->path || !is_same(out->path, other->path)) continue;
            if (!other->option)
                return cli_fail(CLI_USAGE, "%s: %s would overwrite the input %s", verb, out->option, other->path);
            return cli_fail(CLI_USAGE, "%s: %s and %s name one file, %s", verb, out->option, other->option, out->path);
        }
    return CLI_OK;
}

cli_exit output_open(output *out, const char *path) {
    struct stat st;
    *out = (output){path, NULL, NULL};
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return cli_fail(CLI_IO, "%s: is a directory, not a file", path);
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        out->file = fopen(path, "wbe");
        return out->file ? CLI_OK : fail_errno(path, "cannot be written");
    }
    int fd = -1;
    for (int i = 0; fd < 0 && i < 100; i++) { /* names left by killed processes are stepped over */
        char *name = NULL;
        if (asprintf(&name, "%s.%d-%d.tmp", path, (int)gettid(), i) < 0)
            return cli_fail(CLI_FAILED, "no memory for the name of %s", path);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        const int reason = errno;
        if (fd >= 0) {
            out->temporary = name;
        } else {
            free(name);
            errno = reason;
            if (reason != EEXIST) break;
        }
    }
    if (fd < 0) return fail_errno(path, "cannot be written");
    out->file = fdopen(fd, "wb");
    if (!out->file) {
        close(fd);
        output_discard(out);
        return cli_fail(CLI_FAILED, "no memory to write %s", path);
    }
    return CLI_OK;
}

cli_exit output_try(const char *path) {
    struct stat st;
    output out = {0};
    if (!path || (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))) return CLI_OK;
    const cli_exit code = output_open(&out, path);
    output_discard(&out);
    return code;
}

cli_exit output_finish(output *out) {
    if (!out->file) return CLI_OK;
    bool good = fflush(out->file) == 0 && !ferror(out->file);
    if (out->temporary) good = good && fsync(fileno(out->file)) == 0;
    good = fclose(out->file) == 0 && good;
    out->file = NULL;
    if (good) return CLI_OK;
    const cli_exit code = fail_errno(out->path, "cannot be written");
    output_discard(out);
    return code;
}

cli_exit output_commit(output *out) {
    cli_exit code = output_finish(out);
    if (code == CLI_OK && out->temporary && rename(out->temporary, out->path) != 0) {
        code = fail_errno(out->path, "cannot be written");
        output_discard(out);
    }
    free(out->temporary);
    out->temporary = NULL;
    return code;
}

void output_discard(output *out) {
    if (out->file) fclose(out->file);
    if (out->temporary) unlink(out->temporary);
    free(out->temporary);
    *out = (output){0};
}

cli_exit output_folder(const char *path, bool *made) {
    struct stat st;
    *made = mkdir(path, 0777) == 0;
    if (!*made && errno != EEXIST) return fail_errno(path, "cannot be made");
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) return cli_fail(CLI_IO, "%s: is no folder", path);
    return access(path, W_OK | X_OK) == 0 ? CLI_OK : fail_errno(path, "cannot be written");
}

cli_exit output_write(const char *path, const void *bytes, size_t size) {
    output out = {0};
    const cli_exit code = output_open(&out, path);
    if (code != CLI_OK) return code;
    fwrite(bytes, 1, size, out.file); /* output_commit sees the stream's error */
    return output_commit(&out);
}
