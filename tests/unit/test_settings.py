"""Settings: what is refused, and how it is said; what never shows; what the README tells."""

import re
import runpy
import traceback
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from chalicelib.config import (
    ProviderSettings,
    Secret,
    Settings,
    SettingsError,
    load_settings,
    parse_duration,
    provider_variable,
    variable,
)

FIELDS = [spec for spec in fields(Settings) if "about" in spec.metadata]
FREE = {
    "host",
    "data_dir",
    "database_master_secret",
    "dev_key",
    "embeddings_model",
    "kms_key",
    "memory_queue_url",
    "provider_secret",
    "turns_queue_url",
    "vault_key",
}
"""Those that take any text, so that no value of theirs is wrong."""
CHECKED = [spec for spec in FIELDS if spec.name not in FREE]
BOUNDED = [spec for spec in CHECKED if " from " in spec.metadata["rule"].allowed]
SECRETS = [spec.name for spec in fields(Settings) if isinstance(spec.default, Secret)]
HIDDEN = "hunter2-correct-horse"


def named(spec: Field[Any]) -> str:
    return variable(spec.name)


def load(spec: Field[Any], text: str) -> Any:
    return getattr(load_settings({variable(spec.name): text}), spec.name)


def refusal(spec: Field[Any], text: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        load(spec, text)
    return caught.value


def bounds(spec: Field[Any]) -> tuple[str, str]:
    """The least and the most that a rule's sentence says it takes."""
    found = re.search(r"from (\S+) to (\S+)$", spec.metadata["rule"].allowed)
    assert found
    return found[1], found[2]


def beyond(bound: str, step: int) -> str:
    """The next value outside a bound, in the bound's own form."""
    number, unit = re.fullmatch(r"(.*?)(s?)", bound).groups()  # type: ignore[union-attr]
    return f"{float(number) + step / 100:.2f}{unit}" if unit else str(int(number) + step)


@pytest.mark.parametrize("spec", CHECKED, ids=named)
def test_wrong_value_is_refused_in_one_sentence(spec: Field[Any]) -> None:
    """Lost if red: which variable to mend, and how, when the start is refused."""
    said = str(refusal(spec, "this is wrong"))
    assert said.startswith(f"{variable(spec.name)} must be ")
    assert spec.metadata["rule"].allowed in said
    assert ("this is wrong" in said) == (spec.name not in SECRETS)
    assert "\n" not in said
    assert said.endswith(".")


@pytest.mark.parametrize("spec", BOUNDED, ids=named)
def test_value_out_of_bounds_is_refused(spec: Field[Any]) -> None:
    """Lost if red: a start that fails at once, in place of a process that misbehaves for hours."""
    least, most = bounds(spec)
    for text in (beyond(least, -1), beyond(most, 1)):
        assert text in str(refusal(spec, text))


@pytest.mark.parametrize("spec", BOUNDED, ids=named)
def test_bounds_that_are_told_are_accepted(spec: Field[Any]) -> None:
    """Lost if red: someone who does what the sentence says, and is refused again."""
    least, most = bounds(spec)
    assert load(spec, least) <= load(spec, most)


@pytest.mark.parametrize("spec", [one for one in FIELDS if one.name in FREE], ids=named)
def test_free_text_is_taken_as_it_is(spec: Field[Any]) -> None:
    """Lost if red: a folder, key or address that is not the one that was given."""
    assert spec.metadata["rule"].allowed == "a text"
    assert load(spec, " this is right ") == "this is right"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("port", "80.5", id="port-fraction"),
        pytest.param("port", "eighty", id="port-word"),
        pytest.param("metrics", "yes", id="switch-other-word"),
        pytest.param("log_level", "info", id="choice-lower-case"),
        pytest.param("database_url", "mysql://h/db", id="url-other-database"),
        pytest.param("cors_origins", "https://a.example/path", id="origin-with-path"),
        pytest.param("cors_origins", "https://a.example,*", id="origin-wildcard"),
        pytest.param("providers", "openai", id="provider-without-model"),
        pytest.param("providers", "openai:", id="provider-empty-model"),
        pytest.param("providers", "openai:a,:b", id="model-without-provider"),
        pytest.param("tool_private_hosts", "https://tools.internal", id="host-with-scheme"),
        pytest.param("tool_lambdas", "pal tool", id="function-with-space"),
    ],
)
def test_near_misses_are_refused(name: str, text: str) -> None:
    """Lost if red: a slip of the pen that starts a process other than the one that was meant."""
    with pytest.raises(SettingsError, match=f"^{variable(name)} must be "):
        load_settings({variable(name): text})


