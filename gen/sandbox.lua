-- What Lua files may use: pure functions of their arguments. No addresses, no hash order, no clock, no chance, no code
-- from outside, so the same input gives the same bytes. Runs first, with full base, table, string and math.
--
-- returns the library, the globals of files, those of the engine (with load), and strict

local byte, find, format, gsub = string.byte, string.find, string.format, string.gsub
local raw_setmetatable = setmetatable

-- By bytes, not by locale.
local function before(a, b)
  if type(a) ~= type(b) then return type(a) == "number" end
  if type(a) == "number" then return a < b end
  for i = 1, math.min(#a, #b) do
    if byte(a, i) ~= byte(b, i) then return byte(a, i) < byte(b, i) end
  end
  return #a < #b
end

local function sorted_pairs(t)
  local keys = {}
  for key in next, t do
    if type(key) ~= "string" and type(key) ~= "number" then error("sorted_pairs: a key is a " .. type(key), 2) end
    keys[#keys + 1] = key
  end
  table.sort(keys, before)
  local i = 0
  return function()
    i = i + 1
    if keys[i] ~= nil then return keys[i], t[keys[i]] end
  end
end

-- Tables and functions have no text but their address.
local function has_text(value)
  local kind = type(value)
  return kind == "string" or kind == "number" or kind == "boolean" or kind == "nil"
end

local function safe_tostring(value)
  if not has_text(value) then error("a " .. type(value) .. " has no text", 2) end
  return tostring(value)
end

string.dump = nil
function string.format(form, ...)
  if find(form, "p", 1, true) and find(gsub(form, "%%%%", ""), "%%[-%d]*p") then error("string.format: %p is an address", 2) end
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    if not has_text(value) then error("string.format: a " .. type(value) .. " has no text", 2) end
  end
  return format(form, ...)
end
math.random, math.randomseed = nil, nil

-- Loops of the library that count as one instruction, and that no limit of memory ends: as long as arguments, or a
-- __len, say. (Patterns that go back and forth are left: docs/templates.md.)
local MOST_ELEMENTS = 1 << 22 -- more are in no table: memory ends before
local move, rep = table.move, string.rep
function string.rep(text, ...)
  if text == "" and (select(2, ...) or "") == "" then return "" end
  return rep(text, ...)
end
function table.move(from, first, last, ...)
  local count = (tonumber(last) or 0) - (tonumber(first) or 0) + 1
  if count > MOST_ELEMENTS then error("table.move: " .. count .. " elements: the limit is " .. MOST_ELEMENTS, 2) end
  return move(from, first, last, ...)
end
-- Of the elements that are there, whatever a __len says.
local concat, sort = table.concat, table.sort
local function length(name, t)
  if type(t) ~= "table" then error("table." .. name .. ": a " .. type(t) .. " is no table", 3) end
  return rawlen(t)
end
function table.insert(t, ...)
  local last, at, value = length("insert", t), ...
  if select("#", ...) == 1 then at, value = last + 1, at end
  if select("#", ...) < 1 or select("#", ...) > 2 or math.type(at) ~= "integer" or at < 1 or at > last + 1 then
    error("table.insert: wanted a value, or a place from 1 to " .. last + 1 .. " and a value", 2)
  end
  move(t, at, last, at + 1)
  t[at] = value
end
function table.remove(t, at)
  local last = length("remove", t)
  at = at or last
  if math.type(at) ~= "integer" or at ~= last and (at < 1 or at > last + 1) then
    error("table.remove: the place must be from 1 to " .. last + 1, 2)
  end
  local value = t[at]
  if at > 0 and at <= last then
    move(t, at + 1, last, at)
    t[last] = nil
  end
  return value
end
function table.concat(t, between, first, last)
  first, last = first or 1, last or length("concat", t)
  if last - first >= MOST_ELEMENTS then error("table.concat: " .. last - first + 1 .. " elements: the limit is " .. MOST_ELEMENTS, 2) end
  return concat(t, between, first, last)
end
function table.sort(t, before)
  local plain = move(t, 1, length("sort", t), 1, {})
  sort(plain, before)
  move(plain, 1, #plain, 1, t)
end

-- A finaliser would run at any time, and where no instruction limit reaches it.
local function safe_setmetatable(t, meta)
  if meta and meta.__gc then error("__gc is not available", 2) end
  return raw_setmetatable(t, meta)
end

-- Fields that are not there are errors, except the optional ones.
local function strict(name, t, ...)
  local optional = {}
  for i = 1, select("#", ...) do optional[(select(i, ...))] = true end
  return raw_setmetatable(t, {
    __index = function(_, key)
      if not optional[key] then error(name .. " has no field '" .. tostring(key) .. "'", 2) end
    end,
    __newindex = function(_, key) error("'" .. tostring(key) .. "' cannot be added to " .. name, 2) end,
    __metatable = false,
  })
end

local allowed = {
  assert = assert, error = error, ipairs = ipairs, pcall = pcall, select = select, tonumber = tonumber, type = type,
  tostring = safe_tostring, setmetatable = safe_setmetatable, sorted_pairs = sorted_pairs,
  table = table, string = string, math = math,
}
local engine = { load = function(text, name, _, scope) return load(text, name, "t", scope) end }

-- An empty table in front of `t`: what is not there is an error, and assignments find no field to change.
local function sealed(t)
  return raw_setmetatable({}, {
    __index = function(_, key)
      local value = t[key]
      if value == nil then error("unknown name '" .. tostring(key) .. "'", 2) end
      return value
    end,
    __newindex = function(_, key) error("assignment to undeclared name '" .. tostring(key) .. "'", 2) end,
    __metatable = false,
  })
end
return allowed, sealed(allowed), sealed(raw_setmetatable(engine, { __index = allowed })), strict
