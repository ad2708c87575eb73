/* pack build|ls|verify|hits|merge|diff|extract|sign: compiled kernels in one file that ships. */
#include "cli.h"
#include "output.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct request {
    const char *out, *gpus, *key_file, *template_dir;
    int64_t jobs;
    bool emulate, skip_unsupported, sized, json;
    int num_words;
    char **words;
} request;

/* ---- build --------------------------------------------------------------------------------------------- */

static void show_progress(const fk_pack_progress *p, void *user) {
    enum { WIDTH = 30 };
    (void)user;
    char bar[WIDTH + 1], left[64] = "";
    const size_t done = p->built + p->reused + p->skipped + p->failed;
    const size_t filled = p->total ? WIDTH * done / p->total : WIDTH;
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = 0;
    if (p->seconds_left >= 60)
        snprintf(left, sizeof left, ", %.0f min left", p->seconds_left / 60);
    else if (p->seconds_left >= 0)
        snprintf(left, sizeof left, ", %.0f s left", p->seconds_left);
    cli_progress("[%s] %zu of %zu%s", bar, done, p->total, left);
}

static cli_exit pack_build(const request *r) {
    enum { MAX_GPUS = 32 };
    const char *gpus[MAX_GPUS];
    char spelling[FK_MAX_SPELLING], *one = spelling, **list = NULL, size[CLI_QUANTITY];
    size_t count = 0, num_gpus = 0;
    struct stat st;
    if (!r->out) return cli_fail(CLI_USAGE, "pack build: -o PACK is missing");
    const named_file files[] = {{"-o", r->out}, {NULL, r->words[0]}, {NULL, r->key_file}};
    cli_exit code = output_check("pack build", files, sizeof files / sizeof files[0]);
    if (code == CLI_OK) code = cli_spellings(r->words, r->num_words, &list, &count, spelling);
    char *gpu_text = strdup(r->gpus);
    if (code == CLI_OK && !gpu_text) code = cli_fail(CLI_FAILED, "no memory for the list of GPUs");
    if (code == CLI_OK) code = cli_gpus(gpu_text, gpus, MAX_GPUS, &num_gpus);
    if (code == CLI_OK) {
        fk_pack_options options = FK_PACK_OPTIONS_INIT;
        fk_pack_progress result;
        options.jobs = (int32_t)r->jobs;
        options.emulate = r->emulate;
        options.skip_unsupported = r->skip_unsupported;
        options.sized = r->sized;
        options.template_dir = r->template_dir;
        options.key_file = r->key_file;
        const char *const *spellings = (const char *const *)(list ? list : &one);
        const fk_status status =
            fk_pack_build(r->out, spellings, count, gpus, num_gpus, &options, show_progress, NULL, &result);
        cli_progress("%s", "");
        if (status != FK_OK) code = cli_fail_status(status);
        if (status == FK_OK && stat(r->out, &st) == 0) {
            const size_t kernels = result.built + result.reused;
            printf("%s: %zu kernel%s, %s; %zu compiled in %.1f s", r->out, kernels, kernels == 1 ? "" : "s",
                   cli_bytes((double)st.st_size, size), result.built, result.seconds);
            if (result.built && result.seconds > 0)
                printf(", %.0f a minute", (double)result.built / result.seconds * 60);
            if (result.reused) printf("; %zu from an earlier call", result.reused);
            if (result.skipped)
                printf("; %zu that a GPU cannot run%s are left out", result.skipped,
                       r->sized ? ", or for some sizes spill," : "");
            printf("\n");
        }
    }
    free(gpu_text);
    fk_free(list);
    return code;
}

/* ---- ls and verify ------------------------------------------------------------------------------------- */

static const table_column columns[] = {
    {NULL, "pack", false},          {"spelling", "spelling", false},
    {"gpu", "gpu", false},          {"target", "target", false},
    {"regs", "registers", true},    {"spills", "spill_bytes", true},
    {"smem", "smem_dynamic", true}, {"size", "bytes", true},
    {"driver", "min_driver", true}, {NULL, "compiler", false},
    {NULL, "key", false},           {NULL, "digest", false},
    {NULL, "valid", false},         {"state", "problem", false},
};

