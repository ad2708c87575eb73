/* The cost model of the wgmma family's forward pass. One visit of a tile, in clocks of an SM, takes the longest of
 *     tensor   2 block_m block_n (d_pad + dv_pad) / wgmma_flops
 *     softmax  exps / exp_rate + its other instructions / issue_rate: they do not run side by side
 *     smem     K and V read by each warpgroup, Q where it is read there, tiles written
 *     l2       what TMA copies slowly: arrays of an element a score, and rows that are no whole sectors
 *     chain    what one of the warpgroups waits for: its products, its softmax, and LATENCY; the others' run meanwhile
 * and besides what no product hides: dropout, masks, the running maximum. Beside a full tensor pipe an instruction
 * takes the clock that it is issued in. All constants are fitted to an H200: what is chosen for head dims 64, 128 and
 * 256, full and causal, at 512 to 8,192 keys. */
#include "plan.h"

#include <math.h>
#include <string.h>

/* Instructions (lanes) of one score: multiply-add, sum, half a conversion, the loop's share; and what dropout adds
 * (docs/dropout.md). */
static const double SOFTMAX_LANES = 2.7, DROPOUT_LANES = 3.6;
/* Of one score in a partial tile: indices, comparison, select, and the running maximum. */
static const double MASK_LANES = 3.0;
/* The same of a score, and of a tile over its keys, where a mask's words of 32 keys are looked at, as tiles of whole
 * words do, two warpgroups hiding less; the share of tiles that are taken to carry the mask, as many are empty or whole
 * in truth; and of a score where each key's bit is looked at. Fitted to `bits` at head dims 64 to
 * 128, on an H100. */
static const double WORD_LANES = 3.5, WORD_TILE = 180.0, WORD_PAIR = 1.3, WORD_SHARE = 0.4, BIT_LANES = 12.0;
/* Clocks between a warpgroup's products and its softmax and back; of e4m3, whose weights must all be there, and within
 * their range, before the next products (measured with 128 x 128 at head dims 64, 128 and 256). */
static const double LATENCY = 510.0, E4M3_LATENCY = 880.0;
/* e4m3 without exponentials (`fast`): clocks of a visit are shares of the products' and of its instructions', as one
 * delays the other, of three warpgroups a little less, and at least a tenth more than the products'; or what a
 * warpgroup waits for alone. What Q in registers and turns save where no tile is masked, and cost elsewhere; and what
 * rings of two cost. Fitted to tiles of 192 and 128 rows at head dims 64, 128 and 192. */
static const double FAST_LANES = 2.6, FAST_TENSOR = 0.53, FAST_ISSUE = 1.88, FAST_THREE = 0.9, FAST_LEAST = 1.1,
                    FAST_LATENCY = 340.0, FAST_TURNS = 0.05, FAST_SHALLOW = 0.02;
/* Clocks of a tile that no visits hide: claim, first product and first softmax; Q and O pass at EDGE_RATE bytes a
 * clock, and take ONE_BUFFER times as long where a single buffer of Q is all there is, less where there are few visits,
 * as O then leaves the warps at once; EDGE_TEAMS times where another team computes meanwhile, or two more warpgroups
 * that take no turns and do not fall into step. */
static const double TILE_CLOCKS = 400.0, EDGE_RATE = 18.0, ONE_BUFFER = 1.5, EDGE_TEAMS = 0.75;
/* Teams of one warpgroup: clocks that one has for a tile besides its visits, in which others compute, and what is less
 * of them as these do; and the share by which a visit takes longer with rings of two. Fitted to 64 x 64 with two, three
 * and four teams at 32 to 512 tokens of head dims 32 to 128, on an H100. */
static const double SINGLE_CLOCKS = 2000.0, SINGLE_SPARED = 100.0, SINGLE_SHALLOW = 0.05;
/* Share by which a visit of three warpgroups takes longer with 64 keys, for which they read all of Q, where products
 * are what takes long: fitted to 192 x 64 at head dim 128. Beside dropout it goes as softmax and products become alike,
 * else NARROW_FADES times as fast: none is left at head dim 112, where 128 x 128 takes as long as at 128. Where scores
 * become weights at once two warpgroups lose more by their instructions, and more yet where they pass a diagonal:
 * fitted to soft caps at head dim 128. */
