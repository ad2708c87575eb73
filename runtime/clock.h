/* The clock that durations are told by. */
#ifndef FK_RUNTIME_CLOCK_H
#define FK_RUNTIME_CLOCK_H

#include <time.h>

static inline double fk_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
