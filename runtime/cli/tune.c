/* tune: the fastest plan of each problem and shape, timed on the device, or modelled for one that is not here. */
#include "tune.h"
#include "output.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SHAPES = 64, PLANS_OF_ONE = 8 /* that are compiled at once, about */, MOST_AHEAD = 4 };

typedef struct request {
    const char *device, *plan_for, *gpu, *cache_dir, *shapes, *budget, *from, *export_to, *csv, *svg;
    int rigor;
    int64_t jobs;
    bool modelled, dry_run, resume, skip_unsupported, json;
    cli_planning planning;
    fk_tune_options how;
    fk_context *context;
    fk_shape shape[MAX_SHAPES];
    int num_shapes;
} request;

static volatile sig_atomic_t interrupted;

/* A launch of the emulator may take long: the second signal ends the program. */
static void interrupt(int signal_number) {
    signal(signal_number, SIG_DFL);
    interrupted = 1;
}

/* ---- what is asked ---------------------------------------------------------------------------------------- */

/* "60", "60s", "2m", "500ms" */
static bool parse_budget(const char *text, double *ms) {
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1e3}, {"s", 1e3}, {"ms", 1}, {"m", 6e4}};
    char *end;
    const double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (end != text && strcmp(end, units[i].unit) == 0) *ms = value * units[i].ms;
    return *ms >= 1 && *ms <= 1e9;
}

/* "4096" is seqlen_q and seqlen_k, "4x16x16x4096x4096" batch, heads, heads_kv, seqlen_q, seqlen_k. */
static bool parse_shape(const char *text, size_t length, fk_shape *out) {
    int64_t value[5];
    int count = 0;
    for (const char *at = text, *last = text + length; at < last && count < 5;) {
        char *end;
        value[count] = strtoll(at, &end, 10);
        if (end == at || end > last || value[count] < 1 || value[count] > FK_MAX_SEQLEN) return false;
        count++;
        if (end < last && (*end != 'x' || end + 1 == last || count == 5)) return false;
        at = end + 1;
    }
    if (count == 1) *out = (fk_shape){0, 0, 0, value[0], value[0]};
    if (count == 5) *out = (fk_shape){value[0], value[1], value[2], value[3], value[4]};
    return count == 1 || count == 5;
}

static cli_exit parse_shapes(request *r) {
    for (const char *at = r->shapes; at && *at;) {
        const size_t length = strcspn(at, ",");
        if (r->num_shapes == MAX_SHAPES) return cli_fail(CLI_USAGE, "--shapes: more than %d are given", MAX_SHAPES);
        if (!parse_shape(at, length, &r->shape[r->num_shapes++]))
            return cli_fail(CLI_USAGE, "--shapes: \"%.*s\" is neither a seqlen nor BxHQxHKVxSQxSK, of 1 to %d each",
                            (int)length, at, FK_MAX_SEQLEN);
        at += length + (at[length] == ',');
    }
    if (r->num_shapes == 0) r->shape[r->num_shapes++] = (fk_shape){0, 0, 0, 0, 0};
    return CLI_OK;
}

static cli_exit open_device(request *r) {
    if (r->modelled) {
        fk_device_info gpu;
        const fk_status found = fk_device_find(r->gpu, &gpu);
        return found == FK_OK ? CLI_OK : cli_fail_status(found);
    }
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    options.device = r->device;
    options.plan_for = r->plan_for;
    options.cache_dir = r->cache_dir;
    options.planning = cli_plan_options(&r->planning);
    const fk_status status = fk_context_create(&options, &r->context);
    if (status != FK_OK) return cli_fail_status(status);
    if (fk_context_is_emulator(r->context) && !r->shapes) r->shape[0] = (fk_shape){1, 2, 0, 0, 256};
    return CLI_OK;
}

/* ---- one search ------------------------------------------------------------------------------------------- */

static int watch(void *user, const fk_tune_progress *p) {
    char time[CLI_QUANTITY];
    const char *spelling = user;
    const double left = p->budget_ms - p->elapsed_ms;
    cli_progress("%.40s: %zu plan%s, %zu in the running, %zu rejected; best %s; at most %.0f s left", spelling,
                 p->count, p->count == 1 ? "" : "s", p->num_alive, p->num_rejected,
                 p->best ? cli_time_us(p->best->us, time) : "-", left > 0 ? left * 1e-3 : 0);
    return interrupted;
}

