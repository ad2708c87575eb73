/* Score terms: their derivatives against finite differences of the whole chain, and what templates see of them. */
#include "gen/generate.h"
#include "gen/term.h"
#include "test.h"

#include "gen/embedded.h"

#include <math.h>

/* ---- derivatives ---- */

enum { NUM_FIXED = 8 };

/* Values of all names, and an element of each array, which any index reads: 0.3 + 0.1 (its place) + bumps. */
typedef struct world {
    const fk_problem_terms *terms;
    const char *name[NUM_FIXED + FK_MAX_SCORES * FK_MAX_SCORE_VALUES];
    double value[NUM_FIXED + FK_MAX_SCORES * FK_MAX_SCORE_VALUES];
    const char *bumped_array; /* its element at bumped_index is larger by `bump` */
    int64_t bumped_index[FK_MAX_RANK];
    double bump;
} world;

static double read_array(void *user, const char *array, const int64_t *index, int rank) {
    const world *w = user;
    const int place = fk_array_list_find(&w->terms->arrays, array);
    if (w->terms->arrays.decl[place].type == FK_INT32) return (double)(index[0] % 3);
    double value = 0.3 + 0.1 * place;
    for (int d = 0; d < rank; ++d)
        value += 0.01 * (double)(index[d] % 7) * (d + 1);
    const bool same = w->bumped_array && strcmp(array, w->bumped_array) == 0 &&
                      memcmp(index, w->bumped_index, sizeof *index * (size_t)rank) == 0;
    return same ? value + w->bump : value;
}

static fk_expr_env env_of(world *w) {
    return (fk_expr_env){w->name, w->value, NUM_FIXED + (size_t)w->terms->score.num_params, read_array, w, false};
}

static void world_init(world *w, const fk_problem_terms *terms, uint64_t *seed) {
    static const char *const fixed[NUM_FIXED] = {"q", "k", "b", "h", "seqlen_q", "seqlen_k", "diag", "s"};
    memset(w, 0, sizeof *w);
    w->terms = terms;
    for (int i = 0; i < NUM_FIXED; ++i) {
        w->name[i] = fixed[i];
        w->value[i] = (double)random_below(seed, 20);
    }
    for (int i = 0; i < terms->score.num_params; ++i) {
        w->name[NUM_FIXED + i] = terms->score.param[i].name;
        w->value[NUM_FIXED + i] = terms->score.param[i].value;
    }
}

/* All terms from the raw score; with the derivative by it where asked. */
static double chain(world *w, double s, double *ds) {
    double slope = 1;
    for (int i = 0; i < w->terms->score.num_terms; ++i) {
        const fk_expr_env env = env_of(w);
        w->value[NUM_FIXED - 1] = s;
        slope *= fk_expr_eval(w->terms->score.term[i].ds, &env);
        s = fk_expr_eval(w->terms->score.term[i].value, &env);
    }
    if (ds) *ds = slope;
    return s;
}

/* d chain / d element of a read, by the rule that templates follow: its own term's derivative at the score before that
 * term, times the slopes of the terms behind it; summed over the reads that meet the element. */
static double derivative_by_element(world *w, double s, int array) {
    double sum = 0;
    for (int i = 0; i < w->terms->score.num_terms; ++i) {
        const fk_score_term *term = &w->terms->score.term[i];
        const fk_expr_env env = env_of(w);
        w->value[NUM_FIXED - 1] = s;
        sum *= fk_expr_eval(term->ds, &env);
        for (int j = 0; j < term->num_reads; ++j) {
            bool meets = term->read[j].array == array;
            for (int d = 0; meets && fk_expr_index(term->read[j].element, d); ++d)
                meets = (int64_t)fk_expr_eval(fk_expr_index(term->read[j].element, d), &env) == w->bumped_index[d];
            if (meets) sum += fk_expr_eval(term->read[j].derivative, &env);
        }
        s = fk_expr_eval(term->value, &env);
    }
    return sum;
}

static void check_slope(const char *spelling, const char *by, double up, double down, double step, double got) {
    const double want = (up - down) / (2 * step);
    if (!(fabs(want - got) <= 1e-6 * (1 + fabs(want)))) fail_msg("%s by %s: %.9g, not %.9g", spelling, by, got, want);
}

