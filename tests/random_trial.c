#include "random_case.h"

#include "random_dropout.h"
#include "random_pages.h"
#include "random_sequences.h"
#include "random_terms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory and calls -------------------------------------------------------------------------------------- */

/* A call of the library; its message is the complaint. */
static bool call(trial *t, const char *what, fk_status status) {
    return status == FK_OK || complain(t, "%s: %s: %s", what, fk_status_name(status), fk_last_error());
}

static void fill_input(void *memory, const layout *l, const drawn *d, int tensor) {
    rng r = {d->seed * 31 + (uint64_t)tensor};
    const double ramp = tensor == K ? d->ramp : 0;
    const double offset = tensor == Q ? d->offset_q : tensor == K ? d->offset_k : 0;
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t s = 0; s < l->size[1]; s++) {
            if (!row_exists(d, tensor, b, s, true)) continue;
            const double way = (double)s / (double)l->size[1];
            const double unit = tensor == DOUT ? 1 : tensor == V ? d->scale_v : d->scale_qk;
            const double scale = unit * (1 + (ramp > 0 ? way : way - 1) * ramp);
            for (int64_t h = 0; h < l->size[2]; h++)
                for (int64_t i = 0, at = row_at(l, b, s, h); i < l->dim; i++)
                    element_set(memory, dtype_of(d, tensor), at + i, scale * rng_normal(&r) + offset);
        }
}

static void *host_tensor(const trial *t, int tensor) {
    return element_at(t->host[tensor], dtype_of(t->d, tensor), t->d->tensor[tensor].offset);
}

/* Of those that are drawn, `at`: host or device. */
static void point_descales(const trial *t, void *const at[3], fk_args *args) {
    const float **const to[3] = {&args->q_descale, &args->k_descale, &args->v_descale};
    for (int i = 0; i < 3; i++)
        *to[i] = t->d->descaled[i] ? at[i] : NULL;
}

/* Host pointers, as the references take them. */
static fk_args host_args(const trial *t) {
    fk_args args = t->d->args;
    void *const descale[3] = {t->descale[0], t->descale[1], t->descale[2]};
    point_descales(t, descale, &args);
    args.q = host_tensor(t, Q);
    args.k = host_tensor(t, K);
    args.v = host_tensor(t, V);
    if (t->d->backward) args.dout = host_tensor(t, DOUT);
    args.dlse = t->d->backward && t->d->wants_dlse ? t->dlse : NULL;
    memcpy(args.array, t->array, sizeof t->array);
    return args;
}

/* Of fp32 the forward kernel's o and lse are where the backward pass starts, as in use: eager normalises its own
 * scores, whose errors cancel where few keys have all the weight, and so do a kernel's if lse comes from the same ones.
 * No kernel takes P from another lse better than to the rounding of a dot product, however small the score. */
static bool starts_from_kernel(const drawn *d) {
    return d->backward && d->dtype == FK_FP32;
}

/* Else the backward pass starts from exact o and lse, rounded. */
static void fill_forward(trial *t) {
    const drawn *d = t->d;
    const layout *l = &d->tensor[O];
    const double *o = t->exact[O];
    for (int64_t b = 0; b < l->size[0]; b++)
        for (int64_t h = 0; h < l->size[2]; h++)
            for (int64_t s = 0; s < l->size[1]; s++)
                for (int64_t i = 0, at = row_at(l, b, s, h); i < l->dim; i++)
                    element_set(t->host[O], d->dtype, at + i, *o++);
    rng r = {d->seed * 37};
    for (size_t i = 0; i < lse_count(d); i++) {
        t->lse[i] = (float)t->exact_lse[i];
        t->dlse[i] = (float)rng_normal(&r);
    }
}

static bool upload(trial *t, void **device, const void *host, size_t bytes) {
    return call(t, "malloc", fk_device_malloc(t->context, bytes, device)) &&
           (!host || call(t, "copy", fk_copy_to_device(t->context, *device, host, bytes)));
}

