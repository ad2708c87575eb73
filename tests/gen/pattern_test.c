/* Patterns: what their files say against definitions written here, that tiles of a pattern's blocks are decided, and
 * what may stand in a file and a spelling. A pattern has a row in `patterns`. */
#include "gen/embedded.h"
#include "gen/problem.h"
#include "gen/term.h"
#include "test.h"

#include <math.h>

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352d;
    x ^= x >> 15;
    x *= 0x846ca68b;
    return x ^ x >> 16;
}
static int hash(int x, int y) {
    return (int)(mix(mix((uint32_t)x + 0x9e3779b9) + (uint32_t)y) >> 1);
}

/* Of block row i and column j, head h, n block columns. */
typedef bool definition(int i, int j, int h, int n);

static bool butterfly(int i, int j, int h, int n) {
    (void)h, (void)n;
    for (int bit = 0; bit < 20; ++bit) {
        if (j == (i ^ 1 << bit)) return true;
    }
    return i == j;
}
static bool butterfly_4_2(int i, int j, int h, int n) {
    (void)h, (void)n;
    return i == j || j == (i ^ 1) || j == (i ^ 2) || i < 2 || j < 2;
}
static bool bigbird(int i, int j, int h, int n) {
    for (int draw = 0; draw < 3; ++draw) {
        const double share = (hash(hash(hash(7, h), i), draw) % 32768) / 32768.0;
        if (j == (int)(share * n)) return true;
    }
    return abs(i - j) <= 1 || i < 2 || j < 2;
}
static bool bigbird_without_chance(int i, int j, int h, int n) {
    (void)h, (void)n;
    return abs(i - j) <= 2;
}
static bool longformer(int i, int j, int h, int n) {
    (void)h, (void)n;
    for (int step = -3; step <= 3; ++step) {
        if (j == i + 2 * step) return true;
    }
    return i == 0 || j == 0;
}
static bool strided(int i, int j, int h, int n) {
    (void)h, (void)n;
    return (j > i - 5 && j < i + 5) || i % 5 == j % 5;
}
static bool fixed(int i, int j, int h, int n) {
    (void)h, (void)n;
    return i / 4 == j / 4 || j % 4 == 3 || j % 4 == 2;
}
static bool local(int i, int j, int h, int n) {
    (void)h, (void)n;
    return j >= i - 2 && j <= i + 2;
}
static bool diagonal(int i, int j, int h, int n) {
    (void)h, (void)n;
    return j == i;
}
static bool a_shape(int i, int j, int h, int n) {
    (void)h, (void)n;
    return j <= i && (j == 0 || j > i - 3);
}
static bool mixed(int i, int j, int h, int n) {
    (void)n;
    return h % 2 ? j % 3 == 0 : i >= j;
}

static const struct {
    const char *spelling; /* $: the size of its blocks */
    definition *shown;
} patterns[] = {
    {"butterfly($)", butterfly},
    {"butterfly($,4,2)", butterfly_4_2},
    {"bigbird($,1,2,3,7)", bigbird},
    {"bigbird($,2,0,0)", bigbird_without_chance},
    {"longformer($,3,2,1)", longformer},
    {"strided($,5)", strided},
    {"fixed($,4,2)", fixed},
    {"local($,2)", local},
    {"block_diagonal($)", diagonal},
    {"a_shape($,1,3)", a_shape},
    {"blocks($)=\"h % 2 == 0 ? i >= j : j % 3 == 0\"", mixed},
};
enum { NUM_PATTERNS = sizeof patterns / sizeof *patterns, NUM_SYMBOLS = FK_MASK_NUM_SYMBOLS };

static const struct block_size {
    const char *text;
    int rows, columns;
} sizes[] = {{"16", 16, 16}, {"64x16", 64, 16}, {"48x40", 48, 40}, {"1", 1, 1}};

typedef struct world {
    fk_expr_pool *pool;
    fk_problem p;
    fk_problem_terms terms;
} world;

/* "op ... PATTERN words" */
static world make_world(const char *op, const char *pattern, const char *size, const char *words) {
    char spelling[256];
    fk_error err = {.text = ""};
    world w = {.pool = fk_expr_pool_create()};
    const char *hole = strchr(pattern, '$');
    snprintf(spelling, sizeof spelling, "%s fp16 d64 %.*s%s%s%s", op, (int)(hole - pattern), pattern, size, hole + 1,
             words);
    if (fk_problem_read(spelling, &w.p, &err) != FK_OK) fail_msg("%s", err.text);
    if (fk_problem_terms_load(w.pool, &w.p, NULL, &w.terms, &err) != FK_OK) fail_msg("%s", err.text);
    return w;
}

