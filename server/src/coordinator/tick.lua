-- One call of a replica, see `Call` and `Reply` in mod.rs; memory.rs says the same in Rust.
-- Keys: live (sorted set of members by expiry), state and leases (hashes by member), epoch.
-- Arguments: member, seq, epoch, life in ms, leaves, record, then for each claim
-- tenant (8 bytes), cap, held, want, demand. All keys have one hash tag.
local function tick(keys, args)
  local live, state, leases, epoch_key = keys[1], keys[2], keys[3], keys[4]
  local member, seq, life = args[1], tonumber(args[2]), tonumber(args[4])
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)

  -- Who is over goes. The own entry is no loss to anybody.
  local expires = redis.call('ZSCORE', live, member)
  local was_there = expires and tonumber(expires) > now
  local gone = 0
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', live, '-inf', now)) do
    redis.call('ZREM', live, name)
    redis.call('HDEL', state, name)
    redis.call('HDEL', leases, name)
    if name ~= member then gone = gone + 1 end
  end
  local others = redis.call('ZCARD', live)
  if was_there then others = others - 1 end

  local epoch = redis.call('GET', epoch_key)
  if not epoch then
    epoch = string.format('%.0f', now)
    redis.call('SET', epoch_key, epoch)
  end

  local last = was_there and redis.call('HGET', state, member)
  if last and struct.unpack('>I4', last, 2) >= seq then
    return { now, epoch, 0, 1, {}, {} }
  end

  local steady = was_there and args[3] == epoch and not (gone >= 2 and gone >= others)
  local grants = {}
  if args[5] == '1' then
    redis.call('ZREM', live, member)
    redis.call('HDEL', state, member)
    redis.call('HDEL', leases, member)
    steady = false
  else
    redis.call('ZADD', live, now + life, member)
    redis.call('HSET', state, member, args[6])
    if #args > 6 then
      local sums = {}
      local all = redis.call('HGETALL', leases)
      for i = 1, #all, 2 do
        if all[i] ~= member and redis.call('ZSCORE', live, all[i]) then
          for at = 1, #all[i + 1] - 15, 16 do
            local tenant = string.sub(all[i + 1], at, at + 7)
            sums[tenant] = (sums[tenant] or 0) + struct.unpack('>I4', all[i + 1], at + 8)
          end
        end
      end
      local own = {}
      for i = 7, #args, 5 do
        local tenant, cap, held = args[i], tonumber(args[i + 1]), tonumber(args[i + 2])
        local want = tonumber(args[i + 3])
        if not steady then want = math.min(want, held) end
        local free = math.max(cap - (sums[tenant] or 0), 0)
        local units = math.min(want, free)
        grants[#grants + 1] = units
        own[#own + 1] = tenant .. struct.pack('>I4I4', units, tonumber(args[i + 4]))
      end
      redis.call('HSET', leases, member, table.concat(own))
    else
      redis.call('HDEL', leases, member)
    end
  end

  -- A model that nobody serves any more leaves nothing behind.
  for i = 1, 4 do redis.call('PEXPIRE', keys[i], 4 * life) end

  local alive = redis.call('ZRANGE', live, 0, -1, 'WITHSCORES')
  local members, names = {}, {}
  for i = 1, #alive, 2 do names[#names + 1] = alive[i] end
  if #names > 0 then
    local records = redis.call('HMGET', state, unpack(names))
    local shares = redis.call('HMGET', leases, unpack(names))
    for i, name in ipairs(names) do
      local left = tonumber(alive[2 * i]) - now
      members[i] = { name, left, records[i] or '', shares[i] or '' }
    end
  end
  return { now, epoch, steady and 1 or 0, 0, grants, members }
end
