/* What a pack serves is what was put into it, whatever happens to its bytes; and equal contents are equal bytes. */
#include "packs.h"

#include <errno.h>

static char *dir, path[300], other[300], note[256];
static uint8_t good[PACK_MAX], bytes[PACK_MAX];
static size_t size;
static const unsigned seeds[] = {7, 3, 11, 5};
enum { SEEDS = sizeof seeds / sizeof *seeds };

static int setup(void **state) {
    (void)state;
    fixture_clear_environment();
    dir = fixture_folder();
    snprintf(path, sizeof path, "%s/a.fkpack", dir);
    snprintf(other, sizeof other, "%s/b.fkpack", dir);
    assert_int_equal(pack_make(path, &fk_vfs_posix, seeds, SEEDS, pack_info, NULL, NULL), FK_OK);
    size = fixture_slurp(path, good, sizeof good);
    memcpy(bytes, good, size);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    fixture_clear_environment();
    scratch_remove(dir);
    free(dir);
    return 0;
}

/* Opens `length` of the bytes and asks for every entry. @return how many were served; -1: it does not open */
static int serve(size_t length) {
    fk_pack *pack;
    fk_error err;
    int served = 0;
    fixture_spill(other, bytes, length);
    const fk_status status = fk_pack_open(other, &pack, &err);
    if (status) {
        assert_int_equal(status, FK_IO);
        assert_non_null(strstr(err.text, other));
        return -1;
    }
    for (int i = 0; i < SEEDS; ++i) {
        const int got = pack_get(pack, seeds[i], note, sizeof note);
        assert_in_range(got, 0, 1);
        served += got;
    }
    fk_pack_close(pack);
    return served;
}

static void serves_what_was_put(void **state) {
    (void)state;
    fk_pack *pack;
    size_t first;
    char version[16];
    assert_int_equal(fk_pack_open(path, &pack, NULL), FK_OK);
    assert_int_equal(fk_pack_count(pack), SEEDS);
    assert_string_equal(fk_pack_text(pack), pack_info);
    fk_pack_info_line(pack, "version", version, sizeof version);
    assert_string_equal(version, "1.2.3");
    fk_pack_info_line(pack, "vers", version, sizeof version);
    assert_string_equal(version, "");
    for (int i = 0; i < SEEDS; ++i)
        assert_int_equal(pack_get(pack, seeds[i], note, sizeof note), 1);
    assert_int_equal(pack_get(pack, 4, note, sizeof note), 0);
    assert_int_equal(fk_pack_find(pack, "sm_90a", "fwd bf16 d7 causal", &first), 0);
    assert_string_equal(fk_pack_item_at(pack, 0).gpu, "a100");
    assert_int_equal(fk_pack_item_at(pack, 0).min_driver, 13000);
    fk_pack_close(pack);
}

static void an_empty_pack(void **state) {
    (void)state;
    fk_pack *pack;
    assert_int_equal(pack_make(path, &fk_vfs_posix, seeds, 0, "", NULL, NULL), FK_OK);
    assert_int_equal(fk_pack_open(path, &pack, NULL), FK_OK);
    assert_int_equal(pack_get(pack, 7, note, sizeof note), 0);
    fk_pack_close(pack);
}

static void equal_contents_are_equal_bytes(void **state) {
    (void)state;
    static const unsigned turned[] = {5, 11, 3, 7};
    assert_int_equal(pack_make(other, &fk_vfs_posix, turned, SEEDS, pack_info, NULL, NULL), FK_OK);
    assert_int_equal(fixture_slurp(other, bytes, sizeof bytes), size);
    assert_memory_equal(bytes, good, size);
}

static void what_cannot_be_written(void **state) {
    (void)state;
    static const unsigned twice[] = {3, 3};
    fk_error err;
    assert_int_equal(pack_make(other, &fk_vfs_posix, twice, 2, pack_info, NULL, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "twice"));
    assert_int_equal(pack_make("/nonexistent/a", &fk_vfs_posix, seeds, 2, pack_info, NULL, &err), FK_IO);
    assert_int_equal(pack_make(other, &fk_vfs_posix, seeds, 2, "kernels: 2\tor so\n", NULL, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "control character"));
    assert_int_equal(fixture_count(dir, "b.fk"), 0); /* nor a temporary */
}

