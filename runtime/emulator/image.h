/* A kernel image: the bytes of a shared object, and a trailer that says whose they are and that they are whole, so that
 * no damaged or foreign image reaches the dynamic linker, which would crash on it or run its constructors. */
#ifndef FK_EMULATOR_IMAGE_H
#define FK_EMULATOR_IMAGE_H

#include "engine.h"

typedef struct fk_emu_trailer {
    char magic[8];
    uint64_t headers; /* hash of the headers that the kernel was compiled with */
    uint64_t bytes;   /* hash of all that stands before the trailer */
} fk_emu_trailer;

/** Of an image's `size` bytes. */
fk_emu_trailer fk_emu_seal(const void *bytes, size_t size);

struct fk_emu_image {
    int file;
    void *handle;
    const fk_emu_exports *exports; /* in the shared object */
};

#endif