static bool is_shown(const world *w, int q, int k, int h, int seqlen_q, int seqlen_k, int diag) {
    const char *names[NUM_SYMBOLS];
    const double values[NUM_SYMBOLS] = {q, k, 0, h, seqlen_q, seqlen_k, diag};
    for (int i = 0; i < NUM_SYMBOLS; ++i)
        names[i] = fk_mask_symbols[i].name;
    return fk_expr_eval(w->terms.mask.keep, &(fk_expr_env){.names = names, .values = values, .count = NUM_SYMBOLS}) !=
           0;
}

static void test_every_pattern_is_what_it_is_defined_as(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int n = 0; n < NUM_PATTERNS * 8; ++n) {
        const struct block_size size = sizes[n / NUM_PATTERNS % 4];
        const bool top_left = n / NUM_PATTERNS >= 4;
        const world w = make_world("fwd", patterns[n % NUM_PATTERNS].spelling, size.text, top_left ? " top-left" : "");
        const int seqlen_q = 1 + (int)random_below(&seed, 400), seqlen_k = 1 + (int)random_below(&seed, 400);
        const int diag = top_left ? 0 : seqlen_k - seqlen_q, blocks_k = (seqlen_k + size.columns - 1) / size.columns;
        for (int t = 0; t < 3000; ++t) {
            const int q = (int)random_below(&seed, seqlen_q), k = (int)random_below(&seed, seqlen_k);
            const int h = (int)random_below(&seed, 4);
            const int i = q + diag < 0 ? 0 : (q + diag) / size.rows, j = k / size.columns;
            const bool shown = patterns[n % NUM_PATTERNS].shown(i, j, h, blocks_k);
            if (is_shown(&w, q, k, h, seqlen_q, seqlen_k, diag) != shown)
                fail_msg("%s, blocks of %s, %d x %d: pair (%d, %d) of head %d must be %s",
                         patterns[n % NUM_PATTERNS].spelling, size.text, seqlen_q, seqlen_k, q, k, h,
                         shown ? "shown" : "hidden");
        }
        fk_expr_pool_destroy(w.pool);
    }
}

/* Files without a row above have not been looked at. */
static void test_every_file_has_a_row(void **state) {
    (void)state;
    static const char prefix[] = "templates/pattern/", other[] = "block_bits"; /* its blocks are run-time values */
    for (const fk_embedded_file *file = fk_embedded; file->path; ++file) {
        if (strncmp(file->path, prefix, sizeof prefix - 1) != 0) continue;
        const char *name = file->path + sizeof prefix - 1;
        const size_t length = strcspn(name, ".");
        bool found = strncmp(name, other, length) == 0;
        for (int i = 0; i < NUM_PATTERNS; ++i)
            found = found || (strncmp(patterns[i].spelling, name, length) == 0 && patterns[i].spelling[length] == '(');
        if (!found) fail_msg("%s", file->path);
        fk_term_kind kind;
        assert_true(fk_term_find(name, length, &kind) && kind == FK_TERM_PATTERN); /* the last that is looked for */
    }
}

/* ---- tiles ---- */

static fk_interval judge(const world *w, int q, int rows, int k, int columns, int h, int seqlen) {
    const char *names[NUM_SYMBOLS];
    const fk_interval box[NUM_SYMBOLS] = {{q, q + rows - 1}, {k, k + columns - 1}, {0, 0}, {h, h},
                                          {seqlen, seqlen},  {seqlen, seqlen},     {0, 0}};
    for (int i = 0; i < NUM_SYMBOLS; ++i)
        names[i] = fk_mask_symbols[i].name;
    return fk_expr_bounds(w->terms.mask.keep, &(fk_interval_env){names, box, NUM_SYMBOLS, false});
}

/* A tile within a block carries no element test: it is empty or full. */
static void test_tiles_within_blocks_are_decided(void **state) {
    (void)state;
    for (int n = 0; n < NUM_PATTERNS; ++n) {
        const world w = make_world("fwd", patterns[n].spelling, "128", "");
        for (int q = 0; q < 2048; q += 64) {
            for (int k = 0; k < 2048; k += 128) {
                const fk_interval keep = judge(&w, q, 64, k, 128, 1, 2048);
                const double shown = patterns[n].shown(q / 128, k / 128, 1, 16);
                if (keep.lo != shown || keep.hi != shown)
                    fail_msg("%s: tile (%d, %d) is [%g, %g]", patterns[n].spelling, q, k, keep.lo, keep.hi);
            }
        }
        fk_expr_pool_destroy(w.pool);
    }
}

/* What a kernel asks for a row of tiles of a long sequence: each run of 32 tiles at once, then the tiles of those that
 * are left open. Few may be: the search must cost less than the tiles that it finds. */
