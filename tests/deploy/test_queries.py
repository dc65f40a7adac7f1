"""Every query, evaluated by a real Prometheus that scrapes real replicas under load."""

import asyncio
import contextlib
import pathlib
import socket
import subprocess
import time

import httpx
import pytest
import yaml
from conftest import URLS, adapter, alerts, of_kind, panels, triggers

OVERLOAD_S = 25


@contextlib.contextmanager
def prometheus(folder: pathlib.Path):
    """A Prometheus that scrapes the replicas each second, with the alerts; gives its address."""
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": of_kind("PrometheusRule")["spec"]["groups"]}))
    subprocess.run(["promtool", "check", "rules", rules], check=True, capture_output=True)
    targets = [url.removeprefix("http://") for url in URLS]
    labels = {"namespace": "sluice", "pod": "sluice"}
    job = {"job_name": "sluice", "static_configs": [{"targets": targets, "labels": labels}]}
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://{address}/-/ready").status_code == 200:
                    break
            time.sleep(0.1)
        yield f"http://{address}"
    finally:
        server.kill()
        server.wait()


async def overload():
    """More than the replicas can do, half a minute long; first attempts only."""
    body = {"prompt": list(range(50)), "max_tokens": 100, "ignore_eos": True}
    statuses = {}
    async with httpx.AsyncClient(timeout=60) as client:

        async def one(number):
            url = f"{URLS[number % len(URLS)]}/v1/completions"
            status = (await client.post(url, json=body)).status_code
            statuses[status] = statuses.get(status, 0) + 1

        tasks = []
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < OVERLOAD_S:
            due = int(now * 20 * len(URLS))
            tasks += [asyncio.create_task(one(n)) for n in range(len(tasks), due)]
            await asyncio.sleep(0.02)
        await asyncio.gather(*tasks)
    return statuses


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Asks Prometheus: before any request, and at the end of the overload."""
    with prometheus(tmp_path_factory.mktemp("prometheus")) as address:

        def ask(expr):
            reply = httpx.get(f"{address}/api/v1/query", params={"query": expr}).json()
            assert reply["status"] == "success", (expr, reply)
            return [float(sample["value"][1]) for sample in reply["data"]["result"]]

        for _ in range(100):
            if ask("count(inference_desired_replicas)") == [len(URLS)]:
                break
            time.sleep(0.2)
        everything = {**triggers(), **adapter()}
        idle = {name: ask(expr) for name, expr in everything.items()}
        statuses = asyncio.run(overload())
        time.sleep(1.5)
        busy = {name: ask(expr) for name, expr in everything.items()}
        busy_alerts = {
            name: ask(expr.replace("5m", "1m").replace("10m", "1m"))
            for name, expr in alerts().items()
        }
        charts = {name: ask(expr) for name, expr in panels()}
    return {
        "idle": idle,
        "busy": busy,
        "alerts": busy_alerts,
        "panels": charts,
        "statuses": statuses,
    }


def test_signals_are_there_before_the_first_request(world):
    assert world["idle"]["offered-replicas"] == [0]
    assert world["idle"]["desired-replicas"] == [1]
    for name, values in world["idle"].items():
        assert len(values) == 1 and values[0] in (0, 1), (name, values)


def test_offered_work_is_more_than_the_replicas_can_do(world):
    refused = world["statuses"].get(429, 0) / sum(world["statuses"].values())
    assert 0.2 < refused < 0.9, world["statuses"]
    # What was let in is what they can do, so the offered work is so many times that.
    (offered,) = world["busy"]["offered-replicas"]
    assert offered > 1.05 * len(URLS), world
    assert world["busy"]["offered-replicas"] == pytest.approx(
        world["busy"]["inference_admission_offered_replicas"], rel=0.1
    )
    (desired,) = world["busy"]["desired-replicas"]
    assert desired >= 2


def test_the_share_of_refusals_is_what_clients_saw(world):
    refused = world["statuses"].get(429, 0) / sum(world["statuses"].values())
    (ratio,) = world["busy"]["inference_admission_rejected_ratio"]
    assert ratio == pytest.approx(refused, abs=0.1)


def test_the_right_alerts_fire(world):
    firing = {name for name, values in world["alerts"].items() if values}
    assert {"SluiceSheds", "SluiceTooFewReplicas"} <= firing, world["alerts"]
    assert not {"SluiceIsGone", "SluiceEngineStalls"} & firing, world["alerts"]


def test_every_panel_shows_something(world):
    empty = [name for name, values in world["panels"].items() if not values]
    assert not empty
