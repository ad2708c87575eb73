/* pattern show: what a mask shows, block by block, and the tiles that a plan visits for it. */
#include "cli.h"
#include "output.h"
#include "png.h"

#include <stdlib.h>
#include <string.h>

/* fk_plan_tile_map of tiles of some size. */
typedef struct grid {
    int64_t tile_rows, tile_columns; /* of a tile, in queries and keys */
    int64_t rows, columns;
    uint8_t *state;
} grid;

typedef struct picture {
    fk_problem problem;
    char spelling[FK_MAX_SPELLING];
    fk_plan_options how;
    fk_plan_info plan;
    int64_t head;
    grid blocks, tiles;
} picture;

static cli_exit map(const picture *p, int64_t rows, int64_t columns, grid *out) {
    enum { MOST = 1 << 24 };
    const fk_shape *s = &p->how.shape;
    const fk_plan_info tile = {.block_m = (int32_t)rows, .block_n = (int32_t)columns};
    *out = (grid){rows, columns, (s->seqlen_q + rows - 1) / rows, (s->seqlen_k + columns - 1) / columns, NULL};
    if (out->rows * out->columns > MOST)
        return cli_fail(
            CLI_USAGE,
            "pattern: --n %lld and --keys %lld give %lld x %lld blocks of %lld x %lld: must be at most %d in all",
            (long long)s->seqlen_q, (long long)s->seqlen_k, (long long)out->rows, (long long)out->columns,
            (long long)rows, (long long)columns, MOST);
    const size_t size = (size_t)(out->rows * out->columns);
    out->state = malloc(size);
    if (!out->state) return cli_fail(CLI_FAILED, "pattern: no memory for %zu blocks", size);
    const fk_status status = fk_plan_tile_map(&p->problem, &tile, &p->how, p->head, out->state, size);
    return status == FK_OK ? CLI_OK : cli_fail_status(status);
}

static void count(const grid *g, int64_t counts[3]) {
    counts[0] = counts[1] = counts[2] = 0;
    for (int64_t i = 0; i < g->rows * g->columns; i++)
        counts[g->state[i]]++;
}

/* ---- as text ---- */

/* What so many rows and columns of blocks show together. */
static uint8_t state_of(const grid *g, int64_t row, int64_t column, int64_t step) {
    const uint8_t first = g->state[row * g->columns + column];
    for (int64_t y = row; y < row + step && y < g->rows; y++)
        for (int64_t x = column; x < column + step && x < g->columns; x++)
            if (g->state[y * g->columns + x] != first) return FK_TILE_PARTIAL;
    return first;
}

/* A character for a block, or for several. */
static void print_text(const grid *g) {
    enum { MOST = 64 };
    const int64_t step = ((g->rows > g->columns ? g->rows : g->columns) + MOST - 1) / MOST;
    if (step > 1) printf("  a character is %lld x %lld blocks\n", (long long)step, (long long)step);
    for (int64_t i = 0; i < g->rows; i += step) {
        fputs("  ", stdout);
        for (int64_t j = 0; j < g->columns; j += step) {
            const uint8_t state = state_of(g, i, j, step);
            fputs(state == FK_TILE_EMPTY ? "." : state == FK_TILE_FULL ? "#" : "+", stdout);
        }
        putchar('\n');
    }
}

static void print_counts(const picture *p) {
    int64_t blocks[3], tiles[3];
    count(&p->blocks, blocks);
    count(&p->tiles, tiles);
    const double all = (double)(p->blocks.rows * p->blocks.columns),
                 of_tiles = (double)(p->tiles.rows * p->tiles.columns);
    printf("%s, head %lld: %lld queries x %lld keys\n", p->spelling, (long long)p->head,
           (long long)p->how.shape.seqlen_q, (long long)p->how.shape.seqlen_k);
    printf("  blocks of %lld x %lld: %.2f%% shown, %.2f%% in part\n", (long long)p->blocks.tile_rows,
           (long long)p->blocks.tile_columns, 100 * (double)blocks[FK_TILE_FULL] / all,
           100 * (double)blocks[FK_TILE_PARTIAL] / all);
    printf("  tiles of %d x %d: %lld of %lld visited (%.2f%%), %lld of them masked element by element\n",
           p->plan.block_m, p->plan.block_n, (long long)(tiles[FK_TILE_FULL] + tiles[FK_TILE_PARTIAL]),
           (long long)of_tiles, 100 * (double)(tiles[FK_TILE_FULL] + tiles[FK_TILE_PARTIAL]) / of_tiles,
           (long long)tiles[FK_TILE_PARTIAL]);
}

