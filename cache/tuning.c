/* One record a line, and the fold that says which of many counts. No file is touched here. */
#include "tuning.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Records that differ by less are not told apart, however steady each was: boost clocks drift by as much. */
static const double LEAST_NOISE = 0.01;

static const char *const rigor_name[] = {"model", "measure", "patient"};
enum { NUM_RIGORS = sizeof rigor_name / sizeof rigor_name[0] };

/* ---- lines ---- */

typedef struct numbers {
    double version, shape[5], sm, sms, clock, hbm, registers, spills, samples, us, spread, error, time;
} numbers;

/* The one table of members: name, kind, place. */
enum { NUM_MEMBERS = 19 };
static void list_members(fk_tuning_record *r, numbers *n, char rigor[16], fk_json_field out[NUM_MEMBERS]) {
    const fk_json_field members[NUM_MEMBERS] = {
        {"flashkiln_tuning", FK_JSON_NUMBER, &n->version, 1, true},
        {"problem", FK_JSON_TEXT, r->problem, sizeof r->problem, true},
        {"shape", FK_JSON_NUMBERS, n->shape, 5, true},
        {"plan", FK_JSON_TEXT, r->plan, sizeof r->plan, true},
        {"us", FK_JSON_NUMBER, &n->us, 1, true},
        {"spread", FK_JSON_NUMBER, &n->spread, 1, true},
        {"error", FK_JSON_NUMBER, &n->error, 1, true},
        {"samples", FK_JSON_NUMBER, &n->samples, 1, true},
        {"rigor", FK_JSON_TEXT, rigor, 16, true},
        {"device", FK_JSON_TEXT, r->device, sizeof r->device, true},
        {"sm", FK_JSON_NUMBER, &n->sm, 1, true},
        {"num_sms", FK_JSON_NUMBER, &n->sms, 1, true},
        {"clock_ghz", FK_JSON_NUMBER, &n->clock, 1, true},
        {"hbm_gbps", FK_JSON_NUMBER, &n->hbm, 1, true},
        {"generator", FK_JSON_TEXT, r->generator, sizeof r->generator, true},
        {"compiler", FK_JSON_TEXT, r->compiler, sizeof r->compiler, false},
        {"registers", FK_JSON_NUMBER, &n->registers, 1, false},
        {"spill_bytes", FK_JSON_NUMBER, &n->spills, 1, false},
        {"unix_time", FK_JSON_NUMBER, &n->time, 1, false},
    };
    memcpy(out, members, sizeof members);
}

static bool is_whole(double value, double least, double most) {
    return value >= least && value <= most && floor(value) >= value;
}

static bool printable(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return false;
    return true;
}

/* What both directions ask of a record. */
static bool check(const fk_tuning_record *r) {
    const fk_shape *s = &r->shape;
    const int64_t sizes[] = {s->batch, s->num_heads_q, s->num_heads_kv, s->seqlen_q, s->seqlen_k};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1 || sizes[i] > FK_MAX_SEQLEN) return false;
    return r->problem[0] && r->plan[0] && r->device[0] && printable(r->problem) && printable(r->plan) &&
           printable(r->device) && printable(r->generator) && printable(r->compiler) && r->sm >= 10 && r->sm < 1000 &&
           r->num_sms >= 1 && r->num_sms <= 65536 && r->rigor >= 0 && r->rigor < NUM_RIGORS && r->us > 0 &&
           r->us < 1e12 && r->spread >= 0 && r->spread <= 100 && r->error >= 0 && r->error < 1e9 && r->samples >= 0 &&
           r->clock_ghz >= 0 && r->clock_ghz < 1e3 && r->hbm_gbps >= 0 && r->hbm_gbps < 1e6 && r->registers >= -1 &&
           r->spill_bytes >= -1 && r->unix_time >= 0;
}

