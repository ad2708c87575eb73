/* problem -> plan -> text -> image -> loaded kernel. The CUDA text is the waist: what lies behind it does not look
 * at the problem again. */
#include "clock.h"
#include "object.h"

#include "gen/lua_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- images ------------------------------------------------------------------------------------------- */

static void count(uint64_t *counter) {
    __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* Stores a new image. Where it cannot, the note says why, unless a miss for the same reason has said so. */
static void publish(fk_context *context, fk_built *c) {
    char note[160];
    const size_t used = strlen(c->note);
    if (!fk_store_put(context->store, &c->entry, note, sizeof note) && strcmp(note, c->note) != 0)
        snprintf(c->note + used, sizeof c->note - used, "; not stored: %s", note);
    fk_log("\"%s\" for %s: compiled in %.0f ms by %s; %s", c->source.spelling, context->target, c->entry.compile_ms,
           c->entry.compiler, note);
}

static bool find_stored(fk_context *context, fk_built *c, const char key[65], char *note, size_t size) {
    c->from_store = fk_store_get(context->store, key, context->target, &c->entry, note, size);
    fk_log("\"%s\" for %s: store: %s", c->source.spelling, context->target, note);
    return c->from_store;
}

static const fk_emu_options *emulator_of(const fk_context *context) {
    return context->driver ? NULL : &context->emulator;
}

/* Compiled under the store's lock, so that processes that ask at once compile once. */
static fk_status compile_image(fk_context *context, fk_built *c, const char key[65], fk_error *err) {
    char note[160];
    fk_store_lock(context->store, key);
    fk_status status = FK_OK;
    if (find_stored(context, c, key, note, sizeof note)) {
        snprintf(c->note, sizeof c->note, "%s", note);
    } else {
        memset(&c->entry, 0, sizeof c->entry);
        memcpy(c->entry.key, key, sizeof c->entry.key);
        snprintf(c->entry.target, sizeof c->entry.target, "%s", context->target);
        status = fk_build_entry(&c->source, emulator_of(context), &c->entry, err);
        if (!status) publish(context, c);
    }
    fk_store_unlock(context->store, key);
    return status;
}

static bool forbids_compiling(const fk_context *context) {
    return context->cache_mode == FK_CACHE_NO_JIT || context->cache_mode == FK_CACHE_SEALED;
}

/* How a kernel is looked for with a plan at hand. */
typedef struct search {
    fk_context *context;
    bool may_compile;
    bool advised;   /* the plan is the caller's, or one of his own tuning records' */
    char note[160]; /* why the store lacks it */
} search;

static fk_status obtain(void *user, const fk_problem *p, const fk_plan_info *plan, fk_built *out, fk_error *err) {
    search *s = user;
    fk_context *context = s->context;
    char key[65];
    fk_built built;
    memset(&built, 0, sizeof built);
    s->advised = plan->chosen == FK_CHOSEN_BY_CALLER || plan->chosen == FK_CHOSEN_BY_RECORD;
    fk_status status =
        fk_source_create(p, &context->planned, plan, context->planning.template_dir, false, &built.source, err);
    if (!status) {
        fk_build_key(&built.source, context->target, emulator_of(context), key);
        if (!find_stored(context, &built, key, built.note, sizeof built.note)) {
            memcpy(s->note, built.note, sizeof s->note);
            status = s->may_compile ? compile_image(context, &built, key, err)
                                    : fk_fail(err, FK_NO_JIT, "the store has no kernel: %s", built.note);
        }
    }
    if (status)
        fk_built_free(&built);
    else
        *out = built;
    return status;
}

fk_status fk_kernel_obtain(fk_context *context, const fk_problem *p, const fk_plan_info *plan, fk_built *out,
                           fk_error *err) {
    search s = {.context = context, .may_compile = !forbids_compiling(context)};
    return obtain(&s, p, plan, out, err);
}

/* A pack's kernels were written by the templates of the library, in the plans of its model: whoever brings templates, a
 * rule or a plan of his own does not mean them. */
static bool wants_other_text(const fk_context *context) {
    return context->planning.template_dir || fk_template_dir() || context->planning.rule != FK_RULE_MODEL ||
           context->planning.plan;
}

static bool find_packed(fk_context *context, const fk_problem *p, fk_built *out, char *note, size_t size) {
    const fk_pack_query query = {p, &context->planned, &context->runs, context->target, context->driver_version};
    fk_built built;
    memset(&built, 0, sizeof built);
    if (!context->driver && context->emulator.sanitize)
        return snprintf(note, size, "packs hold no sanitized images"), false;
    if (!fk_packs_find(&context->packs, &query, &built.source, &built.entry, built.pack, sizeof built.pack, note, size))
        return count(&context->counts.pack_misses), false;
    built.from_store = 2;
    snprintf(built.note, sizeof built.note, "%.*s", (int)sizeof built.note - 1, note);
    memcpy(built.source.spelling, built.entry.spelling, sizeof built.source.spelling);
    *out = built;
    return true;
}

static fk_advice advice_of(const fk_context *context) {
    const char *dir = fk_store_dir(context->store);
    return (fk_advice){.dir = dir, .no_dir = *dir == 0, .emulated = context->driver == NULL};
}

static fk_build_request request_of(const fk_problem *p, search *s) {
    const fk_context *context = s->context;
    return (fk_build_request){.problem = p,
                              .planned = &context->planned,
                              .runs = &context->runs,
                              .planning = &context->planning,
                              .advice = advice_of(context),
                              .obtain = obtain,
                              .user = s};
}

/* Store, then packs, then the compiler: as far as the mode allows, and as there is Lua to write the text whose digest
 * is the store's key. */
static fk_status obtain_best(fk_context *context, const fk_problem *p, fk_built *out, fk_error *err) {
    const bool sealed = context->cache_mode == FK_CACHE_SEALED, no_jit = forbids_compiling(context);
    const bool lua = fk_lua_library(NULL) == FK_OK;
    const bool packs = sealed || (fk_packs_any(&context->packs) && !(lua && wants_other_text(context)));
    search s = {.context = context, .may_compile = !no_jit && !packs, .note = "off: the cache mode is SEALED"};
    const fk_build_request request = request_of(p, &s);
    char note[1024] = "no pack is open", spelling[FK_MAX_SPELLING] = "?";
    fk_status status = FK_NO_JIT;
    if (!sealed) status = fk_build_best(&request, out, err);
    if (!sealed && (status || !out->from_store)) count(&context->counts.store_misses);
    if (!status || (status != FK_NO_JIT && !(packs && status == FK_NO_COMPILER))) return status;
    const bool asks_packs = packs && (no_jit || !s.advised); /* who tuned here means that plan */
    if (status == FK_NO_COMPILER) snprintf(s.note, sizeof s.note, "%.*s", (int)sizeof s.note - 1, err ? err->text : "");
    if (asks_packs && find_packed(context, p, out, note, sizeof note)) return FK_OK;
    if (no_jit) {
        fk_problem_write(p, spelling, sizeof spelling, NULL);
        return fk_fail(err, FK_NO_JIT,
                       "the cache mode forbids compiling, and there is no kernel for \"%s\" on %s, planned for %s; "
                       "store: %s; packs: %s",
                       spelling, context->target, *context->planned.key ? context->planned.key : context->planned.name,
                       s.note, note);
    }
    s.may_compile = true;
    status = fk_build_best(&request, out, err);
    if (!status && out->from_store == 0) { /* what the packs said belongs to the answer, too */
        const size_t used = strlen(out->note);
        snprintf(out->note + used, sizeof out->note - used, "; %.*s", (int)sizeof out->note - 3, note);
    }
    return status;
}

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
        search s = {.context = context, .may_compile = true};
        const fk_build_request request = request_of(&kernel->problem, &s);
        status = fk_build_best(&request, &fresh, err);
        if (status) return status;
        fk_built_free(c);
        take_launches(kernel, &fresh.source);
    } else {
        fresh.entry.image = fresh.entry.text = NULL;
        status = fk_build_entry(&c->source, emulator_of(context), &fresh.entry, err);
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
    if (status != FK_CHECK_FAILED || forbids_compiling(context)) {
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
        publish(context, c);
    }
    return status;
}

