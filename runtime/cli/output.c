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

cli_exit output_write(const char *path, const void *bytes, size_t size) {
    output out = {0};
    const cli_exit code = output_open(&out, path);
    if (code != CLI_OK) return code;
    fwrite(bytes, 1, size, out.file); /* output_commit sees the stream's error */
    return output_commit(&out);
}
