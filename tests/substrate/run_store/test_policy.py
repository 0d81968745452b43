"""Policies: what is recorded of a run, and how long it is kept."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest

from substrate.run_store.policy import MAX_DAYS, MODES, OUTCOMES, RecordPolicy, RetentionPolicy
from substrate.settings import Settings, SettingsError, read_settings

DAY_MS = 24 * 3600 * 1000


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SUBSTRATE_")]:
        monkeypatch.delenv(name)


def record_policy(**values: Any) -> RecordPolicy:
    return RecordPolicy.of(Settings(**values))


def test_everything_is_recorded_and_kept_for_a_week_by_default() -> None:
    assert record_policy().mode("bash.execute", None) == "all"
    retention = RetentionPolicy.of(Settings())
    assert {retention.days("bash.execute", outcome) for outcome in OUTCOMES} == {7.0}
    assert retention.max_bytes == 1_000_000_000


@pytest.mark.parametrize(("most", "rule", "declared"), [*product(MODES, MODES, (*MODES, None))])
def test_the_strictest_of_setting_rule_and_declaration_applies(
    most: str, rule: str, declared: str | None
) -> None:
    policy = record_policy(record=most, record_methods=(f"bash.*={rule}",))
    for _ in range(2):  # the second is cached
        assert policy.mode("bash.execute", declared) == strictest(most, rule, declared)
        assert policy.mode("chat.send", declared) == strictest(most, declared)


def strictest(*modes: str | None) -> str:
    return next(mode for mode in ("off", "metadata", "all") if mode in modes)


def test_the_first_matching_rule_applies() -> None:
    policy = record_policy(record_methods=("bash.*=all", "chat=metadata", "*=off"))
    modes = [policy.mode(name) for name in ("bash.execute", "chat.send", "arbor.get")]
    assert modes == ["all", "metadata", "off"]
    assert not policy.is_off
    assert record_policy(record="off", record_methods=("*=all",)).is_off


def test_a_project_file_cannot_record_more_than_the_environment_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUBSTRATE_RECORD", "metadata")
    content = b"record = 'all'\nrecord_methods = ['*=all', 'bash.*=off']"
    policy = RecordPolicy.of(read_settings({}, content).settings)
    assert policy.mode("bash.execute") == "metadata"
    content = b"record = 'off'\nrecord_methods = ['bash.*=off']"
    assert RecordPolicy.of(read_settings({}, content).settings).mode("bash.execute") == "off"


def test_rules_apply_after_any_number_of_methods() -> None:
    policy = record_policy(record_methods=("a.*=off",))
    retention = RetentionPolicy.of(Settings(history_methods=("a.*=1",)))
    for number in range(20_000):
        policy.mode(f"b.{number}")
        retention.days(f"b.{number}", "succeeded")
    assert policy.mode("a.x") == "off"
    assert retention.days("a.x", "succeeded") == 1


def test_runs_are_kept_by_method_and_outcome() -> None:
    rules = ("health.*=0", "bash@failed=60", "*@failed=30", "*@cancelled=30.5")
    policy = RetentionPolicy.of(Settings(history_days=2, history_methods=rules))
    assert policy.days("health.check", "failed") == 0
    assert policy.days("bash.execute", "failed") == 60
    assert policy.days("bash.execute", "succeeded") == 2
    assert policy.days("arbor.get", "failed") == 30
    assert policy.days("arbor.get", "cancelled") == 30.5


def test_a_run_is_kept_at_least_as_long_as_was_promised() -> None:
    policy = RetentionPolicy.of(Settings(history_days=0.5))
    assert policy.kept_until_ms("a.b", "succeeded", 1000) == 1000 + DAY_MS // 2
    assert policy.kept_until_ms("a.b", "succeeded", 1000, DAY_MS) == 1000 + DAY_MS
    assert policy.kept_until_ms("a.b", "succeeded", 1000, 5) == 1000 + DAY_MS // 2
    longest = RetentionPolicy.of(Settings(history_days=MAX_DAYS))
    assert longest.kept_until_ms("a.b", "succeeded", 2**42) < 2**63


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("record", "some", "invalid value 'some' for record. Allowed: one of all, metadata, off."),
        ("record_methods", "bash", "'bash' is not a rule. Write PATTERN=all"),
        ("record_methods", "bash=most", "'bash=most' is not a rule"),
        ("record_methods", "=off", "'' is not a pattern"),
        ("record_methods", "a b=off", "'a b' is not a pattern"),
        ("history_days", "-1", "Allowed: a number from 0 to 36500."),
        ("history_days", "inf", "Allowed: a number from 0 to 36500."),
        ("history_days", "nan", "Allowed: a number from 0 to 36500."),
        ("history_bytes", "-1", "Allowed: a whole number of at least 0."),
        ("history_methods", "bash", "'bash' is not a rule. Write PATTERN=DAYS"),
        ("history_methods", "bash=-1", "'bash=-1' is not a rule"),
        ("history_methods", "bash=nan", "'bash=nan' is not a rule"),
        ("history_methods", "bash=inf", "'bash=inf' is not a rule"),
        ("history_methods", "bash=soon", "'bash=soon' is not a rule"),
        ("history_methods", "bash=\u0663", "is not a rule"),
        ("history_methods", "bash@broken=3", "unknown outcome 'broken' in 'bash@broken=3'. Use"),
        ("history_methods", "bash@=3", "unknown outcome ''"),
        ("history_methods", "@failed=3", "'' is not a pattern"),
    ],
)
def test_an_invalid_value_is_reported_with_its_origin_and_what_is_allowed(
    name: str, value: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SUBSTRATE_{name.upper()}", value)
    with pytest.raises(SettingsError) as refused:
        read_settings({})
    assert str(refused.value).startswith(f"SUBSTRATE_{name.upper()}: ")
    assert complaint in str(refused.value)


def test_rules_are_read_from_variables_and_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBSTRATE_HISTORY_METHODS", "health.*=1,*@failed=30")
    loaded = read_settings({}, b"record_methods = ['bash.* = metadata', 'chat=off']").settings
    assert loaded.history_methods == ("health.*=1", "*@failed=30")
    assert RetentionPolicy.of(loaded).days("bash.execute", "failed") == 30
    assert RecordPolicy.of(loaded).mode("bash.execute") == "metadata"
    with pytest.raises(SettingsError, match=r"substrate.toml: record_methods: 'x' is not a rule"):
        read_settings({}, b"record_methods = ['x']")
