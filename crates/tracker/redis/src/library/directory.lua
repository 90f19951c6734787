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

local function enter(s, due)
  local d = directory(s.shard)
  local page = page_of(s.place, d.pages[DIRECTORY])
  local keys, numbers = read_page(d, DIRECTORY, page)
  local first = #keys > 0 and decode('<I4', get(s.shard, 'u'), page * 4 + 1) or LARGEST
  put_page(d, DIRECTORY, page, keys .. s.prefix, numbers .. encode('<I4', due))
  set_page_due(d, page, min(first, due))
  d.count[DIRECTORY] = d.count[DIRECTORY] + 1
  grow(d, DIRECTORY)
  settle(d)
end

-- Sets the due time of a swarm. `change` returns the new time for the old one.
local function set_due(s, change)
  local d = directory(s.shard)
  local page = page_of(s.place, d.pages[DIRECTORY])
  local i = position(d, DIRECTORY, page, s.prefix)
  local due = change((decode('<I4', numbers_of(d, DIRECTORY, page), i * 4 + 1)))
  set_page_due(d, page, smallest(set_number(d, DIRECTORY, page, i, due)))
end

local function leave(s)
  local d = directory(s.shard)
  local page = page_of(s.place, d.pages[DIRECTORY])
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
local function advance(shard, now)
  local m = shard.m
  local newest = m and m.newest or shard.raw and decode('<I4', shard.raw) or 0
  if bounded and (now > newest or now < newest - APART) then
    local clock = number_of(call('TIME')[1])
    now = max(min(now, clock + APART), clock - APART)
    if newest > clock + APART then
      bring_back(shard, now)
      return now
    end
  end
  if now > newest then
    meta(shard).newest = now
    return now
  end
  return newest
end
