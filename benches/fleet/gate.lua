-- Two designs that Sluice does not have, for comparison. Both run in nginx, before the replicas.
--
-- `ask`: each request asks Redis before it is let in. Outstanding work of all replicas is one
-- number there; a request that would wait longer than its budget for its part of it is refused.
-- Takes what it added back at its end.
--
-- `count`: each replica counts the requests of a tenant that are inside, and learns every
-- SHARED_EVERY_S seconds what the others have counted. Refuses what is above the cap by that.
local host, port = "127.0.0.1", tonumber(os.getenv("REDIS_PORT"))
local cost, budget = tonumber(os.getenv("COST_MS")), tonumber(os.getenv("BUDGET_MS"))
local replicas = tonumber(os.getenv("REPLICAS"))
local cap, every = tonumber(os.getenv("CAP")), tonumber(os.getenv("SHARED_EVERY_S"))

local ASK = [[
local sum = tonumber(redis.call('GET', KEYS[1]) or '0')
if sum / tonumber(ARGV[3]) + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
redis.call('INCRBY', KEYS[1], ARGV[1])
return 1
]]

local function command(...)
    local words = { ... }
    local line = { "*" .. #words .. "\r\n" }
    for _, word in ipairs(words) do
        word = tostring(word)
        line[#line + 1] = "$" .. #word .. "\r\n" .. word .. "\r\n"
    end
    local socket = ngx.socket.tcp()
    socket:settimeout(1000)
    assert(socket:connect(host, port))
    assert(socket:send(line))
    local answer = assert(socket:receive("*l"))
    socket:setkeepalive(10000, 256)
    return answer
end

local function refuse(code)
    ngx.status = 429
    ngx.header["Retry-After"] = 4
    ngx.header["Content-Type"] = "application/json"
    local error = '{"message":"full","type":"overloaded_error","param":null,"code":"%s"}'
    ngx.say('{"error":' .. error:format(code) .. '}')
    return ngx.exit(429)
end

local gate = {}

function gate.ask()
    if command("EVAL", ASK, 1, "outstanding", cost, budget, replicas) ~= ":1" then
        return refuse("slo_miss")
    end
    ngx.ctx.admitted = true
end

function gate.asked()
    if ngx.ctx.admitted then
        -- Sockets are not to be had here; a timer may.
        ngx.timer.at(0, function() command("DECRBY", "outstanding", cost) end)
    end
end

-- Requests inside at each replica, and what each has heard of the others. nginx is one process.
local inside, heard = {}, {}
for place = 1, replicas do
    inside[place], heard[place] = 0, { at = 0, others = 0 }
end

function gate.count(place)
    local known, now = heard[place], ngx.now()
    if now - known.at >= every then
        known.at, known.others = now, 0
        for other = 1, replicas do
            if other ~= place then known.others = known.others + inside[other] end
        end
    end
    if inside[place] + known.others >= cap then
        return refuse("tenant_budget")
    end
    inside[place] = inside[place] + 1
    ngx.ctx.admitted = true
end

function gate.counted(place)
    if ngx.ctx.admitted then inside[place] = inside[place] - 1 end
end

return gate