static double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static cli_exit tune_one(request *r, char *spelling, const fk_shape *shape, tuned *out) {
    cli_exit code = cli_problem(&spelling, 1, &out->problem, out->spelling);
    if (code != CLI_OK) return code;
    const double begin = now_seconds();
    out->shape = *shape;
    fk_status status = fk_shape_complete(&out->problem, &out->shape);
    if (status != FK_OK) return cli_fail_status(status);
    r->how.shape = out->shape;
    status = r->modelled ? fk_tune_modelled(&out->problem, r->gpu, &r->how, r->cache_dir, &out->trials, &out->count)
                         : fk_tune(r->context, &out->problem, &r->how, watch, out->spelling, &out->trials, &out->count);
    cli_progress("%s", "");
    out->seconds = now_seconds() - begin;
    if (status == FK_UNSUPPORTED && r->skip_unsupported) return CLI_OK;
    if (status != FK_OK)
        return cli_fail(cli_exit_of(status), "%s: %s: %s", out->spelling, fk_status_name(status), fk_last_error());
    if (!r->json) tune_print(out, r->context && fk_context_is_emulator(r->context));
    fflush(stdout);
    return CLI_OK;
}

/* ---- compiling ahead -------------------------------------------------------------------------------------- */

static int stop(void *user, const fk_tune_progress *p) {
    (void)user, (void)p;
    return interrupted;
}

static char *spelling_of(const request *r, char *const *list, size_t search) {
    return list[search / (size_t)r->num_shapes];
}

/* Fills the store with what searches `first`, first + step, ... will ask for. What cannot be compiled fails in its
 * turn, and is told then. */
static void compile_some(const request *r, char *const *list, size_t num_searches, size_t first, size_t step) {
    for (size_t i = first; i < num_searches && !interrupted; i += step) {
        fk_tune_options how = r->how;
        fk_problem problem;
        fk_trial *trials = NULL;
        size_t count;
        if (fk_problem_parse(spelling_of(r, list, i), &problem) != FK_OK) continue;
        how.compile_only = 1;
        how.budget_ms = 0; /* that is of what is timed */
        how.shape = r->shape[i % (size_t)r->num_shapes];
        fk_tune(r->context, &problem, &how, stop, NULL, &trials, &count);
        fk_free(trials);
    }
}

/* While one problem is timed, the cores have nothing to do: processes of their own compile for the later ones, as one
 * problem alone has not enough plans for all cores. Returns how many there are. */
static int compile_ahead(const request *r, char *const *list, size_t num_searches, pid_t ahead[MOST_AHEAD]) {
    const pid_t parent = getpid();
    const long jobs = r->jobs ? (long)r->jobs : sysconf(_SC_NPROCESSORS_ONLN);
    const int wanted = jobs < 2 * PLANS_OF_ONE            ? 1
                       : jobs / PLANS_OF_ONE > MOST_AHEAD ? MOST_AHEAD
                                                          : (int)(jobs / PLANS_OF_ONE);
    if (r->modelled || r->jobs < 0) return 0;
    for (int i = 0; i < wanted && (size_t)i + 1 < num_searches; i++) {
        if ((ahead[i] = fork()) < 0) return i;
        if (ahead[i] > 0) continue;
        signal(SIGTERM, interrupt);
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* it ends its helpers then */
        interrupted = getppid() != parent;
        compile_some(r, list, num_searches, (size_t)i + 1, (size_t)wanted);
        _exit(0);
    }
    return (size_t)wanted < num_searches ? wanted : (int)num_searches - 1;
}

static void end(const pid_t *ahead, int count) {
    for (int i = 0; i < count; i++)
        kill(ahead[i], SIGTERM);
    for (int i = 0; i < count; i++)
        waitpid(ahead[i], NULL, 0);
}

/* ---- all of them ------------------------------------------------------------------------------------------ */

