/* The dropout streams under TestU01 (docs/dropout.md, "Battery"). Not a test of the suite: a run takes seconds (small)
 * to an hour (crush). Usage: battery STREAM small|crush [SEED [FIRST LAST]]; FIRST and LAST choose tests of Crush. */
#include "runtime/dropout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <testu01/bbattery.h>
#include <testu01/swrite.h>
#include <testu01/unif01.h>

/* Heads of 4096 x 4096 elements, one after another, read 65,536 elements at a time. */
enum { N = 4096, STRIP = 16, CHUNK = STRIP * N };

typedef enum { BY_ROW, BY_COLUMN } order;

typedef struct stream {
    const char *name, *what;
    order order;
    int bit;                      /* of each byte; -1: all of the byte */
    int sources;                  /* bytes of this many masks, one after another at each element: */
    int d_seed, d_offset, d_head; /* the step from mask to mask */
} stream;

static const stream streams[] = {
    {"row", "bytes, row after row", BY_ROW, -1, 1, 0, 0, 0},
    {"column", "bytes, column after column", BY_COLUMN, -1, 1, 0, 0, 0},
    {"low", "lowest bit of each byte, row after row", BY_ROW, 0, 1, 0, 0, 0},
    {"high", "highest bit of each byte (the mask of p = 1/2), row after row", BY_ROW, 7, 1, 0, 0, 0},
    {"low-column", "lowest bit of each byte, column after column", BY_COLUMN, 0, 1, 0, 0, 0},
    {"seeds", "bytes of seeds s .. s + 3 in turn", BY_ROW, -1, 4, 1, 0, 0},
    {"offsets", "bytes of offsets o .. o + 3 in turn", BY_ROW, -1, 4, 0, 1, 0},
    {"heads", "bytes of heads h .. h + 3 in turn", BY_ROW, -1, 4, 0, 0, 1},
    {"low-seeds", "lowest bits of seeds s .. s + 31 in turn", BY_ROW, 0, 32, 1, 0, 0},
};

static struct {
    const stream *stream;
    uint64_t seed;
    uint32_t head, at, next, words; /* the chunk's first row or column; the position in and the length of `out` */
    uint8_t bytes[CHUNK];
    uint32_t out[CHUNK];
} now;

/* now.bytes = the next chunk of mask number `source`, in the stream's order. */
static void read_mask(int source) {
    const stream *s = now.stream;
    const fk_dropout d =
        fk_dropout_open(now.seed + (uint64_t)(source * s->d_seed), (uint64_t)(source * s->d_offset), now.head / 64,
                        now.head % 64 * (uint32_t)(s->d_head ? s->sources : 1) + (uint32_t)(source * s->d_head));
    if (s->order == BY_ROW) {
        fk_dropout_bytes(&d, now.at, 0, STRIP, N, now.bytes, N);
        return;
    }
    static uint8_t strip[CHUNK];
    fk_dropout_bytes(&d, 0, now.at, N, STRIP, strip, STRIP);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < STRIP; j++)
            now.bytes[j * N + i] = strip[i * STRIP + j];
}

static void refill(void) {
    const stream *s = now.stream;
    const int bits = s->bit < 0 ? 8 : 1, per_word = 32 / bits;
    memset(now.out, 0, sizeof now.out);
    for (int source = 0; source < s->sources; source++) {
        read_mask(source);
        for (int k = 0; k < CHUNK; k++) {
            const int place = k * s->sources + source;
            const uint32_t value = s->bit < 0 ? now.bytes[k] : now.bytes[k] >> s->bit & 1;
            now.out[place / per_word] |= value << place % per_word * bits;
        }
    }
    now.words = (uint32_t)(CHUNK * s->sources / per_word);
    now.next = 0;
    now.at = (now.at + STRIP) % N;
    now.head += now.at == 0;
}

static unsigned int next_word(void) {
    if (now.next == now.words) refill();
    return now.out[now.next++];
}

/* One line for each p-value outside [1e-4, 1 - 1e-4], and a closing line. */
static int report(const char *name) {
    int outside = 0;
    for (int k = 0; k < bbattery_NTests; k++)
        if (bbattery_pVal[k] < 1e-4 || bbattery_pVal[k] > 1 - 1e-4) {
            printf("%s: %s: p = %.3g\n", name, bbattery_TestNames[k], bbattery_pVal[k]);
            outside++;
        }
    printf("%s: %d p-values, %d outside [1e-4, 1 - 1e-4]\n", name, bbattery_NTests, outside);
    return outside != 0;
}

int main(int argc, char **argv) {
    for (size_t k = 0; argc > 2 && k < sizeof streams / sizeof *streams; k++)
        if (!strcmp(argv[1], streams[k].name)) now.stream = &streams[k];
    if (!now.stream) {
        fprintf(stderr, "usage: %s STREAM small|crush [SEED [FIRST LAST]]\n", argv[0]);
        for (size_t k = 0; k < sizeof streams / sizeof *streams; k++)
            fprintf(stderr, "  %-10s %s\n", streams[k].name, streams[k].what);
        return 2;
    }
    now.seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    char name[128];
    snprintf(name, sizeof name, "%s %s seed %llu", argv[1], argv[2], (unsigned long long)now.seed);
    swrite_Basic = FALSE;
    unif01_Gen *gen = unif01_CreateExternGenBits(name, next_word);
    if (!strcmp(argv[2], "small"))
        bbattery_SmallCrush(gen);
    else if (argc < 6)
        bbattery_Crush(gen);
    else {
        int repetitions[128] = {0};
        for (int k = atoi(argv[4]); k <= atoi(argv[5]) && k < 128; k++)
            repetitions[k] = 1;
        bbattery_RepeatCrush(gen, repetitions);
    }
    unif01_DeleteExternGenBits(gen);
    return report(name);
}
