/* Numbers that the environment gives the emulator. */
#include "emulator.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

fk_status fk_emu_number(const char *name, uint64_t least, uint64_t most, uint64_t *value, fk_error *err) {
    const char *text = secure_getenv(name);
    if (!text || !*text) return FK_OK;
    char *end;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 0);
    if (!isdigit((unsigned char)text[0]) || *end || errno || n < least || n > most)
        return fk_fail(err, FK_BAD_ARGUMENT, "%s is \"%.40s\": must be a number from %llu to %llu", name, text,
                       (unsigned long long)least, (unsigned long long)most);
    *value = n;
    return FK_OK;
}
