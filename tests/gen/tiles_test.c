/* Tile counts against brute force: a tile that is called empty has no visible key, one that is called full has no
 * hidden one. Where bounds are closed-form, nothing is lost at all. */
#include "gen/plan.h"
#include "test.h"

typedef struct world {
    fk_problem p;
    fk_problem_terms terms;
    fk_expr_pool *pool;
    fk_shape shape;
    int block_m, block_n;
} world;

static bool keep(const world *w, int64_t q, int64_t k, int64_t h) {
    const char *names[7 + FK_MAX_MASKS * FK_MAX_MASK_VALUES] = {"q", "k", "b", "h", "seqlen_q", "seqlen_k", "diag"};
    const int64_t diag = w->p.align == FK_TOP_LEFT ? 0 : w->shape.seqlen_k - w->shape.seqlen_q;
    double values[7 + FK_MAX_MASKS * FK_MAX_MASK_VALUES] = {
        (double)q, (double)k, 0, (double)h, (double)w->shape.seqlen_q, (double)w->shape.seqlen_k, (double)diag};
    for (int i = 0; i < w->terms.mask.num_params; ++i) {
        names[7 + i] = w->terms.mask.param[i].name;
        values[7 + i] = w->terms.mask.param[i].value;
    }
    const fk_expr_env env = {.names = names, .values = values, .count = 7 + (size_t)w->terms.mask.num_params};
    return !w->terms.mask.keep || fk_expr_eval(w->terms.mask.keep, &env) != 0;
}

/* Of heads first to last together: what some sees, and what all see. `strict`: a full tile's queries past the end, if
 * there are any, see all keys, too, as bounds have it; they need not, as they have p = 0. */
static fk_tile_counts brute_force(const world *w, int64_t first, int64_t last, bool strict) {
    fk_tile_counts out = {0, 0, 0};
    for (int64_t m = 0; m < w->shape.seqlen_q; m += w->block_m) {
        for (int64_t n = 0; n < w->shape.seqlen_k; n += w->block_n) {
            /* A tile that is cut is masked; in the backward pass queries past the end are no cut, as they have p = 0.
             */
            const bool backward = w->p.op == FK_BACKWARD;
            bool any = false, all = backward || n + w->block_n <= w->shape.seqlen_k;
            for (int64_t q = m; q < m + w->block_m && (backward || q < w->shape.seqlen_q); ++q) {
                for (int64_t k = n; k < n + w->block_n && k < w->shape.seqlen_k; ++k) {
                    for (int64_t h = first; h <= last; ++h) {
                        const bool seen = keep(w, q, k, h);
                        any = any || (seen && q < w->shape.seqlen_q);
                        all = all && (seen || (!strict && q >= w->shape.seqlen_q));
                    }
                }
            }
            ++*(!any ? &out.empty : all ? &out.full : &out.partial);
        }
    }
    return out;
}

static world make_world(const char *spelling, uint64_t *seed) {
    static const int blocks[] = {16, 32, 64};
    world w = {.pool = fk_expr_pool_create()};
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &w.p, &err) != FK_OK) fail_msg("%s", err.text);
    if (fk_problem_terms_load(w.pool, &w.p, NULL, &w.terms, &err) != FK_OK) fail_msg("%s", err.text);
    w.shape = (fk_shape){1, 2, 2, 0, 0};
    w.shape.seqlen_q = 1 + random_below(seed, 150); /* in this order, whatever the compiler */
    w.shape.seqlen_k = 1 + random_below(seed, 150);
    w.block_m = blocks[random_below(seed, 3)];
    w.block_n = blocks[random_below(seed, 3)];
    return w;
}

static fk_tile_counts count(const world *w) {
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = w->shape;
    const fk_plan_info plan = {.block_m = w->block_m, .block_n = w->block_n};
    fk_tile_counts out;
    if (fk_plan_tiles(&w->p, &plan, &options, &out) != FK_OK) fail_msg("%s", fk_last_error());
    return out;
}

