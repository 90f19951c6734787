-- Swarms: four tables of peers, a download count, and the position of a sweep in a large one. `place` is the
-- hash by which the directory finds a swarm; calls set it that change the directory.

-- Flags above the bits of its kinds.
local DOWNLOADS, KEEPS, LARGE = 16, 32, 64
local TABLES = '<BI3I4I4I3I2I4I3I2I4I3I2I4I3I2'
-- The kinds of each set of bits.
local KINDS = {}
for bits = 0, 15 do
  KINDS[bits] = {}
  for kind = 1, 4 do
    if bits % 2 ^ kind >= 2 ^ (kind - 1) then
      KINDS[bits][#KINDS[bits] + 1] = kind
    end
  end
end

-- The current swarm: calls read one at a time, and making tables costs more than filling them.
local swarm = { count = {}, pages = {}, fullest = {}, from = { 1, 1, 1, 1 }, times = { 1, 1, 1, 1 }, keys = {}, numbers = {} }

-- The swarm of a field, or an empty one. `limit` is needed if peers are added.
local function swarm_of(shard, info_hash, value, limit)
  local s, keys, numbers = swarm, swarm.keys, swarm.numbers
  local count, pages, fullest = s.count, s.pages, s.fullest
  s.shard, s.prefix, s.value, s.limit = shard, info_hash, value or '', limit
  s.downloads, s.kept, s.kind, s.page, s.oldest = 0, false, 0, 0, LARGEST
  keys[1], keys[2], keys[3], keys[4] = nil, nil, nil, nil
  numbers[1], numbers[2], numbers[3], numbers[4] = nil, nil, nil, nil
  local flags, at = value and byte(value) or 0, 2
  if flags < LARGE then
    pages[1], pages[2], pages[3], pages[4] = 1, 1, 1, 1
    fullest[1], fullest[2], fullest[3], fullest[4] = 0, 0, 0, 0
    count[1], count[2], count[3], count[4] = 0, 0, 0, 0
    if not value then
      return s
    end
  end
  local here = KINDS[flags % 16]
  if flags >= 16 then
    s.kept = flags % LARGE >= KEEPS
    if flags % KEEPS >= DOWNLOADS then
      s.downloads, at = decode('<I4', value, at)
    end
  end
  if flags >= LARGE then
    s.kind, s.page, s.oldest, count[1], pages[1], fullest[1], count[2], pages[2], fullest[2], count[3], pages[3], fullest[3], count[4], pages[4], fullest[4], at =
      decode(TABLES, value, at)
  else
    for j = 1, #here do
      count[here[j]], at = byte(value, at), at + 1
    end
  end
  local from, times = s.from, s.times
  for j = 1, #here do
    local kind = here[j]
    from[kind], at = at, at + count[kind] * WIDTH[kind]
  end
  for j = 1, #here do
    local kind = here[j]
    times[kind], at = at, at + count[kind] * 4
  end
  return s
end

local function peers(s)
  local count = s.count
  return count[1] + count[2] + count[3] + count[4]
end

local function save(s)
  local count, pages, fullest = s.count, s.pages, s.fullest
  local flags, parts, n = 0, { '', '' }, 2
  if s.downloads > 0 then
    flags = flags + DOWNLOADS
    parts[2] = encode('<I4', s.downloads)
  end
  if s.kept then
    flags = flags + KEEPS
  end
  -- Only a large swarm has room for the position of a sweep.
  local large = s.kind > 0 or pages[1] > 1 or pages[2] > 1 or pages[3] > 1 or pages[4] > 1
  if large then
    flags, n = flags + LARGE, 3
    parts[3] = encode(TABLES, s.kind, s.page, s.oldest, count[1], pages[1], fullest[1], count[2], pages[2], fullest[2],
      count[3], pages[3], fullest[3], count[4], pages[4], fullest[4])
  end
  local bits = 0
  for kind = 1, 4 do
    if count[kind] > 0 and pages[kind] == 1 then
      bits = bits + 2 ^ (kind - 1)
    end
  end
  parts[1] = char(flags + bits)
  local here = KINDS[bits]
  for j = 1, #here do
    local kind = here[j]
    if not large then
      n = n + 1
      parts[n] = char(count[kind])
    end
  end
  for j = 1, #here do
    read_page(s, here[j], 0)
    parts[n + j] = s.keys[here[j]]
    parts[n + #here + j] = s.numbers[here[j]]
  end
  local value = concat(parts)
  if value ~= s.value then
    put(s.shard, s.prefix, value)
  end
end

-- Sets the download count.
local function set_downloads(s, downloads)
  local m = meta(s.shard)
  downloads = min(downloads, LARGEST)
  m.downloads, s.downloads = m.downloads + downloads - s.downloads, downloads
end

local function add(s, kind, page, endpoint, time)
  local keys, numbers = read_page(s, kind, page)
  put_page(s, kind, page, keys .. endpoint, numbers .. encode('<I4', time))
  s.count[kind] = s.count[kind] + 1
  local m = meta(s.shard)
  m[kind] = m[kind] + 1
  return #keys / WIDTH[kind]
end

local function cut(s, kind, page, i)
  local keys, numbers = read_page(s, kind, page)
  put_page(s, kind, page, without(keys, i, WIDTH[kind]), without(numbers, i, 4))
  s.count[kind] = s.count[kind] - 1
  local m = meta(s.shard)
  m[kind] = m[kind] - 1
end

-- Deletes all fields of the swarm. The caller deletes its entry in the directory.
local function drop(s)
  local shard = s.shard
  local m = meta(shard)
  m.downloads = m.downloads - s.downloads
  for kind = 1, 4 do
    m[kind] = m[kind] - s.count[kind]
    if s.pages[kind] > 1 then
      for page = 0, s.pages[kind] - 1 do
        put(shard, field_of(s, kind, page), '')
        put(shard, field_of(s, kind + NUMBERS, page), '')
      end
    end
  end
  if s.kept then
    m.kept = m.kept - 1
  end
  put(shard, s.prefix, '')
end

-- Notes that a swarm has peers again.
local function is_back(s, due)
  s.kept = false
  local m = meta(s.shard)
  m.kept = m.kept - 1
  set_due(s, function()
    return due
  end)
end

-- The page of an endpoint with the hash `h`, and its position in the page if it is there.
local function look_up(s, kind, endpoint, h)
  local page = page_of(h, s.pages[kind])
  if s.count[kind] > 0 then
    return page, position(s, kind, page, endpoint)
  end
  return page
end

-- Whether a network of the endpoint is full, and the kind, page and position of the least recent announcer in
-- the narrowest full one.
local function is_full(s, first, pages, endpoint)
  local networks, width = NETWORKS[first], WIDTH[first]
  local widest = sub(endpoint, 1, networks[#networks])
  local count, oldest, oldest_kind, oldest_at = { 0, 0, 0 }, { LARGEST + 1, LARGEST + 1, LARGEST + 1 }, {}, {}
  for kind = first, first + 1 do
    local keys, numbers = read_page(s, kind, pages[kind])
    local at = find(keys, widest, 1, true)
    while at do
      if (at - 1) % width == 0 then
        local i = (at - 1) / width
        local time = decode('<I4', numbers, i * 4 + 1)
        for n = 1, #networks do
          local length = networks[n]
          if sub(keys, at, at + length - 1) == sub(endpoint, 1, length) then
            count[n] = count[n] + 1
            if time < oldest[n] then
              oldest[n], oldest_kind[n], oldest_at[n] = time, kind, i
            end
          end
        end
      end
      at = find(keys, widest, at + 1, true)
    end
  end
  for n = 1, #networks do
    if count[n] >= s.limit * TIMES[n] then
      return true, oldest_kind[n], oldest_at[n]
    end
  end
end
