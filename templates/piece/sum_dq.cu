    // dQ's sums of a head lie in shared memory as accumulators do, so that a thread adds to what it alone reads, and no other one need
    // wait; a bit for each tile of queries: whether it has a sum, and whether its dQ has left. With the head's last keys, dQ leaves as it
    // is added.
    u32 summed = 0, sent = 0;
    bool leaves = false;

@ local uneven = not by_rows and layout.dq_cols * plan.consumers ~= layout.d_pad
    // The 16 rows, of all, and the first atom of 8 columns that this warp computes of dQ of a tile.
    __device__ __forceinline__ int dq_row(int n) const { return n * (block_m / 16) + $(by_rows and "warp" or "warp % 4"); }
    __device__ __forceinline__ int dq_first() const { return $(by_rows and "0" or "group * dq_atoms"); }
    __device__ __forceinline__ bool has_dq(int i) const { return $(uneven and "dq_first() + i < d_pad / 8" or "true"); }
    __device__ __forceinline__ u32 dq_sum(int n) const { return smem + smem_dq + dq_atom(dq_row(n), dq_first()) * 4 + threadIdx.x % 32 * 16; }

    // Four lanes have a row of four atoms, a pair of columns of each; by two exchanges each gets the whole row of one.
    static __device__ __forceinline__ uint4 rows_of_atoms(const u32 (&pairs)[4]) {
        const bool odd = threadIdx.x % 2, high = threadIdx.x / 2 % 2;
        const u32 a = __shfl_xor_sync(full_warp, odd ? pairs[0] : pairs[1], 1), b = __shfl_xor_sync(full_warp, odd ? pairs[2] : pairs[3], 1);
        const u32 x0 = odd ? a : pairs[0], x1 = odd ? pairs[1] : a, y0 = odd ? b : pairs[2], y1 = odd ? pairs[3] : b;
        const u32 c = __shfl_xor_sync(full_warp, high ? x0 : y0, 2), d = __shfl_xor_sync(full_warp, high ? x1 : y1, 2);
        return high ? make_uint4(c, d, y0, y1) : make_uint4(x0, x1, c, d);
    }

    __device__ __forceinline__ void send_dq(const float (&dq)[1][dq_atoms][4], const Where &at, int n) {
        const int lane = threadIdx.x % 32, row = 16 * dq_row(n) + lane / 4;
        Element *to = p.dq + q_start(at, p.dq_batch_stride, p.dq_row_stride) + at.h * p.dq_head_stride + row * p.dq_row_stride + 8 * (dq_first() + lane % 4);
#pragma unroll
        for (int i = 0; i < dq_atoms; i += 4) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                u32 pairs[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float(&atom)[4] = dq[0][i + j < dq_atoms ? i + j : 0];
                    pairs[j] = pack_$(problem.output_dtype)(atom[2 * half] * p.scale, atom[2 * half + 1] * p.scale);
                }
                const uint4 eight = rows_of_atoms(pairs);
                if (row + 8 * half < at.seqlen_q && i + lane % 4 < dq_atoms && dq_first() + i + lane % 4 < head_dim / 8)
                    st_global_v4(to + 8 * half * p.dq_row_stride + 8 * i, eight);
            }
        }
        sent |= 1u << n;
    }

    __device__ __forceinline__ void add_dq(float (&dq)[1][dq_atoms][4], const Where &at, int, int n) {
        const u32 sum = dq_sum(n);
        if (summed >> n & 1) {
#pragma unroll
            for (int i = 0; i < dq_atoms; ++i) {
                if (!has_dq(i)) continue;
                const uint4 x = ld_shared_v4(sum + i * 512);
                dq[0][i][0] += __uint_as_float(x.x);
                dq[0][i][1] += __uint_as_float(x.y);
                dq[0][i][2] += __uint_as_float(x.z);
                dq[0][i][3] += __uint_as_float(x.w);
            }
        }
        if (leaves) {
            send_dq(dq, at, n);
            return;
        }
#pragma unroll
        for (int i = 0; i < dq_atoms; ++i)
            if (has_dq(i))
                st_shared_v4(sum + i * 512, make_uint4(__float_as_uint(dq[0][i][0]), __float_as_uint(dq[0][i][1]),
                                                   __float_as_uint(dq[0][i][2]), __float_as_uint(dq[0][i][3])));
        summed |= 1u << n;
    }

    // Once per tile of keys: the head's first one, its last one.
    __device__ __forceinline__ void begin_keys(int index, const Where &at) {
        const int place = place_in_head(p, index);
        if (place == 0) summed = sent = 0;
        leaves = place == tiles_of_head(p, at) - 1;
    }
    // dQ of queries that the last keys do not see.
    __device__ __forceinline__ void send_rest(const Where &at) {
        if (!leaves) return;
        for (int n = 0; n * block_m < at.seqlen_q; ++n) {
            if (sent >> n & 1) continue;
            float dq[1][dq_atoms][4];
            fill(dq, 0.0f);
            if (summed >> n & 1) add_dq(dq, at, at.h, n);
            else send_dq(dq, at, n);
        }
    }
