/* PNG with a palette (ISO/IEC 15948). Rows are blocks of deflate that are stored as they are: our pictures are small,
 * and this needs no library. */
#include "png.h"

/* A chunk's CRC, of CRC-32's polynomial, and the Adler-32 of the rows go along with what is written. */
typedef struct png {
    FILE *out;
    uint32_t crc, low, high;
} png;

static void put(png *p, const void *data, size_t size) {
    const uint8_t *bytes = data;
    fwrite(bytes, 1, size, p->out);
    for (size_t i = 0; i < size; i++) {
        p->crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            p->crc = p->crc >> 1 ^ (p->crc & 1 ? 0xedb88320u : 0);
    }
}

static void put_u32(png *p, uint32_t x) {
    const uint8_t bytes[4] = {(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x};
    put(p, bytes, 4);
}

static void begin(png *p, const char *type, uint32_t size) {
    put_u32(p, size);
    p->crc = 0xffffffffu;
    put(p, type, 4);
}

static void end(png *p) {
    put_u32(p, ~p->crc);
}

static void sum_up(png *p, const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        p->low = (p->low + bytes[i]) % 65521;
        p->high = (p->high + p->low) % 65521;
    }
}

static void put_row(png *p, const uint8_t *row, uint32_t width, int is_last) {
    const uint16_t size = (uint16_t)(width + 1), not_size = (uint16_t)~size;
    const uint8_t head[6] = {(uint8_t)is_last,         (uint8_t)size,
                             (uint8_t)(size >> 8),     (uint8_t)not_size,
                             (uint8_t)(not_size >> 8), 0}; /* the last: no filter, and of the row */
    put(p, head, sizeof head);
    put(p, row, width);
    sum_up(p, head + 5, 1);
    sum_up(p, row, width);
}

void png_write(FILE *out, uint32_t width, uint32_t height, const uint8_t (*colour)[3], uint32_t num_colours,
               const uint8_t *pixels) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    static const uint8_t indexed[5] = {8, 3, 0, 0, 0}, zlib[2] = {0x78, 0x01};
    png p = {out, 0, 1, 0};
    put(&p, signature, sizeof signature);
    begin(&p, "IHDR", 13);
    put_u32(&p, width);
    put_u32(&p, height);
    put(&p, indexed, sizeof indexed);
    end(&p);
    begin(&p, "PLTE", 3 * num_colours);
    put(&p, colour, 3 * num_colours);
    end(&p);
    begin(&p, "IDAT", 2 + height * (6 + width) + 4);
    put(&p, zlib, sizeof zlib);
    for (uint32_t i = 0; i < height; i++)
        put_row(&p, pixels + (size_t)i * width, width, i + 1 == height);
    put_u32(&p, p.high << 16 | p.low);
    end(&p);
    begin(&p, "IEND", 0);
    end(&p);
}
