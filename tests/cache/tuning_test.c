/* Records: what is written is read, damage costs its own line alone, and which of many records counts. */
#include "tuning.h"

static fk_device_info a100(void) {
    fk_device_info d = {.name = "NVIDIA A100-SXM4-80GB", .sm = 80, .num_sms = 108, .hbm_gbps = 2039};
    return d;
}

static fk_tuning_query query_of(const fk_tuning_record *r, const fk_device_info *device) {
    return (fk_tuning_query){.problem = r->problem,
                             .device = device,
                             .is_fresh = is_fresh,
                             .buckets = &buckets,
                             .bucket = fk_bucket_of(&buckets, &r->shape)};
}

static fk_tuning_answer ask(const fk_tuning_record *records, size_t count, const fk_tuning_query *query) {
    char *text = malloc(count * FK_TUNING_LINE_MAX);
    fk_tuning_answer answer = {0};
    if (!text) abort();
    fk_tuning_scan(text, text_of(records, count, text), 0, query, &answer);
    free(text);
    assert_int_equal(answer.num_bad, 0);
    return answer;
}

/* ---- lines ---- */

static void round_trip(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX];
    fk_tuning_record r = sample_record(), back;
    size_t size = line_of(&r, line);
    assert_true(fk_tuning_read(line, size - 1, &back) && same_record(&r, &back));
    assert_true(strstr(line, "\"bucket\":\"q4096 k4096 h96\"") && strstr(line, "keep=\\\"k <= q"));
    r.registers = r.spill_bytes = -1;
    r.rigor = FK_RIGOR_MODEL;
    r.compiler[0] = 0;
    r.samples = 0;
    size = line_of(&r, line);
    assert_true(fk_tuning_read(line, size - 1, &back) && same_record(&r, &back));
    memset(r.problem, 'x', sizeof r.problem - 1);
    r.problem[sizeof r.problem - 1] = 0;
    size = line_of(&r, line);
    assert_true(fk_tuning_read(line, size - 1, &back) && same_record(&r, &back));
}

static void refuses_to_write(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX];
    const fk_tuning_record good = sample_record();
    fk_tuning_record bad[30];
    for (size_t i = 0; i < 30; i++)
        bad[i] = good;
    bad[0].us = 0;
    bad[1].us = NAN;
    bad[2].shape.batch = 0;
    bad[3].problem[0] = 0;
    strcpy(bad[4].plan, "a\nb");
    bad[5].rigor = 3;
    bad[6].spread = -1;
    bad[7].error = INFINITY;
    bad[8].sm = 0;
    bad[9].samples = -1;
    bad[10].shape.seqlen_k = (int64_t)FK_MAX_SEQLEN + 1;
    bad[11].plan[0] = 0;
    bad[12].device[0] = 0;
    strcpy(bad[13].problem, "fwd\x7f");
    strcpy(bad[14].device, "A100\r");
    strcpy(bad[15].generator, "\x1f");
    strcpy(bad[16].compiler, "NVRTC\n");
    bad[17].sm = 1000;
    bad[18].num_sms = 0;
    bad[19].num_sms = 65537;
    bad[20].rigor = -1;
    bad[21].us = 1e12;
    bad[22].spread = 101;
    bad[23].error = -1;
    bad[24].clock_ghz = -1;
    bad[25].clock_ghz = 1e3;
    bad[26].hbm_gbps = -1;
    bad[27].registers = -2;
    bad[28].spill_bytes = -2;
    bad[29].unix_time = -1;
    for (size_t i = 0; i < 30; i++)
        if (fk_tuning_write(&bad[i], &buckets, line)) fail_msg("record %zu is written: %s", i, line);
    bad[26] = good, bad[26].hbm_gbps = 1e6;
    assert_int_equal(fk_tuning_write(&bad[26], &buckets, line), 0);
}

