#include "random_draw.h"

#include "random_dropout.h"
#include "random_grads.h"
#include "random_pages.h"
#include "random_sequences.h"
#include "random_terms.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t kernel_reuse = KERNEL_REUSE;

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define PI 3.14159265358979323846

uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t rng_range(rng *r, int64_t lo, int64_t hi) {
    return lo + (int64_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}

bool rng_chance(rng *r, int percent) {
    return rng_range(r, 0, 99) < percent;
}

static double rng_real(rng *r, double lo, double hi) {
    return lo + (hi - lo) * ((double)(rng_next(r) >> 11) + 0.5) * 0x1p-53;
}

double rng_normal(rng *r) {
    const double radius = sqrt(-2 * log(rng_real(r, 0, 1)));
    return radius * cos(2 * PI * rng_real(r, 0, 1));
}

/* ---- what is computed --------------------------------------------------------------------------------- */

static const char *const dtype_names[] = {"fp16", "bf16", "fp32", "e4m3"}; /* by fk_dtype */

static fk_dtype draw_dtype(rng *r, bool fp16_only) {
    const int64_t kind = rng_range(r, 0, 99);
    if (fp16_only || kind < 40) return FK_FP16;
    return kind < 75 ? FK_BF16 : FK_FP32;
}

static int64_t draw_head_dim(rng *r) {
    static const int common[] = {32, 64, 64, 80, 96, 128, 128, 192, 256};
    return rng_chance(r, 50) ? common[rng_range(r, 0, COUNT(common) - 1)] : 8 * rng_range(r, 1, 32);
}

/* Predicates with one random number, $; chosen to be monotone, periodic, blocky, bitwise, empty, full, to read every
 * variable and to use every operator. Float ones keep clear of ties that float32 and float64 would break differently.
 */
static const struct {
    const char *text;
    int lo, hi;
} predicates[] = {
    {"k <= q + diag && (q + diag - k) % $ == 0", 2, 9}, /* dilated causal */
    {"k >= q + diag - $ && k <= q + diag", 0, 150},
    {"k < $ || k <= q + diag", 1, 100}, /* prefix */
    {"q / $ == k / $", 5, 70},          /* blocks on the diagonal */
    {"q / $ >= k / $", 8, 64},
    {"((q ^ k) & $) == 0", 1, 7},
    {"popcount(q ^ k) <= $", 0, 5},
    {"abs(q + diag - k) < $", 1, 80},
    {"k % $ != 3", 2, 40},
    {"h % 2 == 0 ? k <= q + diag : k >= $", 0, 90},
    {"b == 0 || k >= $", 0, 60},
    {"max(q - k, k - q) <= $", 0, 100},
    {"min(q, k) % $ != 4", 2, 11},
    {"k < seqlen_k - $", 0, 70},
    {"q >= $", 0, 40},
    {"3 * q + 5 * k > $ && !(k == q)", 0, 900},
    {"(k >> $) <= (q >> 2)", 1, 4},
    {"(k & ~$) <= q + diag", 1, 63},
    {"q + k < seqlen_q + $", 0, 120},
    {"k > $ * seqlen_k", 1, 2}, /* nobody sees anything */
    {"k * k >= 0 && $ > 0", 1, 1},
    {"exp(-0.1 * abs(q + diag - k)) > 0.25 || k < $", 0, 20},
    {"log(1 + abs(q - k)) < 3.0 && q != $", 0, 40},
    {"(q * 7 + k * 11) % $ < 3", 4, 29},
    {"((k | 12) << 1) > q - $", 0, 200},
    {"k < $ || abs(q + diag - k) < 40", 1, 60}, /* sinks, then a long gap */
    {"k % 1024 < $", 1, 90},
    {"k / 512 == q / 512 || k < $", 1, 60},
};

__attribute__((format(printf, 2, 3))) static void append(char *spelling, const char *format, ...) {
    const size_t used = strlen(spelling);
    va_list list;
    va_start(list, format);
    vsnprintf(spelling + used, FK_MAX_SPELLING - used, format, list);
    va_end(list);
}

static void draw_keep(rng *r, char *spelling) {
    const size_t i = (size_t)rng_range(r, 0, COUNT(predicates) - 1);
    const int n = (int)rng_range(r, predicates[i].lo, predicates[i].hi);
    char text[FK_MAX_EXPR], *at = text;
    for (const char *c = predicates[i].text; *c; c++) {
        if (*c == '$')
            at += snprintf(at, 12, "%d", n);
        else
            *at++ = *c;
    }
    *at = 0;
    append(spelling, " keep=\"%s\"", text);
}

/* Window sizes are run-time values: they do not belong to the kernel, so they come from the problem's own seed. */
static void draw_window(rng *values, const fk_args *a, char *spelling) {
    static const int64_t special[] = {0, 1, 7, 63, 64, FK_MAX_SEQLEN};
    int64_t value[2];
    for (int i = 0; i < 2; i++)
        value[i] = rng_chance(values, 40) ? special[rng_range(values, 0, COUNT(special) - 1)]
                                          : rng_range(values, 0, a->seqlen_k);
    append(spelling, " window(%lld,%lld)", (long long)value[0], (long long)value[1]);
}

static void draw_masks(rng *kernel, rng *values, const fk_args *a, char *spelling) {
    const int64_t kind = rng_range(kernel, 0, 99);
    if (kind < 20) return;
    if (kind < 50 || kind >= 95) append(spelling, " causal");
    if (kind >= 50 && kind < 70) draw_window(values, a, spelling);
    if (kind >= 70) draw_keep(kernel, spelling);
    if (rng_chance(kernel, 30)) append(spelling, " top-left");
}

/* ---- sizes -------------------------------------------------------------------------------------------- */

static int64_t draw_seqlen(rng *r, int64_t longest) {
    static const int special[] = {1, 2, 3, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 68, 127, 128, 129, 132};
    return rng_chance(r, 50) ? special[rng_range(r, 0, COUNT(special) - 1)] : rng_range(r, 1, longest);
}

static int64_t longest_seqlen(const draw_limits *limits) {
    return limits->gpu ? 1500 : 300;
}

/* Of products of query, key and dimension. */
static int64_t size_budget(const draw_limits *limits) {
    return limits->gpu ? 200000000 : 40000000;
}

static void draw_sizes(rng *r, const draw_limits *limits, bool gqa, int64_t dims, fk_args *a) {
    static const int ratios[] = {1, 2, 2, 3, 4, 7, 8};
    const int64_t longest = longest_seqlen(limits), budget = size_budget(limits);
    a->seqlen_q = draw_seqlen(r, longest);
    a->seqlen_k = rng_chance(r, 35) ? a->seqlen_q : draw_seqlen(r, longest);
    if (rng_chance(r, 10)) a->seqlen_q = rng_range(r, 1, 4); /* decoding */
    if (rng_chance(r, 4)) {                                  /* more key tiles than a warp scans at a time */
        a->seqlen_q = rng_range(r, 1, 40);
        a->seqlen_k = rng_range(r, 1500, 14 * longest);
    }
    a->batch = rng_range(r, 1, 3);
    a->num_heads_kv = rng_range(r, 1, 4);
    const int64_t ratio = gqa ? ratios[rng_range(r, 0, COUNT(ratios) - 1)] : 1;
    if (limits->gpu && rng_chance(r, 1)) { /* more heads than a grid's y or z can count */
        a->seqlen_q = rng_range(r, 1, 3);
        a->seqlen_k = rng_range(r, 1, 5);
        a->batch = rng_range(r, 250, 300);
        a->num_heads_kv = (65536 + 300 * ratio) / (a->batch * ratio) + 1;
    }
    a->num_heads_q = a->num_heads_kv * ratio;
    while (a->batch * a->num_heads_q * a->seqlen_q * a->seqlen_k * dims > budget) {
        if (a->batch > 1) {
            a->batch--;
        } else if (a->num_heads_kv > 1) {
            a->num_heads_kv--;
            a->num_heads_q -= ratio;
        } else {
            a->seqlen_q = (a->seqlen_q + 1) / 2;
            a->seqlen_k = a->seqlen_k / 4 * 3 + 1;
        }
    }
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* In units that 16-byte copies can step by. */
static int64_t draw_padding(rng *r, int unit) {
    return rng_chance(r, 25) ? unit * rng_range(r, 1, 5) : 0;
}

typedef struct tensor_sizes {
    int64_t batch, seqlen, heads, dim;
} tensor_sizes;

/* axes: the three of size[], innermost first. Inputs may repeat a head or a batch entry by a stride of 0. */
static layout draw_layout(rng *r, tensor_sizes t, const int axes[3], bool repeat, bool gpu, int unit) {
    layout l = {.size = {t.batch, t.seqlen, t.heads}, .dim = t.dim};
    const int repeated = repeat ? (rng_chance(r, 50) ? 0 : 2) : -1;
    int64_t extent = t.dim;
    for (int i = 0; i < 3; i++) {
        const int axis = axes[i];
        if (axis == repeated) continue;
        l.stride[axis] = extent + draw_padding(r, unit);
        extent = l.stride[axis] * l.size[axis];
    }
    l.offset = rng_chance(r, 30) ? unit * rng_range(r, 1, 9) : 0;
    l.elements = l.offset + t.dim;
    for (int i = 0; i < 3; i++)
        l.elements += l.stride[i] * (l.size[i] - 1);
    if (gpu) l.elements += 256; /* the emulator has a guard page there instead */
    return l;
}

static void draw_layouts(rng *r, const draw_limits *limits, int64_t dim, int64_t dim_v, drawn *out) {
    static const int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}}; /* bshd, bhsd, sbhd */
    fk_args *a = &out->args;
    const int64_t sq = out->packed ? a->total_q : a->seqlen_q, sk = out->packed ? a->total_k : a->seqlen_k;
    const int64_t batch = out->packed ? 1 : a->batch;
    const tensor_sizes of_q = {batch, sq, a->num_heads_q, dim}, of_o = {batch, sq, a->num_heads_q, dim_v};
    tensor_sizes of_k = {batch, sk, a->num_heads_kv, dim}, of_v = {batch, sk, a->num_heads_kv, dim_v};
    if (out->paged) {
        of_k.batch = of_v.batch = a->num_pages;
        of_k.seqlen = of_v.seqlen = a->page_size;
    }
    const tensor_sizes sizes[NUM_TENSORS] = {of_q, of_k, of_v, of_o, of_o, of_q, of_k, of_v};
    int64_t *const strides[NUM_TENSORS] = {a->q_stride,    a->k_stride,  a->v_stride,  a->o_stride,
                                           a->dout_stride, a->dq_stride, a->dk_stride, a->dv_stride};
    const bool mixed = rng_chance(r, 20);
    const int *order = orders[rng_range(r, 0, 2)];
    for (int i = 0; i < (out->backward ? NUM_TENSORS : DOUT); i++) {
        if (mixed) order = orders[rng_range(r, 0, 2)];
        const bool repeat = rng_chance(r, 8) && (((i == K || i == V) && !out->paged) || i == DOUT);
        out->tensor[i] = draw_layout(r, sizes[i], order, repeat, limits->gpu, out->dtype == FK_E4M3 ? 16 : 8);
        memcpy(strides[i], out->tensor[i].stride, sizeof out->tensor[i].stride);
    }
}

