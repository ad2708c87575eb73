// ---- primitives: everything that is PTX; the emulator brings bodies of its own ----
#ifndef FK_EMULATOR
@ include("primitive/shared_memory.cu")

@ include("primitive/global_memory.cu")

@ if arch.async_copy then
@   include("primitive/async_copy.cu")

@ end
@ if plan.family == "wgmma" then
@   local widths, seen = {}, {}
@   local of_products = { plan.block_n, layout.dv_pad }
@   if walk == "q" then of_products = { layout.score_cols, layout.parts * layout.score_cols, layout.dk_cols, layout.dv_own_cols, layout.dq_cols } end
@   for _, n in ipairs(of_products) do
@     if not seen[n] then widths[#widths + 1] = n end
@     seen[n] = true
@   end
@   include("primitive/mbarrier.cu")

@   include("primitive/tma.cu")

@   include("primitive/wgmma.cu", { wgmma_widths = widths })

@   include("primitive/setmaxnreg.cu")

@   if plan.turns or walk == "q" then
@     include("primitive/named_barrier.cu")

@   end
@   if walk == "k" then
@     include("primitive/atomics.cu")

@   end
@ else
@   include("primitive/tensor_core.cu")

@ end
@ include("primitive/convert.cu")
@ if problem.dropout then

@   include("primitive/byte_permute.cu")
@ end
#endif
