/* SHA-256 (FIPS 180-4), for keys and checksums. */
#ifndef FK_CACHE_SHA256_H
#define FK_CACHE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct fk_sha256 {
    uint32_t state[8];
    uint64_t bytes;    /* hashed so far */
    uint8_t block[64]; /* the last, incomplete one */
} fk_sha256;

void fk_sha256_start(fk_sha256 *sha);
void fk_sha256_add(fk_sha256 *sha, const void *bytes, size_t size);
void fk_sha256_finish(fk_sha256 *sha, uint8_t out[32]);

/** As 64 lower-case hex digits. Nothing marks where one fk_sha256_add ended and the next began: callers whose parts
 * vary in length put a byte between them that no part contains. */
void fk_sha256_finish_hex(fk_sha256 *sha, char out[65]);

#endif
