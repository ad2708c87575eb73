/* No damage gets through: an entry cut at any length, or with any one bit turned, is a miss that says why and is
 * removed; an image of another architecture is neither stored nor served. */
#include "fixture.h"

static char *dir;
static fk_store *store;
static char note[160];

static int open_store(void **state) {
    (void)state;
    fixture_clear_environment();
    dir = fixture_folder();
    return fk_store_open(dir, FK_CACHE_NORMAL, &store, NULL) != FK_OK;
}

static int close_store(void **state) {
    (void)state;
    fk_store_close(store);
    scratch_remove(dir);
    free(dir);
    return 0;
}

enum { SMALL = 80 };

static size_t small_entry(char path[512], uint8_t bytes[2048]) {
    assert_true(fixture_put(store, 1, SMALL, note, sizeof note));
    fixture_path(store, 1, path, 512);
    return fixture_slurp(path, bytes, 2048);
}

static void assert_damage(const char *path) {
    assert_int_equal(fixture_get(store, 1, SMALL, note, sizeof note), 0);
    assert_true(note[0]);
    assert_string_not_equal(note, "absent");
    assert_string_not_equal(note, "hit");
    assert_false(fixture_exists(path));
}

static void every_length_but_the_right_one(void **state) {
    (void)state;
    char path[512];
    uint8_t bytes[2048] = {0};
    const size_t size = small_entry(path, bytes);
    for (size_t cut = 0; cut < size + 40; ++cut) {
        if (cut == size) continue;
        fixture_spill(path, bytes, cut);
        assert_damage(path);
        if (cut < size) assert_memory_equal(note, "truncated: ", 11);
    }
    fixture_spill(path, bytes, size);
    assert_int_equal(fixture_get(store, 1, SMALL, note, sizeof note), 1);
    print_message("  %zu lengths of an entry of %zu bytes: all refused\n", size + 39, size);
}

static void every_bit(void **state) {
    (void)state;
    char path[512];
    uint8_t bytes[2048];
    const size_t size = small_entry(path, bytes);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        fixture_spill(path, bytes, size);
        assert_damage(path);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    print_message("  %zu bits flipped, one at a time: all refused\n", 8 * size);
}

/* Gives damaged bytes a checksum that fits, as a buggy writer would. */
static void seal(uint8_t *bytes, size_t size) {
    fk_sha256 sha;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, bytes, size - 32);
    fk_sha256_finish(&sha, bytes + size - 32);
}

static void a_fitting_checksum_is_not_enough(void **state) {
    (void)state;
    char path[512], other[512];
    uint8_t bytes[2048];
    const size_t size = small_entry(path, bytes);

    bytes[size - 32 - SMALL + 49] = 90; /* e_flags: another SM */
    seal(bytes, size);
    fixture_spill(path, bytes, size);
    assert_damage(path);
    assert_string_equal(note, "image: holds sm_90, target is sm_80");
    bytes[size - 32 - SMALL + 49] = 80;

    uint8_t *number = memmem(bytes, size, "threads: 128", 12);
    assert_non_null(number);
    memcpy(number, "threads: +28", 12); /* reads as a number, but is not how one is spelled */
    seal(bytes, size);
    fixture_spill(path, bytes, size);
    assert_damage(path);
    assert_string_equal(note, "header: not in canonical form");
    memcpy(number, "threads: 128", 12);

    seal(bytes, size);
    fixture_path(store, 2, other, sizeof other);
    char *slash = strrchr(other, '/');
    *slash = 0;
    mkdir(other, 0700);
    *slash = '/';
    fixture_spill(other, bytes, size); /* right in itself, under another kernel's name */
    assert_int_equal(fixture_get(store, 2, SMALL, note, sizeof note), 0);
    assert_memory_equal(note, "name: ", 6);
    assert_false(fixture_exists(other));
}

static bool put_image(const char *target, const void *image, size_t size) {
    fk_entry entry;
    fixture_entry(7, 64, &entry);
    free(entry.image);
    strcpy(entry.target, target);
    entry.image = malloc(size);
    assert_non_null(entry.image);
    memcpy(entry.image, image, size);
    entry.image_bytes = (int64_t)size;
    fk_entry got;
    const bool stored = fk_store_put(store, &entry, note, sizeof note);
    if (stored) {
        char path[512], why[160];
        assert_true(fk_store_get(store, entry.key, target, &got, why, sizeof why));
        assert_int_equal(((char *)got.image)[size], 0);
        fk_entry_free(&got);
        fk_store_entry_path(store, entry.key, target, path, sizeof path);
        assert_int_equal(unlink(path), 0);
    }
    fk_entry_free(&entry);
    return stored;
}

