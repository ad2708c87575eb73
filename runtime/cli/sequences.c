#include "sequences.h"
#include "npy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const option_name[NUM_LENGTHS] = {"--cu-seqlens-q", "--cu-seqlens-k", "--seqused-k"};

/* "0,100,228" */
static cli_exit parse(const char *name, const char *text, int32_t **out, int64_t *count) {
    int32_t *values = malloc((strlen(text) / 2 + 1) * sizeof *values);
    if (!values) return cli_fail(CLI_FAILED, "no memory for %s", name);
    *out = values;
    *count = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        const long value = strtol(at, &end, 10);
        if (end == at || errno || value < 0 || value > INT32_MAX)
            return cli_fail(CLI_USAGE, "run: %s: number %lld of \"%.100s\" is not 0 to %d", name, (long long)*count + 1,
                            text, INT32_MAX);
        values[(*count)++] = (int32_t)value;
        if (!*end) return CLI_OK;
        if (*end != ',') return cli_fail(CLI_USAGE, "run: %s: \"%.100s\" is not A,B,C or FILE.npy", name, text);
        at = end + 1;
    }
}

static cli_exit read_one(int which, const char *text, sequences *s) {
    const size_t length = strlen(text);
    if (length < 4 || strcmp(text + length - 4, ".npy") != 0)
        return parse(option_name[which], text, &s->host[which], &s->count[which]);
    npy_array file = {0};
    char message[NPY_MESSAGE];
    const cli_exit code = npy_read(text, 1, &file, message);
    if (code != CLI_OK) return cli_fail(code, "%s", message);
    s->host[which] = file.data;
    s->count[which] = file.count;
    if (file.type == NPY_INT32) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: dtype is %s; %s needs <i4", text, npy_type_name(file.type), option_name[which]);
}

/* In 0 .. most; the first draw is `most`. */
static int64_t draw(uint64_t *state, int64_t most) {
    const uint64_t next = *state * 6364136223846793005u + 1442695040888963407u;
    const bool first = *state % 2 == 0; /* seeds are even, and what follows them odd */
    *state = next | 1;
    return first ? most : (int64_t)((next >> 33) % (uint64_t)(most + 1));
}

/* Batch, the longest sequence and the number of rows of one side. */
static cli_exit measure(int which, const sequences *s, int64_t *batch, int64_t *longest, int64_t *total) {
    const int32_t *cu = s->host[which];
    *batch = s->count[which] - 1;
    *longest = 1;
    if (*batch < 1) return cli_fail(CLI_BAD_INPUT, "%s has 1 number; batch + 1 are needed", option_name[which]);
    if (cu[0] < 0)
        return cli_fail(CLI_BAD_INPUT, "%s: number 1 is %d; it must be at least 0", option_name[which], cu[0]);
    for (int64_t b = 0; b < *batch; b++) {
        const int64_t length = (int64_t)cu[b + 1] - cu[b];
        if (length < 0)
            return cli_fail(CLI_BAD_INPUT, "%s: number %lld is %d; it must be at least the one before, %d",
                            option_name[which], (long long)b + 2, cu[b + 1], cu[b]);
        *longest = length > *longest ? length : *longest;
    }
    *total = cu[*batch] > 0 ? cu[*batch] : 1;
    return CLI_OK;
}

/* As many sequences as --random says, or those of queries. */
static cli_exit check_batch(int which, int64_t batch, int64_t needed, const option_ints *random) {
    if (batch == needed) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s has %lld numbers; %s needs %lld", option_name[which], (long long)batch + 1,
                    random ? "--random's batch" : option_name[CU_SEQLENS_Q], (long long)needed + 1);
}

