@ if adders then
    // dQ is where the adder that waits for `bar` takes it; 0: there is none.
    __device__ __forceinline__ void tell_adder(u32 bar) const {
        if (bar && threadIdx.x % 32 == 0) mbarrier_arrive(smem + bar);
    }
    // The barrier of dQ at hand, before the next one is.
    __device__ __forceinline__ u32 next_dq() {
        const u32 bar = dq_full + 8 * dq_ring.index();
        dq_ring.next();
        return bar;
    }
@   if staged_dq then
    // The same of dQ that was left in shared memory, which waits until it is there.
    __device__ __forceinline__ void pass_dq(u32 bar) const {
        fence_proxy_async();
        __syncwarp();
        tell_adder(bar);
    }
@   end

@ end
    // $(staged_dq and "Leaves for an adder what is to be added to" or "Adds to") dQ's sum$(halved and ": of the columns part PART of OF" or "").
    $(halved and "template <int PART = 0, int OF = 1> " or "")__device__ __forceinline__ void $(staged_dq and "leave_dq" or "add_dq")(const float (&dq)[1][dq_atoms][4], const Where &at, int head, int n)$(adders and "" or " const") {
        const int lane = threadIdx.x % 32;
@ if by_rows then
        const int own_16 = warp, first = 0;
@ else
        const int own_16 = warp % 4, first = $(pair and "(rank * consumers + group)" or "group") * dq_atoms;
@ end
@ local uneven = not by_rows and layout.dq_cols * plan.consumers * plan.cluster ~= layout.d_pad
@ local count = uneven and "min(dq_atoms, d_pad / 8 - first)" or "dq_atoms"
@ if not adders or plan.q_stages == 0 then
        float *to = p.dq_acc + (padded_start(p, at, head) + i64(n) * block_m) * d_pad + dq_atom(own_16, first);
@ end
@ if plan.q_stages == 0 then
@   if adders then
        if (PART == 0) mbarrier_wait(smem + dq_turn + 8 * dq_ring.index(), dq_ring.parity());
@   end
#pragma unroll
        for (int i = dq_atoms * PART / OF; i < dq_atoms * (PART + 1) / OF; ++i)
            if ($(uneven and "first + i < d_pad / 8" or "true")) red_add_f32x4(to + 128 * i + dq_lane(lane), dq[0][i]);
@ elseif adders then
        const u32 stage = smem + smem_dq + dq_ring.index() * dq_bytes + dq_atom(own_16, first) * 4;
        mbarrier_wait(smem + dq_empty + 8 * dq_ring.index(), dq_ring.parity() ^ 1);
#pragma unroll
        for (int i = 0; i < dq_atoms; ++i)
            if ($(uneven and "first + i < d_pad / 8" or "true"))
                st_shared_v4(stage + i * 512 + lane * 16, make_uint4(__float_as_uint(dq[0][i][0]), __float_as_uint(dq[0][i][1]),
                                                                     __float_as_uint(dq[0][i][2]), __float_as_uint(dq[0][i][3])));
@ else
        const u32 stage = smem + smem_dq + warp * (dq_atoms * 512);
        if (elect_lane()) tma_store_wait_read<0>(); // of the tile before
        __syncwarp();
#pragma unroll
        for (int i = 0; i < dq_atoms; ++i)
            st_shared_v4(stage + i * 512 + lane * 16, make_uint4(__float_as_uint(dq[0][i][0]), __float_as_uint(dq[0][i][1]),
                                                                 __float_as_uint(dq[0][i][2]), __float_as_uint(dq[0][i][3])));
        fence_proxy_async();
        __syncwarp();
        if (elect_lane()) {
@   if uneven then
            if (first < d_pad / 8) bulk_add_f32(to, stage, $(count) * 512);
@   else
            bulk_add_f32(to, stage, dq_atoms * 512);
@   end
            tma_store_commit();
        }
@ end
@ if halved and adders then
        if (PART + 1 < OF) return;
        __syncwarp();
        tell_adder(next_dq());
@ end
    }
@ if staged_dq then
    __device__ __forceinline__ void add_dq(const float (&dq)[1][dq_atoms][4], const Where &at, int head, int n) {
        leave_dq(dq, at, head, n);
        pass_dq(next_dq());
    }
@ end
