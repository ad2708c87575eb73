/* explain: what would run, why that and not another, what is skipped, and what bounds it. */
#include "cli.h"
#include "half.h"

#include <math.h>
#include <string.h>

/* All that is told, gathered before anything is printed. */
typedef struct explanation {
    fk_problem problem;
    char spelling[FK_MAX_SPELLING];
    fk_device_info gpu;
    fk_plan_options how;
    fk_plan_info *plans;
    size_t count;
    const fk_plan_info *chosen;
    fk_tile_counts tiles;
} explanation;

static double peak_flops(const explanation *e) {
    return e->chosen->mma_flops * e->gpu.num_sms * e->gpu.clock_ghz * 1e9;
}

/* The tensor floor is FLOP / peak, so FLOP is not counted a second time here. */
static double flops_of(const explanation *e) {
    return e->chosen->tensor_us * 1e-6 * peak_flops(e);
}

static double share(int64_t part, const fk_tile_counts *t) {
    const double all = (double)t->empty + (double)t->partial + (double)t->full;
    return all > 0 ? (double)part / all : 0;
}

static void print_tiles(const explanation *e) {
    const fk_tile_counts *t = &e->tiles;
    printf("\nTiles of %d queries x %d keys\n", e->chosen->block_m, e->chosen->block_n);
    printf("  empty    %6.2f%%  %12lld  never loaded\n", 100 * share(t->empty, t), (long long)t->empty);
    printf("  partial  %6.2f%%  %12lld  masked element by element\n", 100 * share(t->partial, t),
           (long long)t->partial);
    printf("  full     %6.2f%%  %12lld  computed without mask code\n", 100 * share(t->full, t), (long long)t->full);
}

/* Block-sparse FlashAttention's bound (Dao et al. 2022, proposition 4), and what this plan makes of it: a CTA keeps a
 * tile of one axis in SRAM, and what it meets of the other passes once for each tile it visits. */
typedef struct io_bound {
    double density;  /* s: the share of tiles visited */
    double elements; /* M: of SRAM */
    double walked;   /* bytes of a head's visited tiles: K and V; backward: Q and dO */
    double factor;   /* before N^2 d^2 s / M */
} io_bound;

static io_bound io_bound_of(const explanation *e) {
    const fk_problem *p = &e->problem;
    const bool backward = p->op == FK_BACKWARD;
    const double own = backward ? e->chosen->block_n : e->chosen->block_m;
    const double met = backward ? e->chosen->block_m : e->chosen->block_n;
    const double held = (double)kv_sram_bytes(p, e->chosen), width = p->head_dim + p->head_dim_v;
    const double size = strcmp(e->chosen->family, "wgmma") == 0 ? held : (double)element_bytes(kv_dtype(p));
    const double visited = (double)e->tiles.partial + (double)e->tiles.full;
    const double m = e->gpu.smem_per_block / held;
    return (io_bound){.density = share(e->tiles.partial, &e->tiles) + share(e->tiles.full, &e->tiles),
                      .elements = m,
                      .walked = visited * met * width * size,
                      .factor = m * width / (own * p->head_dim * p->head_dim)};
}

static void print_io(const explanation *e) {
    const io_bound io = io_bound_of(e);
    const bool backward = e->problem.op == FK_BACKWARD;
    char text[CLI_QUANTITY];
    printf("\nIO: Theta(N d + N^2 d^2 s / M) accesses of HBM, with d = %d, s = %.2f%%, M = %.0f elements (%s)\n",
           e->problem.head_dim, 100 * io.density, io.elements, cli_bytes(e->gpu.smem_per_block, text));
    printf("  the tiles that a head visits: %s of %s, which is %.3g N^2 d^2 s / M; HBM sees what L2 does not keep\n",
           cli_bytes(io.walked, text), backward ? "Q and dO" : "K and V", io.factor);
}

