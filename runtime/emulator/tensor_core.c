/* ldmatrix and mma.sync, with the fragment layouts of the PTX ISA. In all of them lane = 4 * group + quad; a register
 * holds two 16-bit elements, the one of lower column (or k) in its low half:
 *
 *   A (16 x 16)  a0: row group,     columns 2 quad, 2 quad + 1      a2: the same row, columns + 8
 *                a1: row group + 8, the same columns                a3: row group + 8, columns + 8
 *   B (16 x 8)   b0: column group,  rows (k) 2 quad, 2 quad + 1     b1: rows + 8
 *   C (16 x 8)   c0 c1: row group,  columns 2 quad, 2 quad + 1      c2 c3: row group + 8
 *
 * m16n8k8 has a0, a1, b0 only. Products are exact in float; sums are taken in order of k, in float.
 *
 * What the hardware does with sums is not documented. It truncates (Fasi et al. 2021, "Numerical behavior of NVIDIA
 * tensor cores"), which a kernel for float32 accuracy must cope with; so for these (mma_m16n8k16_parts: bf16) the sum
 * is exact in double, and then truncated to float. */
#include "engine.h"
#include "half.h"

#include <math.h>
#include <string.h>

typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
typedef uint32_t v4u __attribute__((vector_size(16)));

void fk_emu_ldmatrix(fk_emu_op op, unsigned int *r, unsigned int addr) {
    fk_lane *lane = fk_block_current()->current;
    lane->r = r;
    lane->addr = fk_smem_address(lane, addr);
    fk_warp_arrive(lane, op, FK_ALL_LANES);
}

void fk_emu_mma(fk_emu_op op, float *c, const unsigned int *a, unsigned int b0, unsigned int b1) {
    fk_lane *lane = fk_block_current()->current;
    lane->c = c;
    lane->a = a;
    lane->b[0] = b0;
    lane->b[1] = b1;
    fk_warp_arrive(lane, op, FK_ALL_LANES);
}

/* Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, which goes to register i of every lane. */
void fk_warp_ldmatrix(fk_block *block, fk_warp *warp, bool transpose) {
    const char *name = fk_emu_op_name(transpose ? FK_EMU_LDMATRIX_X4_TRANS : FK_EMU_LDMATRIX_X4);
    uint32_t addrs[FK_WARP_LANES];
    for (uint32_t i = 0; i < 4; ++i) {
        uint16_t m[8][8];
        for (uint32_t row = 0; row < 8; ++row) {
            fk_lane *lane = &warp->lanes[8 * i + row];
            addrs[lane->lane] = lane->addr;
            memcpy(m[row], fk_smem_read(lane, lane->addr, 16, name), 16);
        }
        for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
            const uint32_t group = l / 4, k = l % 4 * 2;
            const uint16_t lo = transpose ? m[k][group] : m[group][k],
                           hi = transpose ? m[k + 1][group] : m[group][k + 1];
            warp->lanes[l].r[i] = lo | (uint32_t)hi << 16;
        }
    }
    if (block->counting) fk_banks_count(block, addrs, FK_ALL_LANES, 16);
}

/* fk_fp16_to_float and fk_bf16_to_float of the low halves, four at a time and without branches. */
static v4f widen(v4u h, bool bf16) {
    if (bf16) return (v4f)(h << 16);
    const v4i magnitude = (v4i)(h & 0x7fff) << 13;
    const v4i scaled = (v4i)((v4f)magnitude * 0x1p112f);
    const v4i infinite = magnitude > (0x7bff << 13 | 0x1fff);
    return (v4f)(scaled | (infinite & 0x7f800000) | (v4i)((h & 0x8000) << 16));
}

/* Splits n registers (a multiple of 4) into the floats of their low and of their high halves. */
static void split(float *lo, float *hi, const uint32_t *regs, uint32_t n, bool bf16) {
    for (uint32_t i = 0; i < n; i += 4) {
        v4u four;
        memcpy(&four, regs + i, sizeof four);
        const v4f l = widen(four & 0xffff, bf16), h = widen(four >> 16, bf16);
        memcpy(lo + i, &l, sizeof l);
        memcpy(hi + i, &h, sizeof h);
    }
}

/* row[0..7] += the sum over k of a[k] * b[k][0..7], where k = 2 p comes from the low halves and 2 p + 1 from the high.
 */
