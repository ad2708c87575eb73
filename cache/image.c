/* Is the image code for the target that its entry claims? A checksum cannot tell: it also fits a file that was put
 * under a wrong name. A cubin of a neighbouring SM may load and compute nonsense, so the label is read from the image
 * itself. */
#include "internal.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#else
#define HOST_MACHINE EM_NONE /* not known here: any machine but a GPU passes */
#endif

static unsigned load_le(const uint8_t *p, int bytes) {
    unsigned value = 0;
    for (int i = 0; i < bytes; ++i)
        value |= (unsigned)p[i] << (8 * i);
    return value;
}

/* e_machine of a 64-bit little-endian ELF file; -1 if it is none. */
static int elf_machine(const uint8_t *image, size_t size) {
    static const uint8_t ident[6] = {0x7f, 'E', 'L', 'F', 2, 1};
    return size >= 64 && !memcmp(image, ident, sizeof ident) ? (int)load_le(image + 18, 2) : -1;
}

/* The SM of a cubin. CUDA 13 (ELF ABI version 8) moved it one byte up in e_flags. */
static unsigned cubin_sm(const uint8_t *image) {
    const unsigned abi_version = image[8], flags = load_le(image + 48, 4);
    return abi_version >= 8 ? flags >> 8 & 0xff : flags & 0xff;
}

static bool check_cubin(const char *target, const uint8_t *image, size_t size, fk_note note) {
    const int machine = elf_machine(image, size);
    if (machine != EM_CUDA) return fk_note_miss(note, "image: target %s needs a CUDA ELF file", target);
    const unsigned sm = cubin_sm(image);
    if (sm != strtoul(target + 3, NULL, 10)) return fk_note_miss(note, "image: holds sm_%u, target is %s", sm, target);
    return true;
}

/* PTX names its target once, near the top: ".target sm_75" */
static bool check_ptx(const char *target, const char *image, size_t size, fk_note note) {
    static const char directive[] = ".target sm_";
    const char *suffix = target + strlen("compute_");
    const size_t digits = strlen(suffix);
    const char *found = memmem(image, size, directive, strlen(directive));
    if (!found) return fk_note_miss(note, "image: target %s needs PTX, which has a .target line", target);
    found += strlen(directive);
    const size_t left = size - (size_t)(found - image);
    const size_t span = left > digits ? digits : left;
    const bool same =
        span == digits && !memcmp(found, suffix, digits) &&
        (left == digits || !strchr("0123456789abcdefghijklmnopqrstuvwxyz", found[digits]) || !found[digits]);
    if (!same) return fk_note_miss(note, "image: PTX for sm_%.*s, target is %s", (int)span, found, target);
    return true;
}

bool fk_image_check(const char *target, const void *image, size_t size, fk_note note) {
    if (!strncmp(target, "sm_", 3)) return check_cubin(target, image, size, note);
    if (!strncmp(target, "compute_", 8)) return check_ptx(target, image, size, note);
    if (strcmp(target, "emu")) return fk_note_miss(note, "image: target %s is not sm_*, compute_* or emu", target);
    const int machine = elf_machine(image, size);
    if (machine < 0 || machine == EM_CUDA || (HOST_MACHINE != EM_NONE && machine != HOST_MACHINE))
        return fk_note_miss(note, "image: target emu needs a shared object of this host, ELF machine %d not %d",
                            HOST_MACHINE, machine);
    return true;
}
