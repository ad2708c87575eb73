/* Problems and their spellings: one canonical form, and an error for everything else that shows where it is wrong. */
#include "gen/problem.h"
#include "test.h"

#include <math.h>

static void spell(const char *spelling, char out[FK_MAX_SPELLING]) {
    fk_problem p;
    fk_error err = {.text = ""};
    if (fk_problem_read(spelling, &p, &err) != FK_OK) fail_msg("%s", err.text);
    assert_int_equal(fk_problem_write(&p, out, FK_MAX_SPELLING, &err), FK_OK);
}

static void test_spellings_are_canonicalised(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"fwd bf16 d128 causal", "fwd bf16 d128 causal"},
        {"  fwd\tcausal d128 \n bf16 ", "fwd bf16 d128 causal"},
        {"fwd d64 dv64 fp16 bottom-right", "fwd fp16 d64"},
        {"bwd d64 fp32 gqa", "bwd fp32 d64 gqa"},
        {"fwd causal e4m3 d128 packed", "fwd e4m3 d128 packed causal"},
        {"fwd fast e4m3 d128 causal", "fwd e4m3 d128 causal fast"},
        {"fwd d72 paged(16) split kv_e4m3 bf16 gqa", "fwd bf16 kv_e4m3 d72 gqa split paged(16)"},
        {"bwd deterministic causal d64 fp16", "bwd fp16 d64 causal deterministic"},
        {"bwd bf16 d8 top-left deterministic gqa", "bwd bf16 d8 gqa top-left deterministic"},
        {"bwd deterministic dropout top-left causal fp16 d64", "bwd fp16 d64 causal top-left dropout deterministic"},
        {"fwd causal seqused_k fp16 d64 packed", "fwd fp16 d64 packed seqused_k causal"},
        {"fwd top-left window( 1024 , -3 ) gqa dv128 d64 fp16", "fwd fp16 d64 dv128 gqa window(1024,-3) top-left"},
        {"fwd fp16 d64 keep=\"(k) <= q&&((q-k)%4==0)\"", "fwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\""},
        {"fwd fp16 d8 keep=\"k<=q\" causal causal", "fwd fp16 d8 keep=\"k <= q\" causal causal"},
        {"bwd deterministic fp16 d8 top-left", "bwd fp16 d8 top-left deterministic"},
        {"fwd fp16 d8 causal softcap( 50.0 ) alibi", "fwd fp16 d8 softcap(50) alibi causal"},
        {"fwd fp16 d8 softcap(-.125) softcap(1e20) softcap(0.1)",
         "fwd fp16 d8 softcap(-0.125) softcap(1e+20) softcap(0.1)"},
        {"fwd fp16 d8 softcap(-3e1)", "fwd fp16 d8 softcap(-30)"},
        {"fwd fp16 d8 score=\"(s)+w[h]*2\" array=w:float[num_heads_q] keep=\"id[b][q]==id[b][k]\" "
         "array=id:int[batch][]:sorted",
         "fwd fp16 d8 array=w:float[h] array=id:int[b][]:sorted score=\"s + w[h] * 2\" keep=\"id[b][q] == id[b][k]\""},
        {"fwd fp16 d8 alibi array=slope:float[h]", "fwd fp16 d8 array=slope:float[h] alibi"}, /* one array */
        {"fwd bf16 d8 bias array=bias:bf16[batch][h][q][k]", "fwd bf16 d8 array=bias:bf16[b][h][q][k] bias"},
        {"bwd fp16 d8 sink alibi array=slope:fp16[h] grad=slope",
         "bwd fp16 d8 array=slope:fp16[h] grad=slope sink alibi"},
        {"bwd fp16 d8 sink alibi grad=slope bias grad=sink", "bwd fp16 d8 grad=sink grad=slope sink alibi bias"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[FK_MAX_SPELLING];
        spell(cases[i][0], text);
        assert_string_equal(text, cases[i][1]);
    }
}

