#include <flashkiln.h>
#include <stdio.h>

static uint16_t host[1 * 200 * 4 * 64] = {0x3c00}; /* fp16 [batch, seqlen, heads, dim]: 1, 0, 0, ... */

int main(void) {
    fk_context_options options = {sizeof options, .device = "auto", .planning = FK_PLAN_OPTIONS_INIT};
    fk_args args = {sizeof args, .batch = 1, .num_heads_q = 4, .num_heads_kv = 4, .seqlen_q = 200, .seqlen_k = 200};
    fk_problem problem;
    fk_context *context = NULL; /* the first GPU, or else the emulator */
    fk_kernel *kernel = NULL;   /* compiled once, then found in the store */
    void *q = NULL, *o = NULL, *workspace = NULL;
    int failed = fk_context_create(&options, &context) || fk_problem_parse("fwd fp16 d64 causal", &problem) ||
                 fk_kernel_create(context, &problem, &kernel) || fk_args_layout(&problem, FK_BSHD, &args) ||
                 fk_device_malloc(context, sizeof host, &q) || fk_device_malloc(context, sizeof host, &o) ||
                 fk_copy_to_device(context, q, host, sizeof host);
    args.q = args.k = args.v = q, args.o = o;
    size_t bytes = failed ? 0 : fk_kernel_workspace(kernel, &args); /* some kernels need none */
    failed = failed || (bytes && fk_device_malloc(context, bytes, &workspace)) ||
             fk_execute(kernel, &args, workspace, bytes, NULL) || fk_copy_from_device(context, host, o, sizeof host);
    puts(failed ? fk_last_error() : host[0] == 0x3c00 && host[256] == 0x3800 ? "1, 1/2, ..." : "wrong");
    fk_device_free(context, q), fk_device_free(context, o), fk_device_free(context, workspace);
    fk_kernel_destroy(kernel), fk_context_destroy(context);
    return failed;
}