static bool allocate_arrays(trial *t) {
    rng r = {t->d->seed * 41};
    fk_array_decl decl[FK_MAX_ARRAYS];
    if (!call(t, "arrays", fk_problem_arrays(&t->problem, decl, &t->num_arrays))) return false;
    for (size_t i = 0; i < t->num_arrays; i++)
        if (!draw_array(&r, &decl[i], &t->d->args, &t->array[i], &t->array_host[i], &t->array_bytes[i]))
            return complain(t, "no memory");
    fk_args args = t->d->args;
    memcpy(args.array, t->array, sizeof t->array);
    return grads_allocate(&r, &t->problem, &args, &t->grads) || complain(t, "no memory");
}

static bool allocate(trial *t) {
    const drawn *d = t->d;
    if (!allocate_arrays(t)) return false;
    const size_t rows = lse_count(d), descales = (size_t)(d->args.batch * d->args.num_heads_kv);
    rng r = {d->seed * 43};
    for (int i = 0; i < 3; i++) {
        t->descale[i] = malloc(descales * sizeof(float));
        if (!t->descale[i]) return complain(t, "no memory");
        for (size_t j = 0; j < descales; j++)
            t->descale[i][j] = (float)exp2((i == 2 ? 3 : 0.7) * (rng_normal(&r) / 3));
    }
    t->lse = malloc(rows * sizeof *t->lse);
    t->dlse = malloc(rows * sizeof *t->dlse);
    t->exact_lse = malloc(rows * sizeof(double));
    t->eager_lse = malloc(rows * sizeof(double));
    if (!t->lse || !t->dlse || !t->exact_lse || !t->eager_lse) return complain(t, "no memory");
    memset(t->lse, 0xff, rows * sizeof *t->lse);
    memset(t->exact_lse, 0xff, rows * sizeof(double));
    for (int i = 0; i < num_tensors(d); i++) {
        const layout *l = &d->tensor[i];
        const size_t bytes = tensor_bytes(d, i);
        t->host[i] = malloc(bytes);
        t->again[i] = malloc(bytes);
        t->exact[i] = malloc(value_count(l) * sizeof(double));
        t->eager[i] = malloc(value_count(l) * sizeof(double));
        if (!t->host[i] || !t->again[i] || !t->exact[i] || !t->eager[i]) return complain(t, "no memory");
        memset(t->host[i], 0xff, bytes);
        memset(t->exact[i], 0xff, value_count(l) * sizeof(double));
        if (i != O && !is_result(d, i)) fill_input(t->host[i], l, d, i);
    }
    return true;
}

static bool refer(trial *t) {
    fk_args args = host_args(t);
    if (!call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_F64, t->exact[O], t->exact_lse)))
        return false;
    if (!t->d->backward)
        return call(t, "reference", fk_reference(&t->problem, &args, FK_REFERENCE_EAGER, t->eager[O], t->eager_lse));
    fill_forward(t);
    if (!starts_from_kernel(t->d)) args.o = host_tensor(t, O);
    for (int kind = FK_REFERENCE_F64; kind <= FK_REFERENCE_EAGER; kind++) {
        double *const *out = kind == FK_REFERENCE_F64 ? t->exact : t->eager;
        const fk_status status =
            fk_reference_backward(&t->problem, &args, (fk_reference_kind)kind, out[DQ], out[DK], out[DV]);
        if (!call(t, "reference", status)) return false;
    }
    return call(t, "reference", grads_refer(&t->grads, &t->problem, &args));
}

/* A workspace may hold anything. */
static bool upload_workspace(trial *t) {
    fk_args sizes = t->d->args;
    memcpy(sizes.array, t->array, sizeof t->array);
    grads_point(&t->grads, false, &sizes);
    t->workspace_bytes = fk_kernel_workspace(t->kernel, &sizes);
    if (!t->workspace_bytes) return true;
    void *anything = malloc(t->workspace_bytes);
    if (!anything) return complain(t, "no memory");
    memset(anything, 0xff, t->workspace_bytes);
    const bool done = upload(t, &t->workspace, anything, t->workspace_bytes);
    free(anything);
    return done;
}