/* Which of model, caller and record decided. */
static void print_decision(const explanation *e) {
    char plan[FK_MAX_PLAN] = "";
    fk_plan_spell(e->chosen, plan, sizeof plan);
    printf("  %s, chosen by %s\n", plan,
           e->chosen->chosen >= FK_CHOSEN_BY_RECORD   ? e->chosen->reason
           : e->chosen->chosen == FK_CHOSEN_BY_CALLER ? "--plan"
           : e->how.rule == FK_RULE_PAPER             ? "the paper's rule"
                                                      : "the model");
}

/* What the Python functions do by themselves. */
static void print_other_spelling(const explanation *e) {
    fk_problem other;
    char spelling[FK_MAX_SPELLING];
    if (e->problem.split && fk_problem_heads_are_queries(&e->problem, &e->gpu, &e->how.shape, &other) &&
        fk_problem_spell(&other, spelling, sizeof spelling) == FK_OK)
        printf("  one query is faster as \"%s\" with each kv head's query heads as its queries: docs/sequences.md\n",
               spelling);
}

static void print_model(const explanation *e) {
    const fk_plan_info *p = e->chosen;
    char text[CLI_QUANTITY];
    const double peak = peak_flops(e), hbm = e->gpu.hbm_gbps * 1e9;
    const struct {
        const char *name;
        double us;
    } floors[] = {{"tensor", p->tensor_us}, {"exp", p->exp_us}, {"issue", p->issue_us},
                  {"smem", p->smem_us},     {"hbm", p->hbm_us}, {"l2", p->l2_us}};
    printf("\nModel: %s, bound by %s, at %.0f%% of the tensor cores' %.0f TFLOP/s\n", cli_time_us(p->model_us, text),
           p->bound, p->model_us > 0 ? 100 * p->tensor_us / p->model_us : 0, peak * 1e-12);
    for (size_t i = 0; i < sizeof floors / sizeof floors[0]; i++)
        if (floors[i].us > 0)
            printf("  %-7s at least %10s  %5.1f%%\n", floors[i].name, cli_time_us(floors[i].us, text),
                   p->model_us > 0 ? 100 * floors[i].us / p->model_us : 0);
    printf("  HBM traffic %s", cli_bytes(p->hbm_bytes, text));
    if (p->hbm_bytes > 0 && hbm > 0)
        printf(", %.0f FLOP per byte; compute and memory balance at %.0f", flops_of(e) / p->hbm_bytes, peak / hbm);
    putchar('\n');
}

static void print_losers(const explanation *e, int most) {
    char time[CLI_QUANTITY], smem[CLI_QUANTITY];
    size_t rejected = 0;
    const char *heading = "\nWhy not\n";
    for (size_t i = 0; i < e->count; i++)
        rejected += !e->plans[i].legal;
    for (int legal = 1; legal >= 0; legal--) {
        int shown = 0;
        for (size_t i = 0; i < e->count && shown < most; i++) {
            const fk_plan_info *p = &e->plans[i];
            if (p == e->chosen || p->legal != legal) continue;
            printf("%s  %-5s block_m %-3d block_n %-3d warps %-2d stages %d Q in %s x%d/SM: ", heading, p->family,
                   p->block_m, p->block_n, p->warps, p->stages, p->q_in_regs ? "regs" : "smem", p->ctas_per_sm);
            heading = "";
            if (legal)
                printf("%s, %.2fx the chosen, bound by %s; %s\n", cli_time_us(p->model_us, time),
                       p->model_us / e->chosen->model_us, p->bound, cli_bytes(p->smem_bytes, smem));
            else
                printf("%s\n", p->reason);
            shown++;
        }
    }
    printf("  %zu candidates, %zu of them cannot be launched; `flashkiln plan` lists all\n", e->count, rejected);
}