/* Scores, and an array of the caller's that two of them read. */
static void random_terms(uint64_t *seed, fk_problem *p) {
    static const char *const scores[] = {"s+w[h][q] * 2", "s * 0.5 - t[(b)]", "abs(q - k) < 3 ? s : -s"};
    p->num_arrays = 2;
    p->array[0] = (fk_array_decl){"w", FK_FLOAT32, 2, {FK_DIM_HEADS_Q, FK_DIM_ANY, 7, 7}, 0};
    p->array[1] = (fk_array_decl){"t", FK_INT32, 1, {FK_DIM_BATCH, 9, 9, 9}, (int32_t)random_below(seed, 2)};
    p->num_scores = (int32_t)random_below(seed, FK_MAX_SCORES + 1);
    for (int i = 0; i < p->num_scores; ++i) {
        fk_score *score = &p->score[i];
        score->num_values = 0;
        score->expr[0] = score->name[0] = 0;
        const int kind = (int)random_below(seed, 5);
        if (kind < 3) strcpy(score->expr, scores[kind]);
        if (kind == 3) strcpy(score->name, "alibi");
        if (kind < 4) continue;
        strcpy(score->name, "softcap");
        score->num_values = 1;
        score->value[0] = (double)random_below(seed, 1000000) / 997;
    }
}

/* A random problem as a caller fills it: garbage in every byte that has no meaning. */
static fk_problem random_problem(uint64_t *seed) {
    static const char *const predicates[] = {"k<=q", "(k % 3 == 0) || q > seqlen_q-5", "popcount(q ^ k) <= 2 && b >= 0",
                                             "k >= q + diag ? k < 100 : h == 0"};
    fk_problem p;
    memset(&p, (int)random_below(seed, 256), sizeof p);
    p.struct_size = sizeof p;
    p.op = (int32_t)random_below(seed, 2);
    p.deterministic = p.op == FK_BACKWARD && random_below(seed, 2);
    p.grad = 0;
    p.dtype = (int32_t)random_below(seed, 2);
    p.head_dim = 8 * (1 + (int32_t)random_below(seed, 32));
    p.head_dim_v = 8 * (int32_t)random_below(seed, 33);
    p.gqa = (int32_t)random_below(seed, 2);
    p.packed = (int32_t)random_below(seed, 2);
    p.seqused_k = (int32_t)random_below(seed, 2);
    p.dropout = (int32_t)random_below(seed, 2);
    p.split = p.op == FK_FORWARD && random_below(seed, 2);
    static const int32_t pages[] = {0, 0, 1, 1, 8, 16, 32, 64, 128};
    p.paged = pages[random_below(seed, sizeof pages / sizeof *pages)] * (p.op == FK_FORWARD);
    p.align = (int32_t)random_below(seed, 2);
    p.num_masks = (int32_t)random_below(seed, FK_MAX_MASKS + 1);
    for (int i = 0; i < p.num_masks; ++i) {
        fk_mask *mask = &p.mask[i];
        mask->num_values = 0;
        mask->expr[0] = mask->name[0] = 0;
        switch (random_below(seed, 5)) {
        case 0:
            strcpy(mask->name, "causal");
            break;
        case 1:
            strcpy(mask->name, "window");
            mask->num_values = 2;
            for (int j = 0; j < 2; ++j)
                mask->value[j] = (int32_t)(random_below(seed, 2 * (int64_t)FK_MAX_SEQLEN + 1) - FK_MAX_SEQLEN);
            break;
        case 2:
            strcpy(mask->name, "butterfly");
            mask->num_values = 2 + (int32_t)random_below(seed, 3);
            for (int j = 0; j < mask->num_values; ++j)
                mask->value[j] = (j < 2) + (int32_t)random_below(seed, 3) * 64;
            break;
        case 3:
            strcpy(mask->expr, random_below(seed, 2) ? "i==j" : "h > 2 ? i < j : j % 2 == 0");
            mask->num_values = 2;
            mask->value[0] = 1 + (int32_t)random_below(seed, 300);
            mask->value[1] = 1 + (int32_t)random_below(seed, 300);
            break;
        default:
            strcpy(mask->expr, predicates[random_below(seed, 4)]);
            break;
        }
    }
    random_terms(seed, &p);
    p.kv_e4m3 = p.op == FK_FORWARD && (p.dtype == FK_FP16 || p.dtype == FK_BF16) && random_below(seed, 3) == 0;
    p.latent = p.op == FK_FORWARD && !p.kv_e4m3 && p.head_dim_v <= p.head_dim && random_below(seed, 2);
    p.fast = p.op == FK_FORWARD && p.dtype == FK_BF16 && !p.kv_e4m3 && p.num_scores == 0 && random_below(seed, 2);
    return p;
}