/* Every bit of header, index and info, and one of every other byte. The signature's bytes are looked at when somebody
 * asks who signed. */
static void every_flipped_byte(void **state) {
    (void)state;
    const size_t checked = FK_PACK_HEADER + SEEDS * FK_PACK_INDEX + strlen(pack_info);
    size_t tried = 0, refused = 0, missed = 0;
    for (size_t at = 0; at < size; ++at) {
        for (int bit = 0; bit < 8; ++bit) {
            if (at >= checked && bit != (int)(at % 8)) continue;
            ++tried;
            bytes[at] ^= (uint8_t)(1 << bit);
            const int served = serve(size);
            if (at >= FK_PACK_KEY && at < FK_PACK_HEADER)
                assert_int_equal(served, SEEDS);
            else
                assert_true(served < SEEDS);
            refused += served < 0;
            missed += served >= 0 && served < SEEDS;
            bytes[at] ^= (uint8_t)(1 << bit);
        }
    }
    assert_int_equal(serve(size), SEEDS);
    print_message("  %zu bits flipped: %zu packs refused, %zu with one kernel missing\n", tried, refused, missed);
}

static void every_length(void **state) {
    (void)state;
    for (size_t length = 0; length < size; ++length)
        assert_int_equal(serve(length), -1);
    for (size_t more = 1; more < 200; ++more) {
        bytes[size + more - 1] = (uint8_t)more;
        assert_int_equal(serve(size + more), -1);
    }
    print_message("  %zu lengths\n", size + 199);
}

/* ---- forged: header, index and info have the right digest ------------------------------------------------ */

typedef struct forgery {
    const char *what;
    size_t row, field; /* field of that row of the index; row 99: of the header */
    int bytes;
    uint64_t value;
    const char *says;
} forgery;

