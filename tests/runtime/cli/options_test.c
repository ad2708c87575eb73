/* Option tables: every kind accepts what it says, and refuses the rest by option, value and limit. */
#include "runtime/cli/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

typedef struct values {
    bool flag;
    const char *text;
    int64_t number, bytes;
    double real;
    int choice;
    option_ints ints;
    option_texts texts;
} values;

/* Parses into *v; words are left in `argv`. */
static bool parse(values *v, int argc, char **argv, int *num_words, char message[OPTION_MESSAGE]) {
    static const char *const colours[] = {"red", "green", NULL};
    *v = (values){.number = -1, .bytes = -1, .ints = {.least = 2, .most = 3}};
    const option options[] = {
        option_flag("--flag", &v->flag, "a flag"),
        option_text("-o", "FILE", &v->text, "a text"),
        option_int("--number", "N", &v->number, 1, 100, "an integer"),
        option_real("--real", "X", &v->real, 0, 2, "a number"),
        option_choice("--choice", "C", &v->choice, colours, "a choice"),
        option_bytes("--bytes", &v->bytes, "a size"),
        option_numbers("--ints", "A,B[,C]", &v->ints, 0, 9, "some integers"),
        option_list("--texts", "T", &v->texts, "some texts"),
    };
    return options_parse(options, COUNT(options), argc, argv, argv, num_words, message);
}

static void all_kinds_are_read(void **state) {
    (void)state;
    values v;
    int words = 0;
    char message[OPTION_MESSAGE];
    char *argv[] = {"fwd",      "--flag", "-o",      "a b", "--number=100", "fp16",  "--real", "0.5",
                    "--choice", "green",  "--bytes", "3K",  "--ints",       "1,2,9", "--",     "--d64"};
    assert_true(parse(&v, COUNT(argv), argv, &words, message));
    assert_true(v.flag);
    assert_string_equal(v.text, "a b");
    assert_int_equal(v.number, 100);
    assert_float_equal(v.real, 0.5, 0);
    assert_int_equal(v.choice, 1);
    assert_int_equal(v.bytes, 3072);
    assert_int_equal(v.ints.count, 3);
    assert_int_equal(v.ints.value[2], 9);
    assert_int_equal(words, 3);
    assert_string_equal(argv[0], "fwd");
    assert_string_equal(argv[1], "fp16");
    assert_string_equal(argv[2], "--d64");
}

static void lists_take_one_text_at_a_time(void **state) {
    (void)state;
    values v;
    int words = 0;
    char message[OPTION_MESSAGE] = "", *argv[] = {"--texts",  "a=b",      "--texts=c", "--texts=", "--texts=",
                                                  "--texts=", "--texts=", "--texts=",  "--texts=", "--texts="};
    assert_true(parse(&v, 3, argv, &words, message));
    assert_int_equal(v.texts.count, 2);
    assert_string_equal(v.texts.value[0], "a=b");
    assert_string_equal(v.texts.value[1], "c");
    assert_false(parse(&v, COUNT(argv), argv, &words, message));
    assert_non_null(strstr(message, "--texts is given more than 8 times"));
}

static void what_is_not_given_keeps_its_default(void **state) {
    (void)state;
    values v;
    int words = 0;
    char message[OPTION_MESSAGE], *argv[] = {"-"};
    assert_true(parse(&v, 1, argv, &words, message));
    assert_int_equal(v.number, -1);
    assert_int_equal(v.ints.count, 0);
    assert_null(v.text);
    assert_int_equal(words, 1); /* "-" alone is a word */
}

static void refusals_name_option_value_and_limit(void **state) {
    (void)state;
    static const struct {
        char *argv[2];
        const char *parts[3];
    } cases[] = {
        {{"--what", NULL}, {"--what", "unknown", "--help"}},
        {{"--numbe", "1"}, {"--numbe", "unknown", ""}},
        {{"--flag=1", NULL}, {"--flag", "1", "no value"}},
        {{"--number", NULL}, {"--number", "needs a value", "N"}},
        {{"--number", "0"}, {"--number", "0", "1 to 100"}},
        {{"--number", "101"}, {"--number", "101", "1 to 100"}},
        {{"--number", "7x"}, {"--number", "7x", "integer"}},
        {{"--number", ""}, {"--number", "\"\"", "integer"}},
        {{"--number", "99999999999999999999"}, {"--number", "99999999999999999999", "1 to 100"}},
        {{"--real", "nan"}, {"--real", "nan", "0 to 2"}},
        {{"--real", "2.5"}, {"--real", "2.5", "0 to 2"}},
        {{"--choice", "blue"}, {"--choice", "blue", "red, green"}},
        {{"--bytes", "-1"}, {"--bytes", "-1", "at least 0"}},
        {{"--bytes", "1T"}, {"--bytes", "1T", "2G"}},
        {{"--bytes", "1KK"}, {"--bytes", "1KK", "2G"}},
        {{"--bytes", "9999999999G"}, {"--bytes", "9999999999G", "size"}},
        {{"--ints", "1"}, {"--ints", "1", "A,B[,C]"}},
        {{"--ints", "1,2,3,4"}, {"--ints", "1,2,3,4", "A,B[,C]"}},
        {{"--ints", "1,,2"}, {"--ints", "1,,2", "0 to 9"}},
        {{"--ints", "1,10"}, {"--ints", "1,10", "0 to 9"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        values v;
        int words = 0;
        char message[OPTION_MESSAGE] = "", *argv[] = {cases[i].argv[0], cases[i].argv[1]};
        assert_false(parse(&v, argv[1] ? 2 : 1, argv, &words, message));
        for (size_t p = 0; p < 3; p++)
            if (!strstr(message, cases[i].parts[p])) fail_msg("\"%s\" lacks \"%s\"", message, cases[i].parts[p]);
        assert_int_equal(v.ints.count, 0); /* a refused list leaves nothing behind */
    }
}

static void spellings_join_and_regain_their_quotes(void **state) {
    (void)state;
    char out[64], *words[] = {"fwd", "fp16", "keep=k <= q"}, *quoted[] = {"keep=\"k <= q\""};
    assert_true(options_join_spelling(words, 3, out, sizeof out));
    assert_string_equal(out, "fwd fp16 keep=\"k <= q\"");
    assert_true(options_join_spelling(quoted, 1, out, sizeof out));
    assert_string_equal(out, "keep=\"k <= q\"");
    words[2] = "score=s * 2";
    assert_true(options_join_spelling(words, 3, out, sizeof out));
    assert_string_equal(out, "fwd fp16 score=\"s * 2\"");
    words[2] = "blocks(64x32)=i == j";
    assert_true(options_join_spelling(words, 3, out, sizeof out));
    assert_string_equal(out, "fwd fp16 blocks(64x32)=\"i == j\"");
    words[2] = "keep=k <= q";
    assert_true(options_join_spelling(words, 3, out, sizeof "fwd fp16 keep=\"k <= q\""));
    assert_false(options_join_spelling(words, 3, out, sizeof "fwd fp16 keep=\"k <= q\"" - 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_are_read),
        cmocka_unit_test(lists_take_one_text_at_a_time),
        cmocka_unit_test(what_is_not_given_keeps_its_default),
        cmocka_unit_test(refusals_name_option_value_and_limit),
        cmocka_unit_test(spellings_join_and_regain_their_quotes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