static bool print_json(const explanation *e) {
    static const table_column columns[] = {
        {NULL, "spelling", false},       {NULL, "gpu", false},
        {NULL, "family", false},         {NULL, "sm", true},
        {NULL, "block_m", true},         {NULL, "block_n", true},
        {NULL, "warps", true},           {NULL, "stages", true},
        {NULL, "smem_bytes", true},      {NULL, "registers", true},
        {NULL, "tiles_empty", true},     {NULL, "tiles_partial", true},
        {NULL, "tiles_full", true},      {NULL, "share_skipped", true},
        {NULL, "model_us", true},        {NULL, "bound", false},
        {NULL, "tensor_fraction", true}, {NULL, "hbm_bytes", true},
        {NULL, "flop_per_byte", true},   {NULL, "density", true},
        {NULL, "walked_bytes", true},    {NULL, "io_factor", true},
    };
    const fk_plan_info *p = e->chosen;
    const double numbers[] = {p->sm,
                              p->block_m,
                              p->block_n,
                              p->warps,
                              p->stages,
                              p->smem_bytes,
                              p->registers,
                              (double)e->tiles.empty,
                              (double)e->tiles.partial,
                              (double)e->tiles.full,
                              share(e->tiles.empty, &e->tiles),
                              p->model_us};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    table_text(t, e->spelling);
    table_text(t, e->gpu.name);
    table_text(t, p->family);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        table_number(t, numbers[i], "%s", "");
    table_text(t, p->bound);
    table_number(t, p->tensor_us / p->model_us, "%s", "");
    table_number(t, p->hbm_bytes, "%s", "");
    table_number(t, flops_of(e) / p->hbm_bytes, "%s", "");
    const io_bound io = io_bound_of(e);
    table_number(t, io.density, "%s", "");
    table_number(t, io.walked, "%s", "");
    table_number(t, io.factor, "%s", "");
    const bool good = table_print_json_object(t, stdout);
    table_destroy(t);
    return good;
}

static fk_status gather(explanation *e, const char *gpu_name) {
    fk_status status = fk_device_find(gpu_name, &e->gpu);
    if (status == FK_OK) status = fk_plan_list(&e->problem, gpu_name, &e->how, &e->plans, &e->count);
    if (status != FK_OK) return status;
    for (size_t i = 0; i < e->count; i++)
        if (e->plans[i].chosen) e->chosen = &e->plans[i];
    return fk_plan_tiles(&e->problem, e->chosen, &e->how, &e->tiles);
}

static cli_exit explain_main(const cli_verb *verb, int argc, char **argv) {
    const char *gpu_name = "a100";
    cli_planning planning = CLI_PLANNING_INIT;
    bool json = false;
    int64_t top = 3;
    explanation e = {.problem = FK_PROBLEM_INIT};
    char shape[128];
    const option options[] = {
        cli_gpu_option(&gpu_name),
        option_int("--top", "N", &top, 0, 1000, "losing candidates shown, of either kind (default 3)"),
        cli_shape_option(&planning),
        cli_rule_option(&planning),
        cli_plan_option(&planning),
        cli_reproducible_option(&planning),
        cli_template_option(&planning),
        cli_json_option(&json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = cli_use_planning(&planning);
    if (code == CLI_OK) code = cli_problem(argv, argc, &e.problem, e.spelling);
    if (code != CLI_OK) return code;
    e.how = cli_plan_options(&planning);
    const fk_status status = gather(&e, gpu_name);
    if (status != FK_OK) {
        code = cli_fail_status(status);
    } else if (json) {
        code = print_json(&e) ? CLI_OK : cli_fail_print("explain");
    } else {
        printf("%s on %s: family %s with sm_%d primitives\n", e.spelling, e.gpu.name, e.chosen->family, e.chosen->sm);
        printf("at %s\n\nPlan\n", cli_shape_text(&e.how.shape, shape));
        cli_print_plan("  ", &e.problem, e.chosen, &e.gpu);
        print_decision(&e);
        print_other_spelling(&e);
        const fk_status for_sizes = cli_print_plan_for(&e.problem, gpu_name, &e.how, e.chosen);
        if (for_sizes != FK_OK) code = cli_fail_status(for_sizes);
        print_tiles(&e);
        print_io(&e);
        print_model(&e);
        print_losers(&e, (int)top);
    }
    fk_free(e.plans);
    return code;
}

const cli_verb verb_explain = {"explain", "SPELLING [--gpu KEY]",
                               "what would run, why, what is skipped, what bounds it", "Without --gpu: a100.\n",
                               explain_main};
