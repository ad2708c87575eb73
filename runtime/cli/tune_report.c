#include "output.h"
#include "tune.h"

#include <math.h>

/* The trial that a kernel takes without records; null: it was not compiled. */
static const fk_trial *model_choice(const tuned *t) {
    for (size_t i = 0; i < t->count; i++)
        if (t->trials[i].plan.chosen == FK_CHOSEN_BY_RULE) return &t->trials[i];
    return NULL;
}

static const char *state_name(const fk_trial *t) {
    static const char *const names[] = {"waiting", "timed", "rejected", "skipped"};
    return names[t->state];
}

static bool is_timed(const fk_trial *t) {
    return t->state == FK_TRIAL_TIMED && t->samples > 0;
}

/* ---- table ---- */

static const table_column columns[] = {
    {NULL, "spelling", false},   {NULL, "batch", true},    {NULL, "num_heads_q", true}, {NULL, "num_heads_kv", true},
    {NULL, "seqlen_q", true},    {NULL, "seqlen_k", true}, {"", "model_choice", false}, {"plan", "plan", false},
    {NULL, "state", false},      {"time", "us", true},     {"+-", "spread", true},      {"of best", "of_best", true},
    {"model", "model_us", true}, {"error", "error", true}, {"regs", "registers", true}, {"spills", "spill_bytes", true},
    {"n", "samples", true},      {"", "reason", false},
};

static void add_trial(table *t, const tuned *from, const fk_trial *trial) {
    char plan[FK_MAX_PLAN] = "", time[CLI_QUANTITY], model[CLI_QUANTITY];
    const fk_shape *s = &from->shape;
    const int64_t sizes[] = {s->batch, s->num_heads_q, s->num_heads_kv, s->seqlen_q, s->seqlen_k};
    const bool timed = is_timed(trial), compiled = trial->registers >= 0;
    const double best = from->trials[0].us;
    fk_plan_spell(&trial->plan, plan, sizeof plan);
    table_text(t, from->spelling);
    for (int i = 0; i < 5; i++)
        table_number(t, (double)sizes[i], "%s", "");
    table_bool(t, trial->plan.chosen == FK_CHOSEN_BY_RULE, trial->plan.chosen == FK_CHOSEN_BY_RULE ? "m" : "");
    table_text(t, plan);
    table_text(t, state_name(trial));
    table_number(t, timed ? trial->us : (double)NAN, "%s", timed ? cli_time_us(trial->us, time) : "-");
    table_number(t, timed ? trial->spread : (double)NAN, timed ? "%.2f%%" : "", 100 * trial->spread);
    table_number(t, timed ? trial->us / best : (double)NAN, timed ? "%.3f" : "", trial->us / best);
    table_number(t, trial->plan.model_us, "%s", cli_time_us(trial->plan.model_us, model));
    table_number(t, timed ? trial->error : (double)NAN, timed ? "%.2f" : "", trial->error);
    table_number(t, compiled ? trial->registers : (double)NAN, compiled ? "%d" : "", trial->registers);
    table_number(t, compiled ? trial->spill_bytes : (double)NAN, compiled ? "%d" : "", trial->spill_bytes);
    table_number(t, trial->samples, trial->samples ? "%d" : "", trial->samples);
    table_text(t, trial->reason);
}

void tune_print(const tuned *t, bool emulated) {
    char shape[128];
    printf("%s at %s%s\n", t->spelling, cli_shape_text(&t->shape, shape), t->count ? "" : ": tuned before");
    if (!t->count) return;
    const fk_trial *best = &t->trials[0], *choice = model_choice(t);
    table *out = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < t->count; i++)
        add_trial(out, t, &t->trials[i]);
    table_print(out, stdout);
    table_destroy(out);
    if (emulated) printf("Wall time of the emulator: it says nothing about any GPU.\n");
    if (!is_timed(best))
        printf("Nothing was run: the first is the best modelled one that compiles without flaws.\n");
    else if (best == choice)
        printf("The model's choice is the fastest");
    else if (choice && is_timed(choice))
        printf("The fastest takes %.1f%% less than the model's choice, m", 100 * (1 - best->us / choice->us));
    else
        printf("The model's choice was not timed");
    if (is_timed(best)) printf("; %.1f s of search\n", t->seconds);
    putchar('\n');
}

bool tune_print_json(const tuned *all, size_t count) {
    table *out = table_create(columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < all[i].count; n++)
            add_trial(out, &all[i], &all[i].trials[n]);
    const bool good = table_print_json(out, stdout);
    table_destroy(out);
    return good;
}

/* ---- files ---- */

static void put_quoted(FILE *out, const char *text) {
    putc('"', out);
    for (; *text; text++) {
        if (*text == '"') putc('"', out);
        putc(*text, out);
    }
    putc('"', out);
}

