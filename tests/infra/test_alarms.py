"""The alarms of the packaged stack: what they look at is there, and someone is told."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from chalicelib import telemetry
from scripts.costs.estimate import ALARMED
from tests.support.package import Package


@pytest.fixture
def alarms(dev_package: Package) -> dict[str, dict[str, Any]]:
    return {
        name: one["Properties"]
        for name, one in dev_package.template["Resources"].items()
        if one["Type"] == "AWS::CloudWatch::Alarm"
    }


def _metrics(alarm: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each metric that an alarm reads, with its dimensions."""
    if "MetricName" in alarm:
        yield alarm
    for one in alarm.get("Metrics", []):
        if "MetricStat" in one:
            yield one["MetricStat"]["Metric"]


def test_alarms_look_at_all_that_fails_silently(alarms: dict[str, dict[str, Any]]) -> None:
    """Turns would fail, wait or be lost, and connections be held, until a user complains."""
    looked_at = {one["MetricName"] for alarm in alarms.values() for one in _metrics(alarm)}
    assert looked_at >= {
        *("TurnsFailed", "PassesFailed"),
        *("ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"),
        *("5XXError", "ApiThrottled", "Errors", "Throttles", "Duration", "Invocations"),
        *("DatabaseConnectionsCurrentlySessionPinned", "ACUUtilization"),
    }


def test_alarms_tell_someone_by_a_sealed_topic(
    dev_package: Package, alarms: dict[str, dict[str, Any]]
) -> None:
    """An alarm would go off and nobody hear it: CloudWatch cannot use the key AWS has for SNS."""
    for name, alarm in alarms.items():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": "Alarms"}], name
        assert dev_package.text(alarm["AlarmName"]).startswith("palimpsest-dev-")
        assert alarm["AlarmDescription"].endswith(".")
    assert dev_package.properties("Alarms")["KmsMasterKeyId"] == {"Ref": "AlarmsKey"}
    statements = dev_package.properties("AlarmsKey")["KeyPolicy"]["Statement"]
    (sealing,) = [one for one in statements if one["Principal"].get("Service")]
    assert sealing["Principal"]["Service"] == "cloudwatch.amazonaws.com"
    assert set(sealing["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey*"}
    assert dev_package.properties("AlarmsSubscription")["Endpoint"] == {"Ref": "AlarmEmail"}


def test_alarms_on_own_metrics_read_what_is_printed(
    dev_package: Package,
    alarms: dict[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An alarm on a metric that nobody sends is silent for ever."""
    monkeypatch.setattr(telemetry, "_emit", True)
    monkeypatch.setattr(telemetry, "_NAMESPACE", "Palimpsest/dev")
    telemetry.record_turn(duration=1, first_token=1, failed=True, tokens_in=1, tokens_out=1)
    telemetry.record_pass(duration=1, failed=True, chunks=1, found=1)
    printed = set()
    for line in capsys.readouterr().out.splitlines():
        told = json.loads(line)
        (about,) = told["_aws"]["CloudWatchMetrics"]
        ((dimension,),) = about["Dimensions"]
        for metric in about["Metrics"]:
            printed.add((about["Namespace"], metric["Name"], dimension, told[dimension]))
    (counted,) = dev_package.properties("ApiThrottledCount")["MetricTransformations"]
    printed.add((dev_package.text(counted["MetricNamespace"]), counted["MetricName"], "", ""))
    for function in dev_package.functions():
        namespace = dev_package.variables(function)["POWERTOOLS_METRICS_NAMESPACE"]
        assert dev_package.text(namespace) == "Palimpsest/dev"
    for alarm in alarms.values():
        for one in _metrics(alarm):
            if isinstance(one["Namespace"], dict):
                ((dimension, value),) = [
                    (each["Name"], each["Value"]) for each in one.get("Dimensions", [])
                ] or [("", "")]
                namespace = dev_package.text(one["Namespace"])
                assert (namespace, one["MetricName"], dimension, value) in printed


def test_slow_functions_are_held_against_their_timeouts(
    dev_package: Package, alarms: dict[str, dict[str, Any]]
) -> None:
    """A timeout that was changed would be reached before the alarm goes off, or never."""
    expression, *metrics = alarms["FunctionsSlow"]["Metrics"]
    for one in metrics:
        ((dimension),) = one["MetricStat"]["Metric"]["Dimensions"]
        timeout = dev_package.properties(dimension["Value"]["Ref"])["Timeout"]
        assert f"{one['Id']} / {timeout * 1000}" in expression["Expression"]
    watched = {one["MetricStat"]["Metric"]["Dimensions"][0]["Value"]["Ref"] for one in metrics}
    assert watched == set(dev_package.functions()) - {"Migrate", "Bootstrap"}


def test_turns_that_a_worker_has_are_not_taken_for_waiting(
    alarms: dict[str, dict[str, Any]],
) -> None:
    """Every turn of more than five minutes would wake someone: it stays in its queue till then."""
    expression, *metrics = alarms["TurnsWaiting"]["Metrics"]
    assert expression["Expression"] == "IF(visible > 0, age, 0)"
    assert {one["Id"]: one["MetricStat"]["Metric"]["MetricName"] for one in metrics} == {
        "age": "ApproximateAgeOfOldestMessage",
        "visible": "ApproximateNumberOfMessagesVisible",
    }


def test_bill_counts_what_alarms_look_at(alarms: dict[str, dict[str, Any]]) -> None:
    """An estimate that is a third of what the alarms cost: each metric of one is paid for."""
    assert sum(len(list(_metrics(alarm))) for alarm in alarms.values()) == ALARMED
