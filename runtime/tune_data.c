#include "tune_data.h"
#include "emulator/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_SIZE = 64, NUM_DOCUMENTS = 8 };
#define MAX_ROWS ((int64_t)1 << 50) /* of all heads: their elements' bytes fit in 64 bits */

/* ---- values ---- */

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Bits of an element, uniform in (-2, 2): a random mantissa, and each exponent half as often as the one above it. */
static uint32_t random_bits(int32_t dtype, uint64_t random) {
    static const int mantissa_bits[] = {10, 7, 23, 3}, bias[] = {15, 127, 127, 7}, sign_bit[] = {15, 15, 31, 7};
    const uint32_t low = (uint32_t)random, high = (uint32_t)(random >> 32);
    const int below = high >> 1 ? __builtin_clz(high >> 1) - 1 : 31;
    const int exponent = bias[dtype] - (below < 5 ? below : 5);
    const uint32_t mantissa = low & ((1u << mantissa_bits[dtype]) - 1);
    return (high & 1) << sign_bit[dtype] | (uint32_t)exponent << mantissa_bits[dtype] | mantissa;
}

static void draw(int32_t dtype, uint64_t seed, void *out, size_t bytes) {
    uint8_t *of_one = out;
    uint16_t *of_two = out; /* a large search draws a hundred million of these */
    uint32_t *of_four = out;
    const int size = fk_dtype_bytes(dtype);
    for (size_t i = 0; i < bytes / (size_t)size; i++) {
        const uint32_t bits = random_bits(dtype, next_random(&seed));
        if (size == 2)
            of_two[i] = (uint16_t)bits;
        else if (size == 4)
            of_four[i] = bits;
        else
            of_one[i] = (uint8_t)bits;
    }
}

/* ---- pieces ---- */

static fk_status adopt(fk_status status, fk_error *err) {
    return status ? fk_fail(err, status, "%s", fk_last_error()) : FK_OK;
}

static void set_pointer(fk_args *args, size_t field, void *to) {
    memcpy((char *)args + field, &to, sizeof to);
}

/* Host memory to fill; take_piece gives it to the device. */
static fk_status new_piece(fk_tune_data *d, size_t field, size_t bytes, bool result, void **host, fk_error *err) {
    fk_tune_piece *piece = &d->piece[d->num_pieces++];
    *piece = (fk_tune_piece){.field = field, .bytes = bytes, .result = result};
    fk_status status = adopt(fk_device_malloc(d->context, bytes, &piece->device), err);
    if (status) return status;
    set_pointer(&d->device, field, piece->device);
    if (result && !d->keep) return FK_OK;
    piece->host = malloc(bytes ? bytes : 1);
    if (!piece->host) return fk_fail(err, FK_NO_MEMORY, "no memory for a tensor of %zu bytes", bytes);
    if (d->keep) set_pointer(&d->host, field, piece->host);
    if (host) *host = piece->host;
    return FK_OK;
}

static fk_status upload(fk_tune_data *d, fk_error *err) {
    fk_tune_piece *piece = &d->piece[d->num_pieces - 1];
    const fk_status status = adopt(fk_copy_to_device(d->context, piece->device, piece->host, piece->bytes), err);
    if (!d->keep) {
        free(piece->host);
        piece->host = NULL;
    }
    return status;
}

static fk_status add_random(fk_tune_data *d, size_t field, int32_t dtype, int64_t elements, uint64_t seed,
                            fk_error *err) {
    void *host = NULL;
    const size_t bytes = (size_t)elements * (size_t)fk_dtype_bytes(dtype);
    const fk_status status = new_piece(d, field, bytes, false, &host, err);
    if (status) return status;
    draw(dtype, seed, host, bytes);
    return upload(d, err);
}

