-- One refused chat request after the other: see storm.sh.
local words = tonumber(os.getenv("WORDS"))
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["x-request-deadline-ms"] = os.getenv("DEADLINE_MS")
wrk.body = '{"messages":[{"role":"user","content":"' .. string.rep("word ", words)
    .. '"}],"max_tokens":64}'

local threads = {}

function setup(thread)
    table.insert(threads, thread)
    thread:set("refused", 0)
    thread:set("others", 0)
end

function response(status)
    if status == 429 then refused = refused + 1 else others = others + 1 end
end

function done(summary)
    local refused, others = 0, 0
    for _, thread in ipairs(threads) do
        refused = refused + thread:get("refused")
        others = others + thread:get("others")
    end
    io.write(string.format("%.0f refusals a second, %d other answers, %d errors\n",
        refused / (summary.duration / 1e6), others,
        summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