static void forged_packs(void **state) {
    (void)state;
    static const forgery list[] = {
        {"a count beyond the limit", 99, FK_PACK_COUNT, 4, 0xffffffff, "limits"},
        {"a count beyond the file", 99, FK_PACK_COUNT, 4, 60000, "do not fit"},
        {"one row too many", 99, FK_PACK_COUNT, 4, SEEDS + 1, NULL},
        {"one row too few", 99, FK_PACK_COUNT, 4, SEEDS - 1, NULL},
        {"info beyond the limit", 99, FK_PACK_INFO_BYTES, 4, 0xffffffff, "limits"},
        {"info beyond the file", 99, FK_PACK_INFO_BYTES, 4, 1 << 20, "do not fit"},
        {"a file size of 2^64 - 1", 99, FK_PACK_FILE_BYTES, 8, UINT64_MAX, "truncated"},
        {"a file size of 0", 99, FK_PACK_FILE_BYTES, 8, 0, "size"},
        {"an offset of 0", 1, FK_PACK_ROW_OFFSET, 8, 0, "outside"},
        {"an offset beyond the file", 1, FK_PACK_ROW_OFFSET, 8, 1 << 30, "outside"},
        {"an offset of 2^64 - 1", 1, FK_PACK_ROW_OFFSET, 8, UINT64_MAX, "outside"},
        {"a record of no bytes", 0, FK_PACK_ROW_BYTES, 8, 0, "outside"},
        {"a record of 2^64 - 1 bytes", 0, FK_PACK_ROW_BYTES, 8, UINT64_MAX, "outside"},
        {"a record over the next", 0, FK_PACK_ROW_BYTES, 8, 700, "outside"},
        {"a last record beyond the file", SEEDS - 1, FK_PACK_ROW_BYTES, 8, 100000, "outside"},
        {"a last record that ends early", SEEDS - 1, FK_PACK_ROW_BYTES, 8, 100, "behind the last"},
        {"a GPU without a name", 0, FK_PACK_ROW_GPU, 8, 0, "no GPU"},
        {"a GPU's name that does not end", 2, FK_PACK_ROW_GPU + 8, 8, 0x6161616161616161, "no GPU"},
        {"a GPU's name with a slash", 2, FK_PACK_ROW_GPU, 1, '/', "no GPU"},
        {"padding that is used", 2, FK_PACK_ROW_DRIVER + 4, 4, 1, "padded"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        fk_pack *pack;
        fk_error err;
        const forgery *f = &list[i];
        memcpy(bytes, good, size);
        fk_pack_store(bytes + f->field + (f->row == 99 ? 0 : FK_PACK_HEADER + f->row * FK_PACK_INDEX), f->bytes,
                      f->value);
        pack_forge(bytes);
        fixture_spill(other, bytes, size);
        if (fk_pack_open(other, &pack, &err) == FK_OK) fail_msg("%s: the pack opens", f->what);
        if (f->says && !strstr(err.text, f->says)) fail_msg("%s: %s", f->what, err.text);
    }
    print_message("  %zu forgeries\n", sizeof list / sizeof *list);
}

static void an_index_that_is_not_sorted(void **state) {
    (void)state;
    fk_error err;
    fk_pack *pack;
    for (int a = 0; a < SEEDS; ++a) {
        for (int b = 0; b < a; ++b) { /* names change places, records stay where they are */
            memcpy(bytes, good, size);
            uint8_t *x = bytes + FK_PACK_HEADER + a * FK_PACK_INDEX, *y = bytes + FK_PACK_HEADER + b * FK_PACK_INDEX;
            memcpy(x, good + (y - bytes), FK_PACK_ROW_OFFSET);
            memcpy(y, good + (x - bytes), FK_PACK_ROW_OFFSET);
            pack_forge(bytes);
            fixture_spill(other, bytes, size);
            assert_int_equal(fk_pack_open(other, &pack, &err), FK_IO);
            assert_non_null(strstr(err.text, "not sorted"));
        }
    }
}

/* Which of two would be found? */
static void a_row_that_is_there_twice(void **state) {
    (void)state;
    fk_error err;
    fk_pack *pack;
    uint8_t *x = bytes + FK_PACK_HEADER;
    memcpy(bytes, good, size);
    memcpy(x + FK_PACK_INDEX, x, FK_PACK_ROW_OFFSET);
    pack_forge(bytes);
    fixture_spill(other, bytes, size);
    assert_int_equal(fk_pack_open(other, &pack, &err), FK_IO);
    assert_non_null(strstr(err.text, "not sorted"));
}

/* Every digest is right, but what the record calls an image of sm_80 is none. */
static void a_record_whose_image_is_none(void **state) {
    (void)state;
    fk_pack *pack;
    fk_entry entry;
    fk_sha256 sha;
    memcpy(bytes, good, size);
    uint8_t *row = bytes + FK_PACK_HEADER, *record = bytes + fk_pack_load(row + FK_PACK_ROW_OFFSET, 8);
    const size_t record_bytes = (size_t)fk_pack_load(row + FK_PACK_ROW_BYTES, 8);
    record[record_bytes - PACK_IMAGE] ^= 1;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, record, record_bytes);
    fk_sha256_finish(&sha, row + FK_PACK_ROW_DIGEST);
    pack_forge(bytes);
    fixture_spill(other, bytes, size);
    assert_int_equal(fk_pack_open(other, &pack, NULL), FK_OK);
    assert_false(fk_pack_read(pack, 0, &entry, note, sizeof note));
    assert_int_equal(strncmp(note, "image", 5), 0);
    fk_pack_close(pack);
}

/* Names, digests and all, of two records: the index is right, but what lies there is of another problem. */
static void records_that_change_places(void **state) {
    (void)state;
    uint8_t *row = bytes + FK_PACK_HEADER, name[32];
    fk_pack *pack;
    fk_pack_name("sm_80", "fwd bf16 d8 causal", name);
    memcpy(row, name, 32); /* the first row names what no record is */
    memset(row, 0, 1);     /* and stays the first */
    pack_forge(bytes);
    fixture_spill(other, bytes, size);
    assert_int_equal(fk_pack_open(other, &pack, NULL), FK_OK);
    fk_entry entry;
    assert_false(fk_pack_read(pack, 0, &entry, note, sizeof note));
    assert_int_equal(strncmp(note, "name", 4), 0);
    fk_pack_close(pack);
}