static void check_point(const char *spelling, world *w, double s) {
    const double step = 1e-5;
    double ds;
    chain(w, s, &ds);
    check_slope(spelling, "s", chain(w, s + step, NULL), chain(w, s - step, NULL), step, ds);
    for (int i = 0; i < w->terms->score.num_terms; ++i) {
        const fk_score_term *term = &w->terms->score.term[i];
        for (int j = 0; j < term->num_reads; ++j) {
            const fk_expr_env env = env_of(w);
            const fk_score_read *read = &term->read[j];
            w->bumped_array = w->terms->arrays.decl[read->array].name;
            for (int d = 0; fk_expr_index(read->element, d); ++d)
                w->bumped_index[d] = (int64_t)fk_expr_eval(fk_expr_index(read->element, d), &env);
            w->bump = step;
            const double up = chain(w, s, NULL);
            w->bump = -step;
            const double down = chain(w, s, NULL);
            w->bump = 0;
            check_slope(spelling, w->bumped_array, up, down, step, derivative_by_element(w, s, read->array));
        }
    }
}

static void test_derivatives_match_finite_differences(void **state) {
    (void)state;
    static const char *const spellings[] = {
        "bwd fp16 d64 softcap(3.5)",
        "bwd fp16 d64 alibi grad=slope",
        "bwd fp16 d64 softcap(2) alibi softcap(5) grad=slope",
        "bwd fp16 d64 bias grad=bias",
        "bwd fp16 d64 relative(4) grad=table softcap(1.5)",
        "bwd fp16 d64 array=slope:float[h] grad=slope score=\"s + 0.1 * tanh(s) - abs(q - k) * slope[h]\"",
        "bwd fp16 d64 array=u:float[q] array=v:float[k] grad=u grad=v score=\"s + u[q] * v[k] * s\" "
        "score=\"log(1 + exp(s)) * v[k]\"",
        "bwd fp16 d64 array=t:float[] grad=t score=\"s * t[k % 3] + t[q % 3] * t[q % 3]\"",
        "bwd fp16 d64 array=t:float[h][] grad=t score=\"q < k ? s / (1 + exp(t[h][0])) : max(t[h][k], s)\"",
    };
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; ++i) {
        fk_problem p;
        fk_problem_terms terms;
        fk_error err = {.text = ""};
        fk_expr_pool *pool = fk_expr_pool_create();
        if (fk_problem_read(spellings[i], &p, &err) != FK_OK) fail_msg("%s", err.text);
        if (fk_problem_terms_load(pool, &p, NULL, &terms, &err) != FK_OK) fail_msg("%s", err.text);
        for (int j = 0; j < 50; ++j) {
            world w;
            world_init(&w, &terms, &seed);
            check_point(spellings[i], &w, (double)random_below(&seed, 1000) / 167 - 3);
        }
        fk_expr_pool_destroy(pool);
    }
}

/* ---- what a problem's terms become ---- */

static void load(fk_expr_pool *pool, const char *spelling, fk_problem_terms *out) {
    fk_problem p;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    if (fk_problem_terms_load(pool, &p, NULL, out, &err) != FK_OK) fail_msg("%s", err.text);
}

static void test_terms_keep_their_order(void **state) {
    (void)state;
    fk_problem_terms t;
    fk_expr_pool *pool = fk_expr_pool_create();
    load(pool, "fwd fp16 d64 key_padding array=w:float[h][] alibi sink softcap(7) score=\"s + w[h][k / 2]\"", &t);
    assert_int_equal(t.score.num_terms, 3);
    assert_int_equal(t.score.num_sinks, 1);
    assert_int_equal(t.score.num_params, 1);
    assert_string_equal(t.score.param[0].name, "softcap2_cap");
    assert_true(t.score.param[0].is_float);
    static const char *const arrays[] = {"w", "slope", "sink", "length"}; /* the caller's, scores', masks' */
    static const uint32_t clamp[] = {2, 0, 0, 0};                         /* k / 2 is not k */
    assert_int_equal(t.arrays.count, 4);
    for (int i = 0; i < 4; ++i) {
        assert_string_equal(t.arrays.decl[i].name, arrays[i]);
        assert_int_equal(t.arrays.clamp[i], clamp[i]);
    }
    assert_int_equal(t.mask.split.num_upper, 1); /* k < length[b] is a closed-form bound */
    assert_null(t.mask.split.residual);
    load(pool, "fwd fp16 d64 prefix chunked(64) left_padding", &t); /* so are these */
    assert_null(t.mask.split.residual);
    fk_expr_pool_destroy(pool);
}