@pytest.mark.parametrize("spec", FIELDS, ids=named)
def test_empty_variable_counts_as_unset(spec: Field[Any]) -> None:
    """Lost if red: templates that pass `PAL_X=` for what they leave alone."""
    assert load(spec, "  ") == spec.default


def test_good_values_are_cast() -> None:
    """Lost if red: every setting that is not a text."""
    found = load_settings(
        {
            "PAL_PORT": "9000",
            "PAL_METRICS": "On",
            "PAL_TURN_LEASE": "1m30s",
            "PAL_PROVIDERS": "openai:gpt-5-mini, offline:echo:2",
            "PAL_CORS_ORIGINS": "https://a.example, http://localhost:3000",
            "PAL_TOOL_PRIVATE_HOSTS": "tools.internal, 127.0.0.1:9000, [::1]:80",
            "PAL_TOOL_LAMBDAS": "pal-tool-*,{tenant}-*",
            "OPENAI_BASE_URL": "http://localhost:11434/v1/",
        }
    )
    assert (found.port, found.metrics, found.turn_lease) == (9000, True, 90.0)
    assert found.providers == (("openai", "gpt-5-mini"), ("offline", "echo:2"))
    assert found.cors_origins == ("https://a.example", "http://localhost:3000")
    assert found.tool_private_hosts == ("tools.internal", "127.0.0.1:9000", "[::1]:80")
    assert found.tool_lambdas == ("pal-tool-*", "{tenant}-*")
    assert found.openai_base_url == "http://localhost:11434/v1"
    assert found.anthropic_base_url == "https://api.anthropic.com"
    assert not found.on_lambda


OLDER = {spec.name: spec.metadata["older"] for spec in FIELDS if spec.metadata.get("older")}
"""Fields by the names that their variables had before."""


def test_variables_by_their_older_names_are_read() -> None:
    """Lost if red: memory, off without a word for whoever upgraded and left the variables alone."""
    assert OLDER == {
        "memory_distill": "LANTERN_MEMORY_DISTILL",
        "memory_distill_interval": "LANTERN_MEMORY_DISTILL_INTERVAL",
        "session_vm_idle_ttl": "LANTERN_SESSION_VM_IDLE_TTL",
    }
    older = {"LANTERN_MEMORY_DISTILL": "true", "LANTERN_MEMORY_DISTILL_INTERVAL": "1h30m"}
    found = load_settings(older)
    assert (found.memory_distill, found.memory_distill_interval) == (True, 5400.0)
    newer = {"PAL_MEMORY_DISTILL": "off", "PAL_MEMORY_DISTILL_INTERVAL": "90m"}
    found = load_settings({**older, "LANTERN_MEMORY_DISTILL_INTERVAL": "1m", **newer})
    assert (found.memory_distill, found.memory_distill_interval) == (False, 5400.0)
    # an empty variable counts as unset, so it does not hide the older one
    assert load_settings({**older, "PAL_MEMORY_DISTILL": " "}).memory_distill is True


@pytest.mark.parametrize("name", sorted(OLDER))
def test_wrong_value_is_told_of_the_variable_that_holds_it(name: str) -> None:
    """Lost if red: someone who looks for a variable that they have never set."""
    wrong = "soon"
    with pytest.raises(SettingsError, match=f"^{OLDER[name]} must be .*, not 'soon'\\.$"):
        load_settings({OLDER[name]: wrong})
    with pytest.raises(SettingsError, match=f"^{variable(name)} must be "):
        load_settings({OLDER[name]: wrong, variable(name): wrong})
    # what is not read can do no harm
    right = "on" if name == "memory_distill" else "1h"
    assert load_settings({OLDER[name]: wrong, variable(name): right})


# ── the variables of one provider ────────────────────────────────────────────────────────────


def test_named_provider_has_variables_of_its_own() -> None:
    """Lost if red: a second vendor on the same wire, and waits that suit one provider."""
    found = load_settings(
        {
            "PAL_PROVIDER_MY_BOX_BASE_URL": "http://10.0.0.7:8000/v1/",
            "PAL_PROVIDER_MY_BOX_API_KEY": " sk-box ",
            "PAL_PROVIDER_MY_BOX_IDLE_TIMEOUT": "5s",
            "PAL_PROVIDER_MY_BOX_CONNECT_TIMEOUT": "1s",
            "PAL_PROVIDER_MY_BOX_ANSWER_TIMEOUT": "4m",
            "PAL_PROVIDER_ANTHROPIC_FIRST_TIMEOUT": "90s",
            "PAL_PROVIDER_EMPTY_BASE_URL": "",
        }
    )
    expected = ProviderSettings(
        base_url="http://10.0.0.7:8000/v1",
        api_key=Secret("sk-box"),
        connect_timeout=1.0,
        idle_timeout=5.0,
        answer_timeout=240.0,
    )
    assert found.of_provider("openai@my-box") == expected
    assert found.of_provider("openai@my_box") == expected
    assert found.of_provider("anthropic") == ProviderSettings(first_timeout=90.0)
    assert found.of_provider("openai@empty") == found.of_provider("openai") == ProviderSettings()
    assert provider_variable("openai@my-box", "base_url") == "PAL_PROVIDER_MY_BOX_BASE_URL"


