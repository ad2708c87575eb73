/* run: the main job. Q, K and V in; the kernel planned, found or compiled, launched; O and lse out. For the backward
 * pass dO in, too, and dQ, dK and dV out: the forward pass runs first, for O and lse. */
#include "run.h"
#include "half.h"
#include "output.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- input -------------------------------------------------------------------------------------------- */

static cli_exit check_inputs(const run *r, int count) {
    for (int i = 0; i < NUM_TENSORS; i++) {
        if (i >= count && r->path[i])
            return cli_fail(CLI_USAGE, "run: %s belongs to bwd; the spelling is %s", run_tensor_option[i], r->spelling);
        if (!run_is_input(i)) continue;
        if (r->path[i] && r->random.count) return cli_fail(CLI_USAGE, "run: --random excludes --q, --k, --v and --do");
        if (i < count && !r->path[i] && !r->random.count)
            return cli_fail(CLI_USAGE, "run: %s is missing; give --q, --k%s, or --random %s", run_tensor_option[i],
                            count > TENSOR_DOUT ? ", --v and --do" : " and --v", "B,HQ,HKV,SQ,SK");
    }
    for (int i = 0; i < 5 && r->random.count; i++)
        if (r->random.value[i] < 1)
            return cli_fail(CLI_USAGE, "run: --random: number %d is 0; at least 1 is needed", i + 1);
    return CLI_OK;
}

/* No option is passed over in silence. */
static cli_exit check_words(const run *r) {
    const fk_problem *p = &r->problem;
    const bool e4m3 = p->dtype == FK_E4M3, kv_e4m3 = kv_dtype(p) == FK_E4M3;
    const struct {
        const char *name, *word;
        bool given, spelled;
    } options[] = {{"--cu-seqlens-q", "packed", r->lengths[CU_SEQLENS_Q], p->packed},
                   {"--cu-seqlens-k", "packed", r->lengths[CU_SEQLENS_K], p->packed},
                   {"--seqused-k", "seqused_k", r->lengths[SEQUSED_K], p->seqused_k},
                   {"--num-splits", "split", r->num_splits >= 0, p->split},
                   {"--page-size", "paged", r->page_size, p->paged},
                   {"--q-descale", "e4m3", r->descale[0] >= 0, e4m3},
                   {"--k-descale", "e4m3 or kv_e4m3", r->descale[1] >= 0, kv_e4m3},
                   {"--v-descale", "e4m3 or kv_e4m3", r->descale[2] >= 0, kv_e4m3},
                   {"--dropout-p", "dropout", r->dropout.p >= 0, p->dropout},
                   {"--dropout-seed", "dropout", r->dropout.seed >= 0, p->dropout},
                   {"--dropout-offset", "dropout", r->dropout.offset >= 0, p->dropout},
                   {"--keep-mask", "dropout", r->dropout.keep_mask, p->dropout}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !options[i].spelled)
            return cli_fail(CLI_USAGE, "run: %s belongs to %s, which is not spelled", options[i].name, options[i].word);
    if (r->softmax_scale > 0 && !((float)r->softmax_scale > 0))
        return cli_fail(CLI_USAGE, "run: --softmax-scale is %g; the smallest float, %g, is the limit", r->softmax_scale,
                        (double)FLT_TRUE_MIN);
    return CLI_OK;
}

/* A pack that is named must be one; without Lua the spelling is read by its words. */
static cli_exit open_packs(const char *paths) {
    char path[4096];
    for (const char *at = paths; run_next_pack(&at, path);) {
        const fk_status status = fk_context_load_pack(NULL, path);
        if (status != FK_OK) return cli_fail_status(status);
    }
    return CLI_OK;
}

static cli_exit read_problem(run *r, char *const *words, int num_words) {
    const cli_exit code = cli_problem(words, num_words, &r->problem, r->spelling);
    if (code != CLI_OK || r->dtype < 0) return code;
    r->problem.dtype = r->dtype; /* in the order of fk_dtype */
    const fk_status status = fk_problem_spell(&r->problem, r->spelling, sizeof r->spelling);
    return status == FK_OK ? CLI_OK : cli_fail_status(status);
}

