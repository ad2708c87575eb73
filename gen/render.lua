-- The template engine. A line whose first non-blank is `@` is Lua; `$(expr)` is a hole; the rest is CUDA.
--
-- Template line N becomes line N of a Lua chunk, so errors of Lua name template lines without any mapping; lines without
-- holes that follow one another are one string. The chunk appends to a list of output lines and writes `#line` only
-- where the sequence of template lines breaks, so that the CUDA compiler's errors name them too.
--
-- render(path, env, read_file, standalone) -> text

-- Splits "a $(x) b" into Lua arguments: "a ", (x), " b".
local function arguments(line, where)
  local out, at = {}, 1
  while true do
    local open = string.find(line, "$(", at, true)
    if not open then break end
    if open > at then out[#out + 1] = string.format("%q", string.sub(line, at, open - 1)) end
    local body = string.match(line, "^%b()", open + 1)
    if not body then error(where .. ": $( without its )", 0) end
    out[#out + 1] = "hole" .. body
    at = open + 1 + #body
  end
  if at <= #line then out[#out + 1] = string.format("%q", string.sub(line, at)) end
  return table.concat(out, ", ")
end

-- Lines first to last of a file, which are as they are. A newline behind the bracket would be skipped: no first line is empty.
local function literal(lines, first, last)
  local text = table.concat(lines, "\n", first, last)
  local level = "=="
  while string.find(text, "]" .. level, 1, true) do level = level .. "=" end
  return string.format("emit(%d, %d, [%s[%s]%s])", first, last - first + 1, level, text, level)
end

-- The chunk's text: one Lua line for each template line.
local function translate(path, source)
  local lines, out, first = {}, {}, nil -- first of lines that are as they are
  if string.sub(source, -1) ~= "\n" then source = source .. "\n" end
  for line in string.gmatch(source, "([^\n]*)\n") do lines[#lines + 1] = line end
  local function flush(number)
    if first then out[#out + 1] = literal(lines, first, number - 1) end
    first = nil
  end
  for number, line in ipairs(lines) do
    local lua = string.match(line, "^%s*@(.*)$")
    if lua then
      flush(number)
      out[#out + 1] = lua
    elseif line == "" and not first then
      out[#out + 1] = string.format("emit(%d, 1, '')", number)
    elseif string.find(line, "$(", 1, true) or string.find(line, "\r", 1, true) then -- which a long string would change
      flush(number)
      out[#out + 1] = string.format("emit(%d, 1, %s)", number, arguments(line, path .. ":" .. number))
    else
      first = first or number
    end
  end
  flush(#lines + 1)
  return table.concat(out, "\n")
end

local function hole(...)
  local value = ...
  if select("#", ...) ~= 1 or (type(value) ~= "string" and math.type(value) ~= "integer") then
    error("a hole takes a string or an integer, got " .. (math.type(value) or type(value)), 2)
  end
  return value
end

return function(path, env, read_file, standalone)
  local out = {}
  local file, next_line -- where the CUDA compiler believes to be

  local run
  -- `given`: names that this file and what it includes see before those of env.
  local function scope(name, given)
    local function include(inner, more)
      run("templates/" .. inner, more and setmetatable(more, { __index = given }) or given)
    end
    local names = { hole = hole, include = include }
    function names.emit(number, count, ...)
      if not standalone and (file ~= name or next_line ~= number) then
        out[#out + 1] = string.format("#line %d \"%s\"", number, name)
      end
      out[#out + 1] = select("#", ...) == 1 and (...) or table.concat({ ... })
      file, next_line = name, number + count
    end
    return setmetatable(names, {
      __index = function(_, key)
        local value = given[key]
        if value == nil then value = env[key] end
        if value == nil then error("unknown name '" .. tostring(key) .. "'", 2) end
        return value
      end,
      __newindex = function(_, key) error("assignment to undeclared name '" .. tostring(key) .. "'", 2) end,
    })
  end

  function run(name, given)
    local chunk, message = load(translate(name, read_file(name)), "@" .. name, "t", scope(name, given))
    if not chunk then error(message, 0) end
    chunk()
  end

  run(path, {})
  return table.concat(out, "\n") .. "\n"
end