def test_general_waits_are_of_no_provider() -> None:
    """Lost if red: `PAL_PROVIDER_FIRST_TIMEOUT`, taken for a provider named so."""
    found = load_settings(
        {"PAL_PROVIDER_FIRST_TIMEOUT": "9s", "PAL_PROVIDER_FIRST_FIRST_TIMEOUT": "8s"}
    )
    assert found.provider_first_timeout == 9.0
    assert found.named_providers == {"FIRST": ProviderSettings(first_timeout=8.0)}


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        pytest.param("PAL_PROVIDER_GROQ_BASE_URL", "groq", "an http", id="no-url"),
        pytest.param("PAL_PROVIDER_GROQ_BASE_URL", "https://a:b@c/v1", "an http", id="password"),
        pytest.param("PAL_PROVIDER_GROQ_BASE_URL", "https://c/v1?key=x", "an http", id="query"),
        pytest.param("OPENAI_BASE_URL", "localhost:11434/v1", "an http", id="vendor-no-scheme"),
        pytest.param("ANTHROPIC_BASE_URL", "ftp://c", "an http", id="vendor-other-scheme"),
        pytest.param("PAL_PROVIDER_GROQ_IDLE_TIMEOUT", "soon", "a duration", id="no-duration"),
        pytest.param("PAL_PROVIDER_GROQ_IDLE_TIMEOUT", "11m", "600s", id="too-long"),
    ],
)
def test_wrong_value_of_a_provider_is_refused(name: str, text: str, told: str) -> None:
    """Lost if red: a slip that shows only when the first turn fails, or a key on the terminal."""
    with pytest.raises(SettingsError) as caught:
        load_settings({name: text})
    said = str(caught.value)
    assert said.startswith(f"{name} must be ")
    assert told in said
    assert (text in said) == name.endswith("TIMEOUT")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("PAL_PROVIDER_OPENAI_API_KEY", "OPENAI_API_KEY"),
        ("PAL_PROVIDER_ANTHROPIC_BASE_URL", "ANTHROPIC_BASE_URL"),
        ("PAL_PROVIDER_BEDROCK_API_KEY", "AWS's own variables"),
    ],
)
def test_variable_that_would_not_be_read_is_refused(name: str, instead: str) -> None:
    """Lost if red: a key that was set, and turns that say there is none."""
    with pytest.raises(SettingsError, match=f"^{name} is not read; set {instead}.$"):
        load_settings({name: "https://x"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("30s", 30.0, id="seconds"),
        pytest.param("250ms", 0.25, id="milliseconds"),
        pytest.param("5m", 300.0, id="minutes"),
        pytest.param("6h", 21600.0, id="hours"),
        pytest.param("1h30m", 5400.0, id="two-units"),
        pytest.param("1h2m3s4ms", 3723.004, id="four-units"),
        pytest.param("1.5h", 5400.0, id="fraction"),
        pytest.param("0s", 0.0, id="zero-with-unit"),
        pytest.param("90m", 5400.0, id="more-than-the-next-unit"),
        pytest.param("30s1m", 90.0, id="any-order"),
        pytest.param("007s", 7.0, id="leading-zeros"),
        pytest.param("0", 0.0, id="zero-alone"),
        pytest.param(".5s", 0.5, id="no-digit-before-the-point"),
        pytest.param("2.s", 2.0, id="no-digit-behind-the-point"),
        pytest.param("1500us", 0.0015, id="microseconds"),
        pytest.param("1500µs", 0.0015, id="microseconds-by-their-sign"),
        pytest.param("250000000ns", 0.25, id="nanoseconds"),
    ],
)
def test_durations_are_read_like_gos(text: str, seconds: float) -> None:
    """Lost if red: a duration that means another time than the same text does elsewhere."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("30", id="no-unit"),
        pytest.param("s", id="no-number"),
        pytest.param("3d", id="days"),
        pytest.param("30S", id="capital"),
        pytest.param("30 s", id="space-inside"),
        pytest.param("30s ", id="space-behind"),
        pytest.param("1m 30s", id="space-between"),
        pytest.param("30s,", id="comma"),
        pytest.param("1m30", id="last-unit-missing"),
        pytest.param("1,5s", id="decimal-comma"),
        pytest.param("1e3s", id="exponent"),
        pytest.param("1_000s", id="underscore"),
        pytest.param("0x1s", id="hexadecimal"),
        pytest.param("1.2.3s", id="two-points"),
        pytest.param(".s", id="point-alone"),
        pytest.param("٣٠s", id="digits-of-another-script"),
        pytest.param("--1s", id="two-signs"),
        pytest.param("infs", id="infinity"),
        pytest.param("nans", id="nan"),
        pytest.param("30sec", id="long-unit"),
        pytest.param("PT30S", id="iso-8601"),
    ],
)
def test_what_go_refuses_as_a_duration_is_refused(text: str) -> None:
    """Lost if red: a wrong lease or timeout, guessed from what nobody meant."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_duration(text)


