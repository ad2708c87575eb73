/* What of a template_dir stands before the library's own files: kernels that were made with such files are not those
 * that others mean by the same words. */
#include "packs.h"

#include "cache/sha256.h"
#include "gen/embedded.h"
#include "gen/lua_host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static fk_status digest_file(const char *path, char out[65], fk_error *err) {
    char bytes[4096];
    size_t got;
    fk_sha256 sha;
    struct stat info;
    if (stat(path, &info) == 0 && (!S_ISREG(info.st_mode) || info.st_size > FK_MAX_TEMPLATE_BYTES))
        return fk_fail(err, FK_IO, "%s: must be a file of at most %d bytes", path, FK_MAX_TEMPLATE_BYTES);
    FILE *file = fopen(path, "rbe");
    if (!file) return fk_fail(err, FK_IO, "%s: %s", path, strerror(errno));
    fk_sha256_start(&sha);
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0)
        fk_sha256_add(&sha, bytes, got);
    const bool failed = ferror(file);
    const int why = errno;
    fclose(file);
    fk_sha256_finish_hex(&sha, out);
    return failed ? fk_fail(err, FK_IO, "%s: %s", path, strerror(why)) : FK_OK;
}

fk_status fk_overrides_digest(const char *template_dir, char out[65], fk_error *err) {
    fk_sha256 all, sha;
    fk_status status = FK_OK;
    bool any = false;
    if (!template_dir) template_dir = fk_template_dir();
    fk_sha256_start(&all);
    for (const fk_embedded_file *f = fk_embedded; f->path && !status; f++) {
        char path[4096], own[65], built_in[65];
        if (!fk_template_override(template_dir, f->path, path, sizeof path)) continue;
        status = digest_file(path, own, err);
        fk_sha256_start(&sha);
        fk_sha256_add(&sha, f->text, f->size);
        fk_sha256_finish_hex(&sha, built_in);
        if (status || strcmp(own, built_in) == 0) continue;
        fk_sha256_add(&all, f->path, strlen(f->path) + 1);
        fk_sha256_add(&all, own, 64);
        any = true;
    }
    fk_sha256_finish_hex(&all, out);
    if (!any) out[0] = 0;
    return status;
}
