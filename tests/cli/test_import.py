"""``specbench import``, and other commands on the run that it makes."""

import json
import shutil
from pathlib import Path

import pytest

from ..imports.made import aiperf, profiled
from ..pages import ROOT
from .conftest import Cli

PROMPTS = 12


@pytest.fixture
def imported(cli: Cli) -> Cli:
    """A run of a plain and a speculating server, which is 1.5 times as fast."""
    plain = [profiled(n, spec_decode_acceptance=None) for n in range(PROMPTS)]
    fast = [profiled(n) for n in range(PROMPTS)]
    for line in fast:
        line["metrics"]["request_latency"]["value"] = 200.0
    Path("plain.jsonl").write_text(aiperf(*plain))
    Path("fast.jsonl").write_text(aiperf(*fast))
    result = cli("import", "autoregressive=plain.jsonl", "fast.jsonl", "-o", "r")
    assert result.code == 0
    assert result.err == "next: specbench compare r --against autoregressive --margin 2\n"
    assert "fast: faster than no speculation (1.50" in result.out
    assert result.out.endswith("results: r\n")
    return cli


def test_the_run_is_read_by_other_commands(imported: Cli) -> None:
    table = imported("table", "r")
    assert table.code == 0
    assert "Pair not told, T not told, N = 3, engine vllm, 12 prompts" in table.out
    fast = next(line for line in table.out.splitlines() if line.startswith("fast"))
    assert fast.split() == ["fast", "50.0", "1.50"]
    verdict = imported("compare", "r", "--against", "autoregressive", "--margin", "2")
    assert "fast: 1.50 [1.50, 1.50] times as fast" in verdict.out
    assert "aiperf, T not told: against autoregressive" in verdict.out
    assert imported("plot", "acceptance-time", "r").code == 0
    assert Path("r/figures/acceptance-time.png").is_file()
    assert imported("report", "r", "-o", "r.html").code == 0
    assert "aiperf" in imported("summary", "r", "--frame", "runs").out


def test_a_file_that_vllm_wrote(cli: Cli) -> None:
    shutil.copy(ROOT / "tests" / "data" / "vllm-bench.json", "plain.json")
    result = cli("import", "autoregressive=plain.json", "-o", "r", "--json")
    assert result.err == "note: autoregressive: 1 of 13 requests of vllm-bench failed\n"
    (cell,) = json.loads(result.out)["cells"]
    assert cell["tokens_per_second"] == pytest.approx(62.7, abs=0.05)
    assert (cell["output_tokens"], cell["speedup"]) == (8, 1)


def test_nothing_is_written_for_a_refused_file(cli: Cli) -> None:
    Path("bad.json").write_text("{")
    result = cli("import", "bad.json")
    assert result.code == 2
    assert result.err.startswith("error: bad.json is not JSON: ") and result.err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["bad.json"]


def test_without_a_figure_the_table_says_what_to_do(cli: Cli) -> None:
    shutil.copy(ROOT / "tests" / "data" / "vllm-bench.json", "plain.json")
    assert cli("import", "plain.json", "-o", "r").code == 0
    result = cli("table", "r")
    assert result.code == 2 and "import files of a plain server as autoregressive" in result.err
