/* Looking into packs, and making packs of packs. */
#include "object.h"
#include "pack_job.h"

#include "cache/pack.h"
#include "gen/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void hex(const uint8_t bytes[32], char out[65]) {
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

static void describe(const fk_pack *pack, fk_pack_info *out) {
    uint8_t signer[32];
    fk_error err;
    memset(out, 0, sizeof *out);
    out->file_bytes = fk_pack_bytes(pack);
    fk_pack_info_line(pack, "generator", out->generator, sizeof out->generator);
    fk_pack_info_line(pack, "version", out->version, sizeof out->version);
    out->usable = strcmp(out->generator, fk_embedded_digest) == 0;
    const char *keys = fk_pack_keys_from_environment();
    const bool is_signed = fk_pack_signer(pack, signer);
    if (is_signed) hex(signer, out->signer);
    if (!is_signed && !keys) return;
    if (keys ? fk_pack_check_trust(pack, keys, &err) : fk_pack_check_signature(pack, &err))
        snprintf(out->signature, sizeof out->signature, "%.*s", (int)sizeof out->signature - 1, err.text);
    else
        snprintf(out->signature, sizeof out->signature, "ok");
}

static void describe_entry(const fk_pack *pack, size_t i, fk_pack_entry *out) {
    const fk_pack_item item = fk_pack_item_at(pack, i);
    fk_entry entry;
    fk_source source;
    fk_error err;
    char key[65];
    memset(out, 0, sizeof *out);
    memcpy(out->gpu, item.gpu, sizeof out->gpu);
    hex(item.digest, out->digest);
    out->min_driver = (int32_t)item.min_driver;
    out->bytes = item.bytes;
    if (!fk_pack_read(pack, i, &entry, out->problem, sizeof out->problem)) return;
    memcpy(out->spelling, entry.spelling, sizeof out->spelling);
    memcpy(out->target, entry.target, sizeof out->target);
    memcpy(out->key, entry.key, sizeof out->key);
    memcpy(out->compiler, entry.compiler, sizeof out->compiler);
    out->registers = entry.registers;
    out->spill_bytes = entry.spill_bytes;
    out->smem_dynamic = entry.smem_dynamic;
    out->valid = fk_facts_read(entry.text, NULL, &source, key, &err) == FK_OK;
    snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, out->valid ? "" : err.text);
    fk_entry_free(&entry);
}

fk_status fk_pack_list(const char *path, fk_pack_info *info, fk_pack_entry **entries, size_t *count) {
    fk_error err;
    fk_pack *pack;
    if (!path || (entries && !count)) return fk_refuse(FK_BAD_ARGUMENT, "%s is null", path ? "count" : "path");
    if (fk_pack_open(path, &pack, &err)) return fk_report(&err);
    const size_t n = fk_pack_count(pack);
    fk_pack_entry *list = entries ? malloc((n + 1) * sizeof *list) : NULL;
    fk_status status = FK_OK;
    if (entries && !list) status = fk_refuse(FK_NO_MEMORY, "no memory for a list of %zu kernels", n);
    for (size_t i = 0; i < n && list; i++)
        describe_entry(pack, i, &list[i]);
    if (!status && info) describe(pack, info);
    if (list) *entries = list, *count = n;
    fk_pack_close(pack);
    return status;
}

fk_status fk_pack_extract(const char *path, size_t index, void **image, size_t *bytes) {
    fk_error err;
    fk_pack *pack;
    fk_entry entry;
    char note[160];
    if (!path || !image || !bytes) return fk_refuse(FK_BAD_ARGUMENT, "path, image or bytes is null");
    if (fk_pack_open(path, &pack, &err)) return fk_report(&err);
    fk_status status = FK_OK;
    if (index >= fk_pack_count(pack))
        status = fk_refuse(FK_BAD_ARGUMENT, "index is %zu: %s has %zu kernels", index, path, fk_pack_count(pack));
    else if (!fk_pack_read(pack, index, &entry, note, sizeof note))
        status = fk_refuse(FK_IO, "pack %s, record %zu: %s", path, index, note);
    fk_pack_close(pack);
    if (status) return status;
    *image = entry.image;
    *bytes = (size_t)entry.image_bytes;
    entry.image = NULL; /* the caller's now */
    fk_entry_free(&entry);
    return FK_OK;
}