static const double NARROW = 0.11, NARROW_FADES = 7.0, NARROW_AT_ONCE = -0.01, NARROW_AT_ONCE_MASK = -0.04;
/* The same with 96 or 112 keys in turns, for which the ring has but two tiles; what is spared where there are more
 * instructions, beside dropout and where scores become weights at once; and by the wider one where no mask is in its
 * way. Fitted to head dims 72 to 112. */
static const double WIDE = 0.15, WIDE_DROPOUT = 0.05, WIDE_AT_ONCE = 0.13, WIDER = 0.015;
/* Share of the clock that busy tensor cores cost, by the power that they draw. */
static const double POWER_SHARE = 0.28;
/* Shares by which a visit takes longer: of warpgroups that fall into step, where the softmax is as long as the
 * products; of a ring of two where CTAs walk over unlike numbers of tiles. Measured at head dim 64; at 128 nobody falls
 * into step. */
static const double IN_STEP = 0.17, SHALLOW = 0.10;
/* The same where dropout's instructions stand beside the softmax: nothing while both together take STEP_FROM of the
 * products' clocks, and as much as DROPOUT_STEP from STEP_TO on; and where some tiles of documents have masks and
 * others none. What turns cost two warpgroups that need none; with dropout and no mask, what two arrays of weights cost
 * them. Measured at head dim 128. */
static const double DROPOUT_STEP = 0.2, STEP_FROM = 0.67, STEP_TO = 0.89, DOCUMENTS_STEP = 0.1, TURNS = 0.04,
                    DROPOUT_TWO = 0.045;
/* The same of two warpgroups beside a diagonal: 14 % where it begins within a tile, as with queries that are fewer than
 * keys, and warpgroups have unlike numbers of masked tiles; where it begins with one, turns cost half a percent. */
static const double OFFSET_STEP = 0.01;
/* The same of two warpgroups where tiles are looked for: if they are seen as a whole, 1 % at head dim 128, and turns
 * cost nothing; else turns cost a little there. Below 128 they spare both from falling into step. */
static const double SCAN_STEP = 0.01, SCAN_TURNS = 0.01;
/* Shares that one array of weights spares two warpgroups, which are 0 to 3 % at head dim 128, and costs them without
 * turns where softmax and products are alike: fitted to 128 x 128 with Q in registers at head dims 80 to 128. */
static const double ONE_ARRAY = 0.005, ONE_ARRAY_STEP = 0.1;
/* Where runs of keys are looked up beforehand, a tile of queries walks over so many of them, of which as many as it and
 * a tile of keys hold are not seen by all, and then stands at its ends: fitted to 192 x 64 beside 128 x 128 at head dim
 * 128, which is 5 to 13 % ahead with 16, 128 and 700 documents of 16,384 keys. */
static const double RUN = 512.0;
/* Straight lines along the keys. Columns that they add to Q K^T, and instructions of a warp beside a tile's products.
 * Where the products do not add them, instructions of a warp for a line, which serves a tile or, with two arrays of
 * weights, two. */
static const double LINE_COLUMNS = 16.0, LINE_BESIDE = 12.0, LINE_LANES = 84.0;
/* Two teams stay out of step, but read K and V twice as often. The warpgroups of a team gain by turns where tiles are
 * looked for and with dropout, and lose a little where neither is; of e4m3, whose products are short, nothing was lost.
 */
static const double TEAMS = 0.035, TEAMS_SCAN = 0.05, TEAMS_DROPOUT = 0.07, TEAMS_TURNS = 0.01;
/* Shares by which Q in registers makes a visit shorter, as its reads no longer stand in the way of K's, less so beside
 * the code of a mask's bounds, and longer where a mask that is no bound wants the registers, if only for few tiles: not
 * of tiles that are seen or not as a whole. With dropout, and of scores that become weights at once, it is shorter all
 * the same. */
static const double Q_SPARES = 0.04, Q_SPARES_BOUNDS = 0.02, Q_CROWDS = 0.04;
/* The same of lines that the products do not add, without a mask and with bounds, and the share by which it is longer
 * there if two warpgroups take no turns, which cost them nothing: fitted to ALiBi at head dim 128. */