/* `count` int32: from + i * step. */
static fk_status add_steps(fk_tune_data *d, size_t field, int64_t count, int64_t from, int64_t step, fk_error *err) {
    void *host = NULL;
    const fk_status status = new_piece(d, field, (size_t)count * sizeof(int32_t), false, &host, err);
    if (status) return status;
    int32_t *values = host;
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(from + i * step);
    return upload(d, err);
}

static fk_status add_result(fk_tune_data *d, size_t field, int64_t elements, size_t size, fk_error *err) {
    return new_piece(d, field, (size_t)elements * size, true, NULL, err);
}

/* ---- tensors ---- */

static fk_status add_tensors(fk_tune_data *d, fk_error *err) {
    const fk_problem *p = &d->problem;
    const fk_args *a = &d->device;
    const int64_t rows_q = p->packed ? a->total_q : a->batch * a->seqlen_q;
    const int64_t rows_k = p->paged ? a->num_pages * a->page_size : p->packed ? a->total_k : a->batch * a->seqlen_k;
    if (rows_q > MAX_ROWS / a->num_heads_q || rows_k > MAX_ROWS / a->num_heads_kv)
        return fk_fail(err, FK_BAD_ARGUMENT, "tensors have %lld x %lld and %lld x %lld rows; 2^50 is the limit",
                       (long long)rows_q, (long long)a->num_heads_q, (long long)rows_k, (long long)a->num_heads_kv);
    const int64_t q = rows_q * a->num_heads_q * p->head_dim, o = rows_q * a->num_heads_q * p->head_dim_v;
    const int64_t k = rows_k * a->num_heads_kv * p->head_dim, v = rows_k * a->num_heads_kv * p->head_dim_v;
    const size_t size = (size_t)fk_dtype_bytes(p->dtype), o_size = (size_t)fk_dtype_bytes(fk_output_dtype(p->dtype));
    fk_status status = add_random(d, offsetof(fk_args, q), p->dtype, q, 1, err);
    if (!status) status = add_random(d, offsetof(fk_args, k), fk_kv_dtype(p), k, 2, err);
    if (!status) status = add_random(d, offsetof(fk_args, v), fk_kv_dtype(p), v, 3, err);
    if (!status) status = add_result(d, offsetof(fk_args, o), o, o_size, err);
    if (!status) status = add_result(d, offsetof(fk_args, lse), rows_q * a->num_heads_q, sizeof(float), err);
    if (status || p->op == FK_FORWARD) return status;
    status = add_random(d, offsetof(fk_args, dout), p->dtype, o, 4, err);
    if (!status) status = add_result(d, offsetof(fk_args, dq), q, size, err);
    if (!status) status = add_result(d, offsetof(fk_args, dk), k, size, err);
    if (!status) status = add_result(d, offsetof(fk_args, dv), v, size, err);
    return status;
}

static fk_status add_lengths(fk_tune_data *d, fk_error *err) {
    const fk_problem *p = &d->problem;
    const fk_args *a = &d->device;
    fk_status status = FK_OK;
    if (p->packed) status = add_steps(d, offsetof(fk_args, cu_seqlens_q), a->batch + 1, 0, a->seqlen_q, err);
    if (p->packed && !status) status = add_steps(d, offsetof(fk_args, cu_seqlens_k), a->batch + 1, 0, a->seqlen_k, err);
    if (p->seqused_k && !status) status = add_steps(d, offsetof(fk_args, seqused_k), a->batch, a->seqlen_k, 0, err);
    if (p->paged && !status) status = add_steps(d, offsetof(fk_args, page_table), a->num_pages, 0, 1, err);
    return status;
}

/* ---- declared arrays ---- */

static int64_t size_of_dim(const fk_args *a, int32_t dim) {
    return dim == FK_DIM_BATCH         ? a->batch
           : dim == FK_DIM_HEADS_Q     ? a->num_heads_q
           : dim == FK_DIM_SEQLEN_Q    ? a->seqlen_q
           : dim == FK_DIM_SEQLEN_K    ? a->seqlen_k
           : a->seqlen_k > a->seqlen_q ? a->seqlen_k
                                       : a->seqlen_q;
}

