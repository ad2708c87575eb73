/* Sizes that a plan is for: what the caller leaves out, and limits. */
#include "plan.h"

static fk_status check_size(const char *field, int64_t value, int64_t limit, fk_error *err) {
    if (value >= 1 && value <= limit) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "shape.%s is %lld: must be from 1 to %lld", field, (long long)value,
                   (long long)limit);
}

/* In a batch: tokens; and keys of decoding, of which fewer take so few microseconds that plans hardly differ. */
static const int64_t TOKENS = 16384, DECODED = 131072;

/* The nominal problem: so many tokens as rows of 4,096, and 2,048 hidden; one kv head serves 8 query heads of gqa. */
fk_status fk_shape_fill(const fk_problem *p, const fk_shape *in, fk_shape *out, fk_error *err) {
    fk_shape s = *in;
    if (p->split && !s.seqlen_q) { /* decoding */
        s.seqlen_q = 1;
        if (!s.seqlen_k) s.seqlen_k = 4096;
        if (!s.batch) s.batch = s.seqlen_k > 0 && s.seqlen_k < DECODED ? DECODED / s.seqlen_k : 1;
    }
    if (!s.seqlen_q) s.seqlen_q = s.seqlen_k ? s.seqlen_k : 4096;
    if (!s.seqlen_k) s.seqlen_k = s.seqlen_q;
    if (!s.batch) s.batch = s.seqlen_q > 0 && s.seqlen_q < TOKENS ? TOKENS / s.seqlen_q : 1;
    if (!s.num_heads_q) {
        s.num_heads_q = 2048 / p->head_dim;
        if (s.num_heads_kv > 0) s.num_heads_q = p->gqa ? s.num_heads_kv * 8 : s.num_heads_kv;
    }
    if (!s.num_heads_kv) s.num_heads_kv = !p->gqa ? s.num_heads_q : s.num_heads_q % 8 == 0 ? s.num_heads_q / 8 : 1;
    fk_status status = check_size("batch", s.batch, FK_MAX_SEQLEN, err);
    if (status == FK_OK) status = check_size("num_heads_q", s.num_heads_q, FK_MAX_SEQLEN, err);
    if (status == FK_OK) status = check_size("num_heads_kv", s.num_heads_kv, FK_MAX_SEQLEN, err);
    if (status == FK_OK) status = check_size("seqlen_q", s.seqlen_q, FK_MAX_SEQLEN, err);
    if (status == FK_OK) status = check_size("seqlen_k", s.seqlen_k, FK_MAX_SEQLEN, err);
    if (status != FK_OK) return status;
    if (p->gqa ? s.num_heads_q % s.num_heads_kv != 0 : s.num_heads_q != s.num_heads_kv) {
        return fk_fail(err, FK_BAD_ARGUMENT, "shape.num_heads_q is %lld: must be %s num_heads_kv, %lld%s",
                       (long long)s.num_heads_q, p->gqa ? "a multiple of" : "equal to", (long long)s.num_heads_kv,
                       p->gqa ? "" : " (without gqa)");
    }
    *out = s;
    return FK_OK;
}
