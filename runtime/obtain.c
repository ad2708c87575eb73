/* From a problem to its image: the store, packs and the compiler, as far as the context's cache mode allows. */
#include "object.h"

#include "gen/lua_host.h"

#include <stdio.h>
#include <string.h>

void fk_image_publish(fk_context *context, fk_built *c) {
    char note[160];
    const size_t used = strlen(c->note);
    c->stored = fk_store_put(context->store, &c->entry, note, sizeof note);
    if (!c->stored && strcmp(note, c->note) != 0)
        snprintf(c->note + used, sizeof c->note - used, "; not stored: %s", note);
    fk_log("\"%s\" for %s: compiled in %.0f ms by %s; %s", c->source.spelling, context->target, c->entry.compile_ms,
           c->entry.compiler, note);
}

static bool find_stored(fk_context *context, fk_built *c, const char key[65], char *note, size_t size) {
    c->from_store = fk_store_get(context->store, key, context->target, &c->entry, note, size);
    fk_log("\"%s\" for %s: store: %s", c->source.spelling, context->target, note);
    return c->from_store;
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
        status = fk_build_entry(&c->source, fk_emulator_of(context), &c->entry, err);
        if (!status) fk_image_publish(context, c);
    }
    fk_store_unlock(context->store, key);
    return status;
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
        fk_build_key(&built.source, context->target, fk_emulator_of(context), key);
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

/* A pack's kernels were written by the templates of the library, in the plans of its model: whoever brings templates, a
 * rule or a plan of his own does not mean them. */
static bool wants_other_text(const fk_context *context) {
    return context->planning.template_dir || fk_template_dir() || context->planning.rule != FK_RULE_MODEL ||
           context->planning.plan;
}

/* `plan`: fk_pack_query's. */
static bool find_packed(fk_context *context, const fk_problem *p, const char *plan, fk_built *out, char *note,
                        size_t size) {
    const fk_pack_query query = fk_pack_query_of(context, p, plan);
    fk_built built;
    memset(&built, 0, sizeof built);
    if (!context->driver && context->emulator.sanitize)
        return snprintf(note, size, "packs hold no sanitized images"), false;
    if (!fk_packs_find(&context->packs, &query, &built.source, &built.entry, built.pack, sizeof built.pack, note, size))
        return fk_count(&context->counts.pack_misses), false;
    built.from_store = 2;
    snprintf(built.note, sizeof built.note, "%.*s", (int)sizeof built.note - 1, note);
    memcpy(built.source.spelling, built.entry.spelling, sizeof built.source.spelling);
    if (plan) built.source.spelling[strlen(built.source.spelling) - strlen(", ") - strlen(plan)] = 0;
    *out = built;
    return true;
}

bool fk_asks_packs(fk_context *context) {
    return context->cache_mode == FK_CACHE_SEALED ||
           (fk_packs_any(&context->packs) && !(wants_other_text(context) && fk_lua_library(NULL) == FK_OK));
}

fk_status fk_image_obtain_packed(fk_context *context, const fk_problem *p, const char *plan, fk_built *out,
                                 fk_error *err) {
    char note[1024];
    if (find_packed(context, p, plan, out, note, sizeof note)) return FK_OK;
    return fk_fail(err, FK_NO_JIT, "packs: %s", note);
}

fk_advice fk_advice_of(const fk_context *context) {
    const char *dir = fk_store_dir(context->store);
    return (fk_advice){.dir = dir, .no_dir = *dir == 0, .emulated = context->driver == NULL};
}

static fk_build_request request_of(const fk_problem *p, search *s) {
    const fk_context *context = s->context;
    return (fk_build_request){.problem = p,
                              .planned = &context->planned,
                              .runs = &context->runs,
                              .planning = &context->planning,
                              .advice = fk_advice_of(context),
                              .obtain = obtain,
                              .user = s};
}

/* A record is advice: where its kernel may not be compiled, the one that is there without it serves. */
static bool find_unadvised(const fk_build_request *request, fk_built *out) {
    fk_plan_options plain = *request->planning;
    fk_build_request again = *request;
    plain.reproducible = 1;
    again.planning = &plain;
    return fk_build_best(&again, out, NULL) == FK_OK;
}

/* Store, then packs, then the compiler: as far as the mode allows, and as there is Lua to write the text whose digest
 * is the store's key. */
static fk_status obtain_best(fk_context *context, const fk_problem *p, fk_built *out, fk_error *err) {
    const bool sealed = context->cache_mode == FK_CACHE_SEALED, no_jit = fk_forbids_compiling(context);
    const bool packs = fk_asks_packs(context);
    search s = {.context = context, .may_compile = !no_jit && !packs, .note = "off: the cache mode is SEALED"};
    const fk_build_request request = request_of(p, &s);
    char note[1024] = "no pack is open", spelling[FK_MAX_SPELLING] = "?";
    fk_status status = FK_NO_JIT;
    if (!sealed) status = fk_build_best(&request, out, err);
    if (!sealed && (status || !out->from_store)) fk_count(&context->counts.store_misses);
    if (!status || (status != FK_NO_JIT && !(packs && status == FK_NO_COMPILER))) return status;
    const bool asks_packs = packs && (no_jit || !s.advised); /* who tuned here means that plan */
    if (status == FK_NO_COMPILER) snprintf(s.note, sizeof s.note, "%.*s", (int)sizeof s.note - 1, err ? err->text : "");
    if (asks_packs && find_packed(context, p, NULL, out, note, sizeof note)) return FK_OK;
    if (!sealed && no_jit && s.advised && find_unadvised(&request, out)) return FK_OK;
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
    if (status == FK_NO_COMPILER && packs && !asks_packs && find_packed(context, p, NULL, out, note, sizeof note))
        return FK_OK;
    if (status == FK_NO_COMPILER && packs && err) {
        const fk_error why = *err;
        return fk_fail(err, status, "%.1000s; packs: %.900s", why.text, note);
    }
    if (!status && out->from_store == 0) { /* what the packs said belongs to the answer, too */
        const size_t used = strlen(out->note);
        snprintf(out->note + used, sizeof out->note - used, "; %.*s", (int)sizeof out->note - 3, note);
    }
    return status;
}

fk_status fk_image_obtain(fk_context *context, const fk_problem *p, const fk_plan_info *plan, fk_built *out,
                          fk_error *err) {
    if (!plan) return obtain_best(context, p, out, err);
    search s = {.context = context, .may_compile = !fk_forbids_compiling(context)};
    const fk_status status = obtain(&s, p, plan, out, err);
    if (status || !out->from_store) fk_count(&context->counts.store_misses);
    return status;
}

fk_status fk_image_compile(fk_context *context, const fk_problem *p, fk_built *out, fk_error *err) {
    search s = {.context = context, .may_compile = true};
    const fk_build_request request = request_of(p, &s);
    return fk_build_best(&request, out, err);
}
