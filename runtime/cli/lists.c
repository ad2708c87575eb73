/* What verbs that compile many kernels are asked for: spellings, GPUs, and the names of their files. */
#include "cli.h"

#include <ctype.h>
#include <string.h>
#include <sys/stat.h>

void cli_file_stem(const char *spelling, const char *gpu, const char *key, char *out, size_t size) {
    size_t n = 0;
    bool lossy = false;
    for (const char *c = spelling; *c && n < 96; c++) {
        const bool plain = isalnum((unsigned char)*c) || *c == '.';
        lossy = lossy || (!plain && *c != ' ' && *c != '-');
        if (plain)
            out[n++] = *c;
        else if (n > 0 && out[n - 1] != '-')
            out[n++] = '-';
    }
    lossy = lossy || strlen(spelling) > 96;
    while (n > 0 && out[n - 1] == '-')
        n--;
    snprintf(out + n, size - n, "%s%.8s.%s", lossy ? "-" : "", lossy ? key : "", gpu);
    for (char *c = out + n; *c; c++)
        if (*c == ':' || *c == '/') *c = '-';
}

cli_exit cli_spellings(char *const *words, int num_words, char ***list, size_t *count, char *spelling) {
    struct stat st;
    fk_problem problem = FK_PROBLEM_INIT;
    const char *suffix = num_words == 1 ? strrchr(words[0], '.') : NULL;
    const bool named = suffix && (strcmp(suffix, ".lua") == 0 || strcmp(suffix, ".txt") == 0);
    if (named || (num_words == 1 && stat(words[0], &st) == 0 && S_ISREG(st.st_mode))) {
        const fk_status status = fk_problem_list(words[0], list, count);
        return status == FK_OK ? CLI_OK : cli_fail_status(status);
    }
    *count = 1;
    return cli_problem(words, num_words, &problem, spelling);
}

cli_exit cli_gpus(char *text, const char **gpus, size_t room, size_t *count) {
    *count = 0;
    for (char *save = NULL, *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        fk_device_info gpu;
        if (*count == room) return cli_fail(CLI_USAGE, "--gpu: more than %zu GPUs are named", room);
        const fk_status status = fk_device_find(word, &gpu);
        if (status != FK_OK) return cli_fail_status(status);
        gpus[(*count)++] = word;
    }
    return *count ? CLI_OK : cli_fail(CLI_USAGE, "--gpu: no GPU is named");
}
