/* The packs of a context. One that is missing, damaged, not trusted or made by another build is no error: it has no
 * kernels, and says why at every miss. */
#include "packs.h"

#include "gen/embedded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fk_loaded_pack {
    struct fk_loaded_pack *next;
    fk_pack *pack; /* null: `reason` */
    char *path;
    char reason[400];
} loaded_pack;

static const char *variable(const char *name) {
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}
const char *fk_packs_from_environment(void) {
    return variable("FLASHKILN_PACK");
}
const char *fk_pack_keys_from_environment(void) {
    return variable("FLASHKILN_PACK_KEYS");
}

/* ---- loading ------------------------------------------------------------------------------------------- */

/* A kernel is launched as its build's generator and launcher agreed; other builds may have agreed on something else. */
static fk_status check_generator(const fk_pack *pack, fk_error *err) {
    char generator[80], version[32];
    fk_pack_info_line(pack, "generator", generator, sizeof generator);
    if (strcmp(generator, fk_embedded_digest) == 0) return FK_OK;
    fk_pack_info_line(pack, "version", version, sizeof version);
    return fk_fail(err, FK_CHECK_FAILED,
                   "pack %s: generator: it was made by another build of FlashKiln (%s, sources %.12s) than this one "
                   "(sources %.12s): build it anew",
                   fk_pack_path(pack), version, generator, fk_embedded_digest);
}

/* Where it was made with files before built-in ones, these must be here. Without Lua, too: so files are compared, not
 * what they say. */
static fk_status check_templates(const fk_pack *pack, const char *template_dir, fk_error *err) {
    char made[65], here[65];
    fk_pack_info_line(pack, FK_PACK_TEMPLATES, made, sizeof made);
    if (!made[0]) return FK_OK;
    const fk_status status = fk_overrides_digest(template_dir, here, err);
    if (status || strcmp(made, here) == 0) return status;
    return fk_fail(err, FK_CHECK_FAILED,
                   "pack %s: templates: it was made where files of template_dir stood before built-in ones (%.12s); "
                   "here %s%.12s%s",
                   fk_pack_path(pack), made, here[0] ? "others do (" : "none do", here, here[0] ? ")" : "");
}

bool fk_pack_next_term(const char **at, char line[FK_TERM_TEXT]) {
    static const char prefix[] = FK_PACK_TERM;
    while (**at) {
        const char *begin = *at;
        const size_t length = strcspn(begin, "\n");
        *at += length + (begin[length] == '\n');
        if (strncmp(begin, prefix, sizeof prefix - 1) != 0) continue;
        snprintf(line, FK_TERM_TEXT, "%.*s", (int)(length - (sizeof prefix - 1)), begin + sizeof prefix - 1);
        return true;
    }
    return false;
}

/* The name in a line, behind its kind. */
static size_t name_of(const char *line, const char **name) {
    *name = line + strcspn(line, " ");
    *name += **name == ' ';
    return strcspn(*name, " ");
}

/* Lines of one name that differ. */
static fk_status check_names(const fk_pack *pack, fk_error *err) {
    char line[FK_TERM_TEXT], other[FK_TERM_TEXT];
    for (const char *at = fk_pack_text(pack), *name, *of_other; fk_pack_next_term(&at, line);) {
        const size_t length = name_of(line, &name);
        for (const char *later = at; fk_pack_next_term(&later, other);)
            if (name_of(other, &of_other) == length && memcmp(name, of_other, length) == 0 && strcmp(line, other) != 0)
                return fk_fail(err, FK_CHECK_FAILED, "\"%.500s\" is \"%.500s\" by a later line", line, other);
    }
    return FK_OK;
}

/* Its terms, which must mean what they do here, and stand in for files that are not here. A pack that is refused
 * teaches nothing. */
static fk_status learn_terms(const fk_pack *pack, const char *template_dir, fk_error *err) {
    char line[FK_TERM_TEXT];
    const char *at = fk_pack_text(pack);
    const size_t size = strlen(at) + 1;
    fk_lua *lua = NULL;
    fk_error why;
    if (!fk_pack_next_term(&at, line)) return FK_OK;
    char *lines = malloc(size); /* of no file here */
    fk_status status = lines ? check_names(pack, &why) : fk_fail(&why, FK_NO_MEMORY, "no memory for its terms");
    if (!status) status = fk_term_lua_open(template_dir, &lua, &why);
    size_t used = 0;
    bool is_file = false;
    if (lines) lines[0] = 0;
    for (at = fk_pack_text(pack); !status && fk_pack_next_term(&at, line);) {
        status = fk_term_agree(lua, line, &is_file, &why);
        if (!status && !is_file) used += (size_t)snprintf(lines + used, size - used, "%s\n", line);
    }
    if (!status) status = fk_term_learn(lines, &why);
    free(lines);
    fk_lua_close(lua);
    return status ? fk_fail(err, status, "pack %s: term: %s", fk_pack_path(pack), why.text) : FK_OK;
}