static void test_closed_forms_are_exact(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int i = 0; i < 300; ++i) {
        char spelling[128];
        /* Bounds that contradict each other hide every key, but intervals over rows cannot know. */
        int left = (int)random_below(&seed, 80) - 10, right = (int)random_below(&seed, 80) - 10;
        if (left + right < 0) right = -left;
        if (i % 10 == 4 || i % 10 == 5 || i % 10 == 9) left = abs(left), right = abs(right);
        static const char *const forms[] = {
            "fwd fp16 d8",
            "fwd fp16 d8 causal",
            "fwd fp16 d8 causal top-left",
            "fwd fp16 d8 window(%d,%d)",
            "fwd fp16 d8 window(%d,%d) causal top-left",
            "fwd fp16 d8 keep=\"k - %d < q && q - 20 <= k + %d\"",
            "bwd fp16 d8 causal",
            "bwd fp16 d8 causal top-left",
            "bwd fp16 d8 window(%d,%d)",
            "bwd fp16 d8 keep=\"k - %d < q && q - 20 <= k + %d\"",
        };
        enum { NUM_FORMS = sizeof forms / sizeof *forms };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(spelling, sizeof spelling, forms[i % NUM_FORMS], left, right);
#pragma GCC diagnostic pop
        const world w = make_world(spelling, &seed);
        assert_null(w.terms.mask.split.residual);
        const fk_tile_counts counted = count(&w), true_counts = brute_force(&w, 0, 1, true);
        if (memcmp(&counted, &true_counts, sizeof counted) != 0) {
            fail_msg("%s, %lld x %lld, tiles %d x %d: counted %lld %lld %lld, are %lld %lld %lld", spelling,
                     (long long)w.shape.seqlen_q, (long long)w.shape.seqlen_k, w.block_m, w.block_n,
                     (long long)counted.empty, (long long)counted.partial, (long long)counted.full,
                     (long long)true_counts.empty, (long long)true_counts.partial, (long long)true_counts.full);
        }
        fk_expr_pool_destroy(w.pool);
    }
}

/* A random predicate: comparisons of small expressions, joined. */
static void put_predicate(char *out, size_t size, uint64_t *seed, int depth) {
    static const char *const atoms[] = {"q",          "k",       "h",      "diag",   "seqlen_k", "3",
                                        "17",         "40",      "q / 8",  "k / 16", "(q ^ k)",  "abs(q - k)",
                                        "min(q, 30)", "(q + k)", "k % 32", "q * 2"};
    static const char *const compare[] = {"<", "<=", ">", ">=", "==", "!="};
    if (depth == 0 || random_below(seed, 3) == 0) {
        snprintf(out, size, "%s %s %s", atoms[random_below(seed, 16)], compare[random_below(seed, 6)],
                 atoms[random_below(seed, 16)]);
        return;
    }
    char a[128], b[128];
    put_predicate(a, sizeof a, seed, depth - 1);
    put_predicate(b, sizeof b, seed, depth - 1);
    const int n = snprintf(out, size, "(%s) %s (%s)", a, random_below(seed, 2) ? "&&" : "||", b);
    assert_true(n > 0 && (size_t)n < size);
}

/* Blocks that share a tile are asked about one by one where intervals of several say nothing. */
static void test_blocks_of_any_size_are_exact(void **state) {
    (void)state;
    static const char *const spellings[] = {
        "fwd fp16 d8 blocks(16)=\"hash(i, j) % 3 == 0\"",
        "fwd fp16 d8 blocks(24x40)=\"hash(i, j) % 3 == 0\"",
        "bwd fp16 d8 blocks(16)=\"hash(i, j) % 3 == 0\"",
        "bwd fp16 d8 blocks(16x24)=\"hash(j, i) % 4 == 0\"",
        "fwd fp16 d8 blocks(64)=\"(i ^ j) % 3 == 0\"",
        "fwd fp16 d8 blocks(48)=\"hash(i, 1) == hash(i, 1) && hash(i, j) % 2 == 0\" top-left",
    };
    uint64_t seed = 5;
    for (int i = 0; i < 240; ++i) {
        world w = make_world(spellings[i % 6], &seed);
        if (i % 6 == 4) w.block_m = w.block_n = 64; /* tiles that rows of blocks are moved against */
        if (w.p.op == FK_BACKWARD) w.shape.seqlen_q = (w.shape.seqlen_q + 63) / 64 * 64; /* no query is past the end */
        const fk_tile_counts counted = count(&w), true_counts = brute_force(&w, 0, 0, true);
        if (memcmp(&counted, &true_counts, sizeof counted) != 0)
            fail_msg("%s: %lld x %lld in %d x %d: %lld, %lld, %lld; true %lld, %lld, %lld", spellings[i % 6],
                     (long long)w.shape.seqlen_q, (long long)w.shape.seqlen_k, w.block_m, w.block_n,
                     (long long)counted.empty, (long long)counted.partial, (long long)counted.full,
                     (long long)true_counts.empty, (long long)true_counts.partial, (long long)true_counts.full);
        fk_expr_pool_destroy(w.pool);
    }
}

