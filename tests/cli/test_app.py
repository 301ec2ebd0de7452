import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import specbench
from specbench.cli.commands import COMMANDS, load
from specbench.methods.registry import METHODS

Cli = Callable[..., Any]
HELP_SECONDS = 0.3


@pytest.mark.parametrize(
    "line",
    ["--help", "run --help", "transfer --help", "list methods", "list tasks", "list pairs"],
)
def test_light_commands_import_nothing_heavy(line: str) -> None:
    program = (
        "import sys\n"
        "from specbench.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'pandas', 'numpy', 'matplotlib', 'datasets'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_help_answers_at_once() -> None:
    # Processor time, and the best of three, so that a busy machine does not decide.
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "specbench", "--help"], capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < HELP_SECONDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_first_of_its_own_help(name: str) -> None:
    assert (load(name).help or "").partition("\n\n")[0].replace("\n", " ") == COMMANDS[name].purpose


def test_a_misspelt_command_is_told_the_nearest(cli: Cli) -> None:
    result = cli("sweep-weight")
    assert result.code == 2
    assert "Did you mean" in result.err
    assert "sweep-weights" in result.err


def test_help_of_all_loads_no_command() -> None:
    program = (
        "import sys\n"
        "from specbench.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('specbench.cli.run' in sys.modules or 'specbench.tasks' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "sweep-weights" in result.out
    assert result.err == ""


def test_help_shows_every_option_once_and_an_example(cli: Cli) -> None:
    shown = {name: cli(name, "-h").out for name in ("run", "sweep-weights")}
    shared = ("--pair", "--target", "--draft", "--task", "--prompts", "--temperature", "--top-k")
    shared += ("--top-p", "--draft-length", "--limit", "--max-new-tokens", "--seed", "--repeats")
    shared += ("--output", "--device", "--dtype", "--method", "--lenience", "--rule", "--alpha")
    shared += ("--head", "--no-progress")
    for text in shown.values():
        assert all(f"{option} " in text for option in shared)
        assert "Example: specbench" in text
    assert "--weight " in shown["run"]
    assert "--weights " in shown["sweep-weights"]


def test_the_version(cli: Cli) -> None:
    assert cli("--version").out == f"specbench {specbench.__version__}\n"


def test_lists_are_tables_for_people_and_json_for_programs(cli: Cli) -> None:
    assert "speccascade" in cli("list", "methods").out
    rows = json.loads(cli("list", "methods", "--json").out)
    assert [row["name"] for row in rows] == list(METHODS)
    (parameter,) = next(row["parameters"] for row in rows if row["name"] == "static")
    assert parameter == "weight = 0.5 (a number from 0 to 1)"
    pairs = json.loads(cli("list", "pairs", "--json").out)
    assert {"name", "target", "draft", "description"} == set(pairs[1])
    assert pairs[1]["target"] == "meta-llama/Llama-3.1-8B-Instruct"
    tasks = json.loads(cli("list", "tasks", "--json").out)
    assert {"mini-math": ["accuracy"], "mini-code": ["pass@1"]}.items() <= {
        row["name"]: row["metrics"] for row in tasks
    }.items()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("run --method s", {"sd", "sd-adaptive", "sharpened", "speccascade", "static"}),
        (
            "run --method lossy,s",
            {
                f"lossy,{name}"
                for name in ("sd", "sd-adaptive", "sharpened", "speccascade", "static")
            },
        ),
        ("sweep-weights --task mini-m", {"mini-math"}),
        ("run --pair q", {"qwen3"}),
        ("run --rule token", {"token-v1", "token-v2", "token-v3"}),
        ("plot p", {"pareto"}),
        ("list m", {"methods"}),
    ],
)
def test_the_shell_completes_names(typed: str, expected: set[str]) -> None:
    words = f"specbench {typed}"
    environment = {
        **os.environ,
        "_SPECBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "specbench"], env=environment, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == expected
