/* What a kernel writes before the main kernel reads it: of dtype e4m3 the values transposed
 * (templates/piece/values.cu), beside what the elements count for; with kv_e4m3 keys and values of 16 bits
 * (templates/piece/widen.cu); of masks that leave runs of keys, where these are (templates/piece/runs.cu).
 *
 * Workspace: | what a persistent grid has | kv heads x tiles of block_n keys x fk_value_rows x 128 bytes |, or
 *            | what a persistent grid has | kv heads x keys x head_dim x 2 bytes | the same by head_dim_v |, or
 *            | what a persistent grid has | batch x 8 bytes of each query of whole tiles |. */
#include "object.h"

#define VALUE_PITCH 128 /* value_pitch of templates/piece/values.cu */
#define RUN_BYTES 8     /* of a query: its first and its last key */
#define MAX_WORKSPACE ((int64_t)1 << 60)

bool fk_widens_before(const fk_kernel *kernel) {
    return kernel->problem.kv_e4m3 && fk_is_persistent(kernel);
}

/* heads and tiles < 2^31 each, as batch x num_heads_q <= 2^30. */
bool fk_values_lay_out(const fk_kernel *kernel, const fk_args *a, fk_values *out) {
    const fk_problem *p = &kernel->problem;
    fk_persistent claims;
    const bool fits = fk_persistent_lay_out(kernel, a, &claims);
    *out = (fk_values){.offset = claims.bytes, .bytes = claims.bytes};
    if (fits && kernel->launch[0].grid == FK_GRID_RUNS) {
        const int64_t block_m = kernel->info.plan.block_m, rows = (a->seqlen_q + block_m - 1) / block_m * block_m;
        out->runs = claims.bytes;
        out->bytes += fk_whole_parts((size_t)(a->batch * rows) * RUN_BYTES); /* there are as many tiles as fit */
    }
    if (!fits || fk_kv_dtype(p) != FK_E4M3) return fits;
    out->heads = (p->packed ? 1 : a->batch) * a->num_heads_kv;
    if (fk_widens_before(kernel)) {
        const int64_t key_bytes = (int64_t)fk_dtype_bytes(p->dtype) * (p->head_dim + p->head_dim_v);
        out->tiles = p->packed ? a->total_k : a->seqlen_k;
        if (out->heads > MAX_WORKSPACE / key_bytes / out->tiles) return false;
        out->bytes += fk_whole_parts((size_t)(out->heads * out->tiles * key_bytes));
        return true;
    }
    const int64_t tile_bytes = (int64_t)fk_value_rows(p) * VALUE_PITCH, keys = kernel->info.plan.block_n;
    out->tiles = p->packed ? fk_packed_tiles(a->total_k, a->batch, keys) : (a->seqlen_k + keys - 1) / keys;
    if (out->heads > MAX_WORKSPACE / tile_bytes / out->tiles) return false;
    out->bytes += (size_t)(out->heads * out->tiles * tile_bytes);
    return true;
}

fk_status fk_values_prepare(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace, fk_values *out,
                            fk_error *err) {
    if (!fk_values_lay_out(kernel, a, out))
        return fk_fail(err, FK_BAD_ARGUMENT,
                       "%lld kv heads with %lld tiles of values; the workspace may have 2^60 bytes",
                       (long long)out->heads, (long long)out->tiles);
    return fk_workspace_check(workspace, out->bytes, err);
}

static fk_status check_descale(const char *name, const float *data, const int64_t stride[2], const fk_problem *p,
                               const fk_args *a, uintptr_t *end, fk_error *err) {
    static const char *const axis[2] = {"batch", "kv head"};
    const int64_t size[2] = {a->batch, a->num_heads_kv};
    const bool of_q = name[0] == 'q';
    int64_t last = 0;
    if ((of_q ? p->dtype : fk_kv_dtype(p)) != FK_E4M3)
        return fk_fail(err, FK_BAD_ARGUMENT, "%s is given; it must be null unless %s e4m3", name,
                       of_q ? "dtype is" : "k and v are");
    const fk_status status = fk_check_aligned(name, data, sizeof *data, err);
    if (status) return status;
    for (int i = 0; i < 2; i++) {
        int64_t span;
        if (stride[i] < 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "%s_stride[%d] (%s) is %lld; it must be at least 0", name, i, axis[i],
                           (long long)stride[i]);
        if (__builtin_mul_overflow(stride[i], size[i] - 1, &span) || span > MAX_WORKSPACE - last)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "%s_stride[%d] (%s) is %lld for %lld entries; an array may span 2^60 elements", name, i,
                           axis[i], (long long)stride[i], (long long)size[i]);
        last += span;
    }
    *end = (uintptr_t)data + (uintptr_t)(last + 1) * sizeof *data;
    return FK_OK;
}

fk_status fk_descale_check(const fk_problem *p, const fk_args *a, int which, const char **name, uintptr_t *begin,
                           uintptr_t *end, fk_error *err) {
    static const char *const names[FK_DESCALES] = {"q_descale", "k_descale", "v_descale"};
    const float *const data[FK_DESCALES] = {a->q_descale, a->k_descale, a->v_descale};
    const int64_t *const stride[FK_DESCALES] = {a->q_descale_stride, a->k_descale_stride, a->v_descale_stride};
    *name = names[which];
    *begin = *end = (uintptr_t)data[which];
    return data[which] ? check_descale(names[which], data[which], stride[which], p, a, end, err) : FK_OK;
}

double fk_descale_at(const float *data, const int64_t stride[2], int64_t b, int64_t kv_head) {
    return data ? (double)data[b * stride[0] + kv_head * stride[1]] : 1.0;
}
