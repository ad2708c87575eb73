/* An NVRTC of our own, version 12.9 or 12.MINOR. Its image is the options behind a cubin's ELF header, or behind PTX's
 * .target line. FAKE_NVRTC=refuse|empty|slow|old|die makes it fail with a log, give no bytes, take a while, put "old"
 * into the image, or abort, from the compile after FAKE_NVRTC_GOOD on if that is set; FAKE_NVRTC_SPILL=BYTES puts
 * spills into the log, of the first FAKE_NVRTC_SPILLS compiles if that is set; FAKE_NVRTC_SERIALIZED=N: the first N
 * serialise wgmma. -DINCOMPLETE leaves a function out. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef MINOR
#define MINOR 9
#endif

int fake_nvrtc_compiles;
static int front_end; /* held by whoever compiles, as in the real one */

#define SERIALIZED                                                                                                     \
    "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "          \
    "insufficient register resources for the function 'fk_forward'\n"

typedef struct program {
    char image[600], log[1000];
    size_t size;
} program;

static int mode(const char *name) {
    const char *value = getenv("FAKE_NVRTC");
    const char *good = getenv("FAKE_NVRTC_GOOD");
    return value && strcmp(value, name) == 0 && (!good || fake_nvrtc_compiles > atoi(good));
}

int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = MINOR;
    return 0;
}
int nvrtcCreateProgram(void **out, const char *text, const char *name, int num_headers, const char *const *headers,
                       const char *const *names) {
    (void)headers, (void)names;
    if (!*text || !*name || num_headers) return 3;
    *out = calloc(1, sizeof(program));
    return 0;
}
int nvrtcDestroyProgram(void **p) {
    free(*p);
    *p = NULL;
    return 0;
}
static int compile(program *self, int num_options, const char *const *options) {
    const char *spill = getenv("FAKE_NVRTC_SPILL"), *spills = getenv("FAKE_NVRTC_SPILLS");
    const char *serialized = getenv("FAKE_NVRTC_SERIALIZED");
    const int number = __atomic_add_fetch(&fake_nvrtc_compiles, 1, __ATOMIC_RELAXED);
    if (spills && number > atoi(spills)) spill = NULL;
    if (mode("slow")) usleep(50000);
    if (mode("die")) abort();
    if (mode("refuse")) {
        snprintf(self->log, sizeof self->log,
                 "templates/kernel/forward_mma.cu(12): error: identifier \"x\" is undefined\n");
        return 6;
    }
    const char *cubin = strstr(options[0], "=sm_"), *ptx = strstr(options[0], "=compute_");
    if (cubin) { /* ELF ABI version 8 keeps the SM in the second byte of e_flags */
        const Elf64_Ehdr header = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT, 0x41, 8},
                                   .e_machine = EM_CUDA,
                                   .e_flags = (Elf64_Word)atoi(cubin + 4) << 8};
        memcpy(self->image, &header, self->size = sizeof header);
    } else {
        self->size = (size_t)snprintf(self->image, sizeof self->image, ".target sm_%s\n", ptx + 9);
    }
    for (int i = 0; i < num_options; i++)
        self->size += (size_t)snprintf(self->image + self->size, sizeof self->image - self->size, "%s ", options[i]);
    if (mode("old")) self->size += (size_t)snprintf(self->image + self->size, sizeof self->image - self->size, "old");
    self->size++; /* the zero */
    snprintf(self->log, sizeof self->log,
             "%sptxas info    : 0 bytes gmem\nptxas info    : Function properties for fk_forward\n"
             "ptxas         .     16 bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
             "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]\n",
             serialized && number <= atoi(serialized) ? SERIALIZED : "", spill ? atoi(spill) : 0,
             spill ? atoi(spill) : 0);
    return 0;
}
int nvrtcCompileProgram(void *p, int num_options, const char *const *options) {
    while (__atomic_exchange_n(&front_end, 1, __ATOMIC_ACQUIRE))
        usleep(200);
    const int result = compile(p, num_options, options);
    __atomic_store_n(&front_end, 0, __ATOMIC_RELEASE);
    return result;
}
int nvrtcGetProgramLogSize(void *p, size_t *size) {
    *size = strlen(((program *)p)->log) + 1;
    return 0;
}
int nvrtcGetProgramLog(void *p, char *log) {
    strcpy(log, ((program *)p)->log);
    return 0;
}
int nvrtcGetCUBINSize(void *p, size_t *size) {
    *size = mode("empty") ? 0 : ((program *)p)->size;
    return 0;
}
int nvrtcGetCUBIN(void *p, char *image) {
    memcpy(image, ((program *)p)->image, ((program *)p)->size);
    return 0;
}
int nvrtcGetPTXSize(void *p, size_t *size) {
    return nvrtcGetCUBINSize(p, size);
}
#ifndef INCOMPLETE
int nvrtcGetPTX(void *p, char *image) {
    return nvrtcGetCUBIN(p, image);
}
#endif
