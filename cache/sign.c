#include "sign.h"

#include <stdbool.h>

#ifndef FK_CRYPTO_SONAME

fk_status fk_sign_available(fk_error *err) {
    return fk_fail(err, FK_UNSUPPORTED,
                   "this library was built without OpenSSL, so it neither makes nor checks "
                   "signatures: install libssl-dev and build it again");
}
fk_status fk_sign_read_pem(const void *pem, size_t size, uint8_t secret[32], fk_error *err) {
    return (void)pem, (void)size, (void)secret, fk_sign_available(err);
}
fk_status fk_sign_public(const uint8_t secret[32], uint8_t key[32], fk_error *err) {
    return (void)secret, (void)key, fk_sign_available(err);
}
fk_status fk_sign(const uint8_t secret[32], const void *message, size_t size, uint8_t signature[64], fk_error *err) {
    return (void)secret, (void)message, (void)size, (void)signature, fk_sign_available(err);
}
fk_status fk_sign_check(const uint8_t key[32], const void *message, size_t size, const uint8_t signature[64],
                        fk_error *err) {
    return (void)key, (void)message, (void)size, (void)signature, fk_sign_available(err);
}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#define FK_CRYPTO_FUNCTIONS(X)                                                                                         \
    X(BIO_free)                                                                                                        \
    X(BIO_new_mem_buf)                                                                                                 \
    X(ERR_pop_to_mark)                                                                                                 \
    X(ERR_set_mark)                                                                                                    \
    X(EVP_DigestSign)                                                                                                  \
    X(EVP_DigestSignInit)                                                                                              \
    X(EVP_DigestVerify)                                                                                                \
    X(EVP_DigestVerifyInit)                                                                                            \
    X(EVP_MD_CTX_free)                                                                                                 \
    X(EVP_MD_CTX_new)                                                                                                  \
    X(EVP_PKEY_free)                                                                                                   \
    X(EVP_PKEY_get_raw_private_key)                                                                                    \
    X(EVP_PKEY_get_raw_public_key)                                                                                     \
    X(EVP_PKEY_new_raw_private_key)                                                                                    \
    X(EVP_PKEY_new_raw_public_key)                                                                                     \
    X(PEM_read_bio_PrivateKey)

static struct {
#define MEMBER(name) __typeof__(&name) name##_;
    FK_CRYPTO_FUNCTIONS(MEMBER)
#undef MEMBER
} crypto;

static const struct {
    const char *name;
    void **to;
} functions[] = {
#define ROW(name) {#name, (void **)&crypto.name##_},
    FK_CRYPTO_FUNCTIONS(ROW)
#undef ROW
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened; /* crypto is complete; written under `lock` */

static fk_status open_locked(fk_error *err) {
    const char *named = secure_getenv("FLASHKILN_LIBCRYPTO");
    void *library = dlopen(named && *named ? named : FK_CRYPTO_SONAME, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fk_fail(err, FK_UNSUPPORTED, "signatures need OpenSSL's library: %s", dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*functions[i].to = dlsym(library, functions[i].name))) {
            dlclose(library);
            return fk_fail(err, FK_UNSUPPORTED, "OpenSSL's library has no function %s: 1.1.1 or newer is needed",
                           functions[i].name);
        }
    __atomic_store_n(&opened, true, __ATOMIC_RELEASE);
    return FK_OK;
}

fk_status fk_sign_available(fk_error *err) {
    if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE)) return FK_OK;
    pthread_mutex_lock(&lock);
    const fk_status status = opened ? FK_OK : open_locked(err);
    pthread_mutex_unlock(&lock);
    return status;
}

/* The library's list of errors is the process's own: what is added until `end` is taken out again. */
static fk_status begin(fk_error *err) {
    const fk_status status = fk_sign_available(err);
    if (!status) crypto.ERR_set_mark_();
    return status;
}

static void end(void) {
    crypto.ERR_pop_to_mark_();
}

/* Secrets of other kinds have 32 bytes, too, and another public key. */
static bool is_ed25519(const EVP_PKEY *key, const uint8_t secret[32]) {
    uint8_t named[32], made[32];
    size_t length = 32;
    return crypto.EVP_PKEY_get_raw_public_key_(key, named, &length) == 1 && length == 32 &&
           !fk_sign_public(secret, made, NULL) && memcmp(named, made, 32) == 0;
}

fk_status fk_sign_read_pem(const void *pem, size_t size, uint8_t secret[32], fk_error *err) {
    fk_status status = begin(err);
    if (status) return status;
    BIO *bio = size < 1 << 20 ? crypto.BIO_new_mem_buf_(pem, (int)size) : NULL;
    EVP_PKEY *key = bio ? crypto.PEM_read_bio_PrivateKey_(bio, NULL, NULL, (void *)"") : NULL;
    size_t length = 32;
    if (!key || crypto.EVP_PKEY_get_raw_private_key_(key, secret, &length) != 1 || length != 32 ||
        !is_ed25519(key, secret))
        status = fk_fail(err, FK_BAD_ARGUMENT,
                         "the key is no Ed25519 secret key in PEM without a password: "
                         "openssl genpkey -algorithm ed25519 makes one");
    crypto.EVP_PKEY_free_(key);
    if (bio) crypto.BIO_free_(bio);
    end();
    return status;
}

static EVP_PKEY *secret_key(const uint8_t secret[32]) {
    return crypto.EVP_PKEY_new_raw_private_key_(EVP_PKEY_ED25519, NULL, secret, 32);
}

fk_status fk_sign_public(const uint8_t secret[32], uint8_t key[32], fk_error *err) {
    fk_status status = begin(err);
    if (status) return status;
    size_t length = 32;
    EVP_PKEY *pair = secret_key(secret);
    if (!pair || crypto.EVP_PKEY_get_raw_public_key_(pair, key, &length) != 1 || length != 32)
        status = fk_fail(err, FK_INTERNAL, "OpenSSL makes no public key");
    crypto.EVP_PKEY_free_(pair);
    end();
    return status;
}

fk_status fk_sign(const uint8_t secret[32], const void *message, size_t size, uint8_t signature[64], fk_error *err) {
    fk_status status = begin(err);
    if (status) return status;
    size_t length = 64;
    EVP_PKEY *pair = secret_key(secret);
    EVP_MD_CTX *context = crypto.EVP_MD_CTX_new_();
    if (!pair || !context || crypto.EVP_DigestSignInit_(context, NULL, NULL, NULL, pair) != 1 ||
        crypto.EVP_DigestSign_(context, signature, &length, message, size) != 1 || length != 64)
        status = fk_fail(err, FK_INTERNAL, "OpenSSL makes no signature");
    crypto.EVP_MD_CTX_free_(context);
    crypto.EVP_PKEY_free_(pair);
    end();
    return status;
}

fk_status fk_sign_check(const uint8_t key[32], const void *message, size_t size, const uint8_t signature[64],
                        fk_error *err) {
    fk_status status = begin(err);
    if (status) return status;
    EVP_PKEY *pair = crypto.EVP_PKEY_new_raw_public_key_(EVP_PKEY_ED25519, NULL, key, 32);
    EVP_MD_CTX *context = crypto.EVP_MD_CTX_new_();
    if (!pair || !context || crypto.EVP_DigestVerifyInit_(context, NULL, NULL, NULL, pair) != 1 ||
        crypto.EVP_DigestVerify_(context, signature, 64, message, size) != 1)
        status = fk_fail(err, FK_CHECK_FAILED, "the signature is not that of the key it names");
    crypto.EVP_MD_CTX_free_(context);
    crypto.EVP_PKEY_free_(pair);
    end();
    return status;
}

#endif