static void draw_inputs(rng *r, int64_t dim, drawn *out) {
    static const double factors[] = {0.25, 0.5, 2.0, 0.01};
    out->scale_qk = out->scale_v = 1;
    const int64_t kind = rng_range(r, 0, 99);
    if (kind < 8) out->scale_qk = 8; /* one key wins nearly everything */
    if (kind >= 8 && kind < 12) out->offset_k = 4;
    if (kind >= 30 && kind < 34) out->offset_q = 4, out->offset_k = rng_chance(r, 50) ? -4 : 4; /* exp of far from 0 */
    if (kind >= 12 && kind < 15) out->scale_qk = 0.01;
    if (kind >= 15 && kind < 18) out->scale_v = 100;
    if (kind >= 18 && kind < 30) out->ramp = rng_chance(r, 50) ? 15 : -15; /* the running maximum keeps growing */
    if (rng_chance(r, 40))
        out->args.softmax_scale =
            (float)(factors[rng_range(r, 0, COUNT(factors) - 1)] / sqrt((double)dim) * rng_real(r, 0.8, 1.2));
    out->wants_lse = rng_chance(r, 85);
    out->wants_dlse = rng_chance(r, 30);
}

static int64_t draw_splits(rng *r) {
    return rng_chance(r, 15) ? rng_range(r, 1, FK_MAX_SPLITS) : rng_range(r, 1, 7);
}

