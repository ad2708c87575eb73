/* Tiles that are all alike go in rounds, of as many as there are CTAs, and the last round is seldom full: of its tiles
 * keys are shared, so that all CTAs have some of them (templates/piece/parts.cu). As many tiles as fill whole rounds
 * with parts come in `splits` parts each, and those for which that leaves no room in `late_splits`, which are short.
 *
 * Backward tiles are of keys, and few kv heads make few of them, each of which walks over the queries of a whole group:
 * all of them come in as many parts of the queries as let SMs have about the same (templates/piece/split_keys.cu). */
#include "parts.h"

#include "gen/expr.h"

#include <math.h>
#include <string.h>

/* Clocks, as measured on an H200 or on the safe side of it: between a part's tiles of keys and the next part's, the
 * launch of fk_forward_combine and what it waits for once and for each part of a row; and bytes that it reads in a
 * clock, and those that a part stores. */
#define PART_CLOCKS 1500
#define COMBINE_CLOCKS 10000
#define COMBINE_SPLIT_CLOCKS 150
#define COMBINE_BYTES 1500
#define STORE_BYTES 32
#define MOST_SPLITS 64
#define MOST_LATE_SPLITS 16 /* beside which others have their parts */
/* A kernel of its own pays where a round lasts so many clocks, and is one of so few. */
#define LEAST_ROUND 60000
#define MOST_ROUNDS 32
/* Beside a diagonal tiles are alike where there are so many keys a query; else the longest go first. */
#define KEYS_A_QUERY 4
/* Where SMs have a tile each at most: a visit's clocks besides what its pairs take, as nobody else hides what it waits
 * for, and more where it has a tile of a bias; pairs in a clock; the second kernel, which comes at once then; and what
 * parts are to take of the time. */
#define ALONE_VISIT 1000
#define ALONE_BIAS 700
#define ALONE_PAIRS 18
#define ALONE_COMBINE 2500
#define ALONE_WORTH 0.92
/* Backward: clocks of a walk besides its visits, and of each head; of family wgmma, what a visit takes besides its
 * products, or, of clusters, whose tiles have 256 columns, in all, of family mma times what products take; where walks
 * are unlike, the longest are first, and the last ones add so much of a mean one; the second kernel; and what parts are
 * to take of the time. */
#define WALK_CLOCKS 2000
#define HEAD_CLOCKS 950
#define PAIR_CLOCKS 0.09
#define CLUSTER_PAIR_CLOCKS 1.15
#define VISIT_TIMES 1.5
#define KEY_COMBINE 2000
#define COMBINE_SHARE 0.62 /* of HBM's rate at which parts are added up, to d = 128 */
#define COMBINE_WIDE 0.37  /* the same above */
#define TAIL 0.25
#define WORTH 0.92
#define MOST_KEY_SPLITS 16

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Is there a part without keys, as shares are whole tiles of them? */
static bool leaves_none(int64_t splits, int64_t k_tiles) {
    return (splits - 1) * ceil_div(k_tiles, splits) >= k_tiles;
}

static int64_t multiply_adds(const fk_problem *p) { /* of an SM in a clock */
    return p->dtype == FK_E4M3 ? 4096 : 2048;
}

static int64_t visit_clocks(const fk_problem *p, const fk_plan_info *plan, bool alone) {
    const int64_t pairs = (int64_t)plan->block_m * plan->block_n;
    const int64_t least = ALONE_VISIT + (fk_problem_has_bias(p) ? ALONE_BIAS : 0) + pairs / ALONE_PAIRS;
    const int64_t visit = pairs * (p->head_dim + p->head_dim_v) / multiply_adds(p);
    return alone && visit < least ? least : visit;
}

bool fk_parts_alike(const fk_problem *p, int64_t ctas, int64_t tiles, double seqlen_q, double seqlen_k) {
    return p->num_masks == 0 || tiles < ctas || seqlen_k >= KEYS_A_QUERY * seqlen_q;
}

bool fk_parts_pay(const fk_problem *p, const fk_plan_info *plan, int64_t ctas, double heads, double seqlen_q,
                  double seqlen_k) {
    const double round = seqlen_k * plan->block_m * (p->head_dim + p->head_dim_v) / (double)multiply_adds(p);
    const double tiles = heads * ceil(seqlen_q / plan->block_m);
    return round >= LEAST_ROUND && tiles <= (double)(MOST_ROUNDS * ctas) &&
           fk_parts_alike(p, ctas, (int64_t)tiles, seqlen_q, seqlen_k);
}

