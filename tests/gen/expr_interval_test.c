/* The device side of expressions: random ones are printed as CUDA and as intervals, compiled with the host C++ compiler
 * together with templates/piece/interval.cu, and compared with evaluation on the CPU. Skipped (77) without a compiler.
 */
#include "expr_helpers.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#define NUM_EXPRESSIONS 360

typedef struct device_interval {
    long long lo, hi;
} device_interval;
typedef double element_function(const double *values);
typedef device_interval interval_function(const device_interval *box);

static struct compiled {
    fk_expr_pool *pool;
    const fk_expr *e[NUM_EXPRESSIONS]; /* in those of has_inverse h is a run-time value: a point, with its inverse */
    char *text[NUM_EXPRESSIONS];
    void *library;
} compiled;

static bool has_inverse(int i) {
    return i % 3 == 0;
}

/* What CUDA gives a kernel and C++ does not. */
static const char PRELUDE[] =
    "#include <math.h>\n#include <stdlib.h>\n"
    "#define __device__\n#define __forceinline__ inline\n"
    "typedef long long i64;\n"
    "static inline int min(int a, int b) { return a < b ? a : b; }\n"
    "static inline int max(int a, int b) { return a > b ? a : b; }\n"
    "static inline unsigned int min(unsigned int a, unsigned int b) { return a < b ? a : b; }\n"
    "static inline i64 min(i64 a, i64 b) { return a < b ? a : b; }\n"
    "static inline i64 max(i64 a, i64 b) { return a > b ? a : b; }\n"
    "static inline int __popc(unsigned int x) { return __builtin_popcount(x); }\n"
    "static inline int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }\n"
    "static inline unsigned int __umulhi(unsigned int a, unsigned int b) {\n"
    "    return (unsigned int)((unsigned long long)a * b >> 32);\n}\n"
    "static inline unsigned int inverse_of(i64 b) {\n"
    "    return !b ? 0 : llabs(b) == 1 ? 0xffffffffu : (unsigned int)((1ull << 32) / llabs(b));\n}\n"
    "static const int p = 0;\n"
    "static inline int id_array_at(int, int i) { return i % 11 * 7 % 11 - 5; }\n"
    "static inline bool seen_array_at(int, int i) { return i % 3 == 0; }\n";

/* An array read at one index is its value; templates/piece/array.cu gives the kernels more of the kind. */
static const char READS[] = "static inline Interval id_array_iv_at(int, Interval i) {\n"
                            "    return i.lo == i.hi ? iv(id_array_at(p, (int)i.lo)) : iv_all();\n}\n";

static void emit_expression(FILE *out, int i) {
    char *element = NULL, *interval = NULL;
    assert_int_equal(fk_expr_print(compiled.e[i], FK_EXPR_CUDA, &element, NULL), FK_OK);
    assert_int_equal(fk_expr_print(compiled.e[i], FK_EXPR_INTERVAL, &interval, NULL), FK_OK);
    fprintf(out,
            "extern \"C\" double element_%d(const double *v) {\n"
            "    const int q = (int)v[0], k = (int)v[1], h = (int)v[2], diag = (int)v[3];\n"
            "    const unsigned int h_inverse = inverse_of(h);\n    const bool on = v[4] != 0;\n    const float s = "
            "(float)v[5], t = (float)v[6];\n"
            "    return (double)(%s);\n}\n"
            "extern \"C\" Interval interval_%d(const Interval *box) {\n"
            "    const Interval q_iv = box[0], k_iv = box[1], h_iv = box[2], diag_iv = box[3], on_iv = box[4];\n"
            "    const unsigned int h_inverse = inverse_of(h_iv.lo);\n"
            "    return %s;\n}\n",
            i, element, i, interval);
    free(element);
    free(interval);
}

static void emit_source(const char *path) {
    FILE *out = fopen(path, "w"), *piece = fopen(FK_SOURCE_DIR "/templates/piece/interval.cu", "r");
    assert_true(out && piece);
    fputs(PRELUDE, out);
    for (int c; (c = fgetc(piece)) != EOF;)
        fputc(c, out);
    fputs(READS, out);
    for (int i = 0; i < NUM_EXPRESSIONS; ++i)
        emit_expression(out, i);
    fclose(piece);
    assert_int_equal(fclose(out), 0);
}

