/* One JSON object on one line, read into fixed fields: all that tuning records need. Unknown members are stepped over,
 * whatever they hold; anything that is not JSON, a member given twice, and a known one of the wrong kind refuse the
 * line. */
#ifndef FK_CACHE_JSON_H
#define FK_CACHE_JSON_H

#include <stdbool.h>
#include <stddef.h>

typedef enum fk_json_kind {
    FK_JSON_TEXT,   /* char[size], zero-terminated; printable */
    FK_JSON_NUMBER, /* double[1] */
    FK_JSON_NUMBERS /* double[size]; a shorter list leaves NaN behind it */
} fk_json_kind;

typedef struct fk_json_field {
    const char *name;
    fk_json_kind kind;
    void *target;
    size_t size;
    bool required;
} fk_json_field;

#define FK_JSON_MAX_FIELDS 64

/** Reads the line [text, text + size), without its newline. Targets of members that are absent keep their bytes; on
 *  failure any may have been written. */
bool fk_json_read(const char *text, size_t size, const fk_json_field *fields, size_t num_fields);

/** Writes `text` as a JSON string with its quotes; the bytes it takes, `room` or more if it does not fit. */
size_t fk_json_write_text(const char *text, char *out, size_t room);
/** Writes a finite number to six decimals, without trailing zeros, whatever the locale; likewise. */
size_t fk_json_write_number(double value, char *out, size_t room);

#endif