static bool upload_all(trial *t) {
    const drawn *d = t->d;
    const size_t row_bytes = lse_count(d) * sizeof(float);
    for (int i = 0; i < num_tensors(d); i++)
        if (!upload(t, &t->device[i], t->host[i], tensor_bytes(d, i))) return false;
    for (size_t i = 0; i < t->num_arrays; i++)
        if (!upload(t, &t->array_device[i], t->array_host[i], t->array_bytes[i])) return false;
    const size_t count = (size_t)d->args.batch, offsets = (count + 1) * sizeof(int32_t);
    if (d->packed &&
        (!upload(t, &t->device_lengths[0], d->cu_q, offsets) || !upload(t, &t->device_lengths[1], d->cu_k, offsets)))
        return false;
    if (d->seqused_k && !upload(t, &t->device_lengths[2], d->used_k, count * sizeof(int32_t))) return false;
    if (d->paged && !upload(t, &t->device_lengths[3], d->table, (size_t)table_entries(d) * sizeof(int32_t)))
        return false;
    if (d->args.dropout_state && !upload(t, &t->device_state, d->state, sizeof d->state)) return false;
    for (int i = 0; i < 3; i++)
        if (d->descaled[i] && !upload(t, &t->device_descale[i], t->descale[i],
                                      (size_t)(d->args.batch * d->args.num_heads_kv) * sizeof(float)))
            return false;
    if (!call(t, "copy", grads_upload(&t->grads, t->context))) return false;
    return upload(t, &t->device_lse, t->lse, row_bytes) && upload(t, &t->device_dlse, t->dlse, row_bytes) &&
           upload_workspace(t);
}

static void release(trial *t) {
    for (int i = 0; i < NUM_TENSORS; i++) {
        free(t->host[i]);
        free(t->again[i]);
        free(t->exact[i]);
        free(t->eager[i]);
        fk_device_free(t->context, t->device[i]);
    }
    for (size_t i = 0; i < t->num_arrays; i++) {
        free(t->array_host[i]);
        fk_device_free(t->context, t->array_device[i]);
    }
    fk_device_free(t->context, t->device_lse);
    fk_device_free(t->context, t->device_dlse);
    fk_device_free(t->context, t->workspace);
    for (int i = 0; i < 4; i++)
        fk_device_free(t->context, t->device_lengths[i]);
    fk_device_free(t->context, t->device_state);
    for (int i = 0; i < 3; i++) {
        fk_device_free(t->context, t->device_descale[i]);
        free(t->descale[i]);
    }
    free(t->lse);
    free(t->dlse);
    free(t->exact_lse);
    free(t->eager_lse);
    grads_free(&t->grads, t->context);
    fk_kernel_destroy(t->kernel);
}

/* The kernel for all sizes, and of every fourth problem that for its own. */
static bool find_kernel(trial *t) {
    const fk_args *a = &t->d->args;
    const fk_shape shape = {a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q, a->seqlen_k};
    fk_kernel_info info;
    if (!call(t, "parse", fk_problem_parse(t->d->spelling, &t->problem))) return false;
    const fk_status status = t->d->seed % 4 == 3 ? fk_kernel_create_for(t->kernels, &t->problem, &shape, &t->kernel)
                                                 : fk_kernel_create(t->kernels, &t->problem, &t->kernel);
    if (!call(t, "kernel", status)) return false;
    if (!call(t, "describe", fk_kernel_describe(t->kernel, &info))) return false;
    t->verdict->compiled = !info.from_store;
    t->verdict->spills = info.image.spill_bytes > 0;
    return true;
}

static void *device_tensor(const trial *t, int tensor) {
    return element_at(t->device[tensor], dtype_of(t->d, tensor), t->d->tensor[tensor].offset);
}

/* Inputs, o and lse. */
static fk_args device_args(const trial *t) {
    const drawn *d = t->d;
    fk_args args = d->args;
    args.q = device_tensor(t, Q);
    args.k = device_tensor(t, K);
    args.v = device_tensor(t, V);
    args.o = device_tensor(t, O);
    args.lse = d->backward || d->wants_lse ? t->device_lse : NULL;
    args.cu_seqlens_q = t->device_lengths[0];
    args.cu_seqlens_k = t->device_lengths[1];
    args.seqused_k = t->device_lengths[2];
    args.page_table = t->device_lengths[3];
    args.dropout_state = t->device_state;
    point_descales(t, t->device_descale, &args);
    for (size_t i = 0; i < t->num_arrays; i++) {
        args.array[i] = t->array[i];
        args.array[i].data =
            (char *)t->array_device[i] + ((const char *)t->array[i].data - (const char *)t->array_host[i]);
    }
    return args;
}

