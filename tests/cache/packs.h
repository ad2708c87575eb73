/* For the tests of packs: packs of the fixture's entries. */
#ifndef FK_TESTS_CACHE_PACKS_H
#define FK_TESTS_CACHE_PACKS_H

#include "cache/pack_format.h"
#include "cache/sign.h"
#include "fixture.h"

enum { PACK_IMAGE = 80, PACK_MAX = 1 << 16 };
static const char pack_info[] = "generator: 0123\nversion: 1.2.3\nterm: mask causal = k <= q + diag\n";

/* Spellings of the fixture repeat every 32 seeds; those of packs do not. */
static inline void pack_entry(unsigned seed, fk_entry *out) {
    fixture_entry(seed, PACK_IMAGE, out);
    snprintf(out->spelling, sizeof out->spelling, "fwd bf16 d%u causal", seed);
    out->compile_ms = 0;
}

static inline fk_status pack_fetch(void *user, size_t i, fk_entry *out, fk_error *err) {
    (void)err;
    pack_entry(((const unsigned *)user)[i], out);
    return FK_OK;
}

/* Writes the entries of `seeds`. */
static inline fk_status pack_make(const char *path, const fk_vfs *vfs, const unsigned *seeds, size_t count,
                                  const char *info, const uint8_t *secret, fk_error *err) {
    static char names[64][FK_MAX_SPELLING];
    fk_pack_part part[64];
    for (size_t i = 0; i < count; ++i) {
        snprintf(names[i], sizeof names[i], "fwd bf16 d%u causal", seeds[i]);
        part[i] = (fk_pack_part){.target = "sm_80", .spelling = names[i], .gpu = "a100", .min_driver = 13000};
    }
    const fk_pack_content content = {info, part, count, pack_fetch, (void *)(uintptr_t)seeds, secret};
    return fk_pack_write(path, vfs, &content, err);
}

/* Looks for the entry of `seed` and compares all of it: 1 there, 0 missing, -1 a wrong one was served. */
static inline int pack_get(const fk_pack *pack, unsigned seed, char *note, size_t size) {
    fk_entry want, got;
    size_t first;
    int result = 0;
    pack_entry(seed, &want);
    snprintf(note, size, "absent");
    if (fk_pack_find(pack, want.target, want.spelling, &first) && fk_pack_read(pack, first, &got, note, size)) {
        result = fixture_equal(&want, &got) ? 1 : -1;
        fk_entry_free(&got);
    }
    fk_entry_free(&want);
    return result;
}

/* Makes the root fit the bytes again, as whoever forges a pack would. */
static inline void pack_forge(uint8_t *bytes) {
    const size_t index = (size_t)fk_pack_load(bytes + FK_PACK_COUNT, 4) * FK_PACK_INDEX;
    const size_t info = (size_t)fk_pack_load(bytes + FK_PACK_INFO_BYTES, 4);
    if (index + info < PACK_MAX - FK_PACK_HEADER)
        fk_pack_root(bytes, bytes + FK_PACK_HEADER, index + info, bytes + FK_PACK_ROOT);
}

#endif
