/* Plan -> text -> image, for kernels and for fk_build alike, so that both make the same. The key is SHA-256 of what
 * decides the image: text, flags, target. */
#include "object.h"

#include "cache/sha256.h"
#include "compile.h"
#include "gen/embedded.h"
#include "gen/problem.h"
#include "gen/term.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fk_built_free(fk_built *built) {
    fk_source_free(&built->source);
    fk_entry_free(&built->entry);
}

static void add_part(fk_sha256 *sha, const char *part) {
    fk_sha256_add(sha, part, strlen(part) + 1); /* its zero ends it */
}

static void add_parts(fk_sha256 *sha, const char *const *parts, size_t count) {
    for (size_t i = 0; i < count; i++)
        add_part(sha, parts[i]);
}

void fk_target_name(const char *prefix, int sm, char out[16]) {
    snprintf(out, 16, "%s%u%s", prefix, (unsigned)sm % 1000u, sm == 90 ? "a" : "");
}

/* An emulator image also depends on the headers it is read behind. */
void fk_build_key(const fk_source *source, const char *target, const fk_emu_options *emulator, char key[65]) {
    static const char *const cuda[] = {FK_COMPILE_FLAGS}, *const host[] = {FK_EMU_FLAGS};
    static const char *const sanitize[] = {FK_EMU_SANITIZE};
    fk_sha256 sha;
    fk_sha256_start(&sha);
    add_part(&sha, target);
    add_part(&sha, source->text);
    if (emulator) {
        add_parts(&sha, host, sizeof host / sizeof *host);
        if (emulator->sanitize) add_parts(&sha, sanitize, sizeof sanitize / sizeof *sanitize);
        for (const fk_embedded_file *f = fk_embedded; f->path; f++)
            if (strncmp(f->path, "runtime/emulator/", 17) == 0) add_part(&sha, f->text);
    } else {
        add_parts(&sha, cuda, sizeof cuda / sizeof *cuda);
    }
    fk_sha256_finish_hex(&sha, key);
}

fk_status fk_build_entry(const fk_source *source, const fk_emu_options *emulator, fk_entry *entry, fk_error *err) {
    const fk_kernel_launch *main_kernel = &source->kernel[source->main_kernel];
    fk_entry e = {.smem_dynamic = main_kernel->smem_bytes, .threads = main_kernel->threads};
    fk_status status;
    memcpy(e.key, entry->key, sizeof e.key);
    memcpy(e.target, entry->target, sizeof e.target);
    if (emulator) {
        const char *entries[FK_MAX_KERNELS];
        size_t size = 0;
        for (int i = 0; i < source->num_kernels; i++)
            entries[i] = source->kernel[i].entry;
        status = fk_emu_compile(source->text, entries, (size_t)source->num_kernels, emulator, &e.image, &size,
                                &e.compile_ms, e.compiler, err);
        e.image_bytes = (int64_t)size;
    } else {
        fk_image image;
        status = fk_compile(source->text, main_kernel->entry, e.target, &image, err);
        if (!status) {
            e.image = image.bytes;
            e.image_bytes = (int64_t)image.size;
            e.registers = image.registers;
            e.spill_bytes = image.spill_bytes;
            e.serialized_wgmma = image.serialized_wgmma;
            e.smem_static = image.smem_static;
            e.compile_ms = image.compile_ms;
            memcpy(e.compiler, image.compiler, sizeof e.compiler);
        }
    }
    if (status) return status;
    memcpy(e.spelling, source->spelling, sizeof e.spelling);
    snprintf(e.entry, sizeof e.entry, "%s", main_kernel->entry);
    e.text = strdup(source->text); /* without memory, it is stored without its text */
    *entry = e;
    return FK_OK;
}

