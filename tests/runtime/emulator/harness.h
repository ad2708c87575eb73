/* Small kernels in the shape of emitted text: a body is put into a kernel, compiled, and launched on 4 warps. */
#ifndef FK_TESTS_EMULATOR_HARNESS_H
#define FK_TESTS_EMULATOR_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/emulator/emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct params {
    uint32_t *out;
    const uint32_t *in;
    int64_t n;
} params;

#define PROLOGUE                                                                                                       \
    "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n"                              \
    "typedef unsigned long long u64;\ntypedef long long i64;\ntypedef u16 Element;\n"                                  \
    "struct Params { u32 *out; const u32 *in; i64 n; };\n"
#define KERNEL "extern \"C\" __global__ void __launch_bounds__(128, 2) fk_kernel(const __grid_constant__ Params p) "

/* Everything checked, copies as late as they may be. */
static const fk_emu_options strict = {.seed = 1, .late_copies = true, .poison = true, .check_races = true};

#ifdef __SANITIZE_THREAD__ /* TSan keeps the signals to itself */
#define SKIP_UNDER_TSAN skip()
#else
#define SKIP_UNDER_TSAN (void)0
#endif

static inline fk_emu_image *load_entry(const char *text, const char *entry) {
    void *bytes = NULL;
    size_t size = 0;
    double ms = 0;
    char compiler[96];
    fk_emu_image *image = NULL;
    fk_error err = {FK_OK, ""};
    if (fk_emu_compile(text, &entry, 1, NULL, &bytes, &size, &ms, compiler, &err) != FK_OK ||
        fk_emu_load(bytes, size, &image, &err) != FK_OK)
        fail_msg("%s", err.text);
    free(bytes);
    return image;
}

static inline fk_emu_image *load(const char *text) {
    return load_entry(text, "fk_kernel");
}

static inline fk_emu_image *load_body(const char *body) {
    char text[16384];
    const int n = snprintf(text, sizeof text, PROLOGUE KERNEL "{\n#line 1 \"body\"\n%s\n}\n", body);
    assert_in_range(n, 1, sizeof text - 1);
    return load(text);
}

static inline uint32_t *device_words(size_t count) {
    void *memory = NULL;
    fk_error err;
    assert_int_equal(fk_emu_malloc(count * 4, &memory, &err), FK_OK);
    return memory;
}

#endif
