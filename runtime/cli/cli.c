/* Messages, exit codes, and the options and sentences that several verbs share. */
#include "cli.h"
#include "half.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char exit_codes[] = "Exit codes\n"
                                 "  0  done\n"
                                 "  1  usage: unknown verb or option, or an option's value out of its range\n"
                                 "  2  bad input: a spelling, shape or .npy file\n"
                                 "  3  unavailable: no plan, GPU or compiler for it on this machine\n"
                                 "  4  a file could not be read or written\n"
                                 "  5  a check failed: --check, registers spilled, or an invalid cache entry\n"
                                 "  6  failed: template, compiler, launch, memory, or a bug in this program\n";

bool cli_begin(const cli_verb *verb, const option *options, size_t num_options, int *argc, char **argv,
               cli_exit *exit_code) {
    for (int i = 0; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        printf("flashkiln %s %s\n\n%s\n", verb->name, verb->arguments, verb->summary);
        if (num_options) fputs("\nOptions\n", stdout);
        options_print(options, num_options);
        printf("\n%s%s%s", verb->notes, verb->notes[0] ? "\n" : "", exit_codes);
        *exit_code = CLI_OK;
        return false;
    }
    char message[OPTION_MESSAGE];
    if (!options_parse(options, num_options, *argc, argv, argv, argc, message)) {
        *exit_code = cli_fail(CLI_USAGE, "%s: %s", verb->name, message);
        return false;
    }
    return true;
}

cli_exit cli_fail(cli_exit code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    cli_progress("%s", "");
    fputs("flashkiln: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

cli_exit cli_exit_of(fk_status status) {
    switch (status) {
    case FK_OK:
        return CLI_OK;
    case FK_BAD_ARGUMENT:
    case FK_BAD_PROBLEM:
        return CLI_BAD_INPUT;
    case FK_UNSUPPORTED:
    case FK_NO_DEVICE:
    case FK_NO_COMPILER:
    case FK_NO_JIT:
        return CLI_UNAVAILABLE;
    case FK_IO:
        return CLI_IO;
    case FK_CHECK_FAILED:
        return CLI_CHECK_FAILED;
    case FK_COMPILE_FAILED:
    case FK_NO_MEMORY:
    case FK_TEMPLATE_ERROR:
    case FK_LAUNCH_FAILED:
    case FK_INTERNAL:
        break;
    }
    return CLI_FAILED;
}

cli_exit cli_fail_status(fk_status status) {
    return cli_fail(cli_exit_of(status), "%s: %s", fk_status_name(status), fk_last_error());
}

cli_exit cli_fail_print(const char *verb) {
    return ferror(stdout) ? cli_fail(CLI_IO, "standard output cannot be written")
                          : cli_fail(CLI_FAILED, "%s: no memory for what is printed", verb);
}

void cli_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) return;
    va_list args;
    va_start(args, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, args);
    fflush(stderr);
    va_end(args);
}

option cli_gpu_option(const char **gpu) {
    return option_text("--gpu", "KEY", gpu, "plan for that GPU: a key of `flashkiln devices`, or cuda:N");
}

option cli_json_option(bool *json) {
    return option_flag("--json", json, "print JSON");
}

option cli_shape_option(cli_planning *planning) {
    return option_numbers(
        "--shape", "B,HQ,HKV,SQ,SK", &planning->shape, 1, FK_MAX_SEQLEN,
        "plan for these sizes (default: 16,384 tokens, 2,048 hidden; with split 32 queries of 4,096 keys)");
}

option cli_rule_option(cli_planning *planning) {
    static const char *const rules[] = {"model", "paper", NULL};
    return option_choice("--rule", "RULE", &planning->rule, rules,
                         "model: rank legal tilings by the cost model (default);\n"
                         "paper: B_c = ceil(M / 4d), B_r = min(B_c, d)");
}

option cli_plan_option(cli_planning *planning) {
    return option_text("--plan", "PLAN", &planning->plan,
                       "take this plan, as `flashkiln plan` spells it: \"mma m128 n64 w4 s2 c2\"");
}

option cli_reproducible_option(cli_planning *planning) {
    return option_flag("--reproducible", &planning->reproducible,
                       "the model alone chooses the plan; tuning records are not looked at");
}

option cli_template_option(cli_planning *planning) {
    return option_text("--template-dir", "DIR", &planning->template_dir,
                       "templates that stand before the built-in ones, and new masks in DIR/mask\n"
                       "(default: $FLASHKILN_TEMPLATE_DIR)");
}

