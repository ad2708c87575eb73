/* Tuning records, which people hand to each other: lines of a file, and the table of buckets. */
#include "fuzz.h"

#include "cache/tuning.h"
#include "gen/plan.h"

static const fk_buckets usual = {{{1, 64, 4096}, {1, 64, 4096}, {1, 64}}, {3, 3, 2}};

/* What is read can be written, and is the same when it is read again. */
static void round_trip(const char *line, size_t size) {
    char out[FK_TUNING_LINE_MAX];
    fk_tuning_record r, back;
    fk_plan_info plan;
    if (!fk_tuning_read(line, size, &r)) return;
    MUST(r.us > 0 && r.shape.batch > 0 && r.rigor >= FK_RIGOR_MODEL && r.rigor <= FK_RIGOR_PATIENT);
    const size_t used = fk_tuning_write(&r, &usual, out);
    MUST(used > 1 && out[used - 1] == '\n');
    MUST(fk_tuning_read(out, used - 1, &back));
    MUST(!strcmp(r.problem, back.problem) && !strcmp(r.plan, back.plan) &&
         !memcmp(&r.shape, &back.shape, sizeof r.shape));
    if (fk_plan_read(r.plan, &plan, NULL) == FK_OK) MUST(plan.block_m >= 0 && plan.block_n >= 0);
}

static bool is_fresh(const fk_tuning_record *r) {
    return strcmp(r->generator, "9199aa6b24bfee66") == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const fk_device_info device = {.name = "NVIDIA H200", .sm = 90, .num_sms = 132, .hbm_gbps = 4814};
    const fk_shape shape = {4, 16, 16, 4096, 4096};
    const fk_tuning_query query = {.problem = "fwd bf16 d128 causal",
                                   .device = &device,
                                   .is_fresh = is_fresh,
                                   .buckets = &usual,
                                   .bucket = fk_bucket_of(&usual, &shape)};
    char *text = fuzz_text(data, size);
    fk_tuning_answer answer = {0};
    fk_buckets buckets;
    const char *newline = memchr(text, '\n', size);
    round_trip(text, newline ? (size_t)(newline - text) : size);
    for (int source = 0; source < 2; source++)
        fk_tuning_scan(text, size, source, &query, &answer);
    MUST(answer.num_bad <= answer.num_records && (!answer.found || answer.record.us > 0));
    fk_tuning_has(text, size, &query, &shape, FK_RIGOR_MEASURE);
    if (fk_buckets_read(text, size, &buckets)) {
        const fk_bucket bucket = fk_bucket_of(&buckets, &shape);
        for (int i = 0; i < FK_BUCKET_AXES; i++)
            MUST(bucket.index[i] >= 0 && bucket.index[i] < buckets.count[i]);
    }
    free(text);
    return 0;
}
