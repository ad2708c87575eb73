/* The bytes of one entry: header lines, CUDA text, image, SHA-256 of all before it (cache/FORMAT.md).
 *
 * A header has exactly one spelling. The reader parses it and then spells what it parsed: only equal bytes pass, so no
 * leniency of the parser can ever matter. */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "flashkiln entry 2\n"

enum kind { TEXT, INT32, INT64 };

/* ORDER: this is the order of the lines. */
#define FIELD(name, kind, member)                                                                                      \
    { name, kind, offsetof(fk_entry_header, member), sizeof(((fk_entry_header *)0)->member) }
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset, size;
} fields[] = {
    FIELD("spelling", TEXT, entry.spelling),
    FIELD("target", TEXT, entry.target),
    FIELD("entry", TEXT, entry.entry),
    FIELD("compiler", TEXT, entry.compiler),
    FIELD("key", TEXT, entry.key),
    FIELD("registers", INT32, entry.registers),
    FIELD("spill_bytes", INT32, entry.spill_bytes),
    FIELD("serialized_wgmma", INT32, entry.serialized_wgmma),
    FIELD("smem_static", INT32, entry.smem_static),
    FIELD("smem_dynamic", INT32, entry.smem_dynamic),
    FIELD("threads", INT32, entry.threads),
    FIELD("compile_us", INT64, compile_us),
    FIELD("text_bytes", INT64, text_bytes),
    FIELD("image_bytes", INT64, entry.image_bytes),
};
enum { FIELDS = sizeof fields / sizeof *fields };
_Static_assert(sizeof(fk_entry) + FIELDS * 40 < FK_ENTRY_HEADER_MAX, "the longest header must fit");

bool fk_key_valid(const char *key) {
    return key && strnlen(key, 65) == 64 && strspn(key, "0123456789abcdef") == 64;
}

bool fk_target_valid(const char *target) {
    const size_t size = target ? strnlen(target, 16) : 0;
    return size > 0 && size < 16 && strspn(target, "abcdefghijklmnopqrstuvwxyz0123456789_") == size;
}

bool fk_entry_name_split(const char *name, char key[65], char target[16]) {
    if (strlen(name) < 66 || name[64] != '.' || !fk_target_valid(name + 65)) return false;
    memcpy(key, name, 64);
    key[64] = 0;
    strcpy(target, name + 65);
    return fk_key_valid(key);
}

void fk_entry_name_join(const char *key, const char *target, char out[FK_ENTRY_NAME_MAX]) {
    snprintf(out, FK_ENTRY_NAME_MAX, "%.64s.%.15s", key, target);
}

static bool printable(const char *text, size_t size) {
    for (size_t i = 0; i < size; ++i)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) return false;
    return true;
}

static int64_t number_of(const fk_entry_header *header, const struct field *f) {
    const char *at = (const char *)header + f->offset;
    int32_t narrow;
    int64_t wide;
    if (f->kind == INT32) return memcpy(&narrow, at, sizeof narrow), narrow;
    return memcpy(&wide, at, sizeof wide), wide;
}

/* Spells `header`; 0 and a note if a field cannot be spelled. */
static size_t spell(const fk_entry_header *header, char out[FK_ENTRY_HEADER_MAX], fk_note note) {
    size_t used = strlen(MAGIC);
    memcpy(out, MAGIC, used + 1);
    for (int i = 0; i < FIELDS; ++i) {
        const struct field *f = &fields[i];
        if (f->kind == TEXT) {
            const char *text = (const char *)header + f->offset;
            const size_t size = strnlen(text, f->size);
            if (size == f->size || !printable(text, size)) {
                fk_note_miss(note, "field: %s holds a control character, or more than %zu bytes", f->name, f->size - 1);
                return 0;
            }
            used += (size_t)snprintf(out + used, FK_ENTRY_HEADER_MAX - used, "%s: %s\n", f->name, text);
        } else {
            used += (size_t)snprintf(out + used, FK_ENTRY_HEADER_MAX - used, "%s: %" PRId64 "\n", f->name,
                                     number_of(header, f));
        }
    }
    out[used++] = '\n';
    return used;
}