/* One number for all heads of a tensor: strides of 0. */
static void point_descales(run *r, const float *at, fk_args *args) {
    const float **const to[3] = {&args->q_descale, &args->k_descale, &args->v_descale};
    for (int i = 0; i < 3; i++) {
        r->host_descale[i] = (float)r->descale[i];
        *to[i] = r->descale[i] < 0 ? NULL : at + i;
    }
}

static cli_exit load(run *r) {
    fk_args lengths = FK_ARGS_INIT;
    cli_exit code =
        sequences_load(r->lengths, &r->problem, r->random.count ? &r->random : NULL, &lengths, &r->sequences);
    if (code != CLI_OK) return code;
    fk_problem rows = r->problem; /* as they come; pages are cut below */
    rows.paged = 0;
    code = r->random.count ? tensors_draw(&r->random, &rows, r->layout, &lengths, &r->host)
                           : tensors_read(r->path, &rows, r->layout, &lengths, &r->host);
    if (code != CLI_OK) return code;
    const int64_t used = r->sequences.count[SEQUSED_K], batch = r->host.args.batch;
    if (r->problem.seqused_k && used != batch)
        return cli_fail(CLI_BAD_INPUT, "--seqused-k has %lld numbers; batch, %lld, are needed", (long long)used,
                        (long long)batch);
    r->host.args.softmax_scale = (float)r->softmax_scale;
    point_descales(r, r->host_descale, &r->host.args);
    dropout_set(&r->dropout, &r->problem, &r->host.args);
    r->host.args.num_splits = r->num_splits < 0 ? 0 : (int32_t)r->num_splits;
    const uint64_t seed = r->random.count > 5 ? (uint64_t)r->random.value[5] : 0;
    code = pages_cut(&r->host, &r->problem, r->page_size, seed, &r->pages);
    if (code != CLI_OK) return code;
    code = arrays_load(&r->array, &r->problem, r->random.count > 0, seed, &r->host.args, &r->arrays);
    return code == CLI_OK ? grads_prepare(&r->grad, &r->problem, &r->arrays, &r->host.args, &r->grads) : code;
}

/* ---- device ------------------------------------------------------------------------------------------- */

static fk_context_options context_options(const run *r) {
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = r->device;
    options.plan_for = r->plan_for;
    options.cache_dir = r->cache_dir;
    options.cache_mode = r->no_cache ? FK_CACHE_OFF : r->cache_mode < 0 ? 0 : r->cache_mode;
    options.packs = r->packs;
    options.planning = cli_plan_options(&r->planning);
    return options;
}

static fk_status open_kernel(run *r) {
    const fk_context_options options = context_options(r);
    fk_status status = fk_context_create(&options, &r->context);
    if (status == FK_OK) status = fk_context_devices(r->context, &r->runs, &r->planned);
    if (status != FK_OK) return status;
    cli_progress("planning and compiling %.60s for %s", r->spelling, r->planned.name);
    status = fk_kernel_create(r->context, &r->problem, &r->kernel);
    if (status == FK_OK) status = fk_kernel_describe(r->kernel, &r->info);
    cli_progress("%s", "");
    return status;
}

/* Results go over too: they are NaN there, so an element that the kernel leaves out shows. */
static fk_status upload(run *r, fk_args *args) {
    for (int i = 0; i < r->host.count; i++) {
        fk_status status = fk_device_malloc(r->context, r->host.bytes[i], &r->device_data[i]);
        if (status == FK_OK)
            status = fk_copy_to_device(r->context, r->device_data[i], r->host.data[i], r->host.bytes[i]);
        if (status != FK_OK) return status;
    }
    *args = r->host.args;
    tensors_point(args, r->device_data, r->host.count);
    fk_status status = arrays_upload(&r->arrays, r->context, args);
    if (status == FK_OK) status = grads_upload(&r->grads, r->context, args);
    if (status == FK_OK) status = sequences_upload(&r->sequences, r->context, args);
    if (status == FK_OK) status = pages_upload(&r->pages, r->context, args);
    if (status != FK_OK) return status;
    status = fk_device_malloc(r->context, sizeof r->host_descale, &r->device_descale);
    if (status == FK_OK)
        status = fk_copy_to_device(r->context, r->device_descale, r->host_descale, sizeof r->host_descale);
    if (status != FK_OK) return status;
    point_descales(r, r->device_descale, args);
    r->workspace_bytes = fk_kernel_workspace(r->kernel, args);
    return r->workspace_bytes ? fk_device_malloc(r->context, r->workspace_bytes, &r->workspace) : FK_OK;
}

