@ -- words.text: of a mask that comes as words of 32 keys, of which bit k % 32 of word k / 32 says whether key k is seen, what word it is, by
@ -- `word`, which is k / 32. Else nil.
@ local tested = mask.residual and mask.residual_keep:match("^%(shr_or_0(%b()) & 1%) == 1$")
@ local text = tested and tested:match("^%((.+), k & 31%)$")
@ text = text and text:gsub("k >> 5", "word")
@ if text and not text:find("%f[%w_]k%f[^%w_]") then words.text = text end