static const double Q_SPARES_LINE = 0.02, Q_SPARES_LINE_BOUNDS = 0.005, LINE_STEP = 0.013;
/* Four warpgroups with one ring of keys stay out of step by themselves. Shares that reading keys once spares; that
 * turns save where tiles are seen as a whole, or cost elsewhere; that windows and documents cost, of whose keys each
 * warpgroup passes by more, and lines that the products do not add, for which there are few registers. */
static const double RING_SPARES = 0.012, RING_TURNS = 0.015, RING_WINDOW = 0.03, RING_RUNS = 0.3, RING_LINE = 0.12;
/* Where sequences are packed, whose rows end at any query and key: shares that four warpgroups with one ring lose, as
 * all walk over what some see, and that three spare without dropout. Fitted to 256 x 64 beside teams of 128 x 64 at
 * head dim 64 and to 192 x 64 beside 128 x 128 at 96 and 128, with sequences of 128 to 4,096 tokens. */
static const double PACKED_RING = 0.03, PACKED_THREE = 0.08;
/* Share by which a visit of two CTAs that share keys is longer, as they wait for each other: 1 to 5 % up to 32,768
 * keys, -5 to 6 % beyond, where power decides; and with dropout, for which clusters take no turns. */
static const double PAIR_WAITS = 0.025, PAIR_DROPOUT = 0.1;
/* Two CTAs that halve a tile: clocks until one has what the other sends, and bytes that pass between them in a clock,
 * as far as a visit waits for them. Fitted to head dims 320 and 512. */
static const double HALF_WAIT = 350.0, HALF_RATE = 80.0;
/* Of a staged array's byte: written once, and read once. Bytes of it, K and V that an SM gets from L2 in a clock: at
 * least that many, as copies were never what a visit waited for. Clocks that a visit takes besides, and the shares
 * by which it is longer where two warpgroups take no turns, and with two arrays of weights: fitted to 192 x 128 at head
 * dim 64 and to 128 x 128 at 128. */
static const double STAGED_PASSES = 2.0, STAGED_RATE = 50.0, STAGED_WAIT = 600.0, STAGED_STEP = 0.14, STAGED_TWO = 0.03;
/* Scores that become weights at once: shares by which a visit takes longer of teams, of two warpgroups that take no
 * turns where the softmax is longer than the products, and of two or three with one array of weights. */
static const double TEAMS_AT_ONCE = 0.09, AT_ONCE_STEP = 0.065, AT_ONCE_ARRAY = 0.01;
/* Clocks in which TMA copies a row of 128 bytes or less: fitted to teams of 64 x 64, which nothing else bounds; and
 * where rows are not whole sectors of 32, as head dims of 8, 24, 40 are: fitted to 128 x 128 at head dims 72 to 120,
 * whose visits take 1.35 to 1.4 times as long for it. */
static const double COPIED_ROW = 3.5, ODD_ROW = 4.8;
/* Head dims 33 to 64: clocks of a score that takes the long way, in a row's first tile and on the diagonal where the
 * products add lines, in its only one where scores become weights at once; and the share of them that teams do not
 * hide. Fitted to rows of 128 to 512 tokens on an H100. */
static const double LINE_ENDS = 0.15, AT_ONCE_ENDS = 0.05, ENDS_TEAMS = 0.55;
/* What a visit takes where threads read the array although it could be copied: of e4m3, of which no plan has copies;
 * else, with so much more for each byte of an element, beside others and alone. Fitted to teams of 64 x 64 with 4 to
 * 128 heads of 512 to 2,048 tokens. */
static const double UNSTAGED_E4M3 = 1.5, UNSTAGED = 1.3, UNSTAGED_BYTE = 0.4, UNSTAGED_LONE = 1.15,
                    UNSTAGED_LONE_BYTE = 0.225;

int fk_wgmma_consumer_registers(int computing) {
    static const int of_computing[] = {0, 248, 224, 160, 112};
    return of_computing[computing];
}