fk_parts fk_parts_choose(const fk_problem *p, const fk_plan_info *plan, int64_t ctas, int64_t tiles, int64_t k_tiles) {
    const bool alone = tiles < ctas;
    const int64_t visit = visit_clocks(p, plan, alone), rest = tiles % ctas;
    const int64_t bytes = (int64_t)plan->block_m * p->head_dim_v * 4, part = PART_CLOCKS + bytes / STORE_BYTES;
    const int64_t combine = alone ? ALONE_COMBINE : COMBINE_CLOCKS;
    fk_parts best = {.clocks = k_tiles * visit + PART_CLOCKS};
    if (rest == 0 || k_tiles * visit / ctas * (ctas - rest) < combine) return best;
    for (int64_t splits = 2; splits <= MOST_SPLITS; splits++) {
        const int64_t whole = rest * splits / ctas, rounds = whole ? whole : 1;
        const int64_t filling = whole ? whole * ctas / splits : rest, late = rest - filling;
        const int64_t room = late ? ctas / late : 1, late_splits = room < MOST_LATE_SPLITS ? room : MOST_LATE_SPLITS;
        if (leaves_none(splits, k_tiles) || leaves_none(late_splits, k_tiles) || (late && late_splits == 1)) continue;
        const int64_t most = splits > late_splits ? splits : late_splits;
        const int64_t clocks = rounds * (part + ceil_div(k_tiles, splits) * visit) +
                               (late ? part + ceil_div(k_tiles, late_splits) * visit : 0) + combine +
                               most * COMBINE_SPLIT_CLOCKS +
                               (filling * splits + late * late_splits) * bytes / COMBINE_BYTES;
        if (clocks < best.clocks) best = (fk_parts){filling, late, (int32_t)splits, (int32_t)late_splits, clocks};
    }
    return best;
}

static int64_t count_tiles(const fk_shape *s, int32_t rows) {
    return s->batch * s->num_heads_q * ceil_div(s->seqlen_q, rows);
}

bool fk_tiles_alone(const fk_shape *s, int32_t rows, int64_t ctas) {
    return count_tiles(s, rows) < ctas;
}

/* Of tiles that are whole, of which some CTAs may have several. */
static int64_t whole_clocks(const fk_problem *p, const fk_plan_info *plan, int64_t ctas, const fk_shape *s) {
    return ceil_div(count_tiles(s, plan->block_m), ctas) *
           (ceil_div(s->seqlen_k, plan->block_n) * visit_clocks(p, plan, true) + PART_CLOCKS);
}

bool fk_parts_pay_alone(const fk_problem *p, const fk_plan_info *plan, const fk_plan_info *instead, int64_t ctas,
                        const fk_shape *s) {
    if (!fk_tiles_alone(s, plan->block_m, ctas)) return false;
    const fk_parts parts =
        fk_parts_choose(p, plan, ctas, count_tiles(s, plan->block_m), ceil_div(s->seqlen_k, plan->block_n));
    const int64_t whole = whole_clocks(p, plan, ctas, s), other = instead ? whole_clocks(p, instead, ctas, s) : whole;
    return parts.splits > 1 && (double)parts.clocks < ALONE_WORTH * (double)(other < whole ? other : whole);
}

/* ---- backward ----------------------------------------------------------------------------------------- */

/* How many tiles of queries see a tile of keys: the most, and in the mean. */
typedef struct walks {
    double longest, mean;
} walks;

/* Of packed sequences, how long a key's own is, in the mean, as a share of the longest: as if lengths were spread
 * evenly up to that. */
static double mean_of_longest(const fk_shape *s, int64_t total_k) {
    const double most = (double)s->seqlen_k, mean = (double)total_k / (double)s->batch;
    return fmin((mean + (most - mean) * (most - mean) / (3 * mean)) / most, 1);
}

/* The queries that see a key lie between two lines along the diagonal, those of causal and windows; other masks are
 * known on the device alone, and taken to hide nothing. */
