/* fk_cache_doctor: everything that decides where kernels come from, looked at once, in the order in which it is asked.
 */
#include "object.h"

#include "cache/sign.h"
#include "cache/vfs.h"
#include "compile.h"
#include "gen/embedded.h"
#include "gen/lua_host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { FINE, NOTE, WRONG };

typedef struct report {
    fk_finding *at;
    size_t count, room;
    bool full; /* no memory for more */
} report;

static void tell(report *r, const char *name, int state, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void tell(report *r, const char *name, int state, const char *format, ...) {
    if (r->count == r->room) {
        fk_finding *more = realloc(r->at, (r->room + 16) * sizeof *more);
        if (!more) {
            r->full = true;
            return;
        }
        r->at = more;
        r->room += 16;
    }
    fk_finding *f = &r->at[r->count++];
    va_list args;
    va_start(args, format);
    vsnprintf(f->detail, sizeof f->detail, format, args);
    va_end(args);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->state = state;
}

/* ---- the store ----------------------------------------------------------------------------------------- */

/* Whether it may be written to: the directory, or where it would be made. */
static void look_at_directory(report *r, const char *dir) {
    char path[4096];
    struct stat st;
    struct statvfs space;
    const bool there = stat(dir, &st) == 0;
    snprintf(path, sizeof path, "%s", dir);
    while (access(path, F_OK) != 0 && strrchr(path, '/') && path[1])
        strrchr(path, '/')[strrchr(path, '/') == path] = 0; /* of /one the root is left */
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool remote = fd >= 0 && fk_vfs_posix.is_remote(fd) == 1;
    if (fd >= 0) close(fd);
    if (access(path, W_OK | X_OK) != 0)
        tell(r, "directory", NOTE, "%s: %s may not be written to (%s): each process compiles what is not there", dir,
             path, strerror(errno));
    else
        tell(r, "directory", FINE, "%s%s", dir, there ? "" : ", not made yet");
    if (remote)
        tell(r, "file system", NOTE,
             "%s is on a network: kernels are shared, but processes that ask at once may each compile", path);
    if (statvfs(path, &space) == 0 && (double)space.f_bavail * (double)space.f_frsize < 64e6)
        tell(r, "space", NOTE, "%.0f MB are left on the file system of %s",
             (double)space.f_bavail * (double)space.f_frsize * 1e-6, path);
}

static void look_at_entries(report *r, fk_store *store) {
    fk_cache_entry *entries = NULL;
    size_t count = 0, invalid = 0;
    double bytes = 0;
    fk_error err;
    if (fk_store_list(store, true, &entries, &count, &err)) {
        tell(r, "entries", WRONG, "%.400s", err.text);
        return;
    }
    const char *problem = "";
    for (size_t i = 0; i < count; i++) {
        bytes += (double)entries[i].file_bytes;
        if (entries[i].valid) continue;
        if (!invalid++) problem = entries[i].problem;
    }
    if (invalid)
        tell(r, "entries", WRONG, "%zu of %zu are invalid, the first: %s; `flashkiln cache prune` removes them",
             invalid, count, problem);
    else
        tell(r, "entries", FINE, "%zu, %.1f MB", count, bytes * 1e-6);
    free(entries);
}

static void look_at_store(report *r, const char *dir) {
    fk_error err;
    fk_store *store = NULL;
    int mode = 0;
    if (fk_cache_mode_choose(0, &mode, &err))
        tell(r, "mode", WRONG, "%.400s", err.text);
    else if (mode)
        tell(r, "mode", NOTE, "FLASHKILN_CACHE_MODE is %s", secure_getenv("FLASHKILN_CACHE_MODE"));
    if (fk_advice_check_environment(&err)) tell(r, "tuning", WRONG, "%.400s", err.text);
    if (fk_store_open(dir, FK_CACHE_READ_ONLY, &store, &err)) {
        tell(r, "directory", WRONG, "%.400s", err.text);
        return;
    }
    if (*fk_store_reason(store)) {
        tell(r, "directory", WRONG, "%.400s", fk_store_reason(store));
    } else {
        look_at_directory(r, fk_store_dir(store));
        look_at_entries(r, store);
    }
    fk_store_close(store);
}

/* ---- packs and libraries ------------------------------------------------------------------------------- */

static void tell_pack(void *user, const char *path, const fk_pack *pack, const char *reason) {
    if (pack)
        tell(user, "pack", FINE, "%s: %zu kernel%s, %.1f MB", path, fk_pack_count(pack),
             fk_pack_count(pack) == 1 ? "" : "s", (double)fk_pack_bytes(pack) * 1e-6);
    else
        tell(user, "pack", WRONG, "%.400s", reason);
}

static void look_at_packs(report *r) {
    fk_error err;
    fk_packs packs;
    const char *paths = fk_packs_from_environment(), *keys = fk_pack_keys_from_environment();
    fk_packs_init(&packs);
    if (paths) fk_packs_add_list(&packs, paths, keys, NULL);
    fk_packs_each(&packs, tell_pack, r);
    fk_packs_free(&packs);
    if (!paths) tell(r, "packs", FINE, "none: FLASHKILN_PACK names none");
    if (fk_pack_check_keys(keys, &err))
        tell(r, "packs", WRONG, "%.400s", err.text);
    else if (keys)
        tell(r, "packs", NOTE, "FLASHKILN_PACK_KEYS: those that none of these keys signed are refused");
}

static void look_at_libraries(report *r) {
    fk_error err;
    fk_lua *lua;
    char compiler[96];
    const fk_driver *driver;
    int version = 0;
    const fk_status opened = fk_lua_open(NULL, NULL, &lua, &err);
    if (opened == FK_IO) { /* template_dir */
        tell(r, "templates", WRONG, "%.400s", err.text);
    } else if (opened) {
        tell(r, "lua", NOTE, "%.400s. Kernels come from packs alone", err.text);
    } else {
        tell(r, "lua", FINE, "5.4; FlashKiln %d.%d.%d, sources %.12s", FK_VERSION_MAJOR, FK_VERSION_MINOR,
             FK_VERSION_PATCH, fk_embedded_digest);
        fk_lua_close(lua);
    }
    if (fk_compiler_name(compiler, &err))
        tell(r, "nvrtc", NOTE, "%.400s. Kernels for GPUs come from store and packs alone", err.text);
    else
        tell(r, "nvrtc", FINE, "%s", compiler);
    if (fk_driver_open(&driver, &err))
        tell(r, "driver", NOTE, "%.400s: kernels run on the emulator", err.text);
    else if (driver->version(&version) == 0)
        tell(r, "driver", FINE, "supports CUDA %d.%d, %d GPUs", version / 1000, version % 1000 / 10,
             fk_device_present_count());
    if (fk_sign_available(&err))
        tell(r, "signatures", NOTE, "%.400s", err.text);
    else
        tell(r, "signatures", FINE, "of packs can be made and checked");
}

fk_status fk_cache_doctor(const char *dir, fk_finding **findings, size_t *count) {
    report r = {0};
    if (!findings || !count) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", findings ? "count" : "findings");
    look_at_store(&r, dir);
    look_at_packs(&r);
    look_at_libraries(&r);
    if (r.full) {
        free(r.at);
        return fk_refuse(FK_NO_MEMORY, "no memory for a list of findings");
    }
    *findings = r.at;
    *count = r.count;
    return FK_OK;
}
