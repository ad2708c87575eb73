/* May a pack's kernels run? A checksum finds accidents; who wrote a file is told by a signature, or by who may write to
 * it. */
#include "pack_format.h"
#include "sign.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void fk_pack_message(const uint8_t root[32], uint8_t message[sizeof FK_PACK_SIGNED + 32]) {
    memcpy(message, FK_PACK_SIGNED, sizeof FK_PACK_SIGNED);
    memcpy(message + sizeof FK_PACK_SIGNED, root, 32);
}

bool fk_pack_signer(const fk_pack *pack, uint8_t key[32]) {
    static const uint8_t none[32];
    memcpy(key, pack->header + FK_PACK_KEY, 32);
    return memcmp(key, none, sizeof none) != 0;
}

fk_status fk_pack_check_signature(const fk_pack *pack, fk_error *err) {
    uint8_t key[32], message[sizeof FK_PACK_SIGNED + 32];
    fk_error inner;
    if (!fk_pack_signer(pack, key)) return fk_fail(err, FK_CHECK_FAILED, "pack %s: it is not signed", pack->path);
    fk_pack_message(pack->header + FK_PACK_ROOT, message);
    const fk_status status = fk_sign_check(key, message, sizeof message, pack->header + FK_PACK_SIGNATURE, &inner);
    return status ? fk_fail(err, status, "pack %s: %.1500s", pack->path, inner.text) : FK_OK;
}

/* 64 hex digits; the end, or null. */
static const char *read_key(const char *text, uint8_t key[32]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 64; ++i) {
        const char *digit = text[i] ? strchr(digits, tolower((unsigned char)text[i])) : NULL;
        if (!digit) return NULL;
        const int value = (int)(digit - digits);
        key[i / 2] = (uint8_t)(i % 2 ? key[i / 2] | value : value << 4);
    }
    return text + 64;
}

/* Is `signer` among the keys? */
static fk_status find_key(const char *keys, const uint8_t signer[32], bool *found, fk_error *err) {
    uint8_t key[32];
    *found = false;
    for (const char *at = keys; *at;) {
        const char *end = read_key(at, key);
        if (!end || (*end && *end != ','))
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "pack_keys (or FLASHKILN_PACK_KEYS) is \"%.80s\": must be keys of 64 hex digits, separated "
                           "by commas",
                           at);
        *found = *found || memcmp(key, signer, sizeof key) == 0;
        at = end + (*end == ',');
    }
    return FK_OK;
}

fk_status fk_pack_check_keys(const char *keys, fk_error *err) {
    const uint8_t nobody[32] = {0};
    bool found;
    return keys ? find_key(keys, nobody, &found, err) : FK_OK;
}

static fk_status check_owner(const fk_pack *pack, fk_error *err) {
    const char *shared = secure_getenv("FLASHKILN_CACHE_SHARED");
    const struct stat *st = &pack->st;
    if (shared && !strcmp(shared, "1")) return FK_OK;
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return fk_fail(err, FK_CHECK_FAILED,
                       "pack %s is owned by uid %u, not by %u or root: have it signed, or set "
                       "FLASHKILN_CACHE_SHARED=1",
                       pack->path, (unsigned)st->st_uid, (unsigned)geteuid());
    if (st->st_mode & 022)
        return fk_fail(err, FK_CHECK_FAILED,
                       "pack %s has mode %04o, which lets others write to it: chmod go-w, have it signed, or set "
                       "FLASHKILN_CACHE_SHARED=1",
                       pack->path, (unsigned)(st->st_mode & 07777));
    return FK_OK;
}

fk_status fk_pack_check_trust(const fk_pack *pack, const char *keys, fk_error *err) {
    uint8_t signer[32];
    bool found;
    if (!keys || !*keys) return check_owner(pack, err);
    const bool is_signed = fk_pack_signer(pack, signer);
    fk_status status = find_key(keys, signer, &found, err);
    if (status) return status;
    if (!is_signed || !found)
        return fk_fail(err, FK_CHECK_FAILED, "pack %s is %s, and pack_keys (or FLASHKILN_PACK_KEYS) asks for that",
                       pack->path, is_signed ? "signed by another key than those trusted" : "not signed");
    return fk_pack_check_signature(pack, err);
}