static void test_searches_are_short(void **state) {
    (void)state;
    enum { TILES = 8192, SEQLEN = TILES * 128, ROWS = 64 };
    static const struct {
        const char *spelling;
        double open; /* words in the mean */
    } cases[] = {{"butterfly($)", 9}, {"bigbird($,1,1,3)", 5.2}, {"longformer($,4,3,1)", 3},
                 {"local($,4)", 2},   {"a_shape($,1,4)", 2.2},   {"block_diagonal($)", 1}};
    uint64_t seed = 3;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; ++n) {
        const world w = make_world("fwd", cases[n].spelling, "128", "");
        int open = 0;
        for (int t = 0; t < ROWS; ++t) {
            const int row = 1 + (int)random_below(&seed, TILES - 1); /* 0 may be global */
            for (int word = 0; word < TILES / 32; ++word) {
                const fk_interval keep = judge(&w, row * 128, 128, word * 32 * 128, 32 * 128, 0, SEQLEN);
                open += keep.lo != keep.hi;
            }
        }
        if (open > cases[n].open * ROWS)
            fail_msg("%s: %g words a row are open", cases[n].spelling, open / (double)ROWS);
        fk_expr_pool_destroy(w.pool);
    }
}

/* ---- spellings ---- */

static void test_spellings(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"fwd fp16 d64 butterfly(128)", "fwd fp16 d64 butterfly(128)"},
        {"fwd fp16 d64 butterfly( 128x128, 0 , 0 ) dropout", "fwd fp16 d64 butterfly(128) dropout"},
        {"fwd fp16 d64 butterfly(64x128,0,2)", "fwd fp16 d64 butterfly(64x128,0,2)"},
        {"fwd fp16 d64 bigbird(64,1,1,3,0) causal", "fwd fp16 d64 bigbird(64) causal"},
        {"fwd fp16 d64 bigbird(64,1,1,5)", "fwd fp16 d64 bigbird(64,1,1,5)"},
        {"fwd fp16 d64 local(24x1,3)", "fwd fp16 d64 local(24x1,3)"},
        {"fwd fp16 d64 blocks(64)=\"i==j\" window(5,0)", "fwd fp16 d64 blocks(64)=\"i == j\" window(5,0)"},
        {"fwd fp16 d64 blocks(64x16)=\"i<j\"", "fwd fp16 d64 blocks(64x16)=\"i < j\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        fk_problem p, again;
        fk_error err = {.text = ""};
        char text[FK_MAX_SPELLING];
        if (fk_problem_read(rows[i][0], &p, &err) != FK_OK) fail_msg("%s", err.text);
        assert_int_equal(fk_problem_write(&p, text, sizeof text, &err), FK_OK);
        assert_string_equal(text, rows[i][1]);
        assert_int_equal(fk_problem_read(text, &again, &err), FK_OK);
        assert_memory_equal(&p, &again, sizeof p);
    }
}

static void test_bad_spellings_are_explained(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"butterfly", "butterfly: expected the size of its blocks, such as butterfly(128)"},
        {"butterfly(0)", "butterfly is 0: must be from 1 to 1073741824"},
        {"butterfly(64x0)", "butterfly is 0: must be from 1 to 1073741824"},
        {"butterfly(64x)", "butterfly: expected an integer"},
        {"butterfly(64x64x64)", "butterfly: expected , or )"},
        {"butterfly(64,1,2,3)", "pattern butterfly has 5 values: must be from 2 to 4 (rows,columns,stride=0,global=0)"},
        {"local(64)", "pattern local has 2 values: must be 3 (rows,columns,window)"},
        {"longformer(64)",
         "pattern longformer has 2 values: must be from 3 to 5 (rows,columns,window,dilation=1,global=0)"},
        {"bigbird(64,1,2,3,4,5,6)", "pattern bigbird has 8 values: must be from 2 to 6"},
        {"bigbird(64,1,2,3,4,5,6,7)", "bigbird has more than 8 values"},
        {"strided(64,0)", "stride of pattern strided is 0: must be from 1 to 1073741824"},
        {"softcap(0)", "cap of score softcap is 0: must be a number from -3.40282e+38 to 3.40282e+38, and not 0"},
        {"bigbird(64,1,1,9)", "random of pattern bigbird is 9: must be from 0 to 8"},
        {"blocks(64)", "blocks: expected )=\"...\""},
        {"blocks(64,2)=\"i == j\"", "blocks: expected )=\"...\""},
        {"blocks=\"i == j\"", "unknown word \"blocks\""},
        {"blocks(64)=\"k == q\"", "unknown name 'k'; names: i, j, b, h, blocks_k;"},
        {"blocks(64)=\"i + j\"", "block must be a bool, such as i == j, not int"},
        {"burtterfly(3)", "patterns: blocks(ROWSxCOLUMNS)=\"...\" a_shape bigbird"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        char spelling[128];
        fk_problem p;
        fk_error err = {.text = ""};
        snprintf(spelling, sizeof spelling, "fwd fp16 d64 %s", rows[i][0]);
        assert_int_equal(fk_problem_read(spelling, &p, &err), FK_BAD_PROBLEM);
        assert_message(err.text, rows[i][1]);
    }
    fk_problem p = FK_PROBLEM_INIT, out;
    fk_error err;
    p.head_dim = 64;
    p.num_masks = 1;
    p.mask[0] = (fk_mask){.expr = "i == j", .num_values = 2, .value = {64, -2}};
    assert_int_equal(fk_problem_normalise(&p, &out, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "columns of blocks of pattern expression is -2: must be from 1 to");
}

