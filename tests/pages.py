"""The pages, and the commands that they print."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    *(ROOT / folder / "README.md" for folder in ("results", "tasks")),
    *sorted((ROOT / "specbench").rglob("*.md")),
]
MEASURED = sorted((ROOT / "results").glob("[!R]*.md"))  # beside what was found, the tables of it


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def inline_code(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> list[list[str]]:
    """Return the words after ``specbench`` of every command in the shell blocks of a page."""
    lines = "\n".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    words = (shlex.split(line, comments=True) for line in lines)
    return [rest for first, *rest in filter(None, words) if first == "specbench"]
