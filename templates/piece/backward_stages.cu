@ -- What the consumers of either design (piece/consumer_backward.cu, piece/consumer_backward_halved.cu) know of stages and tiles.
    // What the producer wrote of a stage once it is full.
    __device__ __forceinline__ int wait_tile(const Ring<stages> &r) const {
        mbarrier_wait(smem + full + 8 * r.index(), r.parity());
        return warp_word(smem + stage_tile + 8 * r.index());
    }
    __device__ __forceinline__ int tile_head(const Ring<stages> &r) const {
        return warp_word(smem + stage_tile + 8 * r.index() + 4);
    }

    // The columns of dV, dK or dQ, COLS wide, that this warpgroup computes, in a tile of ROWS.
    template <int ROWS, int COLS> __device__ __forceinline__ u32 own_columns(u32 tile) const {
        return tile + group * COLS / 64 * (ROWS * 128) + group * COLS % 64 * 2;
    }

    // This warp is done with what the producer$(pair and "s of the cluster fill" or " fills") again.
    __device__ __forceinline__ void give_back(u32 bar) const {
        if (threadIdx.x % 32 == 0) arrive(bar);
    }
    __device__ __forceinline__ void arrive(u32 bar) const {
        mbarrier_arrive(bar);
@ if pair then
        cluster_arrive(cluster_map(bar, rank ^ 1));
@ end
    }

    // Once the gradients of the keys before have left dS and the last stage.
    __device__ __forceinline__ void give_back_held() const {
        if (held && elect_lane()) {
            tma_store_wait_read<0>();
            arrive(smem + held);
        }
    }
