/* Which SMs share a side of L2. On an H100 and H200 each half of the SMs reads memory by its own half of L2, and what
 * belongs to the other one comes over a link between them. Nothing tells which SM is where; but an atomic is done where
 * its line belongs, so that one on the other side takes 1.5 times as long (560 clocks in place of 360 on an H100). So a
 * small kernel, one block an SM, measures atomics on a number of lines; which of these belong where, follows as well.
 * Once a GPU and process; whatever goes wrong, there are no sides, which costs time alone. */
#include "object.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* fk_latencies(lines, bytes from one to the next, how many, out): block b writes its SM's number to out[b][0], and then
 * for each line the fewest clocks that eight atomics took. A clock is read behind a branch that waits for the atomic.
 */
static const char probe[] = ".version 7.8\n.target sm_90\n.address_size 64\n"
                            ".visible .entry fk_latencies(.param .u64 lines, .param .u32 stride, .param .u32 count,\n"
                            "                             .param .u64 out) {\n"
                            ".reg .pred %p; .reg .b32 %r<12>; .reg .b64 %d<5>;\n"
                            "ld.param.u64 %d0, [lines]; ld.param.u32 %r0, [stride]; ld.param.u32 %r1, [count];\n"
                            "ld.param.u64 %d1, [out]; cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;\n"
                            "cvt.u64.u32 %d2, %r0;\n"
                            "mov.u32 %r2, %ctaid.x; add.u32 %r3, %r1, 1; mul.lo.u32 %r3, %r3, %r2;\n"
                            "mul.wide.u32 %d3, %r3, 4; add.u64 %d1, %d1, %d3;\n"
                            "mov.u32 %r4, %smid; st.global.u32 [%d1], %r4;\n"
                            "LINE: add.u64 %d1, %d1, 4; mov.u32 %r5, -1; mov.u32 %r6, 8;\n"
                            "AGAIN: mov.u32 %r7, %clock;\n"
                            "atom.global.add.u32 %r8, [%d0], 0;\n"
                            "setp.eq.u32 %p, %r8, 0x55555555; @%p bra DONE;\n"
                            "mov.u32 %r9, %clock; sub.u32 %r9, %r9, %r7; min.u32 %r5, %r5, %r9;\n"
                            "sub.u32 %r6, %r6, 1; setp.ne.u32 %p, %r6, 0; @%p bra AGAIN;\n"
                            "st.global.u32 [%d1], %r5; add.u64 %d0, %d0, %d2;\n"
                            "sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra LINE;\n"
                            "DONE: ret;\n}\n";
enum { NUM_LINES = 64, LINE_STRIDE = 37 * 1024 + 128, ROW = NUM_LINES + 1, MOST_GPUS = 64 };

/* ---- from clocks to sides ----------------------------------------------------------------------------- */

/* The line along which SMs differ most, by power iteration with the signs of what they have of it. */
static void spread_along(const double *d, int num_sms, int num_lines, double *weight, double *share) {
    memcpy(weight, d, (size_t)num_lines * sizeof *d); /* as the first SM */
    for (int round = 0; round < 8; round++) {
        for (int s = 0; s < num_sms; s++) {
            share[s] = 0;
            for (int j = 0; j < num_lines; j++)
                share[s] += d[s * num_lines + j] * weight[j];
        }
        memset(weight, 0, (size_t)num_lines * sizeof *weight);
        for (int s = 0; s < num_sms; s++)
            for (int j = 0; j < num_lines; j++)
                weight[j] += (share[s] < 0 ? -1 : 1) * d[s * num_lines + j];
    }
}

/* Clear: two groups of a quarter of the SMs at least, and none between them. */
static bool is_clear(const double *share, int num_sms) {
    int negative = 0;
    double mean = 0, least = INFINITY;
    for (int s = 0; s < num_sms; s++) {
        const double size = fabs(share[s]);
        negative += share[s] < 0;
        mean += size / num_sms;
        least = fmin(least, size);
    }
    return least > mean / 2 && 4 * negative >= num_sms && 4 * negative <= 3 * num_sms;
}

bool fk_sides_tell_apart(const uint32_t *clocks, int pitch, int num_sms, int num_lines, bool *side) {
    const size_t cells = (size_t)num_sms * (size_t)num_lines;
    double *d = calloc(cells + (size_t)num_lines + (size_t)num_sms, sizeof *d);
    if (!d) return false;
    double *weight = d + cells, *share = weight + num_lines;
    for (int j = 0; j < num_lines; j++) { /* over what the line takes of all SMs, */
        double mean = 0;
        for (int s = 0; s < num_sms; s++)
            mean += (double)clocks[s * pitch + j] / num_sms;
        for (int s = 0; s < num_sms; s++)
            d[s * num_lines + j] = clocks[s * pitch + j] - mean;
    }
    for (int s = 0; s < num_sms; s++) { /* and what the SM takes of all lines */
        double mean = 0;
        for (int j = 0; j < num_lines; j++)
            mean += d[s * num_lines + j] / num_lines;
        for (int j = 0; j < num_lines; j++)
            d[s * num_lines + j] -= mean;
    }
    spread_along(d, num_sms, num_lines, weight, share);
    const bool clear = is_clear(share, num_sms);
    for (int s = 0; s < num_sms; s++)
        side[s] = (share[s] < 0) != (share[0] < 0);
    free(d);
    return clear;
}

