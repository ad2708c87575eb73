/* run: the main job. Q, K and V in; the kernel planned, found or compiled, launched; O and lse out. */
#include "arrays.h"
#include "check.h"
#include "cli.h"
#include "tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct run {
    /* what is asked */
    const char *q, *k, *v, *o, *lse, *device, *plan_for, *cache_dir;
    cli_planning planning;
    option_ints random;
    option_texts array;
    int layout, dtype, out_dtype;
    bool check, no_cache, json;
    int64_t repeat;
    double softmax_scale;
    fk_problem problem;
    char spelling[FK_MAX_SPELLING];
    /* what is held */
    tensors host;
    arrays arrays;
    fk_context *context;
    fk_kernel *kernel;
    void *dq, *dk, *dv, *dout, *dlse, *workspace;
    /* what is found */
    fk_device_info runs, planned;
    fk_kernel_info info;
    double median_ms, tflops; /* NaN until timed */
    check result;             /* ratio is NaN until checked */
} run;

/* ---- input -------------------------------------------------------------------------------------------- */

static bool same_file(const char *a, const char *b) {
    struct stat x, y;
    if (!a || !b) return false;
    if (strcmp(a, b) == 0) return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino && S_ISREG(x.st_mode);
}

static cli_exit check_usage(const run *r) {
    const char *const inputs[] = {r->q, r->k, r->v};
    const bool files = r->q || r->k || r->v;
    if (files && r->random.count) return cli_fail(CLI_USAGE, "run: --random excludes --q, --k and --v");
    if (!r->random.count && !(r->q && r->k && r->v))
        return cli_fail(CLI_USAGE, "run: %s is missing; give --q, --k and --v, or --random %s",
                        !r->q   ? "--q"
                        : !r->k ? "--k"
                                : "--v",
                        "B,HQ,HKV,SQ,SK");
    for (int i = 0; i < 5 && r->random.count; i++)
        if (r->random.value[i] < 1)
            return cli_fail(CLI_USAGE, "run: --random: number %d is 0; at least 1 is needed", i + 1);
    if (same_file(r->o, r->lse)) return cli_fail(CLI_USAGE, "run: -o and --lse name one file, %s", r->o);
    for (int i = 0; i < 3; i++)
        if (same_file(r->o, inputs[i]) || same_file(r->lse, inputs[i]))
            return cli_fail(CLI_USAGE, "run: an output would overwrite the input %s", inputs[i]);
    return CLI_OK;
}

static cli_exit read_problem(run *r, char *const *words, int num_words) {
    const cli_exit code = cli_problem(words, num_words, &r->problem, r->spelling);
    if (code != CLI_OK || r->dtype < 0) return code;
    r->problem.dtype = r->dtype ? FK_BF16 : FK_FP16;
    const fk_status status = fk_problem_spell(&r->problem, r->spelling, sizeof r->spelling);
    return status == FK_OK ? CLI_OK : cli_fail_status(status);
}

static cli_exit load(run *r) {
    cli_exit code = r->random.count ? tensors_draw(&r->random, &r->problem, r->layout, &r->host)
                                          : tensors_read(r->q, r->k, r->v, &r->problem, r->layout, &r->host);
    if (code != CLI_OK) return code;
    r->host.args.softmax_scale = (float)r->softmax_scale;
    const uint64_t seed = r->random.count > 5 ? (uint64_t)r->random.value[5] : 0;
    return arrays_load(&r->array, &r->problem, r->random.count > 0, seed, &r->host.args, &r->arrays);
}

/* ---- device ------------------------------------------------------------------------------------------- */

static fk_status open_kernel(run *r) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = r->device;
    options.plan_for = r->plan_for;
    options.cache_dir = r->cache_dir;
    options.cache_mode = r->no_cache ? FK_CACHE_OFF : FK_CACHE_NORMAL;
    options.planning = cli_plan_options(&r->planning);
    fk_status status = fk_context_create(&options, &r->context);
    if (status == FK_OK) status = fk_context_devices(r->context, &r->runs, &r->planned);
    if (status != FK_OK) return status;
    cli_progress("planning and compiling %.60s for %s", r->spelling, r->planned.name);
    status = fk_kernel_create(r->context, &r->problem, &r->kernel);
    if (status == FK_OK) status = fk_kernel_describe(r->kernel, &r->info);
    cli_progress("%s", "");
    return status;
}

