// ---- primitives: everything that is PTX; the emulator brings bodies of its own ----
#ifndef FK_EMULATOR
@ include("primitive/shared_memory.cu")

@ include("primitive/global_memory.cu")

@ if arch.async_copy then
@   include("primitive/async_copy.cu")

@ end
@ if plan.family == "wgmma" then
@   local widths, seen = {}, {}
@   for _, n in ipairs({ plan.block_n, layout.dv_pad }) do
@     if not seen[n] then widths[#widths + 1] = n end
@     seen[n] = true
@   end
@   include("primitive/mbarrier.cu")

@   include("primitive/tma.cu")

@   include("primitive/wgmma.cu", { wgmma_widths = widths })

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
