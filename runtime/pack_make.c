/* fk_pack_build: from spellings and GPUs to jobs, and from their parts to one file. */
#include "pack_job.h"

#include "cache/sha256.h"
#include "cache/sign.h"
#include "cache/vfs.h"
#include "gen/embedded.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- jobs ---------------------------------------------------------------------------------------------- */

typedef struct strings {
    char **at; /* malloc'ed, as each of them is */
    size_t count;
} strings;

/* Takes `text`, and returns it, or what was equal to it; null: there was no memory, nor for `text` if that is null. */
static const char *add_string(strings *s, char *text) {
    for (size_t i = 0; text && i < s->count; i++)
        if (strcmp(s->at[i], text) == 0) {
            free(text);
            return s->at[i];
        }
    char **more = text ? realloc(s->at, (s->count + 1) * sizeof *more) : NULL;
    if (!more) {
        free(text);
        return NULL;
    }
    s->at = more;
    return s->at[s->count++] = text;
}

static void free_strings(strings *s) {
    for (size_t i = 0; i < s->count; i++)
        free(s->at[i]);
    free(s->at);
}

typedef struct maker {
    fk_pack_work work;
    char *spellings;         /* of the classes, FK_MAX_SPELLING bytes each */
    fk_device_info *devices; /* of the GPUs named */
    strings lines;           /* of the info: templates, terms and maps */
    strings names;           /* of records for some sizes */
} maker;

static fk_status add_term(void *user, const char *text, fk_error *err) {
    maker *m = user;
    char *line = NULL;
    if (add_string(&m->lines, asprintf(&line, FK_PACK_TERM "%s", text) < 0 ? NULL : line)) return FK_OK;
    return fk_fail(err, FK_NO_MEMORY, "no memory for the terms of a pack");
}

static fk_status add_templates(maker *m, const char *template_dir, fk_error *err) {
    char digest[65], *line = NULL;
    const fk_status status = fk_overrides_digest(template_dir, digest, err);
    if (status || !digest[0]) return status;
    if (add_string(&m->lines, asprintf(&line, FK_PACK_TEMPLATES ": %s", digest) < 0 ? NULL : line)) return FK_OK;
    return fk_fail(err, FK_NO_MEMORY, "no memory for the templates of a pack");
}

/* Adds the jobs of one spelling, unless another one of its class was there: one kernel serves both. */
static fk_status add_spelling(maker *m, size_t index, const char *asked, size_t num_gpus, const char *template_dir,
                              fk_error *err) {
    fk_problem p;
    char *spelling = m->spellings + index * FK_MAX_SPELLING;
    fk_status status = fk_problem_read(asked, &p, err);
    if (!status) status = fk_problem_write_class(&p, spelling, err);
    if (!status) status = fk_problem_term_lines(&p, template_dir, add_term, m, err);
    if (status) return status;
    for (size_t i = 0; i < m->work.count; i += num_gpus)
        if (strcmp(m->work.job[i].spelling, spelling) == 0) return FK_OK;
    for (size_t g = 0; g < num_gpus; g++) {
        fk_pack_job *job = &m->work.job[m->work.count++];
        *job = (fk_pack_job){.asked = asked, .spelling = spelling, .gpu = m->devices[g].key};
        fk_build_target(&m->devices[g], m->work.emulator, job->target);
    }
    return FK_OK;
}

/* Beside the job `base`, one for some sizes. */
static fk_status add_sized_job(maker *m, size_t base, const char *plan, fk_error *err) {
    char name[FK_MAX_SPELLING];
    if (m->work.count == FK_PACK_MAX_RECORDS || !fk_packs_spell(m->work.job[base].spelling, plan, name))
        return FK_OK; /* the kernel for all sizes serves */
    fk_pack_job *more = realloc(m->work.job, (m->work.count + 1) * sizeof *more);
    if (more) m->work.job = more;
    const char *spelling = more ? add_string(&m->names, strdup(name)) : NULL;
    if (!spelling) return fk_fail(err, FK_NO_MEMORY, "no memory for %zu kernels", m->work.count + 1);
    fk_pack_job *job = &m->work.job[m->work.count++];
    *job = m->work.job[base];
    job->spelling = spelling;
    snprintf(job->plan, sizeof job->plan, "%s", plan);
    return FK_OK;
}

static fk_status add_short_jobs(maker *m, size_t base, const fk_short_map *map, const char *gpu, fk_error *err) {
    fk_status status = FK_OK;
    if (!map->count) return FK_OK;
    if (!add_string(&m->lines, fk_short_map_write(map, gpu, m->work.job[base].spelling)))
        return fk_fail(err, FK_NO_MEMORY, "no memory for a map of short rows");
    for (int i = 0; i < map->count && !status; i++)
        status = add_sized_job(m, base, map->plan[i], err);
    return status;
}