/* Which scores go by k in straight lines, and whether these are as steep for each q. */
static void test_lines(void **state) {
    (void)state;
    static const struct {
        const char *words;
        bool along, one_slope;
    } cases[] = {
        {"alibi", true, true},
        {"alibi score=\"s + 0.5 * k + q * q\"", true, true},
        {"array=c:float[h] array=d:float[q] score=\"s - c[h] * (3 * (q - k)) + d[q]\"", true, true},
        {"array=d:float[q] score=\"s + d[q] * k\"", true, false},
        {"score=\"s - 0.5 * (2 - k) * abs(q)\"", true, false},
        {"score=\"s - 0.5 * abs(q * k)\"", true, false},
        {"alibi score=\"s + 0.5 * k * k\"", false, true},
        {"score=\"0.5 * k + s - float(q)\"", true, true},
        {"score=\"s + (s > 0 ? 2.0 : 0.0)\" alibi", false, true}, /* something but s, whose derivative is 1 */
        {"score=\"2.0 * (0.5 * s - 0.05 * abs(q - k))\"", false, true},
        {"score=\"0.1 * k - (0.0 - s)\"", false, true},
        {"alibi softcap(20)", false, true},
        {"score=\"s + abs(0.5 * k - 3.2)\"", false, true}, /* bends between two keys */
    };
    fk_problem_terms t;
    fk_expr_pool *pool = fk_expr_pool_create();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char spelling[256];
        snprintf(spelling, sizeof spelling, "fwd fp16 d64 %s", cases[i].words);
        print_message("%s\n", spelling);
        load(pool, spelling, &t);
        assert_int_equal(t.score.along, cases[i].along);
        if (t.score.along) assert_int_equal(t.score.one_slope, cases[i].one_slope);
    }
    fk_expr_pool_destroy(pool);
}

static void test_gradients_need_a_reader(void **state) {
    (void)state;
    fk_problem p;
    fk_problem_terms t;
    fk_error err = {.text = ""};
    fk_expr_pool *pool = fk_expr_pool_create();
    assert_int_equal(fk_problem_read("bwd fp16 d64 array=w:float[h] grad=w softcap(3)", &p, &err), FK_OK);
    assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &t, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "grad=w: no score term reads it");
    fk_expr_pool_destroy(pool);
}

static void test_score_files_are_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *file, *message;
    } cases[] = {
        {"return { scor = 's' }", "templates/score/alibi.lua: unknown field 'scor'; known: params score sink"},
        {"return { }", "templates/score/alibi.lua: field 'score' is missing: must be text"},
        {"return { score = 's', sink = '1.0' }", "field 'score' is s: must be absent beside sink"},
        {"return { score = 'k' }", "templates/score/alibi.lua: expression, column 1: score must be a float"},
        {"return { sink = 'k' }", "templates/score/alibi.lua: expression, column 1: sink must be a float"},
        {"return { sink = 's' }", "templates/score/alibi.lua: expression, column 1: unknown name 's'"},
        {"return { sink = 'float(q)' }", "sink reads q or k"},
        {"return { params = { 's' }, score = 's' }", "param 's': must be a new name"},
        {"return { params = { { 'x', 'half' } }, score = 's' }", "type \"half\": must be int, float, or an array's"},
        {"return { params = { { 'x', 'float[h]' }, { 'x', 'int[h]' } }, score = 's' }",
         "param 'x': must be a new name"},
        {"return { params = { { 'x', 'float' } }, score = 's' }", "has 1 params: must have 0"},
        {"return { params = { { 'x', 'float', nil, 10, 1 } }, score = 's' }",
         "param 'x': its entry has more: must have at most 2"},
        {"return { params = { { 'p', 'float[h]' } }, score = 's' }", "the name of an array is \"p\""},
    };
    fk_problem p;
    fk_error err;
    assert_int_equal(fk_problem_read("fwd fp16 d64 alibi", &p, &err), FK_OK);
    const temp_dir dir = temp_dir_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        fk_problem_terms terms;
        temp_dir_write(&dir, "score/alibi.lua", cases[i].file);
        const fk_status status = fk_problem_terms_load(pool, &p, dir.path, &terms, &err);
        if (status == FK_OK) fail_msg("taken: %s", cases[i].file);
        assert_message(err.text, cases[i].message);
        fk_expr_pool_destroy(pool);
    }
    temp_dir_remove(&dir);
}