bool fk_entry_header_write(const fk_entry *entry, char out[FK_ENTRY_HEADER_MAX], size_t *size, fk_note note) {
    fk_entry_header header = {.entry = *entry};
    if (!fk_key_valid(entry->key)) return fk_note_miss(note, "field: key is not 64 lower-case hex digits");
    if (!fk_target_valid(entry->target)) return fk_note_miss(note, "field: target is not 1 to 15 of a-z, 0-9 and _");
    if (!(entry->compile_ms >= 0 && entry->compile_ms < 1e12))
        return fk_note_miss(note, "field: compile_ms is %g, need 0 to 1e12", entry->compile_ms);
    header.compile_us = (int64_t)llround(entry->compile_ms * 1e3);
    header.text_bytes = entry->text ? (int64_t)strlen(entry->text) : 0;
    if (!entry->image || entry->image_bytes < 1)
        return fk_note_miss(note, "field: image_bytes is %" PRId64 ", need at least 1", entry->image_bytes);
    if (entry->image_bytes > FK_ENTRY_MAX_BYTES || header.text_bytes > FK_ENTRY_MAX_BYTES)
        return fk_note_miss(note, "field: image_bytes %" PRId64 " and text_bytes %" PRId64 " may be %" PRId64 " each",
                            entry->image_bytes, header.text_bytes, FK_ENTRY_MAX_BYTES);
    *size = spell(&header, out, note);
    return *size > 0;
}

/* Reads the value of `f` from [value, value + size). */
static bool read_value(const struct field *f, const char *value, size_t size, fk_entry_header *out) {
    char *at = (char *)out + f->offset;
    if (f->kind == TEXT) {
        if (size >= f->size) return false;
        memcpy(at, value, size);
        return true;
    }
    char digits[24];
    if (size == 0 || size >= sizeof digits) return false;
    memcpy(digits, value, size);
    digits[size] = 0;
    char *end;
    errno = 0;
    const int64_t wide = strtoll(digits, &end, 10);
    if (errno || *end) return false;
    if (f->kind == INT64) return memcpy(at, &wide, sizeof wide), true;
    const int32_t narrow = (int32_t)wide;
    memcpy(at, &narrow, sizeof narrow);
    return narrow == wide;
}

bool fk_entry_header_read(const char *bytes, size_t size, fk_entry_header *out, fk_note note) {
    memset(out, 0, sizeof *out);
    const size_t magic = strlen(MAGIC);
    if (size < magic) return fk_note_miss(note, "truncated: %zu bytes, a header has more", size);
    if (memcmp(bytes, MAGIC, magic)) return fk_note_miss(note, "header: not a version 2 entry");
    size_t at = magic;
    for (int i = 0; i < FIELDS; ++i) {
        const struct field *f = &fields[i];
        const char *end = memchr(bytes + at, '\n', size - at);
        if (!end) return fk_note_miss(note, "truncated: the header ends before its line \"%s\" does", f->name);
        const size_t line = (size_t)(end - (bytes + at)), name = strlen(f->name);
        if (line < name + 2 || memcmp(bytes + at, f->name, name) || memcmp(bytes + at + name, ": ", 2) ||
            !read_value(f, bytes + at + name + 2, line - name - 2, out))
            return fk_note_miss(note, "header: line \"%s\" is damaged", f->name);
        at += line + 1;
    }
    char again[FK_ENTRY_HEADER_MAX];
    out->size = spell(out, again, note);
    if (!out->size) return fk_note_miss(note, "header: a field holds a control character");
    if (size < out->size) return fk_note_miss(note, "truncated: the header's last line is missing");
    if (memcmp(bytes, again, out->size)) return fk_note_miss(note, "header: not in canonical form");
    const fk_entry *e = &out->entry;
    if (!fk_key_valid(e->key) || !fk_target_valid(e->target) || e->image_bytes < 1 || out->text_bytes < 0 ||
        out->compile_us < 0 || e->image_bytes > FK_ENTRY_MAX_BYTES || out->text_bytes > FK_ENTRY_MAX_BYTES)
        return fk_note_miss(note, "header: a field is out of range");
    out->entry.compile_ms = (double)out->compile_us / 1e3;
    return true;
}

int64_t fk_entry_file_bytes(const fk_entry_header *header) {
    return (int64_t)header->size + header->text_bytes + header->entry.image_bytes + FK_ENTRY_TRAILER_BYTES;
}