static int base_registers(const fk_problem *p, const fk_tile *tile, int d_pad, int dv_pad) {
    const int bytes = fk_dtype_bytes(p->dtype);
    const int acc_o = dv_pad / 2, acc_s = tile->block_n / 2, weights = tile->block_n * bytes / 8;
    const int q = tile->q_in_regs ? d_pad * bytes / 8 : 0;
    const int fixed = 28; /* m, l, addresses, loop counters, bounds of the mask, scale */
    /* a second array of weights lies over the scores that it is made of; but of e4m3 four of these make one word */
    const int second = tile->overlap == 2 && p->dtype == FK_E4M3 && !p->fast ? weights : 0;
    return acc_o + acc_s + weights + second + q + fixed;
}

/* What is read ahead lies beside both arrays of weights, with addresses of its own. */
int fk_wgmma_pairs_ahead(const fk_problem *p, const fk_tile *tile) {
    const int addresses = 4, weights = tile->overlap == 2 ? tile->block_n * fk_dtype_bytes(p->dtype) / 8 : 0;
    const int d_pad = (p->head_dim + 15) / 16 * 16, dv_pad = (p->head_dim_v + 15) / 16 * 16;
    if (!tile->wgmma || tile->walks_q || p->dtype == FK_E4M3) return 0;
    const int computing = fk_tile_teams(tile) * fk_tile_consumers(tile);
    const int left =
        fk_wgmma_consumer_registers(computing) - base_registers(p, tile, d_pad, dv_pad) - weights - addresses;
    const int atoms = tile->block_n / 8, most = p->num_masks == 0 && p->num_scores == 1 ? atoms : atoms * 3 / 4;
    return left < 4 ? 0 : left / 4 < most ? left / 4 : most;
}

/* With a mask 192 x 128 of head dim 64 spills the addresses of a staged array. Of e4m3 nothing is read ahead, but what
 * is read of a bias lies beside all else, more where two warpgroups have the room; beyond head dim 128 there is no plan
 * with fewer. */
static int array_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout) {
    const int e4m3 = fk_tile_teams(tile) * fk_tile_consumers(tile) <= 2 ? 32 : 24;
    if (p->dtype == FK_E4M3) return layout->unstaged && layout->d_pad + layout->dv_pad <= 256 ? e4m3 : 0;
    return layout->staged && p->num_masks > 0 ? 6 : 0;
}

int fk_wgmma_registers(const fk_problem *p, const fk_tile *tile, const fk_smem_layout *layout) {
    return base_registers(p, tile, layout->d_pad, layout->dv_pad) + array_registers(p, tile, layout);
}

/* Of a CTA's partial tiles, the share that a warpgroup masks. A window's two diagonals mostly begin where tiles do and
 * cross fewer tiles of a warpgroup than of its CTA; of the rest it sees half as a whole, and passes by the others, at
 * one end or the other: all warpgroups as many. */
static double masked_share(const fk_plan_info *plan, bool window) {
    return window ? fmax(64, plan->block_n) / fmax(plan->block_m, plan->block_n)
                  : (64.0 + plan->block_n) / (plan->block_m + plan->block_n);
}

/* What a visit is, for all that it costs. Times are clocks of an SM. */
typedef struct visit {
    const fk_problem *p;
    const fk_device_info *device;
    const fk_smem_layout *layout;
    const fk_plan_info *plan;
    const fk_score_work *score;
    fk_tile tile;
    int teams, consumers; /* warpgroups of a team */
    bool fast, e4m3, halved;
    bool pair;                    /* two warpgroups and no others, of 16 bits */
    bool single;                  /* teams of one warpgroup */
    bool accompanied;             /* another team or pair computes meanwhile */
    bool at_once;                 /* scores become weights at once */
    bool bits;                    /* a mask of words of 32 keys */
    bool line;                    /* along the keys, and not added by the products */
    bool runs;                    /* of keys are looked up beforehand */
    bool window;                  /* warpgroups pass by tiles of their CTA */
    bool whole;                   /* tiles are looked for, and each is seen or not */
    bool offset;                  /* the pair may begin a diagonal apart */
    bool held;                    /* Q in registers beside a line */
    bool unlike;                  /* CTAs walk over unlike numbers of tiles */
    double visits;                /* of a tile of queries, in the mean */
    double block_m, scores;       /* of a team's tile */
    double columns;               /* that its products go over */
    double partial_share, masked; /* of a CTA's tiles; of a warpgroup's */
    double tensor, exp, softmax;  /* softmax: exp and the instructions around it */
    double besides;               /* dropout and masks */
    double in_step;               /* 0 to 1: is the softmax as long as the products? */
    double spared;                /* of its instructions */
    double pressed;               /* all instructions over the products */
} visit;