void fk_build_describe(const fk_entry *entry, fk_image_info *out) {
    *out = (fk_image_info){.registers = entry->registers,
                           .spill_bytes = entry->spill_bytes,
                           .smem_static = entry->smem_static,
                           .smem_dynamic = entry->smem_dynamic,
                           .threads = entry->threads,
                           .serialized_wgmma = entry->serialized_wgmma,
                           .image_bytes = entry->image_bytes,
                           .compile_ms = entry->compile_ms};
    memcpy(out->target, entry->target, sizeof out->target);
    memcpy(out->compiler, entry->compiler, sizeof out->compiler);
    memcpy(out->key, entry->key, sizeof out->key);
}

/* ---- choosing ----------------------------------------------------------------------------------------- */

/* Products that wait for one another cost about a fifth of the time: more than what is a minor spill. */
int64_t fk_build_flaws(int32_t spill_bytes, int32_t serialized_wgmma) {
    return (int64_t)spill_bytes + (serialized_wgmma ? 4 * FK_MINOR_SPILL + 1 : 0);
}

static int64_t flaws(const fk_entry *entry) {
    return fk_build_flaws(entry->spill_bytes, entry->serialized_wgmma);
}

/* Measured: d64 bigbird(128) with 204 bytes takes 0.78 of the next plan's time, and backward, packed sequences' grouped
 * heads of d192 and d256 0.79 to 0.94 with 96. Backward head dims above 256 have no other plan of family wgmma, and
 * family mma takes 2.5 times as long. */
int32_t fk_minor_spill(const fk_problem *p, const fk_plan_info *plan) {
    bool pattern = false;
    if (!p || !plan) return FK_MINOR_SPILL;
    for (int i = 0; i < p->num_masks; i++)
        pattern = pattern || fk_mask_kind(&p->mask[i]) == FK_TERM_PATTERN;
    const bool wgmma = strcmp(plan->family, "wgmma") == 0;
    const bool parts = p->head_dim > 128 && (plan->parts || (p->packed && p->gqa));
    const bool may = p->op == FK_FORWARD ? pattern : fk_is_wide(p) || parts;
    return wgmma && may ? 4 * FK_MINOR_SPILL : FK_MINOR_SPILL;
}

/* The model's register count is an estimate. Where the compiler had to spill more than a little, or could not overlap
 * what wgmma does, the next plans are tried, and the image with the least of that is taken; its note says so. */
static void replace_flawed(const fk_build_request *r, const fk_plan_info *plans, size_t count, fk_built *best) {
    const int32_t first_spills = best->entry.spill_bytes, first_serialized = best->entry.serialized_wgmma;
    const int64_t least = fk_minor_spill(r->problem, &plans[0]);
    size_t tried = 1, taken = 1;
    for (size_t i = 1; i < count && tried < FK_BUILD_PLANS && flaws(&best->entry) > least; i++) {
        fk_built next;
        if (!plans[i].legal || plans[i].smem_bytes > r->runs->smem_per_block) continue;
        if (r->obtain(r->user, r->problem, &plans[i], &next, NULL)) break; /* the one in hand is right, only slower */
        tried++;
        const bool better = flaws(&next.entry) < flaws(&best->entry);
        fk_built_free(better ? best : &next);
        if (better) *best = next, taken = tried;
    }
    const size_t used = strlen(best->note);
    snprintf(best->note + used, sizeof best->note - used,
             "; the best plan spills %d bytes%s: took plan %zu of %zu tried", first_spills,
             first_serialized ? ", its wgmma are serialised" : "", taken, tried);
}

static fk_status build_first(const fk_build_request *r, const fk_plan_info *plans, size_t count, fk_built *out,
                             fk_error *err) {
    if (plans[0].smem_bytes > r->runs->smem_per_block)
        return fk_fail(err, FK_UNSUPPORTED, "the plan for %s needs smem_bytes %d; %s gives a block %d",
                       r->planned->name, plans[0].smem_bytes, r->runs->name, r->runs->smem_per_block);
    const fk_status status = r->obtain(r->user, r->problem, &plans[0], out, err);
    /* What was asked for by name, or was the fastest when it was timed, is taken with its flaws. */
    const int32_t by = plans[0].chosen;
    const bool settled = by == FK_CHOSEN_BY_CALLER || by == FK_CHOSEN_BY_RECORD || by == FK_CHOSEN_BY_SHIPPED_RECORD;
    if (!status && !settled && flaws(&out->entry) > fk_minor_spill(r->problem, &plans[0]))
        replace_flawed(r, plans, count, out);
    return status;
}