/* ---- files ---- */

static void test_pattern_files_are_read_strictly(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"return { keep = 'i == j' }", "unknown field 'keep'; known: params block top_left"},
        {"return { }", "field 'block' is missing"},
        {"return { block = 'q == k' }", "unknown name 'q'; names: i, j, b, h, blocks_k"},
        {"return { params = { 'i' }, block = 'i == j' }", "param 'i': must be a new name"},
        {"return { params = { { 'a', 'float' } }, block = 'i == j' }", "type \"float\": must be int, or an array's"},
        {"return { params = { { 'a', 'int', 0.5 } }, block = 'i == j' }", "param 'a': its default must be an integer"},
        {"return { params = { { 'a', 'int', 1 }, 'c' }, block = 'i == j' }",
         "param 'c': needs a default, as the one before"},
        {"return { params = { { 'a', 'int', 1 }, { 'c', 'int' } }, block = 'i == j' }",
         "param 'c': needs a default, as the one before it has"},
        {"return { params = { { 'a', 'int', 3, 2 } }, block = 'i == j' }", "its limit must be an integer from 3 to"},
        {"return { params = { { 'a', 'int', 3, nil, 4 } }, block = 'i == j' }",
         "its least value must be an integer from"},
        {"return { params = { 'a', 'c', 'd', 'e', 'f', 'g', 'm' }, block = 'i == j' }", "more than 6 scalar params"},
        {"return { top_left = 3, block = 'i == j' }", "field 'top_left' is 3"},
        {"return { params = { 'a' }, block = 'i == j' }", "has 1 params: must have 0"},
    };
    fk_problem p;
    fk_error err;
    assert_int_equal(fk_problem_read("fwd fp16 d64 block_diagonal(64)", &p, &err), FK_OK);
    const temp_dir dir = temp_dir_create();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        fk_problem_terms terms;
        temp_dir_write(&dir, "pattern/block_diagonal.lua", rows[i][0]);
        assert_int_equal(fk_problem_terms_load(pool, &p, dir.path, &terms, &err), FK_TEMPLATE_ERROR);
        assert_message(err.text, rows[i][1]);
        fk_expr_pool_destroy(pool);
    }
    temp_dir_remove(&dir);
}

static void test_a_pattern_file_is_a_pattern(void **state) {
    (void)state;
    fk_problem p;
    fk_error err;
    char text[FK_MAX_SPELLING];
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "pattern/stairs.lua", "return { params = { { 'n', 'int', 2 } }, block = 'i / n == j / n' }");
    assert_int_equal(fk_problem_read("fwd fp16 d64 stairs(32)", &p, &err), FK_BAD_PROBLEM);
    setenv("FLASHKILN_TEMPLATE_DIR", dir.path, 1);
    assert_int_equal(fk_problem_read("fwd fp16 d64 stairs(32,2)", &p, &err), FK_OK);
    assert_int_equal(fk_problem_write(&p, text, sizeof text, &err), FK_OK);
    assert_string_equal(text, "fwd fp16 d64 stairs(32)");
    fk_expr_pool *pool = fk_expr_pool_create();
    static fk_problem_terms terms;
    assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &terms, &err), FK_OK);
    assert_int_equal(terms.mask.num_params, 0); /* its values are in the text */
    char *keep = NULL;
    assert_int_equal(fk_expr_print(terms.mask.keep, FK_EXPR_C, &keep, &err), FK_OK);
    assert_string_equal(keep, "(max(q + diag, 0) >> 5) / 2 == (k >> 5) / 2");
    free(keep);
    fk_expr_pool_destroy(pool);
    unsetenv("FLASHKILN_TEMPLATE_DIR");
    temp_dir_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern_is_what_it_is_defined_as),
        cmocka_unit_test(test_every_file_has_a_row),
        cmocka_unit_test(test_tiles_within_blocks_are_decided),
        cmocka_unit_test(test_searches_are_short),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_bad_spellings_are_explained),
        cmocka_unit_test(test_pattern_files_are_read_strictly),
        cmocka_unit_test(test_a_pattern_file_is_a_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