fk_plan_options cli_plan_options(const cli_planning *planning) {
    fk_plan_options out = FK_PLAN_OPTIONS_INIT;
    out.rule = planning->rule > 0 ? FK_RULE_PAPER : FK_RULE_MODEL;
    out.template_dir = planning->template_dir;
    out.plan = planning->plan;
    out.reproducible = planning->reproducible;
    if (planning->shape.count) {
        const int64_t *v = planning->shape.value;
        out.shape = (fk_shape){v[0], v[1], v[2], v[3], v[4]};
    }
    return out;
}

/* Spellings are read, and references computed, with the masks of this variable. */
cli_exit cli_use_planning(const cli_planning *planning) {
    if (planning->plan && planning->rule >= 0)
        return cli_fail(CLI_USAGE, "--plan excludes --rule: a plan that is named is not chosen");
    if (planning->template_dir) setenv("FLASHKILN_TEMPLATE_DIR", planning->template_dir, 1);
    return CLI_OK;
}

cli_exit cli_problem(char *const *words, int num_words, fk_problem *problem, char spelling[FK_MAX_SPELLING]) {
    char joined[FK_MAX_SPELLING];
    if (num_words == 0) return cli_fail(CLI_USAGE, "no spelling given, such as \"fwd bf16 d128 causal\"");
    if (!options_join_spelling(words, num_words, joined, sizeof joined))
        return cli_fail(CLI_BAD_INPUT, "the spelling is longer than %d bytes", FK_MAX_SPELLING - 1);
    fk_status status = fk_problem_parse(joined, problem);
    if (status == FK_OK) status = fk_problem_canonical(problem, problem);
    if (status == FK_OK) status = fk_problem_spell(problem, spelling, FK_MAX_SPELLING);
    return status == FK_OK ? CLI_OK : cli_fail_status(status);
}