/* O goes over too: it is NaN there, so an element that the kernel leaves out shows. */
static fk_status upload(run *r, fk_args *args) {
    const struct {
        void **device;
        const void *host;
        size_t bytes;
    } parts[] = {{&r->dq, r->host.q, r->host.q_bytes},
                 {&r->dk, r->host.k, r->host.k_bytes},
                 {&r->dv, r->host.v, r->host.v_bytes},
                 {&r->dout, r->host.o, r->host.o_bytes},
                 {&r->dlse, r->host.lse, r->host.lse_bytes}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        fk_status status = fk_device_malloc(r->context, parts[i].bytes, parts[i].device);
        if (status == FK_OK) status = fk_copy_to_device(r->context, *parts[i].device, parts[i].host, parts[i].bytes);
        if (status != FK_OK) return status;
    }
    *args = r->host.args;
    args->q = r->dq;
    args->k = r->dk;
    args->v = r->dv;
    args->o = r->dout;
    args->lse = r->dlse;
    const fk_status status = arrays_upload(&r->arrays, r->context, args);
    if (status != FK_OK) return status;
    const size_t bytes = fk_kernel_workspace(r->kernel, args);
    return bytes ? fk_device_malloc(r->context, bytes, &r->workspace) : FK_OK;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static fk_status launch(const run *r, const fk_args *args, int64_t times, double *ms) {
    const double start = now_ms();
    fk_status status = FK_OK;
    for (int64_t i = 0; i < times && status == FK_OK; i++)
        status = fk_execute(r->kernel, args, r->workspace, fk_kernel_workspace(r->kernel, args), NULL);
    if (status == FK_OK) status = fk_synchronize(r->context, NULL);
    *ms = (now_ms() - start) / (double)times;
    return status;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The public interface has no device timer, so launches are timed in batches that dwarf the host's clock and call. */
static fk_status measure(run *r, const fk_args *args) {
    const double batch_ms = 5;
    double *ms = malloc((size_t)r->repeat * sizeof *ms), one = 0;
    if (!ms) return FK_OK; /* stays untimed */
    fk_status status = launch(r, args, 1, &one);
    int64_t times = 1;
    if (!fk_context_is_emulator(r->context) && one < batch_ms)
        times = 1 + (int64_t)(batch_ms / (one > 1e-3 ? one : 1e-3));
    for (int64_t i = 0; i < r->repeat && status == FK_OK; i++) {
        cli_progress("timing %lld of %lld", (long long)(i + 1), (long long)r->repeat);
        status = launch(r, args, times, &ms[i]);
    }
    cli_progress("%s", "");
    if (status == FK_OK) {
        qsort(ms, (size_t)r->repeat, sizeof *ms, by_value);
        r->median_ms = ms[r->repeat / 2];
    }
    free(ms);
    return status;
}

/* FLOP that the mask leaves: full tiles, and half of the partial ones. */
static fk_status count_tflops(run *r) {
    const fk_args *a = &r->host.args;
    fk_plan_options options = cli_plan_options(&r->planning);
    options.shape = (fk_shape){a->batch, a->num_heads_q, a->num_heads_kv, a->seqlen_q, a->seqlen_k};
    fk_tile_counts tiles;
    const fk_status status = fk_plan_tiles(&r->problem, &r->info.plan, &options, &tiles);
    if (status != FK_OK) return status;
    const double all = (double)tiles.empty + (double)tiles.partial + (double)tiles.full;
    const double visible = all > 0 ? ((double)tiles.full + 0.5 * (double)tiles.partial) / all : 0;
    const double flop = 2.0 * (double)a->batch * (double)a->num_heads_q * (double)a->seqlen_q * (double)a->seqlen_k *
                        (r->problem.head_dim + r->problem.head_dim_v);
    r->tflops = flop * visible / (r->median_ms * 1e9);
    return FK_OK;
}

static fk_status execute(run *r) {
    fk_args args;
    double ms = 0;
    fk_status status = upload(r, &args);
    cli_progress("running on %s", r->runs.name);
    if (status == FK_OK) status = launch(r, &args, 1, &ms);
    cli_progress("%s", "");
    if (status == FK_OK) status = fk_copy_from_device(r->context, r->host.o, r->dout, r->host.o_bytes);
    if (status == FK_OK) status = fk_copy_from_device(r->context, r->host.lse, r->dlse, r->host.lse_bytes);
    if (status == FK_OK && r->repeat > 0) status = measure(r, &args);
    if (status == FK_OK && r->repeat > 0) status = count_tflops(r);
    return status;
}

static void close_all(run *r) {
    void *const memory[] = {r->dq, r->dk, r->dv, r->dout, r->dlse, r->workspace};
    for (size_t i = 0; r->context && i < sizeof memory / sizeof memory[0]; i++)
        fk_device_free(r->context, memory[i]);
    arrays_free(&r->arrays, r->context);
    fk_kernel_destroy(r->kernel);
    fk_context_destroy(r->context);
    tensors_free(&r->host);
}

/* ---- the story ---------------------------------------------------------------------------------------- */

static void print_store(const run *r) {
    struct stat st;
    if (r->info.from_store)
        printf("Store     %s\n", r->info.store_path);
    else if (r->no_cache)
        printf("Store     off\n");
    else if (r->info.store_path[0] && stat(r->info.store_path, &st) == 0)
        printf("Store     written (%s before): %s\n", r->info.store_note, r->info.store_path);
    else
        printf("Store     nothing written: %s\n", r->info.store_note);
}

static void print_kernel(const run *r) {
    const fk_image_info *i = &r->info.image;
    char smem[CLI_QUANTITY], bytes[CLI_QUANTITY];
    if (r->info.from_store && r->info.lookup_ms > 0)
        printf("Kernel    from the store in %.1f ms, %.0f times faster than the %.0f ms that compiling took\n",
               r->info.lookup_ms, i->compile_ms / r->info.lookup_ms, i->compile_ms);
    else
        printf("Kernel    compiled in %.0f ms by %s\n", i->compile_ms, i->compiler);
    printf("          %s: ", i->target);
    if (i->registers > 0) printf("%d registers, %d bytes spilled, ", i->registers, i->spill_bytes);
    printf("%s shared memory, %d threads a block, image %s\n", cli_bytes(i->smem_dynamic + i->smem_static, smem),
           i->threads, cli_bytes((double)i->image_bytes, bytes));
    print_store(r);
}

static void print_story(const run *r) {
    const fk_args *a = &r->host.args;
    printf("Problem   %s\n", r->spelling);
    printf("          batch %lld, heads %lld (kv %lld), seqlen_q %lld, seqlen_k %lld, softmax_scale %g\n",
           (long long)a->batch, (long long)a->num_heads_q, (long long)a->num_heads_kv, (long long)a->seqlen_q,
           (long long)a->seqlen_k, r->softmax_scale > 0 ? r->softmax_scale : 1 / sqrt(r->problem.head_dim));
    printf("Device    %s", fk_context_is_emulator(r->context) ? "emulator on the CPU" : r->runs.name);
    printf(", planned for %s\n", r->planned.name);
    printf("Plan      family %s with sm_%d primitives\n", r->info.plan.family, r->info.plan.sm);
    cli_print_plan("          ", &r->problem, &r->info.plan, &r->planned);
    print_kernel(r);
}

static void print_timing(const run *r) {
    if (isnan(r->median_ms)) return;
    if (fk_context_is_emulator(r->context))
        printf("Time      %.1f ms on the emulator: it says nothing about any GPU\n", r->median_ms);
    else
        printf("Time      %.4f ms, %.1f TFLOP/s (median of %lld; the FLOP that the mask leaves)\n", r->median_ms,
               r->tflops, (long long)r->repeat);
}

static bool print_json(const run *r) {
    static const table_column columns[] = {
        {NULL, "spelling", false},
        {NULL, "device", false},
        {NULL, "planned_for", false},
        {NULL, "target", false},
        {NULL, "store_path", false},
        {NULL, "store_note", false},
        {NULL, "key", false},
        {NULL, "from_store", false},
        {NULL, "emulator", false},
        {NULL, "block_m", true},
        {NULL, "block_n", true},
        {NULL, "warps", true},
        {NULL, "stages", true},
        {NULL, "registers", true},
        {NULL, "spill_bytes", true},
        {NULL, "smem_bytes", true},
        {NULL, "lookup_ms", true},
        {NULL, "load_ms", true},
        {NULL, "compile_ms", true},
        {NULL, "median_ms", true},
        {NULL, "tflops", true},
        {NULL, "max_abs", true},
        {NULL, "max_abs_eager", true},
        {NULL, "frobenius", true},
        {NULL, "frobenius_eager", true},
        {NULL, "lse_max_abs", true},
        {NULL, "lse_max_abs_eager", true},
        {NULL, "not_finite", true},
        {NULL, "ratio", true},
    };
    const fk_plan_info *p = &r->info.plan;
    const fk_image_info *i = &r->info.image;
    const check *c = &r->result;
    const char *const texts[] = {r->spelling,        r->runs.name,       r->planned.name, i->target,
                                 r->info.store_path, r->info.store_note, i->key};
    const double numbers[] = {
        p->block_m,         p->block_n,      p->warps,          p->stages,        i->registers,
        i->spill_bytes,     i->smem_dynamic, r->info.lookup_ms, r->info.load_ms,  i->compile_ms,
        r->median_ms,       r->tflops,       c->max_abs.kernel, c->max_abs.eager, c->frobenius.kernel,
        c->frobenius.eager, c->lse.kernel,   c->lse.eager,      (double)c->wrong, c->ratio};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++)
        table_text(t, texts[n]);
    table_bool(t, r->info.from_store, "");
    table_bool(t, fk_context_is_emulator(r->context), "");
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++)
        table_number(t, r->check || n < 12 ? numbers[n] : (double)NAN, "%s", "");
    const bool good = table_print_json_object(t, stdout);
    table_destroy(t);
    return good;
}

