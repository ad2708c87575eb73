// ---- primitives: everything that is PTX; the emulator brings bodies of its own ----
#ifndef FK_EMULATOR
@ include("primitive/shared_memory.cu")

@ include("primitive/global_memory.cu")

@ if arch.async_copy then
@   include("primitive/async_copy.cu")

@ end
@ if plan.family == "wgmma" then
@   include("primitive/mbarrier.cu")

@   include("primitive/tma.cu")

@   include("primitive/wgmma.cu", { wgmma_products = {
@     { n = plan.block_n, depth = layout.d_pad, registers = plan.q_in_regs, adds = false },
@     { n = layout.dv_pad, depth = plan.block_n, registers = true, adds = true },
@   } })

@   include("primitive/setmaxnreg.cu")

@   if plan.turns then
@     include("primitive/named_barrier.cu")

@   end
@   include("primitive/atomics.cu")

@ else
@   include("primitive/tensor_core.cu")

@ end
@ include("primitive/convert.cu")
@ if problem.dropout or problem.dtype == "e4m3" then

@   include("primitive/byte_permute.cu")
@ end
#endif