/* ---- as SVG: a unit is a token, scaled to SIDE ---- */

enum { SIDE = 640, LEGEND = 64 };

/* Runs of blocks of one state that lie beside each other, as one path. */
static void put_runs(FILE *out, const picture *p, const grid *g, uint8_t state, const char *style) {
    const fk_shape *s = &p->how.shape;
    fprintf(out, "<path %s d=\"", style);
    for (int64_t i = 0; i < g->rows; i++) {
        for (int64_t j = 0, end; j < g->columns; j = end) {
            end = j + 1;
            if (g->state[i * g->columns + j] != state) continue;
            while (end < g->columns && g->state[i * g->columns + end] == state)
                end++;
            const int64_t x = j * g->tile_columns, y = i * g->tile_rows;
            const int64_t right = end * g->tile_columns, below = y + g->tile_rows;
            fprintf(out, "M%lld %lldH%lldV%lldH%lldz", (long long)x, (long long)y,
                    (long long)(right < s->seqlen_k ? right : s->seqlen_k),
                    (long long)(below < s->seqlen_q ? below : s->seqlen_q), (long long)x);
        }
    }
    fputs("\"/>\n", out);
}

/* The outlines of visited tiles. */
static void put_tiles(FILE *out, const picture *p) {
    const grid *g = &p->tiles;
    fputs("<path fill=\"none\" stroke=\"#c2410c\" stroke-width=\"1\" vector-effect=\"non-scaling-stroke\" d=\"", out);
    for (int64_t i = 0; i < g->rows * g->columns; i++) {
        if (g->state[i] == FK_TILE_EMPTY) continue;
        fprintf(out, "M%lld %lldh%lldv%lldh-%lldz", (long long)(i % g->columns * g->tile_columns),
                (long long)(i / g->columns * g->tile_rows), (long long)g->tile_columns, (long long)g->tile_rows,
                (long long)g->tile_columns);
    }
    fputs("\"/>\n", out);
}

static void put_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '&' || *text == '<' || *text == '>' || *text == '"')
            fprintf(out, "&#%d;", *text);
        else
            fputc(*text, out);
    }
}

static void put_svg(FILE *out, const picture *p) {
    const fk_shape *s = &p->how.shape;
    int64_t tiles[3];
    count(&p->tiles, tiles);
    const long long q = s->seqlen_q, k = s->seqlen_k, longest = q > k ? q : k;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\">",
            SIDE + 20, SIDE + LEGEND + 10);
    put_text(out, p->spelling);
    fprintf(out,
            "</text>\n<text x=\"10\" y=\"38\">%lld queries (down) x %lld keys, head %lld; blocks of %lld x %lld: dark "
            "shown, light in part</text>\n<text x=\"10\" y=\"56\" fill=\"#c2410c\">tiles of %d x %d: %lld of %lld "
            "visited</text>\n",
            q, k, (long long)p->head, (long long)p->blocks.tile_rows, (long long)p->blocks.tile_columns,
            p->plan.block_m, p->plan.block_n, (long long)(tiles[FK_TILE_PARTIAL] + tiles[FK_TILE_FULL]),
            (long long)(p->tiles.rows * p->tiles.columns));
    fprintf(out,
            "<svg x=\"10\" y=\"%d\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %lld %lld\" "
            "preserveAspectRatio=\"xMinYMin\">\n<rect width=\"%lld\" height=\"%lld\" fill=\"#f1f5f9\"/>\n",
            LEGEND, SIDE, SIDE, longest, longest, k, q);
    put_runs(out, p, &p->blocks, FK_TILE_PARTIAL, "fill=\"#93c5fd\"");
    put_runs(out, p, &p->blocks, FK_TILE_FULL, "fill=\"#1d4ed8\"");
    put_tiles(out, p);
    fputs("</svg>\n</svg>\n", out);
}