/* ---- the verb ----------------------------------------------------------------------------------------- */

static cli_exit perform(run *r) {
    cli_exit code = load(r);
    if (code != CLI_OK) return code;
    fk_status status = open_kernel(r);
    if (status != FK_OK) return cli_fail_status(status);
    if (!r->json) print_story(r);
    fflush(stdout);
    status = execute(r);
    if (status != FK_OK) return cli_fail_status(status);
    if (!r->json) print_timing(r);
    code = tensors_write(&r->host, &r->problem, r->o, r->lse, r->out_dtype == 1);
    if (code == CLI_OK && !r->json && (r->o || r->lse))
        printf("Wrote     %s%s%s\n", r->o ? r->o : "", r->o && r->lse ? ", " : "", r->lse ? r->lse : "");
    if (code == CLI_OK && r->check) code = check_result(&r->host, &r->problem, &r->result);
    if (code != CLI_OK) return code;
    if (r->check && !r->json) check_print(&r->result);
    if (r->json && !print_json(r)) return cli_fail(CLI_FAILED, "run: the result cannot be printed");
    if (r->check && !(r->result.ratio <= CHECK_MAX_RATIO))
        return cli_fail(CLI_CHECK_FAILED, "check: the error is %.3g times that of the eager reference; %g is the limit",
                        r->result.ratio, CHECK_MAX_RATIO);
    return CLI_OK;
}

