"""A crowd of official OpenAI clients that arrives within a second, each with its own two retries.

    python crowd.py URL [--hint server|none|SECONDS] [--clients 600] [--max-tokens 50]

Prints one JSON object: how many were served and how many gave up, over which time the first
attempts arrived, HTTP requests for each client, and when the last client was served or left.
With `--hint` the clients see no Retry-After, or a constant one, instead of the server's.
"""

import argparse
import asyncio
import json
import time

import openai


class Wire:
    """Watches what goes over the wire, and rewrites the hint."""

    def __init__(self, hint):
        self.hint = hint
        self.requests = 0
        self.first_attempts = []

    async def sent(self, request):
        self.requests += 1
        if request.headers.get("x-stainless-retry-count") == "0":
            self.first_attempts.append(time.monotonic())

    async def answered(self, response):
        if self.hint == "server" or response.status_code == 200:
            return
        for name in ("retry-after", "retry-after-ms"):
            response.headers.pop(name, None)
        if self.hint != "none":
            response.headers["retry-after"] = self.hint


async def one(client, number, begin, arguments):
    await asyncio.sleep(max(0.0, begin - time.monotonic()))
    try:
        await client.completions.create(
            model=arguments.model,
            prompt=f"client {number}",
            max_tokens=arguments.max_tokens,
            extra_body={"ignore_eos": True},
        )
    except openai.RateLimitError:
        return False
    return True


async def crowd(arguments):
    wire = Wire(arguments.hint)
    hooks = {"request": [wire.sent], "response": [wire.answered]}
    transport = openai.DefaultAsyncHttpxClient(event_hooks=hooks)
    async with openai.AsyncOpenAI(
        base_url=f"{arguments.url}/v1", api_key="none", max_retries=2, http_client=transport
    ) as client:
        arguments.model = (await client.models.list()).data[0].id
        wire.requests = 0
        wire.first_attempts.clear()
        begin = time.monotonic() + 0.1
        clients = (
            one(client, number, begin + number / arguments.clients, arguments)
            for number in range(arguments.clients)
        )
        served = sum(await asyncio.gather(*clients))
    return {
        "served": served,
        "gave_up": arguments.clients - served,
        "arrived_within_s": round(max(wire.first_attempts) - begin, 2),
        "requests_each": round(wire.requests / arguments.clients, 2),
        "took_s": round(time.monotonic() - begin, 1),
    }


parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--hint", default="server")
parser.add_argument("--clients", type=int, default=600)
parser.add_argument("--max-tokens", type=int, default=50)
print(json.dumps(asyncio.run(crowd(parser.parse_args()))))