static bool same_name(const char *a, const char *b) {
    a += strcspn(a, " "), b += strcspn(b, " "); /* of whatever kind */
    const size_t length = *a ? 1 + strcspn(a + 1, " ") : 0;
    return length && strncmp(a, b, length) == 0 && (b[length] == ' ' || !b[length]);
}

/* A name that they mean differently has kernels of both, of which one is wrong. */
static fk_status check_terms(const fk_pack *a, const fk_pack *b, fk_error *err) {
    char x[FK_TERM_TEXT], y[FK_TERM_TEXT];
    for (const char *i = fk_pack_text(a); fk_pack_next_term(&i, x);) {
        for (const char *j = fk_pack_text(b); fk_pack_next_term(&j, y);)
            if (same_name(x, y) && strcmp(x, y) != 0)
                return fk_fail(err, FK_BAD_ARGUMENT, "pack %s says \"%.500s\", and %s \"%.500s\"", fk_pack_path(a), x,
                               fk_pack_path(b), y);
    }
    return FK_OK;
}

fk_status fk_pack_merge(const char *path, const char *const *packs, size_t count, const fk_pack_options *options) {
    static const char *const joined[] = {FK_PACK_TERM, FK_SHORT_LINE, NULL};
    uint8_t secret[32];
    fk_error err;
    fk_status status = FK_OK;
    const char *key_file = options ? options->key_file : NULL;
    if (!path || !packs || !count) return fk_refuse(FK_BAD_ARGUMENT, "path or packs is null, or count 0");
    if (options && options->struct_size != sizeof *options)
        return fk_refuse(FK_BAD_ARGUMENT, "options->struct_size is %zu; FK_PACK_OPTIONS_INIT makes it %zu",
                         options->struct_size, sizeof *options);
    for (size_t i = 0; i < count; i++)
        if (!packs[i]) return fk_refuse(FK_BAD_ARGUMENT, "packs[%zu] of %zu is null", i, count);
    fk_pack **open = calloc(count, sizeof *open);
    if (!open) return fk_refuse(FK_NO_MEMORY, "no memory for %zu packs", count);
    for (size_t i = 0; i < count && !status; i++)
        status = fk_pack_open(packs[i], &open[i], &err);
    for (size_t i = 0; i < count && !status; i++)
        for (size_t j = 0; j < i && !status; j++)
            status = check_terms(open[j], open[i], &err);
    if (!status && key_file) status = fk_pack_read_secret(key_file, secret, &err);
    if (!status) status = fk_pack_join(path, open, count, joined, key_file ? secret : NULL, &err);
    explicit_bzero(secret, sizeof secret);
    for (size_t i = 0; i < count; i++)
        fk_pack_close(open[i]);
    free(open);
    return status ? fk_report(&err) : FK_OK;
}

fk_status fk_pack_lookup(const char *path, const fk_problem *problem, const char *gpu, int64_t *index) {
    fk_error err;
    fk_pack *pack;
    fk_problem p;
    fk_device_info device;
    char spelling[FK_MAX_SPELLING], target[16];
    size_t first = 0, found = 0;
    if (!path || !problem || !index) return fk_refuse(FK_BAD_ARGUMENT, "path, problem or index is null");
    fk_status status = fk_pack_open(path, &pack, &err);
    if (status) return fk_report(&err);
    status = fk_problem_normalise(problem, &p, &err);
    if (!status) status = fk_problem_write_class(&p, spelling, &err);
    if (!status) status = fk_device_named(gpu, &device, &err);
    if (!status) {
        fk_build_target(&device, NULL, target);
        found = fk_pack_find(pack, target, spelling, &first);
        for (size_t i = 0; i < found; i++) /* planned for that very GPU */
            if (strcmp(fk_pack_item_at(pack, first + i).gpu, device.key) == 0) {
                first += i;
                break;
            }
    }
    fk_pack_close(pack);
    if (status) return fk_report(&err);
    *index = found ? (int64_t)first : -1;
    return FK_OK;
}
