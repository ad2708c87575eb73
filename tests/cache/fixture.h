/* For the tests of the store: a folder of one's own, entries whose every byte follows from their key, and raw access to
 * their files. */
#ifndef FK_TESTS_CACHE_FIXTURE_H
#define FK_TESTS_CACHE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/internal.h"
#include "cache/sha256.h"
#include "cache/store.h"
#include "scratch.h"

/* A fresh folder; the caller frees the path after scratch_remove. */
static inline char *fixture_folder(void) {
    char path[256], *copy = scratch_make(path, sizeof path) ? strdup(path) : NULL;
    if (!copy) abort();
    return copy;
}

static inline void fixture_clear_environment(void) {
    unsetenv("FLASHKILN_CACHE_DIR");
    unsetenv("FLASHKILN_CACHE_SHARED");
    unsetenv("FLASHKILN_CACHE_MAX_MB");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
}

static inline void fixture_key(unsigned seed, char key[65]) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, &seed, sizeof seed);
    fk_sha256_finish_hex(&sha, key);
}

/* Makes `image` look like a cubin of `sm`. */
static inline void fixture_cubin(uint8_t *image, unsigned sm) {
    memset(image, 0, 64);
    memcpy(image, "\177ELF\2\1\1", 7);
    image[8] = 8;
    image[18] = 190;
    image[49] = (uint8_t)sm;
}

/* The one entry of `seed`; its image has `bytes` >= 64 bytes. */
static inline void fixture_entry(unsigned seed, size_t bytes, fk_entry *out) {
    memset(out, 0, sizeof *out);
    fixture_key(seed, out->key);
    snprintf(out->spelling, sizeof out->spelling, "fwd bf16 d%u causal", 8 * (seed % 32 + 1));
    strcpy(out->target, "sm_80");
    strcpy(out->entry, "fk_forward");
    strcpy(out->compiler, "NVRTC 13.0");
    out->registers = (int32_t)(seed % 255);
    out->serialized_wgmma = (int32_t)(seed % 3);
    out->smem_dynamic = 65536;
    out->threads = 128;
    out->compile_ms = 312.125;
    out->image_bytes = (int64_t)bytes;
    uint8_t *image = malloc(bytes);
    if (!image || asprintf(&out->text, "// kernel %u\n", seed) < 0) abort();
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < bytes; ++i)
        image[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    fixture_cubin(image, 80);
    out->image = image;
}

static inline bool fixture_equal(const fk_entry *a, const fk_entry *b) {
    return !strcmp(a->key, b->key) && !strcmp(a->spelling, b->spelling) && !strcmp(a->target, b->target) &&
           !strcmp(a->entry, b->entry) && !strcmp(a->compiler, b->compiler) && a->registers == b->registers &&
           a->spill_bytes == b->spill_bytes && a->serialized_wgmma == b->serialized_wgmma &&
           a->smem_static == b->smem_static && a->smem_dynamic == b->smem_dynamic && a->threads == b->threads &&
           a->compile_ms == b->compile_ms && a->image_bytes == b->image_bytes &&
           !memcmp(a->image, b->image, (size_t)a->image_bytes) && !a->text == !b->text &&
           (!a->text || !strcmp(a->text, b->text));
}

/* Gets the entry of `seed` and compares all of it: 1 hit, 0 miss, -1 a wrong entry was served. */
static inline int fixture_get(fk_store *store, unsigned seed, size_t bytes, char *note, size_t size) {
    fk_entry want, got;
    fixture_entry(seed, bytes, &want);
    int result = 0;
    if (fk_store_get(store, want.key, want.target, &got, note, size)) {
        result = fixture_equal(&want, &got) && !strcmp(note, "hit") ? 1 : -1;
        fk_entry_free(&got);
    }
    fk_entry_free(&want);
    return result;
}

static inline bool fixture_put(fk_store *store, unsigned seed, size_t bytes, char *note, size_t size) {
    fk_entry entry;
    fixture_entry(seed, bytes, &entry);
    const bool stored = fk_store_put(store, &entry, note, size);
    fk_entry_free(&entry);
    return stored;
}

static inline void fixture_path(const fk_store *store, unsigned seed, char *out, size_t size) {
    char key[65];
    fixture_key(seed, key);
    fk_store_entry_path(store, key, "sm_80", out, size);
}

static inline size_t fixture_slurp(const char *path, uint8_t *bytes, size_t room) {
    const int fd = open(path, O_RDONLY);
    const ssize_t size = fd < 0 ? -1 : read(fd, bytes, room);
    if (size < 0 || close(fd)) abort();
    return (size_t)size;
}

static inline void fixture_spill(const char *path, const uint8_t *bytes, size_t size) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd)) abort();
}

static inline void fixture_set_age(const char *path, long seconds) {
    const struct timespec then = {time(NULL) - seconds, 0}, both[2] = {then, then};
    if (utimensat(AT_FDCWD, path, both, AT_SYMLINK_NOFOLLOW)) abort();
}

static inline bool fixture_exists(const char *path) {
    struct stat st;
    return !lstat(path, &st);
}

/* Files with this prefix under DIR/v2. */
static char fixture_prefix[8];
static int fixture_matches;
static inline int fixture_match(const char *path, const struct stat *st, int type, struct FTW *walk) {
    (void)st;
    fixture_matches += type == FTW_F && !strncmp(path + walk->base, fixture_prefix, strlen(fixture_prefix));
    return 0;
}
static inline int fixture_count(const char *dir, const char *prefix) {
    snprintf(fixture_prefix, sizeof fixture_prefix, "%s", prefix);
    fixture_matches = 0;
    nftw(dir, fixture_match, 16, FTW_PHYS);
    return fixture_matches;
}

static inline int fixture_open_fds(void) {
    DIR *list = opendir("/proc/self/fd");
    int count = 0;
    if (!list) abort();
    while (readdir(list))
        ++count;
    closedir(list);
    return count;
}

#endif