/* ---- as PNG: the same without words ---- */

typedef enum colour { NOTHING, IN_PART, SHOWN, HIDDEN, OUTLINE, NUM_COLOURS } colour;

static bool visited(const grid *g, int64_t q, int64_t k) {
    return g->state[q / g->tile_rows * g->columns + k / g->tile_columns] != FK_TILE_EMPTY;
}

/* Of the pixel whose first pair is (q, k), and the pixel before it in either direction `step` less. */
static colour colour_of(const picture *p, int64_t q, int64_t k, int64_t step) {
    static const colour of_state[] = {[FK_TILE_EMPTY] = HIDDEN, [FK_TILE_PARTIAL] = IN_PART, [FK_TILE_FULL] = SHOWN};
    const grid *b = &p->blocks, *t = &p->tiles;
    if (q >= p->how.shape.seqlen_q || k >= p->how.shape.seqlen_k) return NOTHING;
    const bool row_begins = q % t->tile_rows < step, column_begins = k % t->tile_columns < step;
    const bool above = row_begins && q >= step && visited(t, q - step, k);
    const bool left = column_begins && k >= step && visited(t, q, k - step);
    const bool wide = t->tile_rows >= 4 * step && t->tile_columns >= 4 * step; /* else outlines would cover all */
    if (wide && (((row_begins || column_begins) && visited(t, q, k)) || above || left)) return OUTLINE;
    return of_state[b->state[q / b->tile_rows * b->columns + k / b->tile_columns]];
}

static cli_exit put_png(FILE *out, const picture *p) {
    static const uint8_t colours[NUM_COLOURS][3] = {[NOTHING] = {255, 255, 255},
                                                    [IN_PART] = {0x93, 0xc5, 0xfd},
                                                    [SHOWN] = {0x1d, 0x4e, 0xd8},
                                                    [HIDDEN] = {0xf1, 0xf5, 0xf9},
                                                    [OUTLINE] = {0xc2, 0x41, 0x0c}};
    const fk_shape *s = &p->how.shape;
    const int64_t longest = s->seqlen_q > s->seqlen_k ? s->seqlen_q : s->seqlen_k;
    const int64_t step = (longest + SIDE - 1) / SIDE, side = (longest + step - 1) / step; /* pairs a pixel; pixels */
    uint8_t *pixels = malloc((size_t)(side * side));
    if (!pixels) return cli_fail(CLI_FAILED, "pattern: no memory for a picture");
    for (int64_t i = 0; i < side * side; i++)
        pixels[i] = (uint8_t)colour_of(p, i / side * step, i % side * step, step);
    png_write(out, (uint32_t)side, (uint32_t)side, colours, NUM_COLOURS, pixels);
    free(pixels);
    return CLI_OK;
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), of_end = strlen(end);
    return length >= of_end && strcmp(text + length - of_end, end) == 0;
}

static cli_exit draw(const picture *p, const char *path) {
    output out = {0};
    cli_exit code = output_open(&out, path);
    if (code == CLI_OK && ends_with(path, ".png")) {
        code = put_png(out.file, p);
    } else if (code == CLI_OK) {
        put_svg(out.file, p);
    }
    if (code == CLI_OK) code = output_commit(&out);
    output_discard(&out);
    return code;
}

/* ---- the verb ---- */