static void draw_expressions(void) {
    static const char *const fixed[] = {"(q + diag) / h * h <= k", /* the first of each three has an inverse */
                                        "k <= q + diag",
                                        "(q - k) % 4 == 0",
                                        "(q + diag - k) % h == 0",
                                        "q == k || popcount(q ^ k) == 1",
                                        "q / 64 == k / 64",
                                        "q / h * h + (k - 7) % h",
                                        "abs(q - k) <= 128",
                                        "k >= q + diag - h && k <= q + diag",
                                        "min(q, k) % (h + 100)",
                                        "q << (k & 15)",
                                        "id[q] == id[k] && seen[k]",
                                        "abs(q - k)",
                                        "bit(id[q], k)",
                                        "hash(hash(h, q), k >> 3) % 5 == k % 5"};
    static random_text r = {.state = 77, .arrays = true};
    random_rule *const rules[] = {random_int, random_bool, random_bool, random_float};
    const int num_fixed = sizeof fixed / sizeof *fixed;
    const fk_expr *h = fk_expr_variable(compiled.pool, "h", FK_EXPR_INT, true);
    for (int i = 0; i < NUM_EXPRESSIONS; ++i) {
        const char *text = i < num_fixed ? fixed[i] : random_expression(&r, rules[i % 4], 1 + i % 5);
        compiled.text[i] = strdup(text);
        assert_non_null(compiled.text[i]);
        assert_int_equal(fk_expr_parse(compiled.pool, text, RANDOM_SYMBOLS, NUM_RANDOM_SYMBOLS, &compiled.e[i], NULL),
                         FK_OK);
        if (has_inverse(i)) compiled.e[i] = fk_expr_substitute(compiled.pool, compiled.e[i], "h", h);
        assert_non_null(compiled.e[i]);
    }
}

static int set_up(void **state) {
    (void)state;
    char folder[] = "/tmp/fk_expr_XXXXXX", source[64], library[64], command[512];
    assert_non_null(mkdtemp(folder));
    snprintf(source, sizeof source, "%s/e.cpp", folder);
    snprintf(library, sizeof library, "%s/e.so", folder);
    compiled.pool = fk_expr_pool_create();
    draw_expressions();
    emit_source(source);
    /* -Werror=narrowing: NVRTC refuses what narrows inside braces. -fwrapv: as the device's ints do. */
    snprintf(command, sizeof command, "c++ -std=c++17 -w -Werror=narrowing -O1 -fwrapv -fPIC -shared -o %s %s", library,
             source);
    const int rc = system(command);
    if (rc == 0) compiled.library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    remove(source);
    remove(library);
    rmdir(folder);
    return compiled.library ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    if (compiled.library) dlclose(compiled.library);
    for (int i = 0; i < NUM_EXPRESSIONS; ++i)
        free(compiled.text[i]);
    fk_expr_pool_destroy(compiled.pool);
    return 0;
}

static void *symbol(const char *kind, int i) {
    char name[32];
    snprintf(name, sizeof name, "%s_%d", kind, i);
    void *found = dlsym(compiled.library, name);
    assert_non_null(found);
    return found;
}

static element_function *element_of(int i) {
    element_function *f;
    *(void **)&f = symbol("element", i);
    return f;
}

static interval_function *interval_of(int i) {
    interval_function *f;
    *(void **)&f = symbol("interval", i);
    return f;
}

static void random_point(random_text *r, double *values) {
    static const double origins[] = {0, 0, -3, 60, 1000, 1 << 20, -(1 << 30)};
    for (int n = Q; n <= DIAG; ++n)
        values[n] = origins[draw(r, 7)] + draw(r, 10);
    values[ON] = draw(r, 2);
    values[S] = draw(r, 64) / 16.0 - 2;
    values[T] = draw(r, 64) / 16.0 - 2;
}

static void cuda_text_computes_the_same(void **state) {
    (void)state;
    static random_text r = {.state = 5};
    int compared = 0;
    for (int i = 0; i < NUM_EXPRESSIONS; ++i) {
        element_function *f = element_of(i);
        for (int j = 0; j < 300; ++j) {
            double values[NUM_NAMES];
            random_point(&r, values);
            if (fk_expr_type_of(compiled.e[i]) == FK_EXPR_FLOAT) { /* in a range where float follows double */
                values[Q] = draw(&r, 16);
                values[K] = draw(&r, 16);
            }
            const fk_expr_env env = env_of(values);
            if (!fits_int(compiled.e[i], &env)) continue;
            const double cpu = fk_expr_eval(compiled.e[i], &env), device = f(values);
            const bool exact = fk_expr_type_of(compiled.e[i]) != FK_EXPR_FLOAT;
            if (fabs(cpu - device) > (exact ? 0 : 1e-3 * (1 + fabs(cpu))))
                fail_msg("%s is %.9g on the CPU, %.9g in CUDA's text", compiled.text[i], cpu, device);
            ++compared;
        }
    }
    assert_true(compared > NUM_EXPRESSIONS * 200);
}