static fk_status download(run *r) {
    fk_status status = FK_OK;
    for (int i = 0; i < r->host.count && status == FK_OK; i++)
        if (!run_is_input(i))
            status = fk_copy_from_device(r->context, r->host.data[i], r->device_data[i], r->host.bytes[i]);
    return status == FK_OK ? grads_download(&r->grads, r->context) : status;
}

/* O and lse of the backward pass. A plan that was asked for is not meant for this one: it has a context of its own. */
static fk_status run_forward(run *r, const fk_args *args) {
    fk_problem forward = r->problem;
    fk_context_options options = context_options(r);
    fk_context *context = NULL;
    fk_kernel *kernel = NULL;
    forward.op = FK_FORWARD;
    forward.deterministic = forward.grad = 0;
    options.planning.plan = NULL;
    cli_progress("the forward pass, for o and lse");
    fk_status status = fk_context_create(&options, &context);
    if (status == FK_OK) status = fk_kernel_create(context, &forward, &kernel);
    void *workspace = NULL;
    const size_t bytes = status == FK_OK ? fk_kernel_workspace(kernel, args) : 0;
    if (bytes) status = fk_device_malloc(r->context, bytes, &workspace);
    if (status == FK_OK) status = fk_execute(kernel, args, workspace, bytes, NULL);
    if (status == FK_OK) status = fk_synchronize(r->context, NULL);
    fk_device_free(r->context, workspace);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return status;
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
        status = fk_execute(r->kernel, args, r->workspace, r->workspace_bytes, NULL);
    if (status == FK_OK) status = fk_synchronize(r->context, NULL);
    *ms = (now_ms() - start) / (double)times;
    return status;
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
    if (status == FK_OK) r->median_ms = cli_median(ms, (size_t)r->repeat);
    free(ms);
    return status;
}

/* Adds the FLOP that the mask leaves: full tiles, and half of the partial ones. */
static fk_status add_flop(const run *r, int64_t batch, int64_t seqlen_q, int64_t seqlen_k, double *sum) {
    const fk_args *a = &r->host.args;
    fk_plan_options options = cli_plan_options(&r->planning);
    options.shape = (fk_shape){batch, a->num_heads_q, a->num_heads_kv, seqlen_q, seqlen_k};
    if (seqlen_q == 0 || seqlen_k == 0) return FK_OK;
    fk_tile_counts tiles;
    const fk_status status = fk_plan_tiles(&r->problem, &r->info.plan, &options, &tiles);
    if (status != FK_OK) return status;
    const double all = (double)tiles.empty + (double)tiles.partial + (double)tiles.full;
    const double visible = all > 0 ? ((double)tiles.full + 0.5 * (double)tiles.partial) / all : 0;
    const int d = r->problem.head_dim, dv = r->problem.head_dim_v;
    const double flop = 2.0 * (double)batch * (double)a->num_heads_q * (double)seqlen_q * (double)seqlen_k *
                        (r->problem.op == FK_BACKWARD ? 3 * d + 2 * dv : d + dv);
    *sum += flop * visible;
    return FK_OK;
}