/* ---- measuring ---------------------------------------------------------------------------------------- */

static int launch_probe(const fk_driver *d, void *function, int num_sms, unsigned smem, fk_cu_pointer lines,
                        fk_cu_pointer out, void *stream) {
    unsigned stride = LINE_STRIDE, count = NUM_LINES;
    void *params[] = {&lines, &stride, &count, &out};
    const int result = d->function_set(function, FK_CU_FUNC_MAX_DYNAMIC_SMEM, (int)smem); /* one block an SM */
    return result ? result : d->launch(function, (unsigned)num_sms, 1, 1, 1, 1, 1, smem, stream, params, NULL);
}

/* The second launch counts: the first one has the lines in L2. A stream of its own, which waits for nobody. */
static int measure(const fk_driver *d, void *function, int num_sms, unsigned smem, uint32_t *rows) {
    const size_t line_bytes = (size_t)NUM_LINES * LINE_STRIDE, bytes = (size_t)num_sms * ROW * sizeof *rows;
    fk_cu_pointer memory = 0;
    void *stream = NULL;
    int result = d->memory_alloc(&memory, line_bytes + bytes);
    if (!result) result = d->stream_create(&stream, FK_CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2 && !result; i++)
        result = launch_probe(d, function, num_sms, smem, memory, memory + line_bytes, stream);
    if (!result) result = d->copy_from_device_async(rows, memory + line_bytes, bytes, stream);
    if (!result) result = d->stream_synchronize(stream);
    if (stream) d->stream_destroy(stream);
    if (memory) d->memory_free(memory);
    return result;
}

static int load_and_measure(const fk_driver *d, int num_sms, unsigned smem, uint32_t *rows) {
    void *library = NULL, *kernel = NULL, *function = NULL;
    int options[] = {FK_CU_JIT_CACHE_MODE}; /* nothing is written to the user's folders */
    void *values[] = {NULL};
    int result = d->library_load(&library, probe, options, values, 1, NULL, NULL, 0);
    if (!result) result = d->library_kernel(&kernel, library, "fk_latencies");
    if (!result) result = d->kernel_function(&function, kernel);
    if (!result) result = measure(d, function, num_sms, smem, rows);
    if (library) d->library_unload(library);
    return result;
}

static void put(fk_sides *sides, uint32_t sm) {
    sides->of_sm[sm / 32] |= 1u << sm % 32;
}

/* Rows in the order of blocks, each with its SM. */
static bool read_rows(const uint32_t *rows, int num_sms, fk_sides *out) {
    bool side[FK_MOST_SIDED_SMS] = {false}, seen[FK_MOST_SIDED_SMS] = {false};
    for (int block = 0; block < num_sms; block++) {
        const uint32_t sm = rows[block * ROW];
        if (sm >= FK_MOST_SIDED_SMS || seen[sm]) return false;
        seen[sm] = true;
    }
    if (!fk_sides_tell_apart(rows + 1, ROW, num_sms, NUM_LINES, side)) return false;
    for (int block = 0; block < num_sms; block++)
        if (side[block]) put(out, rows[block * ROW]);
    return true;
}

static bool ask_gpu(const fk_context *context, fk_sides *out) {
    const fk_driver *d = context->driver;
    const int num_sms = context->runs.num_sms;
    uint32_t *rows = calloc((size_t)num_sms * ROW, sizeof *rows);
    int pushed = 0, mode = FK_CU_CAPTURE_RELAXED; /* others may be capturing */
    bool known = false;
    if (rows && d->capture_mode(&mode) == 0) {
        if (fk_driver_enter(d, context->primary, &pushed) == 0) {
            known = load_and_measure(d, num_sms, (unsigned)context->runs.smem_per_block, rows) == 0 &&
                    read_rows(rows, num_sms, out);
            fk_driver_leave(d, pushed);
        }
        d->capture_mode(&mode);
    }
    free(rows);
    return known;
}

/* As some GPU might have them, so that kernels are tested with them. */
static void imagine(int num_sms, fk_sides *out) {
    for (int i = 0; i < num_sms; i++)
        if (i % 8 > 2 && i % 5) put(out, (uint32_t)i);
}

bool fk_sides_find(const fk_context *context, fk_sides *out) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        bool asked, known;
        fk_sides sides;
    } found[MOST_GPUS];
    const char *wanted = secure_getenv("FLASHKILN_L2_SIDES");
    const int ordinal = context->runs.ordinal, num_sms = context->runs.num_sms;
    memset(out, 0, sizeof *out);
    if (context->planned.sm != 90 || num_sms < 2 || num_sms > FK_MOST_SIDED_SMS) return false;
    if (wanted && strcmp(wanted, "off") == 0) return false;
    if (!context->driver) {
        imagine(num_sms, out);
        return true;
    }
    if (ordinal < 0 || ordinal >= MOST_GPUS) return false;
    pthread_mutex_lock(&lock);
    if (!found[ordinal].asked) {
        found[ordinal].asked = true;
        found[ordinal].known = ask_gpu(context, &found[ordinal].sides);
    }
    *out = found[ordinal].sides;
    const bool known = found[ordinal].known;
    pthread_mutex_unlock(&lock);
    return known;
}
