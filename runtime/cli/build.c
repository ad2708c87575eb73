/* build: cubins of many problems for many GPUs, on all cores, without a GPU.
 * Jobs are taken from a shared counter; each writes its own result, and the table is printed in the order asked for. */
#include "cli.h"
#include "output.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    const char *spelling, *gpu;
    fk_status status;
    cli_exit code;
    fk_image_info image;
    fk_plan_info plan; /* of the image: not the best one, where that one's registers spill */
    int32_t may_spill; /* bytes */
    char message[1024];
} job;

typedef struct work {
    const char *out_dir; /* NULL: nothing is written */
    const fk_generate_options *how;
    job *jobs;
    size_t num_jobs;
    pthread_mutex_t lock; /* guards next and stderr */
    size_t next;
} work;

static void write_files(const work *w, job *j, const void *image, const fk_problem *problem) {
    char stem[160], path[4096], *text = NULL;
    fk_generate_options how = *w->how;
    how.plan = &j->plan;
    cli_file_stem(j->spelling, j->gpu, j->image.key, stem, sizeof stem);
    snprintf(path, sizeof path, "%s/%s.cubin", w->out_dir, stem);
    j->code = output_write(path, image, (size_t)j->image.image_bytes);
    if (j->code != CLI_OK) return;
    j->status = fk_generate(problem, j->gpu, &how, &text, NULL);
    if (j->status != FK_OK) return;
    snprintf(path, sizeof path, "%s/%s.cu", w->out_dir, stem);
    j->code = output_write(path, text, strlen(text));
    fk_free(text);
}

static void run_job(const work *w, job *j) {
    fk_problem problem = FK_PROBLEM_INIT;
    void *image = NULL;
    j->status = fk_problem_parse(j->spelling, &problem);
    if (j->status == FK_OK) j->status = fk_build(&problem, j->gpu, w->how, &image, &j->image, &j->plan);
    j->may_spill = fk_minor_spill(&problem, &j->plan);
    if (j->status == FK_OK && w->out_dir) write_files(w, j, image, &problem);
    if (j->status != FK_OK) {
        snprintf(j->message, sizeof j->message, "%s", fk_last_error());
        j->code = cli_exit_of(j->status);
    } else if (j->code == CLI_OK && j->image.spill_bytes > j->may_spill) {
        j->code = CLI_CHECK_FAILED;
    }
    fk_free(image);
}

