#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local fk_error last_error;

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
    last_error = *err;
    return err->status;
}

const char *fk_last_error(void) { return last_error.text; }
