/* kernels/common.lua is meant to hold all that the models beside it ask for. */
#include "gen/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* The classes of a file's spellings, in place of these. */
static char **read_classes(const char *path, size_t *count) {
    static char text[512][FK_MAX_SPELLING];
    static size_t used;
    char **list;
    if (fk_problem_list(path, &list, count) != FK_OK) fail_msg("%s", fk_last_error());
    for (size_t i = 0; i < *count; ++i) {
        fk_problem p;
        fk_error err;
        assert_true(used < 512);
        assert_int_equal(fk_problem_read(list[i], &p, &err), FK_OK);
        assert_int_equal(fk_problem_write_class(&p, text[used], &err), FK_OK);
        list[i] = text[used++];
    }
    return list;
}

static void common_holds_what_models_ask_for(void **state) {
    (void)state;
    size_t num_common, files = 0;
    char **common = read_classes(FK_SOURCE_DIR "/kernels/common.lua", &num_common);
    DIR *folder = opendir(FK_SOURCE_DIR "/kernels/models");
    assert_non_null(folder);
    for (const struct dirent *d; (d = readdir(folder));) {
        char path[4096];
        size_t count;
        if (!strstr(d->d_name, ".lua")) continue;
        snprintf(path, sizeof path, FK_SOURCE_DIR "/kernels/models/%s", d->d_name);
        char **model = read_classes(path, &count);
        for (size_t i = 0; i < count; ++i) {
            size_t at = 0;
            while (at < num_common && strcmp(common[at], model[i]) != 0)
                ++at;
            if (at == num_common) fail_msg("%s: \"%s\" is not in kernels/common.lua", d->d_name, model[i]);
        }
        fk_free(model);
        ++files;
    }
    closedir(folder);
    fk_free(common);
    assert_true(files >= 5);
}

/* A star stands for a value, and nothing else differs: what one kernel serves is one class. */
static void classes(void **state) {
    (void)state;
    static const char *const list[][2] = {
        {"fwd bf16 d128 window(1024,0)", "fwd bf16 d128 window(*,*)"},
        {"fwd bf16 d128 window(0,7) softcap(50)", "fwd bf16 d128 softcap(*) window(*,*)"},
        {"bwd bf16 d64 grad=bias bias causal", "bwd bf16 d64 grad=bias bias causal"},
        {"fwd fp16 d64 keep=\"q - k < 512\"", "fwd fp16 d64 keep=\"q - k < 512\""},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
        fk_problem p;
        fk_error err;
        char text[FK_MAX_SPELLING];
        assert_int_equal(fk_problem_read(list[i][0], &p, &err), FK_OK);
        assert_int_equal(fk_problem_write_class(&p, text, &err), FK_OK);
        assert_string_equal(text, list[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(common_holds_what_models_ask_for), cmocka_unit_test(classes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
