/* flashkiln VERB ...: one file per verb beside this one. */
#include "cli.h"

#include <string.h>

static const cli_verb *const verbs[] = {&verb_devices, &verb_plan,    &verb_gen,  &verb_build, &verb_run,
                                        &verb_explain, &verb_pattern, &verb_tune, &verb_cache, &verb_pack};
enum { NUM_VERBS = sizeof verbs / sizeof verbs[0] };

static void print_usage(FILE *out) {
    fputs("flashkiln VERB ...: exact attention kernels, generated for the GPU at hand\n\n", out);
    for (int i = 0; i < NUM_VERBS; i++)
        fprintf(out, "  %-8s %s\n", verbs[i]->name, verbs[i]->summary);
    fputs("\nA problem is spelled in one line: fwd bf16 d128 causal, fwd fp16 d64 dv128 gqa window(1024,0),\n"
          "fwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\".\n"
          "flashkiln VERB --help, or help VERB, shows options and exit codes; flashkiln --version the version.\n",
          out);
}

int main(int argc, char **argv) {
    char asked[] = "--help", *help[] = {asked};
    const char *name = argc > 1 ? argv[1] : "";
    char **words = argv + 2;
    int num_words = argc - 2;
    cli_exit code = CLI_OK;
    if (strcmp(name, "help") == 0) { /* help VERB is VERB --help */
        name = argc > 2 && strcmp(argv[2], "help") != 0 ? argv[2] : asked;
        words = help;
        num_words = 1;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_usage(stdout);
    } else if (strcmp(name, "--version") == 0) {
        const int v = fk_version();
        printf("flashkiln %d.%d.%d\n", v / 10000, v / 100 % 100, v % 100);
    } else {
        int i = 0;
        while (i < NUM_VERBS && strcmp(name, verbs[i]->name) != 0)
            i++;
        if (i < NUM_VERBS) {
            code = verbs[i]->main(verbs[i], num_words, words);
        } else {
            if (name[0]) fprintf(stderr, "flashkiln: unknown verb \"%s\"\n\n", name);
            print_usage(stderr);
            code = CLI_USAGE;
        }
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK)
        code = cli_fail(CLI_IO, "standard output cannot be written");
    return (int)code;
}
