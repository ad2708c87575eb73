/* Tables of blocks that others keep, packed to bits by the kernel fk_pack_blocks of the image that reads them. */
#include "object.h"

static fk_status check_size(const char *field, int64_t value, int64_t least, int64_t most, fk_error *err) {
    if (value >= least && value <= most) return FK_OK;
    return fk_fail(err, FK_BAD_ARGUMENT, "blocks->%s is %lld; it must be from %lld to %lld", field, (long long)value,
                   (long long)least, (long long)most);
}

static bool has_indices(const fk_blocks *b) {
    return b->format == FK_BLOCK_BSR || b->format == FK_BLOCK_LISTS;
}

static fk_status check_pointers(const fk_blocks *b, const int32_t *bits, fk_error *err) {
    const bool halves = b->format == FK_BLOCK_FP16 || b->format == FK_BLOCK_BF16;
    const size_t element = b->format == FK_BLOCK_BOOLS ? 1 : halves ? sizeof(uint16_t) : sizeof(int32_t);
    fk_status status = fk_check_aligned("blocks->data", b->data, element, err);
    if (!status) status = fk_check_aligned("blocks->indices", b->indices, sizeof *b->indices, err);
    if (!status) status = fk_check_aligned("blocks->others", b->others, sizeof *b->others, err);
    return status ? status : fk_check_aligned("bits", bits, sizeof *bits, err);
}

static fk_status check(const fk_blocks *b, fk_error *err) {
    if (b->struct_size != sizeof *b)
        return fk_fail(err, FK_BAD_ARGUMENT, "blocks->struct_size is %zu; FK_BLOCKS_INIT makes it %zu", b->struct_size,
                       sizeof *b);
    fk_status status = check_size("format", b->format, FK_BLOCK_BOOLS, FK_BLOCK_BF16, err);
    if (!status) status = check_size("tables", b->tables, 1, INT32_MAX, err);
    if (!status) status = check_size("rows", b->rows, 1, INT32_MAX, err);
    if (!status) status = check_size("columns", b->columns, 1, FK_MAX_SEQLEN, err);
    if (!status)
        status = check_size("tables x rows", b->tables * b->rows, 1, INT32_MAX, err); /* an int of the kernel's */
    if (!status && b->format == FK_BLOCK_BSR) status = check_size("tables of BSR", b->tables, 1, 1, err);
    if (!status && b->format == FK_BLOCK_LISTS) status = check_size("width", b->width, 0, FK_MAX_SEQLEN, err);
    if (!status && !has_indices(b) && b->width) status = check_size("width", b->width, b->columns, FK_MAX_SEQLEN, err);
    if (status) return status;
    if (!b->data || (has_indices(b) && !b->indices))
        return fk_fail(err, FK_BAD_ARGUMENT, "blocks->%s is null", b->data ? "indices" : "data");
    return FK_OK;
}

fk_status fk_pack_blocks(const fk_kernel *kernel, const fk_blocks *blocks, int32_t *bits, void *stream) {
    if (!kernel || !blocks || !bits)
        return fk_refuse(FK_BAD_ARGUMENT, "%s is null", !kernel ? "kernel" : !blocks ? "blocks" : "bits");
    fk_error err;
    int entry = 0;
    while (entry < kernel->num_launches && kernel->launch[entry].grid != FK_GRID_BLOCKS)
        entry++;
    fk_status status = check(blocks, &err);
    if (!status) status = check_pointers(blocks, bits, &err);
    if (!status && entry == kernel->num_launches)
        status = fk_fail(&err, FK_BAD_ARGUMENT, "the problem has no table of blocks; it must read block_bits or bits");
    if (status) return fk_report(&err);
    const bool is_dense = !has_indices(blocks) && !blocks->width;
    fk_block_params params = {.data = blocks->data,
                              .indices = blocks->indices,
                              .bits = (uint32_t *)bits,
                              .others = blocks->others,
                              .format = blocks->format,
                              .columns = (int32_t)blocks->columns,
                              .width = (int32_t)(is_dense ? blocks->columns : blocks->width),
                              .rows = (int32_t)(blocks->tables * blocks->rows)};
    const fk_grid grid = {(uint32_t)(((int64_t)params.rows + 3) / 4), 1, 1};
    status = fk_launch_alone(kernel, entry, &params, sizeof params, grid, stream, &err);
    return status ? fk_report(&err) : FK_OK;
}
