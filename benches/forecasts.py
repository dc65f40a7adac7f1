"""A row of the forecast table, from two scrapes of /metrics and the load generator's last line.

Usage: forecasts.py header | LENGTHS ADMISSION BURSTINESS LOAD BEFORE AFTER RUNS
"""

import json
import sys

from scrape import scrape

COLUMNS = [
    "lengths and SLO", "admission", "arrivals", "load",
    "offered", "met / offered", "met / admitted", "goodput tok/s",
    "E2E, carried", "TTFT, carried", "E2E, at admission", "TTFT, at admission",
    "margin", "coverage",
]


def buckets(before, after, quantity, basis):
    """(lower edge, upper edge, count) of the ratios seen between two scrapes."""
    counts = []
    for (name, labels), value in after.items():
        labels = dict(labels)
        if name != "inference_forecast_ratio_bucket" or labels["class"] != "latency":
            continue
        if (labels["quantity"], labels["basis"]) == (quantity, basis):
            key = (name, tuple(sorted(labels.items())))
            counts.append((float(labels["le"]), value - before.get(key, 0)))
    counts.sort()
    lower, below = 0.0, 0.0
    for upper, up_to in counts:
        yield lower, upper, int(up_to - below)
        lower, below = upper, up_to


def errors(before, after, quantity, basis):
    """Median and 90th percentile of |ratio - 1|; evenly spread within each bucket."""
    found = []
    for lower, upper, count in buckets(before, after, quantity, basis):
        upper = min(upper, 2 * lower)
        found += [abs(lower + (upper - lower) * (i + 0.5) / count - 1) for i in range(count)]
    if not found:
        return "-"
    found.sort()
    median, most = found[len(found) // 2], found[len(found) * 9 // 10]
    return f"{100 * median:.1f} / {100 * most:.0f} %"


def gauge(after, name):
    value = after.get((name, (("class", "latency"),)))
    return "-" if value is None else f"{value:.2f}"


def row(lengths, admission, burstiness, load, before, after, runs):
    before, after = scrape(before), scrape(after)
    run = json.loads(open(runs).readlines()[-1])
    share = lambda value: "-" if value is None else f"{value:.3f}"
    return [
        lengths,
        admission,
        "Poisson" if float(burstiness) == 1 else f"bursty (CV {burstiness})",
        load,
        run["counts"]["sent"],
        share(run["attainment_offered"]),
        share(run["attainment_admitted"]),
        round(run["goodput_tokens_per_s"]),
        *(errors(before, after, quantity, basis)
          for basis in ("carried", "admission") for quantity in ("e2e", "ttft")),
        gauge(after, "inference_admission_margin_ratio"),
        gauge(after, "inference_forecast_coverage_ratio"),
    ]


def main(arguments):
    if arguments == ["header"]:
        print("| " + " | ".join(COLUMNS) + " |")
        print("|---" * len(COLUMNS) + "|")
    else:
        print("| " + " | ".join(str(cell) for cell in row(*arguments)) + " |")


main(sys.argv[1:])