static cli_exit run_main(const cli_verb *verb, int argc, char **argv) {
    static const char *const layouts[] = {"bshd", "bhsd", NULL}, *const dtypes[] = {"fp16", "bf16", NULL},
                             *const out_dtypes[] = {"same", "f32", NULL};
    run r = {.device = "auto", .planning = CLI_PLANNING_INIT, .random = {5, 6, 0, {0}}, .dtype = -1};
    r.median_ms = r.tflops = r.result.ratio = NAN;
    const option options[] = {
        option_text("--q", "Q.npy", &r.q, "[batch, seqlen_q, heads_q, head_dim] of <f2, <f4, or <u2 (bfloat16 bits)"),
        option_text("--k", "K.npy", &r.k, "[batch, seqlen_k, heads_kv, head_dim]"),
        option_text("--v", "V.npy", &r.v, "[batch, seqlen_k, heads_kv, head_dim_v]"),
        option_numbers("--random", "B,HQ,HKV,SQ,SK[,SEED]", &r.random, 0, FK_MAX_SEQLEN,
                       "standard normal q, k and v of these sizes instead"),
        option_list("--array", "NAME=FILE.npy", &r.array,
                    "a declared array, <f4 or <i4; may be given for each; with --random those of\nfloats are drawn"),
        option_text("-o", "O.npy", &r.o, "write the output: <f2, or <u2 for bf16"),
        option_text("--lse", "LSE.npy", &r.lse, "write log-sum-exp: [batch, heads_q, seqlen_q] of <f4, natural log"),
        option_choice("--out-dtype", "TYPE", &r.out_dtype, out_dtypes, "of O.npy: same (default) or f32"),
        option_choice("--layout", "LAYOUT", &r.layout, layouts, "of all tensors: bshd (default) or bhsd"),
        option_choice("--dtype", "TYPE", &r.dtype, dtypes, "fp16 or bf16, instead of the spelling's"),
        option_real("--softmax-scale", "X", &r.softmax_scale, 0, 3e38, "default, and 0: 1 / sqrt(head_dim)"),
        option_text("--device", "DEVICE", &r.device, "cuda:N, emu, or auto (default): the first GPU, else emu"),
        option_text("--plan-for", "KEY", &r.plan_for, "plan and emit for that GPU, run on DEVICE"),
        option_flag("--check", &r.check, "compare with float64 and an eager reference (CPU, O(N^2))"),
        option_int("--repeat", "N", &r.repeat, 0, 100000, "time N batches of launches, tell the median"),
        option_text("--cache-dir", "DIR", &r.cache_dir, "the store (default: see flashkiln cache --help)"),
        option_flag("--no-cache", &r.no_cache, "neither read nor write the store"),
        cli_shape_option(&r.planning),
        cli_rule_option(&r.planning),
        cli_template_option(&r.planning),
        cli_json_option(&r.json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = check_usage(&r);
    if (code == CLI_OK) code = read_problem(&r, argv, argc);
    if (code == CLI_OK) code = perform(&r);
    close_all(&r);
    return code;
}

const cli_verb verb_run = {"run", "SPELLING --q Q.npy --k K.npy --v V.npy [-o O.npy]",
                           "plan, compile or find, launch, check and write",
                           "<f4 input is rounded to the problem's dtype. One line reproduces a failure:\n"
                           "  flashkiln run \"fwd fp16 d64 causal\" --random 2,8,8,100,200,7 --check --device emu\n",
                           run_main};