static void images_must_fit_their_target(void **state) {
    (void)state;
    uint8_t cubin[64], host[64];
    fixture_cubin(cubin, 90);
    assert_true(put_image("sm_90", cubin, 64));
    assert_true(put_image("sm_90a", cubin, 64));
    assert_false(put_image("sm_80", cubin, 64));
    assert_string_equal(note, "image: holds sm_90, target is sm_80");
    assert_false(put_image("sm_9", cubin, 64));
    assert_false(put_image("sm_90", cubin, 63));
    assert_false(put_image("emu", cubin, 64));
    assert_false(put_image("compute_90", cubin, 64));
    assert_false(put_image("amd", cubin, 64));
    fixture_cubin(cubin, 0); /* the layout of CUDA 12 and before */
    cubin[8] = 7;
    cubin[48] = 86;
    cubin[49] = 5;
    assert_true(put_image("sm_86", cubin, 64));
    assert_false(put_image("sm_80", cubin, 64));

    FILE *self = fopen("/proc/self/exe", "rb");
    assert_non_null(self);
    assert_int_equal(fread(host, 1, 64, self), 64);
    fclose(self);
    assert_true(put_image("emu", host, 64));
    assert_false(put_image("sm_80", host, 64));
    assert_string_equal(note, "image: target sm_80 needs a CUDA ELF file");

    static const char ptx[] = ".version 9.0\n.target sm_75\n.address_size 64\n";
    assert_true(put_image("compute_75", ptx, sizeof ptx));
    assert_false(put_image("compute_80", ptx, sizeof ptx));
    assert_string_equal(note, "image: PTX for sm_75, target is compute_80");
    assert_false(put_image("compute_7", ptx, sizeof ptx));
    assert_false(put_image("compute_75a", ptx, sizeof ptx));
    assert_false(put_image("emu", ptx, sizeof ptx));
    assert_true(put_image("compute_75", ptx, strlen(".version 9.0\n.target sm_75")));
    assert_false(put_image("compute_75", ptx, strlen(".version 9.0\n.target sm_7")));
}

static bool put_changed(void (*change)(fk_entry *)) {
    fk_entry entry;
    fixture_entry(9, 64, &entry);
    change(&entry);
    const bool stored = fk_store_put(store, &entry, note, sizeof note);
    fk_entry_free(&entry);
    return stored;
}

static void newline_in_spelling(fk_entry *e) {
    strcpy(e->spelling, "fwd\nkey: x");
}
static void endless_compiler(fk_entry *e) {
    memset(e->compiler, 'x', sizeof e->compiler);
}
static void key_with_slash(fk_entry *e) {
    e->key[5] = '/';
}
static void short_key(fk_entry *e) {
    e->key[63] = 0;
}
static void target_with_dots(fk_entry *e) {
    strcpy(e->target, "../../x");
}
static void no_image(fk_entry *e) {
    e->image_bytes = 0;
}
static void nan_time(fk_entry *e) {
    e->compile_ms = __builtin_nan("");
}
static void negative_time(fk_entry *e) {
    e->compile_ms = -1;
}
static void huge_image(fk_entry *e) {
    e->image_bytes = FK_ENTRY_MAX_BYTES + 1;
}
static void no_text(fk_entry *e) {
    free(e->text), e->text = NULL;
}
static void longest_fields(fk_entry *e) {
    memset(e->spelling, 's', sizeof e->spelling - 1);
    memset(e->compiler, 'c', sizeof e->compiler - 1);
    memset(e->entry, 'e', sizeof e->entry - 1);
    e->registers = e->spill_bytes = e->serialized_wgmma = e->smem_static = e->smem_dynamic = e->threads = INT32_MIN;
    e->compile_ms = 999999999999.0;
}

static void fields_that_cannot_be_stored(void **state) {
    (void)state;
    void (*const bad[])(fk_entry *) = {newline_in_spelling, endless_compiler, key_with_slash, short_key,
                                       target_with_dots,    no_image,         nan_time,       negative_time};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        assert_false(put_changed(bad[i]));
        assert_memory_equal(note, "field: ", 7);
    }
    assert_int_equal(fixture_count(dir, ""), 0);
}

static void extremes_that_can(void **state) {
    (void)state;
    void (*const good[])(fk_entry *) = {no_text, longest_fields};
    for (size_t i = 0; i < sizeof good / sizeof *good; ++i) {
        fk_entry want, got;
        fixture_entry(20 + (unsigned)i, 64, &want);
        good[i](&want);
        assert_true(fk_store_put(store, &want, note, sizeof note));
        assert_true(fk_store_get(store, want.key, want.target, &got, note, sizeof note));
        assert_true(fixture_equal(&want, &got));
        fk_entry_free(&want);
        fk_entry_free(&got);
    }
}

static void too_large_an_image(void **state) {
    (void)state;
    fk_entry entry;
    char header[FK_ENTRY_HEADER_MAX];
    size_t size;
    fixture_entry(9, 64, &entry);
    huge_image(&entry);
    assert_false(fk_entry_header_write(&entry, header, &size, (fk_note){note, sizeof note}));
    assert_non_null(strstr(note, "image_bytes 67108865"));
    fk_entry_free(&entry);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_length_but_the_right_one, open_store, close_store),
        cmocka_unit_test_setup_teardown(every_bit, open_store, close_store),
        cmocka_unit_test_setup_teardown(a_fitting_checksum_is_not_enough, open_store, close_store),
        cmocka_unit_test_setup_teardown(images_must_fit_their_target, open_store, close_store),
        cmocka_unit_test_setup_teardown(fields_that_cannot_be_stored, open_store, close_store),
        cmocka_unit_test_setup_teardown(extremes_that_can, open_store, close_store),
        cmocka_unit_test_setup_teardown(too_large_an_image, open_store, close_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
