/* wgmma. A product needs the warpgroup only to agree: warp w of the four computes rows 16 w to 16 w + 15 by itself, so
 * each warp keeps a queue of its own. From its first product to the wait that covers its last one an accumulator is in
 * flight: its registers hold NaNs, which show up wherever they are read too early, and its values are kept here.
 * Fragments are those of mma (tensor_core.c), 8 columns after the other. Sums are taken in order of k, in float; those
 * of e4m3 as the hardware has them, below. */
#include "half.h"
#include "hopper.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 16u
#define MAX_K 32u
#define MAX_N (2u * FK_WGMMA_LANE_REGISTERS)

typedef float accumulator[ROWS][MAX_N];

/* An accumulator in flight. */
typedef struct flight {
    float *registers[FK_WARP_LANES];
    uint32_t n, last_group;
    accumulator values;
    struct flight *next;
} flight;

typedef struct product {
    fk_emu_wgmma what; /* of lane 0 */
    uint32_t a[FK_WARP_LANES][4], group;
    flight *acc;
} product;

struct fk_wgmma_queue {
    flight *flights;
    product *items; /* in order of issue */
    size_t count, room;
    uint32_t group;  /* being filled */
    uint64_t issued; /* a hash of all products, the same in the four warps of a warpgroup */
};

static void release_all(fk_wgmma_queue *q) {
    while (q->flights) {
        flight *f = q->flights;
        q->flights = f->next;
        free(f);
    }
}

void fk_wgmma_reset(fk_block *block) {
    for (uint32_t w = 0; w < FK_MAX_WARPS; ++w) {
        fk_wgmma_queue *q = block->hopper->wgmma[w];
        if (!q) continue;
        release_all(q);
        q->count = q->group = 0;
        q->issued = 0;
    }
}

void fk_wgmma_free(fk_block *block) {
    fk_wgmma_reset(block);
    for (uint32_t w = 0; w < FK_MAX_WARPS; ++w) {
        if (block->hopper->wgmma[w]) free(block->hopper->wgmma[w]->items);
        free(block->hopper->wgmma[w]);
    }
}

/* ---- operands in shared memory -------------------------------------------------------------------------- */

typedef struct operand {
    uint32_t start, leading, stride, row_bytes; /* rows of 16 bytes: no swizzle */
    bool transposed;
} operand;

static operand decode(fk_block *block, uint64_t descriptor, bool transposed) {
    static const uint32_t row_bytes[4] = {16, 128, 64, 32};
    const operand o = {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                       (uint32_t)(descriptor >> 32 & 0x3fff) << 4, row_bytes[descriptor >> 62], transposed};
    if (transposed && o.row_bytes != 128)
        fk_block_fault(block, "wgmma: a transposed operand has rows of %u bytes, must have 128", o.row_bytes);
    return o;
}

/* Of an element; a step of the depth has 32 bytes. */
static uint32_t element_bytes(int element) {
    return element == FK_EMU_E4M3 ? 1 : 2;
}

/* Element i of those at `bytes`. */
static float widen(const void *bytes, uint32_t i, int element) {
    const uint8_t *at = (const uint8_t *)bytes + i * element_bytes(element);
    uint16_t h;
    if (element == FK_EMU_E4M3) return fk_e4m3_to_float(*at);
    memcpy(&h, at, sizeof h);
    return element == FK_EMU_BF16 ? fk_bf16_to_float(h) : fk_fp16_to_float(h);
}

/* Sixteen bytes from shared memory, where the swizzle put them, as floats out[0], out[step], ... */
static void read_chunk(fk_lane *lane, const operand *o, uint32_t addr, int element, float *out, size_t step) {
    addr ^= (addr >> 7 & (o->row_bytes / 16u - 1u)) << 4;
    const void *bytes = fk_smem_read(lane, fk_smem_address(lane, addr), 16, "wgmma");
    for (uint32_t i = 0; i < 16 / element_bytes(element); ++i)
        out[i * step] = widen(bytes, i, element);
}

/* out[k][row], rows `first` to first + rows - 1 of the operand (m or n). */
static void read_operand(fk_lane *lane, const operand *o, uint32_t first, uint32_t rows, int element,
                         float (*out)[MAX_N]) {
    const uint32_t in_chunk = 16 / element_bytes(element);
    for (uint32_t row = first; !o->transposed && row < first + rows; ++row)
        for (uint32_t i = 0; i < 2; ++i)
            read_chunk(lane, o,
                       o->start + row / 8 * o->stride + row % 8 * o->row_bytes +
                           i * (o->row_bytes == 16 ? o->leading : 16),
                       element, &out[i * in_chunk][row - first], MAX_N);
    for (uint32_t row = first; o->transposed && row < first + rows; row += 8)
        for (uint32_t k = 0; k < 16; ++k)
            read_chunk(lane, o, o->start + row / 64 * o->leading + k / 8 * o->stride + k % 8 * 128 + row % 64 * 2,
                       element, &out[k][row - first], 1);
}