/* ---- building ----------------------------------------------------------------------------------------- */

static void describe(fk_kernel *kernel, const fk_built *c) {
    const fk_source *source = &c->source;
    fk_context *context = kernel->context;
    count(c->from_store == 2   ? &context->counts.pack
          : c->from_store == 1 ? &context->counts.store
                               : &context->counts.compiled);
    kernel->info.plan = source->plan;
    kernel->info.from_store = c->from_store;
    memcpy(kernel->info.store_note, c->note, sizeof kernel->info.store_note);
    if (c->from_store == 2)
        memcpy(kernel->info.store_path, c->pack, sizeof kernel->info.store_path);
    else
        fk_store_entry_path(context->store, c->entry.key, c->entry.target, kernel->info.store_path,
                            sizeof kernel->info.store_path);
    for (int32_t i = 0; i < source->num_params; i++)
        kernel->mask_value[i] = source->param[i].value;
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

/* `plan`: of a kernel of a size, that a record names; null: what is best, wherever it is found. */
static fk_status build_image(fk_context *context, const fk_problem *canonical, const fk_plan_info *plan, fk_built *out,
                             fk_error *err) {
    return plan ? fk_kernel_obtain(context, canonical, plan, out, err) : obtain_best(context, canonical, out, err);
}

fk_status fk_kernel_build(fk_context *context, const fk_problem *canonical, const fk_plan_info *plan, fk_kernel **out,
                          fk_error *err) {
    fk_built c;
    const double begin = fk_now_ms();
    fk_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return fk_fail(err, FK_NO_MEMORY, "no memory for a kernel");
    kernel->context = context;
    kernel->problem = *canonical;
    kernel->l2_bytes = context->runs.l2_bytes;
    fk_status status = build_image(context, canonical, plan, &c, err);
    if (!status) {
        kernel->info.lookup_ms = fk_now_ms() - begin - (c.from_store ? 0 : c.entry.compile_ms);
        take_launches(kernel, &c.source);
        status = load_or_recompile(kernel, &c, err);
        if (!status) describe(kernel, &c);
        fk_built_free(&c);
    }
    if (status) {
        count(&context->counts.failed);
        free(kernel);
    } else {
        *out = kernel;
    }
    return status;
}

void fk_kernel_free(fk_kernel *kernel) {
    unload(kernel);
    free(kernel);
}

/* ---- public ------------------------------------------------------------------------------------------- */

static fk_status build(void *context, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    return fk_kernel_build(context, canonical, NULL, out, err);
}

fk_status fk_kernel_create(fk_context *context, const fk_problem *problem, fk_kernel **out) {
    fk_error err;
    if (!context || !problem || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !context ? "context" : !problem ? "problem" : "out");
    fk_kernel *kernel;
    if (fk_table_find(&context->table, problem, 0, build, context, &kernel, &err)) return fk_report(&err);
    fk_context_retain(context);
    *out = kernel;
    return FK_OK;
}

/* A kernel that is asked for with sizes. */
typedef struct sized {
    fk_context *context;
    const fk_shape *shape;
    int32_t variant;
} sized;

/* The plan that a record names for these sizes; `*found`: there is one that fits. A pack is there to spare compiling:
 * what came with the library gives way to it. */
static fk_status plan_for(const sized *s, const fk_problem *canonical, fk_plan_info *out, bool *found, fk_error *err) {
    const fk_context *context = s->context;
    const fk_advice advice = advice_of(context);
    fk_plan_options planning = context->planning;
    fk_plan_info *plans;
    size_t count;
    planning.shape = *s->shape;
    fk_status status = fk_advice_find(canonical, &context->planned, &planning, &advice, found, err);
    if (status || !*found) return status;
    status = fk_plan_advised(canonical, &context->planned, &planning, &advice, &plans, &count, err);
    if (status) return status;
    *out = plans[0];
    const bool counts = out->chosen == FK_CHOSEN_BY_RECORD ||
                        (out->chosen == FK_CHOSEN_BY_SHIPPED_RECORD && !fk_packs_any(&s->context->packs));
    *found = counts && out->smem_bytes <= context->runs.smem_per_block;
    free(plans);
    return FK_OK;
}

static fk_status build_for(void *user, const fk_problem *canonical, fk_kernel **out, fk_error *err) {
    const sized *s = user;
    fk_plan_info plan;
    bool found;
    fk_status status = plan_for(s, canonical, &plan, &found, err);
    if (status) return status;
    status = found ? fk_kernel_build(s->context, canonical, &plan, out, err) : FK_NO_JIT;
    if (status == FK_NO_JIT) /* a pack, or the store, may have the one for all sizes */
        return fk_table_find(&s->context->table, canonical, 0, build, s->context, out, err);
    if (!status) (*out)->variant = s->variant;
    return status;
}

fk_status fk_kernel_create_for(fk_context *context, const fk_problem *problem, const fk_shape *shape, fk_kernel **out) {
    fk_error err;
    if (!context || !problem || !shape || !out)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null",
                         !context   ? "context"
                         : !problem ? "problem"
                         : !shape   ? "shape"
                                    : "out");
    if (shape->batch < 1 || shape->num_heads_q < 1 || shape->num_heads_kv < 1 || shape->seqlen_q < 1 ||
        shape->seqlen_k < 1)
        return fk_refuse(FK_BAD_ARGUMENT, "shape is %lld, %lld, %lld, %lld, %lld: each must be at least 1",
                         (long long)shape->batch, (long long)shape->num_heads_q, (long long)shape->num_heads_kv,
                         (long long)shape->seqlen_q, (long long)shape->seqlen_k);
    if (fk_advice_is_off(&context->planning) || context->cache_mode == FK_CACHE_SEALED) /* records need Lua */
        return fk_kernel_create(context, problem, out);
    const fk_bucket bucket = fk_bucket_of(fk_advice_buckets(), shape);
    sized s = {context, shape, 1};
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        s.variant = s.variant * FK_BUCKET_EDGES + bucket.index[i];
    fk_kernel *kernel;
    if (fk_table_find(&context->table, problem, s.variant, build_for, &s, &kernel, &err)) return fk_report(&err);
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
