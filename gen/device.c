/* One table of GPUs. A plan needs nothing else to know about a device, so a live GPU's record is this record too.
 *
 * Where the columns come from:
 *   sms, l2, gb/s, ghz   the vendor's data sheets and architecture papers; ghz is the boost clock
 *   block, sm, resv      shared memory in KiB: CUDA programming guide, "Technical Specifications per Compute
 * Capability"; a block may opt in to `block` of an SM's `sm`, and the driver keeps `resv` in each block thr, ctas
 * threads and blocks resident on an SM: same table (registers: 65,536 in every row) mma                  FLOP per SM
 * and clock with fp32 accumulation: tensor peak of the data sheet / (SMs x clock). GeForce parts run fp32 accumulation
 * at half rate. sm_90: inferred, mma.sync reaches about 5/8 of what wgmma reaches (4096). sm_100, sm_120: inferred from
 * sm_80's mma.sync and GeForce's half ex2                  CUDA programming guide, "Arithmetic Instructions": 16 for
 * all of these issue                lanes: four schedulers of 32; sm_75 feeds 16-lane pipes, hence 64 smem bytes per
 * clock: 32 banks of 4; sm_75: inferred, half of it for ldmatrix (docs of the Turing SM) */
#include "generate.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct device_row {
    const char *key, *model, *name;
    int sm, sms, block, per_sm, resv, thr, ctas;
    double l2_mib, gbps, ghz, mma, ex2, issue, smem;
} device_row;

static const device_row table[] = {
    /* clang-format off */
    /* key         model          name                           sm  sms block  sm resv  thr ctas    l2  gb/s   ghz   mma ex2 issue smem */
    {"t4",        "T4",          "Tesla T4",                     75,  40,  64,  64, 0, 1024, 16,    4,  320, 1.590, 1024, 16,  64,  64},
    {"rtx2080ti", "RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti",   75,  68,  64,  64, 0, 1024, 16,  5.5,  616, 1.545,  512, 16,  64,  64},
    {"a100",      "A100",        "NVIDIA A100-SXM4-80GB",        80, 108, 163, 164, 1, 2048, 32,   40, 2039, 1.410, 2048, 16, 128, 128},
    {"a10",       "A10",         "NVIDIA A10",                   86,  72,  99, 100, 1, 1536, 16,    6,  600, 1.695, 1024, 16, 128, 128},
    {"rtx3090",   "RTX 3090",    "NVIDIA GeForce RTX 3090",      86,  82,  99, 100, 1, 1536, 16,    6,  936, 1.695,  512, 16, 128, 128},
    {"l4",        "L4",          "NVIDIA L4",                    89,  58,  99, 100, 1, 1536, 24,   48,  300, 2.040, 1024, 16, 128, 128},
    {"l40s",      "L40S",        "NVIDIA L40S",                  89, 142,  99, 100, 1, 1536, 24,   96,  864, 2.520, 1024, 16, 128, 128},
    {"rtx4090",   "RTX 4090",    "NVIDIA GeForce RTX 4090",      89, 128,  99, 100, 1, 1536, 24,   72, 1008, 2.520,  512, 16, 128, 128},
    {"h100",      "H100",        "NVIDIA H100 80GB HBM3",        90, 132, 227, 228, 1, 2048, 32,   50, 3350, 1.980, 2560, 16, 128, 128},
    {"h200",      "H200",        "NVIDIA H200",                  90, 132, 227, 228, 1, 2048, 32,   60, 4800, 1.980, 2560, 16, 128, 128},
    {"b200",      "B200",        "NVIDIA B200",                 100, 148, 227, 228, 1, 2048, 32,  126, 8000, 1.965, 2048, 16, 128, 128},
    {"rtx5090",   "RTX 5090",    "NVIDIA GeForce RTX 5090",     120, 170,  99, 100, 1, 1536, 24,   96, 1792, 2.410,  512, 16, 128, 128},
    /* clang-format on */
};
enum { NUM_DEVICES = sizeof table / sizeof table[0] };