/* Share of the softmax's instructions besides exponentials that find a place beside them where products leave the
 * clocks free: half of them at head dim 32. */
static const double LANES_SPARED = 0.25;

static double softmax_lanes(const visit *v) {
    const double line_lanes = v->layout->lines ? LINE_BESIDE : v->line ? LINE_LANES / v->plan->overlap : 0;
    const double own = v->fast ? FAST_LANES : SOFTMAX_LANES - fk_prescales_queries(v->p); /* without the multiply-add */
    return own * (1 - v->spared) + (v->layout->lines ? 0 : v->score->lanes) + line_lanes / (v->plan->block_n / 2.0);
}

/* Of a score. */
static double mask_lanes(const visit *v) {
    if (!v->bits) return MASK_LANES * v->masked;
    const double words = (WORD_LANES + WORD_TILE / v->plan->block_n) * (v->pair ? WORD_PAIR : 1);
    return v->plan->block_n % 32 == 0 ? words * WORD_SHARE : BIT_LANES;
}

static visit look_at(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                     const fk_smem_layout *layout, const fk_plan_info *plan, const fk_score_work *score,
                     double partial_share, double visits) {
    visit v = {p, device, layout, plan, score, .tile = fk_plan_tile(p, plan), .partial_share = partial_share};
    v.visits = visits;
    v.teams = fk_tile_teams(&v.tile), v.consumers = fk_tile_consumers(&v.tile);
    v.fast = fk_sums_by_products(p), v.e4m3 = p->dtype == FK_E4M3;
    v.halved = fk_tile_halved(p, &v.tile);
    v.pair = v.teams == 1 && v.consumers == 2 && !v.e4m3 && !v.halved;
    v.single = v.teams > 1 && v.consumers == 1;
    v.accompanied = v.teams > 1 || v.consumers == 4;
    v.at_once = score->at_once && !p->dropout && !v.e4m3;
    v.bits = layout->bits;
    v.line = score->along && !layout->lines;
    v.held = v.line && plan->q_in_regs && !layout->scans && !layout->mask_rows;
    v.block_m = 64 * v.consumers, v.scores = v.block_m * plan->block_n;
    const double columns = layout->d_pad + (v.fast ? fk_value_rows(p) : layout->dv_pad);
    v.columns = columns + (layout->lines ? LINE_COLUMNS : 0);
    const double longer = arch->wgmma_flops / device->exp_rate / columns - 1; /* softmax than products */
    v.in_step = v.fast ? 0 : fmin(1, fmax(0, longer));
    v.spared = v.e4m3 || p->num_scores > 0 ? 0 : LANES_SPARED * fmin(2, fmax(0, longer - 1));
    /* a staged array's tiles are copied for warpgroups that do not see them, too; with dropout 192 x 64 spills */
    v.runs = layout->runs && !layout->staged && !p->dropout;
    v.window = layout->window || v.runs;
    if (layout->runs) v.partial_share = fmin(partial_share, (plan->block_m + plan->block_n) / RUN);
    v.unlike = v.partial_share > 0.01;
    v.whole = layout->scans && v.partial_share == 0;
    v.masked = v.partial_share * masked_share(plan, v.window);
    v.tensor = 2.0 * v.scores * v.columns / arch->wgmma_flops;
    const double weighed = v.halved ? v.scores / 2 : v.scores; /* each CTA of a pair half of the keys */
    v.exp = v.fast ? 0 : weighed / device->exp_rate;
    v.softmax = v.exp + weighed * softmax_lanes(&v) / device->issue_rate;
    v.besides = weighed * ((p->dropout ? DROPOUT_LANES : 0) + mask_lanes(&v)) / device->issue_rate;
    v.pressed = (v.softmax + v.besides) / v.tensor;
    v.offset = v.pair && p->num_masks > 0 && !layout->scans && !layout->mask_rows && !p->dropout &&
               v.pressed > STEP_FROM / 2 && layout->d_pad <= 128;
    return v;
}