/* A problem that fails is told and left behind; the exit code is the first failure's. */
static cli_exit tune_all(request *r, char **list, size_t num_problems) {
    const size_t most = num_problems * (size_t)r->num_shapes;
    tuned *all = calloc(most, sizeof *all);
    size_t count = 0;
    if (!all) return cli_fail(CLI_FAILED, "no memory for %zu searches", most);
    cli_exit code = CLI_OK;
    pid_t ahead[MOST_AHEAD];
    const int num_ahead = compile_ahead(r, list, most, ahead);
    for (size_t i = 0; i < most && !interrupted; i++) {
        const cli_exit one = tune_one(r, spelling_of(r, list, i), &r->shape[i % (size_t)r->num_shapes], &all[count]);
        count += all[count].trials != NULL;
        if (code == CLI_OK) code = one;
    }
    end(ahead, num_ahead);
    if (r->json && !tune_print_json(all, count)) code = cli_fail_print("tune");
    const cli_exit csv = r->csv ? tune_write_csv(r->csv, all, count) : CLI_OK;
    const cli_exit svg = r->svg ? tune_write_svg(r->svg, all, count) : CLI_OK;
    if (code == CLI_OK) code = csv ? csv : svg;
    for (size_t i = 0; i < count; i++)
        fk_free(all[i].trials);
    free(all);
    return code;
}

/* ---- records ---------------------------------------------------------------------------------------------- */

static cli_exit move_records(const request *r) {
    FILE *out = r->json ? stderr : stdout;
    size_t taken, refused, written;
    if (r->from) {
        const fk_status status = fk_tuning_import(r->cache_dir, r->from, &taken, &refused);
        if (status != FK_OK) return cli_fail_status(status);
        fprintf(out, "%s: %zu record%s taken, %zu line%s refused\n", r->from, taken, taken == 1 ? "" : "s", refused,
                refused == 1 ? "" : "s");
    }
    if (r->export_to) {
        const fk_status status = fk_tuning_export(r->cache_dir, r->export_to, &written);
        if (status != FK_OK) return cli_fail_status(status);
        fprintf(out, "%s: %zu record%s written\n", r->export_to, written, written == 1 ? "" : "s");
    }
    return CLI_OK;
}

/* Before a search of minutes. */
static cli_exit check_outputs(const request *r, const char *list) {
    const named_file files[] = {
        {NULL, list}, {NULL, r->from}, {"--csv", r->csv}, {"--svg", r->svg}, {"--export", r->export_to}};
    cli_exit code = output_check("tune", files, sizeof files / sizeof files[0]);
    for (size_t i = 2; i < sizeof files / sizeof files[0] && code == CLI_OK; i++)
        code = output_try(files[i].path);
    return code;
}

static cli_exit perform(request *r, char **words, int num_words) {
    char spelling[FK_MAX_SPELLING], *one = spelling, **list = &one, **owned = NULL;
    size_t count = 0;
    cli_exit code = CLI_OK;
    if (num_words == 0 && !r->from && !r->export_to)
        return cli_fail(CLI_USAGE, "tune: no spelling and no file is given");
    code = check_outputs(r, num_words == 1 ? words[0] : NULL);
    if (r->from && code == CLI_OK) { /* first, so that what is tuned is compared with it */
        request only = *r;
        only.export_to = NULL;
        code = move_records(&only);
    }
    if (code == CLI_OK && num_words > 0) {
        code = cli_spellings(words, num_words, &owned, &count, spelling);
        if (owned) list = owned;
        if (code == CLI_OK) code = open_device(r);
        if (code == CLI_OK) code = tune_all(r, list, count);
    }
    if (r->export_to && code == CLI_OK) {
        request only = *r;
        only.from = NULL;
        code = move_records(&only);
    }
    fk_free(owned);
    fk_context_destroy(r->context);
    return code;
}

/* No option is passed over in silence. */
static cli_exit check_options(const request *r, bool searches) {
    const struct {
        const char *name;
        bool given, timed; /* timed: modelling has no use for it */
    } options[] = {{"--shapes", r->shapes, false},
                   {"--budget", r->budget, false},
                   {"--modelled", r->modelled, false},
                   {"--gpu", r->gpu, false},
                   {"--skip-unsupported", r->skip_unsupported, false},
                   {"--dry-run", r->dry_run, false},
                   {"--csv", r->csv, false},
                   {"--json", r->json, false},
                   {"--rigor", r->rigor >= 0, true},
                   {"--device", r->device, true},
                   {"--plan-for", r->plan_for, true},
                   {"--jobs", r->jobs, true},
                   {"--resume", r->resume, true},
                   {"--svg", r->svg, true}};
    if (r->dry_run && r->from) return cli_fail(CLI_USAGE, "tune: --from writes records; --dry-run excludes it");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (options[i].given && !searches)
            return cli_fail(CLI_USAGE, "tune: %s belongs to a search, and no spelling is given", options[i].name);
        if (options[i].given && options[i].timed && r->modelled)
            return cli_fail(CLI_USAGE, "tune: %s belongs to what is timed; --modelled is for --gpu", options[i].name);
    }
    if (r->gpu && !r->modelled)
        return cli_fail(CLI_USAGE, "tune: --gpu belongs to --modelled; what is timed is --device");
    return CLI_OK;
}

