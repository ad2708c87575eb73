/* Of what sources a tuning record's kernel was made: those of the other family, or of the other direction, may change
 * without making it old. */
#include "advice.h"

#include "cache/sha256.h"
#include "gen/embedded.h"

#include <pthread.h>
#include <string.h>

/* The files that kernels are written by: Lua, which all are, and templates. */
typedef struct sources {
    const fk_embedded_file *file[FK_ADVICE_MAX_FILES];
    char digest[FK_ADVICE_MAX_FILES][65];
    int count;
} sources;

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_template(const fk_embedded_file *f) {
    return strcmp(f->path + strlen(f->path) - 3, ".cu") == 0;
}

static void read_sources(sources *all) {
    for (const fk_embedded_file *f = fk_embedded; f->path && all->count < FK_ADVICE_MAX_FILES; f++) {
        if (!starts_with(f->path, "templates/") && !starts_with(f->path, "gen/")) continue;
        fk_sha256 sha;
        fk_sha256_start(&sha);
        fk_sha256_add(&sha, f->path, strlen(f->path) + 1);
        fk_sha256_add(&sha, f->text, f->size);
        fk_sha256_finish_hex(&sha, all->digest[all->count]);
        all->file[all->count++] = f;
    }
}

/* Marks the template templates/NAME and those that it may include, which its text has as "NAME" in quotes. */
static void reach(const sources *all, const char *name, size_t size, bool reached[]) {
    static const char folder[] = "templates/", end[] = ".cu\"";
    for (int i = 0; i < all->count; i++) {
        const char *path = all->file[i]->path, *text = all->file[i]->text;
        if (reached[i] || !starts_with(path, folder) || strlen(path) != sizeof folder - 1 + size) continue;
        if (memcmp(path + sizeof folder - 1, name, size) != 0) continue;
        reached[i] = true;
        for (const char *at = text; (at = strstr(at, end)); at += sizeof end - 1) {
            const char *begin = at;
            while (begin > text && begin[-1] != '"')
                begin--;
            reach(all, begin, (size_t)(at - begin) + sizeof end - 2, reached);
        }
    }
}

enum { FORWARD_MMA, FORWARD_WGMMA, BACKWARD_MMA, BACKWARD_WGMMA, GENERATORS };
static char generator[GENERATORS][17];

static void digest_all(void) {
    static const char *const root[GENERATORS] = {"kernel/forward_mma.cu", "kernel/forward_wgmma.cu",
                                                 "kernel/backward_mma.cu", "kernel/backward_wgmma.cu"};
    static sources all;
    read_sources(&all);
    for (int g = 0; g < GENERATORS; g++) {
        bool reached[FK_ADVICE_MAX_FILES] = {false};
        fk_sha256 sha;
        char hex[65];
        reach(&all, root[g], strlen(root[g]), reached);
        fk_sha256_start(&sha);
        for (int i = 0; i < all.count; i++)
            if (reached[i] || !is_template(all.file[i])) fk_sha256_add(&sha, all.digest[i], 64);
        fk_sha256_finish_hex(&sha, hex);
        memcpy(generator[g], hex, 16);
    }
}

const char *fk_advice_generator(const char *problem, const char *plan) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, digest_all);
    return generator[(starts_with(problem, "bwd") ? BACKWARD_MMA : FORWARD_MMA) + starts_with(plan, "wgmma")];
}

bool fk_advice_is_fresh(const fk_tuning_record *r) {
    return strcmp(r->generator, fk_advice_generator(r->problem, r->plan)) == 0;
}