static void test_round_trip(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 500; ++i) {
        const fk_problem p = random_problem(&seed);
        fk_problem canonical, again, read;
        char text[FK_MAX_SPELLING];
        fk_error err = {.text = ""};
        if (fk_problem_normalise(&p, &canonical, &err) != FK_OK) fail_msg("case %d: %s", i, err.text);
        assert_int_equal(fk_problem_normalise(&canonical, &again, &err), FK_OK);
        assert_memory_equal(&canonical, &again, sizeof canonical);
        assert_int_equal(fk_problem_write(&p, text, sizeof text, &err), FK_OK);
        if (fk_problem_read(text, &read, &err) != FK_OK) fail_msg("case %d: %s", i, err.text);
        assert_memory_equal(&canonical, &read, sizeof canonical);
    }
}

static const struct {
    const char *spelling, *message;
    int column; /* of the caret; -1: the expression shows its own */
} bad_spellings[] = {
    {"", "starts with its op; known: fwd", 0},
    {"bkw bf16 d128", "a spelling starts with its op; known: fwd bwd", 0},
    {"fwdx bf16 d128", "starts with its op", 0},
    {"fwd d128", "dtype is missing: must be fp16, bf16, fp32 or e4m3", 8},
    {"fwd bf16", "head_dim is missing: such as d128", 8},
    {"fwd bf16 d128 cusal", "unknown word \"cusal\"; known: fp16 bf16 fp32 e4m3 dN dvN latent gqa ", 14},
    {"fwd bf16 d128 cusal(3)", "unknown word \"cusal\"", 14},
    {"fwd bf16 d128 gqa=1", "unknown word \"gqa\"", 14},
    {"fwd bf16 d128 top-left(1)", "unknown word \"top-left\"", 14},
    {"fwd bf16 d128 \"", "unknown word \"\"", 14},
    {"fwd bf16 d128x", "unknown word \"d128x\"", 9},
    {"fwd fp16 d12", "head_dim is 12: must be a multiple of 8 from 8 to 256", 9},
    {"fwd fp16 d264", "head_dim is 264: must be a multiple of 8 from 8 to 256, or of 64 to 576", 9},
    {"fwd fp16 d0", "head_dim is 0: must be", 9},
    {"fwd fp16 d64 dv7", "head_dim_v is 7: must be", 13},
    {"fwd fp16 d99999999999999999999", "head_dim is 99999999999999999999: must be", 10},
    {"fwd fp16 bf16 d64", "dtype is given twice", 9},
    {"fwd e4m3 d64 fp16", "dtype is given twice", 13},
    {"bwd e4m3 d64", "op is bwd: must be fwd for dtype e4m3", -1},
    {"fwd e4m3 d72", "head_dim is 72: must be a multiple of 16 for dtype e4m3", -1},
    {"fwd e4m3 d64 fast dropout", "fast is 1: must be 0 with dropout", -1},
    {"fwd e4m3 d64 dv40", "head_dim_v is 40: must be a multiple of 16 for dtype e4m3", -1},
    {"fwd fp16 d64 d64", "head_dim is given twice", 13},
    {"fwd fp16 d64 dv8 dv8", "head_dim_v is given twice", 17},
    {"fwd fp16 d64 gqa gqa", "gqa is given twice", 17},
    {"fwd fp16 d64 packed gqa packed", "packed is given twice", 24},
    {"fwd fp16 d64 seqused_k seqused_k", "seqused_k is given twice", 23},
    {"fwd fp16 d64 dropout causal dropout", "dropout is given twice", 28},
    {"fwd fp16 d64 dropout(0.1)", "unknown word \"dropout\"", 13},
    {"fwd fp16 d64 packed=1", "unknown word \"packed\"", 13},
    {"fwd fp16 d64 deterministic", "deterministic is a word of bwd: fwd always is", 13},
    {"bwd fp16 d64 deterministic deterministic", "deterministic is given twice", 27},
    {"fwd fp16 d64 top-left bottom-right", "alignment is given twice", 22},
    {"fwd fp16 d64 causal(1)", "mask causal has 1 values: must be 0 (none)", 13},
    {"fwd fp16 d64 window", "mask window has 0 values: must be 2 (left,right)", 13},
    {"fwd fp16 d64 gqa window(1)", "mask window has 1 values: must be 2 (left,right)", 17},
    {"fwd fp16 d64 window(1,2,3,4,5)", "window has more than 4 values", 27},
    {"fwd fp16 d64 window(1,x)", "window: expected an integer", 22},
    {"fwd fp16 d64 window(1,--2)", "window: expected an integer", 22},
    {"fwd fp16 d64 window()", "window: expected an integer", 20},
    {"fwd fp16 d64 window(1,2", "window: expected , or )", 23},
    {"fwd fp16 d64 window(1 2)", "window: expected , or )", 22},
    {"fwd fp16 d64 window(1,2)causal", "expected a space after )", 24},
    {"fwd fp16 d64 window(1,1073741825)", "window is 1073741825: must be from -1073741824 to 1073741824", 22},
    {"fwd fp16 d64 causal causal causal causal causal", "more than 4 masks", 41},
    {"fwd fp16 d64 keep", "unknown word \"keep\"", 13},
    {"fwd fp16 d64 keep=k", "keep: expected an expression in double quotes", 18},
    {"fwd fp16 d64 keep=\"k <= q", "keep: the quote is not closed", 18},
    {"fwd fp16 d64 keep=\"\"", "keep is empty", 18},
    {"fwd fp16 d64 keep=\"k<q\"causal", "expected a space after keep=", 23},
    {"fwd fp16 d64 keep=\"k <= \"", "k <= ", -1},
    {"fwd fp16 d64 keep=\"k <= s\"", "seqlen_k", -1}, /* lists the known names */
    {"fwd fp16 d64 keep=\"k + q\"", "column 3: keep must be a bool, such as k <= q, not int\n    k + q\n      ^", -1},
    {"fwd fp16 d64 keep=\"0.5 * k\"",
     "column 5: keep must be a bool, such as k <= q, not float\n    0.5 * k\n        ^", -1},
    {"fwd fp16 d64 score=\"k\"", "score must be a float, such as s * 2, not int", -1},
    {"fwd fp16 d64 score=\"s < 0\"", "score must be a float, such as s * 2, not bool", -1},
    {"fwd fp16 d64 score=s", "score: expected an expression in double quotes", 19},
    {"fwd fp16 d64 score=\"w[h]\"", "unknown name 'w'", -1},
    {"fwd fp16 d64 softcap", "score softcap has 0 values: must be 1 (cap)", 13},
    {"fwd fp16 d64 softcap(1,2)", "score softcap has 2 values: must be 1 (cap)", 13},
    {"fwd fp16 d64 softcap(x)", "softcap: expected a number", 21},
    {"fwd fp16 d64 softcap(1e99)", "softcap: expected a number", 21},
    {"fwd fp16 d64 relative(0.5)", "reach of score relative is 0.5: must be an integer", 13},
    {"fwd fp16 d64 alibi alibi alibi alibi sink", "more than 4 scores", 37},
    {"fwd fp16 d64 array=w", "array: expected NAME:TYPE[...], such as slope:float[h]", 19},
    {"fwd fp16 d64 array=w:bool[h]", "array w: expected float[...], fp16[...], bf16[...] or int[...]", 21},
    {"fwd fp16 d64 array=w:float", "array w: expected a dimension, such as [h]", 21},
    {"fwd fp16 d64 array=w:float[x]", "array w: a dimension is b, h, q, k or empty", 21},
    {"fwd fp16 d64 array=w:float[][][][][]", "array w: more than 4 dimensions", 21},
    {"fwd fp16 d64 array=w:float[h]x", "array w: expected a space after its type", 29},
    {"fwd fp16 d64 array=w:float[h]:sorted", "sorted of array w is 1: must be 0, or 1 for an int array", -1},
    {"fwd fp16 d64 array=q:float[h]", "the name of an array is \"q\": must be an identifier of its own", -1},
    {"fwd fp16 d64 array=w:float[h] array=w:int[h]", "array w is declared as float[h] and as int[h]: must be one", -1},
    {"fwd fp16 d64 array=slope:float[q] alibi", "array slope is declared as float[q] and as float[h]", 34},
    {"fwd fp16 d64 array=slope:bf16[q] alibi", "array slope is declared as bf16[q] and as float[h]", 33},
    {"fwd fp16 d64 array=length:fp16[b] key_padding", "array length is declared as fp16[b] and as int[b]", 34},
    {"fwd fp16 d64 array=w:fp16[h] array=w:float[h]", "array w is declared as fp16[h] and as float[h]", -1},
    {"fwd fp16 d64 array=w:bf16[h]:sorted", "sorted of array w is 1: must be 0, or 1 for an int array", -1},
    {"fwd fp16 d64 alibi grad=slope", "grad is a word of bwd", 19},
    {"bwd fp16 d64 alibi grad=slop", "grad=slop: the problem has no such array", 24},
    {"bwd fp16 d64 document grad=doc_q", "grad=doc_q: only arrays of floats have gradients", 27},
    {"fwd fp16 d64 scor=\"s\"", "unknown word \"scor\"", 13},
    {"fwd fp16 d64 deterministic", "deterministic is a word of bwd", 13},
};

