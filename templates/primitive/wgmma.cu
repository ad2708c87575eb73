// Products of a warpgroup: acc = A B, or acc += A B, 64 x DEPTH times DEPTH x N, fp32 accumulation; N = 2 * registers of acc.
// `wgmma_products` lists those that the kernel takes: n, depth, of how many steps of the depth, the first ones, A comes from
// registers, whether they add, and whether they have one more step, of tiles of their own (`line`).
// Warp w holds rows 16 w to 16 w + 15 of acc, lane = 4 g + t of it row g in acc[4 j], acc[4 j + 1] (columns 8 j + 2 t and the
// next) and row g + 8 in acc[4 j + 2], acc[4 j + 3].
@ -- An instruction takes 32 bytes of the depth. Of 8 bits both operands are K-major, and it has no words for transpositions; and products
@ -- take half the time, so that what stands in front of them counts: steps of B add to the low word alone (of 16 bits that is slower).
@ local element = problem.dtype == "fp16" and "f16" or problem.dtype
@ local turns, step_depth = problem.dtype ~= "e4m3", 32 // problem.element_bytes

// Where an operand with rows of SWIZZLE bytes starts in shared memory. K-major: `stride` is the distance of 8 rows, and
// `leading` is not used, but for 0: no swizzle, 8 rows of 16 bytes lie one after another, and those of the step's other half `leading`
// behind them. Otherwise (transposed; 128 only): `stride` is the distance of 8 k, `leading` of 64 rows.
__device__ __forceinline__ u32 wgmma_word(u32 addr, u32 leading) { return (leading >> 4 & 0x3fff) << 16 | (addr & 0x3ffff) >> 4; } // its low word
template <int SWIZZLE> __device__ __forceinline__ u64 wgmma_descriptor(u32 word, u32 stride) {
    static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32 || SWIZZLE == 0, "swizzles of 128, 64 and 32 bytes, or none");
    constexpr u64 layout = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
    return layout << 62 | (u64)(stride >> 4) << 32 | word;
}
template <int SWIZZLE> __device__ __forceinline__ u64 wgmma_descriptor(u32 addr, u32 leading, u32 stride) {
    return wgmma_descriptor<SWIZZLE>(wgmma_word(addr, leading), stride);
}

