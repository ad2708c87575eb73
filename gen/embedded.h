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

/** SHA-256, in hex, of these files and of the sources that write kernels and launch them: what was made by one build
 * may be launched by builds of the same digest only. */
extern const char fk_embedded_digest[];

#endif
