/* SHA-256 against the vectors of FIPS 180-4 and NIST CAVP, and against itself however the bytes are cut into parts:
 * keys must be the same on every machine, for ever. */
#include "fixture.h"

/* The bytes up to `cut`, nothing, and the rest. */
static void hash_in_parts(const uint8_t *bytes, size_t size, size_t cut, char out[65]) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, bytes, cut);
    fk_sha256_add(&sha, NULL, 0);
    fk_sha256_add(&sha, bytes + cut, size - cut);
    fk_sha256_finish_hex(&sha, out);
}

static void hash(const char *text, char out[65]) {
    hash_in_parts((const uint8_t *)text, strlen(text), 0, out);
}

static void published_vectors(void **state) {
    (void)state;
    static const struct {
        const char *text, *digest;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqr"
         "stu",
         "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    };
    char out[65];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        hash(rows[i].text, out);
        assert_string_equal(out, rows[i].digest);
    }
}

static void a_million_letters(void **state) {
    (void)state;
    char *text = malloc(1000001), out[65];
    assert_non_null(text);
    memset(text, 'a', 1000000);
    text[1000000] = 0;
    hash(text, out);
    assert_string_equal(out, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(text);
}

static void cuts_do_not_matter(void **state) {
    (void)state;
    uint8_t bytes[200];
    char whole[65], cut[65];
    for (size_t i = 0; i < sizeof bytes; ++i)
        bytes[i] = (uint8_t)(i * 37);
    for (size_t size = 0; size <= sizeof bytes; ++size) {
        hash_in_parts(bytes, size, size, whole);
        for (size_t at = 0; at < size; ++at) {
            hash_in_parts(bytes, size, at, cut);
            assert_string_equal(cut, whole);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(a_million_letters),
        cmocka_unit_test(cuts_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
