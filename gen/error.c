#include "error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* A thread's last error lives on the heap, made at its first failure: a library that a running program loads (Python)
 * finds little room among the thread-local variables proper. */
static pthread_key_t last_error_key;
static pthread_once_t last_error_once = PTHREAD_ONCE_INIT;
static bool have_key; /* false: the process has used up its keys, and messages are lost */

static void make_key(void) {
    have_key = pthread_key_create(&last_error_key, free) == 0;
}

static fk_error *last_error(void) {
    pthread_once(&last_error_once, make_key);
    return have_key ? pthread_getspecific(last_error_key) : NULL;
}

fk_status fk_fail(fk_error *err, fk_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

fk_status fk_report(const fk_error *err) {
    fk_error *last = last_error();
    if (!last && have_key && (last = malloc(sizeof *last)) && pthread_setspecific(last_error_key, last) != 0) {
        free(last);
        last = NULL;
    }
    if (last) *last = *err;
    return err->status;
}

const char *fk_last_error(void) {
    const fk_error *last = last_error();
    return last ? last->text : "";
}