static cli_exit tune_main(const cli_verb *verb, int argc, char **argv) {
    static const char *const rigors[] = {"measure", "patient", NULL};
    request r = {.rigor = -1, .planning = CLI_PLANNING_INIT, .how = FK_TUNE_OPTIONS_INIT};
    const option options[] = {
        option_text("--shapes", "LIST", &r.shapes,
                    "time at these: 512,4096,4x16x16x197x197; a number is seqlen_q and seqlen_k of 16,384\n"
                    "tokens and 2,048 hidden, five are B x HQ x HKV x SQ x SK (default: 4096)"),
        option_text("--budget", "TIME", &r.budget, "wall time of each search: 60s (default), 500ms, 2m"),
        option_choice("--rigor", "RIGOR", &r.rigor, rigors,
                      "measure (default): the plans that the model ranks first; patient: far more, each\n"
                      "timed as long as the fastest"),
        option_text("--device", "DEVICE", &r.device, "cuda:N, emu, or auto (default): the first GPU, else emu"),
        option_text("--plan-for", "KEY", &r.plan_for, "emu: the GPU that is planned for"),
        option_flag("--modelled", &r.modelled, "nothing is run: the model and NVRTC's reports choose for --gpu"),
        option_text("--gpu", "KEY", &r.gpu, "with --modelled: a key of `flashkiln devices` (default a100)"),
        option_int("--jobs", "N", &r.jobs, -1, 1024,
                   "compile N plans at a time, each in a process (default 0: one per core; -1: in this one)"),
        option_flag("--skip-unsupported", &r.skip_unsupported, "a problem that the GPU cannot run is no failure"),
        option_flag("--resume", &r.resume, "leave out what a search as rigorous has been recorded of, at these shapes"),
        option_flag("--dry-run", &r.dry_run, "write no records"),
        option_text("--from", "FILE", &r.from, "first take over the records of FILE, no pipe, that would count here"),
        option_text("--export", "FILE", &r.export_to, "last write the records that count to FILE"),
        option_text("--csv", "FILE", &r.csv, "write all trials"),
        option_text("--svg", "FILE", &r.svg, "draw modelled against measured times"),
        option_text("--cache-dir", "DIR", &r.cache_dir, "the store, where records are kept too"),
        cli_template_option(&r.planning),
        cli_json_option(&r.json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = cli_use_planning(&r.planning);
    if (code == CLI_OK) code = check_options(&r, argc > 0);
    if (code != CLI_OK) return code;
    if (!parse_budget(r.budget ? r.budget : "60s", &r.how.budget_ms))
        return cli_fail(CLI_USAGE, "--budget: \"%.40s\" is no time from 1ms to 1000000s, such as 60s", r.budget);
    if (!r.device) r.device = "auto";
    if (!r.gpu) r.gpu = "a100";
    code = parse_shapes(&r);
    if (code != CLI_OK) return code;
    r.how.rigor = r.rigor > 0 ? FK_RIGOR_PATIENT : FK_RIGOR_MEASURE;
    r.how.jobs = (int32_t)r.jobs;
    r.how.dry_run = r.dry_run;
    r.how.resume = r.resume;
    signal(SIGINT, interrupt); /* ends the search with what is known */
    return perform(&r, argv, argc);
}

const cli_verb verb_tune = {
    "tune", "SPELLING|FILE [--shapes LIST] [--budget TIME]", "time plans, and remember the fastest",
    "Each plan is compiled, compared with float64, and only then timed, in turns with the others.\n"
    "Records: DIR/tune-<gpu>.jsonl; kernels made later take the plan of the record that counts.\n"
    "FLASHKILN_TUNING=off, or --reproducible elsewhere: records are not looked at.\n"
    "FILE.txt has one spelling a line, # comments; FILE.lua returns an array of spellings.\n",
    tune_main};
