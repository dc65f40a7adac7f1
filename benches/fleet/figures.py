"""Figures of benches/fleet.sh: what it needs to know before, and rows of its tables.

Usage: figures.py measured RUNS | reasons LABEL SCRAPE...
       | cap LABEL CAP PHASES RUNS LOG... | goals RUNS CAPS
"""

import collections
import datetime
import json
import re
import statistics
import sys

REFUSED = re.compile(r'^inference_admission_rejected_total\{(.*)\} (\S+)$')
REASON = re.compile(r'reason="([^"]*)"')

# A log line is written a little after its request has left; two such delays differ by less.
BLUR_S = 0.005


def lines(path):
    """Objects of a file with one JSON object a line; what else is in it is passed over."""
    with open(path) as file:
        for line in file:
            if line.startswith("{"):
                yield json.loads(line)


def measured(path):
    """Shell variables: requests/s of all replicas together, the target, what a request costs."""
    runs = list(lines(path))
    for run in runs:
        counts = run["counts"]
        if counts["completed"] != counts["sent"]:
            sys.exit(f"{run['label']}: {counts} in a closed loop without promises")
    unloaded = next(run["e2e_ms"]["p50"] for run in runs if run["concurrency"] == 1)
    loaded = [run for run in runs if run["concurrency"] > 1]
    capacity = sum(run["requests_per_s"] for run in loaded)
    print(f"CAPACITY={capacity:.1f}")
    print(f"SLO_MS={round(4 * unloaded)}")
    print(f"COST_MS={round(1e3 * len(loaded) / capacity)}")


def reasons(label, *paths):
    """A row of refusals by reason, summed over replicas."""
    sums = collections.Counter()
    for path in paths:
        with open(path) as file:
            for match in filter(None, map(REFUSED.match, file)):
                sums[REASON.search(match[1])[1]] += int(float(match[2]))
    named = ", ".join(f"{count} {name}" for name, count in sums.most_common() if count)
    print(f"| {label} | {named or 'none'} |")


def stays(paths):
    """When each request that was let in came and left, in seconds, from the logs of replicas."""
    for path in paths:
        for line in lines(path):
            if line.get("message") == "request ended":
                end = datetime.datetime.fromisoformat(line["timestamp"]).timestamp()
                yield end - line["e2e_ms"] / 1e3, end - BLUR_S


def course(found, begin, end):
    """(time, requests inside since then) from begin on; the last one is at end."""
    moves = [(come, 1) for come, _ in found] + [(gone, -1) for _, gone in found]
    inside, steps = 0, [(begin, 0)]
    for at, move in sorted(moves):
        inside += move
        if at <= begin:
            steps = [(begin, inside)]
        elif at < end:
            steps.append((at, inside))
    return steps + [(end, 0)]


def cap(label, most, phases, runs, *logs):
    """A row: highest use in each phase, how long above the cap, mean use, requests in time."""
    found, most = list(stays(logs)), int(most)
    highest, means, above = [], [], 0.0
    with open(phases) as file:
        for begin, end in (map(float, line.split()) for line in file):
            steps = course(found, begin, end)
            spans = [(inside, b - a) for (a, inside), (b, _) in zip(steps, steps[1:])]
            highest.append(max(inside for inside, _ in spans))
            means.append(sum(inside * span for inside, span in spans) / (end - begin))
            above += sum(span for inside, span in spans if inside > most)
    own = [run for run in lines(runs) if run["label"] == label]
    met = statistics.mean(run["goodput_requests_per_s"] for run in own)
    cells = [label, *highest, f"{above:.1f} s", *(f"{mean:.1f}" for mean in means), f"{met:.1f}"]
    print("| " + " | ".join(map(str, cells)) + " |")


def goals(runs, caps):
    """What a reader wants to know first."""
    goodput = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in lines(runs):
        goodput[run["multiple"]][run["label"]].append(run["goodput_tokens_per_s"])
    for load, found in sorted(goodput.items()):
        if not {"coordinator", "local only"} <= found.keys():
            continue
        pairs = zip(found["coordinator"], found["local only"])
        ratios = [coordinator / local for coordinator, local in pairs]
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"- Goodput with the coordinator over local only at {load:g}x, seed by seed: {each};"
              f" mean {statistics.mean(ratios):.3f} (goal: at least 1).")
    with open(caps) as file:
        for cells in (line.split("|") for line in file):
            if cells[1].strip() == "leases":
                print(f"- Highest use with leases: {max(map(int, cells[2:5]))}"
                      " (goal: never above the cap).")


if __name__ == "__main__":
    {"measured": measured, "reasons": reasons, "cap": cap, "goals": goals}[sys.argv[1]](
        *sys.argv[2:])