static fk_status count_tflops(run *r) {
    const fk_args *a = &r->host.args;
    const int32_t *cu_q = a->cu_seqlens_q, *cu_k = a->cu_seqlens_k;
    const bool differ = r->problem.packed || r->problem.seqused_k;
    double flop = 0;
    fk_status status = differ ? FK_OK : add_flop(r, a->batch, a->seqlen_q, a->seqlen_k, &flop);
    for (int64_t b = 0; differ && b < a->batch && status == FK_OK; b++) {
        const int64_t keys = cu_k ? cu_k[b + 1] - cu_k[b] : a->seqlen_k;
        const int64_t asked = r->problem.seqused_k ? a->seqused_k[b] : keys;
        const int64_t used = asked < 0 ? 0 : asked < keys ? asked : keys;
        status = add_flop(r, 1, cu_q ? cu_q[b + 1] - cu_q[b] : a->seqlen_q, used, &flop);
    }
    r->tflops = flop / (r->median_ms * 1e9);
    return status;
}

static fk_status execute(run *r) {
    fk_args args;
    double ms = 0;
    fk_status status = upload(r, &args);
    cli_progress("running on %s", r->runs.name);
    if (status == FK_OK && r->problem.op == FK_BACKWARD) status = run_forward(r, &args);
    if (status == FK_OK) status = launch(r, &args, 1, &ms);
    cli_progress("%s", "");
    if (status == FK_OK) status = download(r);
    if (status == FK_OK && r->repeat > 0) status = measure(r, &args);
    if (status == FK_OK && r->repeat > 0) status = count_tflops(r);
    return status;
}

static void close_all(run *r) {
    for (int i = 0; r->context && i < NUM_TENSORS; i++)
        fk_device_free(r->context, r->device_data[i]);
    if (r->context) fk_device_free(r->context, r->workspace);
    if (r->context) fk_device_free(r->context, r->device_descale);
    grads_free(&r->grads, r->context);
    arrays_free(&r->arrays, r->context);
    sequences_free(&r->sequences, r->context);
    pages_free(&r->pages, r->context);
    fk_kernel_destroy(r->kernel);
    fk_context_destroy(r->context);
    tensors_free(&r->host);
}

/* ---- the verb ----------------------------------------------------------------------------------------- */

static cli_exit perform(run *r) {
    cli_exit code = load(r);
    for (int i = 0; i < NUM_TENSORS && code == CLI_OK; i++)
        if (!run_is_input(i)) code = output_try(r->path[i]);
    if (code == CLI_OK) code = output_try(r->dropout.keep_mask);
    if (code != CLI_OK) return code;
    fk_status status = open_kernel(r);
    if (status == FK_OK && !r->json) status = run_print_story(r);
    fflush(stdout);
    if (status == FK_OK) status = execute(r);
    if (status != FK_OK) return cli_fail_status(status);
    if (!r->json) run_print_timing(r);
    code = tensors_write(&r->host, &r->problem, r->path, r->out_dtype == 1);
    for (int i = 0; i < NUM_TENSORS && code == CLI_OK && !r->json; i++)
        if (r->path[i] && !run_is_input(i)) printf("Wrote     %s\n", r->path[i]);
    if (code == CLI_OK) code = grads_write(&r->grads);
    for (size_t i = 0; i < r->grads.count && code == CLI_OK && !r->json; i++)
        if (r->grads.path[i]) printf("Wrote     %s\n", r->grads.path[i]);
    if (code == CLI_OK && r->check) code = check_result(&r->host, &r->problem, &r->result);
    if (code == CLI_OK && r->check) code = check_grads(&r->grads, &r->host, &r->problem, &r->host.args, &r->result);
    if (code == CLI_OK)
        code = dropout_write_mask(&r->dropout, r->context, r->kernel, &r->problem, &r->host.args, r->check);
    if (code != CLI_OK) return code;
    if (r->dropout.keep_mask && !r->json) printf("Wrote     %s\n", r->dropout.keep_mask);
    const bool compared = check_compares(&r->result);
    if (compared && !r->json) check_print(&r->result);
    if (r->json && !run_print_json(r)) return cli_fail_print("run");
    if (r->check && !compared)
        return cli_fail(CLI_CHECK_FAILED,
                        "check: all %lld elements are NaN in float64, or of no sequence: nothing compares",
                        (long long)r->result.elements);
    if (r->check && !(r->result.ratio <= CHECK_MAX_RATIO))
        return cli_fail(CLI_CHECK_FAILED, "check: the error is %.3g times that of the eager reference; %g is the limit",
                        r->result.ratio, CHECK_MAX_RATIO);
    return CLI_OK;
}

