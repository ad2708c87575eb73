/* problem -> plan -> text -> image -> loaded kernel. The CUDA text is the waist: what lies behind it does not look
 * at the problem again. */
#include "clock.h"
#include "object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- loading ------------------------------------------------------------------------------------------ */

/* Errors that say something of the image; others (a faulted context, no memory) say nothing of it. */
static bool is_rejection(int result) {
    static const int rejections[] = {FK_CU_INVALID_IMAGE,   FK_CU_NO_BINARY_FOR_GPU,    FK_CU_INVALID_PTX,
                                     FK_CU_UNSUPPORTED_PTX, FK_CU_JIT_COMPILER_MISSING, FK_CU_INVALID_SOURCE,
                                     FK_CU_NOT_FOUND};
    for (size_t i = 0; i < sizeof rejections / sizeof *rejections; i++)
        if (result == rejections[i]) return true;
    return false;
}

static void take_launches(fk_kernel *kernel, const fk_source *source) {
    memcpy(kernel->launch, source->kernel, sizeof kernel->launch);
    kernel->num_launches = source->num_kernels;
    kernel->d_pad = source->d_pad;
    kernel->dq_block_m = source->dq_block_m;
    kernel->leading_rows = source->leading_rows;
    kernel->most_keys = source->most_keys;
    kernel->pattern = source->pattern;
    kernel->early = source->early;
}

static int load_function(fk_kernel *kernel, int i) {
    const fk_driver *d = kernel->context->driver;
    const fk_kernel_launch *launch = &kernel->launch[i];
    void *handle = NULL;
    int result = d->library_kernel(&handle, kernel->library, launch->entry);
    if (!result) result = d->kernel_function(&kernel->function[i], handle);
    return result ? result : d->function_set(kernel->function[i], FK_CU_FUNC_MAX_DYNAMIC_SMEM, launch->smem_bytes);
}

static int load_functions(fk_kernel *kernel, const fk_entry *entry, char *log, size_t log_size) {
    const fk_driver *d = kernel->context->driver;
    fk_image_info *info = &kernel->info.image;
    int options[] = {FK_CU_JIT_ERROR_LOG, FK_CU_JIT_ERROR_LOG_BYTES}, main_kernel = 0;
    void *values[] = {log, (void *)(log_size - 1)};
    int result = d->library_load(&kernel->library, entry->image, options, values, 2, NULL, NULL, 0);
    for (int i = 0; i < kernel->num_launches && !result; i++) {
        result = load_function(kernel, i);
        if (strcmp(kernel->launch[i].entry, entry->entry) == 0) main_kernel = i;
    }
    if (result || entry->registers >= 0) return result;
    /* PTX: say what the driver's compiler made of it; local memory is mostly spills. */
    void *function = kernel->function[main_kernel];
    result = d->function_get(&info->registers, FK_CU_FUNC_REGISTERS, function);
    if (!result) result = d->function_get(&info->smem_static, FK_CU_FUNC_STATIC_SMEM, function);
    return result ? result : d->function_get(&info->spill_bytes, FK_CU_FUNC_LOCAL_BYTES, function);
}

/* Loads now, not at the first launch: a lazy load would take the context's lock and wait for the GPU to drain.
 * FK_CHECK_FAILED: the image is to blame. */
static fk_status load_cuda(fk_kernel *kernel, const fk_entry *entry, fk_error *err) {
    const fk_driver *d = kernel->context->driver;
    char log[1200] = "", what[1500];
    int pushed;
    int result = fk_driver_enter(d, kernel->context->primary, &pushed);
    if (result) return fk_driver_check(d, result, FK_LAUNCH_FAILED, "entering the primary CUDA context", err);
    result = load_functions(kernel, entry, log, sizeof log);
    fk_driver_leave(d, pushed);
    snprintf(what, sizeof what, "the driver refuses the %s image of \"%.200s\"%s%s", entry->target, entry->spelling,
             *log ? ": " : "", log);
    return fk_driver_check(d, result, is_rejection(result) ? FK_CHECK_FAILED : FK_LAUNCH_FAILED, what, err);
}

