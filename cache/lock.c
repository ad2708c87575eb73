/* Keeps processes from compiling the same kernel at the same time. Only work is saved by it: what is right rests on the
 * atomic publish, so every failure here means to go on without a lock.
 *
 * One byte of the file v2/locks stands for a key. Open-file-description locks vanish with their holder, leave no
 * litter, and exclude threads too, since each taker opens the file anew. Whole-file lock *existence* would outlive a
 * crash. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { LOCK_TIMEOUT_MS = 60000, LONGEST_SLEEP_MS = 64 };

/* 60 bits of the key: two keys share a byte once in 2^30 stored keys, and then only wait for each other. */
static int64_t offset_of(const char *key) {
    char digits[16];
    memcpy(digits, key, 15);
    digits[15] = 0;
    return (int64_t)strtoull(digits, NULL, 16);
}

static bool acquire(const fk_vfs *vfs, int fd, int64_t offset) {
    unsigned sleep = 1;
    for (unsigned waited = 0;; waited += sleep, sleep = sleep < LONGEST_SLEEP_MS ? 2 * sleep : sleep) {
        if (!vfs->lock(fd, offset, 1)) return true;
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || waited >= LOCK_TIMEOUT_MS) return false;
        vfs->sleep_ms(sleep);
    }
}

void fk_store_lock(fk_store *store, const char key[65]) {
    const fk_vfs *vfs = store->vfs;
    const fk_note none = {NULL, 0};
    if (store->reason[0] || !store->writable || !fk_key_valid(key)) return;
    const int root = fk_store_open_root(store, true, none);
    if (root < 0) return;
    fk_held_lock *held = vfs->resize(NULL, sizeof *held);
    int fd = -1;
    /* On a network file system a lock may hang, or be a lie. */
    if (held && vfs->is_remote(root) == 0)
        fd = fk_vfs_open_retry(vfs, root, "locks", O_RDWR | O_CREAT | O_NONBLOCK, store->shared ? 0666 : 0600);
    vfs->close(root);
    if (fd < 0 || !acquire(vfs, fd, offset_of(key))) {
        if (fd >= 0) vfs->close(fd);
        free(held);
        return;
    }
    memcpy(held->key, key, sizeof held->key);
    held->fd = fd;
    held->owner = pthread_self();
    pthread_mutex_lock(&store->mutex);
    held->next = store->held;
    store->held = held;
    pthread_mutex_unlock(&store->mutex);
}

void fk_store_unlock(fk_store *store, const char key[65]) {
    pthread_mutex_lock(&store->mutex);
    fk_held_lock **link = &store->held, *held;
    while ((held = *link) && (strcmp(held->key, key) || !pthread_equal(held->owner, pthread_self())))
        link = &held->next;
    if (held) *link = held->next;
    pthread_mutex_unlock(&store->mutex);
    if (!held) return; /* the lock was not had: time-out, read-only, network file system */
    store->vfs->lock(held->fd, offset_of(key), 0);
    store->vfs->close(held->fd);
    free(held);
}

void fk_store_hold(fk_store *store) {
    pthread_mutex_lock(&store->mutex);
}

void fk_store_release(fk_store *store) {
    pthread_mutex_unlock(&store->mutex);
}
