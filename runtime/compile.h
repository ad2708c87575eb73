/* CUDA text -> cubin or PTX by NVRTC, which is opened on first need; no GPU and no CUDA header is needed. */
#ifndef FK_RUNTIME_COMPILE_H
#define FK_RUNTIME_COMPILE_H

#include <sys/types.h>

#include "cache/store.h"
#include "gen/error.h"

/* The options that decide the image's bytes, in order; with text and target they are the key. */
#define FK_COMPILE_FLAGS "--std=c++17", "-default-device"

typedef struct fk_image {
    void *bytes; /* malloc'ed: an ELF cubin, or PTX with its terminating zero */
    size_t size;
    int32_t registers, spill_bytes, smem_static, stack_bytes; /* from ptxas; -1 for PTX, which ptxas has not seen */
    int32_t serialized_wgmma; /* functions whose wgmma the compiler makes wait for one another; 0 for PTX */
    double compile_ms;
    char compiler[96]; /* "NVRTC 13.0 (build 65be0db3...)": the library's GNU build-id */
} fk_image;

/** @param target  "sm_80" makes a cubin, "compute_75" PTX
 *  @return FK_NO_COMPILER: the message lists where NVRTC was looked for; FK_COMPILE_FAILED: it holds NVRTC's log */
fk_status fk_compile(const char *text, const char *entry, const char *target, fk_image *out, fk_error *err);

/** fork(), for children that compile into `store` while other threads of the parent may be compiling, reading spellings
 * or using the store: it waits until none does. A child ends with the process (to Linux: the thread) that forked it,
 * as nobody else wants what it compiles. */
pid_t fk_compile_fork(fk_store *store);

/** The compiler's name, as fk_image.compiler has it. @return FK_NO_COMPILER */
fk_status fk_compiler_name(char out[96], fk_error *err);

#endif
