"""Real servers: does ``check --server`` find their faults, and no others?"""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.measure.servers.serving import DRAWN, GREEDY, NGRAM, PLAIN, llamacpp, vllm_server

VERDICTS = {0: "no fault found", 1: "fault found", 2: "too weak"}


def verdict(url: str, output: Path) -> str:
    """Return what the exit code of a check means, and print its table."""
    command = [sys.executable, "-m", "specbench", "check", "--server", url, "-o", f"{output}"]
    return VERDICTS[subprocess.run([*command, "--no-progress"], check=False).returncode]


@pytest.mark.parametrize("drafts", [PLAIN, GREEDY, DRAWN, NGRAM])
def test_vllm_is_lossless(drafts: str, tmp_path: Path) -> None:
    with vllm_server("mini", drafts) as url:
        assert verdict(url, tmp_path / "check") == "no fault found"


@pytest.mark.parametrize(
    ("rule", "expected"), [("sd", "no fault found"), ("static:weight=0.5", "fault found")]
)
def test_a_rule_inside_vllm_is_as_lossy_as_it_should_be(
    rule: str, expected: str, tmp_path: Path
) -> None:
    with vllm_server("mini", DRAWN, rule=rule) as url:
        assert verdict(url, tmp_path / "check") == expected


def test_vllm_with_wrong_temperatures_is_not(tmp_path: Path) -> None:
    """The CPU build as it is shipped, see ``repaired/``."""
    with vllm_server("mini", DRAWN, repaired=False) as url:
        assert verdict(url, tmp_path / "check") == "fault found"


@pytest.mark.parametrize("drafts", [PLAIN, GREEDY, DRAWN])
def test_llamacpp_is_lossless(drafts: str, tmp_path: Path) -> None:
    with llamacpp("mini", drafts) as url:
        assert verdict(url, tmp_path / "check") == "no fault found"