def with_secrets() -> Settings:
    url = f"postgresql://pal_app:{HIDDEN}@db/palimpsest"
    return load_settings(
        {
            "PAL_DEV_KEY": HIDDEN,
            "PAL_DATABASE_URL": url,
            "PAL_DATABASE_OWNER_URL": url,
            "PAL_DATABASE_LISTEN_URL": url,
            "PAL_VAULT_KEY": HIDDEN,
            "ANTHROPIC_API_KEY": HIDDEN,
            "OPENAI_API_KEY": HIDDEN,
            "PAL_PROVIDER_GROQ_API_KEY": HIDDEN,
        }
    )


def test_secrets_do_not_print() -> None:
    """Lost if red: keys and passwords, in the first log line or traceback that holds settings."""
    found = with_secrets()
    for name in SECRETS:
        assert HIDDEN in getattr(found, name), f"{name} is set, so it could show"
    shown = [repr(found), str(found), f"{found!r} {found}", repr(vars(found)), repr([found])]
    shown.append(repr(replace(found, port=1)))
    assert HIDDEN in found.of_provider("openai@groq").api_key
    assert [text for text in shown if HIDDEN in text] == []
    assert "database_url=Secret('**')" in repr(found)


def test_what_holds_a_secret_is_one() -> None:
    """Lost if red: a new key or connection that prints."""
    telling = re.compile(r"key$|secret|password|token$|database.*url")
    names_of_one = {"database_master_secret", "kms_key", "provider_secret"}
    texts = [spec.name for spec in fields(Settings) if spec.type is str]
    assert [name for name in texts if telling.search(name) and name not in names_of_one] == SECRETS
    assert isinstance(ProviderSettings.api_key, Secret)


@pytest.mark.parametrize("name", sorted({spec.name for spec in CHECKED} & set(SECRETS)))
def test_a_wrong_secret_is_not_told(name: str) -> None:
    """Lost if red: a password, on the terminal and in the log of the start that it stopped."""
    with pytest.raises(SettingsError, match=f"^{variable(name)} must be ") as caught:
        load_settings({variable(name): f"postgres:/pal_app:{HIDDEN}@db/palimpsest"})
    assert HIDDEN not in f"{caught.value} {caught.value!r}"
    assert HIDDEN not in "".join(traceback.format_exception(caught.value)), "the log holds it whole"


def settings_table(root: Path) -> str:
    script = runpy.run_path(str(root / "scripts" / "settings-table"))
    return str(script["settings_table"]())


def rows(table: str) -> dict[str, tuple[str, str]]:
    """{variable: (default, about)} of a settings table."""
    found = re.findall(r"^\| `(PAL_\w+)` \| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {name: (default, about) for name, default, about in found}


def test_readme_has_the_settings_as_they_are(root: Path) -> None:
    """Lost if red: the one place that tells what can be set; `scripts/settings-table` makes it."""
    readme = (root / "README.md").read_text()
    begin, end = "<!-- settings -->", "<!-- /settings -->"
    assert (readme.count(begin), readme.count(end)) == (1, 1)
    table = readme.partition(begin)[2].partition(end)[0]
    assert rows(table) == rows(settings_table(root))
    assert table.strip() == settings_table(root)


def test_table_has_every_variable(root: Path) -> None:
    """Lost if red: a setting that only who reads the code can find."""
    assert list(rows(settings_table(root))) == [variable(spec.name) for spec in FIELDS]


def test_table_tells_the_defaults_as_they_are_written(root: Path) -> None:
    """Lost if red: someone who copies a default out of the README and gets another value."""
    told = {name: default.strip("`") for name, (default, _) in rows(settings_table(root)).items()}
    for spec in FIELDS:
        text = told[variable(spec.name)]
        assert spec.default == (load(spec, "") if text == "unset" else load(spec, text)), spec.name
