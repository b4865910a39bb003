"""Alerts for Prometheus and the page with what to do at each, from one list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ALERTS_FILE: Final = "deploy/prometheus/graphweft-alerts.yaml"
_PAGE: Final = "docs/alerts.md"
SITE: Final = "https://graphweft.example"
"""Where the documentation is served, for links of alerts. Nobody can own this name: docs/releasing.md says "
"when to set it."""
_COUNTED: Final = 'outcome=~"whole|partial|empty|expired", reason!~"no_rules|disabled"'
"""Context requests that have a claim to a whole context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. It fires after ``minutes`` in which ``query`` returns something."""

    name: str
    query: str
    minutes: int
    severity: Literal["critical", "warning"]
    summary: str
    """One sentence on what is the case."""
    steps: str
    """What to look at and to do, as Markdown."""


def _grew(series: str, by: str, window: str) -> str:
    """Return the query of a counter that has grown. It has no sample before its first count, from which it begins.

    A counter is also without one while nothing is scraped: then nobody knows what it was, and nothing is said of it.
    """
    total = f"sum by ({by})" if by else "sum"
    before = f"[1h] offset {window}"
    return (
        f"{total} (increase({series}[{window}])) > 0 or {total} ({series} unless "
        f"present_over_time({series}{before})) > 0 "
        f"and on () count(present_over_time(graphweft_build_info{before})) > 0"
    )


