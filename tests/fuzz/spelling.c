/* Spellings of problems. What is read has a canonical spelling, which reads back as the same bytes. Terms are learnt,
 * as on a machine without Lua: that is where strangers' spellings are read, and it is fast. */
#include "fuzz.h"

#include "gen/problem.h"
#include "gen/term.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const char *const lines[] = {
        "mask causal = k <= q + diag",
        "mask window left:int right:int = k >= q + diag - left && k <= q + diag + right",
        "mask document ids:int[b][k]:sorted = ids[b][q] == ids[b][k]",
        "score softcap cap:float = cap * tanh(s / cap)",
        "score alibi slope:float[h] = s - slope[h] * abs(q + diag - k)",
        "score bias bias:float[b][h][q][k] = s + bias[b][h][q][k]",
        "sink sink sink:float[h] = sink[h]",
    };
    (void)argc, (void)argv;
    setenv("FLASHKILN_LUA", "/nonexistent", 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i)
        MUST(fk_term_learn(lines[i], NULL) == FK_OK);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size), spelling[FK_MAX_SPELLING], again[FK_MAX_SPELLING];
    fk_problem p, back;
    fk_error err;
    if (fk_problem_read(text, &p, &err) == FK_OK) {
        MUST(fk_problem_write(&p, spelling, sizeof spelling, &err) == FK_OK);
        MUST(fk_problem_read(spelling, &back, &err) == FK_OK);
        MUST(memcmp(&p, &back, sizeof p) == 0);
        MUST(fk_problem_write(&back, again, sizeof again, &err) == FK_OK);
        MUST(strcmp(spelling, again) == 0);
        MUST(fk_problem_write_class(&p, again, &err) == FK_OK);
    } else {
        MUST(err.status && err.text[0]);
    }
    free(text);
    return 0;
}
