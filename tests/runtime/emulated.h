/* A context on the emulator with as many SMs, and such an order of events, as a test asks for. */
#ifndef FK_TESTS_EMULATED_H
#define FK_TESTS_EMULATED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "flashkiln.h"

#include <stdlib.h>

typedef struct emulated {
    const char *sms, *seed, *late; /* FLASHKILN_EMU_... */
} emulated;

/** What it compiles goes to `store_dir`. plan: of every kernel; NULL: the best. */
static inline fk_context *emulated_planned(const char *plan_for, const char *store_dir, const char *plan,
                                           const emulated *e) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    fk_context *context = NULL;
    setenv("FLASHKILN_EMU_SMS", e->sms, 1);
    setenv("FLASHKILN_EMU_SEED", e->seed, 1);
    setenv("FLASHKILN_EMU_LATE", e->late, 1);
    options.device = "emu", options.plan_for = plan_for, options.cache_dir = store_dir;
    options.planning.plan = plan;
    if (fk_context_create(&options, &context)) fail_msg("%s", fk_last_error());
    unsetenv("FLASHKILN_EMU_SMS");
    unsetenv("FLASHKILN_EMU_SEED");
    unsetenv("FLASHKILN_EMU_LATE");
    return context;
}

/** Of `count` cases those to run: a sanitized build looks at the launching, not at the kernels, which it does not
 * instrument, and whose time is most of a test's. */
static inline size_t emulated_cases(size_t count) {
#ifdef __SANITIZE_ADDRESS__
    return count < 3 ? count : 3;
#else
    return count;
#endif
}

static inline fk_context *emulated_context(const char *plan_for, const char *store_dir, const emulated *e) {
    return emulated_planned(plan_for, store_dir, NULL, e);
}

/** The kernel of a problem for these sizes; null: for all. */
static inline fk_kernel *emulated_kernel(fk_context *context, const char *spelling, const fk_shape *shape) {
    fk_problem p;
    fk_kernel *kernel = NULL;
    assert_int_equal(fk_problem_parse(spelling, &p), FK_OK);
    if (shape ? fk_kernel_create_for(context, &p, shape, &kernel) : fk_kernel_create(context, &p, &kernel))
        fail_msg("%s: %s", spelling, fk_last_error());
    return kernel;
}

#endif
