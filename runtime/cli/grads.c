#include "grads.h"
#include "npy.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>

static cli_exit read_paths(const option_texts *given, const fk_problem *problem, const arrays *a, grads *g) {
    cli_exit code = arrays_paths(a, "--grad", given, g->path);
    for (size_t i = 0; i < a->count && code == CLI_OK; i++) {
        if (g->path[i] && !(problem->grad >> i & 1))
            return cli_fail(CLI_USAGE, "run: --grad: the spelling does not ask for the gradient of \"%s\" by grad=%s",
                            g->name[i], g->name[i]);
        code = output_try(g->path[i]);
    }
    return code;
}

/* Contiguous, as the array is; repeated axes are summed to one element. NaN until the device's is copied over it. */
static cli_exit allocate(const arrays *a, size_t i, fk_args *args, grads *g) {
    const fk_array *array = &args->array[i];
    fk_array_grad *grad = &args->array_grad[i];
    g->rank[i] = a->decl[i].rank;
    g->elements[i] = a->elements[i];
    const size_t bytes = (size_t)a->elements[i] * sizeof(float);
    g->host[i] = malloc(bytes);
    if (!g->host[i]) return cli_fail(CLI_FAILED, "no memory for the gradient of %s", g->name[i]);
    memset(g->host[i], 0xff, bytes);
    int64_t rest = g->elements[i];
    for (int d = 0; d < g->rank[i]; d++) {
        const int64_t below = array->stride[d];
        g->shape[i][d] = below ? rest / below : 1;
        if (below) rest = below;
        grad->stride[d] = below;
    }
    grad->data = g->host[i];
    return CLI_OK;
}

cli_exit grads_prepare(const option_texts *given, const fk_problem *problem, const arrays *a, fk_args *args,
                       grads *out) {
    grads g = {.count = a->count};
    for (size_t i = 0; i < a->count; i++)
        g.name[i] = a->decl[i].name;
    cli_exit code = read_paths(given, problem, a, &g);
    for (size_t i = 0; i < a->count && code == CLI_OK; i++)
        if (problem->grad >> i & 1) code = allocate(a, i, args, &g);
    if (code == CLI_OK)
        *out = g;
    else
        grads_free(&g, NULL);
    return code;
}

fk_status grads_upload(grads *g, fk_context *context, fk_args *args) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < g->count && status == FK_OK; i++) {
        if (!g->host[i]) continue;
        const size_t bytes = (size_t)g->elements[i] * sizeof(float);
        status = fk_device_malloc(context, bytes, &g->device[i]);
        if (status == FK_OK) status = fk_copy_to_device(context, g->device[i], g->host[i], bytes);
        args->array_grad[i].data = g->device[i];
    }
    return status;
}

fk_status grads_download(const grads *g, fk_context *context) {
    fk_status status = FK_OK;
    for (size_t i = 0; i < g->count && status == FK_OK; i++)
        if (g->host[i])
            status = fk_copy_from_device(context, g->host[i], g->device[i], (size_t)g->elements[i] * sizeof(float));
    return status;
}

cli_exit grads_write(const grads *g) {
    cli_exit code = CLI_OK;
    for (size_t i = 0; i < g->count && code == CLI_OK; i++) {
        output file = {0};
        npy_array array = {NPY_FP32, g->rank[i], {0}, g->elements[i], g->host[i]};
        if (!g->path[i]) continue;
        memcpy(array.shape, g->shape[i], sizeof array.shape);
        code = output_open(&file, g->path[i]);
        if (code == CLI_OK) npy_write(file.file, &array);
        if (code == CLI_OK) code = output_commit(&file);
        output_discard(&file);
    }
    return code;
}

void grads_free(grads *g, fk_context *context) {
    for (size_t i = 0; i < g->count; i++) {
        free(g->host[i]);
        if (context) fk_device_free(context, g->device[i]);
    }
    g->count = 0;
}