static void unload(fk_kernel *kernel) {
    const fk_driver *d = kernel->context->driver;
    int pushed;
    if (kernel->library && fk_driver_enter(d, kernel->context->primary, &pushed) == 0) {
        d->library_unload(kernel->library);
        fk_driver_leave(d, pushed);
    }
    if (kernel->image) fk_emu_unload(kernel->image);
    kernel->library = NULL;
    kernel->image = NULL;
}

static fk_status load(fk_kernel *kernel, const fk_entry *e, fk_error *err) {
    const double begin = fk_now_ms();
    fk_build_describe(e, &kernel->info.image);
    fk_status status = kernel->context->driver ? load_cuda(kernel, e, err)
                                               : fk_emu_load(e->image, (size_t)e->image_bytes, &kernel->image, err);
    if (status) unload(kernel);
    kernel->info.load_ms = fk_now_ms() - begin;
    return status;
}

/* A freshly compiled image has nobody else to blame. */
static fk_status load_fresh(fk_kernel *kernel, const fk_entry *entry, fk_error *err) {
    const fk_status status = load(kernel, entry, err);
    if (status != FK_CHECK_FAILED) return status;
    if (err) err->status = FK_LAUNCH_FAILED;
    return FK_LAUNCH_FAILED;
}

/* The image anew. A pack brings no text: then everything is, and the kernel's launches with it. */
static fk_status recompile(fk_kernel *kernel, fk_built *c, fk_error *err) {
    fk_context *context = kernel->context;
    fk_built fresh = *c;
    fk_status status;
    if (c->from_store == 2) {
        status = fk_image_compile(context, &kernel->problem, &fresh, err);
        if (status) return status;
        fk_built_free(c);
        take_launches(kernel, &fresh.source);
    } else {
        fresh.entry.image = fresh.entry.text = NULL;
        status = fk_build_entry(&c->source, fk_emulator_of(context), &fresh.entry, err);
        if (status) return status;
        fk_entry_free(&c->entry);
        fresh.from_store = 0;
    }
    *c = fresh;
    return FK_OK;
}

/* A stored image that is refused is a miss: it is compiled again, once, and replaced. */
static fk_status load_or_recompile(fk_kernel *kernel, fk_built *c, fk_error *err) {
    fk_context *context = kernel->context;
    fk_error rejection;
    if (!c->from_store) return load_fresh(kernel, &c->entry, err);
    fk_status status = load(kernel, &c->entry, &rejection);
    if (status != FK_CHECK_FAILED || fk_forbids_compiling(context)) {
        if (status && err) *err = rejection;
        return status;
    }
    fk_log("\"%s\" for %s: rejected: %s", c->source.spelling, context->target, rejection.text);
    status = recompile(kernel, c, err);
    if (status) return status;
    snprintf(c->note, sizeof c->note, "rejected: %.100s", rejection.text);
    status = load_fresh(kernel, &c->entry, err);
    if (!status) {
        fk_store_drop(context->store, c->entry.key, c->entry.target);
        fk_image_publish(context, c);
    }
    return status;
}

/* ---- building ----------------------------------------------------------------------------------------- */

