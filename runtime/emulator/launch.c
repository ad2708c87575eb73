/* A launch: OS threads take the next block of the grid until none is left or one has faulted. Blocks are taken in one
 * fixed order and a taken block always runs to its end, so the fault that is reported, the first in that order, does
 * not depend on the number of OS threads. */
#include "image.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORKERS 16u
#define MAX_SMEM_BYTES (1u << 20)

typedef struct launch {
    const fk_block *prototype;
    uint64_t blocks;
    uint64_t stride, offset; /* the i-th block taken is (i * stride + offset) % blocks */
    atomic_uint_fast64_t next;
    atomic_bool stop;
} launch;

typedef struct worker {
    launch *launch;
    pthread_t thread;
    bool started;
    uint64_t fault_at; /* position in the order of the block that faulted */
    fk_emu_stats stats;
    fk_error err;
} worker;

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static void order_blocks(launch *l, uint64_t seed) {
    const uint64_t n = l->blocks;
    l->stride = 1;
    l->offset = 0;
    if (!seed) return;
    l->offset = seed * 0x9e3779b97f4a7c15ull % n;
    l->stride = seed * 0xd1342543de82ef95ull % n;
    while (greatest_common_divisor(l->stride, n) != 1)
        ++l->stride;
}

static void *work(void *arg) {
    worker *w = arg;
    launch *l = w->launch;
    fk_block block = *l->prototype;
    fk_fault_stack signal_stack = {0};
    w->fault_at = UINT64_MAX;
    w->err.status = fk_block_init(&block, &w->err);
    if (w->err.status == FK_OK) w->err.status = fk_faults_enter(&signal_stack, &w->err);
    if (w->err.status != FK_OK) w->fault_at = 0;
    while (w->err.status == FK_OK && !atomic_load(&l->stop)) {
        const uint64_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->blocks) break;
        const uint32_t index = (uint32_t)((i * l->stride + l->offset) % l->blocks);
        if (fk_block_run(&block, index, &w->err) != FK_OK) w->fault_at = i;
    }
    if (w->err.status != FK_OK) atomic_store(&l->stop, true);
    fk_faults_leave(&signal_stack);
    w->stats = block.stats;
    fk_block_free(&block);
    return NULL;
}

static fk_status count_workers(uint64_t blocks, uint32_t *count, fk_error *err) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t n = online < 1 ? 1 : (uint64_t)online;
    const fk_status status = fk_emu_number("FLASHKILN_EMU_THREADS", 1, UINT32_MAX, &n, err);
    if (n > MAX_WORKERS) n = MAX_WORKERS;
    *count = n < blocks ? (uint32_t)n : (uint32_t)blocks;
    return status;
}

static void add_stats(fk_emu_stats *sum, const fk_emu_stats *s) {
    sum->mma += s->mma;
    sum->global_load_bytes += s->global_load_bytes;
    sum->global_store_bytes += s->global_store_bytes;
    sum->global_add_bytes += s->global_add_bytes;
    sum->smem_wavefronts += s->smem_wavefronts;
    sum->smem_conflicts += s->smem_conflicts;
}

static fk_status run_grid(const fk_block *prototype, fk_emu_stats *stats, fk_error *err) {
    launch l = {.prototype = prototype};
    l.blocks = (uint64_t)prototype->grid.x / prototype->ctas * prototype->grid.y * prototype->grid.z;
    order_blocks(&l, prototype->options.seed);
    uint32_t n;
    if (count_workers(l.blocks, &n, err) != FK_OK) return err->status;
    worker *workers = calloc(n, sizeof *workers);
    if (!workers) return fk_fail(err, FK_NO_MEMORY, "emulator: no memory for %u OS threads", n);
    fk_faults_catch();
    for (uint32_t i = 0; i < n; ++i)
        workers[i].launch = &l;
    for (uint32_t i = 1; i < n; ++i) /* fewer OS threads than asked for only cost time */
        workers[i].started = pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0;
    work(&workers[0]);
    const worker *first = &workers[0];
    for (uint32_t i = 1; i < n; ++i) {
        if (!workers[i].started) continue;
        pthread_join(workers[i].thread, NULL);
        if (workers[i].fault_at < first->fault_at) first = &workers[i];
    }
    fk_faults_release();
    memset(stats, 0, sizeof *stats);
    for (uint32_t i = 0; i < n; ++i)
        add_stats(stats, &workers[i].stats);
    const fk_status status =
        first->fault_at == UINT64_MAX ? FK_OK : fk_fail(err, first->err.status, "%s", first->err.text);
    free(workers);
    return status;
}