static cli_exit draw_one(int which, const option_ints *random, sequences *s) {
    const int64_t batch = random->value[0], most = random->value[which == CU_SEQLENS_Q ? 3 : 4];
    const bool offsets = which != SEQUSED_K;
    const int32_t *cu_k = s->host[CU_SEQLENS_K];
    uint64_t state = 2 * ((random->count > 5 ? (uint64_t)random->value[5] : 0) * NUM_LENGTHS + (uint64_t)which);
    if (cu_k && which == SEQUSED_K) {
        int64_t batch_k, longest, total;
        cli_exit code = measure(CU_SEQLENS_K, s, &batch_k, &longest, &total);
        if (code == CLI_OK) code = check_batch(CU_SEQLENS_K, batch_k, batch, random);
        if (code != CLI_OK) return code;
    }
    int32_t *values = calloc((size_t)batch + 1, sizeof *values);
    if (!values) return cli_fail(CLI_FAILED, "no memory for %s", option_name[which]);
    s->host[which] = values;
    s->count[which] = batch + offsets;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = draw(&state, offsets || !cu_k ? most : cu_k[b + 1] - cu_k[b]);
        const int64_t end = length + (offsets ? values[b] : 0);
        if (end > INT32_MAX)
            return cli_fail(CLI_BAD_INPUT, "--random: the sequences have more than %d rows", INT32_MAX);
        values[b + offsets] = (int32_t)end;
    }
    return CLI_OK;
}

static cli_exit apply(const fk_problem *problem, const option_ints *random, const sequences *s, fk_args *args) {
    args->cu_seqlens_q = s->host[CU_SEQLENS_Q];
    args->cu_seqlens_k = s->host[CU_SEQLENS_K];
    args->seqused_k = s->host[SEQUSED_K];
    args->batch = random ? random->value[0] : 0;
    if (!problem->packed) return CLI_OK;
    int64_t batch_k;
    cli_exit code = measure(CU_SEQLENS_Q, s, &args->batch, &args->seqlen_q, &args->total_q);
    if (code == CLI_OK && random) code = check_batch(CU_SEQLENS_Q, args->batch, random->value[0], random);
    if (code == CLI_OK) code = measure(CU_SEQLENS_K, s, &batch_k, &args->seqlen_k, &args->total_k);
    return code == CLI_OK ? check_batch(CU_SEQLENS_K, batch_k, args->batch, random) : code;
}

cli_exit sequences_load(const char *const given[NUM_LENGTHS], const fk_problem *problem, const option_ints *random,
                        fk_args *args, sequences *out) {
    sequences s = {.host = {NULL}};
    cli_exit code = CLI_OK;
    for (int i = 0; i < NUM_LENGTHS && code == CLI_OK; i++) {
        const bool wanted = i == SEQUSED_K ? problem->seqused_k : problem->packed;
        if (!wanted) continue;
        if (given[i])
            code = read_one(i, given[i], &s);
        else if (random)
            code = draw_one(i, random, &s);
        else
            code = cli_fail(CLI_USAGE, "run: %s is missing", option_name[i]);
    }
    if (code == CLI_OK) code = apply(problem, random, &s, args);
    if (code == CLI_OK)
        *out = s;
    else
        sequences_free(&s, NULL);
    return code;
}

fk_status sequences_upload(sequences *s, fk_context *context, fk_args *args) {
    fk_status status = FK_OK;
    for (int i = 0; i < NUM_LENGTHS && status == FK_OK; i++) {
        if (!s->host[i]) continue;
        const size_t bytes = (size_t)s->count[i] * sizeof(int32_t);
        status = fk_device_malloc(context, bytes, &s->device[i]);
        if (status == FK_OK) status = fk_copy_to_device(context, s->device[i], s->host[i], bytes);
    }
    args->cu_seqlens_q = s->device[CU_SEQLENS_Q];
    args->cu_seqlens_k = s->device[CU_SEQLENS_K];
    args->seqused_k = s->device[SEQUSED_K];
    return status;
}

void sequences_free(sequences *s, fk_context *context) {
    for (int i = 0; i < NUM_LENGTHS; i++) {
        free(s->host[i]);
        if (context) fk_device_free(context, s->device[i]);
    }
    *s = (sequences){.host = {NULL}};
}
