-- The functions that are called.

local STATS = '<I4I4I4'

local function stats(s)
  local count = s.count
  return count[1] + count[3], count[2] + count[4], s.downloads
end

-- Stores that the announcer joins, leaves or changes its role. Returns the changes and the number of evicted
-- peers.
local function move(s, endpoint, h, now, lifetime)
  local kind, page, flags = my_kind, my_page, my_flags
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
    set_downloads(s, s.downloads + 1)
  end
  if s.value == '' then
    changes = changes + CREATED
    enter(s, now + lifetime + 1)
  elseif s.kept then
    is_back(s, now + lifetime + 1)
  end
  return changes, evicted
end

-- Appends peers for the announcer to the answer. Returns the number of IPv4 peers.
local function hand_out(s, want, room4, room6)
  local kind, flags = my_kind, my_flags
  local count, seeders_too = s.count, kind % 2 == 0 or flags >= SEEDERS_TOO
  local e4, e6 = 0, 0
  if band(flags, WANTS_V4) ~= 0 then
    e4 = count[2] + (seeders_too and count[1] - (kind < 3 and 1 or 0) or 0)
  end
  if band(flags, WANTS_V6) ~= 0 then
    e6 = count[4] + (seeders_too and count[3] - (kind > 2 and 1 or 0) or 0)
  end
  local n4, n6 = share(want, min(e4, room4), min(e6, room6))
  select(s, seeders_too and 1 or 2, 2, n4, e4)
  select(s, seeders_too and 3 or 4, 4, n6, e6)
  return n4
end

-- One announce. Appends its answer, which contains its number of pieces.
local function announce_one(shards, key, request)
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
      n = n + 1
      out[n] = encode('<I2BI4I4I4I4BI2', 0, value, 0, 0, 0, 0, 0, 0)
      return
    end
    shards[key] = shard
  end
  now = advance(shard, now)
  local stopped = band(flags, STOPPED) ~= 0
  if stopped and not value then
    n = n + 1
    out[n] = encode('<I2BI4I4I4I4BI2', 0, 0, 0, 0, 0, now, 0, 0)
    return
  end

  local s = swarm_of(shard, info_hash, value, limit)
  s.place = place
  local first = band(flags, IPV6) ~= 0 and 3 or 1
  local kind = flags % 2 == SEEDER and first or first + 1
  my_flags, my_kind = flags, kind
  my_page, mine = look_up(s, kind, endpoint, h)
  local changes, evicted = REFRESHED, 0
  if mine and not stopped then
    set_number(s, kind, my_page, mine, now)
  else
    changes, evicted = move(s, endpoint, h, now, lifetime)
  end

  local head, n4 = n + 1, 0
  n = head
  if want > 0 and not stopped then
    seed(a, b)
    n4 = hand_out(s, want, room4, room6)
  end

  if changes ~= REFRESHED then
    for k = first, first + 1 do
      grow(s, k)
      shrink(s, k)
    end
    if changes == LEFT and peers(s) == 0 then
      set_due(s, function()
        return 0
      end)
    end
    save(s)
  end
  local complete, incomplete, downloads = stats(s)
  out[head] = encode('<I2BI4I4I4I4BI2', n - head, changes, complete, incomplete, downloads, now, evicted, n4)
end

-- Announces, in order.
local function announce(keys, args)
  local shards = {}
  out, n = {}, 0
  for i = 1, #keys do
    announce_one(shards, keys[i], args[i])
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

-- A swarm, if it is there, its shard, and the number behind its info hash.
local function known(keys, args)
  local info_hash, number = decode('<c20I4', args[1])
  local shard, value = open(keys[1], info_hash)
  return value and swarm_of(shard, info_hash, value), shard, number
end

local function remove(keys, args)
  local s, shard, place = known(keys, args)
  if not s then
    return false
  end
  s.place = place
  drop(s)
  leave(s)
  commit(shard)
  return encode(STATS, stats(s))
end

local function add_downloads(keys, args)
  local s, shard, earlier = known(keys, args)
  if not s then
    return false
  end
  set_downloads(s, s.downloads + earlier)
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
  s.place = place
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
    set_downloads(s, max(s.downloads, downloads))
    if not value then
      enter(s, added > 0 and oldest + lifetime + 1 or 0)
    elseif added > 0 then
      -- A sweep in the middle of the swarm begins again.
      s.kind = 0
      if s.kept then
        is_back(s, oldest + lifetime + 1)
      else
        set_due(s, function(due)
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
    put_page(s, kind, page, concat(stay), concat(times))
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
