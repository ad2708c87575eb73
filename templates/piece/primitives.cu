// ---- primitives: everything that is PTX; the emulator brings bodies of its own ----
#ifndef FK_EMULATOR
@ include("primitive/shared_memory.cu")

@ include("primitive/global_memory.cu")

@ if arch.async_copy and not (plan.widens and problem.dtype == problem.kv_dtype) then
@   include("primitive/async_copy.cu")

@ end
@ if plan.family == "wgmma" then
@   include("primitive/mbarrier.cu")

@   include("primitive/tma.cu")

@   if plan.cluster > 1 then
@     include("primitive/cluster.cu")

@   end
@   local step_depth = 32 // problem.element_bytes
@   local lines = walk == "k" and layout.line_bytes > 0
@   local products = { -- of the forward pass: S, O
@     { n = plan.block_n, depth = layout.d_pad, registers = plan.q_in_regs and layout.d_pad // step_depth or 0, adds = false, line = lines },
@     { n = walk == "k" and layout.o_cols, depth = plan.block_n, registers = plan.block_n // step_depth, adds = true },
@   }
@   if walk == "q" then
@     local gradient_steps = layout.col_warps == 1 and 64 // step_depth or 0 -- P and dS are operands in registers
@     products = { -- S, dP, dV, dK, dQ
@       { n = layout.parts // layout.s_parts * layout.score_cols, depth = layout.d_depth, registers = layout.held_k, adds = false },
@       { n = layout.score_cols, depth = layout.dv_depth, registers = layout.held_v, adds = false },
@       { n = layout.dv_own_cols, depth = 64, registers = gradient_steps, adds = true },
@       { n = layout.dk_cols, depth = 64, registers = gradient_steps, adds = true },
@       { n = layout.dq_cols, depth = layout.own_n, registers = 0, adds = false },
@       plan.cluster > 1 and not plan.halved and { n = layout.dq_cols, depth = layout.own_n, registers = 0, adds = true } or nil,
@     }
@   end
@   local once, seen = {}, {}
@   for _, product in ipairs(products) do
@     local key = ("%d %d %d %s"):format(product.n, product.depth, product.registers, product.adds)
@     if not seen[key] then once[#once + 1] = product end
@     seen[key] = true
@   end
@   include("primitive/wgmma.cu", { wgmma_products = once })

@   include("primitive/setmaxnreg.cu")

@   if plan.turns or lines or walk == "q" or mask.unlike or problem.prescaled then
@     include("primitive/named_barrier.cu")

@   end
@   include("primitive/atomics.cu")

@   local before = mask.runs or mask.words and walk == "k" or plan.widens_before or problem.dtype == "e4m3" -- a kernel that main starts behind
@   local behind = problem.packed or problem.op == "fwd" and (mask.leading_rows > 0 or plan.parts) -- and one that starts behind main
@   if before or behind or (problem.op == "bwd" and plan.head_rows == 0) then
@     include("primitive/early_start.cu")

@   end
@ else
@   include("primitive/tensor_core.cu")

@   if (problem.op == "bwd" or problem.split or mask.leading_rows > 0) and arch.early_start then
@     include("primitive/early_start.cu")

@   end
@ end
@ include("primitive/convert.cu")
@ if problem.dropout or plan.operands == "e4m3" then

@   include("primitive/byte_permute.cu")
@ end
#endif

// The lane, worked out where it is used: no register keeps it.
__device__ __forceinline__ int lane_anew() { return int(opaque(threadIdx.x) % 32); }
@ if plan.family == "wgmma" then

// A word from another warp, for all lanes. Lane 0 alone reads it, which also arrives when it may be overwritten; by the shuffle the
// compiler sees that it is the same for all, and what follows from it goes to uniform registers.
__device__ __forceinline__ u32 warp_word(u32 addr) {
    u32 v = 0;
    if (threadIdx.x % 32 == 0) v = ld_shared_u32(addr);
    return __shfl_sync(full_warp, v, 0);
}
@ end