static cli_exit run_main(const cli_verb *verb, int argc, char **argv) {
    static const char *const layouts[] = {"bshd", "bhsd", NULL},
                             *const dtypes[] = {"fp16", "bf16", "fp32", "e4m3", NULL},
                             *const out_dtypes[] = {"same", "f32", NULL}, *const cache_modes[] = {"normal", "read-only",
                                                                                                  "no-jit", "off",
                                                                                                  "sealed", NULL};
    run r = {.device = "auto",
             .planning = CLI_PLANNING_INIT,
             .random = {5, 6, 0, {0}},
             .dropout = DROPOUT_INIT,
             .dtype = -1,
             .cache_mode = -1,
             .num_splits = -1,
             .descale = {-1, -1, -1}};
    r.median_ms = r.tflops = r.result.ratio = NAN;
    const option options[] = {
        option_text("--q", "Q.npy", &r.path[TENSOR_Q],
                    "[batch, seqlen_q, heads_q, head_dim] of <f2, <f4, <u2 (bfloat16 bits), or |u1 (e4m3 bits)"),
        option_text("--k", "K.npy", &r.path[TENSOR_K], "[batch, seqlen_k, heads_kv, head_dim]"),
        option_text("--v", "V.npy", &r.path[TENSOR_V], "[batch, seqlen_k, heads_kv, head_dim_v]"),
        option_numbers("--random", "B,HQ,HKV,SQ,SK[,SEED]", &r.random, 0, FK_MAX_SEQLEN,
                       "standard normal q, k and v of these sizes instead"),
        option_list("--array", "NAME=FILE.npy", &r.array,
                    "a declared array, <f4, <f2, <u2 (bf16 bits) or <i4; may be given for each; with\n--random those "
                    "of floats are drawn"),
        option_text("--cu-seqlens-q", "A,B,C|FILE.npy", &r.lengths[CU_SEQLENS_Q],
                    "packed: where sequences begin, and where the last one ends; --cu-seqlens-k\n"
                    "likewise; with --random, SQ and SK are else the longest of drawn lengths"),
        option_text("--cu-seqlens-k", "A,B,C|FILE.npy", &r.lengths[CU_SEQLENS_K], "packed"),
        option_text("--seqused-k", "A,B|FILE.npy", &r.lengths[SEQUSED_K],
                    "seqused_k: how many keys of each sequence are used; more than it has: all"),
        option_int("--num-splits", "N", &r.num_splits, 0, FK_MAX_SPLITS,
                   "split: shares of the keys; 0 (default): as many as fill the GPU"),
        option_int("--page-size", "N", &r.page_size, 1, FK_MAX_SEQLEN,
                   "paged: k and v are cut into shuffled pages of N rows (default: 64)"),
        option_text("-o", "O.npy", &r.path[TENSOR_O], "write the output: <f2, <u2 for bf16 and e4m3, or <f4 for fp32"),
        option_text("--lse", "LSE.npy", &r.path[TENSOR_LSE],
                    "write log-sum-exp: [batch, heads_q, seqlen_q] of <f4, natural log"),
        option_text("--do", "DO.npy", &r.path[TENSOR_DOUT], "bwd: the gradient of the output, of its shape"),
        option_text("--dq", "DQ.npy", &r.path[TENSOR_DQ], "bwd: write the gradient of Q; --dk and --dv likewise"),
        option_text("--dk", "DK.npy", &r.path[TENSOR_DK], "bwd"),
        option_text("--dv", "DV.npy", &r.path[TENSOR_DV], "bwd"),
        option_list("--grad", "NAME=FILE.npy", &r.grad,
                    "bwd: write the gradient of a declared array, <f4; the spelling asks for it by grad=NAME"),
        option_choice("--out-dtype", "TYPE", &r.out_dtype, out_dtypes, "of written tensors: same (default) or f32"),
        option_choice("--layout", "LAYOUT", &r.layout, layouts, "of all tensors: bshd (default) or bhsd"),
        option_choice("--dtype", "TYPE", &r.dtype, dtypes, "fp16, bf16, fp32 or e4m3, instead of the spelling's"),
        option_real("--softmax-scale", "X", &r.softmax_scale, 0, 3e38, "default, and 0: 1 / sqrt(head_dim)"),
        option_real("--q-descale", "X", &r.descale[0], 0, 3e38,
                    "e4m3: what q counts for; --k-descale, --v-descale likewise"),
        option_real("--k-descale", "X", &r.descale[1], 0, 3e38, "e4m3"),
        option_real("--v-descale", "X", &r.descale[2], 0, 3e38, "e4m3"),
        option_real("--dropout-p", "P", &r.dropout.p, 0, 0.99999,
                    "dropout: the share of weights dropped (default 0.1)"),
        option_int("--dropout-seed", "N", &r.dropout.seed, 0, 9e18, "dropout: default 0; --dropout-offset likewise"),
        option_int("--dropout-offset", "N", &r.dropout.offset, 0, 9e18, "dropout"),
        option_text("--keep-mask", "M.npy", &r.dropout.keep_mask,
                    "dropout: write which weights are kept, [batch, heads_q, seqlen_q, seqlen_k] of |u1"),
        option_text("--device", "DEVICE", &r.device, "cuda:N, emu, or auto (default): the first GPU, else emu"),
        option_text("--plan-for", "KEY", &r.plan_for, "plan and emit for that GPU, run on DEVICE"),
        option_flag("--check", &r.check, "compare with float64 and an eager reference (CPU, O(N^2))"),
        option_int("--repeat", "N", &r.repeat, 0, 100000, "time N batches of launches, tell the median"),
        option_text("--cache-dir", "DIR", &r.cache_dir, "the store (default: see flashkiln cache --help)"),
        option_flag("--no-cache", &r.no_cache, "neither read nor write the store"),
        option_choice("--cache", "MODE", &r.cache_mode, cache_modes,
                      "normal (default: $FLASHKILN_CACHE_MODE), read-only, no-jit: compile nothing,\noff, or sealed: "
                      "packs alone"),
        option_text("--pack", "PACK:...", &r.packs,
                    "compiled kernels (default: $FLASHKILN_PACK); see flashkiln pack --help"),
        cli_shape_option(&r.planning),
        cli_rule_option(&r.planning),
        cli_plan_option(&r.planning),
        cli_reproducible_option(&r.planning),
        cli_template_option(&r.planning),
        cli_json_option(&r.json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    if (r.no_cache && r.cache_mode >= 0) return cli_fail(CLI_USAGE, "run: --no-cache excludes --cache");
    if (r.cache_mode == FK_CACHE_NORMAL) unsetenv("FLASHKILN_CACHE_MODE"); /* 0 would ask it */
    code = cli_use_planning(&r.planning);
    if (code == CLI_OK) code = open_packs(r.packs);
    if (code == CLI_OK) code = read_problem(&r, argv, argc);
    if (code == CLI_OK) code = check_inputs(&r, r.problem.op == FK_BACKWARD ? NUM_TENSORS : TENSOR_DOUT);
    if (code == CLI_OK) code = check_words(&r);
    if (code == CLI_OK) code = run_check_files(&r);
    if (code == CLI_OK) code = perform(&r);
    close_all(&r);
    return code;
}

const cli_verb verb_run = {"run", "SPELLING --q Q.npy --k K.npy --v V.npy [-o O.npy]",
                           "plan, compile or find, launch, check and write",
                           "<f4 input is rounded to the problem's dtype. One line reproduces a failure:\n"
                           "  flashkiln run \"fwd fp16 d64 causal\" --random 2,8,8,100,200,7 --check --device emu\n",
                           run_main};