/* "butterfly(128)" alone is that of an ordinary forward problem. */
static cli_exit read_problem(char **words, int num_words, picture *p) {
    char *all[64] = {"fwd", "fp16", "d64"};
    const char *first = words[0] + strspn(words[0], " ");
    const bool whole = strcspn(first, " ") == 3 && (strncmp(first, "fwd", 3) == 0 || strncmp(first, "bwd", 3) == 0);
    const int skip = whole ? 3 : 0;
    if (num_words > 60) return cli_fail(CLI_USAGE, "pattern: %d words: must be at most 60", num_words);
    memcpy(all + 3, words, (size_t)num_words * sizeof *all);
    return cli_problem(all + skip, num_words + 3 - skip, &p->problem, p->spelling);
}

/* Without a pattern, the blocks are the tiles. */
static cli_exit gather(picture *p, const char *gpu) {
    fk_plan_info *plans = NULL;
    size_t num_plans = 0;
    int32_t rows = 0, columns = 0;
    fk_status status = fk_plan_list(&p->problem, gpu, &p->how, &plans, &num_plans);
    for (size_t i = 0; status == FK_OK && i < num_plans; i++)
        if (plans[i].chosen) p->plan = plans[i];
    fk_free(plans);
    if (status == FK_OK) status = fk_problem_blocks(&p->problem, &rows, &columns);
    if (status != FK_OK) return cli_fail_status(status);
    const cli_exit code = map(p, rows ? rows : p->plan.block_m, columns ? columns : p->plan.block_n, &p->blocks);
    return code == CLI_OK ? map(p, p->plan.block_m, p->plan.block_n, &p->tiles) : code;
}

static cli_exit pattern_main(const cli_verb *verb, int argc, char **argv) {
    const char *gpu = "h200", *path = NULL;
    cli_planning planning = CLI_PLANNING_INIT;
    int64_t n = 4096, keys = 0, heads = 8;
    picture p = {.problem = FK_PROBLEM_INIT};
    const option options[] = {
        cli_gpu_option(&gpu),
        option_int("--n", "N", &n, 1, 1 << 20, "queries, and keys (default 4096)"),
        option_int("--keys", "N", &keys, 1, 1 << 20, "keys, if not as many as queries"),
        option_int("--heads", "N", &heads, 1, 1 << 16, "query heads (default 8)"),
        option_int("--head", "H", &p.head, 0, (1 << 16) - 1, "the one that is shown (default 0)"),
        option_text("-o", "FILE", &path, "draw it: FILE.svg, or FILE.png without words"),
        cli_template_option(&planning),
    };
    cli_exit code = CLI_OK;
    if (!cli_begin(verb, options, sizeof options / sizeof options[0], &argc, argv, &code)) return code;
    if (argc < 2 || strcmp(argv[0], "show") != 0) return cli_fail(CLI_USAGE, "pattern: must be: pattern show SPELLING");
    if (path && !ends_with(path, ".svg") && !ends_with(path, ".png"))
        return cli_fail(CLI_USAGE, "pattern: -o %s: must end in .svg or .png", path);
    if (p.head >= heads)
        return cli_fail(CLI_USAGE, "pattern: --head is %lld: must be below --heads, %lld", (long long)p.head,
                        (long long)heads);
    code = cli_use_planning(&planning);
    if (code == CLI_OK) code = read_problem(argv + 1, argc - 1, &p);
    if (code != CLI_OK) return code;
    p.how = cli_plan_options(&planning);
    p.how.shape = (fk_shape){1, heads, p.problem.gqa ? 1 : heads, n, keys ? keys : n};
    code = gather(&p, gpu);
    if (code == CLI_OK) print_counts(&p);
    if (code == CLI_OK && path) code = draw(&p, path);
    if (code == CLI_OK && !path) print_text(&p.blocks);
    free(p.blocks.state);
    free(p.tiles.state);
    return code;
}

const cli_verb verb_pattern = {
    "pattern", "show SPELLING [--n N] [-o FILE.svg|png]", "what a mask shows, and the tiles that are visited for it",
    "SPELLING may be a pattern alone, butterfly(128): of fwd fp16 d64 then. A table of bits is drawn\n"
    "as planned for: a quarter of it, at random. As text: # all pairs, + some, . none;\n"
    "forward, blocks that the last keys leave short count as in part.\n"
    "Without --gpu: h200.\n",
    pattern_main};
