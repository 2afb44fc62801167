"""Every alert has its runbook, asks for metrics that there are, and every command a runbook names can be given."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from cli.main import app
from tests.documents import CHECKOUT, names, read, table

RULES = "docs/alerts/chatmill.rules.yml"
RUNBOOKS = CHECKOUT / "docs" / "runbooks"
FUNCTIONS = frozenset(
    {
        "max",
        "sum",
        "by",
        "unless",
        "on",
        "and",
        "delta",
        "rate",
        "increase",
        "histogram_quantile",
        "clamp_min",
        "absent",
    }
)


def rules() -> list[dict[str, Any]]:
    (group,) = YAML(typ="safe").load(read(RULES))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def documented() -> dict[str, set[str]]:
    """Every metric with its labels, as docs/metrics.md lists them; a histogram by the names of its samples."""
    found: dict[str, set[str]] = {}
    for heading in ("What processes count", "What lies in the database"):
        for row in table("docs/metrics.md", heading):
            name, _, labels = names(row[0])[0].rstrip("}").partition("{")
            its = set(filter(None, labels.split(",")))
            if row[1] == "histogram":
                found |= {f"{name}_bucket": its | {"le"}, f"{name}_count": its, f"{name}_sum": its}
            else:
                found[name] = its
    return found


def test_every_alert_has_a_runbook_and_every_runbook_its_alert() -> None:
    alerts = {rule["alert"] for rule in rules()}
    assert {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"} == alerts
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{rule['alert']}.md"
        assert f"[{rule['alert']}]({rule['alert']}.md) | {rule['labels']['severity']} |" in read(
            "docs/runbooks/README.md"
        )


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_and_labels_that_there_are(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch("[0-9]+m", rule["for"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    known, expression = documented(), re.sub(r"\s+", " ", rule["expr"])
    assert expression.count("(") == expression.count(")")
    used = re.findall(r"chatmill_\w+", expression)
    assert used
    assert set(used) <= known.keys()
    labels = set().union(*(known[name] for name in used))
    grouped = {
        label.strip() for group in re.findall(r"(?:by|on) \(([\w, ]*)\)", expression) for label in group.split(",")
    }
    matched = set(re.findall(r"{(\w+)=", expression))
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert (grouped | matched | shown) - {""} <= labels
    assert shown <= grouped | (labels if "by (" not in expression else set())
    bare = re.sub(r"chatmill_\w+|{[^}]*}|\[[0-9a-z]+\]|\([\w, ]*\)|[0-9.]+", " ", expression)
    assert set(re.findall(r"[a-z_]+", bare)) <= FUNCTIONS


def test_a_runbook_names_only_commands_that_there_are() -> None:
    root = typer.main.get_command(app)
    said = [command for page in RUNBOOKS.glob("*.md") for command in _commands(page.read_text(encoding="utf-8"))]
    assert said
    for command in said:
        _check(root, command.split()[1:], command)


def _commands(text: str) -> list[str]:
    inline = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", text)]
    return [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", code) for code in inline if re.match(r"(?:[A-Z_]+=\S+ )*chatmill ", code)]


def _check(command: Any, words: list[str], said: str) -> None:
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    options = {option for parameter in command.params for option in parameter.opts}
    for word in words:
        if word.startswith("--"):
            assert word in options, f"{said}: {command.name} has no {word}"
        else:
            assert not hasattr(command, "commands") or words[0].startswith("--"), f"{said}: no command {word}"
