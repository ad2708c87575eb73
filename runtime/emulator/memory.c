/* Memory of the emulated device: an allocation ends (to 16 bytes) where unreadable pages begin, and others lie in front
 * of its first one: enough for a kernel that is a tile of rows off. The list of allocations serves the messages of
 * faults. */
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef FK_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#endif

typedef struct allocation {
    struct allocation *next;
    char *map; /* guard, pages of data, guard */
    size_t map_bytes;
    uintptr_t data;
    size_t bytes;
} allocation;

enum { GUARD_PAGES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation *allocations; /* under the lock */

fk_status fk_emu_malloc(size_t bytes, void **out, fk_error *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), guard = GUARD_PAGES * page;
    if (bytes > SIZE_MAX / 4) return fk_fail(err, FK_NO_MEMORY, "emulator: cannot allocate %zu bytes", bytes);
    const size_t rounded = (bytes + 15u) / 16u * 16u, data_pages = (rounded + page - 1) / page * page;
    const size_t map_bytes = data_pages + 2 * guard;
    allocation *a = malloc(sizeof *a);
    char *map = mmap(NULL, map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!a || map == MAP_FAILED || (data_pages && mprotect(map + guard, data_pages, PROT_READ | PROT_WRITE) != 0)) {
        if (map != MAP_FAILED) munmap(map, map_bytes);
        free(a);
        return fk_fail(err, FK_NO_MEMORY, "emulator: cannot allocate %zu bytes", bytes);
    }
#ifdef FK_FIBER_ASAN
    ASAN_UNPOISON_MEMORY_REGION(map, map_bytes); /* what its own heap had here before: the guards report faults */
#endif
    char *data = map + guard + data_pages - rounded;
    memset(data, 0xff, rounded);
    *a = (allocation){NULL, map, map_bytes, (uintptr_t)data, bytes};
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&lock);
    *out = data;
    return FK_OK;
}

void fk_emu_free(void *memory) {
    if (!memory) return;
    pthread_mutex_lock(&lock);
    allocation **link = &allocations;
    while (*link && (*link)->data != (uintptr_t)memory)
        link = &(*link)->next;
    allocation *a = *link;
    if (a) *link = a->next;
    pthread_mutex_unlock(&lock);
    if (!a) return;
    munmap(a->map, a->map_bytes);
    free(a);
}

void fk_emu_describe_address(uintptr_t address, char *out, size_t size) {
    snprintf(out, size, "outside every allocation");
    pthread_mutex_lock(&lock);
    for (const allocation *a = allocations; a; a = a->next) {
        if (address - (uintptr_t)a->map >= a->map_bytes) continue;
        if (address >= a->data)
            snprintf(out, size, "%zu bytes past an allocation of %zu bytes", (size_t)(address - a->data) - a->bytes,
                     a->bytes);
        else
            snprintf(out, size, "%zu bytes before an allocation of %zu bytes", (size_t)(a->data - address), a->bytes);
    }
    pthread_mutex_unlock(&lock);
}