static void row_product(float *row, const float *a_lo, const float *a_hi, const float (*b_lo)[8],
                        const float (*b_hi)[8], uint32_t pairs) {
    v4f left, right, b;
    memcpy(&left, row, sizeof left);
    memcpy(&right, row + 4, sizeof right);
    for (uint32_t p = 0; p < pairs; ++p) {
        memcpy(&b, b_lo[p], sizeof b);
        left += a_lo[p] * b;
        memcpy(&b, b_lo[p] + 4, sizeof b);
        right += a_lo[p] * b;
        memcpy(&b, b_hi[p], sizeof b);
        left += a_hi[p] * b;
        memcpy(&b, b_hi[p] + 4, sizeof b);
        right += a_hi[p] * b;
    }
    memcpy(row, &left, sizeof left);
    memcpy(row + 4, &right, sizeof right);
}

void fk_warp_mma(fk_block *block, fk_warp *warp, fk_emu_op op) {
    const uint32_t pairs = op == FK_EMU_MMA_M16N8K8_FP16 ? 4 : 8; /* registers hold k in pairs */
    const bool bf16 = op == FK_EMU_MMA_M16N8K16_BF16;
    uint32_t a[16][8], b[8][8]; /* [m][pair], [pair][n] */
    float a_lo[16][8], a_hi[16][8], b_lo[8][8], b_hi[8][8], c[16][8];
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
        const fk_lane *lane = &warp->lanes[l];
        const uint32_t group = l / 4, quad = l % 4;
        a[group][quad] = lane->a[0];
        a[group + 8][quad] = lane->a[1];
        a[group][quad + 4] = pairs == 8 ? lane->a[2] : 0;
        a[group + 8][quad + 4] = pairs == 8 ? lane->a[3] : 0;
        b[quad][group] = lane->b[0];
        b[quad + 4][group] = lane->b[1];
        memcpy(&c[group][2 * quad], lane->c, 8);
        memcpy(&c[group + 8][2 * quad], lane->c + 2, 8);
    }
    split(a_lo[0], a_hi[0], a[0], 128, bf16);
    split(b_lo[0], b_hi[0], b[0], 64, bf16);
    for (uint32_t m = 0; m < 16; ++m)
        row_product(c[m], a_lo[m], a_hi[m], b_lo, b_hi, pairs);
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
        memcpy(warp->lanes[l].c, &c[l / 4][l % 4 * 2], 8);
        memcpy(warp->lanes[l].c + 2, &c[l / 4 + 8][l % 4 * 2], 8);
    }
    ++block->stats.mma;
}

/* ---- parts of floats ------------------------------------------------------------------------------------ */

/* Towards zero; what is too large is infinite. */
static float truncated(double x) {
    const float nearest = (float)x;
    if (!(fabs((double)nearest) > fabs(x)) || isinf(nearest)) return nearest; /* a NaN, too */
    return nextafterf(nearest, 0);
}

static double bf16(uint32_t half) {
    const uint32_t bits = half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

void fk_warp_mma_parts(fk_block *block, fk_warp *warp) {
    double a[16][16], b[16][8]; /* [m][k], [k][n] */
    for (uint32_t l = 0; l < FK_WARP_LANES; ++l) {
        const fk_lane *lane = &warp->lanes[l];
        const uint32_t group = l / 4, quad = l % 4;
        for (uint32_t i = 0; i < 8; ++i) /* register i / 2, half i % 2 */
            a[group + i / 2 % 2 * 8][2 * quad + i % 2 + i / 4 * 8] = bf16(lane->a[i / 2] >> i % 2 * 16 & 0xffff);
        for (uint32_t i = 0; i < 4; ++i)
            b[2 * quad + i % 2 + i / 2 * 8][group] = bf16(lane->b[i / 2] >> i % 2 * 16 & 0xffff);
    }
    for (uint32_t m = 0; m < 16; ++m) {
        double sum[8];
        for (uint32_t n = 0; n < 8; ++n)
            sum[n] = (double)warp->lanes[m % 8 * 4 + n / 2].c[m / 8 * 2 + n % 2];
        for (uint32_t k = 0; k < 16; ++k)
            for (uint32_t n = 0; n < 8; ++n)
                sum[n] += a[m][k] * b[k][n];
        for (uint32_t n = 0; n < 8; ++n)
            warp->lanes[m % 8 * 4 + n / 2].c[m / 8 * 2 + n % 2] = truncated(sum[n]);
    }
    ++block->stats.mma;
}