ALERTS: Final = (
    Alert(
        name="GraphweftServerUnavailable", minutes=2, severity="critical",
        query="min by (server) (graphweft_connection_up) == 0",
        summary="A role does not reach the server of the {{ $labels.server }}.",
        steps="Nothing is lost: workers wait, clients buffer, and responders answer with the last rows. Look whether "
        "the server runs, then whether the process reaches it, and whether its disk has room: `graphweft doctor` names "
        "what fails. Everything goes on by itself when the server is back.",
    ),
    Alert(
        name="GraphweftRoleStarts", minutes=10, severity="critical",
        query="graphweft_role_running == 0",
        summary="The role {{ $labels.role }} has been starting for 10 minutes.",
        steps="It loads and compiles rules, or waits for a server. Its log says which; rules with errors are named "
        "there, and by `graphweft lint`.",
    ),
    Alert(
        name="GraphweftEventsWait", minutes=5, severity="critical",
        query="max(graphweft_oldest_unapplied_seconds) > 60",
        summary="An event has waited for a minute or more to be applied.",
        steps="`graphweft status` says which partition is behind, and whether an app of it is parked. If all "
        "partitions are behind, the "
        "workers are too few or the graph server is slow: compare `graphweft_db_query_duration_seconds` with "
        "yesterday, and see "
        "[scaling](operations.md#scaling). If one is behind, look at [GraphweftAppParked](#graphweftappparked).",
    ),
    Alert(
        name="GraphweftLag", minutes=15, severity="warning",
        query="sum(max by (partition) (graphweft_partition_lag_events)) > 20000",
        summary="Workers have been behind by 20,000 events for 15 minutes.",
        steps="More events come than are applied. Compare the rates of `graphweft_events_read_total` and of what your "
        "clients send. Add workers, "
        "up to the number of partitions; one app that outgrows a worker can have the order `chat`: "
        "[scaling](operations.md#scaling).",
    ),
    Alert(
        name="GraphweftNoWorker", minutes=5, severity="critical",
        query='absent(graphweft_role_running{role="mutation"})',
        summary="No mutation worker is scraped: no event is applied.",
        steps="Start one, or look why Prometheus does not reach it. Lag, partitions and parked apps are what workers "
        "say, so their alerts are silent meanwhile.",
    ),
    Alert(
        name="GraphweftRoleGone", minutes=5, severity="critical",
        query='count by (role) (present_over_time(graphweft_role_running{role!~"mutation|console"}[3d])) '
        "unless on (role) graphweft_role_running",
        summary="The role {{ $labels.role }} is not scraped any more.",
        steps="Start a process of it, or look why Prometheus does not reach it. Without `injection` each context "
        "request times out, and without `gateway` requests over HTTP are refused. Without `archive` nothing is "
        "archived, so nothing is trimmed either and the bus fills. Without `memory` memories get no vectors, "
        "summaries, verdicts or facts. Alerts on figures of the role are silent meanwhile.\n\n"
        "The alert is about roles that were scraped in the last three days, so a role that you do not run has none. "
        "After three days it ends, also if the role is still gone. If you removed the role on purpose, silence the "
        "alert for that long. Workers have [an alert of their own](#graphweftnoworker); consoles have none, because "
        "no work waits for them.",
    ),
    Alert(
        name="GraphweftPartitionsUnowned", minutes=2, severity="critical",
        query="max(graphweft_partitions_unowned) > 0",
        summary="No worker holds {{ $value }} partitions: their events are not applied.",
        steps="After the death of a worker that lasts for `GRAPHWEFT_LEASE_S`. If it stays, workers cannot claim "
        "them: look for "
        "`partition_interrupted` and `partition_failed` in their logs.",
    ),
    Alert(
        name="GraphweftPartitionFault", minutes=1, severity="critical",
        query="max(graphweft_partition_faults) > 0",
        summary="A partition takes no events, or gives them wrong times.",
        steps="`graphweft status` says which and why. See [a partition that takes no "
        "events](operations.md#a-partition-that-takes-no-events).",
    ),
    Alert(
        name="GraphweftAppParked", minutes=10, severity="warning",
        query='sum by (reason) (graphweft_parked_apps{reason!~"needs_rebuild|other_graph|rules_lost"}) > 0',
        summary="An app has been behind the others for 10 minutes: {{ $labels.reason }}.",
        steps="`graphweft status` names the app. `slow`: its graph takes its time. `slow_writes`: its writes hold the "
        "graph server, see "
        "[slow writes](how-it-works.md#slow-writes). `dear_events`: its events take much of the worker's time, so "
        "look at its conditions. "
        "`unavailable`: its graph does not answer or refuses work.",
    ),
    Alert(
        name="GraphweftAppWaitsForYou", minutes=1, severity="critical",
        query='sum by (reason) (graphweft_parked_apps{reason=~"needs_rebuild|other_graph|rules_lost"}) > 0',
        summary="An app waits for an operator: {{ $labels.reason }}.",
        steps="`graphweft status` names the app. `needs_rebuild`: run `graphweft rebuild --app APP --swap`, see "
        "[graph servers that lost something](operations.md#graph-servers-that-lost-something). `other_graph`: the "
        "graph under its name is [another app's](how-it-works.md#the-graph-of-another-app). `rules_lost`: the bus has "
        "lost a rule set; "
        "`status` says which files to push again.",
    ),
    Alert(
        name="GraphweftDeadLetters", minutes=0, severity="warning",
        query=_grew("graphweft_dead_letters_total", "reason", "15m"),
        summary="Events had no effect in the last 15 minutes: {{ $labels.reason }}.",
        steps="`graphweft dlq list` shows them with their reason, and `graphweft status` counts them by cause. Mend "
        "the rule or the server, then "
        "run `graphweft dlq retry`. Nothing is lost meanwhile.",
    ),
    Alert(
        name="GraphweftQuarantine", minutes=0, severity="warning",
        query=_grew("graphweft_quarantines_total", "", "15m"),
        summary="A mutation was switched off because its rows failed.",
        steps="The worker's log names it (`mutation_quarantined`), and its dead letters have the reason "
        "`quarantined`. It is tried again by itself, "
        "less and less often. Mend the rule, push it, and retry the dead letters.",
    ),
    Alert(
        name="GraphweftWithoutEffect", minutes=15, severity="warning",
        query="sum(rate(graphweft_without_effect_total[15m])) / sum(rate(graphweft_events_read_total[15m])) > 0.05",
        summary="More than 5 % of events lack something that a rule needs.",
        steps="`graphweft status` says which rule lacks which value, or which workflow has no rules. Mend the rule or "
        "the sender.",
    ),
    Alert(
        name="GraphweftContextDegraded", minutes=10, severity="warning",
        query=f'sum(rate(graphweft_context_requests_total{{{_COUNTED.replace("whole|", "")}}}[10m])) '
        f"/ sum(rate(graphweft_context_requests_total{{{_COUNTED}}}[10m])) > 0.01",
        summary="More than 1 % of contexts lack something.",
        steps="Compare the reasons: `sum by (reason) (rate(graphweft_context_requests_total[10m]))`. The responder's "
        "log names rule and query "
        "(`block_missing`). `timeout`: see [GraphweftContextSlow](#graphweftcontextslow). `graph_unavailable`: see "
        "[GraphweftServerUnavailable](#graphweftserverunavailable).",
    ),
    Alert(
        name="GraphweftContextSlow", minutes=10, severity="warning",
        query="histogram_quantile(0.99, sum by (le) (rate(graphweft_context_budget_used_ratio_bucket[5m]))) > 0.9",
        summary="One of a hundred contexts takes more than 90 % of its budget.",
        steps="Compare `graphweft_db_query_duration_seconds` by kind with yesterday, and "
        "`graphweft_cache_requests_total`. Make the queries of the "
        "rules quicker, add a responder, or raise the budget of the clients.",
    ),
    Alert(
        name="GraphweftContextShed", minutes=5, severity="critical",
        query="sum(rate(graphweft_shed_total[5m])) > 0",
        summary="Responders refuse context requests because too many are there.",
        steps="Add a responder, or raise `GRAPHWEFT_MAX_REQUESTS` if its processor has room. One app gets at most "
        "half of a responder.",
    ),
    Alert(
        name="GraphweftBusMemory", minutes=5, severity="critical",
        query="max(graphweft_bus_memory_ratio) > 0.8",
        summary="The server of the bus uses {{ $value | humanizePercentage }} of its memory limit.",
        steps="With all of it in use it refuses writes. Trim what is archived ([archive](archive.md)), raise "
        "`maxmemory`, or set "
        "[quotas](quotas.md).",
    ),
    Alert(
        name="GraphweftArchiveBehind", minutes=15, severity="warning",
        query="max(graphweft_archive_behind_events) > 100000",
        summary="The archive has lacked 100,000 entries for 15 minutes.",
        steps="Look at the log of the archive role (`job_waits`), and whether the object store answers or the disk has "
        "room. Nothing is trimmed that is not archived.",
    ),
    Alert(
        name="GraphweftArchiveLost", minutes=0, severity="critical",
        query="max(graphweft_archive_lost_events) > 0",
        summary="Entries were trimmed before they were archived.",
        steps="Somebody else trims the bus: look for a retention of its server. These entries cannot be replayed; "
        "graphs keep their effect. To let replays go on without them, run `graphweft archive verify --accept-lost`.",
    ),
    Alert(
        name="GraphweftRulesLost", minutes=1, severity="critical",
        query="max(graphweft_rules_lost) > 0",
        summary="The bus has lost an active rule set.",
        steps="`graphweft status` says which, and how to restore it: check out the files of that time, and run "
        "`graphweft rules push`.",
    ),
    Alert(
        name="GraphweftLoopHeld", minutes=5, severity="warning",
        query="histogram_quantile(0.99, sum by (le, instance) (rate(graphweft_event_loop_lag_seconds_bucket[5m]))) > "
        "0.5",
        summary="The event loop of a process is held for half a second again and again.",
        steps="The machine has too little processor time, or a piece of work takes too long: "
        "`GRAPHWEFT_LOOP_LIMIT_MS=100` logs where.",
    ),
    Alert(
        name="GraphweftModelFails", minutes=10, severity="warning",
        query='sum by (kind) (rate(graphweft_model_calls_total{result!="ok"}[10m])) '
        "/ sum by (kind) (rate(graphweft_model_calls_total[10m])) > 0.2",
        summary="More than 20 % of the requests to models ({{ $labels.kind }}) fail.",
        steps="The log has status and error code. A wrong key or model needs you; jobs wait for anything else and go "
        "on.",
    ),
    Alert(
        name="GraphweftJobWaits", minutes=5, severity="warning",
        query="max by (group) (graphweft_job_waiting_seconds) > 300",
        summary="The job {{ $labels.group }} has waited for more than 5 minutes for what it needs.",
        steps="`graphweft status` says what it waits for and since when: a model that does not answer or refuses the "
        "key, or a graph that is behind. Mend that; the job goes on by itself, and no event is lost. Until then "
        "memories have no vectors, summaries, verdicts or facts, and searches find them by words.",
    ),
    Alert(
        name="GraphweftJobResultsLost", minutes=0, severity="warning",
        query=_grew('graphweft_job_skipped_total{reason=~"event_refused|events_lost"}', "group, reason", "15m"),
        summary="The job {{ $labels.group }} lost results: {{ $labels.reason }}.",
        steps="`graphweft status` counts them by app, and the log of the memory worker names them. `event_refused`: "
        "the bus takes no event of that size. `events_lost`: the bus was trimmed before the job read it: trim with "
        "`graphweft trim` only. What lacks a vector gets one by `graphweft memory embed --app APP`.",
    ),
    Alert(
        name="GraphweftBacklog", minutes=15, severity="warning",
        query="max by (group) (graphweft_backlog_events) > 10000",
        summary="The job {{ $labels.group }} has been behind by 10,000 events for 15 minutes.",
        steps="Its model is slow or unavailable: see `graphweft_model_call_duration_seconds`. Add memory workers, up "
        "to the number of partitions.",
    ),
    Alert(
        name="GraphweftEventsDropped", minutes=0, severity="critical",
        query=_grew('graphweft_events_published_total{result!="sent"}', "result", "5m"),
        summary="The gateway did not give events to the bus: {{ $labels.result }}.",
        steps="`dropped`: the bus was unavailable for longer than the buffer lasts. Its senders got an error and "
        "should send again. `rejected`: the "
        "log has the reason.",
    ),
    Alert(
        name="GraphweftMetricsIncomplete", minutes=10, severity="warning",
        query="sum(increase(graphweft_metrics_looks_failed_total[10m])) > 5",
        summary="The bus does not say in time what metrics ask for.",
        steps="See [GraphweftServerUnavailable](#graphweftserverunavailable). Other alerts may be missing meanwhile.",
    ),
)  # fmt: skip