/* ---- joining ------------------------------------------------------------------------------------------- */

static void packs_joined_are_a_pack_of_all(void **state) {
    (void)state;
    static const unsigned few[] = {3, 9}, all[] = {3, 5, 7, 9, 11};
    static const char more_info[] =
        "generator: 0123\nversion: 1.2.3\nshort rows: b\nterm: mask a = 1\nterm: mask causal = k <= q + diag\n";
    static const char *const joined[] = {"term: ", "short rows: ", NULL};
    char third[300];
    fk_pack *packs[2];
    fk_error err;
    snprintf(third, sizeof third, "%s/c.fkpack", dir);
    assert_int_equal(pack_make(other, &fk_vfs_posix, few, 2, more_info, NULL, NULL), FK_OK);
    assert_int_equal(fk_pack_open(path, &packs[0], NULL), FK_OK);
    assert_int_equal(fk_pack_open(other, &packs[1], NULL), FK_OK);
    assert_int_equal(fk_pack_join(third, packs, 2, joined, NULL, NULL), FK_OK);
    size = fixture_slurp(third, good, sizeof good);
    assert_int_equal(pack_make(third, &fk_vfs_posix, all, 5, more_info, NULL, NULL), FK_OK);
    assert_int_equal(fixture_slurp(third, bytes, sizeof bytes), size);
    assert_memory_equal(good, bytes, size);
    fk_pack_close(packs[1]);
    assert_int_equal(pack_make(other, &fk_vfs_posix, few, 2, "generator: 0123\nversion: 4\n", NULL, NULL), FK_OK);
    assert_int_equal(fk_pack_open(other, &packs[1], NULL), FK_OK);
    assert_int_equal(fk_pack_join(third, packs, 2, joined, NULL, &err), FK_BAD_ARGUMENT);
    assert_non_null(strstr(err.text, "b.fkpack says \"version: 4\n"));
    assert_null(strstr(err.text, "generator")); /* which they share */
    fk_pack_close(packs[0]);
    fk_pack_close(packs[1]);
}

/* ---- trust --------------------------------------------------------------------------------------------- */

static fk_status trust(const char *keys, fk_error *err) {
    fk_pack *pack;
    assert_int_equal(fk_pack_open(path, &pack, err), FK_OK);
    const fk_status status = fk_pack_check_trust(pack, keys, err);
    fk_pack_close(pack);
    return status;
}

static void others_may_not_write(void **state) {
    (void)state;
    fk_error err;
    assert_int_equal(trust(NULL, &err), FK_OK);
    assert_int_equal(trust("", &err), FK_OK);
    assert_int_equal(chmod(path, 0664), 0);
    assert_int_equal(trust(NULL, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "0664"));
    setenv("FLASHKILN_CACHE_SHARED", "1", 1);
    assert_int_equal(trust(NULL, &err), FK_OK);
}

static void hex(const uint8_t key[32], char out[65]) {
    for (int i = 0; i < 32; ++i)
        snprintf(out + 2 * i, 3, "%02x", key[i]);
}