static void fill(const device_row *row, fk_device_info *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->name, row->name, strlen(row->name) + 1);
    memcpy(out->key, row->key, strlen(row->key) + 1);
    out->ordinal = -1;
    out->sm = row->sm;
    out->num_sms = row->sms;
    out->smem_per_block = row->block << 10;
    out->smem_per_sm = row->per_sm << 10;
    out->smem_reserved = row->resv << 10;
    out->registers_per_sm = 65536;
    out->threads_per_sm = row->thr;
    out->blocks_per_sm = row->ctas;
    out->l2_bytes = (int64_t)(row->l2_mib * (1 << 20));
    out->hbm_gbps = row->gbps;
    out->clock_ghz = row->ghz;
    out->mma_flops = row->mma;
    out->exp_rate = row->ex2;
    out->issue_rate = row->issue;
    out->smem_rate = row->smem;
}

fk_status fk_device_lookup(const char *key, fk_device_info *out, fk_error *err) {
    char known[NUM_DEVICES * 16] = "";
    for (int i = 0; i < NUM_DEVICES; ++i) {
        if (key && strcmp(table[i].key, key) == 0) {
            fill(&table[i], out);
            return FK_OK;
        }
        strcat(strcat(known, " "), table[i].key);
    }
    return fk_fail(err, FK_NO_DEVICE, "unknown GPU \"%.64s\"; known:%s", key ? key : "(null)", known);
}

/* The row's model as whole words of the driver's name: "NVIDIA L4" is not "NVIDIA L40S". Variants with other SM counts
 * (a "Ti", a PCIe card, a MIG slice) are devices of their own. */
static bool same_device(const device_row *row, const fk_device_info *live) {
    if (row->sm != live->sm || row->sms != live->num_sms) return false;
    const size_t length = strlen(row->model);
    for (const char *at = live->name; (at = strstr(at, row->model)) != NULL; ++at) {
        const bool starts = at == live->name || !isalnum((unsigned char)at[-1]);
        if (starts && !isalnum((unsigned char)at[length])) return true;
    }
    return false;
}

/* The row whose rates a device without one takes: its SM or the nearest lower one, then the nearest size. */
static const device_row *nearest(const fk_device_info *live) {
    const device_row *best = &table[0];
    for (int i = 1; i < NUM_DEVICES; ++i) {
        const device_row *row = &table[i];
        if (row->sm > live->sm || row->sm < best->sm) continue;
        if (row->sm > best->sm || abs(row->sms - live->num_sms) < abs(best->sms - live->num_sms)) best = row;
    }
    return best;
}

void fk_device_complete(fk_device_info *live) {
    const device_row *row = NULL;
    for (int i = 0; i < NUM_DEVICES && !row; ++i) {
        if (same_device(&table[i], live)) row = &table[i];
    }
    memset(live->key, 0, sizeof live->key);
    if (row) memcpy(live->key, row->key, strlen(row->key));
    fk_device_info known;
    fill(row ? row : nearest(live), &known);
    /* Rates per SM and clock are properties of the architecture; sizes are the driver's where it gave them. */
    live->mma_flops = known.mma_flops;
    live->exp_rate = known.exp_rate;
    live->issue_rate = known.issue_rate;
    live->smem_rate = known.smem_rate;
    if (live->hbm_gbps <= 0) live->hbm_gbps = known.hbm_gbps;
    if (live->clock_ghz <= 0) live->clock_ghz = known.clock_ghz;
    if (live->l2_bytes <= 0) live->l2_bytes = known.l2_bytes;
    if (live->registers_per_sm <= 0) live->registers_per_sm = known.registers_per_sm;
    if (live->blocks_per_sm <= 0) live->blocks_per_sm = known.blocks_per_sm;
}

size_t fk_device_table_size(void) {
    return NUM_DEVICES;
}

fk_status fk_device_table(size_t index, fk_device_info *out) {
    fk_error err;
    if (out && index < NUM_DEVICES) {
        fill(&table[index], out);
        return FK_OK;
    }
    if (!out)
        fk_fail(&err, FK_BAD_ARGUMENT, "out is null");
    else
        fk_fail(&err, FK_BAD_ARGUMENT, "index is %zu: must be below %d", index, NUM_DEVICES);
    return fk_report(&err);
}