static void random_box(random_text *r, int i, device_interval *device, fk_interval *box, uint32_t width) {
    double corner[NUM_NAMES];
    random_point(r, corner);
    for (int n = Q; n <= ON; ++n) {
        device[n].lo = (long long)corner[n];
        device[n].hi = n == ON ? device[n].lo | draw(r, 2) : device[n].lo + draw(r, width);
        if (width == 1 || (n == H && has_inverse(i))) device[n].hi = device[n].lo;
        box[n] = (fk_interval){(double)device[n].lo, (double)device[n].hi};
    }
}

/* The box's element values, as the device computes them (wrapping, when it comes to that), lie within its interval. */
static void device_intervals_contain_elements(void **state) {
    (void)state;
    static random_text r = {.state = 6};
    static const uint32_t widths[] = {1, 4, 64, 3000};
    long decided = 0;
    for (int i = 0; i < NUM_EXPRESSIONS; ++i) {
        if (fk_expr_type_of(compiled.e[i]) == FK_EXPR_FLOAT) continue;
        element_function *element = element_of(i);
        interval_function *interval = interval_of(i);
        for (int j = 0; j < 200; ++j) {
            device_interval device[ON + 1];
            fk_interval box[NUM_NAMES];
            random_box(&r, i, device, box, widths[j % 4]);
            const device_interval got = interval(device);
            decided += got.lo == got.hi;
            for (int n = 0; n < 40; ++n) {
                double values[NUM_NAMES] = {[S] = 0.5, [T] = 0.25};
                for (int v = Q; v <= ON; ++v)
                    values[v] = (double)(device[v].lo + draw(&r, (uint32_t)(device[v].hi - device[v].lo) + 1));
                const double value = element(values);
                if (!(value >= (double)got.lo && value <= (double)got.hi))
                    fail_msg("%s is %.0f, outside [%lld, %lld]", compiled.text[i], value, got.lo, got.hi);
            }
        }
    }
    assert_true(decided > 10000);
}

/* One set of rules: where fk_expr_bounds is bounded the device says the same, elsewhere the device's lies within. */
static void device_intervals_are_those_of_bounds(void **state) {
    (void)state;
    static random_text r = {.state = 8};
    static const uint32_t widths[] = {1, 4, 64, 3000};
    long same = 0, total = 0;
    for (int i = 0; i < NUM_EXPRESSIONS; ++i) {
        if (fk_expr_type_of(compiled.e[i]) == FK_EXPR_FLOAT) continue;
        interval_function *interval = interval_of(i);
        for (int j = 0; j < 400; ++j) {
            device_interval device[ON + 1];
            fk_interval box[NUM_NAMES];
            random_box(&r, i, device, box, widths[j % 4]);
            const device_interval got = interval(device);
            const fk_interval bounds = fk_expr_bounds(compiled.e[i], &(fk_interval_env){NAMES, box, ON + 1, false});
            const double lo = fmax(bounds.lo, INT32_MIN), hi = fmin(bounds.hi, INT32_MAX);
            if ((double)got.lo < lo || (double)got.hi > hi)
                fail_msg("%s: device [%lld, %lld], bounds [%g, %g]", compiled.text[i], got.lo, got.hi, lo, hi);
            if (fk_expr_uses(compiled.e[i], "id")) continue; /* the device reads what the CPU does not have */
            same += (double)got.lo == lo && (double)got.hi == hi;
            ++total;
        }
    }
    assert_true(same * 100 > total * 95); /* the device knows that an unbounded int still has 32 bits */
}

int main(void) {
    if (system("c++ --version >/dev/null 2>&1") != 0) {
        puts("skipped: no C++ compiler (c++) on this machine");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_text_computes_the_same),
        cmocka_unit_test(device_intervals_contain_elements),
        cmocka_unit_test(device_intervals_are_those_of_bounds),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