/* A word of a spelling is a mask or a score, not both. */
static void test_names_are_of_one_kind(void **state) {
    (void)state;
    int scores = 0;
    for (const fk_embedded_file *file = fk_embedded; file->path; ++file) {
        static const char prefix[] = "templates/score/";
        if (strncmp(file->path, prefix, sizeof prefix - 1) != 0) continue;
        const char *name = file->path + sizeof prefix - 1;
        char path[64];
        fk_term_kind kind;
        assert_true(fk_term_find(name, strcspn(name, "."), &kind) && kind == FK_TERM_SCORE);
        snprintf(path, sizeof path, "templates/mask/%s", name);
        assert_false(fk_template_exists(NULL, path));
        ++scores;
    }
    assert_true(scores >= 5);
}

static void test_factors_are_taken_out(void **state) {
    (void)state;
    static const struct {
        const char *text, *factor, *rest;
    } row[] = {
        {"abs(c) * tanh(s)", "abs(c)", "tanh(s)"},
        {"2 * s * abs(c)", "abs(c) * 2.0", "s"},
        {"c * s", "1.0", "c * s"},                 /* may be negative */
        {"abs(q) * s", "1.0", "abs(q) * s"},       /* not the same for all */
        {"abs(w[0]) * s", "1.0", "abs(w[0]) * s"}, /* may be negative, were it not for abs; reads are not looked at */
        {"2 * s + 1", "1.0", "2 * s + 1"},
        {"exp(c) * s", "exp(c)", "s"},
        {"(abs(c) + 1) * s", "abs(c) + 1", "s"},
        {"(abs(c) - 1) * s", "1.0", "(abs(c) - 1) * s"}, /* may be negative */
        {"-2 * s", "1.0", "-2 * s"},
        {"(abs(c) / 3) * s", "abs(c) / 3", "s"},
        {"(abs(c) * c) * s", "1.0", "abs(c) * c * s"},
        {"s * s", "1.0", "s * s"},
    };
    static const fk_expr_symbol symbols[] = {
        {"s", FK_EXPR_FLOAT, 0}, {"c", FK_EXPR_FLOAT, 0}, {"q", FK_EXPR_INT, 0}, {"w", FK_EXPR_FLOAT, 1}};
    static const char *const varying[] = {"s", "q", NULL};
    for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = NULL, *rest = NULL;
        char *factor_text = NULL, *rest_text = NULL;
        assert_int_equal(fk_expr_parse(pool, row[i].text, symbols, 4, &e, NULL), FK_OK);
        const fk_expr *factor = fk_expr_take_factor(pool, e, varying, &rest);
        assert_int_equal(fk_expr_print(factor, FK_EXPR_C, &factor_text, NULL), FK_OK);
        assert_int_equal(fk_expr_print(rest, FK_EXPR_C, &rest_text, NULL), FK_OK);
        assert_string_equal(factor_text, row[i].factor);
        assert_string_equal(rest_text, row[i].rest);
        free(factor_text);
        free(rest_text);
        fk_expr_pool_destroy(pool);
    }
}

/* fp32: what a soft cap multiplies by 1 / c is divided by c, and rounded once. */
static void test_quotients_are_rounded_once(void **state) {
    (void)state;
    static const char *const row[][2] = {
        {"abs(c) * tanh(s * (1 / abs(c)))", "abs(c) * tanh(s / abs(c))"},
        {"(1.0 / c) * s + 1", "s / c + 1.0"},
        {"s * (2 / c)", "s * (2 / c)"},
        {"s * (1 / c) * (1 / q)", "s / c * (1 / q)"}, /* a quotient of ints is one */
        {"w[q] / c", "w[q] / c"},
    };
    static const fk_expr_symbol symbols[] = {
        {"s", FK_EXPR_FLOAT, 0}, {"c", FK_EXPR_FLOAT, 0}, {"q", FK_EXPR_INT, 0}, {"w", FK_EXPR_FLOAT, 1}};
    for (size_t i = 0; i < sizeof row / sizeof *row; ++i) {
        fk_expr_pool *pool = fk_expr_pool_create();
        const fk_expr *e = NULL;
        char *text = NULL;
        assert_int_equal(fk_expr_parse(pool, row[i][0], symbols, 4, &e, NULL), FK_OK);
        assert_int_equal(fk_expr_print(fk_expr_divide_once(pool, e), FK_EXPR_C, &text, NULL), FK_OK);
        assert_string_equal(text, row[i][1]);
        free(text);
        fk_expr_pool_destroy(pool);
    }
}