static void add_entry(table *t, const char *path, const fk_pack_entry *e) {
    char text[CLI_QUANTITY];
    table_text(t, path);
    table_text(t, e->spelling);
    table_text(t, e->gpu);
    table_text(t, e->target);
    table_number(t, e->registers, "%d", e->registers);
    table_number(t, e->spill_bytes, "%d", e->spill_bytes);
    table_number(t, e->smem_dynamic, "%s", cli_bytes(e->smem_dynamic, text));
    table_number(t, (double)e->bytes, "%s", cli_bytes((double)e->bytes, text));
    if (e->min_driver)
        table_number(t, e->min_driver, "%d.%d", e->min_driver / 1000, e->min_driver % 1000 / 10);
    else
        table_number(t, 0, "-");
    table_text(t, e->compiler);
    table_text(t, e->key);
    table_text(t, e->digest);
    table_bool(t, e->valid, "");
    table_text(t, e->valid ? "ok" : e->problem);
}

static void print_info(const char *path, const fk_pack_info *info, size_t count) {
    char size[CLI_QUANTITY];
    printf("%s: %zu kernel%s, %s, made by FlashKiln %s (sources %.12s)%s\n", path, count, count == 1 ? "" : "s",
           cli_bytes((double)info->file_bytes, size), info->version, info->generator,
           info->usable ? "" : ": not by this build, which will not use it");
    if (info->signer[0])
        printf("signed by %s: %s\n", info->signer, info->signature);
    else if (info->signature[0])
        printf("%s\n", info->signature);
}

static int compare_entries(const void *a, const void *b) {
    const fk_pack_entry *x = a, *y = b;
    const int spellings = strcmp(x->spelling, y->spelling);
    return spellings ? spellings : strcmp(x->gpu, y->gpu);
}

/* `all`: of JSON, which is printed when the rows of all packs are there. */
static cli_exit list_pack(const request *r, const char *path, bool verify, table *all) {
    fk_pack_info info;
    fk_pack_entry *entries = NULL;
    size_t count = 0, invalid = 0;
    const fk_status status = fk_pack_list(path, &info, &entries, &count);
    if (status != FK_OK) return cli_fail_status(status);
    qsort(entries, count, sizeof *entries, compare_entries);
    table *t = r->json ? all : table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        if (!verify || !entries[i].valid) add_entry(t, path, &entries[i]);
        invalid += !entries[i].valid;
    }
    fk_free(entries);
    const bool rows = verify ? invalid > 0 : count > 0;
    if (!r->json) {
        const bool good = !rows || table_print(t, stdout);
        table_destroy(t);
        if (!good) return cli_fail_print("pack");
        if (rows) printf("\n");
        print_info(path, &info, count);
    }
    const bool forged = info.signature[0] && strcmp(info.signature, "ok") != 0;
    if (invalid) return cli_fail(CLI_CHECK_FAILED, "%s: %zu of %zu kernels are damaged", path, invalid, count);
    if (verify && forged) return cli_fail(CLI_CHECK_FAILED, "%s: signature: %s", path, info.signature);
    if (verify && !r->json) printf("every byte is as it was written\n");
    return CLI_OK;
}

/* The exit code is the first failure's. */
static cli_exit list_packs(const request *r, const char *const *paths, int count, bool verify) {
    table *all = r->json ? table_create(columns, sizeof columns / sizeof columns[0]) : NULL;
    cli_exit code = CLI_OK;
    for (int i = 0; i < count; i++) {
        const cli_exit one = list_pack(r, paths[i], verify, all);
        if (code == CLI_OK) code = one;
    }
    if (r->json && !table_print_json(all, stdout)) code = cli_fail_print("pack");
    table_destroy(all);
    return code;
}

static cli_exit pack_ls(const request *r) {
    return list_packs(r, (const char *const *)r->words, 1, false);
}

static cli_exit pack_verify(const request *r) {
    return list_packs(r, (const char *const *)r->words, r->num_words, true);
}

/* ---- hits ---------------------------------------------------------------------------------------------- */

