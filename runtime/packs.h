/* Kernels from packs: which packs a context has, what of a source travels with an image, and how packs are made. */
#ifndef FK_RUNTIME_PACKS_H
#define FK_RUNTIME_PACKS_H

#include "cache/pack.h"
#include "gen/term.h"
#include "short_rows.h"

#include <pthread.h>

/* ---- launch facts (facts.c) --------------------------------------------------------------------------- */

#define FK_FACTS_BYTES 16384
/** What a launch needs of a source, as lines of text; and the key of its text, fk_build_key's. */
void fk_facts_write(const fk_source *source, const char key[65], char out[FK_FACTS_BYTES]);
/** Reads them, accepting only what fk_facts_write writes. `p`: canonical, of the source's class, whose run-time values
 *  are taken; may be null. `out` has no text and no spelling. @return FK_CHECK_FAILED: they are damaged, or not of
 *  this problem */
fk_status fk_facts_read(const char *text, const fk_problem *p, fk_source *out, char key[65], fk_error *err);

/* ---- the packs of a context (packs.c) ------------------------------------------------------------------ */

#define FK_PACK_TERM "term: " /* begins the lines of a pack's info that fk_term_learn reads */
/** The next of them behind *at, which begins as fk_pack_text; cut to what none exceeds. False: there are no more. */
bool fk_pack_next_term(const char **at, char line[FK_TERM_TEXT]);

/** The line of a pack's info that has fk_overrides_digest's, if that is not "". */
#define FK_PACK_TEMPLATES "templates"
/** SHA-256, in hex, of the files of `template_dir` (null: fk_template_dir) that stand before built-in ones and differ
 *  from them; "": there are none (overrides.c). @return FK_IO */
fk_status fk_overrides_digest(const char *template_dir, char out[65], fk_error *err);

struct fk_loaded_pack;
typedef struct fk_packs {
    pthread_mutex_t lock;
    const char *template_dir; /* the context's: what names mean; null: fk_template_dir */
    struct fk_loaded_pack *first,
        **end; /* in the order in which they are asked; guarded by lock, and never taken out */
} fk_packs;

void fk_packs_init(fk_packs *packs);
void fk_packs_free(fk_packs *packs);
bool fk_packs_any(fk_packs *packs);
/** Whether one of them can be used. */
bool fk_packs_open(fk_packs *packs);
/** Adds those of a list of paths, separated by colons. One that cannot be used stays, with its reason, which every miss
 *  tells. `keys`: of fk_pack_check_trust. @return FK_NO_MEMORY */
fk_status fk_packs_add_list(fk_packs *packs, const char *paths, const char *keys, fk_error *err);
/** Adds one that must be usable. */
fk_status fk_packs_add(fk_packs *packs, const char *path, const char *keys, fk_error *err);

typedef struct fk_pack_query {
    const fk_problem *problem;            /* canonical */
    const fk_device_info *planned, *runs; /* for whom, and on what */
    const char *target;
    uint32_t driver;  /* what it supports, 13000; 0: there is none, nor need for one */
    const char *plan; /* the line of one for some sizes; null: the kernel for all */
} fk_pack_query;
/** A record's spelling: of the problem's class, and for some sizes the plan, too. False: that is too long. */
bool fk_packs_spell(const char *spelling, const char *plan, char out[FK_MAX_SPELLING]);
/** The first pack's kernel that fits. `note`: "hit: PACK, planned for GPU", or why each pack has none. `path` (of
 * `size`) is the pack's. */
bool fk_packs_find(fk_packs *packs, const fk_pack_query *query, fk_source *source, fk_entry *entry, char *path,
                   size_t size, char *note, size_t note_size);

/** Whether a pack has such a record, which is not read. */
bool fk_packs_have(fk_packs *packs, const fk_pack_query *query);
/** fk_short_map_find in the first pack that has a map for the problem. */
int fk_packs_find_short(fk_packs *packs, const fk_pack_query *query, const fk_short_class *class,
                        char plan[FK_MAX_PLAN]);

/** Gives `tell` each pack, with why it cannot be used, or null. */
void fk_packs_each(fk_packs *packs, void (*tell)(void *user, const char *path, const fk_pack *pack, const char *reason),
                   void *user);

/** $FLASHKILN_PACK and $FLASHKILN_PACK_KEYS; or null. */
const char *fk_packs_from_environment(void);
const char *fk_pack_keys_from_environment(void);

/* ---- the log (log.c) ----------------------------------------------------------------------------------- */

/** Whether $FLASHKILN_LOG asks for it. */
bool fk_log_on(void);
/** One line on stderr, if it does. */
void fk_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