static const char *draw_gpu(rng *r) {
    static const char *const gpus[] = {"a100", "a100", "t4",   "t4",   "rtx3090",
                                       "l4",   "h200", "h200", "h200", "h200"}; /* two families */
    return gpus[rng_range(r, 0, COUNT(gpus) - 1)];
}

/* e4m3 has random numbers of its own, so that other problems are what they were before there was any: forward, more so
 * of the GPU whose tensor cores take it. */
static bool draws_e4m3(uint64_t seed, const draw_limits *limits, const char *plan_for) {
    rng r = {seed / kernel_reuse * 0x9e3779b97f4a7c15u};
    return rng_chance(&r, limits->e4m3 || strcmp(plan_for, "h200") == 0 ? 25 : 8);
}

/* And so have keys and values of 8 bits beside queries of 16. */
static bool draws_kv_e4m3(uint64_t seed, const drawn *d) {
    rng r = {seed / kernel_reuse * 0xbf58476d1ce4e5b9u};
    return !d->backward && (d->dtype == FK_FP16 || d->dtype == FK_BF16) && rng_chance(&r, 12);
}

/* Patterns, too. */
static void add_pattern(uint64_t seed, char *spelling) {
    rng r = {seed / kernel_reuse * 0xd1342543de82ef95u};
    fk_problem p;
    if (!rng_chance(&r, 20)) return;
    const size_t used = strlen(spelling);
    draw_pattern(&r, spelling);
    if (fk_problem_parse(spelling, &p) && strstr(fk_last_error(), "more than 4 masks")) spelling[used] = 0;
}

