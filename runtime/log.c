/* FLASHKILN_LOG: where each kernel came from, and why not from elsewhere. */
#include "packs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fk_log_on(void) {
    static int on = -1; /* every thread finds the same */
    int known = __atomic_load_n(&on, __ATOMIC_RELAXED);
    if (known < 0) {
        const char *value = secure_getenv("FLASHKILN_LOG");
        known = value && *value && strcmp(value, "0") != 0;
        __atomic_store_n(&on, known, __ATOMIC_RELAXED);
    }
    return known;
}

void fk_log(const char *format, ...) {
    char line[2048];
    if (!fk_log_on()) return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "flashkiln: %s\n", line); /* one call, so that lines of threads do not mix */
}