bool fk_tuning_read(const char *line, size_t size, fk_tuning_record *out) {
    fk_json_field members[NUM_MEMBERS];
    numbers n = {.registers = -1, .spills = -1};
    char rigor[16] = "";
    memset(out, 0, sizeof *out);
    list_members(out, &n, rigor, members);
    if (size > 0 && line[size - 1] == '\r') size--;
    if (!fk_json_read(line, size, members, NUM_MEMBERS) || !is_whole(n.version, 1, 1)) return false;
    for (int i = 0; i < 5; i++)
        if (!is_whole(n.shape[i], 1, FK_MAX_SEQLEN)) return false;
    if (!is_whole(n.sm, 10, 999) || !is_whole(n.sms, 1, 65536) || !is_whole(n.samples, 0, INT32_MAX) ||
        !is_whole(n.registers, -1, 65536) || !is_whole(n.spills, -1, INT32_MAX) || !is_whole(n.time, 0, 1e15))
        return false;
    out->shape = (fk_shape){(int64_t)n.shape[0], (int64_t)n.shape[1], (int64_t)n.shape[2], (int64_t)n.shape[3],
                            (int64_t)n.shape[4]};
    out->sm = (int32_t)n.sm, out->num_sms = (int32_t)n.sms, out->samples = (int32_t)n.samples;
    out->registers = (int32_t)n.registers, out->spill_bytes = (int32_t)n.spills, out->unix_time = (int64_t)n.time;
    out->clock_ghz = n.clock, out->hbm_gbps = n.hbm;
    out->us = n.us, out->spread = n.spread, out->error = n.error;
    out->rigor = -1;
    for (int i = 0; i < NUM_RIGORS; i++)
        if (strcmp(rigor, rigor_name[i]) == 0) out->rigor = i;
    return check(out);
}

/* A growing line; `used` passes the end where it does not fit. */
typedef struct line {
    char *out;
    size_t used;
} line;

static void put_char(line *l, char byte) {
    if (l->used < FK_TUNING_LINE_MAX) l->out[l->used] = byte;
    l->used++;
}

static size_t room(const line *l) {
    return l->used < FK_TUNING_LINE_MAX ? FK_TUNING_LINE_MAX - l->used : 0;
}

static void put_text(line *l, const char *text) {
    l->used += fk_json_write_text(text, l->out + FK_TUNING_LINE_MAX - room(l), room(l));
}

static void put_value(line *l, const fk_json_field *member) {
    const double *values = member->target;
    if (member->kind == FK_JSON_TEXT) {
        put_text(l, member->target);
        return;
    }
    if (member->kind == FK_JSON_NUMBERS) put_char(l, '[');
    for (size_t i = 0; i < member->size; i++) {
        if (i > 0) put_char(l, ',');
        l->used += fk_json_write_number(values[i], l->out + FK_TUNING_LINE_MAX - room(l), room(l));
    }
    if (member->kind == FK_JSON_NUMBERS) put_char(l, ']');
}

size_t fk_tuning_write(const fk_tuning_record *record, const fk_buckets *buckets, char out[FK_TUNING_LINE_MAX]) {
    if (!check(record)) return 0;
    fk_tuning_record r = *record;
    const fk_shape *s = &r.shape;
    numbers n = {
        1,
        {(double)s->batch, (double)s->num_heads_q, (double)s->num_heads_kv, (double)s->seqlen_q, (double)s->seqlen_k},
        r.sm,
        r.num_sms,
        r.clock_ghz,
        r.hbm_gbps,
        r.registers,
        r.spill_bytes,
        r.samples,
        r.us,
        r.spread,
        r.error,
        (double)r.unix_time};
    char rigor[16], bucket[FK_BUCKET_TEXT];
    const fk_bucket index = fk_bucket_of(buckets, s);
    strcpy(rigor, rigor_name[r.rigor]);
    fk_bucket_spell(buckets, &index, bucket);
    fk_json_field members[NUM_MEMBERS + 1];
    list_members(&r, &n, rigor, members);
    members[NUM_MEMBERS] = (fk_json_field){"bucket", FK_JSON_TEXT, bucket, sizeof bucket, false}; /* for people */
    line l = {out, 0};
    for (int i = 0; i < NUM_MEMBERS + 1; i++) {
        put_char(&l, i == 0 ? '{' : ',');
        put_text(&l, members[i].name);
        put_char(&l, ':');
        put_value(&l, &members[i]);
    }
    put_char(&l, '}');
    put_char(&l, '\n');
    return l.used < FK_TUNING_LINE_MAX ? l.used : 0;
}

/* ---- which one counts ---- */

static fk_tuning_level level_of(const fk_tuning_record *r, const fk_tuning_query *q) {
    const size_t prefix = strlen(FK_TUNING_EMULATOR);
    if (strncmp(r->device, FK_TUNING_EMULATOR, prefix) == 0)
        return q->emulated && strcmp(r->device + prefix, q->device->name) == 0 ? FK_TUNING_EXACT : FK_TUNING_UNRELATED;
    if (r->sm == q->device->sm)
        return r->num_sms == q->device->num_sms && strcmp(r->device, q->device->name) == 0 ? FK_TUNING_EXACT
                                                                                           : FK_TUNING_SAME_SM;
    return r->sm / 10 == q->device->sm / 10 ? FK_TUNING_SAME_MAJOR : FK_TUNING_UNRELATED;
}