static walks count_walks(const fk_problem *p, const fk_plan_info *plan, const fk_shape *s, int64_t total_k) {
    enum { SAMPLES = 16 };
    const double q = (double)s->seqlen_q, k = (double)s->seqlen_k, diag = p->align == FK_TOP_LEFT ? 0 : k - q;
    const double tiles = ceil(k / plan->block_n), samples = fmin(tiles, SAMPLES);
    double ahead = INFINITY, behind = INFINITY; /* of a query's own place, the keys that it sees */
    walks out = {0, 0};
    for (int i = 0; i < p->num_masks; i++) {
        const bool window = p->mask[i].num_values == 2; /* no other mask of such a kernel has any */
        if (window) behind = fmin(behind, (double)p->mask[i].value[0]);
        if (window || strcmp(p->mask[i].name, "causal") == 0)
            ahead = fmin(ahead, window ? (double)p->mask[i].value[1] : 0);
    }
    for (int i = 0; i < (int)samples; i++) {
        const double tile = samples > 1 ? floor(i * (tiles - 1) / (samples - 1)) : 0, key = tile * plan->block_n;
        const double first = fmax(key - diag - ahead, 0), last = fmin(key + plan->block_n - 1 - diag + behind, q - 1);
        const double visits = last < first ? 0 : floor(last / plan->block_m) - floor(first / plan->block_m) + 1;
        out.longest = fmax(out.longest, visits);
        out.mean += visits / samples;
    }
    if (total_k) out.mean *= mean_of_longest(s, total_k);
    return out;
}

int32_t fk_head_parts(int64_t parts, int64_t group) {
    return (int32_t)fk_common_divisor(parts, group);
}

/* Clocks of a visit, a pair of tiles. */
static double visit_back(const fk_problem *p, const fk_plan_info *plan, const fk_device_info *device, double cluster) {
    const double pairs = (double)plan->block_m * plan->block_n / cluster;
    const double products = pairs * (3.0 * p->head_dim + 2.0 * p->head_dim_v);
    if (strcmp(plan->family, "wgmma") != 0) return VISIT_TIMES * products / (device->mma_flops / 2);
    if (cluster > 1) return CLUSTER_PAIR_CLOCKS * pairs;
    return products / (double)multiply_adds(p) + PAIR_CLOCKS * pairs;
}

int32_t fk_key_parts_choose(const fk_problem *p, const fk_plan_info *plan, const fk_device_info *device,
                            const fk_shape *s, int64_t total_k) {
    const double cluster = fk_plan_cluster(p, plan), visit = visit_back(p, plan, device, cluster);
    const double bytes = plan->block_n * (p->head_dim + p->head_dim_v) * 4.0;
    const double ctas = device->num_sms / (int)cluster;
    const double combine = (p->head_dim > 128 ? COMBINE_WIDE : COMBINE_SHARE) * device->hbm_gbps / device->clock_ghz;
    const double tiles = (double)(s->num_heads_kv * (total_k ? ceil_div(total_k, plan->block_n)
                                                             : s->batch * ceil_div(s->seqlen_k, plan->block_n)));
    const walks walk = count_walks(p, plan, s, total_k);
    const int64_t group = s->num_heads_q / s->num_heads_kv;
    double least = INFINITY;
    int32_t best = 1;
    for (int32_t splits = 1; splits <= MOST_KEY_SPLITS; splits++) {
        const int32_t head_parts = fk_head_parts(splits, group), query_parts = splits / head_parts;
        const double heads = (double)group / head_parts;
        if (query_parts > 1 && leaves_none(query_parts, (int64_t)walk.longest)) continue;
        const double part = WALK_CLOCKS + heads * HEAD_CLOCKS + (splits > 1 ? bytes / cluster / STORE_BYTES : 0);
        const double longest = ceil(walk.longest / query_parts) * heads * visit + part;
        const double mean = walk.mean / query_parts * heads * visit + part, share = tiles * splits * mean / ctas;
        double clocks =
            walk.mean < walk.longest ? fmax(share + TAIL * mean, longest) : ceil(tiles * splits / ctas) * longest;
        if (splits > 1) clocks += KEY_COMBINE + tiles * splits * bytes / combine;
        if (clocks >= least) continue;
        least = splits > 1 ? clocks : WORTH * clocks;
        best = splits;
    }
    return best;
}
