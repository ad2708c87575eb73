/* The files that a run names: what it writes is nothing that it reads, nor written twice. */
#include "output.h"
#include "run.h"

#include <string.h>

const char *const run_tensor_option[NUM_TENSORS] = {"--q", "--k", "--v", "-o", "--lse", "--do", "--dq", "--dk", "--dv"};

bool run_is_input(int which) {
    return which <= TENSOR_V || which == TENSOR_DOUT;
}

enum { MAX_FILES = NUM_TENSORS + NUM_LENGTHS + 2 * OPTION_MAX_TEXTS + 2 };

bool run_next_pack(const char **at, char path[4096]) {
    if (!*at) return false;
    *at += strspn(*at, ":");
    const size_t length = strcspn(*at, ":");
    snprintf(path, 4096, "%.*s", (int)length, *at);
    *at += length;
    return length > 0;
}

/* Of NAME=FILE. */
static int add_texts(named_file *files, const char *name, const option_texts *texts) {
    for (int i = 0; i < texts->count; i++) {
        const char *equals = strchr(texts->value[i], '=');
        files[i] = (named_file){name, equals ? equals + 1 : NULL};
    }
    return texts->count;
}

cli_exit run_check_files(const run *r) {
    named_file files[MAX_FILES];
    int count = 0;
    for (int i = 0; i < NUM_TENSORS; i++)
        files[count++] = (named_file){run_is_input(i) ? NULL : run_tensor_option[i], r->path[i]};
    for (int i = 0; i < NUM_LENGTHS; i++) /* numbers themselves are no path of a file that is there */
        files[count++] = (named_file){NULL, r->lengths[i]};
    count += add_texts(files + count, NULL, &r->array);
    count += add_texts(files + count, "--grad", &r->grad);
    files[count++] = (named_file){"--keep-mask", r->dropout.keep_mask};
    cli_exit code = output_check("run", files, count);
    char pack[4096];
    files[count++] = (named_file){NULL, pack};
    for (const char *at = r->packs; code == CLI_OK && run_next_pack(&at, pack);)
        code = output_check("run", files, count);
    return code;
}