static double log_ratio(double a, double b) {
    return a > 0 && b > 0 ? fabs(log2(a / b)) : 0;
}

static double distance_of(const fk_tuning_record *r, const fk_device_info *device) {
    return abs(r->sm - device->sm) / 4.0 + log_ratio(r->num_sms, device->num_sms) +
           log_ratio(r->hbm_gbps, device->hbm_gbps);
}

double fk_tuning_noise(const fk_tuning_record *a, const fk_tuning_record *b) {
    return fmax(LEAST_NOISE, fmax(a->spread, b->spread));
}

bool fk_tuning_replaces(const fk_tuning_record *a, const fk_tuning_record *b, fk_tuning_is_fresh *is_fresh) {
    const bool a_timed = a->rigor != FK_RIGOR_MODEL, b_timed = b->rigor != FK_RIGOR_MODEL;
    const bool a_fresh = is_fresh(a), b_fresh = is_fresh(b);
    if (a_timed != b_timed) return b_timed;
    if (a_fresh != b_fresh) return b_fresh;
    if (a->rigor != b->rigor) return b->rigor > a->rigor;
    if (strcmp(a->plan, b->plan) == 0) return false;
    return b->us < a->us * (1 - fk_tuning_noise(a, b));
}

/* Whether a record of this level, distance and source counts more than the answer so far. */
static bool counts_more(const fk_tuning_answer *a, fk_tuning_level level, double distance, int source,
                        const fk_tuning_record *r, const fk_tuning_query *q) {
    const fk_tuning_record *old = &a->record;
    if (!a->found) return true;
    if (level != a->level) return level < a->level;
    if (level != FK_TUNING_EXACT && fabs(distance - a->distance) > 1e-9) return distance < a->distance;
    const bool same_kind =
        (old->rigor == FK_RIGOR_MODEL) == (r->rigor == FK_RIGOR_MODEL) && q->is_fresh(old) == q->is_fresh(r);
    if (same_kind && source != a->source) return source < a->source;
    return fk_tuning_replaces(old, r, q->is_fresh);
}

void fk_tuning_scan(const char *text, size_t size, int source, const fk_tuning_query *query, fk_tuning_answer *answer) {
    fk_tuning_record r;
    char problem[2 * FK_MAX_SPELLING + 2]; /* as its lines have it; what lacks it need not be read */
    const size_t problem_size = fk_json_write_text(query->problem, problem, sizeof problem);
    const char *end = text + size, *next;
    for (const char *at = text; at < end; at = next) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        next = newline ? newline + 1 : end;
        const size_t length = (size_t)((newline ? newline : end) - at);
        if (!memmem(at, length, problem, problem_size)) continue;
        answer->num_records++;
        if (!fk_tuning_read(at, length, &r)) {
            answer->num_bad++;
            continue;
        }
        const fk_tuning_level level = level_of(&r, query);
        if (level == FK_TUNING_UNRELATED || strcmp(r.problem, query->problem) != 0) continue;
        /* The model is at hand, and has learnt from what was timed before it; a user's own timings are news to it. */
        if ((source != 0 || r.rigor == FK_RIGOR_MODEL) && !query->is_fresh(&r)) continue;
        const fk_bucket bucket = fk_bucket_of(query->buckets, &r.shape);
        if (!fk_bucket_equal(&bucket, &query->bucket)) continue;
        const double distance = distance_of(&r, query->device);
        if (!counts_more(answer, level, distance, source, &r, query)) continue;
        if (query->accepts && !query->accepts(query->user, r.plan)) continue;
        answer->found = true;
        answer->level = level;
        answer->distance = distance;
        answer->source = source;
        answer->record = r;
    }
}

bool fk_tuning_has(const char *text, size_t size, const fk_tuning_query *query, const fk_shape *shape, int32_t rigor) {
    fk_tuning_record r;
    const char *end = text + size, *next;
    for (const char *at = text; at < end; at = next) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        next = newline ? newline + 1 : end;
        if (!fk_tuning_read(at, (size_t)((newline ? newline : end) - at), &r)) continue;
        if (level_of(&r, query) == FK_TUNING_EXACT && strcmp(r.problem, query->problem) == 0 && r.rigor >= rigor &&
            query->is_fresh(&r) && memcmp(&r.shape, shape, sizeof *shape) == 0)
            return true;
    }
    return false;
}
