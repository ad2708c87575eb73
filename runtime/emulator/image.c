/* A kernel image is the bytes of a shared object: they go into an anonymous file, which the dynamic linker opens by its
 * name under /proc, so nothing is left on disk. The file stays open as long as the image is loaded: the linker knows
 * objects by name, and would take a second image under the same descriptor for the first one. */
#include "image.h"
#include "gen/embedded.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* FNV-1a. */
static uint64_t hash_more(uint64_t hash, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; ++i)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

fk_emu_trailer fk_emu_seal(const void *bytes, size_t size) {
    static const char folder[] = "runtime/emulator/";
    const uint64_t start = 0xcbf29ce484222325u;
    fk_emu_trailer trailer = {"fk_emu\n", start, hash_more(start, bytes, size)};
    for (const fk_embedded_file *f = fk_embedded; f->path; ++f)
        if (strncmp(f->path, folder, sizeof folder - 1) == 0)
            trailer.headers = hash_more(trailer.headers, f->text, f->size);
    return trailer;
}

static fk_status check_trailer(const unsigned char *image, size_t size, fk_error *err) {
    fk_emu_trailer have = {{0}, 0, 0};
    if (size >= sizeof have) memcpy(&have, image + size - sizeof have, sizeof have);
    const fk_emu_trailer want = fk_emu_seal(image, size >= sizeof have ? size - sizeof have : 0);
    if (memcmp(have.magic, want.magic, sizeof have.magic) != 0)
        return fk_fail(err, FK_CHECK_FAILED, "emulator image of %zu bytes is not one, or is cut short", size);
    if (have.headers != want.headers)
        return fk_fail(err, FK_CHECK_FAILED, "emulator image was made by another version of this library");
    if (have.bytes != want.bytes) return fk_fail(err, FK_CHECK_FAILED, "emulator image of %zu bytes is damaged", size);
    return FK_OK;
}

static bool write_all(int fd, const unsigned char *bytes, size_t size) {
    while (size) {
        const ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

fk_status fk_emu_load(const void *image, size_t size, fk_emu_image **out, fk_error *err) {
    fk_status status = check_trailer(image, size, err);
    if (status != FK_OK) return status;
    fk_emu_image *loaded = calloc(1, sizeof *loaded);
    char path[64];
    if (!loaded) return fk_fail(err, FK_NO_MEMORY, "emulator: no memory for an image");
    loaded->file = memfd_create("flashkiln-kernel", MFD_CLOEXEC);
    if (loaded->file < 0 || !write_all(loaded->file, image, size)) {
        status = fk_fail(err, FK_IO, "emulator: cannot hold an image of %zu bytes: %s", size, strerror(errno));
        goto done;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", loaded->file);
    loaded->handle = dlopen(path, RTLD_LOCAL | RTLD_NOW);
    if (!loaded->handle) {
        status = fk_fail(err, FK_CHECK_FAILED, "emulator image does not load: %s", dlerror());
        goto done;
    }
    loaded->exports = dlsym(loaded->handle, "fk_emu_kernel");
    if (!loaded->exports) {
        status = fk_fail(err, FK_CHECK_FAILED, "emulator image exports no kernel");
        goto done;
    }
    loaded->exports->bind(&fk_emu_engine_table);
    *out = loaded;
done:
    if (status != FK_OK) fk_emu_unload(loaded);
    return status;
}

void fk_emu_unload(fk_emu_image *image) {
    if (!image) return;
    if (image->handle) dlclose(image->handle);
    if (image->file >= 0) close(image->file);
    free(image);
}
