/* Ed25519 (RFC 8032) by OpenSSL's libcrypto, which is opened on first need. Built without its headers, every function
 * fails with FK_UNSUPPORTED. */
#ifndef FK_CACHE_SIGN_H
#define FK_CACHE_SIGN_H

#include "gen/error.h"

/** FK_OK: signatures can be made and checked here; else why not. */
fk_status fk_sign_available(fk_error *err);
/** The secret of a PEM file's bytes, as `openssl genpkey -algorithm ed25519` writes it. @return FK_BAD_ARGUMENT */
fk_status fk_sign_read_pem(const void *pem, size_t size, uint8_t secret[32], fk_error *err);
fk_status fk_sign_public(const uint8_t secret[32], uint8_t key[32], fk_error *err);
fk_status fk_sign(const uint8_t secret[32], const void *message, size_t size, uint8_t signature[64], fk_error *err);
/** @return FK_CHECK_FAILED: it is not the key's signature of this message */
fk_status fk_sign_check(const uint8_t key[32], const void *message, size_t size, const uint8_t signature[64],
                        fk_error *err);

#endif