static void test_random_predicates_are_never_misjudged(void **state) {
    (void)state;
    uint64_t seed = 11;
    int skipped = 0, bare = 0;
    for (int i = 0; i < 400; ++i) {
        char predicate[200], spelling[256];
        put_predicate(predicate, sizeof predicate, &seed, 2);
        snprintf(spelling, sizeof spelling, "%s fp16 d8 keep=\"%s\"", i % 3 ? "fwd" : "bwd", predicate);
        const world w = make_world(spelling, &seed);
        const fk_tile_counts counted = count(&w), of_0 = brute_force(&w, 0, 0, false),
                             of_1 = brute_force(&w, 1, 1, false);
        if (2 * counted.empty > of_0.empty + of_1.empty || 2 * counted.full > of_0.full + of_1.full ||
            counted.empty + counted.partial + counted.full != of_0.empty + of_0.partial + of_0.full) {
            fail_msg("%s, %lld x %lld, tiles %d x %d", spelling, (long long)w.shape.seqlen_q,
                     (long long)w.shape.seqlen_k, w.block_m, w.block_n);
        }
        skipped += counted.empty > 0;
        bare += counted.full > 0;
        fk_expr_pool_destroy(w.pool);
    }
    assert_true(skipped > 50 && bare > 50); /* and the classes do occur */
}

/* Tile by tile: of each head alone, and the same sums. */
static void test_maps_are_what_is_counted(void **state) {
    (void)state;
    uint64_t seed = 21;
    static const char *const spellings[] = {"fwd fp16 d8 causal",
                                            "fwd fp16 d8 window(30,9) top-left",
                                            "fwd fp16 d8 butterfly(16)",
                                            "fwd fp16 d8 local(24x40,1) causal",
                                            "fwd fp16 d8 keep=\"h == 0 ? k <= q : k % 7 < 3\"",
                                            "fwd fp16 d8"};
    for (int i = 0; i < 60; ++i) {
        const world w = make_world(spellings[i % 6], &seed);
        fk_plan_options options = FK_PLAN_OPTIONS_INIT;
        options.shape = w.shape;
        const fk_plan_info plan = {.block_m = w.block_m, .block_n = w.block_n};
        const fk_tile_counts counted = count(&w);
        int64_t sums[3] = {0, 0, 0};
        for (int64_t h = 0; h < 2; ++h) {
            uint8_t map[150 / 16 * 11];
            const size_t rows = (size_t)((w.shape.seqlen_q + w.block_m - 1) / w.block_m);
            const size_t size = rows * (size_t)((w.shape.seqlen_k + w.block_n - 1) / w.block_n);
            const fk_tile_counts true_counts = brute_force(&w, h, h, true);
            if (fk_plan_tile_map(&w.p, &plan, &options, h, map, size) != FK_OK) fail_msg("%s", fk_last_error());
            int64_t own[3] = {0, 0, 0};
            for (size_t t = 0; t < size; ++t)
                ++own[map[t]], ++sums[map[t]];
            assert_true(own[FK_TILE_EMPTY] <= true_counts.empty && own[FK_TILE_FULL] <= true_counts.full);
        }
        assert_true(llabs(sums[FK_TILE_EMPTY] - 2 * counted.empty) <= 1);
        assert_true(llabs(sums[FK_TILE_FULL] - 2 * counted.full) <= 1);
        fk_expr_pool_destroy(w.pool);
    }
    uint8_t map[4];
    fk_problem p;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = (fk_shape){1, 2, 2, 128, 100};
    const fk_plan_info plan = {.block_m = 64, .block_n = 64};
    assert_int_equal(fk_problem_parse("fwd fp16 d64 causal top-left", &p), FK_OK);
    assert_int_equal(fk_plan_tile_map(&p, &plan, &options, 1, map, 4), FK_OK);
    assert_memory_equal(map, "\1\0\2\1", 4);
    assert_int_equal(fk_problem_parse("bwd fp16 d64", &p), FK_OK); /* which masks no keys past the end */
    assert_int_equal(fk_plan_tile_map(&p, &plan, &options, 1, map, 4), FK_OK);
    assert_memory_equal(map, "\2\2\2\2", 4);
    assert_int_equal(fk_plan_tile_map(&p, &plan, &options, 2, map, 4), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "head is 2: must be from 0 to 1");
    assert_int_equal(fk_plan_tile_map(&p, &plan, &options, 0, map, 3), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "size is 3: must be 2 x 2 tiles");
}

static void test_long_sequences_are_counted_exactly(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = (fk_shape){1, 1, 1, 65536, 65536};
    const fk_plan_info plan = {.block_m = 64, .block_n = 64};
    fk_problem p;
    fk_tile_counts out;
    assert_int_equal(fk_problem_parse("fwd fp16 d64 causal", &p), FK_OK);
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_OK);
    assert_int_equal(out.partial, 1024);
    assert_int_equal(out.full, 1024 * 1023 / 2);
    assert_int_equal(out.empty, 1024 * 1023 / 2);
    /* Blocks of 128 by a pattern that is no bound: decided without looking at a million tiles. */
    assert_int_equal(fk_problem_parse("fwd fp16 d64 keep=\"q / 128 == k / 128\"", &p), FK_OK);
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_OK);
    assert_int_equal(out.partial + out.full, 2048);
    assert_int_equal(out.full, 2048);
}

