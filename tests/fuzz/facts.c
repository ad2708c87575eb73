/* What packs bring besides images: launch facts, and terms as lines. */
#include "fuzz.h"

#include "gen/term.h"
#include "runtime/packs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = fuzz_text(data, size), key[65], name[32];
    fk_source source;
    fk_term_kind kind;
    fk_term_file file;
    fk_error err;
    if (fk_facts_read(text, NULL, &source, key, &err) == FK_OK)
        MUST(source.main_kernel < source.num_kernels && source.plan.block_m > 0 && source.plan.block_n > 0);
    if (fk_term_read(text, &kind, name, &file, &err) == FK_OK)
        MUST(strlen(name) < sizeof name && file.num_params <= FK_MAX_TERM_VALUES);
    free(text);
    return 0;
}
