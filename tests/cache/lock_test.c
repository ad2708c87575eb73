/* Locks exclude processes and threads, end with their holder, and never hold anybody up for more than a minute. */
#include "folder.h"

#include <pthread.h>
#include <sys/mman.h>

static unsigned slept_ms;
static void count_sleep(unsigned ms) {
    slept_ms += ms;
}
static int remote(int fd) {
    (void)fd;
    return 1;
}

static void lock_times_out(void **state) {
    (void)state;
    char key[65], other[65];
    fixture_key(1, key);
    fixture_key(2, other);
    fk_vfs vfs = fk_vfs_posix;
    vfs.sleep_ms = count_sleep;
    fk_store *holder = open_store(dir, FK_CACHE_NORMAL), *waiter;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &waiter, NULL), FK_OK);
    fk_store_lock(holder, key);
    slept_ms = 0;
    fk_store_lock(waiter, other);
    assert_int_equal(slept_ms, 0);
    fk_store_unlock(waiter, other);
    memcpy(other, key, sizeof other); /* of a key that begins alike, too */
    other[14] = key[14] == '0' ? '1' : '0';
    fk_store_lock(waiter, other);
    assert_int_equal(slept_ms, 0);
    fk_store_unlock(waiter, other);
    fk_store_lock(waiter, key);
    assert_in_range(slept_ms, 60000, 61000);
    fk_store_unlock(waiter, key); /* it was not had: the holder keeps it */
    slept_ms = 0;
    fk_store_lock(waiter, key);
    assert_in_range(slept_ms, 60000, 61000);
    fk_store_unlock(holder, key);
    slept_ms = 0;
    fk_store_lock(waiter, key);
    assert_int_equal(slept_ms, 0);
    fk_store_close(waiter); /* with a lock held: it ends */

    vfs.is_remote = remote;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &waiter, NULL), FK_OK);
    fk_store_lock(holder, key);
    fk_store_lock(waiter, key); /* no lock where it could hang */
    assert_int_equal(slept_ms, 0);
    fk_store_unlock(waiter, key);
    fk_store_close(waiter);
    fk_store_close(holder);
}

typedef struct hold {
    fk_store *store;
    int held[2], release[2]; /* pipes */
} hold;

static void *hold_one(void *argument) {
    hold *h = argument;
    char key[65], byte = 0;
    fixture_key(1, key);
    fk_store_lock(h->store, key);
    if (write(h->held[1], &byte, 1) != 1 || read(h->release[0], &byte, 1) != 1) abort();
    fk_store_unlock(h->store, key);
    return NULL;
}

static void a_late_thread_releases_only_its_own(void **state) {
    (void)state;
    char key[65], byte = 0;
    hold h;
    pthread_t thread;
    fixture_key(1, key);
    fk_vfs vfs = fk_vfs_posix;
    vfs.sleep_ms = count_sleep;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &h.store, NULL), FK_OK);
    assert_int_equal(pipe(h.held) + pipe(h.release), 0);
    assert_int_equal(pthread_create(&thread, NULL, hold_one, &h), 0);
    assert_int_equal(read(h.held[0], &byte, 1), 1);
    for (int i = 0; i < 2; ++i) { /* the second wait shows that the first unlock left the other thread's lock alone */
        slept_ms = 0;
        fk_store_lock(h.store, key);
        assert_in_range(slept_ms, 60000, 61000);
        fk_store_unlock(h.store, key);
    }
    assert_int_equal(write(h.release[1], &byte, 1), 1);
    pthread_join(thread, NULL);
    slept_ms = 0;
    fk_store_lock(h.store, key);
    assert_int_equal(slept_ms, 0);
    fk_store_unlock(h.store, key);
    for (int i = 0; i < 2; ++i)
        close(h.held[i]), close(h.release[i]);
    fk_store_close(h.store);
}

static void a_dead_holder_holds_nothing(void **state) {
    (void)state;
    char key[65];
    fixture_key(1, key);
    fk_store *store = open_store(dir, FK_CACHE_NORMAL);
    const pid_t child = fork();
    if (child == 0) {
        fk_store_lock(store, key);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    fk_vfs vfs = fk_vfs_posix;
    vfs.sleep_ms = count_sleep;
    slept_ms = 0;
    fk_store *waiter;
    assert_int_equal(fk_store_open_with(dir, FK_CACHE_NORMAL, &vfs, &waiter, NULL), FK_OK);
    fk_store_lock(waiter, key);
    assert_int_equal(slept_ms, 0);
    fk_store_unlock(waiter, key);
    fk_store_close(waiter);
    fk_store_close(store);
}

typedef struct tally {
    fk_store *store;
    volatile int inside, together, turns;
} tally;

static void *take_turns(void *argument) {
    tally *t = argument;
    char key[65];
    fixture_key(1, key);
    for (int i = 0; i < 10; ++i) {
        fk_store_lock(t->store, key);
        if (t->inside++) t->together++;
        const struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
        t->turns++;
        t->inside--;
        fk_store_unlock(t->store, key);
    }
    return NULL;
}

static void one_at_a_time(void **state) {
    (void)state;
    tally *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t != MAP_FAILED);
    t->store = open_store(dir, FK_CACHE_NORMAL);
    pid_t child[3];
    for (int i = 0; i < 3; ++i) {
        child[i] = fork();
        if (child[i] == 0) {
            take_turns(t);
            _exit(0);
        }
    }
    pthread_t thread[3]; /* threads of one store exclude each other too */
    for (int i = 0; i < 3; ++i)
        assert_int_equal(pthread_create(&thread[i], NULL, take_turns, t), 0);
    for (int i = 0; i < 3; ++i)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 3; ++i)
        assert_int_equal(waitpid(child[i], NULL, 0), child[i]);
    assert_int_equal(t->together, 0);
    assert_int_equal(t->turns, 60);
    fk_store_close(t->store);
    munmap(t, sizeof *t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(lock_times_out),
        IN_FOLDER(a_late_thread_releases_only_its_own),
        IN_FOLDER(a_dead_holder_holds_nothing),
        IN_FOLDER(one_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