/* What a list asks of one GPU, and how much of that the pack has. What the GPU cannot run is not asked. */
static cli_exit count_hits(const char *pack, const char *gpu, char *const *list, size_t count, size_t *asked,
                           size_t *hits, const char **first_miss) {
    *asked = *hits = 0;
    *first_miss = "";
    for (size_t i = 0; i < count; i++) {
        fk_problem problem = FK_PROBLEM_INIT;
        fk_plan_info *plans = NULL;
        size_t num_plans;
        int64_t index = -1;
        fk_status status = fk_problem_parse(list[i], &problem);
        if (status == FK_OK) status = fk_pack_lookup(pack, &problem, gpu, &index);
        if (status == FK_OK && index < 0) {
            status = fk_plan_list(&problem, gpu, NULL, &plans, &num_plans);
            fk_free(plans);
            if (status == FK_UNSUPPORTED) continue;
            if (!**first_miss) *first_miss = list[i];
        }
        if (status != FK_OK) return cli_fail_status(status);
        *asked += 1;
        *hits += index >= 0;
    }
    return CLI_OK;
}

static cli_exit pack_hits(const request *r) {
    enum { MAX_GPUS = 32 };
    static const table_column hit_columns[] = {{"list", "list", false}, {"gpu", "gpu", false},
                                               {"hits", "hits", true},  {"of", "asked", true},
                                               {"rate", "rate", true},  {"first miss", "first_miss", false}};
    const char *gpus[MAX_GPUS];
    size_t num_gpus;
    char *gpu_text = strdup(r->gpus);
    cli_exit code = gpu_text ? cli_gpus(gpu_text, gpus, MAX_GPUS, &num_gpus)
                             : cli_fail(CLI_FAILED, "no memory for the list of GPUs");
    table *t = table_create(hit_columns, sizeof hit_columns / sizeof hit_columns[0]);
    for (int w = 1; w < r->num_words && code == CLI_OK; w++) {
        char **list = NULL;
        size_t count, asked, hits;
        const fk_status status = fk_problem_list(r->words[w], &list, &count);
        if (status != FK_OK) code = cli_fail_status(status);
        for (size_t g = 0; code == CLI_OK && g < num_gpus; g++) {
            const char *miss, *slash = strrchr(r->words[w], '/');
            code = count_hits(r->words[0], gpus[g], list, count, &asked, &hits, &miss);
            if (code != CLI_OK) break;
            const double rate = asked ? 100 * (double)hits / (double)asked : 100;
            table_text(t, slash ? slash + 1 : r->words[w]);
            table_text(t, gpus[g]);
            table_number(t, (double)hits, "%zu", hits);
            table_number(t, (double)asked, "%zu", asked);
            table_number(t, rate, "%.0f%%", rate);
            table_text(t, miss);
        }
        fk_free(list);
    }
    if (code == CLI_OK && !(r->json ? table_print_json(t, stdout) : table_print(t, stdout)))
        code = cli_fail_print("pack");
    table_destroy(t);
    free(gpu_text);
    return code;
}

/* ---- merge, sign, diff and extract --------------------------------------------------------------------- */

static cli_exit write_merged(const request *r, const char *out) {
    const named_file files[] = {{"-o", out}, {NULL, r->key_file}};
    const cli_exit code = output_check("pack", files, sizeof files / sizeof files[0]);
    if (code != CLI_OK) return code;
    fk_pack_options options = FK_PACK_OPTIONS_INIT;
    options.key_file = r->key_file;
    const fk_status status = fk_pack_merge(out, (const char *const *)r->words, (size_t)r->num_words, &options);
    return status == FK_OK ? list_packs(r, &out, 1, true) : cli_fail_status(status);
}

static cli_exit pack_merge(const request *r) {
    if (!r->out) return cli_fail(CLI_USAGE, "pack merge: -o PACK is missing");
    return write_merged(r, r->out);
}

static cli_exit pack_sign(const request *r) {
    if (!r->key_file)
        return cli_fail(CLI_USAGE,
                        "pack sign: --key KEY.pem is missing; openssl genpkey -algorithm ed25519 -out KEY.pem");
    return write_merged(r, r->out ? r->out : r->words[0]);
}

