#!lua name=swarmkeep_LIBRARY

-- The functions inside the server. Each call is one step, atomic and bounded, on the shards of its keys.
-- docs/formats/redis.md describes the format.
--
-- A key contains a shard, a hash with all its swarms:
--   m                     the newest time, counts of the whole shard, the number of pages of its directory,
--                         and the layout under which it was created
--   u                     for each page of the directory, the time when the first of its swarms is due
--   KIND PAGE             a page of the directory: info hashes, and in a second field when each is due
--   INFO-HASH             a swarm: its counts, and its peers without pages
--   INFO-HASH KIND PAGE   a page of its peers of a kind, if there are many: endpoints, and in a second field
--                         their times
--
-- The directory and the peers of a kind are tables. A table consists of pages: keys in one field, and a
-- number for each in another. Linear hashing (Litwin, VLDB 1980) gives the page of a key, so that tables grow
-- and shrink by one page at a time.
--
-- Bytes are the cost: Lua here hashes every byte of every string that it gets or makes. So times are apart
-- from endpoints, pages are small, strings are read in place if possible, and an answer consists of pieces.

local call, encode, decode, spread, sub, find, byte, char, floor, min, max, frexp, concat, band, sha1, raise, number_of

-- A library sees no globals while it is loaded.
local function bind()
  call, sha1, encode, decode, spread = redis.call, redis.sha1hex, struct.pack, struct.unpack, unpack
  sub, find, byte, char = string.sub, string.find, string.byte, string.char
  floor, min, max, frexp = math.floor, math.min, math.max, math.frexp
  concat, band = table.concat, bit.band
  raise, number_of = error, tonumber
end

-- The lengths of keys by kind: seeders and leechers over IPv4, over IPv6, and info hashes in the directory.
local WIDTH = { 6, 6, 18, 18, 20 }
local DIRECTORY = 5
-- If endpoints per address are limited, by kind: the lengths of the shared prefixes of its networks, from
-- narrow to wide, and their multiples of the limit.
local NETWORKS = { { 4 }, { 4 }, { 8, 7, 6 }, { 8, 7, 6 } }
local TIMES = { 1, 5, 25 }
-- The numbers of a page are in the field of its kind plus this.
local NUMBERS = 8
-- The most peers of a kind in the field of their swarm. More peers have pages, two at least.
local INLINE = 32
-- The keys per page, on average, are between these.
local LEAST, MOST = 32, 64
-- The due time of a swarm that is kept for its downloads.
local KEPT = 4294967295
local LARGEST = 4294967295
-- The due time of a swarm in which a sweep begins again.
local AGAIN = 0
-- One call of a sweep visits this many peers, and the rest of the last page.
local HOLD = 256

local JOINED, REFRESHED, COMPLETED, PROMOTED, DEMOTED, LEFT, CREATED = 1, 2, 4, 8, 16, 32, 64
local SEEDER, FINISHED, STOPPED, IPV6, WANTS_V4, WANTS_V6, SEEDERS_TOO = 1, 2, 4, 8, 16, 32, 64

-- The layout of the caller: the salt, and the rest of it. Whether the caller has just read that this is the
-- layout of the store, and whether the server's clock bounds the times of calls.
local identity, confirmed, bounded
local SALT, IDENTITY = 16, 17
local CONFIRMED, BOUNDED = 1, 2
-- An announce was not done, in place of its changes.
local MISSING, ELSEWHERE = 128, 129
-- The most seconds between the time of a call and the server's clock.
local APART = 60

--------------------------------------------------------------------------------------------------------------
-- The shard during one call: the fields that were read, and the fields to write when it ends.

-- The identity follows.
local META = '<I4I4I4I4I4I4I4I4I4d'
local LAYOUT = 45

-- Returns nil and the reason for a shard of another layout, and for a missing shard that the call would
-- create. A caller that has confirmed its layout creates it, or replaces an abandoned layout, if the call may
-- (`takes`).
local function find_shard(key, info_hash, takes)
  local values = call('HMGET', key, 'm', info_hash or 'u')
  local raw, value = values[1], values[2]
  local theirs = raw and sub(raw, LAYOUT)
  if theirs ~= identity then
    if theirs == '' then
      raise({ err = 'OLDER the shard has an older layout, which commit 7132e1d is the last to read' })
    elseif confirmed then
      if raw and takes then
        call('PEXPIRE', key, 0)
      end
      raw, value = false, false
    elseif raw or takes then
      return nil, raw and ELSEWHERE or MISSING
    end
  end
  return { key = key, raw = raw, read = {}, written = {} }, value
