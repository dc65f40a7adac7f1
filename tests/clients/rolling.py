"""Official OpenAI clients that ask without pause until a line comes on standard input.

    python rolling.py URL [--clients 12]

Half of them stream. Prints one JSON object: how many requests were served whole, which were lost
and why, and how many answers of each status came over the wire. Clients retry as the SDK does.
"""

import argparse
import asyncio
import collections
import json
import sys

import openai


async def one(client, model, number, results, stop):
    while not stop.is_set():
        stream = number % 2 == 0
        try:
            answer = await client.completions.create(
                model=model,
                prompt=f"client {number}",
                max_tokens=60,
                stream=stream,
                extra_body={"ignore_eos": True},
            )
            if stream:
                reasons = [chunk.choices[0].finish_reason async for chunk in answer]
                complete = reasons[-1:] == ["length"]
            else:
                complete = answer.choices[0].finish_reason == "length"
            if not complete:
                raise RuntimeError("the answer is not whole")
            results["served"] += 1
        except Exception as error:  # whatever it is, the request is lost
            results["lost"].append(repr(error))


async def main(arguments):
    results = {"served": 0, "lost": [], "statuses": collections.Counter()}

    async def answered(response):
        results["statuses"][response.status_code] += 1

    transport = openai.DefaultAsyncHttpxClient(event_hooks={"response": [answered]})
    async with openai.AsyncOpenAI(
        base_url=f"{arguments.url}/v1", api_key="none", http_client=transport
    ) as client:
        model = (await client.models.list()).data[0].id
        stop = asyncio.Event()
        clients = [one(client, model, n, results, stop) for n in range(arguments.clients)]
        running = asyncio.gather(*clients)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        stop.set()
        await running
    print(json.dumps(results))


parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("--clients", type=int, default=12)
asyncio.run(main(parser.parse_args()))
