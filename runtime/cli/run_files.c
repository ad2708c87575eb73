/* The files that a run names: what it writes is nothing that it reads, nor written twice. */
#include "run.h"

#include <string.h>
#include <sys/stat.h>

const char *const run_tensor_option[NUM_TENSORS] = {"--q", "--k", "--v", "-o", "--lse", "--do", "--dq", "--dk", "--dv"};

bool run_is_input(int which) {
    return which <= TENSOR_V || which == TENSOR_DOUT;
}

typedef struct named {
    const char *name, *path; /* name: of an output's option */
    bool input;
} named;

typedef struct list {
    named at[NUM_TENSORS + NUM_LENGTHS + 2 * OPTION_MAX_TEXTS + 1];
    int count;
} list;

static void add(list *files, const char *name, const char *path, bool input) {
    if (path) files->at[files->count++] = (named){name, path, input};
}

/* Of NAME=FILE. */
static void add_texts(list *files, const char *name, const option_texts *texts, bool input) {
    for (int i = 0; i < texts->count; i++) {
        const char *equals = strchr(texts->value[i], '=');
        add(files, name, equals ? equals + 1 : NULL, input);
    }
}

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    if (strcmp(a, b) == 0) return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
}

cli_exit run_check_files(const run *r) {
    list files = {.count = 0};
    for (int i = 0; i < NUM_TENSORS; i++)
        add(&files, run_tensor_option[i], r->path[i], run_is_input(i));
    for (int i = 0; i < NUM_LENGTHS; i++) /* numbers themselves are no path of a file that is there */
        add(&files, "", r->lengths[i], true);
    add_texts(&files, "", &r->array, true);
    add_texts(&files, "--grad", &r->grad, false);
    add(&files, "--keep-mask", r->dropout.keep_mask, false);
    for (int i = 0; i < files.count; i++)
        for (int j = 0; j < files.count; j++) {
            const named *out = &files.at[i], *other = &files.at[j];
            if (i == j || out->input || !same_file(out->path, other->path)) continue;
            if (other->input) return cli_fail(CLI_USAGE, "run: an output would overwrite the input %s", other->path);
            return cli_fail(CLI_USAGE, "run: %s and %s name one file, %s", out->name, other->name, out->path);
        }
    return CLI_OK;
}