static void *worker(void *arg) {
    work *w = arg;
    pthread_mutex_lock(&w->lock);
    while (w->next < w->num_jobs) {
        job *j = &w->jobs[w->next++];
        cli_progress("%zu of %zu  %.60s for %s", w->next, w->num_jobs, j->spelling, j->gpu);
        pthread_mutex_unlock(&w->lock);
        run_job(w, j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void run_all(work *w, int64_t threads) {
    enum { MAX_THREADS = 64 };
    pthread_t extra[MAX_THREADS];
    int started = 0;
    if (threads > (int64_t)w->num_jobs) threads = (int64_t)w->num_jobs;
    while (started < MAX_THREADS && started < threads - 1 && pthread_create(&extra[started], NULL, worker, w) == 0)
        started++;
    worker(w);
    while (started > 0)
        pthread_join(extra[--started], NULL);
    cli_progress("%s", "");
}

/* ---- what is told ------------------------------------------------------------------------------------- */

static const table_column columns[] = {
    {"spelling", "spelling", false}, {"gpu", "gpu", false},
    {"target", "target", false},     {"block_m", "block_m", true},
    {"block_n", "block_n", true},    {"CTAs/SM", "ctas_per_sm", true},
    {"regs", "registers", true},     {"spills", "spill_bytes", true},
    {"smem", "smem_dynamic", true},  {"compile", "compile_ms", true},
    {"cubin", "image_bytes", true},  {NULL, "serialized_wgmma", true}, /* the status says it */
    {NULL, "compiler", false},       {NULL, "key", false},
    {"", "status", false},
};

static void add_job(table *t, const job *j) {
    const fk_image_info *i = &j->image;
    const fk_plan_info *p = &j->plan;
    const bool built = j->status == FK_OK;
    char smem[CLI_QUANTITY], bytes[CLI_QUANTITY], ms[CLI_QUANTITY];
    const double counts[] = {p->block_m, p->block_n, p->ctas_per_sm, i->registers, i->spill_bytes};
    const double sizes[] = {i->smem_dynamic, i->compile_ms, (double)i->image_bytes};
    const char *const shown[] = {cli_bytes(sizes[0], smem), ms, cli_bytes(sizes[2], bytes)};
    snprintf(ms, sizeof ms, "%.0f ms", i->compile_ms);
    table_text(t, j->spelling);
    table_text(t, j->gpu);
    table_text(t, built ? i->target : "-");
    for (int n = 0; n < 5; n++)
        table_number(t, built ? counts[n] : (double)NAN, built ? "%.0f" : "-", counts[n]);
    for (int n = 0; n < 3; n++)
        table_number(t, built ? sizes[n] : (double)NAN, "%s", built ? shown[n] : "-");
    table_number(t, built ? i->serialized_wgmma : (double)NAN, built ? "%.0f" : "-", (double)i->serialized_wgmma);
    table_text(t, i->compiler);
    table_text(t, i->key);
    table_text(t, !built                          ? fk_status_name(j->status)
                  : i->spill_bytes > j->may_spill ? "SPILLS"
                  : i->serialized_wgmma           ? "wgmma is serialised"
                  : !p->chosen && p->sm == 90     ? "what is modelled faster spills, or serialises wgmma"
                  : !p->chosen                    ? "what is modelled faster spills"
                  : i->spill_bytes                ? "few: what does not spill is slower"
                                                  : "");
}

static void print_summary(const work *w) {
    double *ms = malloc(w->num_jobs * sizeof *ms);
    size_t built = 0, spilled = 0, much = 0, serialized = 0;
    if (!ms) return;
    for (size_t i = 0; i < w->num_jobs; i++) {
        if (w->jobs[i].status != FK_OK) continue;
        ms[built++] = w->jobs[i].image.compile_ms;
        spilled += w->jobs[i].image.spill_bytes > 0;
        much += w->jobs[i].image.spill_bytes > w->jobs[i].may_spill;
        serialized += w->jobs[i].image.serialized_wgmma > 0;
    }
    printf("\n%zu of %zu built, %zu with spills", built, w->num_jobs, spilled);
    if (spilled) printf(", %zu of them of more than is slight", much);
    if (serialized) printf(", %zu with serialised wgmma", serialized);
    if (built) {
        const double median = cli_median(ms, built);
        printf("; compile median %.0f ms, worst %.0f ms", median, ms[built - 1]);
    }
    printf("%s%s\n", w->out_dir && built ? "; in " : "", w->out_dir && built ? w->out_dir : "");
    free(ms);
}

/* Prints the table, then each different failure; the exit code is the first failure's in the table's order. */
static cli_exit report(const work *w, bool json, bool skip_unsupported) {
    cli_exit code = CLI_OK;
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < w->num_jobs; i++)
        add_job(t, &w->jobs[i]);
    const bool good = json ? table_print_json(t, stdout) : table_print(t, stdout);
    table_destroy(t);
    if (!good) return cli_fail_print("build");
    if (!json) print_summary(w);
    const char *last = "";
    for (size_t i = 0; i < w->num_jobs; i++) {
        const job *j = &w->jobs[i];
        if (j->code == CLI_OK || (skip_unsupported && j->status == FK_UNSUPPORTED)) continue;
        if (code == CLI_OK) code = j->code;
        if (j->code == CLI_CHECK_FAILED && j->status == FK_OK)
            cli_fail(j->code, "%s for %s: spill_bytes is %d; %d is the limit", j->spelling, j->gpu,
                     j->image.spill_bytes, j->may_spill);
        else if (j->message[0] && strcmp(j->message, last) != 0)
            cli_fail(j->code, "%s: %s for %s: %s", fk_status_name(j->status), j->spelling, j->gpu, j->message);
        last = j->message;
    }
    return code;
}

static cli_exit build_main(const cli_verb *verb, int argc, char **argv) {
    enum { MAX_GPUS = 32 };
    const char *gpu_list = "a100", *gpus[MAX_GPUS];
    char spelling[FK_MAX_SPELLING], *one = spelling, **list = &one, **owned = NULL, *gpu_text = NULL;
    size_t count = 0, num_gpus = 0;
    bool json = false, skip_unsupported = false, made = false;
    int64_t threads = sysconf(_SC_NPROCESSORS_ONLN);
    cli_planning planning = CLI_PLANNING_INIT;
    fk_generate_options how = FK_GENERATE_OPTIONS_INIT;
    work w = {.how = &how, .lock = PTHREAD_MUTEX_INITIALIZER};
    const option options[] = {
        option_text("--gpu", "KEY,...", &gpu_list, "build for these keys of `flashkiln devices` (default a100)"),
        option_text("-o", "DIR", &w.out_dir, "write NAME.cubin and NAME.cu there; DIR is made if need be"),
        option_int("--jobs", "N", &threads, 1, 64, "compile N at a time (default: one per core)"),
        option_flag("--skip-unsupported", &skip_unsupported, "a problem that a GPU cannot run is no failure"),
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
    how.planning = cli_plan_options(&planning);
    if (code == CLI_OK) code = cli_spellings(argv, argc, &owned, &count, spelling);
    if (owned) list = owned;
    gpu_text = strdup(gpu_list);
    if (code == CLI_OK && !gpu_text) code = cli_fail(CLI_FAILED, "no memory for the list of GPUs");
    if (code == CLI_OK) code = cli_gpus(gpu_text, gpus, MAX_GPUS, &num_gpus);
    if (code == CLI_OK && w.out_dir) code = output_folder(w.out_dir, &made);
    w.num_jobs = count * num_gpus;
    if (code == CLI_OK && !(w.jobs = calloc(w.num_jobs, sizeof *w.jobs)))
        code = cli_fail(CLI_FAILED, "no memory for %zu kernels", w.num_jobs);
    if (code == CLI_OK) {
        for (size_t i = 0; i < w.num_jobs; i++)
            w.jobs[i] = (job){.spelling = list[i / num_gpus], .gpu = gpus[i % num_gpus]};
        run_all(&w, threads);
        code = report(&w, json, skip_unsupported);
        if (made) rmdir(w.out_dir); /* succeeds where nothing was built */
    }
    free(w.jobs);
    free(gpu_text);
    fk_free(owned);
    return code;
}

const cli_verb verb_build = {"build", "SPELLING|FILE [--gpu KEY,...] [-o DIR]",
                             "compile cubins for any GPU, without one",
                             "FILE.txt has one spelling a line, # comments; FILE.lua returns an array of spellings.\n"
                             "NAME is the spelling and the GPU: fwd-bf16-d128-causal.a100\n",
                             build_main};
