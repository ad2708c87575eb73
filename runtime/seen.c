/* Of masks that come as words of 32 keys: what each 64 queries of a head see of each tile of keys, a byte, and one more
 * (templates/piece/seen_tiles.cu), which a kernel writes before the main one.
 *
 * Workspace of a forward launch: | what a persistent grid or splits have | these bytes | an array's copy (aligned.c) |.
 */
#include "object.h"

#define MAX_WORKSPACE ((int64_t)1 << 60)

bool fk_looks_up_tiles(const fk_kernel *kernel) {
    for (int i = 0; i < kernel->num_launches; i++) {
        if (kernel->launch[i].grid == FK_GRID_SEEN) return true;
    }
    return false;
}

bool fk_seen_lay_out(const fk_kernel *kernel, const fk_args *a, fk_seen *out) {
    *out = (fk_seen){.heads = a->batch * a->num_heads_q, .groups = (a->seqlen_q + 63) / 64}; /* < 2^31, 2^25 */
    if (!fk_looks_up_tiles(kernel)) return true;
    const int64_t keys = kernel->info.plan.block_n, tiles = (a->seqlen_k + keys - 1) / keys;
    return !__builtin_mul_overflow(out->heads * out->groups, tiles + 1, &out->bytes) && out->bytes <= MAX_WORKSPACE;
}

bool fk_forward_lay_out(const fk_kernel *kernel, const fk_args *a, fk_seen *seen, size_t *bytes) {
    fk_split_parts splits;
    fk_values values;
    const bool persistent = fk_is_persistent(kernel);
    const bool fits = persistent ? fk_values_lay_out(kernel, a, &values) : fk_splits_lay_out(kernel, a, &splits);
    if (!fits || !fk_seen_lay_out(kernel, a, seen)) return false;
    seen->offset = persistent ? values.bytes : splits.bytes;
    *bytes = seen->offset + fk_whole_parts((size_t)seen->bytes);
    return true;
}

fk_status fk_seen_fill(const fk_kernel *kernel, const fk_args *a, const fk_workspace *workspace, fk_forward_params *out,
                       fk_error *err) {
    fk_seen seen;
    size_t bytes;
    if (!fk_looks_up_tiles(kernel)) return FK_OK;
    if (!fk_forward_lay_out(kernel, a, &seen, &bytes))
        return fk_fail(
            err, FK_BAD_ARGUMENT,
            "batch x num_heads_q x seqlen_q x seqlen_k is %lld x %lld x %lld x %lld, of which each tile takes "
            "a byte; the workspace may have 2^60 bytes",
            (long long)a->batch, (long long)a->num_heads_q, (long long)a->seqlen_q, (long long)a->seqlen_k);
    const fk_status status = fk_workspace_check(workspace, bytes, err);
    if (!status) out->seen = (uint8_t *)workspace->data + seen.offset;
    return status;
}
