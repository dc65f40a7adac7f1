"""The tables of classes.sh, from scrapes of /metrics and the load generator's lines.

Usage: classes.py step NAME DURATION BEFORE AFTER CHATS, a JSON line
       classes.py steps TPOT_MS STEPS
       classes.py isolation ALONE BESIDE BULK AFTER
"""

import json
import os
import sys

from scrape import grown, scrape, total

GOAL_TTFT_MS = 800
GOAL_TPOT = 1.03
GOAL_TOKENS = 0.9
GOAL_KEPT = 0.95
UNITS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def seconds(text):
    """The seconds of a duration such as 90s."""
    number = text.rstrip("hms")
    return float(number) * UNITS[text[len(number):]]


def last(path):
    """The last run in a file of the load generator."""
    return json.loads(open(path).readlines()[-1])


def share(part, whole):
    """A ratio as text; nothing of nothing is no ratio."""
    return f"{part / whole:.3f}" if whole else "-"


def table(head, rows):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def step(name, duration, before, after, chats):
    """The figures of one run with a backlog."""
    before, after = scrape(before), scrape(after)
    bulk = {"class": "throughput"}
    met = grown(before, after, "inference_slo_met_total", **bulk)
    missed = grown(before, after, "inference_slo_missed_total", **bulk)
    tokens = grown(before, after, "vllm:generation_tokens_total")
    run = last(chats) if os.path.exists(chats) else None
    return json.dumps({
        "name": name, "met": met, "ended": met + missed,
        "tokens_per_s": tokens / seconds(duration), "chats": run,
    })


def steps(budget, path):
    """All runs with a backlog, beside the backlog alone, which is the first of them."""
    runs = [json.loads(line) for line in open(path)]
    alone = runs[0]["tokens_per_s"]
    budget = float(budget)
    rows = []
    for run in runs:
        chats = ["-"] * 5
        if run["chats"]:
            counts, ttft = run["chats"]["counts"], run["chats"]["ttft_ms"]
            tpot = run["chats"]["tpot_ms"]
            chats = [f"{counts['completed']} of {counts['sent']}"]
            chats += [f"{ttft['p50']:.0f}", f"{ttft['p99']:.0f}"] if ttft else ["-", "-"]
            chats += [f"{tpot['p99']:.1f}", share(tpot["p99"], budget)] if tpot else ["-", "-"]
        rows.append([
            run["name"], *chats, round(run["tokens_per_s"]), share(run["tokens_per_s"], alone),
            share(run["met"], run["ended"]),
        ])
    head = [
        "rules", "chats answered", "TTFT p50, ms", "TTFT p99, ms", "TPOT p99, ms",
        f"of {budget:.0f} ms", "output tok/s", "of bulk alone", "bulk kept",
    ]
    goals = (
        f"Goals: TTFT p99 at most {GOAL_TTFT_MS} ms, TPOT p99 at most {GOAL_TPOT} of what is "
        f"promised, at least {GOAL_TOKENS} of the tok/s of bulk alone. \"Bulk kept\" are bulk "
        "requests that ended within what their class promises, over those that ended."
    )
    return table(head, rows) + "\n\n" + goals


def isolation(alone, beside, bulk, after):
    """The latency class alone and beside the throughput class, each at the capacity."""
    alone, beside, bulk, after = last(alone), last(beside), last(bulk), scrape(after)
    label = {"class": "throughput"}
    promised = total(after, "inference_admission_accepted_total", **label)
    broken = total(after, "inference_promises_broken_total", **label)
    displaced = total(after, "inference_promises_displaced_total", **label)
    head = [
        "latency in time, alone", "beside", "of alone", "bulk offered", "bulk in time",
        "promises to bulk", "kept", "displaced",
    ]
    at = "attainment_offered"
    row = [
        f"{alone[at]:.3f}", f"{beside[at]:.3f}", share(beside[at], alone[at]),
        bulk["counts"]["sent"], f"{bulk[at]:.3f}",
        round(promised), share(promised - broken, promised), share(displaced, promised),
    ]
    goals = (
        f"Goal: at least {GOAL_KEPT} of the promises to bulk work kept. \"In time\" are requests "
        "that met their SLO over offered ones, as clients saw it."
    )
    return table(head, [row]) + "\n\n" + goals


COMMANDS = {"step": step, "steps": steps, "isolation": isolation}
print(COMMANDS[sys.argv[1]](*sys.argv[2:]))
