#include "run.h"

#include <math.h>

static void print_store(const run *r) {
    const char *path = r->info.store_path[0] ? r->info.store_path : "a file whose path is too long to be shown";
    if (r->info.from_store == 2)
        printf("Pack      %s: %s\n", path, r->info.store_note);
    else if (r->info.from_store)
        printf("Store     %s\n", path);
    else if (r->no_cache)
        printf("Store     off\n");
    else if (r->info.stored)
        printf("Store     written (%s before): %s\n", r->info.store_note, path);
    else
        printf("Store     nothing written: %s\n", r->info.store_note);
}

static void print_kernel(const run *r) {
    const fk_image_info *i = &r->info.image;
    char smem[CLI_QUANTITY], bytes[CLI_QUANTITY];
    if (r->info.from_store == 2)
        printf("Kernel    from a pack in %.2f ms\n", r->info.lookup_ms);
    else if (r->info.from_store && r->info.lookup_ms > 0)
        printf("Kernel    from the store in %.1f ms, %.0f times faster than the %.0f ms that compiling took\n",
               r->info.lookup_ms, i->compile_ms / r->info.lookup_ms, i->compile_ms);
    else
        printf("Kernel    compiled in %.0f ms by %s\n", i->compile_ms, i->compiler);
    printf("          %s: ", i->target);
    if (i->registers > 0) printf("%d registers, %d bytes spilled, ", i->registers, i->spill_bytes);
    if (i->serialized_wgmma) printf("wgmma serialised, ");
    printf("%s shared memory, %d threads a block, image %s\n", cli_bytes(i->smem_dynamic + i->smem_static, smem),
           i->threads, cli_bytes((double)i->image_bytes, bytes));
    print_store(r);
}

/* The candidates, once more: a kernel remembers its plan, not what it was chosen from. A pack's was chosen elsewhere,
 * and there may be no Lua to choose with. */
static fk_status print_choice(const run *r) {
    if (r->info.from_store == 2) return FK_OK;
    const fk_plan_options how = cli_plan_options(&r->planning);
    fk_plan_info *plans = NULL;
    size_t count = 0;
    char live[32];
    snprintf(live, sizeof live, "cuda:%d", r->planned.ordinal);
    const fk_status status =
        fk_plan_list(&r->problem, r->planned.ordinal < 0 ? r->planned.key : live, &how, &plans, &count);
    if (status == FK_OK) cli_print_choice("          ", plans, count, &r->info.plan, &how.shape);
    fk_free(plans);
    return status;
}

fk_status run_print_story(const run *r) {
    const fk_args *a = &r->host.args;
    printf("Problem   %s\n", r->spelling);
    if (r->problem.packed)
        printf("          %lld queries and %lld keys in all; the longest sequence:\n", (long long)a->total_q,
               (long long)a->total_k);
    printf("          batch %lld, heads %lld (kv %lld), seqlen_q %lld, seqlen_k %lld, softmax_scale %g\n",
           (long long)a->batch, (long long)a->num_heads_q, (long long)a->num_heads_kv, (long long)a->seqlen_q,
           (long long)a->seqlen_k, a->softmax_scale > 0 ? (double)a->softmax_scale : 1 / sqrt(r->problem.head_dim));
    printf("Device    %s", fk_context_is_emulator(r->context) ? "emulator on the CPU" : r->runs.name);
    printf(", planned for %s\n", r->planned.name);
    printf("Plan      family %s with sm_%d primitives\n", r->info.plan.family, r->info.plan.sm);
    cli_print_plan("          ", &r->problem, &r->info.plan, &r->planned);
    const fk_status status = print_choice(r);
    if (status == FK_OK) print_kernel(r);
    return status;
}

void run_print_timing(const run *r) {
    if (isnan(r->median_ms)) return;
    if (fk_context_is_emulator(r->context))
        printf("Time      %.1f ms on the emulator: it says nothing about any GPU\n", r->median_ms);
    else
        printf("Time      %.4f ms, %.1f TFLOP/s (median of %lld; the FLOP that the mask leaves)\n", r->median_ms,
               r->tflops, (long long)r->repeat);
}

bool run_print_json(const run *r) {
    static const table_column columns[] = {
        {NULL, "spelling", false},
        {NULL, "device", false},
        {NULL, "planned_for", false},
        {NULL, "target", false},
        {NULL, "store_path", false},
        {NULL, "store_note", false},
        {NULL, "key", false},
        {NULL, "from_store", false},
        {NULL, "emulator", false},
        {NULL, "block_m", true},
        {NULL, "block_n", true},
        {NULL, "warps", true},
        {NULL, "stages", true},
        {NULL, "registers", true},
        {NULL, "spill_bytes", true},
        {NULL, "smem_bytes", true},
        {NULL, "lookup_ms", true},
        {NULL, "load_ms", true},
        {NULL, "compile_ms", true},
        {NULL, "median_ms", true},
        {NULL, "tflops", true},
        {NULL, "max_abs", true},
        {NULL, "max_abs_eager", true},
        {NULL, "frobenius", true},
        {NULL, "frobenius_eager", true},
        {NULL, "lse_max_abs", true},
        {NULL, "lse_max_abs_eager", true},
        {NULL, "not_finite", true},
        {NULL, "ratio", true},
        {NULL, "worst", false},
    };
    const fk_plan_info *p = &r->info.plan;
    const fk_image_info *i = &r->info.image;
    const check *c = &r->result;
    const check_part *worst = &c->part[c->worst];
    const bool forward = r->problem.op == FK_FORWARD;
    const double lse[] = {forward ? c->lse.kernel : (double)NAN, forward ? c->lse.eager : (double)NAN};
    const char *const texts[] = {r->spelling,        r->runs.name,       r->planned.name, i->target,
                                 r->info.store_path, r->info.store_note, i->key};
    const double numbers[] = {p->block_m,
                              p->block_n,
                              p->warps,
                              p->stages,
                              i->registers,
                              i->spill_bytes,
                              i->smem_dynamic,
                              r->info.lookup_ms,
                              r->info.load_ms,
                              i->compile_ms,
                              r->median_ms,
                              r->tflops,
                              worst->max_abs.kernel,
                              worst->max_abs.eager,
                              worst->frobenius.kernel,
                              worst->frobenius.eager,
                              lse[0],
                              lse[1],
                              (double)c->wrong,
                              c->ratio};
    table *t = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++)
        table_text(t, texts[n]);
    table_bool(t, r->info.from_store, "");
    table_bool(t, fk_context_is_emulator(r->context), "");
    for (size_t n = 0; n < sizeof numbers / sizeof numbers[0]; n++)
        table_number(t, check_compares(c) || n < 12 ? numbers[n] : (double)NAN, "%s", "");
    table_text(t, check_compares(c) ? worst->name : "");
    const bool good = table_print_json_object(t, stdout);
    table_destroy(t);
    return good;
}
