/* Keys in PEM, and a library that is not OpenSSL's. A process opens the library once: each case has one of its own. */
#include "fixture.h"

#include "cache/sign.h"

/* openssl genpkey -algorithm ed25519, of the secret of RFC 8032, section 7.1, test 2. */
static const char pem[] = "-----BEGIN PRIVATE KEY-----\n"
                          "MC4CAQAwBQYDK2VwBCIEIEzNCJso/5banbbDRuwRTg9bijGfNaumJNqM9u1PuKb7\n"
                          "-----END PRIVATE KEY-----\n";

/* Runs `body` in a child with `value` in FLASHKILN_LIBCRYPTO; it must end well. */
static void apart(const char *value, void (*body)(void)) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (value)
            setenv("FLASHKILN_LIBCRYPTO", value, 1);
        else
            unsetenv("FLASHKILN_LIBCRYPTO");
        body();
        exit(0);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

static void refuses(const char *says) {
    uint8_t secret[32] = {0}, key[32] = {0}, signature[64] = {0};
    for (int i = 0; i < 5; i++) { /* also the second time */
        fk_error err;
        const fk_status status = i == 0   ? fk_sign_available(&err)
                                 : i == 1 ? fk_sign_read_pem(pem, sizeof pem - 1, secret, &err)
                                 : i == 2 ? fk_sign_public(secret, key, &err)
                                 : i == 3 ? fk_sign(secret, "x", 1, signature, &err)
                                          : fk_sign_check(key, "x", 1, signature, &err);
        if (status != FK_UNSUPPORTED || strncmp(err.text, says, strlen(says))) exit(1 + i);
    }
}

static void without_the_library(void) {
    refuses("signatures need OpenSSL's library: /nonexistent/libcrypto.so");
}
static void with_another_library(void) {
    refuses("OpenSSL's library has no function BIO_free: 1.1.1 or newer is needed");
}

static void keys(void) {
    static const uint8_t want[4] = {0x4c, 0xcd, 0x08, 0x9b};
    static const char *const bad[] = {
        "", "no key", "-----BEGIN PRIVATE KEY-----\n",
        /* a public key */
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n-----END PUBLIC "
        "KEY-----\n",
        /* of another kind, with as many bytes */
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VuBCIEIFBgySDFDkYSx/xu4Uf8m+p8nUy/SGWCwD8Ufa2lu+tV\n-----END "
        "PRIVATE "
        "KEY-----\n",
        /* behind a password */
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEzNCJso\n-----END ENCRYPTED PRIVATE KEY-----\n"};
    uint8_t secret[32];
    fk_error err;
    if (fk_sign_read_pem(pem, sizeof pem - 1, secret, &err) || memcmp(secret, want, 4)) exit(1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fk_sign_read_pem(bad[i], strlen(bad[i]), secret, &err) != FK_BAD_ARGUMENT ||
            !strstr(err.text, "the key is no Ed25519 secret key in PEM without a password"))
            exit(2);
    const size_t large = (1 << 20) + 1; /* is not looked at */
    char *padded = calloc(1, large);
    if (!padded) exit(3);
    memcpy(padded, pem, sizeof pem);
    if (fk_sign_read_pem(padded, large, secret, &err) != FK_BAD_ARGUMENT) exit(4);
    free(padded);
}

/* The parent opens no library: its children would have it. */
static bool is_built_in;
static void ask(void) {
    fk_error err;
    if (fk_sign_available(&err) && strstr(err.text, "was built without")) exit(1);
}
static int find_out(void **state) {
    (void)state;
    const pid_t pid = fork();
    if (pid == 0) {
        ask();
        exit(0);
    }
    int how = -1;
    is_built_in = waitpid(pid, &how, 0) == pid && how == 0;
    return 0;
}

static void missing_or_another_library(void **state) {
    (void)state;
    if (!is_built_in) skip();
    apart("/nonexistent/libcrypto.so", without_the_library);
    apart("libm.so.6", with_another_library);
}

static void keys_in_pem(void **state) {
    (void)state;
    if (!is_built_in) skip();
    apart("", keys); /* named by nothing: the one that it was built with */
    apart(NULL, keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(missing_or_another_library), cmocka_unit_test(keys_in_pem)};
    return cmocka_run_group_tests(tests, find_out, NULL);
}