/* ---- templates ---- */

static const char listing[] = "@ for _, array in ipairs(arrays) do\n"
                              "$(array.name) $(array.declared) $(array.type) $(array.rank) $(tostring(array.sorted))"
                              " $(tostring(array.clamp[1])) $(tostring(array.grad))\n"
                              "@ end\n"
                              "@ for _, list in ipairs({ score.terms, score.sinks }) do\n"
                              "@   for _, term in ipairs(list) do\n"
                              "$(term.value) | $(term.ds or '1')\n"
                              "@     for _, read in ipairs(term.reads) do\n"
                              "d/d $(read.array)($(table.concat(read.index, ', '))): $(read.derivative)"
                              " $(read.slot) $(tostring(read.uses_q[1])) $(tostring(read.once))\n"
                              "@     end\n"
                              "@   end\n"
                              "@ end\n"
                              "$(score.factor) $(score.rest)\n"
                              "@ for _, param in ipairs(score.params) do\n"
                              "$(param.type) $(param.name)\n"
                              "@ end\n"
                              "@ for _, field in ipairs(params) do\n"
                              "@   if string.find(field.name, '%[') then\n"
                              "$(field.type) $(field.name)\n"
                              "@   end\n"
                              "@ end\n"
                              "$(tostring(score.reads_along.q)) $(tostring(score.grads)) "
                              "$(tostring(score.derivatives_use_s)) $(tostring(mask.reads)) $(tostring(score.uses.h))"
                              " $(tostring(score.uses.b)) $(tostring(score.sink_uses.h))\n";

static void test_templates_see_scores(void **state) {
    (void)state;
    const temp_dir dir = temp_dir_create();
    temp_dir_write(&dir, "kernel/backward_mma.cu", listing);
    fk_problem p;
    fk_device_info device;
    fk_plan_info plan;
    fk_source source;
    fk_error err = {.text = ""};
    fk_plan_options options = FK_PLAN_OPTIONS_INIT;
    options.template_dir = dir.path;
    fk_status status =
        fk_problem_read("bwd fp16 d64 alibi sink softcap(30) grad=slope grad=sink key_padding", &p, &err);
    if (status == FK_OK) status = fk_device_lookup("a100", &device, &err);
    if (status == FK_OK) status = fk_plan_best(&p, &device, &options, &plan, &err);
    if (status == FK_OK) status = fk_source_create(&p, &device, &plan, dir.path, true, &source, &err);
    if (status != FK_OK) fail_msg("%s", err.text);
    assert_string_equal(
        source.text,
        "slope_array float[h] float 1 false false true\n"
        "sink_array float[h] float 1 false false true\n"
        "length_array int[b] int 1 false false false\n"
        "s - slope_array_at(p, h) * abs(q + diag - k) | 1\n"
        "d/d slope_array(h): -float(abs(q + diag - k)) 0 false false\n"
        "fabsf(softcap2_cap) * tanhf(s * (1.0f / fabsf(softcap2_cap))) | "
        "fabsf(softcap2_cap) * ((1.0f - tanhf(s * (1.0f / fabsf(softcap2_cap))) * "
        "tanhf(s * (1.0f / fabsf(softcap2_cap)))) * (1.0f / fabsf(softcap2_cap)))\n"
        "sink_array_at(p, h) | 1\n"
        "d/d sink_array(h): 1.0f 1 false false\n"
        "fabsf(softcap2_cap) tanhf(s * (1.0f / fabsf(softcap2_cap)))\n"
        "float softcap2_cap\n"
        "int mask_value[16]\nu32 mask_inverse[16]\nint score_value[16]\nArray array[8]\nArrayGrad array_grad[8]\n"
        "false true true true true false true\n");
    assert_int_equal(source.num_score_params, 1);
    assert_true(source.score_param[0].value == 30);
    assert_int_equal(source.arrays.count, 3);
    fk_source_free(&source);
    temp_dir_remove(&dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_derivatives_match_finite_differences),
        cmocka_unit_test(test_terms_keep_their_order),
        cmocka_unit_test(test_factors_are_taken_out),
        cmocka_unit_test(test_quotients_are_rounded_once),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_gradients_need_a_reader),
        cmocka_unit_test(test_score_files_are_read_strictly),
        cmocka_unit_test(test_names_are_of_one_kind),
        cmocka_unit_test(test_templates_see_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
