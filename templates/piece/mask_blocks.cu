@ -- Blocks of a pattern that share a tile are asked about once each, one lane one block, and not once for each element: a pattern may have
@ -- hashes. `share` $(walk) of a tile, from `base` on, lie before a warp; in `block` that follow a multiple of it the residual says the same.
@ local fits = share % block == 0 or block % share == 0
@ local num = fits and math.max(share // block, 1) or (share + block - 2) // block + 1
@ local groups = (num + 3) // 4 -- of blocks: one for each lane of a quad
@ -- Of queries that is so where the diagonal is a multiple of the block; else each element is asked about.
@ local function in_place(size) return mask.uses.diag and "at.diag % " .. size .. " == 0" or "true" end
@ local by_element = walk == "q" and mask.uses.diag
@ -- Where 16 rows lie in one block as well, lanes ask about one row of them.
@ local size, row_alike = mask["block_" .. own], "false"
@ if size % 16 == 0 and not problem.joins_heads then row_alike = own == "q" and size > 0 and in_place(size) or "true" end
@ local element = "8 * (i / 2) + 2 * (lane % 4) + i % 2"
// Which of a tile's blocks of $(walk) the lane's rows see.
struct SeenBlocks {
    u32 bits[m_atoms][2]; // of rows g and g + 8
@ if not fits then
    int start; // where in its first block the tile begins
@ end
@ if by_element then
    bool in_place; // else there is a bit for each of the lane's elements
@ end

    __device__ __forceinline__ SeenBlocks(int n, const Params &p, const Where &at) {
        const int lane = lane_anew(), base = $(base);
@ scalars("")
@ if not fits then
        start = base % $(block);
@ end
@ if by_element then
        in_place = $(in_place(block));
        const bool alike = in_place && $(row_alike);
@ else
        const bool alike = $(row_alike);
@ end
#pragma unroll
        for (int m = 0; m < m_atoms; ++m) bits[m][0] = bits[m][1] = 0;
        const int steps = $(by_element and "!in_place ? 4 * s_atoms : " or "")alike ? 1 : $(2 * groups);
#pragma unroll 1
        for (int step = 0; step < m_atoms * steps; ++step) { // the residual's text is there once: it may be long
            const int m = m_atoms == 1 ? 0 : step / steps, nth = m_atoms == 1 ? step : step % steps, r = nth % 2, i = nth / 2;
@ if reads_row then
            const int first = opaque(at.$(own)_first) + warp_row() + (alike ? 0 : lane / 4);
@ end
@ row_place()
            int $(walk) = max(base, (base / $(block) + min(alike ? lane : 4 * i + lane % 4, $(num - 1))) * $(block));
@ if by_element then
            if (!in_place) $(walk) = base + $(element);
@ end
            const bool keep = $(mask.residual_keep);
            const u32 lanes = __ballot_sync(full_warp, keep);
            const u32 seen = $(by_element and "!in_place ? u32(keep) << i : " or "")alike ? lanes : (lanes >> lane / 4 * 4 & 15) << 4 * i;
#pragma unroll
            for (int of = 0; of < m_atoms; ++of) {
                if (m_atoms > 1 && of != m) continue;
                if (alike || r == 0) bits[of][0] |= seen;
                if (alike || r == 1) bits[of][1] |= seen;
            }
        }
    }

    // Element i of row half r, as mask_tile counts them.
    __device__ __forceinline__ bool sees(int m, int r, int i) const {
@ if block % 8 ~= 0 then
        const int lane = lane_anew();
@ end
        const int nth = ($(fits and "" or "start + ")$(block % 8 == 0 and "8 * (i / 2)" or element)) / $(block);
        return bits[m][r] >> $(by_element and "(in_place ? nth : i)" or "nth") & 1;
    }
};
