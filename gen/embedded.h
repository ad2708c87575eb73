/* Files that travel inside the library: templates, the engine's Lua, the emulator's device header. */
#ifndef FK_GEN_EMBEDDED_H
#define FK_GEN_EMBEDDED_H

#include <stddef.h>

typedef struct fk_embedded_file {
    const char *path; /* relative to the source tree, "templates/mask/causal.lua" */
    const char *text; /* zero-terminated */
    size_t size;      /* without the zero */
} fk_embedded_file;

/** Sorted by path; ends with a null path. */
extern const fk_embedded_file fk_embedded[];

#endif