/* Sizes, and strides that repeat an array of many dimensions over batch and heads: it would not fit memory else. */
static int64_t lay_out(const fk_array_decl *decl, const fk_args *a, int64_t size[], int64_t stride[]) {
    int64_t elements = 1;
    for (int i = decl->rank - 1; i >= 0; i--) {
        const bool repeated = decl->rank > 2 && (decl->dim[i] == FK_DIM_BATCH || decl->dim[i] == FK_DIM_HEADS_Q);
        size[i] = size_of_dim(a, decl->dim[i]);
        stride[i] = repeated ? 0 : elements;
        if (!repeated) elements *= size[i];
    }
    return elements;
}

/* Sorted: documents of equal length. One number for each batch entry: half its keys, whether it is where they end or
 * begin. Other ints are bits, or what is clamped. A float for each head: ALiBi's slopes (Press et al. 2021, section 3),
 * as others might make scores grow with the distance, and rows be computed twice. */
static void fill_array(const fk_array_decl *decl, const fk_args *a, int64_t elements, int64_t last, uint64_t seed,
                       void *out) {
    float *floats = out;
    uint16_t *halves = out;
    int32_t *ints = out;
    const bool by_head = decl->rank == 1 && decl->dim[0] == FK_DIM_HEADS_Q;
    for (int64_t i = 0; i < elements; i++) {
        const uint64_t random = next_random(&seed);
        const float uniform = (float)((double)(random >> 40) * 0x1p-24 - 0.5);
        const float value = by_head ? exp2f(-8 * (float)(i + 1) / (float)elements) : uniform;
        if (decl->type == FK_FLOAT32)
            floats[i] = value;
        else if (fk_array_is_float(decl))
            halves[i] = decl->type == FK_FLOAT16 ? fk_fp16_from_float(value) : fk_bf16_from_float(value);
        else if (decl->sorted)
            ints[i] = (int32_t)(i % last * NUM_DOCUMENTS / last);
        else if (decl->rank == 1)
            ints[i] = (int32_t)(decl->dim[0] == FK_DIM_BATCH ? (a->seqlen_k + 1) / 2 : i);
        else
            ints[i] = (int32_t)random;
    }
}

static fk_status add_array(fk_tune_data *d, int i, const fk_array_decl *decl, fk_error *err) {
    int64_t size[FK_MAX_RANK], stride[FK_MAX_RANK];
    const int64_t elements = lay_out(decl, &d->device, size, stride);
    void *host = NULL;
    fk_status status = new_piece(d, offsetof(fk_args, array) + (size_t)i * sizeof(fk_array) + offsetof(fk_array, data),
                                 (size_t)elements * (size_t)fk_array_element_bytes(decl), false, &host, err);
    if (status) return status;
    fill_array(decl, &d->device, elements, size[decl->rank - 1], (uint64_t)i + 100, host);
    status = upload(d, err);
    if (!status && d->problem.grad >> i & 1)
        status = add_result(
            d, offsetof(fk_args, array_grad) + (size_t)i * sizeof(fk_array_grad) + offsetof(fk_array_grad, data),
            elements, sizeof(float), err);
    for (int n = 0; n < decl->rank; n++) {
        d->host.array[i].size[n] = d->device.array[i].size[n] = size[n];
        d->host.array[i].stride[n] = d->device.array[i].stride[n] = stride[n];
        d->host.array_grad[i].stride[n] = d->device.array_grad[i].stride[n] = stride[n];
    }
    return status;
}

static fk_status add_arrays(fk_tune_data *d, fk_error *err) {
    fk_array_list list;
    fk_status status = fk_problem_list_arrays(&d->problem, &list, err);
    for (int i = 0; !status && i < list.count; i++)
        status = add_array(d, i, &list.decl[i], err);
    return status;
}

/* ---- all of it ---- */