const char *cli_bytes(double bytes, char out[CLI_QUANTITY]) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int unit = 0;
    for (; fabs(bytes) >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    const bool whole = bytes == floor(bytes) || bytes >= 100;
    snprintf(out, CLI_QUANTITY, whole ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

const char *cli_time_us(double us, char out[CLI_QUANTITY]) {
    if (us < 1e3)
        snprintf(out, CLI_QUANTITY, "%.3g us", us);
    else if (us < 1e6)
        snprintf(out, CLI_QUANTITY, "%.2f ms", us / 1e3);
    else
        snprintf(out, CLI_QUANTITY, "%.2f s", us / 1e6);
    return out;
}

const char *cli_shape_text(const fk_shape *shape, char out[128]) {
    if (shape->batch == 0)
        snprintf(out, 128, "16,384 tokens (with split 32 queries of 4,096 keys), 2,048 hidden (nominal)");
    else
        snprintf(out, 128, "batch %lld, heads %lld (kv %lld), seqlen_q %lld, seqlen_k %lld", (long long)shape->batch,
                 (long long)shape->num_heads_q, (long long)shape->num_heads_kv, (long long)shape->seqlen_q,
                 (long long)shape->seqlen_k);
    return out;
}

/* What lies in shared memory: "resident" once, "walked" in each stage; the rest is for the operands of later products.
 */
static void print_sram(const char *indent, const char *resident, const char *walked, int stages, double total,
                       const fk_plan_info *plan, const fk_device_info *gpu) {
    char sum[CLI_QUANTITY], smem[CLI_QUANTITY], sram[CLI_QUANTITY];
    printf("%sSRAM: %s%d stage%s x (%s) = %s", indent, resident, stages, stages == 1 ? "" : "s", walked,
           cli_bytes(total, sum));
    if (fabs(total - plan->smem_bytes) >= 1) printf("; as laid out %s", cli_bytes(plan->smem_bytes, smem));
    printf(" of the %s a block may take on %s\n", cli_bytes(gpu->smem_per_block, sram), gpu->name);
}

bool cli_is_wide(const fk_problem *problem) {
    return problem->head_dim > FK_NARROW_HEAD_DIM || problem->head_dim_v > FK_NARROW_HEAD_DIM;
}

/* As gen/bind_arch.c has it of plans of halves. */
static bool takes_values_from_keys(const fk_problem *p) {
    return p->latent && p->head_dim_v % 128 == 0 && (p->head_dim - p->head_dim_v) % 32 == 0;
}

/* "Q 32 KB + 2 stages x (K 16 KB + V 16 KB) = 96 KB of 163 KB SRAM per block on A100": the paper's block sizes follow
 * from what a block may hold. */
void cli_print_plan(const char *indent, const fk_problem *problem, const fk_plan_info *plan,
                    const fk_device_info *gpu) {
    char q[CLI_QUANTITY], dout[CLI_QUANTITY], k[CLI_QUANTITY], v[CLI_QUANTITY], smem[CLI_QUANTITY], sram[CLI_QUANTITY];
    char resident[96], walked[96];
    const double element = (double)kv_sram_bytes(problem, plan);
    const bool forward_wgmma = problem->op == FK_FORWARD && strcmp(plan->family, "wgmma") == 0;
    const int most_rows = (plan->warps / 4 - 1) * 64; /* of a CTA; a cluster of two has twice as many */
    const int rows_q = forward_wgmma && most_rows < plan->block_m ? most_rows : plan->block_m;
    const bool wide = cli_is_wide(problem), backward = problem->op == FK_BACKWARD;
    const bool wgmma = strcmp(plan->family, "wgmma") == 0;
    const int halves = wgmma && wide ? 2 : 1; /* of all columns, or of V's alone: */
    const int slices = halves > 1 || (!backward && problem->head_dim_v > FK_NARROW_HEAD_DIM) ? 2 : 1;
    const bool shared = forward_wgmma && wide && takes_values_from_keys(problem);
    const double q_bytes = element * rows_q * problem->head_dim / halves;
    const double k_bytes = element * plan->block_n * problem->head_dim / halves;
    const double dout_bytes = element * plan->block_m * problem->head_dim_v / halves;
    const double v_bytes = element * plan->block_n * problem->head_dim_v / slices;
    cli_bytes(q_bytes, q), cli_bytes(dout_bytes, dout), cli_bytes(k_bytes, k), cli_bytes(v_bytes, v);
    double total;
    if (backward) {
        if (wgmma)
            printf("%sblock_n %d, block_m %d: %d warpgroups on %d keys, and one that loads; tiles of %d queries\n",
                   indent, plan->block_n, plan->block_m, plan->warps / 4 - 1, plan->block_n, plan->block_m);
        else
            printf("%sblock_n %d, block_m %d: %d warps on %d keys; tiles of %d queries\n", indent, plan->block_n,
                   plan->block_m, plan->warps, plan->block_n, plan->block_m);
        snprintf(resident, sizeof resident, "K %s + V %s + ", k, v);
        snprintf(walked, sizeof walked, "Q %s + dO %s", q, dout);
        if (plan->head_rows)
            printf("%sa CTA has all keys of a head, and sums up dQ of at most %d queries in SRAM: one kernel\n", indent,
                   plan->head_rows);
        total = k_bytes + v_bytes + plan->stages * (q_bytes + dout_bytes);
    } else if (wgmma) {
        static const char *const teams[] = {"", "", "two teams of ", "three teams of ", "four teams of "};
        const char *times = rows_q < plan->block_m ? "in each of two CTAs " : teams[most_rows / rows_q];
        printf("%sblock_m %d, block_n %d: %s%d warpgroup%s of 64 query rows%s, and one that loads; tiles of %d keys\n",
               indent, plan->block_m, plan->block_n, times, rows_q / 64, rows_q == 64 ? "" : "s",
               plan->turns ? " that multiply in turns" : "", plan->block_n);
        const double sent = halves > 1 ? 3.0 * rows_q * plan->block_n : 0; /* of half of the keys scores, and weights */
        int used = snprintf(resident, sizeof resident, "%d buffer%s x Q %s%s + ", plan->q_stages,
                            plan->q_stages == 1 ? "" : "s", q, plan->q_in_regs ? " on its way to registers" : "");
        if (halves > 1)
            used += snprintf(resident + used, sizeof resident - (size_t)used, "sent %s + ", cli_bytes(sent, smem));
        if (shared) {
            snprintf(walked, sizeof walked, "K %s, which has V", k);
        } else if (plan->k_stages == plan->stages) {
            snprintf(walked, sizeof walked, "K %s + V %s", k, v);
        } else {
            snprintf(resident + used, sizeof resident - (size_t)used, "%d x K %s + ", plan->k_stages, k);
            snprintf(walked, sizeof walked, "V %s", v);
        }
        total = plan->q_stages * q_bytes + plan->k_stages * k_bytes + (shared ? 0 : plan->stages * v_bytes) + sent;
    } else {
        printf("%sblock_m %d, block_n %d: %d warps of %d query rows; tiles of %d keys\n", indent, plan->block_m,
               plan->block_n, plan->warps, plan->block_m / plan->warps, plan->block_n);
        snprintf(resident, sizeof resident, plan->q_in_regs ? "Q %s in registers; " : "Q %s + ", q);
        snprintf(walked, sizeof walked, "K %s + V %s", k, v);
        total = (plan->q_in_regs ? 0 : q_bytes) + plan->stages * (k_bytes + v_bytes);
    }
    if (problem->dtype == FK_FP32 && plan->k_stages)
        printf("%stiles lie in SRAM as three parts of bf16 for each float%s\n", indent,
               backward ? ", the next one in floats beside them" : "");
    print_sram(indent, resident, walked, plan->stages, total, plan, gpu);
    const int ctas = plan->ctas_per_sm, threads = ctas * plan->warps * 32;
    printf("%s%d block%s per SM: %s of its %s of SRAM, and %d threads with about %d of its %d registers each%s\n",
           indent, ctas, ctas == 1 ? "" : "s", cli_bytes(ctas * (plan->smem_bytes + (double)gpu->smem_reserved), smem),
           cli_bytes(gpu->smem_per_sm, sram), threads, plan->registers, gpu->registers_per_sm,
           wgmma ? ", fewer for those that load" : "");
    if (backward && wide)
        printf("%stwo CTAs share a tile of keys: each %s\n", indent,
               halves > 1 ? "has half of the columns, weighs half of the queries, and sends the other sums of scores "
                            "and of dP, P and dS"
                          : "multiplies Q K^T and dO V^T, and has half of the gradients' columns");
    else if (halves > 1)
        printf(
            "%stwo CTAs share a tile of queries: each has half of the columns, weighs half of the keys, and sends the "
            "other scores and weights\n",
            indent);
    else if (slices > 1)
        printf("%stwo CTAs share a tile of queries: each multiplies Q K^T, and has half of V's columns\n", indent);
    if (plan->dq_kernel)
        printf("%sdq comes from a kernel of its own, with tiles of its own; the model's times are of both\n", indent);
    if (problem->kv_e4m3 && wgmma)
        printf("%sa kernel before makes 16 bits of K and V in the workspace, %d bytes for each key of a kv head\n",
               indent, 2 * (problem->head_dim + problem->head_dim_v));
}

static bool same_tiles(const fk_plan_info *a, const fk_plan_info *b) {
    return a->block_m == b->block_m && a->block_n == b->block_n && a->k_stages == b->k_stages;
}

void cli_print_choice(const char *indent, const fk_plan_info *plans, size_t count, const fk_plan_info *taken,
                      const fk_shape *shape) {
    char time[CLI_QUANTITY], where[128];
    const fk_plan_info *best = NULL, *other = NULL;
    size_t legal = 0;
    for (size_t i = 0; i < count; i++) {
        if (!plans[i].legal) continue;
        legal++;
        if (plans[i].chosen) best = &plans[i];
        if (!other && !same_tiles(&plans[i], taken)) other = &plans[i];
    }
    printf("%smodelled %s at %s, bound by %s", indent, cli_time_us(taken->model_us, time), cli_shape_text(shape, where),
           taken->bound);
    if (taken->chosen >= FK_CHOSEN_BY_RECORD)
        printf("\n%s%s\n", indent, taken->reason);
    else if (taken->chosen == FK_CHOSEN_BY_CALLER)
        printf("; it was asked for\n");
    else if (best && best->model_us < taken->model_us)
        printf("; what is modelled faster spills registers%s\n",
               taken->sm == 90 ? ", or has its wgmma serialised" : "");
    else if (taken->reason[0])
        printf("; %s\n", taken->reason);
    else
        printf("; the best of %zu tilings that fit%s\n", legal, legal < count ? ", others do not" : "");
    if (other)
        printf("%sbest with other tiles: block_m %d, block_n %d at %s, %.2fx\n", indent, other->block_m, other->block_n,
               cli_time_us(other->model_us, time), other->model_us / taken->model_us);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_median(double *values, size_t count) {
    qsort(values, count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

fk_status cli_print_plan_for(const fk_problem *problem, const char *gpu, const fk_plan_options *how,
                             const fk_plan_info *chosen) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    char line[FK_MAX_PLAN], of_list[FK_MAX_PLAN];
    fk_context *context;
    fk_plan_info plan;
    if (how->shape.batch == 0) return FK_OK;
    options.device = "emu", options.plan_for = gpu; /* without a GPU, but with the user's records of it */
    options.planning = *how, options.planning.shape = (fk_shape){0};
    options.cache_mode = FK_CACHE_READ_ONLY, options.packs = "";
    fk_status status = fk_context_create(&options, &context);
    if (status != FK_OK) return status;
    status = fk_plan_for(context, problem, &how->shape, &plan);
    if (status == FK_OK) status = fk_plan_spell(&plan, line, sizeof line);
    if (status == FK_OK) status = fk_plan_spell(chosen, of_list, sizeof of_list);
    if (status == FK_OK && strcmp(line, of_list) != 0)
        printf("  fk_kernel_create_for, and Python, take for these sizes: %s\n", line);
    fk_context_destroy(context);
    return status;
}
