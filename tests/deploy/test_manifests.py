"""The manifests are what Kubernetes, KEDA and the Prometheus operator accept, and name only what
the server has."""

import os
import re
import subprocess
import tomllib

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor
from conftest import DEPLOY, adapter, alerts, documents, of_kind, panels, triggers

OPERATORS = {
    "ScaledObject": ScaledObject,
    "PrometheusRule": PrometheusRule,
    "ServiceMonitor": ServiceMonitor,
}
# Kubernetes' own kinds; kustomize's has no published schema in a package.
VERSION = "1.32"
EXPRESSIONS = {**alerts(), **triggers(), **adapter(), **dict(panels())}


@pytest.mark.parametrize("document", documents("base", "hpa", "gpu"))
def test_documents_fit_their_schemas(document):
    kind = document.get("kind")
    if kind is None or kind == "Kustomization":
        return
    if kind in OPERATORS:
        read = OPERATORS[kind].model_validate(document)
        # A field that the model does not know is lost on the way.
        assert read.model_dump(by_alias=True, exclude_unset=True, mode="json") == document
        return
    if "selector" not in document.get("spec", {}) and kind == "Deployment":
        return  # a patch
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_kustomizations_list_exactly_the_files_beside_them():
    for folder in ("base", "gpu"):
        kustomization = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())
        named = set(kustomization.get("resources", []))
        named |= {patch["path"] for patch in kustomization.get("patches", [])}
        for name in named:
            assert (DEPLOY / folder / name).exists(), f"{folder}/{name}"
        files = {path.name for path in (DEPLOY / folder).glob("*.yaml")} - {"kustomization.yaml"}
        assert files <= named, files - named


def test_everything_that_is_selected_is_there():
    server = of_kind("Deployment")["spec"]["template"]
    labels = server["metadata"]["labels"]
    service = of_kind("Service")
    assert service["spec"]["selector"].items() <= labels.items()
    budget = of_kind("PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    monitor = of_kind("ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ports = {port["name"] for port in service["spec"]["ports"]}
    assert monitor["endpoints"][0]["port"] in ports
    assert of_kind("ScaledObject")["spec"]["scaleTargetRef"]["name"] == "sluice"


def test_times_of_the_end_fit_into_the_grace_period():
    config = tomllib.loads(of_kind("ConfigMap")["data"]["sluice.toml"])
    seconds = lambda text: int(text.removesuffix("s"))
    pod = of_kind("Deployment")["spec"]["template"]["spec"]
    spent = seconds(config["shutdown_delay"]) + seconds(config["grace"])
    assert spent + 5 <= pod["terminationGracePeriodSeconds"]
    assert pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1] == "drain"


def test_flags_and_settings_exist(help_text, tmp_path):
    for document in documents("base", "gpu"):
        spec = document.values[0].get("spec", {}).get("template", {}).get("spec", {})
        for container in spec.get("containers", []):
            if container["name"] != "sluice":
                continue
            command = container.get("args", [])
            for word in command:
                if word.startswith("--"):
                    assert re.search(rf"{word}[ ,\n]", help_text), word
    path = tmp_path / "sluice.toml"
    path.write_text(of_kind("ConfigMap")["data"]["sluice.toml"])
    command = [os.environ["SLUICE_BIN"], "serve", "--config", path, "--print-config"]
    assert "shutdown_delay" in subprocess.check_output(command, text=True)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_series_that_is_named_is_exported(name, exported):
    named = set(re.findall(r"\b(?:inference|vllm|http)[a-z0-9_:]*", EXPRESSIONS[name]))
    assert named and named <= exported, named - exported


def test_hpas_ask_for_what_the_adapter_has():
    for path in ("recommended", "two-metrics"):
        hpa = yaml.safe_load((DEPLOY / f"hpa/{path}.yaml").read_text())
        for metric in hpa["spec"]["metrics"]:
            kind = metric["type"].lower()
            assert metric[kind]["metric"]["name"] in adapter()
