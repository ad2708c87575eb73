/* The header of an entry: what is read is written again as the same bytes. The image's own label. */
#include "fuzz.h"

#include "cache/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char note[160], again[FK_ENTRY_HEADER_MAX];
    const fk_note out = {note, sizeof note};
    fk_entry_header header;
    size_t written;
    char *copy = fuzz_text(data, size); /* of exactly its size, so that a byte too far is seen */
    if (fk_entry_header_read(copy, size, &header, out)) {
        MUST(header.size <= size && header.entry.image_bytes > 0);
        MUST(fk_entry_file_bytes(&header) > (int64_t)header.size);
        header.entry.image = again;
        header.entry.text = NULL;
        if (header.text_bytes == 0 && fk_entry_header_write(&header.entry, again, &written, out))
            MUST(written == header.size && memcmp(again, data, written) == 0);
    }
    static const char *const targets[] = {"sm_80", "sm_90a", "compute_75", "emu", "x"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; ++i)
        fk_image_check(targets[i], data, size, out);
    free(copy);
    return 0;
}
