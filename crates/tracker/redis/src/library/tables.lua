-- Tables: `of` is their owner, a swarm or the directory, and `kind` the table of the owner.

-- Keyed, so that remote peers cannot choose the keys of one page.
local function hash_of(of, kind, key)
  if of.limit > 0 and kind ~= DIRECTORY then
    local networks = NETWORKS[kind]
    key = sub(key, 1, networks[#networks])
  end
  return number_of(sub(sha1(sub(identity, 1, SALT) .. key), 1, 8), 16)
end

-- The largest power of two up to `n`.
local function power_below(n)
  local _, exponent = frexp(n)
  return 2 ^ (exponent - 1)
end

local function page_of(h, pages)
  if pages == 1 then
    return 0
  end
  local power = power_below(pages)
  local page = h % (2 * power)
  return page < pages and page or h % power
end

local SUFFIXES = { {}, {}, {}, {}, {}, [9] = {}, [10] = {}, [11] = {}, [12] = {}, [13] = {} }

local function field_of(of, kind, page)
  local suffix = SUFFIXES[kind][page]
  if not suffix then
    suffix = encode('<BI3', kind, page)
    if page < 256 then
      SUFFIXES[kind][page] = suffix
    end
  end
  return of.prefix .. suffix
end

-- Whether its only page is in the field of its swarm.
local function is_inline(of, kind)
  return of.pages[kind] == 1 and kind ~= DIRECTORY
end

-- The keys of a page: the text with them, the start in it, and their number.
local function keys_of(of, kind, page)
  if is_inline(of, kind) then
    local keys = of.keys[kind]
    if keys then
      return keys, 1, of.count[kind]
    end
    return of.value, of.from[kind], of.count[kind]
  end
  local keys = get(of.shard, field_of(of, kind, page))
  return keys, 1, #keys / WIDTH[kind]
end

-- Their numbers: the text, and the start in it.
local function numbers_of(of, kind, page)
  if is_inline(of, kind) then
    local numbers = of.numbers[kind]
    if numbers then
      return numbers, 1
    end
    return of.value, of.times[kind]
  end
  return get(of.shard, field_of(of, kind + NUMBERS, page)), 1
end

-- Both, each as its own text.
local function read_page(of, kind, page)
  local keys, from, count = keys_of(of, kind, page)
  local numbers, times = numbers_of(of, kind, page)
  if is_inline(of, kind) and not of.keys[kind] then
    keys = sub(keys, from, from + count * WIDTH[kind] - 1)
    numbers = sub(numbers, times, times + count * 4 - 1)
    of.keys[kind], of.numbers[kind] = keys, numbers
  end
  return keys, numbers
end

local function set_page_due(directory, page, due)
  local u = get(directory.shard, 'u')
  put(directory.shard, 'u', sub(u, 1, page * 4) .. encode('<I4', due) .. sub(u, page * 4 + 5))
  local m = meta(directory.shard)
  m.due = min(m.due, due)
end

local function smallest(numbers)
  local least = LARGEST
  for at = 1, #numbers, 4 do
    least = min(least, (decode('<I4', numbers, at)))
  end
  return least
end

local function put_page(of, kind, page, keys, numbers)
  if is_inline(of, kind) then
    of.keys[kind], of.numbers[kind] = keys, numbers
    return
  end
  put(of.shard, field_of(of, kind, page), keys)
  put(of.shard, field_of(of, kind + NUMBERS, page), numbers)
  -- Two bytes: a page has more only if a network may have that many endpoints.
  of.fullest[kind] = min(max(of.fullest[kind], #keys / WIDTH[kind]), 65535)
end

-- The same, and notes when the first swarm of a page of the directory is due.
local function write_page(of, kind, page, keys, numbers)
  put_page(of, kind, page, keys, numbers)
  if kind == DIRECTORY then
    set_page_due(of, page, smallest(numbers))
  end
end

local function with(text, at, number)
  return sub(text, 1, at - 1) .. encode('<I4', number) .. sub(text, at + 4)
end

-- Sets the number of the key at `i`, from 0.
local function set_number(of, kind, page, i, number)
  local text, from = numbers_of(of, kind, page)
  text = with(text, from + i * 4, number)
  if not is_inline(of, kind) then
    put(of.shard, field_of(of, kind + NUMBERS, page), text)
  elseif of.numbers[kind] then
    of.numbers[kind] = text
  else
    of.value = text
    put(of.shard, of.prefix, text)
  end
  return text
end

-- The position of `key` in a page, from 0.
local function position(of, kind, page, key)
  local text, from, count = keys_of(of, kind, page)
  local width = WIDTH[kind]
  local found = find(text, key, from, true)
  while found do
    local i = (found - from) / width
    if i >= count then
      return
    elseif i % 1 == 0 then
      return i
    end
    found = find(text, key, found + 1, true)
  end
end

local function without(text, i, width)
  return sub(text, 1, i * width) .. sub(text, (i + 1) * width + 1)
end

local function grow(of, kind)
  local width, count = WIDTH[kind], of.count[kind]
  while count > (is_inline(of, kind) and INLINE or of.pages[kind] * MOST) do
    local page = of.pages[kind]
    local power = power_below(page)
    local from = page - power
    local keys, numbers = read_page(of, kind, from)
    local stay, go = {}, {}
    local stay_numbers, go_numbers = {}, {}
    for i = 0, #keys / width - 1 do
      local key = sub(keys, i * width + 1, (i + 1) * width)
      local number = sub(numbers, i * 4 + 1, i * 4 + 4)
      if hash_of(of, kind, key) % (2 * power) == page then
        go[#go + 1], go_numbers[#go_numbers + 1] = key, number
      else
        stay[#stay + 1], stay_numbers[#stay_numbers + 1] = key, number
      end
    end
    of.pages[kind], of.keys[kind], of.numbers[kind] = page + 1, '', ''
    write_page(of, kind, from, concat(stay), concat(stay_numbers))
    write_page(of, kind, page, concat(go), concat(go_numbers))
    -- A sweep in the middle of this table has passed its end, which now has peers that it has not visited.
    if of.kind == kind then
      of.oldest = min(of.oldest, smallest(concat(go_numbers)))
    end
  end
end

local function shrink(of, kind)
  local count = of.count[kind]
  while of.pages[kind] > 1 and count < (of.pages[kind] == 2 and INLINE / 2 or of.pages[kind] * LEAST) do
    local last = of.pages[kind] - 1
    local into = last - power_below(last)
    local keys, numbers = read_page(of, kind, into)
    local more, more_numbers = read_page(of, kind, last)
    put(of.shard, field_of(of, kind, last), '')
    put(of.shard, field_of(of, kind + NUMBERS, last), '')
    of.pages[kind] = last
    if kind == DIRECTORY then
      put(of.shard, 'u', sub(get(of.shard, 'u'), 1, last * 4))
    elseif last == 1 then
      put(of.shard, field_of(of, kind, 0), '')
      put(of.shard, field_of(of, kind + NUMBERS, 0), '')
      of.fullest[kind] = 0
    end
    write_page(of, kind, into, keys .. more, numbers .. more_numbers)
  end
end