/* Scales of a head or of all; heads may share them. */
static void draw_descales(uint64_t seed, drawn *out) {
    rng r = {seed ^ 0x5851f42d4c957f2du};
    fk_args *a = &out->args;
    int64_t *const strides[3] = {a->q_descale_stride, a->k_descale_stride, a->v_descale_stride};
    for (int i = 0; i < 3; i++) {
        out->descaled[i] = rng_chance(&r, 60) && !(i == Q && out->kv_e4m3);
        strides[i][0] = rng_chance(&r, 70) ? a->num_heads_kv : 0;
        strides[i][1] = rng_chance(&r, 80) ? 1 : 0;
    }
}

static bool has_99_kb(const char *gpu) {
    fk_device_info info;
    return fk_device_find(gpu, &info) == FK_OK && info.smem_per_block <= 99 << 10;
}

/* Head dims above 256 for one kernel in sixteen. Shared memory of 64 KB has room for 320, as backward that of 99 KB. */
static void draw_wide(uint64_t group, const drawn *out, int64_t *dim, int64_t *dim_v) {
    rng r = {group ^ 0x6a09e667f3bcc909u};
    if (out->dtype == FK_FP32 || !rng_chance(&r, 6)) return;
    const bool narrow = strcmp(out->plan_for, "t4") == 0 || (out->backward && has_99_kb(out->plan_for));
    *dim = narrow ? 320 : 64 * rng_range(&r, 5, out->backward ? 8 : 9);
    *dim_v = *dim <= FK_MAX_HEAD_DIM_V && rng_chance(&r, 60) ? *dim : narrow ? *dim_v : FK_MAX_HEAD_DIM_V;
    if (!narrow && rng_chance(&r, 20)) *dim = 128;
}

