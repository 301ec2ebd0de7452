"""Texts in ``tests/data/told``; ``SPECBENCH_REWRITE=1`` writes them anew: read the difference."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"
TOLD = DATA / "told"


def listed(name: str) -> list[Any]:
    """Return the rows of a file in ``tests/data``, each a line of JSON; # begins a remark."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if not line.startswith("#")]


def check(name: str, text: str) -> None:
    path = TOLD / f"{name}.txt"
    if os.environ.get("SPECBENCH_REWRITE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "if it is right, SPECBENCH_REWRITE=1 writes it"


def refusals(*calls: Callable[[], object]) -> str:
    """Return the kind and message of the error of each call, all of which must fail."""
    lines = []
    for call in calls:
        with pytest.raises(Exception) as error:
            call()
        lines.append(f"{type(error.value).__name__}: {error.value}\n")
    return "".join(lines)