/* As of two sorted lists: - only the first has it, + only the second, ! both do, and they differ. */
static cli_exit pack_diff(const request *r) {
    fk_pack_entry *entries[2] = {NULL, NULL};
    size_t count[2], at[2] = {0, 0}, differences = 0;
    cli_exit code = CLI_OK;
    for (int i = 0; i < 2 && code == CLI_OK; i++) {
        const fk_status status = fk_pack_list(r->words[i], NULL, &entries[i], &count[i]);
        if (status != FK_OK)
            code = cli_fail_status(status);
        else
            qsort(entries[i], count[i], sizeof *entries[i], compare_entries);
    }
    while (code == CLI_OK && (at[0] < count[0] || at[1] < count[1])) {
        const fk_pack_entry *a = at[0] < count[0] ? &entries[0][at[0]] : NULL,
                            *b = at[1] < count[1] ? &entries[1][at[1]] : NULL;
        const int order = !a ? 1 : !b ? -1 : compare_entries(a, b);
        const bool same = order == 0 && strcmp(a->digest, b->digest) == 0;
        const fk_pack_entry *e = order > 0 ? b : a;
        if (!same)
            printf("%c %s for %s%s\n",
                   order < 0   ? '-'
                   : order > 0 ? '+'
                               : '!',
                   e->spelling, e->gpu,
                   order                    ? ""
                   : strcmp(a->key, b->key) ? ": other text"
                                            : ": other image of the same text");
        differences += !same;
        at[0] += order <= 0;
        at[1] += order >= 0;
    }
    fk_free(entries[0]);
    fk_free(entries[1]);
    if (code != CLI_OK || !differences) return code;
    return cli_fail(CLI_CHECK_FAILED, "%zu kernel%s", differences, differences == 1 ? " differs" : "s differ");
}

/* As `pack ls` has it, or any spelling that the kernel serves. */
static bool is_asked_for(const request *r, const fk_problem *problem, const fk_pack_entry *e, size_t i) {
    int64_t at;
    if (r->num_words < 2 || strcmp(r->words[1], e->spelling) == 0) return true;
    return problem && fk_pack_lookup(r->words[0], problem, e->gpu, &at) == FK_OK && at == (int64_t)i;
}

static cli_exit pack_extract(const request *r) {
    fk_pack_entry *entries;
    fk_problem problem = FK_PROBLEM_INIT;
    size_t count, written = 0;
    if (!r->out) return cli_fail(CLI_USAGE, "pack extract: -o DIR is missing");
    const fk_status listed = fk_pack_list(r->words[0], NULL, &entries, &count);
    if (listed != FK_OK) return cli_fail_status(listed);
    const bool parsed = r->num_words > 1 && fk_problem_parse(r->words[1], &problem) == FK_OK;
    bool made = false;
    cli_exit code = output_folder(r->out, &made);
    for (size_t i = 0; i < count && code == CLI_OK; i++) {
        const fk_pack_entry *e = &entries[i];
        char stem[160], path[4096];
        void *image = NULL;
        size_t bytes;
        if (!is_asked_for(r, parsed ? &problem : NULL, e, i)) continue;
        cli_file_stem(e->spelling, e->gpu, e->key, stem, sizeof stem);
        snprintf(path, sizeof path, "%s/%s.%s", r->out, stem, strcmp(e->target, "emu") == 0 ? "so" : "cubin");
        const fk_status status = fk_pack_extract(r->words[0], i, &image, &bytes);
        code = status == FK_OK ? output_write(path, image, bytes) : cli_fail_status(status);
        fk_free(image);
        written++;
    }
    fk_free(entries);
    if (made) rmdir(r->out); /* succeeds where nothing was written */
    if (code != CLI_OK) return code;
    if (!written && r->num_words > 1)
        return cli_fail(CLI_BAD_INPUT, "pack extract: %s has no kernel of \"%s\"; see flashkiln pack ls", r->words[0],
                        r->words[1]);
    printf("%zu images in %s\n", written, r->out);
    return CLI_OK;
}

/* ---- the verb ------------------------------------------------------------------------------------------ */

static const struct act {
    const char *name;
    int least, most; /* words behind it; most 0: any number */
    cli_exit (*run)(const request *r);
} acts[] = {
    {"build", 1, 0, pack_build}, {"ls", 1, 1, pack_ls},           {"verify", 1, 0, pack_verify},
    {"hits", 2, 0, pack_hits},   {"merge", 1, 0, pack_merge},     {"diff", 2, 2, pack_diff},
    {"sign", 1, 1, pack_sign},   {"extract", 1, 2, pack_extract},
};