static void describe(fk_kernel *kernel, const fk_built *c) {
    const fk_source *source = &c->source;
    fk_context *context = kernel->context;
    fk_count(c->from_store == 2   ? &context->counts.pack
             : c->from_store == 1 ? &context->counts.store
                                  : &context->counts.compiled);
    kernel->info.plan = source->plan;
    kernel->info.from_store = c->from_store;
    kernel->info.stored = c->stored;
    memcpy(kernel->info.store_note, c->note, sizeof kernel->info.store_note);
    if (c->from_store == 2)
        memcpy(kernel->info.store_path, c->pack, sizeof kernel->info.store_path);
    else
        fk_store_entry_path(context->store, c->entry.key, c->entry.target, kernel->info.store_path,
                            sizeof kernel->info.store_path);
    for (int32_t i = 0; i < source->num_params; i++) {
        const int32_t value = source->param[i].value;
        kernel->mask_value[i] = value;
        kernel->mask_inverse[i] = value ? fk_inverse(llabs(value)) : 0;
    }
    for (int32_t i = 0; i < source->num_score_params; i++) {
        const fk_score_param *param = &source->score_param[i];
        const float value = (float)param->value;
        kernel->score_value[i] = (int32_t)(param->is_float ? 0 : param->value);
        if (param->is_float) memcpy(&kernel->score_value[i], &value, sizeof value);
    }
    kernel->has_score_values = source->num_score_params > 0;
    kernel->arrays = source->arrays;
    kernel->grad = source->grad;
    kernel->once = source->once;
    kernel->staged = source->staged;
}

/* Of an image at hand, which is used up; the search for it began at `begin`. */
static fk_status build(fk_context *context, const fk_problem *canonical, fk_built *c, double begin, fk_kernel **out,
                       fk_error *err) {
    fk_kernel *kernel = calloc(1, sizeof *kernel);
    fk_status status = kernel ? FK_OK : fk_fail(err, FK_NO_MEMORY, "no memory for a kernel");
    if (kernel) {
        kernel->context = context;
        kernel->problem = *canonical;
        kernel->l2_bytes = context->runs.l2_bytes;
        kernel->info.lookup_ms = fk_now_ms() - begin - (c->from_store ? 0 : c->entry.compile_ms);
        take_launches(kernel, &c->source);
        status = load_or_recompile(kernel, c, err);
        if (!status) describe(kernel, c);
    }
    fk_built_free(c);
    if (status)
        free(kernel);
    else
        *out = kernel;
    return status;
}

fk_status fk_kernel_build(fk_context *context, const fk_problem *canonical, const fk_plan_info *plan, fk_kernel **out,
                          fk_error *err) {
    fk_built c;
    const double begin = fk_now_ms();
    const fk_status status = fk_image_obtain(context, canonical, plan, &c, err);
    return status ? status : build(context, canonical, &c, begin, out, err);
}

fk_status fk_kernel_build_packed(fk_context *context, const fk_problem *canonical, const char *plan, fk_kernel **out,
                                 fk_error *err) {
    fk_built c;
    const double begin = fk_now_ms();
    const fk_status status = fk_image_obtain_packed(context, canonical, plan, &c, err);
    return status ? status : build(context, canonical, &c, begin, out, err);
}

void fk_kernel_free(fk_kernel *kernel) {
    unload(kernel);
    free(kernel);
}

/* ---- public ------------------------------------------------------------------------------------------- */

fk_status fk_kernel_build_for_all(void *context, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    return fk_kernel_build(context, canonical, NULL, out, err);
}

fk_status fk_kernel_create(fk_context *context, const fk_problem *problem, fk_kernel **out) {
    fk_error err;
    if (!context || !problem || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !context ? "context" : !problem ? "problem" : "out");
    fk_kernel *kernel;
    if (fk_table_find(&context->table, problem, 0, fk_kernel_build_for_all, context, &kernel, &err)) {
        fk_count(&context->counts.failed);
        return fk_report(&err);
    }
    fk_context_retain(context);
    *out = kernel;
    return FK_OK;
}

void fk_kernel_destroy(fk_kernel *kernel) {
    if (kernel) fk_context_release(kernel->context);
}

fk_status fk_kernel_describe(const fk_kernel *kernel, fk_kernel_info *out) {
    if (!kernel || !out) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", kernel ? "out" : "kernel");
    *out = kernel->info;
    return FK_OK;
}
