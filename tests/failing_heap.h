/* A heap that ends on demand, for tests of what happens then: malloc's family replaced, which a sanitizer does too, so
 * that such a test skips itself there. One source file of a program includes it. */
#ifndef FK_TESTS_FAILING_HEAP_H
#define FK_TESTS_FAILING_HEAP_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#define INTERPOSE __attribute__((visibility("default"))) /* libc's own calls come here too */

/* glibc's own, under malloc's name. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static struct {
    long calls, live;
    long fail_from, fail_count; /* calls [fail_from, fail_from + fail_count) fail; 0 = none */
} heap;

static bool refused(void) {
    ++heap.calls;
    const bool now = heap.fail_from && heap.calls >= heap.fail_from && heap.calls - heap.fail_from < heap.fail_count;
    if (now) errno = ENOMEM;
    return now;
}

INTERPOSE void *malloc(size_t size) {
    void *memory = refused() ? NULL : __libc_malloc(size);
    heap.live += memory != NULL;
    return memory;
}

INTERPOSE void *calloc(size_t count, size_t size) {
    void *memory = refused() ? NULL : __libc_calloc(count, size);
    heap.live += memory != NULL;
    return memory;
}

INTERPOSE void *realloc(void *memory, size_t size) {
    if (refused()) return NULL;
    void *moved = __libc_realloc(memory, size);
    heap.live += !memory && moved;
    return moved;
}

INTERPOSE void free(void *memory) {
    heap.live -= memory != NULL;
    __libc_free(memory);
}

#endif
