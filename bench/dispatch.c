/* Host time of the calls that a program makes again and again: finding a known kernel, enqueueing it, and the first
 * call of a process whose kernel is in the store.
 *
 *     dispatch [--device cuda:0|emu] [SPELLING]
 *
 * Run it twice: the second run's first call comes from the store. */
#include "flashkiln.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEQLEN 128
#define HEADS 4
#define ROUNDS 200
#define CALLS 50 /* in a round, so that the stream's queue never fills */

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(fk_status status) {
    if (status == FK_OK) return;
    fprintf(stderr, "%s: %s\n", fk_status_name(status), fk_last_error());
    exit(status == FK_NO_DEVICE ? 77 : 1);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static double time_lookup(fk_context *context, const fk_problem *problem) {
    double us[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        const double start = now_us();
        for (int i = 0; i < CALLS; i++) {
            fk_kernel *kernel;
            must(fk_kernel_create(context, problem, &kernel));
            fk_kernel_destroy(kernel);
        }
        us[r] = (now_us() - start) / CALLS;
    }
    return median(us, ROUNDS);
}

static double time_execute(fk_context *context, const fk_kernel *kernel, const fk_args *args, void *workspace,
                           size_t bytes, int rounds) {
    double us[ROUNDS];
    for (int r = 0; r < rounds; r++) {
        const double start = now_us();
        for (int i = 0; i < CALLS; i++)
            must(fk_execute(kernel, args, workspace, bytes, NULL));
        us[r] = (now_us() - start) / CALLS;
        must(fk_synchronize(context, NULL));
    }
    return median(us, (size_t)rounds);
}

int main(int argc, char **argv) {
    const char *spelling = "fwd fp16 d64 causal";
    fk_context_options options = FK_CONTEXT_OPTIONS_INIT;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            options.device = argv[++i];
        else
            spelling = argv[i];
    }
    fk_problem problem;
    fk_context *context;
    fk_kernel *kernel;
    fk_kernel_info info;
    must(fk_problem_parse(spelling, &problem));
    double start = now_us();
    must(fk_context_create(&options, &context));
    printf("context creation            %9.2f ms\n", (now_us() - start) * 1e-3);
    start = now_us();
    must(fk_kernel_create(context, &problem, &kernel));
    const double first_ms = (now_us() - start) * 1e-3;
    must(fk_kernel_describe(kernel, &info));
    printf("first fk_kernel_create      %9.2f ms (%s: lookup %.2f ms, load %.2f ms)\n", first_ms,
           info.from_store ? "from the store" : "compiled", info.lookup_ms, info.load_ms);
    printf("known fk_kernel_create      %9.3f us\n", time_lookup(context, &problem));

    fk_args args = FK_ARGS_INIT;
    args.batch = 1;
    args.num_heads_q = args.num_heads_kv = HEADS;
    args.seqlen_q = args.seqlen_k = SEQLEN;
    must(fk_args_layout(&problem, FK_BSHD, &args));
    void *memory[4];
    for (int i = 0; i < 4; i++)
        must(fk_device_malloc(context, (size_t)SEQLEN * HEADS * FK_MAX_HEAD_DIM * 2, &memory[i]));
    args.q = memory[0];
    args.k = memory[1];
    args.v = memory[2];
    args.o = memory[3];
    void *workspace = NULL;
    const size_t bytes = fk_kernel_workspace(kernel, &args);
    if (bytes) must(fk_device_malloc(context, bytes, &workspace));
    start = now_us();
    must(fk_execute(kernel, &args, workspace, bytes, NULL));
    must(fk_synchronize(context, NULL));
    printf("first fk_execute            %9.2f ms (until the result is there)\n", (now_us() - start) * 1e-3);
    if (!fk_context_is_emulator(context)) /* the emulator runs the kernel within the call */
        printf("fk_execute                  %9.3f us\n",
               time_execute(context, kernel, &args, workspace, bytes, ROUNDS));
    for (int i = 0; i < 4; i++)
        fk_device_free(context, memory[i]);
    fk_device_free(context, workspace);
    fk_kernel_destroy(kernel);
    fk_context_destroy(context);
    return 0;
}