static fk_status open_checked(const char *path, const char *template_dir, const char *keys, fk_pack **out,
                              fk_error *err) {
    fk_pack *pack = NULL;
    fk_status status = fk_pack_open(path, &pack, err);
    if (!status) status = fk_pack_check_trust(pack, keys, err);
    if (!status) status = check_generator(pack, err);
    if (!status) status = check_templates(pack, template_dir, err);
    if (!status) status = learn_terms(pack, template_dir, err);
    if (status)
        fk_pack_close(pack);
    else
        *out = pack;
    return status;
}

void fk_packs_init(fk_packs *packs) {
    pthread_mutex_init(&packs->lock, NULL);
    packs->template_dir = NULL;
    packs->first = NULL;
    packs->end = &packs->first;
}

void fk_packs_free(fk_packs *packs) {
    for (loaded_pack *p = packs->first, *next; p; p = next) {
        next = p->next;
        fk_pack_close(p->pack);
        free(p->path);
        free(p);
    }
    pthread_mutex_destroy(&packs->lock);
}

static loaded_pack *first_of(fk_packs *packs) {
    pthread_mutex_lock(&packs->lock);
    loaded_pack *first = packs->first;
    pthread_mutex_unlock(&packs->lock);
    return first;
}

static loaded_pack *after(fk_packs *packs, const loaded_pack *p) {
    pthread_mutex_lock(&packs->lock);
    loaded_pack *next = p->next;
    pthread_mutex_unlock(&packs->lock);
    return next;
}

bool fk_packs_any(fk_packs *packs) {
    return first_of(packs) != NULL;
}

bool fk_packs_open(fk_packs *packs) {
    const loaded_pack *p = first_of(packs);
    while (p && !p->pack)
        p = after(packs, p);
    return p != NULL;
}

/* `must`: one that cannot be used is not added. */
static fk_status add(fk_packs *packs, const char *path, size_t length, const char *keys, bool must, fk_error *err) {
    fk_error failure = {.status = FK_OK};
    loaded_pack *p = calloc(1, sizeof *p);
    if (p) p->path = strndup(path, length);
    if (!p || !p->path) {
        free(p);
        return fk_fail(err, FK_NO_MEMORY, "no memory for a pack");
    }
    const fk_status status = open_checked(p->path, packs->template_dir, keys, &p->pack, &failure);
    if (status) snprintf(p->reason, sizeof p->reason, "%.*s", (int)sizeof p->reason - 1, failure.text);
    if (status)
        fk_log("%s", failure.text);
    else
        fk_log("pack %s: %zu kernels", p->path, fk_pack_count(p->pack));
    if (status && must) {
        free(p->path);
        free(p);
        if (err) *err = failure;
        return status;
    }
    pthread_mutex_lock(&packs->lock);
    *packs->end = p;
    packs->end = &p->next;
    pthread_mutex_unlock(&packs->lock);
    return FK_OK;
}

fk_status fk_packs_add(fk_packs *packs, const char *path, const char *keys, fk_error *err) {
    return add(packs, path, strlen(path), keys, true, err);
}

fk_status fk_packs_add_list(fk_packs *packs, const char *paths, const char *keys, fk_error *err) {
    fk_status status = FK_OK;
    while (*paths && !status) {
        const size_t length = strcspn(paths, ":");
        if (length) status = add(packs, paths, length, keys, false, err);
        paths += length + (paths[length] == ':');
    }
    return status;
}

void fk_packs_each(fk_packs *packs, void (*tell)(void *user, const char *path, const fk_pack *pack, const char *reason),
                   void *user) {
    for (const loaded_pack *p = first_of(packs); p; p = after(packs, p))
        tell(user, p->path, p->pack, p->pack ? NULL : p->reason);
}

/* Spellings are read before a context is opened: the terms in them that have no file here, which without Lua is none,
 * are those of the packs that the environment names. */
static void teach(char *missing, size_t size) {
    fk_packs packs;
    size_t used = 0;
    const char *paths = fk_packs_from_environment();
    fk_packs_init(&packs);
    if (paths) fk_packs_add_list(&packs, paths, fk_pack_keys_from_environment(), NULL);
    for (const loaded_pack *p = packs.first; p && used < size; p = p->next)
        if (!p->pack) used += (size_t)snprintf(missing + used, size - used, "%s%s", used ? "; " : "", p->reason);
    fk_packs_free(&packs);
}

__attribute__((constructor)) static void offer(void) {
    fk_term_set_teacher(teach);
}

/* ---- finding ------------------------------------------------------------------------------------------- */

