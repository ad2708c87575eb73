/* A context on the fake driver and the fake NVRTC, and what these have counted. */
#ifndef FK_TESTS_FAKE_GPU_H
#define FK_TESTS_FAKE_GPU_H

#include "fake.h"

#include <dlfcn.h>

static char store_dir[300]; /* of the running case */

/** @param plan_for  null: the fake GPU itself @return null: stderr says why */
static inline fk_context *open_context(const char *plan_for, fk_cache_mode mode) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = NULL;
    fake_use("FLASHKILN_LIBCUDA", "cuda.so");
    fake_use("FLASHKILN_NVRTC", "nvrtc.so");
    if (!*store_dir) {
        snprintf(store_dir, sizeof store_dir, "%s/store-XXXXXX", fake_dir);
        if (!mkdtemp(store_dir)) return NULL;
    }
    options.plan_for = plan_for, options.cache_dir = store_dir, options.cache_mode = (int32_t)mode;
    if (fk_context_create(&options, &context)) fprintf(stderr, "%s\n", fk_last_error());
    return context;
}

/** A variable of a fake that is open already. */
static inline void *fake_variable(const char *library, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", fake_dir, library);
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : NULL;
}
static inline int compiles(void) {
    return *(int *)fake_variable("nvrtc.so", "fake_nvrtc_compiles");
}
static inline int cuda(const char *name) {
    return *(int *)fake_variable("cuda.so", name);
}

#endif