// Where step j of the depth, 32 bytes of it, begins, in the descriptors' units of 16 bytes. ROWS: of the operand's tile, whose panels
// of ROWS rows hold 128 bytes of the depth each. 0: transposed, a row of the tile is one of the depth.
template <int ROWS> __device__ constexpr int wgmma_step(int j) {
    return ROWS == 0 ? j * (16 * 128 / 16) : (j / 4 * (ROWS * 128) + j % 4 * 32) / 16;
}
@ -- The registers of acc from i on, as a line of names in a statement's text and as a line of its operands.
@ local function line(form, i, last)
@   local list = {}
@   for j = i, last do
@     list[#list + 1] = form:format(j)
@   end
@   return table.concat(list, ", ")
@ end
@ local function names(i, r)
@   return line("%%%d", i, math.min(i + 16, r) - 1) .. (i + 16 < r and ", " or "}, ")
@ end
@ local function operands(constraint, i, r)
@   return line('"' .. constraint .. '"(acc[%d])', i, math.min(i + 8, r) - 1) .. (i + 8 < r and "," or "")
@ end

// Waits until at most N products are in flight. Of the accumulators that this releases, those that are touched before another
// wait are given, so that the compiler moves no use of them before it; one that stays in flight must not be touched.
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
@ local waits = {}
@ for _, product in ipairs(wgmma_products) do
@   local r = product.n // 2
@   if not waits[r] then

template <int N> __device__ __forceinline__ void wgmma_wait(float (&acc)[$(r)]) {
    asm volatile("wgmma.wait_group.sync.aligned %$(r);"
                 :
@     for i = 0, r - 1, 8 do
                 $(operands("+f", i, r))
@     end
                 : "n"(N) : "memory");
}
@   end
@   waits[r] = true
@ end
@
@ -- A product is one statement: its fence then stands in the same basic block, and the compiler has a fraction of the operands.
@ -- Its steps go along B within the statement. Those of A are operands: as A stays (Q), the compiler keeps them in uniform registers.
@ for _, product in ipairs(wgmma_products) do
@   local r, steps, held = product.n // 2, product.depth // step_depth, product.registers
@   local shared = held < steps -- whether A comes from shared memory, for the steps that registers do not hold
@   local first = shared and "held" or "a" -- the name of what registers hold
@   local a_type = held > 0 and ("const u32 (&%s)[%d][4]"):format(first, held) .. (shared and ", u64 a" or "") or "u64 a"
@   local a_rows = shared and "int ROWS_A, " or ""
@   -- Numbers of the operands behind acc and A: B, what says whether to accumulate, the transpositions, the steps of B.
@   local of_b = r + 4 * held + steps - held
@   local of_add = of_b + 1
@   local of_step_b = of_add + (product.adds and 1 or 0) + (not turns and 0 or shared and 2 or 1)
@   local of_trans = product.adds and of_add + 1 or of_add
@   local of_line = of_step_b + steps - 1

// acc $(product.adds and "+= A B, or without `accumulate` acc = A B" or "= A B"), A from $(held == 0 and "" or "registers" .. (shared and " for the first steps" or "") .. ", in the layout of mma_m16n8k" .. step_depth)$(held > 0 and shared and ", and from " or "")$(shared and "shared memory" or "").
template <$(a_rows)int ROWS_B>
__device__ __forceinline__ void wgmma_m64k$(product.depth)_$(problem.dtype)(float (&acc)[$(r)], $(a_type), u64 b$(product.adds and ", bool accumulate" or "")$(product.line and ", u64 line_a, u64 line_b" or "")) {
    asm volatile("{\n.reg .pred first, later;\n.reg .b64 b;\n$(turns and "" or ".reg .b32 low, high, word;\\nmov.b64 {low, high}, %" .. of_b .. ";\\n")"
                 "setp.ne.b32 first, $(product.adds and "%" .. of_add or "0"), 0;\nsetp.eq.b32 later, 0, 0;\n"
                 "wgmma.fence.sync.aligned;\n"
@   for j = 0, steps - 1 do
@     local a, trans = "%" .. r + 3 * held + j, (", %%%d, %%%d"):format(of_trans + 1, of_trans)
@     if j < held then
@       a = ("{%%%d, %%%d, %%%d, %%%d}"):format(r + 4 * j, r + 4 * j + 1, r + 4 * j + 2, r + 4 * j + 3)
@       trans = ", %" .. of_trans
@     end
@     if j > 0 then
                 "$(turns and ("add.s64 b, %%%d, %%%d;"):format(of_b, of_step_b + j - 1) or ("add.u32 word, low, %%%d;\\nmov.b64 b, {word, high};"):format(of_step_b + j - 1))\n"
@     end
                 "wgmma.mma_async.sync.aligned.m64n$(product.n)k$(step_depth).f32.$(element).$(element) {"
@     for i = 0, r - 1, 16 do
                 "$(names(i, r))"
@     end
                 "$(a), $(j == 0 and "%" .. of_b or "b"), $(j == 0 and "first" or "later"), 1, 1$(turns and trans or "");\n"
@   end
@   if product.line then
                 "wgmma.mma_async.sync.aligned.m64n$(product.n)k$(step_depth).f32.$(element).$(element) {"
@     for i = 0, r - 1, 16 do
                 "$(names(i, r))"
@     end
                 "%$(of_line), %$(of_line + 1), later, 1, 1, 0, 0;\n"
@   end
                 "wgmma.commit_group.sync.aligned;\n}"
                 :
@   for i = 0, r - 1, 8 do
                 $(operands(product.adds and "+f" or "=f", i, r))
@   end
                 :
@   for j = 0, steps - 1 do
@     if j < held then
                 "r"($(first)[$(j)][0]), "r"($(first)[$(j)][1]), "r"($(first)[$(j)][2]), "r"($(first)[$(j)][3]),
@     else
                 "l"(a + wgmma_step<ROWS_A>($(j))),
@     end
@   end
                 "l"(b)$(product.adds and ', "r"((int)accumulate)' or "")$(turns and ', "n"(ROWS_B == 0)' or "")$(turns and shared and ', "n"(ROWS_A == 0)' or "")
@   for j = 1, steps - 1 do
                 , "n"(wgmma_step<ROWS_B>($(j)))
@   end
@   if product.line then
                 , "l"(line_a), "l"(line_b)
@   end
                 : "memory");
}
@ end