/* Planning looks at ranges of very many tiles, of which half show nothing here, as at one; what is drawn does not. */
static void test_planning_takes_long_walks_in_ranges(void **state) {
    (void)state;
    static const struct {
        int64_t tiles, max_ctas, visited;
    } cases[] = {{1 << 14, 2, 1 << 13}, {1 << 18, 2, 1 << 18}, {1 << 18, INT64_MAX, 1 << 17}};
    uint64_t seed = 1;
    world w = make_world("fwd fp16 d64 keep=\"k / 16 % 2 == 0\"", &seed);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        fk_tile_totals out;
        w.shape = (fk_shape){1, 1, 1, 64, 16 * cases[i].tiles};
        fk_tiles_count(&w.p, &w.terms.mask, false, &w.shape, 64, 16, cases[i].max_ctas, &out);
        assert_true(out.num_ctas == 1 && out.num_walked == cases[i].tiles);
        assert_int_equal(out.partial + out.full, cases[i].visited);
    }
    fk_expr_pool_destroy(w.pool);
}

/* Of a table nothing is known but its blocks: tiles within one need no element test, and larger ones see more. */
static void test_tables_are_estimated(void **state) {
    (void)state;
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.shape = (fk_shape){2, 3, 3, 8192, 8192};
    const fk_plan_info plan = {.block_m = 64, .block_n = 128};
    const int64_t tiles = 128 * 64;
    fk_problem p;
    fk_tile_counts out;
    assert_int_equal(fk_problem_parse("fwd fp16 d64 block_bits(64x128)", &p), FK_OK);
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_OK);
    assert_int_equal(out.partial, 0);
    assert_true(out.full > tiles * 23 / 100 && out.full < tiles * 27 / 100);
    assert_int_equal(fk_problem_parse("fwd fp16 d64 block_bits(32x64)", &p), FK_OK);
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_OK);
    assert_true(out.partial > tiles * 66 / 100 && out.partial < tiles * 71 / 100); /* 1 - (3/4)^4 is 0.684 */
    assert_true(out.full < tiles * 2 / 100);
}

static void test_bad_arguments_are_named(void **state) {
    (void)state;
    static const struct {
        fk_shape shape;
        const char *spelling, *message;
    } cases[] = {
        {{-1, 0, 0, 0, 0}, "fwd fp16 d64", "shape.batch is -1: must be from 1 to 1073741824"},
        {{0, 0, 0, 1ll << 31, 0}, "fwd fp16 d64", "shape.seqlen_q is 2147483648: must be from 1 to"},
        {{0, 0, 0, 5, -7}, "fwd fp16 d64", "shape.seqlen_k is -7: must be from 1 to"},
        {{0, -4, 0, 0, 0}, "fwd fp16 d64", "shape.num_heads_q is -4: must be from 1 to"},
        {{0, 0, -4, 0, 0}, "fwd fp16 d64 gqa", "shape.num_heads_kv is -4: must be from 1 to"},
        {{0, 6, 4, 0, 0}, "fwd fp16 d64 gqa", "shape.num_heads_q is 6: must be a multiple of num_heads_kv, 4"},
        {{0, 8, 4, 0, 0}, "fwd fp16 d64", "shape.num_heads_q is 8: must be equal to num_heads_kv, 4 (without gqa)"},
    };
    fk_plan_info plan = {.block_m = 64, .block_n = 64};
    fk_problem p;
    fk_tile_counts out;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_plan_options options = FK_PLAN_OPTIONS_INIT;
        options.shape = cases[i].shape;
        assert_int_equal(fk_problem_parse(cases[i].spelling, &p), FK_OK);
        assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_BAD_ARGUMENT);
        assert_message(fk_last_error(), cases[i].message);
    }
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.rule = 2;
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "rule is 2: must be 0 (model) or 1 (paper)");
    options.struct_size = 1;
    assert_int_equal(fk_plan_tiles(&p, &plan, &options, &out), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "fk_plan_options.struct_size is 1: must be");
    plan.block_n = 0;
    assert_int_equal(fk_plan_tiles(&p, &plan, NULL, &out), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "plan is 64 x 0: block_m and block_n must be positive");
    assert_int_equal(fk_plan_tiles(&p, NULL, NULL, &out), FK_BAD_ARGUMENT);
    assert_message(fk_last_error(), "plan is null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_forms_are_exact),
        cmocka_unit_test(test_blocks_of_any_size_are_exact),
        cmocka_unit_test(test_random_predicates_are_never_misjudged),
        cmocka_unit_test(test_long_sequences_are_counted_exactly),
        cmocka_unit_test(test_planning_takes_long_walks_in_ranges),
        cmocka_unit_test(test_maps_are_what_is_counted),
        cmocka_unit_test(test_tables_are_estimated),
        cmocka_unit_test(test_bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
