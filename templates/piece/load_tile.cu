@ -- How tiles are copied by TMA; `shares`: two CTAs share those of keys; `latent`: values are the first columns of keys.
constexpr int panel_columns = 128 / sizeof(Element);

@ if shares then
// As load_tile, for both CTAs of the cluster, of which each loads every other panel: the first one the first panel of keys, the second
// one that of values.
template <int ROWS, int COLS, int FIRST>
__device__ __forceinline__ void load_shared_tile(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < COLS / panel_columns; ++panel)
        if ((panel + FIRST) % 2 == cluster_rank()) tma_multicast_4d(tile + panel * (ROWS * 128), &map, bar, panel_columns * panel, row, head, batch, 3);
}

@ end
@ if plan.halved then
// The first of a panel's columns, of which the CTA has `own`$(latent and ": half of those that are values, too, and half of the others" or "").
__device__ __forceinline__ int panel_column(int panel, int own) {
    const int rank = int(cluster_rank()), column = panel_columns * panel;
@   if latent then
    if (column >= own_dv) return head_dim_v + rank * (own - own_dv) + column - own_dv;
    return rank * own_dv + column;
@   else
    return rank * own + column;
@   end
}

@ end
// Rows `row` and on of a head, $(plan.halved and "of them the CTA's own columns, " or "")in panels of 128 bytes; outside the tensor there are zeros.
template <int ROWS, int COLS$(plan.halved and ", int OWN" or "")>
__device__ __forceinline__ void load_tile(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch) {
#pragma unroll
    for (int panel = 0; panel < COLS / panel_columns; ++panel)
        tma_load_4d(tile + panel * (ROWS * 128), &map, bar, $(plan.halved and "panel_column(panel, OWN)" or "panel_columns * panel"), row, head, batch);
}

@ if plan.halved then
// The same of keys or their values: those that the CTA weighs come first.
template <int COLS, int OWN>
__device__ __forceinline__ void load_keys(u32 tile, const TensorMap &map, u32 bar, int row, int head, int batch) {
    const int rank = int(cluster_rank());
#pragma unroll
    for (int panel = 0; panel < COLS / panel_columns; ++panel)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            tma_load_4d(tile + (2 * panel + half) * (half_n * 128), &map, bar, panel_column(panel, OWN), row + (half ^ rank) * half_n, head, batch);
}

@ end
@ if problem.paged then
@   include("piece/paged_rows.cu")

@ end
