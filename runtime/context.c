/* A context is a device, the device planned for, a store and a table of kernels. */
#include "object.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fk_status fk_refuse(fk_status status, const char *format, ...) {
    fk_error err = {.status = status};
    va_list args;
    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    return fk_report(&err);
}

/* "cuda:N" -> N; -1: another kind of name; -2: "cuda:" and no number. */
static int cuda_ordinal(const char *name) {
    if (strncmp(name, "cuda", 4) != 0) return -1;
    char *end;
    const long n = name[4] == ':' ? strtol(name + 5, &end, 10) : -1;
    return name[4] == ':' && end != name + 5 && *end == 0 && n >= 0 && n < 4096 ? (int)n : -2;
}

fk_status fk_device_named(const char *name, fk_device_info *out, fk_error *err) {
    if (!name) return fk_fail(err, FK_BAD_ARGUMENT, "gpu is null; give a key such as \"a100\", or \"cuda:0\"");
    const int ordinal = cuda_ordinal(name);
    if (ordinal == -2) return fk_fail(err, FK_NO_DEVICE, "device \"%.40s\": write cuda:N, such as cuda:0", name);
    if (ordinal == -1) return fk_device_lookup(name, out, err);
    const fk_driver *driver;
    fk_status status = fk_driver_open(&driver, err);
    return status ? status : fk_driver_device(driver, ordinal, out, err);
}

fk_status fk_device_find(const char *name, fk_device_info *out) {
    fk_error err;
    if (!out) return fk_refuse(FK_BAD_ARGUMENT, "out is null");
    return fk_device_named(name, out, &err) ? fk_report(&err) : FK_OK;
}

int fk_device_present_count(void) {
    const fk_driver *driver;
    int count = 0;
    return fk_driver_open(&driver, NULL) == FK_OK && driver->device_count(&count) == 0 ? count : 0;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static bool env_flag(const char *name) {
    const char *value = secure_getenv(name);
    return value && *value && strcmp(value, "0") != 0;
}

/* What the options leave open, the environment may say. */
fk_status fk_cache_mode_choose(int given, int *mode, fk_error *err) {
    static const char *const names[] = {"normal", "read-only", "no-jit", "off", "sealed"};
    const char *said = given ? NULL : secure_getenv("FLASHKILN_CACHE_MODE");
    *mode = given;
    if (!said || !*said) return FK_OK;
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(said, names[i]) != 0) continue;
        *mode = i;
        return FK_OK;
    }
    return fk_fail(err, FK_BAD_ARGUMENT,
                   "FLASHKILN_CACHE_MODE is \"%.40s\": must be normal, read-only, no-jit, off or sealed", said);
}

static fk_status open_emulator(fk_context *context, fk_error *err) {
    const bool fast = env_flag("FLASHKILN_EMU_FAST");
    context->emulator = (fk_emu_options){.late_copies = env_flag("FLASHKILN_EMU_LATE"),
                                         .poison = !fast,
                                         .check_races = !fast,
                                         .sanitize = env_flag("FLASHKILN_EMU_SANITIZE")};
    snprintf(context->target, sizeof context->target, "emu");
    return fk_emu_number("FLASHKILN_EMU_SEED", 0, UINT64_MAX, &context->emulator.seed, err);
}

static fk_status open_cuda(fk_context *context, int ordinal, fk_error *err) {
    const fk_driver *driver;
    fk_status status = fk_driver_open(&driver, err);
    if (!status) status = fk_driver_device(driver, ordinal, &context->runs, err);
    if (status) return status;
    int version = 0, result = driver->device_get(&context->device, ordinal);
    if (!result) result = driver->version(&version);
    context->driver_version = (uint32_t)version;
    if (!result) result = driver->primary_retain(&context->primary, context->device);
    status = fk_driver_check(driver, result, FK_NO_DEVICE, "opening the primary CUDA context", err);
    if (!status) context->driver = driver;
    return status;
}

static fk_status open_device(fk_context *context, const char *name, fk_error *err) {
    int ordinal = 0;
    if (!name) name = "cuda:0";
    if (strcmp(name, "emu") == 0 || (strcmp(name, "auto") == 0 && fk_device_present_count() == 0))
        return open_emulator(context, err);
    if (strcmp(name, "auto") != 0) ordinal = cuda_ordinal(name);
    if (ordinal < 0) return fk_fail(err, FK_NO_DEVICE, "device \"%.40s\" is none of cuda:N, emu and auto", name);
    return open_cuda(context, ordinal, err);
}

/* An image for the running GPU is a cubin. One planned for another architecture is that architecture's PTX, which the
 * driver compiles for the GPU at hand: same primitives, same tiles, same limits. */
static fk_status choose_target(fk_context *context, const char *plan_for, fk_error *err) {
    const bool emulated = context->driver == NULL;
    fk_device_info *planned = &context->planned, *runs = &context->runs;
    if (plan_for || emulated) {
        fk_status status = fk_device_named(plan_for ? plan_for : "a100", planned, err);
        if (status) return status;
    } else {
        *planned = *runs;
    }
    if (emulated) {
        uint64_t sms = (uint64_t)planned->num_sms;
        fk_status status = fk_emu_number("FLASHKILN_EMU_SMS", 1, 1024, &sms, err);
        if (status) return status;
        *runs = *planned;
        runs->ordinal = -1;
        runs->num_sms = (int32_t)sms;
        snprintf(runs->name, sizeof runs->name, "emulator");
    } else if (planned->sm == runs->sm) {
        fk_target_name("sm_", runs->sm, context->target);
    } else if (planned->sm == 90) {
        return fk_fail(err, FK_UNSUPPORTED,
                       "plan_for %s gives kernels for sm_90a, which no other GPU runs; %s is sm_%d", plan_for,
                       runs->name, runs->sm);
    } else if (planned->sm < runs->sm) {
        fk_target_name("compute_", planned->sm, context->target);
    } else {
        return fk_fail(err, FK_UNSUPPORTED, "plan_for %s needs sm_%d; %s runs PTX of sm_%d and lower", plan_for,
                       planned->sm, runs->name, runs->sm);
    }
    return FK_OK;
}