/* A register has 4 bytes of a row: those at 4 (lane % 4) of the step's first 16 bytes, or its second. */
static void read_registers(const product *p, float (*out)[MAX_N]) {
    const uint32_t in_register = 4 / element_bytes(p->what.element);
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l)
        for (uint32_t i = 0; i < 4; ++i)
            for (uint32_t e = 0; e < in_register; ++e)
                out[(l % 4 + i / 2 * 4) * in_register + e][l / 4 + i % 2 * 8] = widen(&p->a[l][i], e, p->what.element);
}

/* ---- a warp's share of a product ------------------------------------------------------------------------ */

/* The sum of `sum` and products of 8 bits, as tensor cores add them: all at once, each cut off 13 bits below the
 * leading one of the largest. */
static float add_products(float sum, const float *products, uint32_t n) {
    float largest = fabsf(sum);
    bool finite = isfinite(sum);
    for (uint32_t k = 0; k < n; ++k) {
        largest = fmaxf(largest, fabsf(products[k]));
        finite = finite && isfinite(products[k]);
    }
    if (!finite) {
        for (uint32_t k = 0; k < n; ++k)
            sum += products[k];
        return sum;
    }
    int exponent; /* of a number of [0.5, 1) */
    frexpf(largest, &exponent);
    const double unit = ldexp(1, exponent - 14);
    double units = trunc((double)sum / unit);
    for (uint32_t k = 0; k < n; ++k)
        units += trunc((double)products[k] / unit);
    return (float)(units * unit);
}

static void compute(fk_block *block, const fk_warp *warp, const product *p) {
    float a[MAX_K][MAX_N], b[MAX_K][MAX_N];
    const fk_emu_wgmma *w = &p->what;
    const uint32_t depth = 32 / element_bytes(w->element);
    fk_lane *reader = &warp->lanes[0];
    const uint32_t n = p->acc->n;
    const operand of_b = decode(block, w->b, w->trans_b);
    if (w->a_registers) {
        read_registers(p, a);
    } else {
        const operand of_a = decode(block, w->a, w->trans_a);
        read_operand(reader, &of_a, warp->index % 4 * ROWS, ROWS, w->element, a);
    }
    read_operand(reader, &of_b, 0, n, w->element, b);
    for (uint32_t m = 0; m < ROWS; ++m) {
        float *row = p->acc->values[m];
        if (!w->accumulate) memset(row, 0, n * sizeof *row);
        if (w->element == FK_EMU_E4M3) {
            for (uint32_t j = 0; j < n; ++j) {
                float products[MAX_K];
                for (uint32_t k = 0; k < depth; ++k)
                    products[k] = a[k][m] * b[k][j];
                row[j] = add_products(row[j], products, depth);
            }
            continue;
        }
        for (uint32_t k = 0; k < depth; ++k)
            for (uint32_t j = 0; j < n; ++j)
                row[j] += a[k][m] * b[k][j];
    }
}

/* Register i of a lane. */
static float *value_of(flight *f, uint32_t lane, uint32_t i) {
    return &f->values[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
}

static flight *take_off(fk_block *block, const fk_warp *warp, fk_wgmma_queue *q, uint32_t n) {
    flight *f = malloc(sizeof *f);
    if (!f) fk_block_fault(block, "wgmma: no memory for an accumulator in flight");
    f->n = n;
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
        f->registers[l] = warp->lanes[l].wgmma->acc;
        for (uint32_t i = 0; i < n / 2; ++i)
            *value_of(f, l, i) = f->registers[l][i];
        memset(f->registers[l], 0xff, n / 2 * sizeof(float));
    }
    f->next = q->flights;
    q->flights = f;
    return f;
}

static void land(fk_block *block, flight *f) {
    static const uint32_t poison = 0xffffffffu;
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l)
        for (uint32_t i = 0; i < f->n / 2; ++i) {
            if (memcmp(&f->registers[l][i], &poison, 4) != 0)
                fk_block_fault(block, "register %u of a wgmma accumulator was written in lane %u while in flight", i,
                               l);
            f->registers[l][i] = *value_of(f, l, i);
        }
}

static void check_agreement(fk_block *block, const fk_warp *warp) {
    const fk_emu_wgmma *first = warp->lanes[0].wgmma;
    for (uint32_t l = 1; l < FK_WARP_LANES; ++l) {
        const fk_emu_wgmma *w = warp->lanes[l].wgmma;
        if (w->a != first->a || w->b != first->b || w->registers != first->registers || w->trans_a != first->trans_a ||
            w->trans_b != first->trans_b || w->accumulate != first->accumulate ||
            !w->a_registers != !first->a_registers)
            fk_block_fault(block, "wgmma in warp %u: lane %u and lane 0 name different operands", warp->index, l);
    }
}

