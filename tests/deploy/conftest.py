"""What the manifests, rules and the dashboard in server/deploy say, read once.

    SLUICE_URLS=http://127.0.0.1:8000 SLUICE_BIN=target/debug/sluice python -m pytest tests/deploy
"""

import json
import os
import pathlib
import subprocess

import httpx
import pytest
import yaml

DEPLOY = pathlib.Path(__file__).parents[2] / "server/deploy"
URLS = os.environ.get("SLUICE_URLS", "http://127.0.0.1:8000").split(",")


def documents(*folders):
    """Every YAML document of the folders, with the file it is from."""
    return [
        pytest.param(document, id=f"{folder}/{path.stem}-{document.get('kind')}")
        for folder in folders
        for path in sorted((DEPLOY / folder).glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]


def of_kind(kind):
    """The document of a kind in the base, of the server and not of Redis."""
    all_documents = (parameter.values[0] for parameter in documents("base"))
    return next(
        document
        for document in all_documents
        if document["kind"] == kind and document.get("metadata", {}).get("name") != "sluice-redis"
    )


def alerts():
    """Name and expression of each alert."""
    groups = of_kind("PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def triggers():
    """Name and query of each trigger of KEDA."""
    triggers = of_kind("ScaledObject")["spec"]["triggers"]
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}


def adapter():
    """Name and query of each rule of prometheus-adapter, as it asks for one namespace."""
    rules = yaml.safe_load((DEPLOY / "hpa/adapter-rules.yaml").read_text())["rules"]
    found = {}
    for rule in rules["external"] + rules["custom"]:
        series = rule["seriesQuery"].split("{")[0]
        found[rule["name"]["as"]] = (
            rule["metricsQuery"]
            .replace("<<.Series>>", series)
            .replace("<<.LabelMatchers>>", 'namespace="sluice"')
            .replace("<<.GroupBy>>", "namespace")
        )
    return found


def panels():
    """Title and expressions of each panel, with Grafana's variables filled in."""
    dashboard = json.loads((DEPLOY / "grafana/sluice.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield f"{panel['title']}/{target['refId']}", expr


@pytest.fixture(scope="session")
def exported():
    """Names of all series of a live server."""
    text = httpx.get(f"{URLS[0]}/metrics").text
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {line.split("{")[0].split(" ")[0] for line in lines}


@pytest.fixture(scope="session")
def help_text():
    """What the server says of its flags and commands."""
    sluice = os.environ["SLUICE_BIN"]
    texts = [subprocess.check_output([sluice, *command, "--help"], text=True)
             for command in ([], ["serve"], ["drain"])]
    return "\n".join(texts)
