@ -- Fills the table `staged`: the array of which tiles are copied beside those of K or Q, if there is one, its slot among the
@ -- parameters, whether its gradient is sent by tiles, and, of a map of one of the two, `of`, the entry that a head or a batch entry has.
@ for i, array in ipairs(arrays) do
@   if array.staged then staged.array, staged.slot, staged.grad = array, i - 1, array.staged_grad end
@ end
@ function staged.entry(of, letter)
@   local d = 0
@   for dim in staged.array.declared:gmatch("%[(%l)%]") do
@     if dim == letter then return ("p.%s[%d].stride[%d] ? at.%s : 0"):format(of, staged.slot, d, letter) end
@     d = d + 1
@   end
@   return "0" -- what the array does not depend on has one entry
@ end