static product *append(fk_block *block, fk_wgmma_queue *q) {
    if (q->count == q->room) {
        const size_t room = q->room ? 2 * q->room : 16;
        product *items = realloc(q->items, room * sizeof *items);
        if (!items) fk_block_fault(block, "wgmma: no memory for %zu products in flight", room);
        q->items = items;
        q->room = room;
    }
    return &q->items[q->count++];
}

static void hash(fk_wgmma_queue *q, uint64_t value) {
    q->issued = (q->issued ^ value) * 0x9e3779b97f4a7c15ull + 1;
}

static void issue(fk_block *block, fk_warp *warp, fk_wgmma_queue *q) {
    check_agreement(block, warp);
    product *p = append(block, q);
    p->what = *warp->lanes[0].wgmma;
    p->group = q->group;
    for (uint32_t l = 0; p->what.a_registers && l < FK_WARP_LANES; ++l)
        memcpy(p->a[l], warp->lanes[l].wgmma->a_registers, sizeof p->a[l]);
    p->acc = q->flights;
    while (p->acc && p->acc->registers[0] != p->what.acc)
        p->acc = p->acc->next;
    if (!p->acc) p->acc = take_off(block, warp, q, 2 * p->what.registers);
    p->acc->last_group = q->group;
    hash(q, p->what.a_registers ? 0 : p->what.a);
    hash(q, p->what.b);
    hash(q, p->acc->n | (uint64_t)p->what.accumulate << 10 | (uint64_t)p->what.trans_a << 11 |
                (uint64_t)p->what.trans_b << 12);
    if (!block->options.late_copies) compute(block, warp, p);
}

static void wait(fk_block *block, const fk_warp *warp, fk_wgmma_queue *q) {
    const uint32_t left = warp->lanes[0].value;
    size_t done = 0;
    for (; done < q->count && q->items[done].group + left < q->group; ++done)
        if (block->options.late_copies) compute(block, warp, &q->items[done]);
    q->count -= done;
    if (done) memmove(q->items, q->items + done, q->count * sizeof *q->items);
    for (flight **f = &q->flights; *f;) {
        flight *at = *f;
        if (at->last_group + left >= q->group) {
            f = &at->next;
            continue;
        }
        land(block, at);
        *f = at->next;
        free(at);
    }
}

void fk_warp_wgmma(fk_block *block, fk_warp *warp, fk_emu_op op) {
    fk_wgmma_queue **q = &block->hopper->wgmma[warp->index];
    if (!*q) *q = calloc(1, sizeof **q);
    if (!*q) fk_block_fault(block, "wgmma: no memory for a queue of products");
    switch (op) {
    case FK_EMU_WGMMA:
        issue(block, warp, *q);
        ++block->stats.mma;
        break;
    case FK_EMU_WGMMA_COMMIT:
        ++(*q)->group;
        break;
    default:
        wait(block, warp, *q);
    }
}

void fk_emu_wgmma_issue(const fk_emu_wgmma *w) {
    fk_lane *lane = fk_block_current()->current;
    if (w->registers % 4 || w->registers > FK_WGMMA_LANE_REGISTERS)
        fk_block_fault(lane->block, "wgmma: N is %u, must be a multiple of 8 up to 256", 2 * w->registers);
    lane->wgmma = w;
    fk_warp_arrive(lane, FK_EMU_WGMMA, FK_ALL_LANES);
}

void fk_emu_wgmma_commit(void) {
    fk_warp_arrive(fk_block_current()->current, FK_EMU_WGMMA_COMMIT, FK_ALL_LANES);
}

void fk_emu_wgmma_wait(int groups_left) {
    fk_lane *lane = fk_block_current()->current;
    lane->value = (uint32_t)groups_left;
    fk_warp_arrive(lane, FK_EMU_WGMMA_WAIT, FK_ALL_LANES);
}

/* At the end of a block: what its warps did not do together. Returns false and fills err. */
bool fk_wgmma_check(const fk_block *block, fk_error *err) {
    for (uint32_t w = 0; w < block->num_warps; ++w) {
        const fk_wgmma_queue *q = block->hopper->wgmma[w], *first = block->hopper->wgmma[w / 4 * 4];
        if (q && q->flights) {
            fk_fail(err, FK_LAUNCH_FAILED, "%s: warp %u exited with a wgmma accumulator in flight", block->name, w);
            return false;
        }
        if ((q ? q->issued : 0) == (first ? first->issued : 0)) continue;
        fk_fail(err, FK_LAUNCH_FAILED, "%s: warps %u and %u of a warpgroup have issued different wgmmas", block->name,
                w / 4 * 4, w);
        return false;
    }
    return true;
}