static double copied_row(int head_dim, int bytes) {
    const int panel = 128 / bytes;
    return (head_dim * bytes % 32 ? ODD_ROW : COPIED_ROW) * ((head_dim + panel - 1) / panel);
}

static bool has_odd_rows(const fk_problem *p) {
    const int bytes = fk_dtype_bytes(p->dtype);
    return p->head_dim * bytes % 32 || p->head_dim_v * bytes % 32;
}

/* Of K and V. */
static double copies_of(const visit *v) {
    const fk_problem *p = v->p;
    const int bytes = fk_dtype_bytes(p->dtype);
    const bool once = fk_tile_takes_values_from_keys(p, &v->tile);
    const double row = copied_row(p->head_dim, bytes) + (once ? 0 : copied_row(p->head_dim_v, bytes));
    return v->e4m3 ? 0 : v->plan->block_n * row / fk_tile_cluster(p, &v->tile);
}

/* What a warpgroup waits for. */
static double chain_of(const visit *v) {
    const double ahead = (double)fk_wgmma_pairs_ahead(v->p, &v->tile) / fmax(1, v->score->pairs);
    const double reads = v->layout->staged ? 0 : v->plan->block_n / 8.0 - ahead;
    const double latency = (v->e4m3 ? E4M3_LATENCY : LATENCY) + fk_model_waits(v->score, reads);
    const double sent = v->halved ? HALF_WAIT + v->scores / 2.0 * (sizeof(float) + sizeof(uint16_t)) / HALF_RATE : 0;
    return (v->tensor + v->softmax) / v->consumers + latency + sent;
}

/* What a row of tiles costs besides for scores that take the long way. */
static double ends_of(const visit *v) {
    if (v->layout->d_pad <= 32 || v->layout->d_pad > 64) return 0;
    const double lines = v->layout->lines && v->p->num_masks == 0 ? LINE_ENDS * fmin(2, v->visits) : 0;
    const double at_once = v->at_once ? AT_ONCE_ENDS * fmax(0, 2 - v->visits) : 0;
    return (lines + at_once) * v->scores * (v->teams > 1 ? ENDS_TEAMS : 1);
}

/* All but `serial`. */
static fk_visit_cost units_of(const visit *v) {
    const fk_smem_layout *layout = v->layout;
    const fk_plan_info *plan = v->plan;
    const double bytes = fk_dtype_bytes(v->p->dtype), o_bytes = fk_dtype_bytes(fk_output_dtype(v->p->dtype));
    const int v_columns = fk_tile_takes_values_from_keys(v->p, &v->tile) ? 0 : (layout->dv_pad + 63) / 64 * 64;
    const double stored = bytes * plan->block_n * ((layout->d_pad + 63) / 64 * 64 + v_columns);
    const double read = v->consumers * bytes * plan->block_n * v->columns;
    const double read_q = plan->q_in_regs ? 0 : bytes * v->block_m * layout->d_pad / v->device->smem_rate;
    const double own = v->block_m * (bytes * layout->d_pad + o_bytes * layout->dv_pad);
    const int panel = layout->staged ? 128 / layout->staged : 1; /* of so many keys */
    const double copied = layout->staged * v->block_m * ((plan->block_n + panel - 1) / panel * panel);
    const double aside = v->accompanied ? 1 : v->consumers == 3 && !plan->turns ? 1 - v->in_step : 0;
    const double one_buffer = v->consumers == 1 ? ONE_BUFFER : fmin(ONE_BUFFER, (1 + v->visits) / 3);
    fk_visit_cost cost = {
        .tensor = v->tensor,
        .exp = v->exp,
        .issue = v->softmax - v->exp + v->besides,
        .smem = (read + stored + STAGED_PASSES * layout->staged * v->scores) / v->device->smem_rate + read_q,
        .l2 = fmax(copies_of(v), layout->staged ? (copied + stored) / STAGED_RATE : v->scores * v->score->l2),
        .turns = 1,
        .start = TILE_CLOCKS,
        .edge = own / EDGE_RATE * (plan->q_stages == 1 ? one_buffer : 1) * (1 - aside * (1 - EDGE_TEAMS)),
    };
    if (v->single) cost.start = SINGLE_CLOCKS / v->teams - SINGLE_SPARED;
    cost.start += ends_of(v);
    if (v->teams > 1 && !v->fast) cost.lone = chain_of(v) + v->besides;
    return cost;
}