static bool copy_text(const char *from, char **to) {
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

static fk_status open_all(fk_context *context, const fk_context_options *options, fk_error *err) {
    const char *packs = options->packs ? options->packs : fk_packs_from_environment();
    const char *keys = options->pack_keys ? options->pack_keys : fk_pack_keys_from_environment();
    fk_status status = fk_cache_mode_choose(options->cache_mode, &context->cache_mode, err);
    if (!status) status = fk_advice_check_environment(err);
    if (status) return status;
    context->planning = options->planning;
    if (!copy_text(options->planning.template_dir, &context->template_dir) ||
        !copy_text(options->planning.plan, &context->plan) || !copy_text(keys, &context->pack_keys))
        return fk_fail(err, FK_NO_MEMORY, "no memory for a context");
    context->planning.template_dir = context->template_dir;
    context->planning.plan = context->plan;
    context->packs.template_dir = context->template_dir;
    status = fk_store_open(options->cache_dir, context->cache_mode, &context->store, err);
    if (!status && packs) status = fk_packs_add_list(&context->packs, packs, keys, err);
    if (!status) status = open_device(context, options->device, err);
    if (!status) status = choose_target(context, options->plan_for, err);
    if (!status) context->sided = fk_sides_find(context, &context->sides);
    return status;
}

fk_status fk_context_create(const fk_context_options *options, fk_context **out) {
    fk_error err;
    fk_context_options defaults = FK_CONTEXT_OPTIONS_INIT;
    if (!out) return fk_refuse(FK_BAD_ARGUMENT, "out is null");
    if (options && options->struct_size != sizeof *options)
        return fk_refuse(FK_BAD_ARGUMENT, "options->struct_size is %zu, not %zu: FK_CONTEXT_OPTIONS_INIT",
                         options->struct_size, sizeof *options);
    fk_context *context = calloc(1, sizeof *context);
    if (!context) return fk_refuse(FK_NO_MEMORY, "no memory for a context");
    context->users = 1;
    fk_table_init(&context->table);
    fk_packs_init(&context->packs);
    if (open_all(context, options ? options : &defaults, &err)) {
        fk_context_release(context);
        return fk_report(&err);
    }
    *out = context;
    return FK_OK;
}

/* ---- life and answers --------------------------------------------------------------------------------- */

void fk_context_retain(fk_context *context) {
    __atomic_add_fetch(&context->users, 1, __ATOMIC_RELAXED);
}

void fk_context_release(fk_context *context) {
    if (__atomic_sub_fetch(&context->users, 1, __ATOMIC_ACQ_REL) > 0) return;
    fk_table_clear(&context->table, fk_kernel_free);
    if (context->driver) context->driver->primary_release(context->device);
    fk_store_close(context->store);
    fk_packs_free(&context->packs);
    free(context->pack_keys);
    free(context->template_dir);
    free(context->plan);
    free(context);
}

void fk_context_destroy(fk_context *context) {
    if (context) fk_context_release(context);
}

fk_status fk_context_devices(const fk_context *context, fk_device_info *runs, fk_device_info *planned) {
    if (!context) return fk_refuse(FK_BAD_ARGUMENT, "context is null");
    if (runs) *runs = context->runs;
    if (planned) *planned = context->planned;
    return FK_OK;
}

int fk_context_is_emulator(const fk_context *context) {
    return context && !context->driver;
}

fk_status fk_context_load_pack(fk_context *context, const char *path) {
    fk_error err;
    if (!path) return fk_refuse(FK_BAD_ARGUMENT, "path is null");
    fk_packs none;
    if (!context) fk_packs_init(&none);
    const char *keys = context ? context->pack_keys : fk_pack_keys_from_environment();
    const fk_status status = fk_packs_add(context ? &context->packs : &none, path, keys, &err);
    if (!context) fk_packs_free(&none);
    return status ? fk_report(&err) : FK_OK;
}

fk_status fk_context_count(const fk_context *context, fk_context_counts *out) {
    if (!context || !out) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", context ? "out" : "context");
    const fk_context_counts *c = &context->counts;
    fk_table *table = (fk_table *)&context->table; /* its lock changes, nothing else */
    pthread_mutex_lock(&table->lock);
    out->table = table->hits;
    pthread_mutex_unlock(&table->lock);
    out->store = __atomic_load_n(&c->store, __ATOMIC_RELAXED);
    out->pack = __atomic_load_n(&c->pack, __ATOMIC_RELAXED);
    out->compiled = __atomic_load_n(&c->compiled, __ATOMIC_RELAXED);
    out->store_misses = __atomic_load_n(&c->store_misses, __ATOMIC_RELAXED);
    out->pack_misses = __atomic_load_n(&c->pack_misses, __ATOMIC_RELAXED);
    out->failed = __atomic_load_n(&c->failed, __ATOMIC_RELAXED);
    return FK_OK;
}
