/* A miss is no error, but it is never silent: every path that misses says why, in one place. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

bool fk_note_miss(fk_note note, const char *format, ...) {
    if (note.text && note.size) {
        va_list args;
        va_start(args, format);
        vsnprintf(note.text, note.size, format, args);
        va_end(args);
    }
    return false;
}
