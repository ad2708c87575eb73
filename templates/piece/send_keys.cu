@ for _, g in ipairs { { name = "dk", cols = layout.dk_cols, dim = "head_dim" }, { name = "dv", cols = layout.dv_own_cols, dim = "head_dim_v" } } do
@   local name = g.name
    // Sends $(name) of the warp's keys, and of its columns, on its way through its own part of a tile in shared memory$(problem.seqused_k and "; of keys that are not used it is 0" or "").
    __device__ __forceinline__ void send_$(name)(float (&$(name))[m_atoms][$(name)_atoms][4], u32 tile, const Where &at, int kv_head) const {
        constexpr int cols = $((g.cols + 63) // 64 * 64);
        const int lane = threadIdx.x % 32;
        const u32 own = $(shared == 1 and "tile" or "own_columns<own_n, cols>(tile)");
#pragma unroll
        for (int j = 0; j < $(name)_atoms / 2; ++j) {
@   if name == "dk" then
#pragma unroll
            for (int e = 0; e < 8; ++e) dk[0][2 * j + e / 4][e % 4] *= p.scale;
@   end
            u32 block[4];
            pack_block(block, $(name)[0], j);
            stmatrix_x4(own + fragment_offset<own_n, cols>(0, warp_row() + lane % 16, j, lane / 16), block);
        }
        send_rows<own_n, cols, $(g.dim)>(own, warp_row(), p.map_$(name), at.k_first + warp_row(), at.$(problem.seqused_k and "num_keys" or "seqlen_k"), $(shared == 1 and "0" or "group * cols")$(plan.halved and " + rank * own_" .. (name == "dk" and "d" or "dv") or ""), kv_head,
                                   $(problem.packed and ("at.k_offset, p.X + k_start(at, p.X_batch_stride, p.X_row_stride) + kv_head * p.X_head_stride, p.X_row_stride"):gsub("X", name) or "at.b"));
    }

@ end