/* A line replaced in its value of `name`. */
static bool reads_with(const char *name, const char *value) {
    char line[FK_TUNING_LINE_MAX], changed[FK_TUNING_LINE_MAX + 64];
    fk_tuning_record r = sample_record();
    const size_t size = line_of(&r, line);
    line[size - 1] = 0;
    char *at = strstr(line, name), *end = at + strlen(name);
    assert_non_null(at);
    end += *end == '[' ? strcspn(end, "]") + 1 : strcspn(end, ",}");
    const int used = snprintf(changed, sizeof changed, "%.*s%s%s%s", (int)(at - line), line, name, value, end);
    return fk_tuning_read(changed, (size_t)used, &r);
}

static void refuses_hostile_values(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"\"us\":", "0"},
                                          {"\"us\":", "-1"},
                                          {"\"us\":", "1e300"},
                                          {"\"us\":", "\"fast\""},
                                          {"\"samples\":", "1.5"},
                                          {"\"samples\":", "1e12"},
                                          {"\"sm\":", "9"},
                                          {"\"num_sms\":", "0"},
                                          {"\"rigor\":", "\"best\""},
                                          {"\"shape\":", "[1,2,3,4]"},
                                          {"\"shape\":", "[1,2,3,4,0]"},
                                          {"\"shape\":", "[1,2,3,4,1e10]"},
                                          {"\"flashkiln_tuning\":", "2"},
                                          {"\"plan\":", "\"\""},
                                          {"\"spread\":", "1e9"},
                                          {"\"unix_time\":", "-5"},
                                          {"\"registers\":", "-2"}};
    assert_true(reads_with("\"us\":", "0.5"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (reads_with(rows[i][0], rows[i][1])) fail_msg("taken: %s%s", rows[i][0], rows[i][1]);
}

static void steps_over_unknown_members(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX], longer[FK_TUNING_LINE_MAX + 100];
    fk_tuning_record r = sample_record(), back;
    const size_t size = line_of(&r, line);
    const int used = snprintf(longer, sizeof longer, "{\"later\":{\"x\":[1,\"}\"]},%.*s", (int)size - 2, line + 1);
    assert_true(fk_tuning_read(longer, (size_t)used, &back) && same_record(&r, &back));
}

/* A file cut at any byte loses the line that it was cut in, and no other; so does one with a byte turned. */
static void torn_at_every_byte(void **state) {
    (void)state;
    char text[3 * FK_TUNING_LINE_MAX], copy[3 * FK_TUNING_LINE_MAX];
    fk_tuning_record r[3] = {sample_record(), sample_record(), sample_record()};
    const fk_device_info device = a100();
    strcpy(r[1].plan, "mma m64 n64 w4 s2 c2");
    r[1].us = 400;
    strcpy(r[2].plan, "mma m64 n32 w4 s2 c2");
    r[2].us = 300;
    const size_t size = text_of(r, 3, text), first = line_of(&r[0], copy), second = first + line_of(&r[1], copy);
    const fk_tuning_query query = query_of(&r[0], &device);
    for (size_t n = 0; n <= size; n++) {
        fk_tuning_answer answer = {0};
        fk_tuning_scan(text, n, 0, &query, &answer);
        /* A line without its newline is whole already. */
        const double want = n >= size - 1 ? 300 : n >= second - 1 ? 400 : 512.25;
        assert_int_equal(answer.found, n >= first - 1);
        if (answer.found) assert_true(fabs(answer.record.us - want) < 1e-9);
    }
    for (size_t n = first; n + 1 < second; n++) {
        fk_tuning_answer answer = {0};
        memcpy(copy, text, size);
        copy[n] = (char)(copy[n] ^ 0x80); /* no longer printable, or no longer JSON, or another problem, GPU or plan */
        fk_tuning_scan(copy, size, 0, &query, &answer);
        assert_true(answer.found && fabs(answer.record.us - 300) < 1e-9);
    }
}