/* No option is passed over in silence. */
static cli_exit check_options(const request *r, const char *act) {
    const struct {
        const char *name, *acts;
        bool given;
    } options[] = {{"-o", "build, merge, sign and extract", r->out != NULL},
                   {"--gpu", "build and hits", r->gpus != NULL},
                   {"--jobs", "build", r->jobs != 0},
                   {"--emu", "build", r->emulate},
                   {"--skip-unsupported", "build", r->skip_unsupported},
                   {"--sized", "build", r->sized},
                   {"--key", "build, merge and sign", r->key_file != NULL},
                   {"--template-dir", "build, hits and extract", r->template_dir != NULL},
                   {"--json", "ls, verify, hits, merge and sign", r->json}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !strstr(options[i].acts, act))
            return cli_fail(CLI_USAGE, "pack %s: %s belongs to %s", act, options[i].name, options[i].acts);
    return CLI_OK;
}

static cli_exit pack_main(const cli_verb *verb, int argc, char **argv) {
    request r = {.gpus = NULL};
    cli_planning planning = CLI_PLANNING_INIT;
    const option options[] = {
        option_text("-o", "PACK|DIR", &r.out, "build, merge, sign: the pack to write; extract: the folder"),
        option_text("--gpu", "KEY,...", &r.gpus, "build, hits: for these keys of `flashkiln devices` (default a100)"),
        option_int("--jobs", "N", &r.jobs, 1, 256, "build: compile in N processes (default: one per core)"),
        option_flag("--emu", &r.emulate, "build: images for the emulator, planned for the GPUs"),
        option_flag("--skip-unsupported", &r.skip_unsupported, "build: leave out what a GPU cannot run"),
        option_flag("--sized", &r.sized, "build: also the kernels for short rows, and for few heads or tiles"),
        option_text("--key", "KEY.pem", &r.key_file, "build, merge, sign: sign with this Ed25519 secret key"),
        cli_template_option(&planning),
        cli_json_option(&r.json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    code = cli_use_planning(&planning);
    if (code != CLI_OK) return code;
    r.template_dir = planning.template_dir;
    r.num_words = argc - 1;
    r.words = argv + 1;
    for (size_t i = 0; argc > 0 && i < sizeof acts / sizeof *acts; i++) {
        const struct act *a = &acts[i];
        if (strcmp(argv[0], a->name) != 0) continue;
        code = check_options(&r, a->name);
        if (code != CLI_OK) return code;
        if (!r.gpus) r.gpus = "a100";
        if (r.num_words >= a->least && (!a->most || r.num_words <= a->most)) return a->run(&r);
        const bool few = r.num_words < a->least;
        return cli_fail(CLI_USAGE,
                        "pack %s: %d words given, at %s %d; see flashkiln pack --help (a spelling is one word, quoted)",
                        a->name, r.num_words, few ? "least" : "most", few ? a->least : a->most);
    }
    return cli_fail(CLI_USAGE, "pack: one of build, ls, verify, hits, merge, diff, extract, sign must be given");
}

const cli_verb verb_pack = {
    "pack", "build FILE -o PACK --gpu KEY,... | ls|verify|hits|merge|diff|extract|sign PACK ...",
    "compiled kernels in one file that ships",
    "  build SPELLING|FILE    compiles for GPUs that need not be here, and goes on where it was cut off\n"
    "  ls PACK                lists its kernels\n"
    "  verify PACK...         reads every byte, and the signature\n"
    "  hits PACK FILE...      which share of the spellings of each FILE it serves\n"
    "  merge PACK... -o PACK  all kernels in one; of equal ones the first pack's\n"
    "  diff PACK PACK         - only in the first, + only in the second, ! differ\n"
    "  extract PACK [SPELLING] -o DIR   the images, for cuobjdump\n"
    "  sign PACK --key KEY.pem\n"
    "A program finds packs by FLASHKILN_PACK=A:B; docs/packs.md\n",
    pack_main};