void draw_problem(uint64_t seed, const draw_limits *limits, drawn *out) {
    rng kernel = {seed / kernel_reuse * 0x2545f4914f6cdd1du}, values = {~seed};
    *out = (drawn){.seed = seed, .plan_for = draw_gpu(&kernel), .args = FK_ARGS_INIT};
    if (limits->plan_for) out->plan_for = limits->plan_for;
    out->dtype = draw_dtype(&kernel, limits->fp16_only || strcmp(out->plan_for, "t4") == 0);
    const bool e4m3 = draws_e4m3(seed, limits, out->plan_for);
    if (e4m3) out->dtype = FK_E4M3;
    const int64_t any_dim = draw_head_dim(&kernel),
                  any_dim_v = rng_chance(&kernel, 70) ? any_dim : draw_head_dim(&kernel);
    int64_t dim = e4m3 ? (any_dim + 15) / 16 * 16 : any_dim,
            drawn_dim_v = e4m3 ? (any_dim_v + 15) / 16 * 16 : any_dim_v;
    const bool gqa = rng_chance(&kernel, 35);
    out->backward = rng_chance(&kernel, 33) && !e4m3;
    draw_wide(seed / kernel_reuse, out, &dim, &drawn_dim_v);
    const bool too_wide =
        out->backward && out->dtype == FK_FP32 && dim + drawn_dim_v > 480; /* for 99 KB of shared memory */
    if (too_wide && !limits->plan_for) out->plan_for = "a100";
    const int64_t dim_v = too_wide && has_99_kb(out->plan_for) ? 480 - dim : drawn_dim_v;
    out->deterministic = out->backward && rng_chance(&kernel, 30);

    const int64_t dims = (out->backward ? 3 : 1) * (dim + dim_v);
    out->packed = rng_chance(&kernel, 20);
    out->seqused_k = rng_chance(&kernel, out->packed ? 30 : 10);
    draw_sizes(&values, limits, gqa, dims, &out->args);
    if (out->packed) draw_packed(&values, longest_seqlen(limits), size_budget(limits), dims, out);
    if (out->args.batch > MAX_SEQUENCES && out->seqused_k) out->args.batch = MAX_SEQUENCES;
    if (out->seqused_k) draw_used(&values, out);
    const int rest = strcmp(out->plan_for, "h200") == 0 ? 10 : 25; /* mostly family mma's */
    out->split = !out->backward && rng_chance(&kernel, rest);
    out->paged = !out->backward && rng_chance(&kernel, rest) ? draw_page_rows(seed / kernel_reuse) : 0;
    if (out->split) out->args.num_splits = rng_chance(&values, 30) ? 0 : (int32_t)draw_splits(&values);
    if (out->paged > 32 && !out->packed && out->args.batch > 8) out->args.batch = 8; /* each has a page, mostly empty */
    if (out->paged) draw_pages(&values, out);
    out->kv_e4m3 = draws_kv_e4m3(seed, out);
    append(out->spelling, "%s %s%s d%d", out->backward ? "bwd" : "fwd", dtype_names[out->dtype],
           out->kv_e4m3 ? " kv_e4m3" : "", (int)dim);
    if (dim_v != dim) append(out->spelling, " dv%d", (int)dim_v);
    const bool may_be_latent = !out->backward && !e4m3 && !out->kv_e4m3 && dim_v <= dim;
    if (may_be_latent && seed / kernel_reuse % (dim > 256 ? 2 : 9) == 1) append(out->spelling, " latent");
    if (gqa) append(out->spelling, " gqa");
    if (out->packed) append(out->spelling, " packed");
    if (out->seqused_k) append(out->spelling, " seqused_k");
    const bool scored = rng_chance(&kernel, out->backward ? 60 : 30);
    if (scored) draw_scores(&kernel, &values, out->spelling);
    draw_masks(&kernel, &values, &out->args, out->spelling);
    if (rng_chance(&kernel, 20)) draw_array_masks(&kernel, &values, out->spelling);
    add_pattern(seed, out->spelling);
    out->dropout = rng_chance(&kernel, 30);
    if (out->dropout) append(out->spelling, " dropout");
    if (out->dropout) draw_dropout(&values, out);
    if (out->deterministic) append(out->spelling, " deterministic");
    if (out->backward) draw_grads(&kernel, out->spelling);
    const bool plain_bf16 = out->dtype == FK_BF16 && !out->kv_e4m3 && !out->backward && !scored;
    out->fast = (e4m3 ? !out->dropout : plain_bf16) && seed / kernel_reuse % 2;
    if (out->fast) append(out->spelling, " fast");
    if (out->split) append(out->spelling, " split");
    if (out->paged) append(out->spelling, out->paged > 1 ? " paged(%d)" : " paged", out->paged);

    if (e4m3 || out->kv_e4m3) draw_descales(seed, out);
    draw_layouts(&values, limits, dim, dim_v, out);
    draw_inputs(&values, dim, out);
    out->emulator_seed = rng_chance(&values, 25) ? 0 : rng_next(&values) >> 32;
    out->late_copies = rng_chance(&values, 50);
    out->emulator_sms = rng_chance(&values, 60) ? (int)rng_range(&values, 1, 3) : 0;
}