/* Reads record i, if it can run here. */
static bool take(const fk_pack *pack, size_t i, const fk_pack_query *query, fk_source *source, fk_entry *entry,
                 char *note, size_t size) {
    const fk_pack_item item = fk_pack_item_at(pack, i);
    fk_error err;
    char key[65];
    if (query->driver && item.min_driver > query->driver) {
        snprintf(note, size, "driver: it needs CUDA %u.%u, the driver has %u.%u", item.min_driver / 1000,
                 item.min_driver % 1000 / 10, query->driver / 1000, query->driver % 1000 / 10);
        return false;
    }
    if (!fk_pack_read(pack, i, entry, note, size)) return false;
    if (fk_facts_read(entry->text, query->problem, source, key, &err)) {
        snprintf(note, size, "%.*s", (int)size - 1, err.text);
    } else if (source->plan.smem_bytes > query->runs->smem_per_block) {
        snprintf(note, size, "device: planned for %s, needs smem_bytes %d; a block has %d here", item.gpu,
                 source->plan.smem_bytes, query->runs->smem_per_block);
    } else {
        snprintf(note, size, "hit: planned for %s", item.gpu);
        return true;
    }
    fk_entry_free(entry);
    return false;
}

/* The record for this very GPU, else, on a GPU, the first that fits: it is of the same architecture. */
static bool find_in(const fk_pack *pack, const fk_pack_query *query, const char *spelling, fk_source *source,
                    fk_entry *entry, char *note, size_t size) {
    size_t first;
    const size_t count = fk_pack_find(pack, query->target, spelling, &first);
    snprintf(note, size, "absent");
    for (size_t i = first; i < first + count; ++i)
        if (strcmp(fk_pack_item_at(pack, i).gpu, query->planned->key) == 0)
            return take(pack, i, query, source, entry, note, size);
    if (strcmp(query->target, "emu") == 0) return false;
    for (size_t i = first; i < first + count; ++i)
        if (take(pack, i, query, source, entry, note, size)) return true;
    return false;
}

bool fk_packs_spell(const char *spelling, const char *plan, char out[FK_MAX_SPELLING]) {
    return snprintf(out, FK_MAX_SPELLING, "%s%s%s", spelling, plan ? ", " : "", plan ? plan : "") < FK_MAX_SPELLING;
}

bool fk_packs_have(fk_packs *packs, const fk_pack_query *query) {
    char class[FK_MAX_SPELLING], spelling[FK_MAX_SPELLING];
    size_t first, count = 0;
    if (fk_problem_write_class(query->problem, class, NULL) || !fk_packs_spell(class, query->plan, spelling))
        return false;
    for (loaded_pack *p = first_of(packs); p && !count; p = after(packs, p))
        if (p->pack) count = fk_pack_find(p->pack, query->target, spelling, &first);
    return count > 0;
}

int fk_packs_find_short(fk_packs *packs, const fk_pack_query *query, const fk_short_class *class,
                        char plan[FK_MAX_PLAN]) {
    char spelling[FK_MAX_SPELLING];
    int number = -1;
    if (fk_problem_write_class(query->problem, spelling, NULL)) return 0;
    for (loaded_pack *p = first_of(packs); p && number < 0; p = after(packs, p))
        if (p->pack) number = fk_short_map_find(fk_pack_text(p->pack), query->planned->key, spelling, class, plan);
    return number < 0 ? 0 : number;
}

bool fk_packs_find(fk_packs *packs, const fk_pack_query *query, fk_source *source, fk_entry *entry, char *path,
                   size_t size, char *note, size_t note_size) {
    char class[FK_MAX_SPELLING], spelling[FK_MAX_SPELLING], why[512];
    fk_error err;
    size_t used = 0;
    snprintf(note, note_size, "no pack is open");
    if (fk_problem_write_class(query->problem, class, &err)) {
        snprintf(note, note_size, "%.*s", (int)note_size - 1, err.text);
        return false;
    }
    if (!fk_packs_spell(class, query->plan, spelling)) {
        snprintf(note, note_size, "\"%.200s...\" is too long a spelling for a plan behind it", class);
        return false;
    }
    for (loaded_pack *p = first_of(packs); p; p = after(packs, p)) {
        const bool found = p->pack && find_in(p->pack, query, spelling, source, entry, why, sizeof why);
        if (!p->pack) snprintf(why, sizeof why, "%s", p->reason);
        fk_log("\"%s\" for %s: pack %s: %s", spelling, query->target, p->path, why);
        if (used < note_size)
            used += (size_t)snprintf(note + used, note_size - used, "%s%s%s%s", used ? "; " : "",
                                     p->pack ? p->path : "", p->pack ? ": " : "", why);
        if (!found) continue;
        snprintf(note, note_size, "%s", why);
        snprintf(path, size, "%s", p->path);
        return true;
    }
    return false;
}
