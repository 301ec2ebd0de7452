"""The commands and links on the pages are correct."""

import re
from functools import cache
from pathlib import Path

import pytest

from specbench.cli.commands import COMMANDS, load

from .pages import MEASURED, PAGES, README, ROOT, inline_code

OTHER_PROGRAMS = ("python", "vllm", "llama-server")
PAGE = pytest.mark.parametrize("page", [*PAGES, *MEASURED], ids=lambda p: str(p.relative_to(ROOT)))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _broken_links(text: str, page: Path) -> list[str]:
    """Return the links and pictures of a page's text that lead nowhere."""
    broken = []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        place = page.parent / path if path else page
        if not place.exists() or (anchor and anchor not in _anchors(place)):
            broken.append(f"{path}#{anchor}")
    return broken


@PAGE
def test_links_and_pictures_exist(page):
    assert _broken_links(page.read_text(encoding="utf-8"), page) == []


def test_a_broken_link_is_found():
    text = "[a](LICENSE) [b](LICENCE) [c](#five-goals) [d](#gloss) ![e](results/README.md#none)"
    assert _broken_links(text, README) == ["LICENCE#", "#gloss", "results/README.md#none"]


@cache
def _options() -> set[str]:
    """Return the options of all commands."""
    parameters = (parameter for command in COMMANDS for parameter in load(command).params)
    options = {option for p in parameters for option in (*p.opts, *p.secondary_opts)}
    return options | {"--install-completion", "--debug", "--help"}


def _unknown_options(text: str) -> list[str]:
    """Return the options within a page's sentences that no command has."""
    options = _options()
    codes = (code for code in inline_code(text) if not code.startswith(OTHER_PROGRAMS))
    words = [word for code in codes for word in code.split()]
    return [word for word in words if re.match("--[a-z]", word) and word not in options]


@PAGE
def test_options_in_sentences_exist(page):
    assert _unknown_options(page.read_text(encoding="utf-8")) == []


def test_an_unknown_option_is_found():
    text = "Use `--limit 3` or `run --limitt 3`, and in blocks:\n```sh\nspecbench --none\n```\n"
    assert _unknown_options(text) == ["--limitt"]


SCRIPT = re.compile(r"(?<!specbench/)(?:tests|tasks)/[\w/]+\.py\b")
NAMING = [*PAGES, ROOT / "Makefile", *(ROOT / "results").rglob("*.md")]


def test_scripts_that_a_page_names_exist():
    named = {name for page in NAMING for name in SCRIPT.findall(page.read_text(encoding="utf-8"))}
    assert "tasks/measure/levels.py" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_is_short_and_leads_to_every_page():
    text = README.read_text(encoding="utf-8")
    assert len(text) <= 8_000
    assert [p for p in PAGES[1:] if f"({p.relative_to(ROOT)})" not in text] == []


def test_the_readme_names_every_command():
    text = README.read_text(encoding="utf-8")
    table = text.split("| purpose | commands |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)[^`]*`", table)) == set(COMMANDS)


@pytest.mark.parametrize("page", [*PAGES[1:], *MEASURED], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_begins_with_its_question(page):
    assert re.match(r"# \w[\w ]*: .+\?\n", page.read_text(encoding="utf-8"))
