/* Sequences of the batch: as long as args say, or one after another with lengths of their own (packed), perhaps with
 * keys that are not used (seqused_k). The host knows nothing of what device arrays hold, so kernels trust them; where
 * they are host memory, on the emulator and in the references, they are checked. */
#include "object.h"

fk_sequence fk_sequence_at(const fk_problem *p, const fk_args *a, int64_t b) {
    fk_sequence s = {.batch = b, .seqlen_q = a->seqlen_q, .seqlen_k = a->seqlen_k};
    if (p->packed) {
        s.batch = 0;
        s.q_first = a->cu_seqlens_q[b];
        s.k_first = a->cu_seqlens_k[b];
        s.seqlen_q = a->cu_seqlens_q[b + 1] - s.q_first;
        s.seqlen_k = a->cu_seqlens_k[b + 1] - s.k_first;
    }
    s.num_keys = s.seqlen_k;
    if (p->seqused_k && a->seqused_k[b] < s.num_keys) s.seqlen_k = a->seqused_k[b] > 0 ? a->seqused_k[b] : 0;
    return s;
}

int64_t fk_rows_q(const fk_problem *p, const fk_args *a) {
    return p->packed ? a->total_q : a->batch * a->seqlen_q;
}

int64_t fk_rows_k(const fk_problem *p, const fk_args *a) {
    return p->packed ? a->total_k : a->batch * a->seqlen_k;
}

int64_t fk_lse_row(const fk_problem *p, const fk_args *a, const fk_sequence *s, int64_t h) {
    return p->packed ? h * a->total_q + s->q_first : (s->batch * a->num_heads_q + h) * a->seqlen_q;
}

static fk_status check_offsets(const char *side, const int32_t *cu, int64_t batch, int64_t longest, int64_t total,
                               fk_error *err) {
    if (cu[0] < 0) return fk_fail(err, FK_BAD_ARGUMENT, "cu_seqlens_%s[0] is %d; it must be at least 0", side, cu[0]);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = (int64_t)cu[b + 1] - cu[b];
        if (length < 0)
            return fk_fail(err, FK_BAD_ARGUMENT, "cu_seqlens_%s[%lld] is %d; it must be at least the one before, %d",
                           side, (long long)b + 1, cu[b + 1], cu[b]);
        if (length > longest)
            return fk_fail(err, FK_BAD_ARGUMENT,
                           "cu_seqlens_%s[%lld] is %d, %lld more than the one before; the limit is seqlen_%s, %lld",
                           side, (long long)b + 1, cu[b + 1], (long long)length, side, (long long)longest);
    }
    if (cu[batch] > total)
        return fk_fail(err, FK_BAD_ARGUMENT, "cu_seqlens_%s[%lld] is %d; the limit is total_%s, %lld", side,
                       (long long)batch, cu[batch], side, (long long)total);
    return FK_OK;
}

fk_status fk_sequences_check(const fk_problem *p, const fk_args *a, fk_error *err) {
    fk_status status = FK_OK;
    if (p->packed) status = check_offsets("q", a->cu_seqlens_q, a->batch, a->seqlen_q, a->total_q, err);
    if (p->packed && !status) status = check_offsets("k", a->cu_seqlens_k, a->batch, a->seqlen_k, a->total_k, err);
    return status || !p->paged ? status : fk_pages_check(p, a, err);
}
