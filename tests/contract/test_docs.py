"""What the pages in docs/ name is there: commands with their options, targets, files, alerts."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from python_backend.settings import Settings
from tests.contract.test_readme import setting_keys
from tools.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAME = re.compile(r"[a-z][a-z-]*")
RUNBOOK = "docs/operating.md"
BY_NAME = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(page: Path) -> list[str]:
    bare = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    return re.findall(r"^#+ (.+)$", bare, re.M)


def command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that ``words`` begin with, and what follows."""
    module, attribute, _ = COMMANDS[words[0]]
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        inner = typer.Typer()
        inner.command()(target)
        target = inner
    found: Any = typer.main.get_command(target)
    words = words[1:]
    while (inside := getattr(found, "commands", {})) and words and NAME.fullmatch(words[0]):
        assert words[0] in inside, words
        found, words = inside[words[0]], words[1:]
    return found, words


@BY_NAME
def test_every_command_and_option_exists(page: Path) -> None:
    text = re.sub(r"\\\n\s*", " ", page.read_text("utf-8"))
    # A command in a paragraph may go on in the next line.
    spans = re.findall(r"`([^`\n]*(?:\n[^`\n]+)?)`", text) + text.splitlines()
    for span in spans:
        for call in re.findall(r"-m tools ([a-z][^`#|;&]*)", " ".join(span.split())):
            words = call.split()
            assert words[0] in COMMANDS, call
            found, rest = command(words)
            known = {option for parameter in found.params for option in parameter.opts} | {"--help"}
            for word in rest:
                if word.startswith("--"):
                    assert word.split("=")[0].rstrip(".,:)") in known, call


@BY_NAME
def test_every_target_of_make_exists(page: Path) -> None:
    named = set(
        re.findall(r"(?:^|`|&& )make (?:-C \w+ )?([a-z][a-z-]*)\b", page.read_text("utf-8"), re.M)
    )
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert named <= targets


@BY_NAME
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if place:
            assert place in map(anchor, headings(target)), link


@BY_NAME
def test_every_file_named_exists(page: Path) -> None:
    named = re.findall(r"`((?:tests|deploy|tools|docs)/[\w./-]+)`", page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


@BY_NAME
def test_every_setting_named_exists(page: Path) -> None:
    keys = setting_keys(Settings)
    sections = {key.split(".")[0] for key in keys if "." in key} - {"engine"}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?=[`:])", page.read_text("utf-8"))
    # audit.key is a file.
    unknown = [
        key for key in named if key.split(".")[0] in sections and key not in {*keys, "audit.key"}
    ]
    assert unknown == []


def test_every_alert_has_its_entry_and_leads_to_it() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text("utf-8"))
    alerts = [rule for group in groups["groups"] for rule in group["rules"] if "alert" in rule]
    names = [rule["alert"] for rule in alerts]
    assert [heading for heading in headings(ROOT / RUNBOOK) if heading.startswith("Lora")] == names
    for rule in alerts:
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOK}#{anchor(rule['alert'])}"
