#!/usr/bin/env bash
# What checks server/deploy: the schemas of Kubernetes, KEDA and the Prometheus operator, and a
# Prometheus. Prints the Python interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
. .ci/lib.sh

PYTHON_PACKAGES=(
    kubernetes-validate==1.37.0 cloudcoil-models-keda==2.16.1.0
    cloudcoil-models-prometheus-operator==0.80.1.0 pyyaml==6.0.4
    httpx==0.28.1 pytest==9.2.0 pytest-timeout==2.4.0
)

need 'command -v promtool' prometheus
echo "$(venv deploy "${PYTHON_PACKAGES[@]}")/bin/python"