static void survives_noise(void **state) {
    (void)state;
    static const unsigned char bytes[] = "{}[]\",:\\\n\r\t 0-9eE.u{\"us\":1}";
    char text[5000];
    const fk_tuning_record r = sample_record();
    const fk_device_info device = a100();
    const fk_tuning_query query = query_of(&r, &device);
    uint32_t x = 7;
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof text; i++) {
            x = x * 1664525u + 1013904223u;
            text[i] = (char)(x >> 31 ? bytes[(x >> 8) % (sizeof bytes - 1)] : (x >> 16) & 0xff);
        }
        fk_tuning_answer answer = {0};
        fk_tuning_scan(text, sizeof text, 0, &query, &answer);
        assert_false(answer.found);
    }
}

/* ---- buckets ---- */

static void buckets_hold_what_is_near(void **state) {
    (void)state;
    const fk_shape a = {4, 16, 16, 4096, 4096}, b = {5, 16, 2, 3000, 5000}, c = {4, 16, 16, 2048, 4096},
                   tiny = {1, 1, 1, 1, 1}, huge = {1 << 20, 64, 64, 1 << 30, 1 << 30};
    const fk_bucket x = fk_bucket_of(&buckets, &a), y = fk_bucket_of(&buckets, &b), z = fk_bucket_of(&buckets, &c);
    char text[FK_BUCKET_TEXT];
    assert_true(fk_bucket_equal(&x, &y) && !fk_bucket_equal(&x, &z));
    fk_bucket_spell(&buckets, &x, text);
    assert_string_equal(text, "q4096 k4096 h96");
    const fk_bucket low = fk_bucket_of(&buckets, &tiny), high = fk_bucket_of(&buckets, &huge);
    for (int i = 0; i < FK_BUCKET_AXES; i++)
        assert_true(low.index[i] == 0 && high.index[i] == buckets.count[i] - 1);
}

static void bad_tables_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "{}",
        "{\"seqlen_q\":[1],\"seqlen_k\":[1]}",
        "{\"seqlen_q\":[1],\"seqlen_k\":[1],\"heads\":[]}",
        "{\"seqlen_q\":[2,1],\"seqlen_k\":[1],\"heads\":[1]}",
        "{\"seqlen_q\":[0],\"seqlen_k\":[1],\"heads\":[1]}",
        "{\"seqlen_q\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33],"
        "\"seqlen_k\":[1],\"heads\":[1]}"};
    fk_buckets out;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(fk_buckets_read(bad[i], strlen(bad[i]), &out));
}

/* ---- which counts ---- */

static void nearer_gpus_count_more(void **state) {
    (void)state;
    fk_tuning_record r[5];
    fk_device_info device = a100();
    for (int i = 0; i < 5; i++)
        r[i] = sample_record();
    strcpy(r[0].device, "NVIDIA GeForce RTX 3090"), r[0].sm = 86, r[0].num_sms = 82, r[0].us = 1;
    strcpy(r[1].device, "NVIDIA A100-PCIE-40GB"), r[1].num_sms = 108, r[1].hbm_gbps = 1555, r[1].us = 2;
    strcpy(r[2].device, "NVIDIA A30"), r[2].num_sms = 56, r[2].hbm_gbps = 933, r[2].us = 0.5;
    r[3].rigor = FK_RIGOR_MODEL, r[3].us = 3;
    strcpy(r[4].device, "NVIDIA H200"), r[4].sm = 90, r[4].us = 0.1;
    const fk_tuning_query query = query_of(&r[0], &device);
    fk_tuning_answer a = ask(r, 5, &query); /* the very GPU, though only modelled */
    assert_true(a.found && a.level == FK_TUNING_EXACT && fabs(a.record.us - 3) < 1e-9);
    a = ask(r, 3, &query); /* the same architecture, the one of like size */
    assert_true(a.found && a.level == FK_TUNING_SAME_SM && fabs(a.record.us - 2) < 1e-9);
    a = ask(r, 1, &query);
    assert_true(a.found && a.level == FK_TUNING_SAME_MAJOR);
    a = ask(&r[4], 1, &query);
    assert_false(a.found);
    strcpy(r[3].generator, "ffffffffffffffff");
    assert_false(ask(&r[3], 1, &query).found); /* what an older model said */
    strcpy(r[3].generator, SAMPLE_GENERATOR);
    device.num_sms = 54; /* a slice of the same GPU is another one */
    a = ask(&r[3], 1, &query);
    assert_true(a.found && a.level == FK_TUNING_SAME_SM);
}

