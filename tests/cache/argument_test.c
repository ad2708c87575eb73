/* What callers may get wrong: keys, targets, names, sizes, null pointers. Nothing is read or written then, and the
 * message says what is wrong. */
#include "folder.h"

static const char hex[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

static const struct {
    const char *key, *target;
} wrong[] = {
    {NULL, "sm_80"},
    {"", "sm_80"},
    {"0011", "sm_80"},
    {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeefg", "sm_80"},
    {"00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF", "sm_80"},
    {"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff0", "sm_80"},
    {hex, NULL},
    {hex, ""},
    {hex, "sm_80 "},
    {hex, "SM_80"},
    {hex, "sm_8012345678901"}, /* 16 bytes: there is no room for its zero */
};

static void keys_and_targets(void **state) {
    (void)state;
    char name[FK_ENTRY_NAME_MAX], key[65], target[16];
    assert_true(fk_key_valid(hex) && fk_target_valid("compute_75") && fk_target_valid("sm_801234567890"));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(fk_key_valid(wrong[i].key) && fk_target_valid(wrong[i].target));
    fk_entry_name_join(hex, "sm_90a", name);
    assert_true(fk_entry_name_split(name, key, target));
    assert_string_equal(key, hex);
    assert_string_equal(target, "sm_90a");
    name[3] = 'G';
    assert_false(fk_entry_name_split(name, key, target));
    static const char *const names[] = {"",
                                        "locks",
                                        "tmp.1",
                                        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
                                        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.",
                                        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff-sm_80",
                                        "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.SM"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_false(fk_entry_name_split(names[i], key, target));
}

static void no_act_on_a_wrong_key(void **state) {
    (void)state;
    fk_entry entry;
    char path[512] = "as it was";
    assert_true(put(FK_CACHE_NORMAL, 1, 64));
    fk_store *store = open_store(dir, FK_CACHE_NORMAL);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(fk_store_get(store, wrong[i].key, wrong[i].target, &entry, note, sizeof note));
        assert_string_equal(note, "field: not a key or not a target");
        fk_store_drop(store, wrong[i].key, wrong[i].target);
        fk_store_entry_path(store, wrong[i].key, wrong[i].target, path, sizeof path);
        assert_string_equal(path, "");
        if (wrong[i].key && strcmp(wrong[i].key, hex)) {
            fk_store_lock(store, wrong[i].key);
            fk_store_unlock(store, wrong[i].key);
        }
    }
    assert_int_equal(fixture_count(dir, ""), 1);
    /* A path that does not fit is none. */
    memset(path, 'x', sizeof path);
    fk_store_entry_path(store, hex, "sm_80", path, 0);
    assert_int_equal(path[0], 'x');
    fk_store_entry_path(store, hex, "sm_80", path, 20);
    assert_string_equal(path, "");
    fk_store_entry_path(store, hex, "sm_80", path, sizeof path);
    assert_non_null(strstr(path, "/v2/00/00112233"));
    fk_store_close(store);
    store = open_store(dir, FK_CACHE_OFF);
    fk_store_entry_path(store, hex, "sm_80", path, sizeof path);
    assert_string_equal(path, "");
    fk_store_lock(store, hex);
    fk_store_unlock(store, hex);
    fk_store_drop(store, hex, "sm_80");
    fk_store_destroy(store); /* a store that is off holds nothing to remove */
    fk_store_close(store);
    assert_int_equal(fixture_count(dir, ""), 1);
    fk_store_close(NULL);
    fk_entry_free(NULL);
}

static void entries_without_an_image(void **state) {
    (void)state;
    fk_entry entry;
    fk_store *store = open_store(dir, FK_CACHE_NORMAL);
    fixture_entry(1, 64, &entry);
    void *image = entry.image;
    entry.image = NULL;
    assert_false(fk_store_put(store, &entry, note, sizeof note));
    assert_string_equal(note, "field: there is no image");
    assert_false(fk_store_put(store, &entry, NULL, 0)); /* nobody need listen */
    entry.image = image, entry.image_bytes = -1;
    assert_false(fk_store_put(store, &entry, note, sizeof note));
    assert_string_equal(note, "field: there is no image");
    fk_store_close(store);
    fk_entry_free(&entry);
    assert_int_equal(fixture_count(dir, ""), 0);
}

/* Headers as they are written into packs, whose entries no store has looked at. */
static void headers_that_cannot_be_written(void **state) {
    (void)state;
    static const struct {
        double compile_ms;
        int64_t image_bytes;
        const char *says;
    } rows[] = {{-1, 64, "field: compile_ms is -1, need 0 to 1e12"},
                {2e12, 64, "field: compile_ms is 2e+12, need 0 to 1e12"},
                {1, 0, "field: image_bytes is 0, need at least 1"},
                {1, FK_ENTRY_MAX_BYTES + 1, "field: image_bytes "}};
    char header[FK_ENTRY_HEADER_MAX];
    size_t size;
    fk_entry entry;
    const fk_note told = {note, sizeof note};
    fixture_entry(1, 64, &entry);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fk_entry bad = entry;
        bad.compile_ms = rows[i].compile_ms, bad.image_bytes = rows[i].image_bytes;
        assert_false(fk_entry_header_write(&bad, header, &size, told));
        assert_memory_equal(note, rows[i].says, strlen(rows[i].says));
    }
    fk_entry bad = entry;
    bad.key[0] = 'x';
    assert_false(fk_entry_header_write(&bad, header, &size, told));
    assert_string_equal(note, "field: key is not 64 lower-case hex digits");
    bad = entry, strcpy(bad.target, "sm-80");
    assert_false(fk_entry_header_write(&bad, header, &size, told));
    assert_string_equal(note, "field: target is not 1 to 15 of a-z, 0-9 and _");
    bad = entry, bad.image = NULL;
    assert_false(fk_entry_header_write(&bad, header, &size, told));
    assert_string_equal(note, "field: image_bytes is 64, need at least 1");
    assert_true(fk_entry_header_write(&entry, header, &size, told) && size > 0);
    fk_entry_free(&entry);
}

/* Every line of a header with every value that a writer would not have written there. */
static void header_lines(void **state) {
    (void)state;
    static const struct {
        const char *line, *value, *says;
    } rows[] = {
        {"threads", "", "header: line \"threads\" is damaged"},
        {"threads", "12345678901234567890123456789", "header: line \"threads\" is damaged"},
        {"threads", "99999999999999999999", "header: line \"threads\" is damaged"}, /* more than 64 bits */
        {"threads", "4294967424", "header: line \"threads\" is damaged"},           /* more than 32 */
        {"threads", "128x", "header: line \"threads\" is damaged"},
        {"threads", "0128", "header: not in canonical form"},
        {"target", "sm_801234567890123", "header: line \"target\" is damaged"},
        {"target", "sm\t80", "header: a field holds a control character"},
        {"target", "SM_80", "header: a field is out of range"},
        {"target", "", "header: a field is out of range"},
        {"image_bytes", "0", "header: a field is out of range"},
        {"image_bytes", "-5", "header: a field is out of range"},
        {"image_bytes", "9000000000000000000", "header: a field is out of range"},
        {"text_bytes", "-1", "header: a field is out of range"},
        {"text_bytes", "9000000000000000000", "header: a field is out of range"},
        {"compile_us", "-1", "header: a field is out of range"},
    };
    char header[FK_ENTRY_HEADER_MAX], changed[FK_ENTRY_HEADER_MAX + 64];
    size_t size;
    fk_entry entry;
    fk_entry_header back;
    const fk_note told = {note, sizeof note};
    fixture_entry(1, 64, &entry);
    assert_true(fk_entry_header_write(&entry, header, &size, told));
    header[size] = 0;
    assert_true(fk_entry_header_read(header, size, &back, told));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char start[32];
        snprintf(start, sizeof start, "\n%s: ", rows[i].line);
        const char *at = strstr(header, start) + strlen(start), *end = strchr(at, '\n');
        const int used = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - header), header, rows[i].value, end);
        if (fk_entry_header_read(changed, (size_t)used, &back, told) || strcmp(note, rows[i].says))
            fail_msg("%s: %s: \"%s\"", rows[i].line, rows[i].value, note);
    }
    fk_entry_free(&entry);
}