/* What some sizes take instead of the job `base`; what cannot be planned is for its worker to tell. */
static fk_status plan_sized(maker *m, size_t base, const fk_device_info *device, fk_error *err) {
    const fk_plan_options *planning = &m->work.how->planning;
    const fk_advice advice = {.dir = NULL};
    fk_problem p;
    fk_plan_info *plans, of_all;
    fk_short_map map;
    char line[FK_MAX_PLAN];
    size_t count;
    fk_error why;
    if (fk_problem_read(m->work.job[base].asked, &p, &why) ||
        fk_plan_for_all(&p, device, planning, &advice, &plans, &count, &why))
        return FK_OK;
    fk_status status = fk_short_map_make(&p, device, planning->template_dir, &plans[0], &map, err);
    of_all = plans[0];
    free(plans);
    if (!status) status = add_short_jobs(m, base, &map, device->key, err);
    if (status || !fk_plan_may_have_parts(&p, &of_all, planning->template_dir)) return status;
    const fk_plan_info in_parts = fk_plan_in_parts(&p, &of_all);
    fk_plan_write(&in_parts, line);
    return add_sized_job(m, base, line, err);
}

static fk_status find_devices(maker *m, const char *const *gpus, size_t num_gpus, fk_error *err) {
    for (size_t g = 0; g < num_gpus; g++) {
        fk_status status = fk_device_named(gpus[g], &m->devices[g], err);
        if (status) return status;
        if (!m->devices[g].key[0])
            return fk_fail(err, FK_UNSUPPORTED, "gpu %s is not in the table: a pack names the GPUs it is for", gpus[g]);
        for (size_t i = 0; i < g; i++)
            if (strcmp(m->devices[i].key, m->devices[g].key) == 0)
                return fk_fail(err, FK_BAD_ARGUMENT, "gpu %s is named twice", gpus[g]);
    }
    return FK_OK;
}