static void emulators_count_for_themselves(void **state) {
    (void)state;
    fk_tuning_record r = sample_record();
    const fk_device_info device = a100();
    snprintf(r.device, sizeof r.device, "%s%s", FK_TUNING_EMULATOR, device.name);
    fk_tuning_query query = query_of(&r, &device);
    assert_false(ask(&r, 1, &query).found);
    query.emulated = true;
    assert_true(ask(&r, 1, &query).found);
    strcat(r.device, " of another kind");
    assert_false(ask(&r, 1, &query).found);
}

static void merge_rules(void **state) {
    (void)state;
    fk_tuning_record a = sample_record(), b = sample_record();
    strcpy(b.plan, "mma m64 n64 w4 s2 c2");
    b.us = a.us * 0.995; /* within the noise */
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    b.us = a.us * 0.97;
    assert_true(fk_tuning_replaces(&a, &b, is_fresh));
    b.spread = 0.05; /* its own noise is larger */
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    b.spread = 0, a.spread = 0.05;
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    b.us = a.us * 2, b.rigor = FK_RIGOR_PATIENT; /* who looked longer knows better */
    assert_true(fk_tuning_replaces(&a, &b, is_fresh) && !fk_tuning_replaces(&b, &a, is_fresh));
    b.rigor = FK_RIGOR_MODEL, b.us = a.us / 10;
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    assert_true(fk_tuning_replaces(&b, &a, is_fresh));
    b = a, b.us = a.us / 2; /* of one plan nothing is decided */
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    strcpy(b.plan, "mma m64 n64 w4 s2 c2");
    strcpy(b.generator, "ffffffffffffffff"); /* of another version */
    assert_false(fk_tuning_replaces(&a, &b, is_fresh));
    assert_true(fk_tuning_replaces(&b, &a, is_fresh));
}

static bool is_not_first(void *user, const char *plan) {
    (void)user;
    return strcmp(plan, "mma m128 n64 w4 s2 c2") != 0;
}

static void what_is_not_accepted_is_passed_over(void **state) {
    (void)state;
    fk_tuning_record r[2] = {sample_record(), sample_record()};
    const fk_device_info device = a100();
    strcpy(r[1].plan, "mma m64 n64 w4 s2 c2"), r[1].us = 9999;
    fk_tuning_query query = query_of(&r[0], &device);
    query.accepts = is_not_first;
    const fk_tuning_answer a = ask(r, 2, &query);
    assert_true(a.found && strcmp(a.record.plan, r[1].plan) == 0 && a.num_records == 2);
}

/* Own records count before those of the library, at equal rigor or not, but not before a nearer GPU's. */
static void own_records_count_first(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX];
    fk_tuning_record own = sample_record(), shipped = sample_record();
    const fk_device_info device = a100();
    strcpy(shipped.plan, "mma m64 n64 w4 s2 c2"), shipped.us = 100, shipped.rigor = FK_RIGOR_PATIENT;
    const fk_tuning_query query = query_of(&own, &device);
    for (int own_first = 0; own_first < 2; own_first++) {
        fk_tuning_answer a = {0};
        for (int i = 0; i < 2; i++) {
            const bool is_own = (i == 0) == own_first;
            fk_tuning_scan(line, line_of(is_own ? &own : &shipped, line), is_own ? 0 : 1, &query, &a);
        }
        assert_true(a.found && a.source == 0 && strcmp(a.record.plan, own.plan) == 0);
    }
    own.rigor = FK_RIGOR_MODEL; /* what was timed counts before what was not */
    fk_tuning_answer a = {0};
    fk_tuning_scan(line, line_of(&own, line), 0, &query, &a);
    fk_tuning_scan(line, line_of(&shipped, line), 1, &query, &a);
    assert_true(a.source == 1);
}