fk_status fk_build_best(const fk_build_request *r, fk_built *out, fk_error *err) {
    fk_plan_info *plans;
    size_t count;
    fk_status status = fk_plan_for_all(r->problem, r->planned, r->planning, &r->advice, &plans, &count, err);
    if (status) return status;
    status = build_first(r, plans, count, out, err);
    free(plans);
    return status;
}

/* ---- without a context -------------------------------------------------------------------------------- */

typedef struct offline {
    const fk_device_info *device;
    const fk_generate_options *options;
    const fk_emu_options *emulator; /* null: for a GPU */
} offline;

static fk_status obtain(void *user, const fk_problem *p, const fk_plan_info *plan, fk_built *out, fk_error *err) {
    const offline *o = user;
    fk_built built;
    memset(&built, 0, sizeof built);
    fk_status status = fk_source_create(p, o->device, plan, o->options->planning.template_dir,
                                        o->options->standalone != 0, &built.source, err);
    if (!status) {
        fk_build_target(o->device, o->emulator, built.entry.target);
        fk_build_key(&built.source, built.entry.target, o->emulator, built.entry.key);
        status = fk_build_entry(&built.source, o->emulator, &built.entry, err);
    }
    if (status)
        fk_built_free(&built);
    else
        *out = built;
    return status;
}

static fk_status build(const fk_problem *problem, const char *gpu, const fk_generate_options *options, fk_built *out,
                       fk_error *err) {
    fk_problem p;
    fk_device_info device;
    offline o = {&device, options, NULL};
    fk_status status = fk_problem_normalise(problem, &p, err);
    if (!status) status = fk_device_named(gpu, &device, err);
    if (status) return status;
    if (options->plan) return obtain(&o, &p, options->plan, out, err);
    const fk_build_request request = {&p, &device, &device, &options->planning, {.dir = NULL}, obtain, &o};
    return fk_build_best(&request, out, err);
}

void fk_build_target(const fk_device_info *device, const fk_emu_options *emulator, char out[16]) {
    if (emulator)
        snprintf(out, 16, "emu");
    else
        fk_target_name("sm_", device->sm, out);
}

fk_status fk_build_offline(const fk_problem *canonical, const fk_device_info *device,
                           const fk_generate_options *options, const fk_emu_options *emulator, fk_built *out,
                           fk_error *err) {
    offline o = {device, options, emulator};
    const fk_build_request request = {.problem = canonical,
                                      .planned = device,
                                      .runs = device,
                                      .planning = &options->planning,
                                      .obtain = obtain,
                                      .user = &o};
    return fk_build_best(&request, out, err);
}

fk_status fk_build(const fk_problem *problem, const char *gpu, const fk_generate_options *options, void **image,
                   fk_image_info *info, fk_plan_info *chosen) {
    const fk_generate_options defaults = FK_GENERATE_OPTIONS_INIT;
    fk_error err;
    fk_built built;
    if (!problem || !image) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", problem ? "image" : "problem");
    if (options && options->struct_size != sizeof *options)
        return fk_refuse(FK_BAD_ARGUMENT, "options->struct_size is %zu; FK_GENERATE_OPTIONS_INIT makes it %zu",
                         options->struct_size, sizeof *options);
    if (build(problem, gpu, options ? options : &defaults, &built, &err)) return fk_report(&err);
    *image = built.entry.image;
    built.entry.image = NULL; /* the caller's now */
    if (info) fk_build_describe(&built.entry, info);
    if (chosen) *chosen = built.source.plan;
    fk_built_free(&built);
    return FK_OK;
}