static bool execute(trial *t, void *const *results) {
    const drawn *d = t->d;
    fk_args args = device_args(t);
    if (d->backward) {
        args.dout = device_tensor(t, DOUT);
        args.dq = device_tensor(t, DQ);
        args.dk = device_tensor(t, DK);
        args.dv = device_tensor(t, DV);
        args.dlse = d->wants_dlse ? t->device_dlse : NULL;
    }
    grads_point(&t->grads, true, &args);
    if (!call(t, "execute", fk_execute(t->kernel, &args, t->workspace, t->workspace_bytes, NULL)) ||
        !call(t, "synchronize", fk_synchronize(t->context, NULL)))
        return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) &&
            !call(t, "copy", fk_copy_from_device(t->context, results[i], t->device[i], tensor_bytes(d, i))))
            return false;
    if (!call(t, "copy", grads_download(&t->grads, t->context, results == t->again))) return false;
    return call(t, "copy", fk_copy_from_device(t->context, t->lse, t->device_lse, lse_count(d) * sizeof(float)));
}

static bool run_forward(trial *t) {
    fk_problem forward = t->problem;
    fk_kernel *kernel = NULL;
    void *workspace = NULL;
    fk_args args = device_args(t);
    if (!starts_from_kernel(t->d)) return true;
    forward.op = FK_FORWARD;
    forward.deterministic = 0;
    forward.grad = 0;
    bool done = call(t, "forward kernel", fk_kernel_create(t->context, &forward, &kernel));
    const size_t bytes = done ? fk_kernel_workspace(kernel, &args) : 0;
    done = done && (bytes == 0 || upload(t, &workspace, NULL, bytes)) &&
           call(t, "execute forward", fk_execute(kernel, &args, workspace, bytes, NULL)) &&
           call(t, "synchronize", fk_synchronize(t->context, NULL));
    fk_device_free(t->context, workspace);
    fk_kernel_destroy(kernel);
    return done;
}

/* ---- a trial ------------------------------------------------------------------------------------------- */

static bool check_again(trial *t) {
    const drawn *d = t->d;
    if (d->backward ? !d->deterministic : d->seed % 4 != 0) return true;
    if (!execute(t, t->again)) return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) && memcmp(t->again[i], t->host[i], tensor_bytes(d, i)))
            return complain(t, "%s of a second run differs", tensor_name[i]);
    return grads_equal_again(&t->grads, t->verdict->complaint, sizeof t->verdict->complaint);
}

static bool check_mask(trial *t) {
    fk_args args = t->d->args;
    char *complaint = t->verdict->complaint;
    if (!t->d->dropout || t->d->seed % 4 != 1) return true;
    args.dropout_state = t->device_state;
    const fk_status status =
        check_keep_mask(t->context, t->kernel, &t->problem, t->d, &args, complaint, sizeof t->verdict->complaint);
    return status == FK_CHECK_FAILED ? false : call(t, "keep mask", status);
}

static bool try_problem(trial *t) {
    const drawn *d = t->d;
    if (!find_kernel(t) || !allocate(t) || !refer(t) || !upload_all(t) || !run_forward(t) || !execute(t, t->host))
        return false;
    if (!check_again(t) || !check_mask(t)) return false;
    if (!d->backward && d->wants_lse && !check_lse(t)) return false;
    for (int i = 0; i < num_tensors(d); i++)
        if (is_result(d, i) && (!check_values(t, i) || !check_padding(t, i))) return false;
    return check_array_grads(t);
}

bool random_trial(fk_context *context, fk_context *kernels, const drawn *d, verdict *out) {
    *out = (verdict){0};
    trial t = {.d = d, .context = context, .kernels = kernels, .verdict = out};
    const bool passed = try_problem(&t);
    release(&t);
    return passed;
}