def rules() -> str:
    """Return the file for Prometheus."""
    lines = [
        "# Alerts on graphweft's metrics, for `rule_files` of Prometheus. Thresholds are beginnings: set them to your "
        "own load.",
        f"# `make generate` writes this file from tools/alerts.py. What to do at each: {_PAGE}",
        "groups:",
        "  - name: graphweft",
        "    rules:",
    ]
    for each in ALERTS:
        lines += [
            f"      - alert: {each.name}",
            f"        expr: {_quoted(each.query)}",
            f"        for: {each.minutes}m",
            f"        labels: {{severity: {each.severity}}}",
            "        annotations:",
            f"          summary: {_quoted(each.summary)}",
            f"          runbook_url: {SITE}/alerts.html#{each.name.lower()}",
        ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page."""
    parts = [
        "# Alerts\n\n"
        "<!-- `make generate` writes this page from tools/alerts.py. -->\n\n"
        f"[{ALERTS_FILE.rpartition('/')[2]}](../{ALERTS_FILE}) has these alerts on [metrics](metrics.md), for "
        f"`rule_files` of Prometheus. Thresholds "
        "are beginnings: set them to your own load. The annotation `runbook_url` of each leads to its section "
        "here. Until a "
        f"site is published, its address is `{SITE}`: replace it by that of your copy of these pages, as the "
        "[chart](chart-values.md#metrics) does with `metrics.runbooks`.\n"
    ]
    parts += [
        f"\n## {each.name}\n\n{_for_people(each.summary)} *{each.severity.capitalize()}{_after(each.minutes)}.*\n\n"
        f"```promql\n{each.query}\n```\n\n{each.steps}\n"
        for each in ALERTS
    ]
    return "".join(parts)


def _after(minutes: int) -> str:
    return f", after {minutes} minutes" if minutes > 1 else ", after a minute" if minutes else ", at once"


def _for_people(summary: str) -> str:
    for label, word in (
        ("{{ $labels.server }}", "bus or of the graph"),
        ("The role {{ $labels.role }} is", "A role is"), ("{{ $labels.role }}", "of a process"),
        ("{{ $value | humanizePercentage }}", "more than 80 %"), ("{{ $value }}", "some"),
        (": {{ $labels.reason }}", ""), (": {{ $labels.result }}", ""), (" ({{ $labels.kind }})", ""),
        ("The job {{ $labels.group }}", "A job"),
    ):  # fmt: skip
        summary = summary.replace(label, word)
    return summary


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
