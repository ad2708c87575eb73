/* Errors travel up as a status and one sentence. Every internal function that can fail takes an fk_error last and
 * returns its status; only the public layer copies it to the thread's fk_last_error. */
#ifndef FK_GEN_ERROR_H
#define FK_GEN_ERROR_H

#include "flashkiln.h"

typedef struct fk_error {
    fk_status status;
    char text[2048];
} fk_error;

/** Fills `err` (may be null) and returns `status`, so that `return fk_fail(err, FK_IO, "...")` reads well. */
fk_status fk_fail(fk_error *err, fk_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Makes `err` the calling thread's fk_last_error; returns its status. Every public function ends its failures here. */
fk_status fk_report(const fk_error *err);

#endif
