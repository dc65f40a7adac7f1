"""Reads /metrics, for the scripts beside this file."""

import re

SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def scrape(path):
    """Samples of a Prometheus text by name and labels."""
    samples = {}
    for line in open(path):
        match = SAMPLE.match(line.strip())
        if match:
            labels = tuple(sorted(LABEL.findall(match[2] or "")))
            samples[match[1], labels] = float(match[3])
    return samples


def total(samples, name, **labels):
    """Sum of the samples called `name` that have these labels; there has to be one."""
    wanted = set(labels.items())
    found = [value for (known, at), value in samples.items() if known == name and wanted <= set(at)]
    if not found:
        raise SystemExit(f"no series {name} with {labels}")
    return sum(found)


def grown(before, after, name, **labels):
    """By how much a counter grew between two scrapes."""
    return total(after, name, **labels) - total(before, name, **labels)
