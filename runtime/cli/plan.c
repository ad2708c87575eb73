/* plan: every tiling of a problem on a GPU, best first, rejected ones with their reason. */
#include "cli.h"

static const table_column columns[] = {
    {"", "chosen", false},        {"family", "family", false}, {"block_m", "block_m", true},
    {"block_n", "block_n", true}, {"warps", "warps", true},    {"stages", "stages", true},
    {"Q in", "q_in_regs", false}, {"Qs", "q_stages", true},    {"Ks", "k_stages", true},
    {"Ps", "overlap", true},      {"turns", "turns", false},   {"CTAs/SM", "ctas_per_sm", true},
    {"smem", "smem_bytes", true}, {"regs", "registers", true}, {"model", "model_us", true},
    {"bound", "bound", false},    {"HBM", "hbm_bytes", true},  {NULL, "legal", false},
    {NULL, "tensor_us", true},    {NULL, "exp_us", true},      {NULL, "issue_us", true},
    {NULL, "smem_us", true},      {NULL, "hbm_us", true},      {NULL, "l2_us", true},
    {"why", "reason", false},     {NULL, "plan", false},
};

static void add_plan(table *t, const fk_plan_info *p) {
    char text[CLI_QUANTITY], plan[FK_MAX_PLAN] = "";
    fk_plan_spell(p, plan, sizeof plan);
    table_bool(t, p->chosen, p->chosen ? "*" : p->legal ? "" : "x");
    table_text(t, p->family);
    table_number(t, p->block_m, "%d", p->block_m);
    table_number(t, p->block_n, "%d", p->block_n);
    table_number(t, p->warps, "%d", p->warps);
    table_number(t, p->stages, "%d", p->stages);
    table_bool(t, p->q_in_regs, p->q_in_regs ? "regs" : "smem");
    table_number(t, p->q_stages, p->q_stages ? "%d" : "", p->q_stages);
    table_number(t, p->k_stages, p->k_stages ? "%d" : "", p->k_stages);
    table_number(t, p->overlap, p->overlap ? "%d" : "", p->overlap);
    table_bool(t, p->turns, p->turns ? "yes" : "");
    table_number(t, p->ctas_per_sm, "%d", p->ctas_per_sm);
    table_number(t, p->smem_bytes, "%s", cli_bytes(p->smem_bytes, text));
    table_number(t, p->registers, "%d", p->registers);
    table_number(t, p->model_us, "%s", p->legal ? cli_time_us(p->model_us, text) : "-");
    table_text(t, p->legal ? p->bound : "-");
    table_number(t, p->hbm_bytes, "%s", p->legal ? cli_bytes(p->hbm_bytes, text) : "-");
    table_bool(t, p->legal, "");
    table_number(t, p->tensor_us, "%s", "");
    table_number(t, p->exp_us, "%s", "");
    table_number(t, p->issue_us, "%s", "");
    table_number(t, p->smem_us, "%s", "");
    table_number(t, p->hbm_us, "%s", "");
    table_number(t, p->l2_us, "%s", "");
    table_text(t, p->reason);
    table_text(t, plan);
}

static const char *chosen_by(const fk_plan_info *plan, int rule) {
    return plan->chosen >= FK_CHOSEN_BY_RECORD   ? " by a tuning record"
           : plan->chosen == FK_CHOSEN_BY_CALLER ? ", as asked"
           : rule > 0                            ? ", by the paper's rule"
                                                 : "";
}

static cli_exit plan_main(const cli_verb *verb, int argc, char **argv) {
    const char *gpu_name = "a100";
    cli_planning planning = CLI_PLANNING_INIT;
    bool json = false;
    const option options[] = {
        cli_gpu_option(&gpu_name),  cli_shape_option(&planning),        cli_rule_option(&planning),
        cli_plan_option(&planning), cli_reproducible_option(&planning), cli_template_option(&planning),
        cli_json_option(&json)};
    fk_problem problem = FK_PROBLEM_INIT;
    char spelling[FK_MAX_SPELLING], shape[128], line[FK_MAX_PLAN];
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = cli_use_planning(&planning);
    if (code == CLI_OK) code = cli_problem(argv, argc, &problem, spelling);
    if (code != CLI_OK) return code;

    const fk_plan_options how = cli_plan_options(&planning);
    fk_device_info gpu;
    fk_plan_info *plans = NULL;
    size_t count = 0;
    fk_status status = fk_device_find(gpu_name, &gpu);
    if (status == FK_OK) status = fk_plan_list(&problem, gpu_name, &how, &plans, &count);
    if (status != FK_OK) return cli_fail_status(status);
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++)
        add_plan(t, &plans[i]);
    if (!json) printf("%s on %s, planned for %s\n\n", spelling, gpu.name, cli_shape_text(&how.shape, shape));
    const bool good = json ? table_print_json(t, stdout) : table_print(t, stdout);
    for (size_t i = 0; i < count && !json; i++) {
        if (!plans[i].chosen) continue;
        fk_plan_spell(&plans[i], line, sizeof line);
        printf("\n* chosen%s: %s\n", chosen_by(&plans[i], planning.rule), line);
        cli_print_plan("  ", &problem, &plans[i], &gpu);
        status = cli_print_plan_for(&problem, gpu_name, &how, &plans[i]);
    }
    table_destroy(t);
    fk_free(plans);
    if (status != FK_OK) return cli_fail_status(status);
    return good ? CLI_OK : cli_fail_print("plan");
}

const cli_verb verb_plan = {
    "plan", "SPELLING [--gpu KEY]", "candidate tilings, their modelled cost, and why one is chosen",
    "Columns\n"
    "  Qs, Ks, Ps  family wgmma: buffers of Q and of K (stages: of V), and arrays of weights;\n"
    "              backward: buffers of dQ and of dS, and 2 if P is multiplied before dS is there;\n"
    "              fp32: with Ks 1 tiles lie in shared memory as their parts\n"
    "  turns       family wgmma: warpgroups issue their products in turns\n"
    "  smem, regs  shared memory of a block and estimated registers of a thread\n"
    "  model       modelled time of the whole problem, and the unit that bounds it\n"
    "  HBM         predicted traffic to device memory\n"
    "  * is chosen, x cannot be launched; the last column says why. Without --gpu: a100.\n",
    plan_main};