static void test_bad_spellings_point_at_the_word(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_spellings / sizeof bad_spellings[0]; ++i) {
        fk_problem p;
        fk_error err;
        memset(&p, 0x5a, sizeof p);
        const fk_problem before = p;
        if (fk_problem_read(bad_spellings[i].spelling, &p, &err) != FK_BAD_PROBLEM)
            fail_msg("%s", bad_spellings[i].spelling);
        assert_memory_equal(&p, &before, sizeof p); /* written on success only */
        assert_message(err.text, bad_spellings[i].message);
        if (bad_spellings[i].column < 0) continue;
        const char *caret = strrchr(err.text, '\n');
        assert_non_null(caret);
        if ((int)strlen(caret + 1) != 4 + bad_spellings[i].column + 1)
            fail_msg("caret of column %d:\n%s", bad_spellings[i].column, err.text);
        assert_int_equal(caret[strlen(caret) - 1], '^');
        assert_message(err.text, bad_spellings[i].spelling);
    }
}

static void test_long_spellings(void **state) {
    (void)state;
    char text[FK_MAX_SPELLING + 64], shown[80];
    fk_problem p;
    fk_error err;
    memset(text, ' ', sizeof text);
    memcpy(text, "fwd", 3);
    text[sizeof text - 1] = 0;
    assert_int_equal(fk_problem_read(text, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "the spelling is 4159 bytes long: must be below 4096");
    snprintf(text + 1000, 100, "nonsense and so on");
    assert_int_equal(fk_problem_read(text, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "nonsense and so on\n"); /* the part around the caret is shown */
    snprintf(shown, sizeof shown, "    %60s^", "");
    assert_string_equal(strrchr(err.text, '\n') + 1, shown);
    /* keep: 239 bytes are the limit, before and after canonicalisation. */
    char expr[FK_MAX_EXPR * 2] = "fwd fp16 d64 keep=\"k>0";
    while (strlen(expr) < FK_MAX_EXPR - 4 + 19)
        strcat(expr, "+0");
    strcat(expr, "\"");
    assert_int_equal(fk_problem_read(expr, &p, &err), FK_BAD_PROBLEM);
    assert_message(err.text, "keep is ");
    assert_message(err.text, "must be below 240");
}

typedef void (*edit)(fk_problem *p);
static void set_size(fk_problem *p) {
    p->struct_size = 12;
}
static void set_op(fk_problem *p) {
    p->op = 2;
}
static void set_dtype(fk_problem *p) {
    p->dtype = 4;
}
static void set_head_dim(fk_problem *p) {
    p->head_dim = -8;
}
static void set_head_dim_v(fk_problem *p) {
    p->head_dim_v = 300;
}
static void set_gqa(fk_problem *p) {
    p->gqa = 2;
}
static void set_align(fk_problem *p) {
    p->align = -1;
}
static void set_num_masks(fk_problem *p) {
    p->num_masks = 5;
}
static void set_empty_mask(fk_problem *p) {
    p->num_masks = 1;
}
static void set_both(fk_problem *p) {
    p->num_masks = 1;
    strcpy(p->mask[0].name, "causal");
    strcpy(p->mask[0].expr, "k <= q");
}
static void set_open_name(fk_problem *p) {
    p->num_masks = 1;
    memset(p->mask[0].name, 'a', sizeof p->mask[0].name);
}
static void set_path_name(fk_problem *p) {
    p->num_masks = 1;
    strcpy(p->mask[0].name, "../arch/sm75");
}
static void set_values(fk_problem *p) {
    set_empty_mask(p);
    strcpy(p->mask[0].name, "window");
    p->mask[0].num_values = 9;
}
static void set_value(fk_problem *p) {
    set_values(p);
    p->mask[0].num_values = 2;
    p->mask[0].value[1] = INT32_MIN;
}
static void set_expr_values(fk_problem *p) {
    set_empty_mask(p);
    strcpy(p->mask[0].expr, "k <= q");
    p->mask[0].num_values = 1;
}

static void set_num_scores(fk_problem *p) {
    p->num_scores = -1;
}
static void set_num_arrays(fk_problem *p) {
    p->num_arrays = 9;
}
static void set_deterministic(fk_problem *p) {
    p->deterministic = 1;
}
static void set_grad(fk_problem *p) {
    p->grad = 1;
}
static void set_packed(fk_problem *p) {
    p->packed = 2;
}
static void set_dropout(fk_problem *p) {
    p->dropout = 2;
}
static void set_seqused_k(fk_problem *p) {
    p->seqused_k = -1;
}
static void set_grad_of_none(fk_problem *p) {
    p->op = FK_BACKWARD;
    p->grad = 2;
}
static void set_array(fk_problem *p, fk_array_decl array) {
    p->num_arrays = 1;
    p->array[0] = array;
}
static void set_array_type(fk_problem *p) {
    set_array(p, (fk_array_decl){"w", 4, 1, {0}, 0});
}
static void set_array_rank(fk_problem *p) {
    set_array(p, (fk_array_decl){"w", 0, 5, {0}, 0});
}
static void set_array_dim(fk_problem *p) {
    set_array(p, (fk_array_decl){"w", 0, 2, {0, 5}, 0});
}
static void set_array_name(fk_problem *p) {
    set_array(p, (fk_array_decl){"a b", 0, 1, {0}, 0});
}
static void set_score_value(fk_problem *p) {
    p->num_scores = 1;
    strcpy(p->score[0].name, "softcap");
    p->score[0].num_values = 1;
    p->score[0].value[0] = (double)NAN;
}
static void set_score_expr_values(fk_problem *p) {
    p->num_scores = 1;
    strcpy(p->score[0].expr, "s");
    p->score[0].num_values = 1;
}

static void test_bad_fields_are_named(void **state) {
    (void)state;
    static const struct {
        edit break_it;
        fk_status status;
        const char *message;
    } cases[] = {
        {set_size, FK_BAD_ARGUMENT, "fk_problem.struct_size is 12: must be"},
        {set_op, FK_BAD_PROBLEM, "op is 2: must be 0 (forward) or 1 (backward)"},
        {set_dtype, FK_BAD_PROBLEM, "dtype is 4: must be 0 (fp16), 1 (bf16), 2 (fp32) or 3 (e4m3)"},
        {set_head_dim, FK_BAD_PROBLEM, "head_dim is -8: must be a multiple of 8 from 8 to 256"},
        {set_head_dim_v, FK_BAD_PROBLEM, "head_dim_v is 300: must be a multiple of 8 from 8 to 256"},
        {set_gqa, FK_BAD_PROBLEM, "gqa is 2: must be 0 or 1"},
        {set_align, FK_BAD_PROBLEM, "align is -1: must be 0 (bottom-right) or 1 (top-left)"},
        {set_num_masks, FK_BAD_PROBLEM, "num_masks is 5: must be from 0 to 4"},
        {set_empty_mask, FK_BAD_PROBLEM, "a mask has neither name nor expr"},
        {set_both, FK_BAD_PROBLEM, "a mask has both name and expr"},
        {set_open_name, FK_BAD_PROBLEM, "must end with a zero"},
        {set_path_name, FK_BAD_PROBLEM, "unknown mask \"../arch/sm75\"; known: bits causal"},
        {set_values, FK_BAD_PROBLEM, "num_values is 9: must be from 0 to 8"},
        {set_value, FK_BAD_PROBLEM, "right of mask window is -2147483648: must be from -1073741824 to 1073741824"},
        {set_expr_values, FK_BAD_PROBLEM,
         "num_values of a keep mask is 1: must be 0, or 2 (the rows and columns of its blocks)"},
        {set_num_scores, FK_BAD_PROBLEM, "num_scores is -1: must be from 0 to 4"},
        {set_num_arrays, FK_BAD_PROBLEM, "num_arrays is 9: must be from 0 to 8"},
        {set_deterministic, FK_BAD_PROBLEM, "deterministic is 1: must be 0 for fwd"},
        {set_grad, FK_BAD_PROBLEM, "grad is 1: must be 0 for fwd"},
        {set_packed, FK_BAD_PROBLEM, "packed is 2: must be 0 or 1"},
        {set_dropout, FK_BAD_PROBLEM, "dropout is 2: must be 0 or 1"},
        {set_seqused_k, FK_BAD_PROBLEM, "seqused_k is -1: must be 0 or 1"},
        {set_grad_of_none, FK_BAD_PROBLEM, "grad names array 1: must be one of the 0 arrays, of floats"},
        {set_array_type, FK_BAD_PROBLEM, "type of array w is 4: must be 0 (float), 1 (int), 2 (fp16) or 3 (bf16)"},
        {set_array_rank, FK_BAD_PROBLEM, "rank of array w is 5: must be from 1 to 4"},
        {set_array_dim, FK_BAD_PROBLEM, "dim[1] of array w is 5: must be from 0 to 4"},
        {set_array_name, FK_BAD_PROBLEM, "the name of an array is \"a b\": must be an identifier"},
        {set_score_value, FK_BAD_PROBLEM, "cap of score softcap is nan: must be a number from"},
        {set_score_expr_values, FK_BAD_PROBLEM, "num_values of a score expression is 1: must be 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        fk_problem p = FK_PROBLEM_INIT, out;
        fk_error err;
        p.head_dim = 64;
        assert_int_equal(fk_problem_normalise(&p, &out, &err), FK_OK);
        cases[i].break_it(&p);
        assert_int_equal(fk_problem_normalise(&p, &out, &err), cases[i].status);
        assert_message(err.text, cases[i].message);
    }
    assert_int_equal(fk_problem_canonical(NULL, NULL), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "problem is null");
}

static void test_small_buffers_and_nulls(void **state) {
    (void)state;
    fk_problem p;
    char text[32];
    assert_int_equal(fk_problem_parse("fwd bf16 d128 causal", &p), FK_OK);
    assert_int_equal(fk_problem_spell(&p, text, 20), FK_BAD_ARGUMENT);
    assert_string_equal(fk_last_error(), "size is 20: this spelling needs 21");
    assert_int_equal(fk_problem_spell(&p, text, 21), FK_OK);
    assert_int_equal(fk_problem_spell(&p, NULL, 21), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_parse(NULL, &p), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_parse("fwd bf16 d128", NULL), FK_BAD_ARGUMENT);
    assert_int_equal(fk_problem_canonical(&p, &p), FK_OK); /* in place */
}

static void test_masks_become_one_predicate(void **state) {
    (void)state;
    fk_problem p;
    fk_error err;
    fk_problem_terms terms;
    fk_expr_pool *pool = fk_expr_pool_create();
    assert_int_equal(fk_problem_read("fwd fp16 d64", &p, &err), FK_OK);
    assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &terms, &err), FK_OK);
    assert_null(terms.mask.keep);
    assert_int_equal(fk_problem_read("fwd fp16 d64 window(7,2) keep=\"k % 2 == 0\" window(1,-1)", &p, &err), FK_OK);
    assert_int_equal(fk_problem_terms_load(pool, &p, NULL, &terms, &err), FK_OK);
    assert_int_equal(terms.mask.num_params, 4);
    assert_string_equal(terms.mask.param[0].name, "window0_left");
    assert_string_equal(terms.mask.param[3].name, "window2_right");
    assert_int_equal(terms.mask.param[0].value, 7);
    assert_int_equal(terms.mask.param[3].value, -1);
    assert_true(fk_expr_uses(terms.mask.keep, "window2_left"));
    assert_false(fk_expr_uses(terms.mask.keep, "left"));
    assert_int_equal(terms.mask.split.num_upper, 2);
    assert_int_equal(terms.mask.split.num_lower, 2);
    assert_non_null(terms.mask.split.residual);
    char generic[FK_MAX_SPELLING];
    fk_problem_write_generic(&p, &terms, generic);
    assert_string_equal(generic, "fwd fp16 d64 window(window0_left,window0_right) keep=\"k % 2 == 0\" "
                                 "window(window2_left,window2_right)");
    fk_expr_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings_are_canonicalised),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bad_spellings_point_at_the_word),
        cmocka_unit_test(test_long_spellings),
        cmocka_unit_test(test_bad_fields_are_named),
        cmocka_unit_test(test_small_buffers_and_nulls),
        cmocka_unit_test(test_masks_become_one_predicate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