/* What came with the library was measured with what it has, or says nothing. */
static void older_records_count_if_they_are_own(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX];
    fk_tuning_record r = sample_record();
    const fk_device_info device = a100();
    const fk_tuning_query query = query_of(&r, &device);
    for (int older = 0; older < 2; older++)
        for (int source = 0; source < 2; source++)
            for (int rigor = FK_RIGOR_MODEL; rigor <= FK_RIGOR_PATIENT; rigor++) {
                fk_tuning_answer a = {0};
                strcpy(r.generator, older ? "ffffffffffffffff" : SAMPLE_GENERATOR);
                r.rigor = rigor;
                fk_tuning_scan(line, line_of(&r, line), source, &query, &a);
                assert_int_equal(a.found, !older || (source == 0 && rigor != FK_RIGOR_MODEL));
                assert_int_equal(a.num_records, 1);
            }
}

/* A search is left out if a record says that this very one was made, as rigorous and by the same sources. */
static void what_was_searched(void **state) {
    (void)state;
    char line[FK_TUNING_LINE_MAX];
    const fk_tuning_record good = sample_record();
    const fk_device_info device = a100();
    const fk_tuning_query query = query_of(&good, &device);
    const fk_shape shape = good.shape;
    size_t size = line_of(&good, line);
    assert_true(fk_tuning_has(line, size, &query, &shape, FK_RIGOR_MEASURE));
    assert_true(fk_tuning_has(line, size - 1, &query, &shape, FK_RIGOR_MEASURE)); /* its newline is torn off */
    assert_false(fk_tuning_has(line, size - 2, &query, &shape, FK_RIGOR_MEASURE));
    assert_false(fk_tuning_has(line, 0, &query, &shape, FK_RIGOR_MEASURE));
    assert_false(fk_tuning_has(line, size, &query, &shape, FK_RIGOR_PATIENT));
    fk_tuning_record r[5] = {good, good, good, good, good};
    strcpy(r[0].problem, "fwd fp16 d64");
    r[1].shape.seqlen_k--;              /* of the same bucket, but not it */
    r[2].num_sms--;                     /* another GPU */
    strcpy(r[3].generator, "fedcba98"); /* other sources */
    r[4].rigor = FK_RIGOR_MODEL;
    for (int i = 0; i < 5; i++) {
        size = line_of(&r[i], line);
        if (fk_tuning_has(line, size, &query, &shape, FK_RIGOR_MEASURE)) fail_msg("record %d counts: %s", i, line);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(older_records_count_if_they_are_own),
                                       cmocka_unit_test(what_was_searched),
                                       cmocka_unit_test(round_trip),
                                       cmocka_unit_test(refuses_to_write),
                                       cmocka_unit_test(refuses_hostile_values),
                                       cmocka_unit_test(steps_over_unknown_members),
                                       cmocka_unit_test(torn_at_every_byte),
                                       cmocka_unit_test(survives_noise),
                                       cmocka_unit_test(buckets_hold_what_is_near),
                                       cmocka_unit_test(bad_tables_are_refused),
                                       cmocka_unit_test(nearer_gpus_count_more),
                                       cmocka_unit_test(emulators_count_for_themselves),
                                       cmocka_unit_test(merge_rules),
                                       cmocka_unit_test(what_is_not_accepted_is_passed_over),
                                       cmocka_unit_test(own_records_count_first)};
    return cmocka_run_group_tests(tests, read_buckets, NULL);
}