end

local function open(key, info_hash, takes)
  local shard, value = find_shard(key, info_hash, takes)
  if not shard then
    raise({ err = value == MISSING and 'MISSING the shard is not there' or 'ELSEWHERE the shard is of another layout' })
  end
  return shard, value
end

local function meta(shard)
  local m = shard.m
  if not m then
    if shard.raw then
      local newest, swarms, a, b, c, d, kept, pages, due, evicted = decode(META, shard.raw)
      m = { a, b, c, d, newest = newest, swarms = swarms, kept = kept, pages = pages, due = due, evicted = evicted }
    else
      m = { 0, 0, 0, 0, newest = 0, swarms = 0, kept = 0, pages = 1, due = LARGEST, evicted = 0 }
    end
    shard.m = m
  end
  return m
end

local function get(shard, field)
  local value = shard.read[field]
  if value == nil then
    value = call('HGET', shard.key, field) or ''
    shard.read[field] = value
  end
  return value
end

-- An empty field is deleted.
local function put(shard, field, value)
  shard.read[field] = value
  shard.written[field] = value
end

local function commit(shard)
  local m, written = shard.m, shard.written
  if not m then
    local field, value = next(written)
    if field == nil then
      return
    end
    if value ~= '' and next(written, field) == nil then
      call('HSET', shard.key, field, value)
      return
    end
  end
  local set, gone = {}, {}
  for field, value in pairs(written) do
    if value == '' then
      gone[#gone + 1] = field
    else
      set[#set + 1] = field
      set[#set + 1] = value
    end
  end
  if m then
    local raw = encode(META, m.newest, m.swarms, m[1], m[2], m[3], m[4], m.kept, m.pages, m.due, m.evicted) .. identity
    if raw ~= shard.raw then
      set[#set + 1] = 'm'
      set[#set + 1] = raw
    end
  end
  -- The stack of Lua takes 8,000 arguments.
  for i = 1, #gone, 4000 do
    call('HDEL', shard.key, spread(gone, i, min(i + 3999, #gone)))
  end
  for i = 1, #set, 4000 do
    call('HSET', shard.key, spread(set, i, min(i + 3999, #set)))
  end
end

--------------------------------------------------------------------------------------------------------------
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

-- `due` is the smallest number of a page of the directory, if it is known.
local function write_page(of, kind, page, keys, numbers, due)
  if is_inline(of, kind) then
    of.keys[kind], of.numbers[kind] = keys, numbers
    return
  end
  put(of.shard, field_of(of, kind, page), keys)
  put(of.shard, field_of(of, kind + NUMBERS, page), numbers)
  -- Two bytes: a page has more only if a network may have that many endpoints.
  of.fullest[kind] = min(max(of.fullest[kind], #keys / WIDTH[kind]), 65535)
  if kind == DIRECTORY then
    set_page_due(of, page, due or smallest(numbers))
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

--------------------------------------------------------------------------------------------------------------
-- The directory.

local function directory(shard)
  local m = meta(shard)
  return {
    shard = shard,
    limit = 0,
    prefix = '',
    pages = { [DIRECTORY] = m.pages },
    count = { [DIRECTORY] = m.swarms },
    fullest = { [DIRECTORY] = 0 },
    keys = {},
    numbers = {},
  }
end

-- Notes the size of the directory in the shard.
local function settle(d)
  local m = meta(d.shard)
  m.pages, m.swarms = d.pages[DIRECTORY], d.count[DIRECTORY]
end

local function enter(s, place, due)
  local d = directory(s.shard)
  local page = page_of(place, d.pages[DIRECTORY])
  local keys, numbers = read_page(d, DIRECTORY, page)
  local first = #keys > 0 and decode('<I4', get(s.shard, 'u'), page * 4 + 1) or LARGEST
  write_page(d, DIRECTORY, page, keys .. s.prefix, numbers .. encode('<I4', due), min(first, due))
  d.count[DIRECTORY] = d.count[DIRECTORY] + 1
  grow(d, DIRECTORY)
  settle(d)
end

-- Sets the due time of a swarm. `change` returns the new time for the old one.
local function set_due(s, place, change)
  local d = directory(s.shard)
  local page = page_of(place, d.pages[DIRECTORY])
  local i = position(d, DIRECTORY, page, s.prefix)
  local due = change((decode('<I4', numbers_of(d, DIRECTORY, page), i * 4 + 1)))
  set_page_due(d, page, smallest(set_number(d, DIRECTORY, page, i, due)))
end

local function leave(s, place)
  local d = directory(s.shard)
  local page = page_of(place, d.pages[DIRECTORY])
  local keys, numbers = read_page(d, DIRECTORY, page)
  local i = position(d, DIRECTORY, page, s.prefix)
  write_page(d, DIRECTORY, page, without(keys, i, 20), without(numbers, i, 4))
  d.count[DIRECTORY] = d.count[DIRECTORY] - 1
  shrink(d, DIRECTORY)
  settle(d)
end

-- Sets the shard back from a time in the future: the next sweep visits all swarms, and sets back the times of
-- peers.
local function bring_back(shard, now)
  local m, d = meta(shard), directory(shard)
  m.newest = now
  for page = 0, m.swarms > 0 and m.pages - 1 or -1 do
    local names, dues = read_page(d, DIRECTORY, page)
    local again = {}
    for at = 1, #dues, 4 do
      local due = sub(dues, at, at + 3)
      again[#again + 1] = decode('<I4', due) == KEPT and due or encode('<I4', AGAIN)
    end
    write_page(d, DIRECTORY, page, names, concat(again))
  end
end

-- The time that counts: the latest of all calls. The server's clock is read only if the time moves, or if one
-- of the two clocks is wrong.
local function advance(shard, told)
  local m = shard.m
  local newest = m and m.newest or shard.raw and decode('<I4', shard.raw) or 0
  if bounded and (told > newest or told < newest - APART) then
    local clock = number_of(call('TIME')[1])
    told = max(min(told, clock + APART), clock - APART)
    if newest > clock + APART then
      bring_back(shard, told)
      return told
    end
  end
  if told > newest then
    meta(shard).newest = told
    return told
  end
  return newest
end

--------------------------------------------------------------------------------------------------------------
-- Swarms: four tables of peers, a download count, and the position of a sweep in a large one.

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

local function add(s, kind, page, endpoint, time)
  local keys, numbers = read_page(s, kind, page)
  write_page(s, kind, page, keys .. endpoint, numbers .. encode('<I4', time))
  s.count[kind] = s.count[kind] + 1
  local m = meta(s.shard)
  m[kind] = m[kind] + 1
  return #keys / WIDTH[kind]
end

local function cut(s, kind, page, i)
  local keys, numbers = read_page(s, kind, page)
  write_page(s, kind, page, without(keys, i, WIDTH[kind]), without(numbers, i, 4))
  s.count[kind] = s.count[kind] - 1
  local m = meta(s.shard)
  m[kind] = m[kind] - 1
end

-- Deletes all fields of the swarm. The caller deletes its entry in the directory.
local function drop(s)
  local shard = s.shard
  local m = meta(shard)
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
local function is_back(s, place, due)
  s.kept = false
  local m = meta(s.shard)
  m.kept = m.kept - 1
  set_due(s, place, function()
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

--------------------------------------------------------------------------------------------------------------
-- Selection of peers.

-- Numbers in [0, 1) from the caller's randomness (L'Ecuyer, CACM 1988).
local x, y

local function seed(a, b)
  x, y = a % 2147483562 + 1, b % 2147483398 + 1
end

local function draw()
  x, y = x * 40014 % 2147483563, y * 40692 % 2147483399
  return (x - y) % 2147483562 / 2147483562
end

-- Appends `want` of the peers of the kinds `first` to `last` to the `n` pieces of `out`, and returns the new
-- number of pieces. The peers follow a random one in their order, cyclically. The announcer, at `mine` of
-- page `my_page` of `my_kind`, is left out.
local function select(s, first, last, my_kind, my_page, mine, want, eligible, out, n)
  if want <= 0 then
    return n
  end
  local kind, page, i = first, 0, 0
  if want < eligible then
    local rank = floor(draw() * eligible)
    local size = s.count[kind] - (kind == my_kind and 1 or 0)
    if rank >= size and kind < last then
      kind, rank = last, rank - size
    end
    if s.pages[kind] == 1 then
      i = rank
      if kind == my_kind and i >= mine then
        i = i + 1
      end
    else
      -- A random place of a random page, repeated while it is empty: the weight of a page is its number of
      -- peers.
      local slots, fullest, tries = s.pages[kind] * s.fullest[kind], s.fullest[kind], 0
      repeat
        local slot = floor(draw() * slots)
        i, page = slot % fullest, floor(slot / fullest)
        local _, _, count = keys_of(s, kind, page)
        tries = tries + 1
      until (i < count and not (kind == my_kind and page == my_page and i == mine)) or tries == 100
    end
  end
  while want > 0 do
    local width, text, from, count = WIDTH[kind], keys_of(s, kind, page)
    if kind == my_kind and page == my_page and i <= mine then
      local before = min(mine - i, want)
      if before > 0 then
        n = n + 1
        out[n] = sub(text, from + i * width, from + (i + before) * width - 1)
      end
      want, i = want - before, mine + 1
    end
    if i < count and want > 0 then
      local rest = min(count - i, want)
      n = n + 1
      out[n] = sub(text, from + i * width, from + (i + rest) * width - 1)
      want = want - rest
    end
    page, i = page + 1, 0
    if page >= s.pages[kind] then
      kind, page = kind < last and last or first, 0
    end
  end
  return n
end

-- Half of `want` for each family; the unused part of one goes to the other.
local function share(want, v4, v6)
  local six = min(v6, max(floor(want / 2), want - v4))
  return min(v4, want - six), six
end

--------------------------------------------------------------------------------------------------------------
-- The functions that are called.

local STATS = '<I4I4I4'

local function stats(s)
  local count = s.count
  return count[1] + count[3], count[2] + count[4], s.downloads
end

-- Stores that a peer joins, leaves or changes its role; it is at `mine` of that page if it has that role
-- already. Returns the changes, the number of evicted peers, and the new position of the peer.
local function move(s, place, kind, page, mine, endpoint, h, flags, now, lifetime)
  local seeder = kind % 2 == 1
  local other = seeder and kind + 1 or kind - 1
  local pages, there, before = { [kind] = page }, mine, mine and kind
  if not mine then
    pages[other], there = look_up(s, other, endpoint, h)
    before = there and other
  end
  if before then
    cut(s, before, pages[before], there)
  end
  if band(flags, STOPPED) ~= 0 then
    return before and LEFT or 0, 0
  end

  local changes, evicted = JOINED, 0
  if before then
    changes = REFRESHED + (seeder and PROMOTED or DEMOTED)
  elseif s.limit > 0 then
    local full, oldest_kind, oldest_at = is_full(s, min(kind, other), pages, endpoint)
    if full then
      cut(s, oldest_kind, pages[oldest_kind], oldest_at)
      local m = meta(s.shard)
      m.evicted, evicted = m.evicted + 1, 1
    end
  end
  mine = add(s, kind, page, endpoint, now)
  if seeder and band(flags, FINISHED) ~= 0 then
    changes = changes + COMPLETED
    s.downloads = min(s.downloads + 1, LARGEST)
  end
  if s.value == '' then
    changes = changes + CREATED
    enter(s, place, now + lifetime + 1)
  elseif s.kept then
    is_back(s, place, now + lifetime + 1)
  end
  return changes, evicted, mine
end

-- Appends peers for the peer at that position to the `n` pieces of `out`. Returns the new number of pieces,
-- and the number of IPv4 peers.
local function hand_out(s, kind, page, mine, flags, want, room4, room6, out, n)
  local count, seeders_too = s.count, kind % 2 == 0 or flags >= SEEDERS_TOO
  local e4, e6 = 0, 0
  if band(flags, WANTS_V4) ~= 0 then
    e4 = count[2] + (seeders_too and count[1] - (kind < 3 and 1 or 0) or 0)
  end
  if band(flags, WANTS_V6) ~= 0 then
    e6 = count[4] + (seeders_too and count[3] - (kind > 2 and 1 or 0) or 0)
  end
  local n4, n6 = share(want, min(e4, room4), min(e6, room6))
  n = select(s, seeders_too and 1 or 2, 2, kind, page, mine, n4, e4, out, n)
  return select(s, seeders_too and 3 or 4, 4, kind, page, mine, n6, e6, out, n), n4
end

-- One announce. Appends its answer to the `n` pieces of `out`; the answer contains its number of pieces.
local function announce_one(shards, key, request, out, n)
  local info_hash, place, h, flags, now, lifetime, want, room4, room6, limit, a, b, at =
    decode('<c20I4I4BI4I4I2I2I2I2I4I4', request)
  local endpoint = sub(request, at)
  local shard, value = shards[key], nil
  if shard then
    value = get(shard, info_hash)
    value = value ~= '' and value or nil
  else
    shard, value = find_shard(key, info_hash, true)
    if not shard then
      out[n + 1] = encode('<I2BI4I4I4I4BI2', 0, value, 0, 0, 0, 0, 0, 0)
      return n + 1
    end
    shards[key] = shard
  end
  now = advance(shard, now)
  local stopped = band(flags, STOPPED) ~= 0
  if stopped and not value then
    out[n + 1] = encode('<I2BI4I4I4I4BI2', 0, 0, 0, 0, 0, now, 0, 0)
    return n + 1
  end

  local s = swarm_of(shard, info_hash, value, limit)
  local first = band(flags, IPV6) ~= 0 and 3 or 1
  local kind = flags % 2 == SEEDER and first or first + 1
  local page, mine = look_up(s, kind, endpoint, h)
  local changes, evicted = REFRESHED, 0
  if mine and not stopped then
    set_number(s, kind, page, mine, now)
  else
    changes, evicted, mine = move(s, place, kind, page, mine, endpoint, h, flags, now, lifetime)
  end

  local head, n4 = n + 1, 0
  n = head
  if want > 0 and not stopped then
    seed(a, b)
    n, n4 = hand_out(s, kind, page, mine, flags, want, room4, room6, out, n)
  end

  if changes ~= REFRESHED then
    for k = first, first + 1 do
      grow(s, k)
      shrink(s, k)
    end
    if changes == LEFT and peers(s) == 0 then
      set_due(s, place, function()
        return 0
      end)
    end
    save(s)
  end
  local complete, incomplete, downloads = stats(s)
  out[head] = encode('<I2BI4I4I4I4BI2', n - head, changes, complete, incomplete, downloads, now, evicted, n4)
  return n
end

-- Announces, in order.
local function announce(keys, args)
  local shards, out, n = {}, {}, 0
  for i = 1, #keys do
    n = announce_one(shards, keys[i], args[i], out, n)
  end
  for _, shard in next, shards do
    commit(shard)
  end
  return out
end

local function scrape(keys, args)
  local shard, value = open(keys[1], args[1])
  if not value then
    return false
  end
  return encode(STATS, stats(swarm_of(shard, args[1], value)))
end

local function remove(keys, args)
  local info_hash, place = decode('<c20I4', args[1])
  local shard, value = open(keys[1], info_hash)
  if not value then
    return false
  end
  local s = swarm_of(shard, info_hash, value)
  drop(s)
  leave(s, place)
  commit(shard)
  return encode(STATS, stats(s))
end

local function add_downloads(keys, args)
  local info_hash, earlier = decode('<c20I4', args[1])
  local shard, value = open(keys[1], info_hash)
  if not value then
    return false
  end
  local s = swarm_of(shard, info_hash, value)
  s.downloads = min(s.downloads + earlier, LARGEST)
  save(s)
  commit(shard)
  return 1
end

-- Peers of a snapshot: each with its kind, its time, its hash, and its endpoint.
local function restore(keys, args)
  local request = args[1]
  local info_hash, place, now, lifetime, downloads, limit, at = decode('<c20I4I4I4I4I2', request)
  local shard, value = open(keys[1], info_hash, true)
  now = advance(shard, now)
  local s = swarm_of(shard, info_hash, value, limit)
  local added, known, expired, refused, oldest = 0, 0, 0, 0, LARGEST
  while at <= #request do
    local kind, time, h
    kind, time, h, at = decode('<BI4I4', request, at)
    local endpoint = sub(request, at, at + WIDTH[kind] - 1)
    at = at + WIDTH[kind]
    time = min(time, now)
    if time + lifetime < now then
      expired = expired + 1
    else
      local first, pages = kind < 3 and 1 or 3, {}
      local seeds, leeches
      pages[first], seeds = look_up(s, first, endpoint, h)
      pages[first + 1], leeches = look_up(s, first + 1, endpoint, h)
      if seeds or leeches then
        known = known + 1
      elseif limit > 0 and is_full(s, first, pages, endpoint) then
        refused = refused + 1
      else
        add(s, kind, pages[kind], endpoint, time)
        grow(s, kind)
        added, oldest = added + 1, min(oldest, time)
      end
    end
  end
  if value or added > 0 or downloads > 0 then
    s.downloads = max(s.downloads, downloads)
    if not value then
      enter(s, place, added > 0 and oldest + lifetime + 1 or 0)
    elseif added > 0 then
      -- A sweep in the middle of the swarm begins again.
      s.kind = 0
      if s.kept then
        is_back(s, place, oldest + lifetime + 1)
      else
        set_due(s, place, function(due)
          return min(due, oldest + lifetime + 1)
        end)
      end
    end
    save(s)
  end
  commit(shard)
  return encode('<I4I4I4I4I4', now, added, known, expired, refused)
end

-- Removes peers older than `since` from a page. Returns the number of peers before, the number removed, and
-- the oldest time left. Times later than `now` become `now`.
local function expire(s, kind, page, since, now)
  local keys, numbers = read_page(s, kind, page)
  local width = WIDTH[kind]
  local count, oldest, gone, future = #keys / width, LARGEST, 0, false
  for at = 1, #numbers, 4 do
    local time = decode('<I4', numbers, at)
    if time < since then
      gone = gone + 1
    elseif time > now then
      future, oldest = true, min(oldest, now)
    elseif time < oldest then
      oldest = time
    end
  end
  if gone > 0 or future then
    local stay, times = {}, {}
    for i = 0, count - 1 do
      local time = decode('<I4', numbers, i * 4 + 1)
      if time >= since then
        stay[#stay + 1], times[#times + 1] = sub(keys, i * width + 1, (i + 1) * width), encode('<I4', min(time, now))
      end
    end
    write_page(s, kind, page, concat(stay), concat(times))
    s.count[kind] = s.count[kind] - gone
    local m = meta(s.shard)
    m[kind] = m[kind] - gone
  end
  return count, gone, oldest
end

-- Visits a swarm until the budget is used up. Returns the number of visited and of removed peers, and whether
-- all were visited. Begins at the last page, since a shrinking table loses its last page.
local function expire_swarm(s, since, now, budget)
  local looked, expired = 0, 0
  if s.kind == 0 then
    s.kind, s.page, s.oldest = 1, s.pages[1] - 1, LARGEST
  end
  while s.kind <= 4 do
    local kind = s.kind
    if looked >= budget and peers(s) > 0 then
      return looked, expired, false
    end
    local seen, gone, oldest = expire(s, kind, min(s.page, s.pages[kind] - 1), since, now)
    looked, expired, s.oldest = looked + seen, expired + gone, min(s.oldest, oldest)
    s.page = min(s.page, s.pages[kind] - 1) - 1
    shrink(s, kind)
    if s.page < 0 then
      s.kind = kind + 1
      s.page = kind < 4 and s.pages[kind + 1] - 1 or 0
    end
  end
  s.kind = 0
  return looked, expired, true
end

-- One step of expiry, in the swarms that are due, until about `HOLD` peers were visited.
local function sweep(keys, args)
  local now, lifetime, drops, budget = decode('<I4I4BI4', args[1])
  local shard = open(keys[1], nil, true)
  local visited, expired, removed, more = 0, 0, 0, 0
  if not shard.raw then
    return encode('<I4I4I4I4B', now, 0, 0, 0, 0)
  end
  now = advance(shard, now)
  local m = meta(shard)
  drops, budget = drops == 1, min(budget, HOLD)
  local kept_too = drops and m.kept > 0
  if m.swarms > 0 and (m.due <= now or kept_too) then
    local d = directory(shard)
    for page = m.pages - 1, 0, -1 do
      if kept_too or decode('<I4', get(shard, 'u'), page * 4 + 1) <= now then
        local names, dues = read_page(d, DIRECTORY, page)
        local changed = false
        for i = #names / 20 - 1, 0, -1 do
          local due = decode('<I4', dues, i * 4 + 1)
          if due <= now or (due == KEPT and drops) then
            if visited >= budget then
              more = 1
              break
            end
            local info_hash = sub(names, i * 20 + 1, i * 20 + 20)
            local s = swarm_of(shard, info_hash, get(shard, info_hash))
            if due == AGAIN then
              s.kind, changed = 0, true
              dues = with(dues, i * 4 + 1, AGAIN + 1)
            end
            local looked, gone, whole = expire_swarm(s, now - lifetime, now, budget - visited)
            visited, expired = visited + looked, expired + gone
            if not whole then
              save(s)
              more = 1
              break
            end
            visited, changed = visited + 1, true
            if peers(s) == 0 and (drops or s.downloads == 0) then
              drop(s)
              names, dues = without(names, i, 20), without(dues, i, 4)
              d.count[DIRECTORY] = d.count[DIRECTORY] - 1
              removed = removed + 1
            else
              if peers(s) > 0 then
                due = min(s.oldest, now) + lifetime + 1
              else
                if not s.kept then
                  s.kept = true
                  m.kept = m.kept + 1
                end
                due = KEPT
              end
              dues = with(dues, i * 4 + 1, due)
              save(s)
            end
          end
        end
        if changed then
          write_page(d, DIRECTORY, page, names, dues)
        end
        if more == 1 then
          break
        end
      end
    end
    shrink(d, DIRECTORY)
    settle(d)
    m.due = LARGEST
    local u = get(shard, 'u')
    for at = 1, m.pages * 4, 4 do
      m.due = min(m.due, (decode('<I4', u, at)))
    end
  end
  commit(shard)
  return encode('<I4I4I4I4B', now, visited, expired, removed, more)
end

-- The shard, the info hashes on the page of its directory for a hash, and the number of pages.
local function page_at(keys, args)
  local shard = open(keys[1])
  if not shard.raw then
    return shard, '', encode('<I4', 1)
  end
  local pages = meta(shard).pages
  local found = keys_of(directory(shard), DIRECTORY, page_of(decode('<I4', args[1]), pages))
  return shard, found, encode('<I4', pages)
end

local function names(keys, args)
  local _, found, pages = page_at(keys, args)
  return pages .. found
end

-- The same, with the counts of each.
local function walk(keys, args)
  local shard, found, pages = page_at(keys, args)
  local out = { pages }
  for at = 1, #found, 20 do
    local info_hash = sub(found, at, at + 19)
    out[#out + 1] = info_hash .. encode(STATS, stats(swarm_of(shard, info_hash, get(shard, info_hash))))
  end
  return concat(out)
end

-- The peers of a family on the pages for a hash: seeders, then leechers, each as the number of pages, the
-- number of peers, their endpoints and their times.
local function list(keys, args)
  local info_hash, first, h = decode('<c20BI4', args[1])
  local shard, value = open(keys[1], info_hash)
  if not value then
    return false
  end
  local s = swarm_of(shard, info_hash, value)
  local out = {}
  for kind = first, first + 1 do
    local endpoints, times = read_page(s, kind, page_of(h, s.pages[kind]))
    out[#out + 1] = encode('<I4I4', s.pages[kind], #times / 4) .. endpoints .. times
  end
  return concat(out)
end

-- `flags` say whether it is allowed when memory is full.
local function register(name, run, flags)
  redis.register_function({
    function_name = 'swarmkeep_LIBRARY_' .. name,
    callback = function(keys, args)
      if not call then
        bind()
      end
      local caller = args[#keys + 1]
      local flags = byte(caller, IDENTITY + 1)
      identity, confirmed, bounded = sub(caller, 1, IDENTITY), flags % 2 == CONFIRMED, flags % 4 >= BOUNDED
      return run(keys, args)
    end,
    flags = flags,
  })
end

register('announce', announce, {})
register('leave', announce, { 'allow-oom' })
register('restore', restore, {})
register('add_downloads', add_downloads, {})
register('remove', remove, { 'allow-oom' })
register('sweep', sweep, { 'allow-oom' })
register('scrape', scrape, { 'no-writes' })
register('names', names, { 'no-writes' })
register('walk', walk, { 'no-writes' })
register('list', list, { 'no-writes' })