static fk_status check_sizes(const fk_emu_entry *entry, size_t param_bytes, const fk_emu_grid *grid, uint32_t threads,
                             size_t smem_bytes, fk_error *err) {
    const uint32_t size[3] = {grid->x, grid->y, grid->z}, limit[3] = {INT32_MAX, 65535, 65535};
    if (param_bytes != entry->param_bytes)
        return fk_fail(err, FK_BAD_ARGUMENT, "param_bytes is %zu, the kernel takes %llu", param_bytes,
                       entry->param_bytes);
    for (int i = 0; i < 3; ++i)
        if (size[i] == 0 || size[i] > limit[i])
            return fk_fail(err, FK_BAD_ARGUMENT, "grid.%c is %u, must be 1 to %u", "xyz"[i], size[i], limit[i]);
    if ((uint64_t)grid->x * grid->y > UINT32_MAX / grid->z)
        return fk_fail(err, FK_BAD_ARGUMENT, "grid is %u x %u x %u, the emulator runs fewer than 2^32 blocks", grid->x,
                       grid->y, grid->z);
    if (grid->cluster > 1 && (grid->x % grid->cluster || threads > FK_MAX_THREADS / grid->cluster))
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "grid.cluster is %u, must divide grid.x, %u, and have at most %u threads in all", grid->cluster,
                       grid->x, FK_MAX_THREADS);
    if (threads == 0 || threads > FK_MAX_THREADS || threads % FK_WARP_LANES != 0)
        return fk_fail(err, FK_BAD_ARGUMENT, "threads is %u, must be a multiple of 32 up to %u", threads,
                       FK_MAX_THREADS);
    if (smem_bytes > MAX_SMEM_BYTES)
        return fk_fail(err, FK_BAD_ARGUMENT, "smem_bytes is %zu, must be at most %u", smem_bytes, MAX_SMEM_BYTES);
    return FK_OK;
}

static fk_status launch_entry(const fk_emu_entry *entry, const void *params, size_t param_bytes, fk_emu_grid grid,
                              uint32_t threads, size_t smem_bytes, const fk_emu_options *options, fk_emu_stats *stats,
                              fk_error *err) {
    fk_emu_stats sums;
    fk_status status = check_sizes(entry, param_bytes, &grid, threads, smem_bytes, err);
    if (status != FK_OK) return status;
    fk_block *prototype = calloc(1, sizeof *prototype);
    if (!prototype) return fk_fail(err, FK_NO_MEMORY, "emulator: no memory for a launch");
    prototype->entry = entry->run;
    prototype->params = params;
    if (options) prototype->options = *options;
    prototype->grid = grid;
    prototype->ctas = grid.cluster ? grid.cluster : 1;
    prototype->cta_threads = threads;
    prototype->threads = threads * prototype->ctas;
    prototype->cta_window = ((uint32_t)smem_bytes + 1023u) / 1024u * 1024u;
    prototype->smem_bytes = prototype->ctas == 1 ? (uint32_t)smem_bytes : prototype->ctas * prototype->cta_window;
    prototype->counting = stats != NULL;
    status = run_grid(prototype, &sums, err);
    if (stats && status == FK_OK) *stats = sums;
    free(prototype);
    return status;
}

fk_status fk_emu_launch_grid(const fk_emu_image *image, const char *entry, const void *params, size_t param_bytes,
                             fk_emu_grid grid, uint32_t threads, size_t smem_bytes, const fk_emu_options *options,
                             fk_emu_stats *stats, fk_error *err) {
    const fk_emu_exports *exports = image->exports;
    for (unsigned long long i = 0; i < exports->num_entries; ++i)
        if (strcmp(exports->entries[i].name, entry) == 0)
            return launch_entry(&exports->entries[i], params, param_bytes, grid, threads, smem_bytes, options, stats,
                                err);
    return fk_fail(err, FK_BAD_ARGUMENT, "entry is \"%s\", which the image lacks", entry);
}

fk_status fk_emu_launch(const fk_emu_image *image, const void *params, size_t param_bytes, uint32_t grid_x,
                        uint32_t threads, size_t smem_bytes, const fk_emu_options *options, fk_error *err) {
    return launch_entry(&image->exports->entries[0], params, param_bytes, (fk_emu_grid){grid_x, 1, 1, 1}, threads,
                        smem_bytes, options, NULL, err);
}