fk_status fk_tune_data_make(fk_context *context, const fk_problem *canonical, const fk_shape *shape, bool keep,
                            fk_tune_data *out, fk_error *err) {
    const fk_args sizes = {.struct_size = sizeof sizes,
                           .batch = shape->batch,
                           .num_heads_q = shape->num_heads_q,
                           .num_heads_kv = shape->num_heads_kv,
                           .seqlen_q = shape->seqlen_q,
                           .seqlen_k = shape->seqlen_k,
                           .total_q = shape->batch * shape->seqlen_q,
                           .total_k = shape->batch * shape->seqlen_k,
                           .dropout_p = canonical->dropout ? 0.1 : 0,
                           .dropout_seed = 1};
    memset(out, 0, sizeof *out);
    out->context = context;
    out->problem = *canonical;
    out->keep = keep;
    out->device = sizes;
    if (canonical->paged) {
        const int64_t page_size = canonical->paged > PAGE_SIZE ? canonical->paged : PAGE_SIZE;
        const int64_t width = (shape->seqlen_k + page_size - 1) / page_size;
        out->device.page_size = page_size;
        out->device.page_table_stride = width;
        out->device.num_pages = shape->batch * width;
    }
    fk_status status = adopt(fk_args_layout(canonical, FK_BSHD, &out->device), err);
    out->host = out->device;
    if (!status) status = add_tensors(out, err);
    if (!status) status = add_lengths(out, err);
    if (!status) status = add_arrays(out, err);
    if (status) fk_tune_data_free(out);
    return status;
}

void fk_tune_data_free(fk_tune_data *data) {
    for (int i = 0; i < data->num_pieces; i++) {
        free(data->piece[i].host);
        fk_device_free(data->context, data->piece[i].device);
    }
    data->num_pieces = 0;
}

/* ---- results ---- */

fk_status fk_tune_data_poison(fk_tune_data *data, fk_error *err) {
    const bool backward = data->problem.op == FK_BACKWARD;
    fk_status status = FK_OK;
    for (int i = 0; i < data->num_pieces && !status; i++) {
        fk_tune_piece *piece = &data->piece[i];
        const bool given = backward && (piece->field == offsetof(fk_args, o) || piece->field == offsetof(fk_args, lse));
        if (!piece->result || !piece->host || given) continue;
        memset(piece->host, 0xff, piece->bytes);
        status = adopt(fk_copy_to_device(data->context, piece->device, piece->host, piece->bytes), err);
    }
    return status;
}

fk_status fk_tune_data_fetch(fk_tune_data *data, fk_error *err) {
    fk_status status = FK_OK;
    for (int i = 0; i < data->num_pieces && !status; i++) {
        fk_tune_piece *piece = &data->piece[i];
        if (piece->result && piece->host)
            status = adopt(fk_copy_from_device(data->context, piece->host, piece->device, piece->bytes), err);
    }
    return status;
}

fk_status fk_tune_data_run(fk_tune_data *data, const fk_kernel *kernel, fk_error *err) {
    void *workspace = NULL;
    const size_t bytes = fk_kernel_workspace(kernel, &data->device);
    fk_status status = bytes ? adopt(fk_device_malloc(data->context, bytes, &workspace), err) : FK_OK;
    if (!status) status = adopt(fk_execute(kernel, &data->device, workspace, bytes, NULL), err);
    if (!status) status = adopt(fk_synchronize(data->context, NULL), err);
    fk_device_free(data->context, workspace);
    return status;
}

fk_status fk_tune_data_forward(fk_tune_data *data, fk_error *err) {
    fk_problem forward = data->problem;
    fk_kernel *kernel;
    forward.op = FK_FORWARD;
    forward.deterministic = forward.grad = 0;
    fk_status status = adopt(fk_kernel_create(data->context, &forward, &kernel), err);
    if (status) return status;
    status = fk_tune_data_run(data, kernel, err);
    fk_kernel_destroy(kernel);
    return status ? status : fk_tune_data_fetch(data, err);
}