static double longest_of(const visit *v, const fk_visit_cost *cost) {
    const double all = fmax(fmax(cost->smem, cost->l2), chain_of(v) / v->teams);
    return fmax(fmax(v->tensor, v->softmax), all) + v->besides;
}

static double longest_of_fast(const visit *v) {
    const double together = (FAST_TENSOR * v->tensor + FAST_ISSUE * v->softmax) * (v->consumers == 3 ? FAST_THREE : 1);
    const double alone = (v->tensor + FAST_ISSUE * v->softmax) / v->consumers + FAST_LATENCY;
    const double turns = v->plan->turns ? (v->unlike ? FAST_TURNS : -FAST_TURNS) : 0;
    const double shallow = v->plan->stages == 2 ? FAST_SHALLOW : 0;
    return fmax(FAST_LEAST * v->tensor, fmax(together, alone)) * (1 + turns) * (1 + shallow) + v->besides;
}

/* Factor of two teams, which lose or gain by turns. */
static double of_teams(const visit *v) {
    if (v->single) return v->plan->stages == 2 ? 1 + SINGLE_SHALLOW : 1;
    if (v->teams == 1 || v->e4m3) return 1;
    const double missed = fmax(v->layout->scans ? TEAMS_SCAN : 0, v->p->dropout ? TEAMS_DROPOUT : 0);
    return 1 + TEAMS + (v->plan->turns ? (missed > 0 ? 0 : TEAMS_TURNS) : missed);
}

/* Factor of one team's warpgroups that fall into step, or take turns so that they do not. */
static double of_step(const visit *v) {
    if (v->teams != 1 || (v->plan->turns && (!v->pair || v->layout->scans))) return 1;
    const double dropout = DROPOUT_STEP * fmin(1, fmax(0, (v->pressed - STEP_FROM) / (STEP_TO - STEP_FROM)));
    const double at_once = v->at_once && v->softmax > v->tensor ? AT_ONCE_STEP : 0;
    const double mixed = v->layout->mask_rows ? DOCUMENTS_STEP : v->layout->staged ? STAGED_STEP : 0;
    const double diagonal = v->offset ? OFFSET_STEP : v->pair && v->whole ? SCAN_STEP : 0;
    const double apart = fmax(v->p->dropout ? dropout : 0, fmax(fmax(at_once, mixed), diagonal));
    const double step = v->consumers == 4 ? 0 : IN_STEP * v->in_step;
    return 1 + fmax(step, v->plan->turns ? 0 : apart);
}

static double of_pair(const visit *v) {
    if (!v->pair) return 1;
    const bool vain = v->plan->turns && !v->held && !v->offset && !v->whole;
    const double turns = vain ? (v->layout->scans ? SCAN_TURNS : TURNS) : 0;
    if (v->plan->overlap == 2) return (1 + turns) * (v->p->dropout && v->p->num_masks == 0 ? 1 + DROPOUT_TWO : 1);
    const double step = v->plan->turns ? 0 : ONE_ARRAY_STEP * v->in_step;
    const bool computed = v->score->lanes > 0 && v->score->pairs == 0 && !v->layout->staged;
    const double array = computed ? AT_ONCE_ARRAY : step - ONE_ARRAY;
    return (1 + turns) * (1 + array);
}

/* Factor of four warpgroups with one ring of keys. */
static double of_ring(const visit *v) {
    if (v->consumers != 4) return 1;
    const bool costs = v->unlike || v->at_once;
    const double turns = !v->plan->turns || v->p->dropout ? 0 : costs ? RING_TURNS : -RING_TURNS;
    const double passes = v->layout->runs || v->layout->mask_rows ? RING_RUNS : v->window ? RING_WINDOW : 0;
    return (1 + turns) * (1 - RING_SPARES + passes + (v->line ? RING_LINE : 0)) * (v->p->packed ? 1 + PACKED_RING : 1);
}

