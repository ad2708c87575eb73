/* Problem bytes -> kernel, within a microsecond.
 *
 * A node's key is the used prefix of an fk_problem: all fields up to the masks, and num_masks masks; the whole where
 * scores or arrays lie behind them. Two kinds of nodes
 * point to the same slots: one under the canonical bytes, and aliases under bytes that a caller once passed. So a
 * caller who passes the same struct again is found by hash and compare, and canonicalisation (which reads mask files)
 * is done for new bytes only. Aliases are capped, since bytes behind a string's zero may be anything. */
#include "object.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ALIASES 4096 /* of up to 3 KB each */

struct fk_node {
    struct fk_node *next;
    uint64_t hash;
    size_t size;
    fk_slot *slot;
    int32_t variant;
    bool alias;
    unsigned char bytes[]; /* `size` of them */
};

/* Bytes that decide equality; 0: not a struct of this version, or num_masks is invalid. */
static size_t prefix_bytes(const fk_problem *p) {
    if (p->struct_size != sizeof *p || p->num_masks < 0 || p->num_masks > FK_MAX_MASKS) return 0;
    if (p->num_scores != 0 || p->num_arrays != 0) return sizeof *p;
    return offsetof(fk_problem, mask) + (size_t)p->num_masks * sizeof(fk_mask);
}

/* Four multiply lanes, so that 1.2 KB take some 50 ns. Only speed rests on its quality: keys are compared whole. */
static uint64_t hash_bytes(const void *data, size_t size) {
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    const unsigned char *bytes = data;
    uint64_t lane[4] = {size, 1, 2, 3}, word;
    size_t i = 0;
    for (; i + 32 <= size; i += 32) {
        for (int j = 0; j < 4; j++) {
            memcpy(&word, bytes + i + 8 * (size_t)j, 8);
            lane[j] = (lane[j] ^ word) * odd;
            lane[j] ^= lane[j] >> 32;
        }
    }
    for (; i < size; i += 4) { /* every field is a multiple of 4 bytes */
        uint32_t tail;
        memcpy(&tail, bytes + i, 4);
        lane[0] = (lane[0] ^ tail) * odd;
        lane[0] ^= lane[0] >> 32;
    }
    uint64_t h = lane[0];
    for (int j = 1; j < 4; j++) {
        h = (h ^ lane[j]) * odd;
        h ^= h >> 29;
    }
    return h;
}

static fk_slot *find(const fk_table *table, const fk_problem *p, int32_t variant, size_t size, uint64_t hash) {
    for (const struct fk_node *n = table->bucket[hash % FK_TABLE_BUCKETS]; n; n = n->next)
        if (n->hash == hash && n->variant == variant && n->size == size && memcmp(n->bytes, p, size) == 0)
            return n->slot;
    return NULL;
}

static bool insert(fk_table *table, const fk_problem *p, int32_t variant, size_t size, uint64_t hash, fk_slot *slot,
                   bool alias) {
    struct fk_node *n = malloc(sizeof *n + size);
    if (!n) return false;
    struct fk_node **head = &table->bucket[hash % FK_TABLE_BUCKETS];
    *n = (struct fk_node){.next = *head, .hash = hash, .size = size, .slot = slot, .variant = variant, .alias = alias};
    memcpy(n->bytes, p, size);
    *head = n;
    table->num_aliases += alias;
    return true;
}

/* Takes all nodes of `slot` out; there is no alias yet while it is being built. */
static void take_out(fk_table *table, uint64_t hash, const fk_slot *slot) {
    struct fk_node **at = &table->bucket[hash % FK_TABLE_BUCKETS];
    while (*at && (*at)->slot != slot)
        at = &(*at)->next;
    struct fk_node *n = *at;
    if (n) {
        *at = n->next;
        free(n);
    }
}

void fk_table_init(fk_table *table) {
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->built, NULL);
}

void fk_table_clear(fk_table *table, void (*release)(fk_kernel *)) {
    for (size_t i = 0; i < FK_TABLE_BUCKETS; i++) {
        for (struct fk_node *n = table->bucket[i], *next; n; n = next) {
            next = n->next;
            if (!n->alias) { /* each slot has exactly one canonical node */
                if (!n->slot->shared) release(n->slot->kernel);
                free(n->slot);
            }
            free(n);
        }
        table->bucket[i] = NULL;
    }
    pthread_mutex_destroy(&table->lock);
    pthread_cond_destroy(&table->built);
}

/* Called and returns with the lock held. */
static fk_status wait_for(fk_table *table, fk_slot *slot, fk_error *err) {
    slot->waiting++;
    while (!slot->kernel && !slot->failed)
        pthread_cond_wait(&table->built, &table->lock);
    slot->waiting--;
    if (!slot->failed) return FK_OK;
    const fk_status status = slot->error.status;
    if (err) *err = slot->error;
    if (slot->waiting == 0) free(slot);
    return status;
}

fk_status fk_table_find(fk_table *table, const fk_problem *problem, int32_t variant,
                        fk_status (*build)(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err),
                        void *user, fk_kernel **out, fk_error *err) {
    const size_t raw_size = prefix_bytes(problem);
    const uint64_t mixed = (uint64_t)variant * 0x9e3779b97f4a7c15u, raw_hash = hash_bytes(problem, raw_size) ^ mixed;
    pthread_mutex_lock(&table->lock);
    fk_slot *slot = raw_size ? find(table, problem, variant, raw_size, raw_hash) : NULL;
    if (slot && slot->kernel) { /* the fast path */
        *out = slot->kernel;
        table->hits++;
        pthread_mutex_unlock(&table->lock);
        return FK_OK;
    }
    pthread_mutex_unlock(&table->lock);

    fk_problem canonical;
    fk_status status = fk_problem_normalise(problem, &canonical, err);
    if (status) return status;
    const size_t size = prefix_bytes(&canonical);
    const uint64_t hash = hash_bytes(&canonical, size) ^ mixed;

    pthread_mutex_lock(&table->lock);
    slot = find(table, &canonical, variant, size, hash);
    if (slot) {
        status = wait_for(table, slot, err);
        table->hits += status == FK_OK;
    } else {
        slot = calloc(1, sizeof *slot);
        if (!slot || !insert(table, &canonical, variant, size, hash, slot, false)) {
            free(slot);
            pthread_mutex_unlock(&table->lock);
            return fk_fail(err, FK_NO_MEMORY, "no memory for a kernel's entry in the context's table");
        }
        pthread_mutex_unlock(&table->lock);
        fk_kernel *kernel = NULL;
        fk_error failure;
        status = build(user, &canonical, &kernel, &failure);
        pthread_mutex_lock(&table->lock);
        if (!status) {
            slot->kernel = kernel;
            slot->shared = kernel->variant != variant;
        } else {
            if (err) *err = failure;
            slot->error = failure;
            slot->failed = true;
            take_out(table, hash, slot);
            if (slot->waiting == 0) free(slot);
        }
        pthread_cond_broadcast(&table->built);
    }
    if (status == FK_OK) {
        *out = slot->kernel;
        if (raw_size && table->num_aliases < MAX_ALIASES && !find(table, problem, variant, raw_size, raw_hash))
            insert(table, problem, variant, raw_size, raw_hash, slot, true); /* no memory: the next lookup is slower */
    }
    pthread_mutex_unlock(&table->lock);
    return status;
}