#define SAYS(call, status, text)                                                                                       \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        assert_string_equal(fk_last_error(), text);                                                                    \
    } while (0)

static void public_calls(void **state) {
    (void)state;
    char path[300], text[400];
    fk_cache_entry *entries;
    size_t count;
    SAYS(fk_cache_path(dir, NULL, 10), FK_BAD_ARGUMENT, "out is null, or its size 0");
    SAYS(fk_cache_path(dir, path, 0), FK_BAD_ARGUMENT, "out is null, or its size 0");
    snprintf(text, sizeof text, "size is 3, the path needs %zu bytes", strlen(dir) + 1);
    SAYS(fk_cache_path(dir, path, 3), FK_BAD_ARGUMENT, text);
    assert_int_equal(fk_cache_path(dir, path, sizeof path), FK_OK);
    assert_string_equal(path, dir);
    assert_int_equal(fk_cache_path(NULL, path, sizeof path), FK_IO); /* there is no HOME */
    assert_memory_equal(fk_last_error(), "cache ", 6);
    SAYS(fk_cache_list(dir, NULL, &count), FK_BAD_ARGUMENT, "entries or count is null");
    SAYS(fk_cache_verify(dir, &entries, NULL), FK_BAD_ARGUMENT, "entries or count is null");
    fk_store *store;
    fk_error err;
    assert_int_equal(fk_store_open(dir, -1, &store, &err), FK_BAD_ARGUMENT);
    assert_string_equal(err.text, "cache_mode is -1, need 0 to 4");
}

static void *no_memory(void *memory, size_t size) {
    (void)memory, (void)size;
    return NULL;
}

static void without_memory(void **state) {
    (void)state;
    fk_vfs vfs = fk_vfs_posix;
    fk_store *store;
    fk_error err;
    vfs.resize = no_memory;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &store, &err), FK_NO_MEMORY);
    assert_memory_equal(err.text, "no memory for a store of ", 25);
}

int main(void) {
    const struct CMUnitTest tests[] = {IN_FOLDER(keys_and_targets),
                                       IN_FOLDER(no_act_on_a_wrong_key),
                                       IN_FOLDER(entries_without_an_image),
                                       IN_FOLDER(headers_that_cannot_be_written),
                                       IN_FOLDER(header_lines),
                                       IN_FOLDER(public_calls),
                                       IN_FOLDER(without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