static fk_status plan_jobs(maker *m, const char *const *spellings, size_t count, const char *const *gpus,
                           size_t num_gpus, const char *template_dir, bool sized, fk_error *err) {
    if (count > FK_PACK_MAX_RECORDS || num_gpus > 64 || count * num_gpus > FK_PACK_MAX_RECORDS || !count || !num_gpus)
        return fk_fail(err, FK_BAD_ARGUMENT, "%zu spellings for %zu GPUs: a pack holds 1 to %d kernels", count,
                       num_gpus, FK_PACK_MAX_RECORDS);
    m->spellings = malloc(count * FK_MAX_SPELLING);
    m->devices = calloc(num_gpus, sizeof *m->devices);
    m->work.job = calloc(count * num_gpus, sizeof *m->work.job);
    if (!m->spellings || !m->devices || !m->work.job)
        return fk_fail(err, FK_NO_MEMORY, "no memory for %zu kernels", count * num_gpus);
    fk_status status = find_devices(m, gpus, num_gpus, err);
    if (!status) status = add_templates(m, template_dir, err);
    for (size_t i = 0; i < count && !status; i++)
        status = add_spelling(m, i, spellings[i], num_gpus, template_dir, err);
    for (size_t i = 0, base = m->work.count; i < base && sized && !status; i++)
        status = plan_sized(m, i, &m->devices[i % num_gpus], err);
    m->work.board = status ? NULL : fk_pack_board_create(m->work.count);
    if (!status && !m->work.board) status = fk_fail(err, FK_NO_MEMORY, "no memory for %zu kernels", m->work.count);
    return status;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

static int compare_lines(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *write_info(maker *m) {
    size_t bytes = 256;
    for (size_t i = 0; i < m->lines.count; i++)
        bytes += strlen(m->lines.at[i]) + 1;
    char *info = malloc(bytes);
    if (!info) return NULL;
    int used = sprintf(info, "generator: %s\nversion: %d.%d.%d\n", fk_embedded_digest, FK_VERSION_MAJOR,
                       FK_VERSION_MINOR, FK_VERSION_PATCH);
    if (m->lines.count) qsort(m->lines.at, m->lines.count, sizeof *m->lines.at, compare_lines);
    for (size_t i = 0; i < m->lines.count; i++)
        used += sprintf(info + used, "%s\n", m->lines.at[i]);
    return info;
}

typedef struct parts {
    const fk_pack_work *work;
    size_t *job; /* of each part */
} parts;

static fk_status fetch(void *user, size_t i, fk_entry *out, fk_error *err) {
    const parts *all = user;
    const fk_pack_job *job = &all->work->job[all->job[i]];
    fk_source source;
    char key[65], note[160];
    fk_pack_job_key(all->work, job, key);
    if (!fk_store_get(all->work->parts, key, job->target, out, note, sizeof note))
        return fk_fail(err, FK_IO, "%s: \"%s\" for %s is gone: %s", fk_store_dir(all->work->parts), job->spelling,
                       job->gpu, note);
    const fk_status status =
        out->text ? fk_facts_read(out->text, NULL, &source, out->key, err)
                  : fk_fail(err, FK_CHECK_FAILED, "\"%s\" for %s has no launch facts", job->spelling, job->gpu);
    if (status) fk_entry_free(out);
    return status;
}

/* A cubin runs on every driver of its compiler's major version, and newer ones. */
static uint32_t min_driver(const char *compiler) {
    return strncmp(compiler, "NVRTC ", 6) == 0 ? (uint32_t)strtoul(compiler + 6, NULL, 10) * 1000 : 0;
}

static fk_status write_pack(maker *m, const char *path, const uint8_t *secret, fk_error *err) {
    const fk_pack_work *work = &m->work;
    fk_status status = FK_OK;
    parts all = {work, calloc(work->count, sizeof *all.job)};
    fk_pack_part *part = calloc(work->count, sizeof *part);
    fk_pack_content content = {write_info(m), part, 0, fetch, &all, secret};
    if (!content.info || !all.job || !part) status = fk_fail(err, FK_NO_MEMORY, "no memory to write the pack %s", path);
    for (size_t i = 0; i < work->count && !status; i++) {
        fk_entry entry;
        if (work->board->slot[i].state == FK_PACK_SKIPPED) continue;
        all.job[content.count] = i;
        status = fetch(&all, content.count, &entry, err);
        if (status) break;
        part[content.count] = (fk_pack_part){
            .target = work->job[i].target, .spelling = work->job[i].spelling, .min_driver = min_driver(entry.compiler)};
        snprintf(part[content.count++].gpu, FK_PACK_GPU, "%.15s", work->job[i].gpu);
        fk_entry_free(&entry);
    }
    if (!status) status = fk_pack_write(path, &fk_vfs_posix, &content, err);
    free((char *)content.info);
    free(part);
    free(all.job);
    return status;
}

/* ---- public -------------------------------------------------------------------------------------------- */

/* The first job that failed, if any. */
static fk_status find_failure(const maker *m, const char *path, const fk_pack_progress *progress, fk_error *err) {
    for (size_t i = 0; i < m->work.count && progress->failed; i++) {
        const fk_pack_slot *slot = &m->work.board->slot[i];
        if (slot->state == FK_PACK_FAILED)
            return fk_fail(err, slot->status, "%zu of %zu kernels of %s failed, the first is \"%s\" for %s: %s",
                           progress->failed, progress->total, path, m->work.job[i].asked, m->work.job[i].gpu,
                           slot->text);
    }
    return FK_OK;
}

fk_status fk_pack_read_secret(const char *path, uint8_t secret[32], fk_error *err) {
    char pem[8192]; /* and no buffer of stdio's, which would keep it */
    fk_error inner;
    size_t size = 0;
    ssize_t got = 1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fk_fail(err, FK_IO, "key_file %s: %s", path, strerror(errno));
    while (size < sizeof pem && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(fd, pem + size, sizeof pem - size);
        if (got > 0) size += (size_t)got;
    }
    const int reason = errno;
    close(fd);
    fk_status status = fk_sign_read_pem(pem, size, secret, &inner);
    explicit_bzero(pem, sizeof pem);
    if (got < 0) return fk_fail(err, FK_IO, "key_file %s: %s", path, strerror(reason));
    return status ? fk_fail(err, status, "key_file %s: %.1500s", path, inner.text) : FK_OK;
}

static fk_status digest_records(fk_pack_work *work, fk_error *err) {
    fk_tuning_text own;
    fk_sha256 sha;
    fk_status status = fk_advice_check_environment(err);
    if (status || fk_advice_is_off(&work->how->planning)) return status;
    status = fk_tuning_load_dir(&fk_vfs_posix, NULL, false, &own, err);
    if (status) return status;
    fk_sha256_start(&sha);
    fk_sha256_add(&sha, own.bytes, own.size);
    fk_sha256_finish_hex(&sha, work->records);
    free(own.bytes);
    return FK_OK;
}

/* Whoever is done removes all parts. `*fd` holds the lock, which vanishes with its holder; -1: there are no locks. */
static fk_status lock_parts(const char *dir, const char *path, int *fd, fk_error *err) {
    struct stat ours, there;
    for (;;) {
        *fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (*fd < 0) return fk_fail(err, FK_IO, "%s: %s", dir, strerror(errno));
        if (flock(*fd, LOCK_EX | LOCK_NB)) {
            const int reason = errno;
            close(*fd);
            *fd = -1;
            return reason == EWOULDBLOCK ? fk_fail(err, FK_IO, "%s: another process builds it", path) : FK_OK;
        }
        if (fstat(*fd, &ours) == 0 && stat(dir, &there) == 0 && ours.st_ino == there.st_ino) return FK_OK;
        close(*fd); /* of a folder that its builder has just removed */
        *fd = -1;
        if (mkdir(dir, 0700) && errno != EEXIST) return fk_fail(err, FK_IO, "%s: %s", dir, strerror(errno));
    }
}

/* Before anything is compiled. A pack's folder is the caller's: the store of its parts would make it, for its owner
 * alone. */
static fk_status check_path(const char *path, fk_error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fk_fail(err, FK_IO, "pack %s cannot be written: is no regular file", path);
    char *copy = strdup(path);
    if (!copy) return fk_fail(err, FK_NO_MEMORY, "no memory for a path");
    const char *folder = dirname(copy);
    const fk_status status =
        access(folder, F_OK) ? fk_fail(err, FK_IO, "%s: %s: %s", path, folder, strerror(errno)) : FK_OK;
    free(copy);
    return status;
}

static fk_status make(maker *m, const char *path, const fk_pack_options *options, fk_pack_report report, void *user,
                      fk_pack_progress *progress, fk_error *err) {
    uint8_t secret[32];
    char *dir = NULL;
    const int64_t workers = options->jobs > 0 ? options->jobs : sysconf(_SC_NPROCESSORS_ONLN);
    fk_status status = options->key_file ? fk_pack_read_secret(options->key_file, secret, err) : FK_OK;
    if (!status) status = check_path(path, err);
    if (!status) status = digest_records(&m->work, err);
    if (!status && asprintf(&dir, "%s.parts", path) < 0) status = fk_fail(err, FK_NO_MEMORY, "no memory for a path");
    if (!status) status = fk_store_open(dir, FK_CACHE_NORMAL, &m->work.parts, err);
    if (!status && *fk_store_reason(m->work.parts))
        status = fk_fail(err, FK_IO, "%s: %s", dir, fk_store_reason(m->work.parts));
    if (!status) status = fk_store_make(m->work.parts, err);
    if (!status) status = lock_parts(dir, path, &m->work.lock, err);
    if (!status) {
        fk_store_keep_all(m->work.parts);
        status = fk_pack_run_jobs(&m->work, (int)workers, report, user, progress, err);
    }
    if (!status) status = find_failure(m, path, progress, err);
    if (!status) status = write_pack(m, path, options->key_file ? secret : NULL, err);
    if (!status)
        fk_store_destroy(m->work.parts);
    else if (m->work.lock >= 0)
        rmdir(dir); /* succeeds where there are no parts to go on from */
    explicit_bzero(secret, sizeof secret);
    fk_store_close(m->work.parts);
    if (m->work.lock >= 0) close(m->work.lock);
    free(dir);
    return status;
}

fk_status fk_pack_build(const char *path, const char *const *spellings, size_t count, const char *const *gpus,
                        size_t num_gpus, const fk_pack_options *options, fk_pack_report report, void *user,
                        fk_pack_progress *result) {
    const fk_pack_options defaults = FK_PACK_OPTIONS_INIT;
    const fk_emu_options emulator = {.seed = 0};
    fk_generate_options how = FK_GENERATE_OPTIONS_INIT;
    fk_pack_progress progress = {0};
    fk_error err;
    if (!path || !spellings || !gpus)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !path ? "path" : spellings ? "gpus" : "spellings");
    if (!options) options = &defaults;
    if (options->struct_size != sizeof *options)
        return fk_refuse(FK_BAD_ARGUMENT, "options->struct_size is %zu; FK_PACK_OPTIONS_INIT makes it %zu",
                         options->struct_size, sizeof *options);
    if (options->jobs < 0) return fk_refuse(FK_BAD_ARGUMENT, "options->jobs is %d: must be at least 0", options->jobs);
    how.planning.template_dir = options->template_dir;
    maker m = {.work = {.how = &how,
                        .emulator = options->emulate ? &emulator : NULL,
                        .lock = -1,
                        .skip_unsupported = options->skip_unsupported != 0}};
    fk_status status =
        plan_jobs(&m, spellings, count, gpus, num_gpus, options->template_dir, options->sized != 0, &err);
    if (!status) status = make(&m, path, options, report, user, &progress, &err);
    if (result) *result = progress;
    fk_pack_board_free(m.work.board, m.work.count);
    free_strings(&m.lines);
    free_strings(&m.names);
    free(m.work.job);
    free(m.devices);
    free(m.spellings);
    return status ? fk_report(&err) : FK_OK;
}
