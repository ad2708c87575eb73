// ---- primitives: everything that is PTX; the emulator brings bodies of its own ----
#ifndef FK_EMULATOR
@ include("primitive/shared_memory.cu")

@ include("primitive/global_memory.cu")

@ if arch.async_copy then
@   include("primitive/async_copy.cu")

@ end
@ include("primitive/tensor_core.cu")

@ include("primitive/convert.cu")
@ if problem.dropout then

@   include("primitive/byte_permute.cu")
@ end
#endif
