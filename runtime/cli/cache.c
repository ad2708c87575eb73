/* cache ls|verify|prune|path|doctor: the store of compiled kernels. */
#include "cli.h"

#include <math.h>
#include <string.h>

static const table_column columns[] = {
    {"key", NULL, false},           {NULL, "key", false},         {"spelling", "spelling", false},
    {"target", "target", false},    {"regs", "registers", true},  {"spills", "spill_bytes", true},
    {"smem", "smem_dynamic", true}, {"file", "file_bytes", true}, {"used", "age_seconds", true},
    {NULL, "compiler", false},      {NULL, "valid", false},       {"state", "problem", false},
};

static const char *age_text(double seconds, char out[CLI_QUANTITY]) {
    static const struct {
        double seconds;
        const char *unit;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    int u = 0;
    while (u < 3 && seconds < 2 * units[u].seconds)
        u++;
    snprintf(out, CLI_QUANTITY, "%.0f %s ago", seconds / units[u].seconds, units[u].unit);
    return out;
}

static void add_entry(table *t, const fk_cache_entry *e) {
    char text[CLI_QUANTITY];
    snprintf(text, sizeof text, "%.12s", e->key);
    table_text(t, text);
    table_text(t, e->key);
    table_text(t, e->spelling);
    table_text(t, e->target);
    const bool counted = e->registers > 0; /* a host compiler tells none */
    snprintf(text, sizeof text, "%d", e->registers);
    table_number(t, counted ? e->registers : (double)NAN, "%s", counted ? text : "-");
    snprintf(text, sizeof text, "%d", e->spill_bytes);
    table_number(t, counted ? e->spill_bytes : (double)NAN, "%s", counted ? text : "-");
    table_number(t, e->smem_dynamic, "%s", cli_bytes(e->smem_dynamic, text));
    table_number(t, (double)e->file_bytes, "%s", cli_bytes((double)e->file_bytes, text));
    table_number(t, (double)e->age_seconds, "%s", age_text((double)e->age_seconds, text));
    table_text(t, e->compiler);
    table_bool(t, e->valid, "");
    table_text(t, e->valid ? "ok" : e->problem[0] ? e->problem : "invalid");
}

/* ls and verify differ in how much of each entry is read, and in what an invalid one means. */
static cli_exit list(const char *dir, bool verify, bool json) {
    fk_cache_entry *entries = NULL;
    size_t count = 0, invalid = 0;
    double bytes = 0;
    char path[4096], size[CLI_QUANTITY];
    fk_status status = fk_cache_path(dir, path, sizeof path);
    if (status == FK_OK)
        status = verify ? fk_cache_verify(dir, &entries, &count) : fk_cache_list(dir, &entries, &count);
    if (status != FK_OK) return cli_fail_status(status);
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        add_entry(t, &entries[i]);
        bytes += (double)entries[i].file_bytes;
        invalid += !entries[i].valid;
    }
    fk_free(entries);
    const bool good = json ? table_print_json(t, stdout) : count == 0 || table_print(t, stdout);
    table_destroy(t);
    if (!good) return cli_fail_print("cache");
    if (!json)
        printf("%s%zu %s, %s in %s\n", count ? "\n" : "", count, count == 1 ? "entry" : "entries",
               cli_bytes(bytes, size), path);
    if (verify && invalid)
        return cli_fail(CLI_CHECK_FAILED, "%zu of %zu entries are invalid; `flashkiln cache prune` removes them",
                        invalid, count);
    return CLI_OK;
}

static cli_exit prune(const char *dir, int64_t max_bytes) {
    size_t removed = 0;
    int64_t bytes = 0;
    char size[CLI_QUANTITY];
    const fk_status status = fk_cache_prune(dir, max_bytes, &removed, &bytes);
    if (status != FK_OK) return cli_fail_status(status);
    printf("removed %zu file%s, %s\n", removed, removed == 1 ? "" : "s", cli_bytes((double)bytes, size));
    return CLI_OK;
}

static cli_exit doctor(const char *dir, bool json) {
    static const table_column finding_columns[] = {
        {"", "state", false}, {"what", "name", false}, {"found", "detail", false}};
    static const char *const states[] = {"ok", "note", "WRONG"};
    fk_finding *findings;
    size_t count, wrong = 0;
    const fk_status status = fk_cache_doctor(dir, &findings, &count);
    if (status != FK_OK) return cli_fail_status(status);
    table *t = table_create(finding_columns, sizeof finding_columns / sizeof finding_columns[0]);
    for (size_t i = 0; i < count; i++) {
        table_text(t, states[findings[i].state]);
        table_text(t, findings[i].name);
        table_text(t, findings[i].detail);
        wrong += findings[i].state == 2;
    }
    fk_free(findings);
    const bool good = json ? table_print_json(t, stdout) : table_print(t, stdout);
    table_destroy(t);
    if (!good) return cli_fail_print("cache");
    return wrong ? cli_fail(CLI_CHECK_FAILED, "%zu of %zu findings are wrong", wrong, count) : CLI_OK;
}

static cli_exit print_path(const char *dir) {
    char path[4096];
    const fk_status status = fk_cache_path(dir, path, sizeof path);
    if (status != FK_OK) return cli_fail_status(status);
    puts(path);
    return CLI_OK;
}

static cli_exit cache_main(const cli_verb *verb, int argc, char **argv) {
    const char *dir = NULL;
    int64_t max_size = -1;
    bool json = false;
    const option options[] = {
        option_text(
            "--cache-dir", "DIR", &dir,
            "the store (default: $FLASHKILN_CACHE_DIR, else\n$XDG_CACHE_HOME/flashkiln, else ~/.cache/flashkiln)"),
        option_bytes("--max-size", &max_size, "prune: also remove the least recently used beyond SIZE; 0 = all"),
        cli_json_option(&json),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    if (argc == 0) return cli_fail(CLI_USAGE, "cache: one of ls, verify, prune, path, doctor must be given");
    if (argc > 1) return cli_fail(CLI_USAGE, "cache %s: takes no argument, \"%s\" was given", argv[0], argv[1]);
    if (max_size >= 0 && strcmp(argv[0], "prune") != 0)
        return cli_fail(CLI_USAGE, "cache %s: --max-size belongs to prune", argv[0]);
    if (json && (strcmp(argv[0], "prune") == 0 || strcmp(argv[0], "path") == 0))
        return cli_fail(CLI_USAGE, "cache %s: --json belongs to ls, verify and doctor", argv[0]);
    if (strcmp(argv[0], "ls") == 0) return list(dir, false, json);
    if (strcmp(argv[0], "verify") == 0) return list(dir, true, json);
    if (strcmp(argv[0], "prune") == 0) return prune(dir, max_size);
    if (strcmp(argv[0], "path") == 0) return print_path(dir);
    if (strcmp(argv[0], "doctor") == 0) return doctor(dir, json);
    return cli_fail(CLI_USAGE, "cache: \"%s\" is none of ls, verify, prune, path, doctor", argv[0]);
}

const cli_verb verb_cache = {"cache", "ls|verify|prune|path|doctor [--json]", "the store of compiled kernels",
                             "  ls      lists entries, newest first\n"
                             "  verify  reads every entry whole: checksum and architecture\n"
                             "  prune   removes invalid entries and what killed processes left\n"
                             "  path    prints the directory\n"
                             "  doctor  looks at store, packs, libraries and environment, and says what is wrong\n",
                             cache_main};
