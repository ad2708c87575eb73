/* A record to change, and the table of buckets that ships. */
#ifndef FK_TESTS_CACHE_TUNING_H
#define FK_TESTS_CACHE_TUNING_H

#include "fixture.h"

#include <math.h>

#include "cache/tuning.h"

static fk_buckets buckets;

static inline int read_buckets(void **state) {
    (void)state;
    char text[4096];
    FILE *file = fopen(FK_SOURCE_DIR "/cache/tuned/buckets.json", "r");
    const size_t size = file ? fread(text, 1, sizeof text, file) : 0;
    if (!file || fclose(file) || !fk_buckets_read(text, size, &buckets)) abort();
    return 0;
}

#define SAMPLE_GENERATOR "0123456789abcdef"

static inline bool is_fresh(const fk_tuning_record *r) {
    return strcmp(r->generator, SAMPLE_GENERATOR) == 0;
}

static inline fk_tuning_record sample_record(void) {
    fk_tuning_record r = {.problem = "fwd fp16 d64 keep=\"k <= q && (q - k) % 4 == 0\"",
                          .shape = {4, 16, 16, 4096, 4096},
                          .plan = "mma m128 n64 w4 s2 c2",
                          .device = "NVIDIA A100-SXM4-80GB",
                          .sm = 80,
                          .num_sms = 108,
                          .clock_ghz = 1.41,
                          .hbm_gbps = 2039,
                          .generator = SAMPLE_GENERATOR,
                          .compiler = "NVRTC 13.0 (build 00ff)",
                          .registers = 168,
                          .spill_bytes = 8,
                          .rigor = FK_RIGOR_MEASURE,
                          .samples = 32,
                          .us = 512.25,
                          .spread = 0.0025,
                          .error = 0.25,
                          .unix_time = 1700000000};
    return r;
}

static inline bool same_record(const fk_tuning_record *a, const fk_tuning_record *b) {
    return strcmp(a->problem, b->problem) == 0 && memcmp(&a->shape, &b->shape, sizeof a->shape) == 0 &&
           strcmp(a->plan, b->plan) == 0 && strcmp(a->device, b->device) == 0 && a->sm == b->sm &&
           a->num_sms == b->num_sms && fabs(a->clock_ghz - b->clock_ghz) < 1e-6 &&
           fabs(a->hbm_gbps - b->hbm_gbps) < 1e-6 && strcmp(a->generator, b->generator) == 0 &&
           strcmp(a->compiler, b->compiler) == 0 && a->registers == b->registers && a->spill_bytes == b->spill_bytes &&
           a->rigor == b->rigor && a->samples == b->samples && fabs(a->us - b->us) < 1e-6 &&
           fabs(a->spread - b->spread) < 1e-6 && fabs(a->error - b->error) < 1e-6 && a->unix_time == b->unix_time;
}

static inline size_t line_of(const fk_tuning_record *r, char out[FK_TUNING_LINE_MAX]) {
    const size_t size = fk_tuning_write(r, &buckets, out);
    assert_true(size > 0 && out[size - 1] == '\n');
    return size;
}

/* The whole text of some records. */
static inline size_t text_of(const fk_tuning_record *records, size_t count, char *out) {
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        used += line_of(&records[i], out + used);
    return used;
}

#endif
