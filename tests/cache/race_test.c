/* Sixteen processes put, get, damage, list and prune the same few keys at once. No get ever returns a wrong entry, and
 * what nobody damaged is there in the end. */
#include "fixture.h"

enum { PROCESSES = 16, SHARED_KEYS = 6, OWN_KEYS = 3, ROUNDS = 120, BYTES = 3000, WRONG = 10 };

static unsigned own_seed(int process, int i) {
    return 1000 + (unsigned)(process * OWN_KEYS + i);
}

/* Turns a bit of a live entry in place, or cuts it: what no writer of ours does, but a disk or a stray program may. */
static void vandalise(fk_store *store, unsigned seed, uint32_t random) {
    char path[512];
    uint8_t byte;
    fixture_path(store, seed, path, sizeof path);
    const int fd = open(path, O_RDWR);
    if (fd < 0) return;
    const off_t at = (off_t)(random % BYTES);
    if (random % 4 == 0 && ftruncate(fd, at)) _exit(WRONG + 1);
    if (random % 4 != 0 && pread(fd, &byte, 1, at) == 1) {
        byte ^= (uint8_t)(1u << random % 8);
        if (pwrite(fd, &byte, 1, at) != 1) _exit(WRONG + 2);
    }
    close(fd);
}

static void child_main(const char *dir, int process) {
    char note[160], key[65];
    fk_store *store;
    fk_cache_entry *entries;
    size_t count;
    uint32_t x = (uint32_t)process * 977 + 1;
    if (fk_store_open(dir, FK_CACHE_NORMAL, &store, NULL) != FK_OK) _exit(WRONG + 3);
    for (int i = 0; i < OWN_KEYS; ++i)
        if (!fixture_put(store, own_seed(process, i), BYTES, note, sizeof note)) _exit(WRONG + 4);
    for (int round = 0; round < ROUNDS; ++round) {
        x = x * 1664525u + 1013904223u;
        const unsigned seed = (x >> 8) % SHARED_KEYS, act = (x >> 20) % 32;
        fixture_key(seed, key);
        if (act == 0 && process % 4 == 0) vandalise(store, seed, x >> 7);
        if (act == 1 && fk_store_prune(store, -1, NULL, NULL, NULL) != FK_OK) _exit(WRONG + 5);
        if (act == 2) {
            if (fk_store_list(store, true, &entries, &count, NULL) != FK_OK) _exit(WRONG + 6);
            free(entries);
        }
        int got = fixture_get(store, seed, BYTES, note, sizeof note);
        if (got == 0) {
            fk_store_lock(store, key);
            got = fixture_get(store, seed, BYTES, note, sizeof note);
            if (got == 0) fixture_put(store, seed, BYTES, note, sizeof note);
            fk_store_unlock(store, key);
        }
        if (got < 0) _exit(WRONG);
        if (fixture_get(store, own_seed(process, round % OWN_KEYS), BYTES, note, sizeof note) != 1) _exit(WRONG + 7);
    }
    fk_store_close(store);
    _exit(0);
}

static void sixteen_processes(void **state) {
    (void)state;
    char *dir = fixture_folder(), note[160];
    pid_t child[PROCESSES];
    for (int i = 0; i < PROCESSES; ++i) {
        child[i] = fork();
        if (child[i] == 0) child_main(dir, i);
        assert_true(child[i] > 0);
    }
    for (int i = 0; i < PROCESSES; ++i) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    fk_store *store;
    assert_int_equal(fk_store_open(dir, FK_CACHE_NORMAL, &store, NULL), FK_OK);
    for (int i = 0; i < PROCESSES; ++i)
        for (int j = 0; j < OWN_KEYS; ++j)
            assert_int_equal(fixture_get(store, own_seed(i, j), BYTES, note, sizeof note), 1);
    assert_int_equal(fixture_count(dir, "tmp."), 0);
    fk_store_close(store);
    scratch_remove(dir);
    free(dir);
}

/* All start together on one key: exactly one stores it, the others learn that it is present. */
static void one_winner(void **state) {
    (void)state;
    char *dir = fixture_folder(), note[160];
    for (unsigned seed = 0; seed < 10; ++seed) {
        int gate[2], stored = 0;
        assert_int_equal(pipe(gate), 0);
        pid_t child[PROCESSES];
        for (int i = 0; i < PROCESSES; ++i) {
            child[i] = fork();
            if (child[i] != 0) continue;
            char byte;
            fk_store *store;
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0) _exit(WRONG); /* until the parent opens the gate */
            if (fk_store_open(dir, FK_CACHE_NORMAL, &store, NULL) != FK_OK) _exit(WRONG);
            const bool mine = fixture_put(store, seed, BYTES, note, sizeof note);
            if (!mine && strncmp(note, "present", 7)) _exit(WRONG);
            if (fixture_get(store, seed, BYTES, note, sizeof note) != 1) _exit(WRONG);
            fk_store_close(store);
            _exit(mine ? 1 : 0);
        }
        close(gate[0]);
        close(gate[1]);
        for (int i = 0; i < PROCESSES; ++i) {
            int status;
            assert_int_equal(waitpid(child[i], &status, 0), child[i]);
            assert_true(WIFEXITED(status));
            assert_in_range(WEXITSTATUS(status), 0, 1);
            stored += WEXITSTATUS(status);
        }
        assert_int_equal(stored, 1);
    }
    scratch_remove(dir);
    free(dir);
}

int main(void) {
    fixture_clear_environment();
    const struct CMUnitTest tests[] = {cmocka_unit_test(sixteen_processes), cmocka_unit_test(one_winner)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