static double wide_factor(const visit *v) {
    const double spared = v->p->dropout || v->bits ? WIDE_DROPOUT : v->at_once && v->in_step < 1 ? WIDE_AT_ONCE : -WIDE;
    return (1 - spared) * (v->plan->block_n > 96 && v->p->num_masks == 0 ? 1 - WIDER : 1);
}

/* Factor of three warpgroups. */
static double of_three(const visit *v) {
    if (v->consumers != 3) return 1;
    const double fades =
        !v->e4m3 && has_odd_rows(v->p) ? 1 : fmin(1, NARROW_FADES * v->in_step); /* of slow copies it has fewer */
    const double alike = v->at_once || v->p->dropout ? v->in_step : fades;
    const double narrow = !v->at_once ? NARROW : v->p->num_masks > 0 ? NARROW_AT_ONCE_MASK : NARROW_AT_ONCE;
    double factor = v->plan->stages == 2 && v->unlike ? 1 + SHALLOW : 1;
    if (v->at_once && v->plan->overlap == 1) factor *= 1 + AT_ONCE_ARRAY;
    if (v->plan->block_n > 64) return factor * (v->plan->block_n == 128 || v->e4m3 ? 1 : wide_factor(v));
    return factor * (1 + narrow * (1 - alike)) * (v->p->packed && !v->p->dropout ? 1 - PACKED_THREE : 1);
}

static double of_q_in_registers(const visit *v) {
    const fk_smem_layout *layout = v->layout;
    if (!v->plan->q_in_regs || v->e4m3 || layout->staged) return 1;
    const bool masks = v->p->num_masks > 0 && !v->p->dropout && !v->at_once && !v->whole;
    if (masks && (layout->scans || layout->mask_rows) && !v->bits) return 1 + Q_CROWDS;
    if (!v->held) return 1 - (masks ? Q_SPARES_BOUNDS : Q_SPARES);
    return 1 - (masks ? Q_SPARES_LINE_BOUNDS - (v->plan->turns ? 0 : LINE_STEP) : Q_SPARES_LINE);
}

fk_visit_cost fk_wgmma_visit(const fk_problem *p, const fk_device_info *device, const fk_arch *arch,
                             const fk_smem_layout *layout, const fk_plan_info *plan, const fk_score_work *score,
                             double partial_share, double visits) {
    const visit v = look_at(p, device, arch, layout, plan, score, partial_share, visits);
    fk_visit_cost cost = units_of(&v);
    cost.serial = v.fast ? longest_of_fast(&v) : longest_of(&v, &cost);
    if (layout->staged) cost.serial = (cost.serial + STAGED_WAIT) * (plan->overlap == 2 ? 1 + STAGED_TWO : 1);
    if (layout->unstaged) cost.serial *= v.e4m3 ? UNSTAGED_E4M3 : UNSTAGED + UNSTAGED_BYTE * score->bytes;
    if (layout->unstaged && !v.e4m3) cost.lone *= UNSTAGED_LONE + UNSTAGED_LONE_BYTE * score->bytes;
    cost.serial *= of_teams(&v) * of_step(&v) * of_pair(&v) * of_ring(&v);
    if (v.at_once && v.accompanied) cost.serial *= 1 + TEAMS_AT_ONCE;
    if (fk_tile_cluster(p, &v.tile) > 1) cost.serial *= 1 + PAIR_WAITS + (p->dropout ? PAIR_DROPOUT : 0);
    /* what masks read in arrays hides how many tiles are visited: they are taken for documents */
    if (layout->mask_rows) cost.serial *= 1 + (plan->block_m + plan->block_n) / FK_SHORT_SEQUENCE;
    if (v.runs) cost.serial += (cost.start + cost.edge) * plan->block_n / RUN;
    if (v.window) cost.serial *= 1 - (v.partial_share - v.masked) / 2;
    cost.serial *= of_three(&v) * of_q_in_registers(&v);
    return cost;
}

double fk_wgmma_slow(double clocks, double tensor) {
    return clocks / (1 - POWER_SHARE * fmin(1.0, tensor / clocks));
}
