"""The table of tenants.sh, from what became of each request. As `sluice-sim tenants` counts.

Usage: tenants.py header | words | row RULES PROFILE RESERVED ALONE STEADY BURST
"""

import json
import sys
import tomllib

WINDOW_S = 10
NAMES = {
    "tenants": "tenants", "gate": "gate without tenants", "vtc": "vtc, no admission",
}
COLUMNS = [
    "rules", "steady alone in time", "steady in time", "lost of those in time alone",
    "bursting in time", "Jain, mean", "Jain, least", "service difference, s",
]
WORDS = (
    "\"Lost\" are requests of the steady tenant that were in time when it was alone on the device "
    "and not beside the burst. Jain's index is of work in time over what each was entitled to "
    "(what it asked for or its share, whichever is less), in windows of ten seconds of arrival, "
    "the first and the last left out. The service difference is the largest difference of what "
    "the two were served over any time, in seconds of the device. Goals: nothing lost, Jain's "
    "index 1."
)


def requests(path, cost):
    """(arrival, end, device time, met, completed) of each request, in seconds."""
    found = []
    for line in open(path):
        request = json.loads(line)
        end = request["at_s"] + request["ended_ms"] / 1e3
        took = work(request, cost)
        found.append((request["at_s"], end, took, request["met"], request["completed"]))
    return found


def work(request, cost):
    """Device time that a request adds to a busy device."""
    prompt, output = request["prompt_tokens"], request["max_tokens"]
    prefill = cost["per_prefill_token_ns"] * prompt + cost["per_prefill_span_ps"] * prompt**2 / 1e3
    context = prompt + output // 2
    token = cost["per_seq_ns"] + cost["per_context_token_ps"] * context / 1e3
    return (prefill + token * (output - 1)) / 1e9


def jain(steady, burst, reserved):
    """Mean and least index over the windows."""
    windows = {}
    for place, tenant in enumerate((steady, burst)):
        for at, _, took, met, _ in tenant:
            window = windows.setdefault(int(at // WINDOW_S), [[0, 0], [0, 0]])
            window[place][0] += took
            window[place][1] += took if met else 0
    most = WINDOW_S * reserved
    indices = []
    for number in sorted(windows)[1:-1]:
        got = [min(served / max(min(asked, most), 1e-9), 1) for asked, served in windows[number]]
        squares = sum(x * x for x in got)
        indices.append(sum(got) ** 2 / (2 * squares) if squares else 0)
    if not indices:
        return "-", "-"
    return f"{sum(indices) / len(indices):.3f}", f"{min(indices):.3f}"


def difference(steady, burst):
    """How far apart the service of the two drifts over any time while requests come."""
    served = [(end, took) for _, end, took, _, done in steady if done]
    served += [(end, -took) for _, end, took, _, done in burst if done]
    until = max(at for at, *_ in steady + burst)
    total, least, most = 0, 0, 0
    for end, took in sorted(served):
        if WINDOW_S < end < until:
            total += took
            least, most = min(least, total), max(most, total)
    return most - least


def row(rules, profile, reserved, alone, steady, burst):
    """One line of the table."""
    cost = tomllib.load(open(profile, "rb"))["cost"]
    alone, steady, burst = (requests(path, cost) for path in (alone, steady, burst))
    if [at for at, *_ in alone] != [at for at, *_ in steady]:
        raise SystemExit("the steady tenant sent other requests alone: no comparison")
    lost = sum(1 for one, two in zip(alone, steady) if one[3] and not two[3])
    met = [sum(1 for request in tenant if request[3]) for tenant in (alone, steady, burst)]
    return [
        NAMES[rules], f"{met[0] / len(alone):.3f}", f"{met[1] / len(steady):.3f}",
        f"{lost} of {met[0]}", f"{met[2] / len(burst):.3f}",
        *jain(steady, burst, float(reserved)), f"{difference(steady, burst):.1f}",
    ]


def main(arguments):
    if arguments == ["header"]:
        print("| " + " | ".join(COLUMNS) + " |")
        print("|---" * len(COLUMNS) + "|")
    elif arguments == ["words"]:
        print(WORDS)
    else:
        print("| " + " | ".join(row(*arguments[1:])) + " |")


main(sys.argv[1:])