static void put_row(FILE *out, const tuned *from, const fk_trial *t) {
    char plan[FK_MAX_PLAN] = "";
    const fk_shape *s = &from->shape;
    fk_plan_spell(&t->plan, plan, sizeof plan);
    put_quoted(out, from->spelling);
    fprintf(out, ",%lld,%lld,%lld,%lld,%lld,%s,%s,%.3f,%.5f,%d,%.3f,%.4f,%d,%d,%d,%d,", (long long)s->batch,
            (long long)s->num_heads_q, (long long)s->num_heads_kv, (long long)s->seqlen_q, (long long)s->seqlen_k, plan,
            state_name(t), t->us, t->spread, t->samples, t->plan.model_us, t->error, t->registers, t->spill_bytes,
            t->serialized_wgmma, t->plan.chosen == FK_CHOSEN_BY_RULE);
    put_quoted(out, t->reason);
    putc('\n', out);
}

cli_exit tune_write_csv(const char *path, const tuned *all, size_t count) {
    output out = {0};
    cli_exit code = output_open(&out, path);
    if (code != CLI_OK) return code;
    fputs("spelling,batch,num_heads_q,num_heads_kv,seqlen_q,seqlen_k,plan,state,us,spread,samples,model_us,error,"
          "registers,spill_bytes,serialized_wgmma,model_choice,reason\n",
          out.file);
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < all[i].count; n++)
            put_row(out.file, &all[i], &all[i].trials[n]);
    code = output_commit(&out);
    output_discard(&out);
    return code;
}

enum { SIDE = 480, MARGIN = 60 };

typedef struct span {
    double low, high;
} span;

/* Of both times of all timed trials, to whole powers of two. */
static span span_of(const tuned *all, size_t count) {
    span s = {INFINITY, 0};
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < all[i].count; n++) {
            const fk_trial *t = &all[i].trials[n];
            if (!is_timed(t) || !(t->plan.model_us > 0)) continue;
            s.low = fmin(s.low, fmin(t->us, t->plan.model_us));
            s.high = fmax(s.high, fmax(t->us, t->plan.model_us));
        }
    if (s.low > s.high) return (span){1, 2};
    return (span){exp2(floor(log2(s.low))), exp2(floor(log2(s.high)) + 1)};
}

static double place(const span *s, double value) {
    return MARGIN + SIDE * log2(value / s->low) / log2(s->high / s->low);
}

static void put_axes(FILE *out, const span *s) {
    char text[CLI_QUANTITY];
    const int end = SIDE + 2 * MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            end, end, end, end);
    for (double v = s->low; v <= s->high * 1.01; v *= 2) {
        const double x = place(s, v), y = end - x;
        fprintf(out,
                "<path d=\"M%.1f %d V%d M%d %.1f H%d\" stroke=\"#ddd\"/>\n<text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                x, MARGIN, end - MARGIN, MARGIN, y, end - MARGIN, x, end - MARGIN + 16, cli_time_us(v, text),
                MARGIN - 6, y + 4, text);
    }
    fprintf(out,
            "<path d=\"M%d %d L%d %d\" stroke=\"#888\" stroke-dasharray=\"4\"/>\n<text x=\"%d\" y=\"%d\" "
            "text-anchor=\"middle\">modelled</text>\n<text x=\"14\" y=\"%d\" text-anchor=\"middle\" "
            "transform=\"rotate(-90 14 %d)\">measured</text>\n",
            MARGIN, end - MARGIN, end - MARGIN, MARGIN, end / 2, end - 14, end / 2, end / 2);
}

cli_exit tune_write_svg(const char *path, const tuned *all, size_t count) {
    static const char *const colors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};
    enum { NUM_COLORS = sizeof colors / sizeof colors[0] };
    output out = {0};
    cli_exit code = output_open(&out, path);
    if (code != CLI_OK) return code;
    const span s = span_of(all, count);
    put_axes(out.file, &s);
    for (size_t i = 0; i < count; i++)
        for (size_t n = 0; n < all[i].count; n++) {
            const fk_trial *t = &all[i].trials[n];
            if (!is_timed(t) || !(t->plan.model_us > 0)) continue;
            const bool choice = t->plan.chosen == FK_CHOSEN_BY_RULE;
            fprintf(out.file,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\" fill-opacity=\"%s\" stroke=\"%s\"/>\n",
                    place(&s, t->plan.model_us), SIDE + 2 * MARGIN - place(&s, t->us), n == 0 ? 5 : 3,
                    colors[i % NUM_COLORS], n == 0 ? "1" : "0.5", choice ? "black" : "none");
        }
    fputs("</svg>\n", out.file);
    code = output_commit(&out);
    output_discard(&out);
    return code;
}