static void signatures(void **state) {
    (void)state;
    fk_error err;
    uint8_t secret[32], key[32];
    char mine[65], list[140], wrong[65];
    for (int i = 0; i < 32; ++i)
        secret[i] = (uint8_t)(3 * i + 1);
    memset(wrong, 'a', 64), wrong[64] = 0;
    assert_int_equal(trust(wrong, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "not signed"));
    assert_int_equal(trust("12", &err), FK_BAD_ARGUMENT);
    if (fk_sign_public(secret, key, &err) == FK_UNSUPPORTED) skip();
    hex(key, mine);
    assert_int_equal(pack_make(path, &fk_vfs_posix, seeds, SEEDS, pack_info, secret, &err), FK_OK);
    assert_int_equal(fixture_slurp(path, bytes, sizeof bytes), size);
    assert_memory_equal(bytes, good, FK_PACK_KEY); /* a signature changes nothing else */
    assert_memory_equal(bytes + FK_PACK_HEADER, good + FK_PACK_HEADER, size - FK_PACK_HEADER);
    assert_int_equal(chmod(path, 0666), 0); /* who signed it counts, not who may write to it */
    assert_int_equal(trust(mine, &err), FK_OK);
    snprintf(list, sizeof list, "%s,%s", wrong, mine);
    assert_int_equal(trust(list, &err), FK_OK);
    assert_int_equal(trust(wrong, &err), FK_CHECK_FAILED);
    assert_non_null(strstr(err.text, "another key"));
    memcpy(good, bytes, size);
    for (size_t at = FK_PACK_KEY; at < FK_PACK_HEADER; ++at) { /* key and signature */
        memcpy(bytes, good, size);
        bytes[at] ^= 1;
        fixture_spill(path, bytes, size);
        assert_int_equal(trust(mine, &err), FK_CHECK_FAILED);
    }
    memcpy(bytes, good, size); /* other contents under the same signature */
    bytes[FK_PACK_HEADER + FK_PACK_ROW_DRIVER] ^= 1;
    pack_forge(bytes);
    fixture_spill(path, bytes, size);
    assert_int_equal(trust(mine, &err), FK_CHECK_FAILED);
}

/* RFC 8032, section 7.1, test 2. */
static void the_signature_of_the_rfc(void **state) {
    (void)state;
    static const uint8_t secret[32] = {0x4c, 0xcd, 0x08, 0x9b, 0x28, 0xff, 0x96, 0xda, 0x9d, 0xb6, 0xc3,
                                       0x46, 0xec, 0x11, 0x4e, 0x0f, 0x5b, 0x8a, 0x31, 0x9f, 0x35, 0xab,
                                       0xa6, 0x24, 0xda, 0x8c, 0xf6, 0xed, 0x4f, 0xb8, 0xa6, 0xfb},
                         want[8] = {0x92, 0xa0, 0x09, 0xa9, 0xf0, 0xd4, 0xca, 0xb8};
    uint8_t signature[64], key[32];
    fk_error err;
    if (fk_sign(secret, "\x72", 1, signature, &err) == FK_UNSUPPORTED) skip();
    assert_memory_equal(signature, want, sizeof want);
    assert_int_equal(fk_sign_public(secret, key, &err), FK_OK);
    assert_int_equal(key[0], 0x3d);
    assert_int_equal(fk_sign_check(key, "\x72", 1, signature, &err), FK_OK);
    assert_int_equal(fk_sign_check(key, "\x73", 1, signature, &err), FK_CHECK_FAILED);
}

static void what_is_no_pack(void **state) {
    (void)state;
    fk_pack *pack;
    assert_int_equal(fk_pack_open(dir, &pack, NULL), FK_IO);
    assert_int_equal(fk_pack_open("/nonexistent", &pack, NULL), FK_IO);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_int_equal(fk_pack_open(other, &pack, NULL), FK_IO); /* and does not hang */
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(serves_what_was_put),
        IN_FOLDER(an_empty_pack),
        IN_FOLDER(equal_contents_are_equal_bytes),
        IN_FOLDER(what_cannot_be_written),
        IN_FOLDER(every_flipped_byte),
        IN_FOLDER(every_length),
        IN_FOLDER(forged_packs),
        IN_FOLDER(an_index_that_is_not_sorted),
        IN_FOLDER(a_row_that_is_there_twice),
        IN_FOLDER(a_record_whose_image_is_none),
        IN_FOLDER(records_that_change_places),
        IN_FOLDER(packs_joined_are_a_pack_of_all),
        IN_FOLDER(others_may_not_write),
        IN_FOLDER(signatures),
        IN_FOLDER(the_signature_of_the_rfc),
        IN_FOLDER(what_is_no_pack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
