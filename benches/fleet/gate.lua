-- The design that Sluice does not have, for comparison: each request asks Redis before it is let
-- in. Outstanding work of all replicas is one number there; a request that would wait longer than
-- its budget for its part of it is refused. Takes what it added back at its end.
local host, port = "127.0.0.1", tonumber(os.getenv("REDIS_PORT"))
local cost, budget = tonumber(os.getenv("COST_MS")), tonumber(os.getenv("BUDGET_MS"))
local replicas = tonumber(os.getenv("REPLICAS"))

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

local gate = {}

function gate.ask()
    if command("EVAL", ASK, 1, "outstanding", cost, budget, replicas) == ":1" then
        ngx.ctx.admitted = true
        return
    end
    ngx.status = 429
    ngx.header["Retry-After"] = 4
    ngx.say('{"error":{"message":"full","type":"overloaded_error","param":null,"code":"slo_miss"}}')
    return ngx.exit(429)
end

function gate.done()
    if ngx.ctx.admitted then
        -- Sockets are not to be had here; a timer may.
        ngx.timer.at(0, function() command("DECRBY", "outstanding", cost) end)
    end
end

return gate
