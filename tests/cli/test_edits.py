"""``specbench verify`` notices edits of a run, or names what it cannot check."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.analysis.run_tables import write_tables
from specbench.cli import runs
from specbench.config import Settings
from specbench.tasks.task import load_task
from specbench.validation.verification.plan import check_examples

from .conftest import Cli
from .made import Values, configure, lines

NOT_CHECKED = "not checked"


def records(run: Path, change: Callable[[Values], object]) -> None:
    """Change every record in place, and write the tables that follow."""

    def edit(rows: list[Values]) -> list[Values]:
        for row in rows:
            change(row)
        return rows

    lines(run / "samples.jsonl", edit)
    write_tables(run)


def drop(run: Path, unwanted: Callable[[Values], bool]) -> int:
    """Drop records, and write tables and progress that follow."""
    lines(run / "samples.jsonl", lambda rows: [row for row in rows if not unwanted(row)])
    write_tables(run)
    left = len((run / "samples.jsonl").read_text().splitlines())
    configure(run, lambda config: config["progress"].update(samples=left))
    return left


def drop_of_one_method(run: Path) -> None:
    drop(run, lambda row: (row["method"], row["sample_id"]) == ("diversed", "test-0"))


def drop_of_all_methods(run: Path) -> None:
    """Drop a prompt everywhere, with a plan that fits."""
    left = drop(run, lambda row: row["sample_id"] == "test-0")
    lines(run / "examples.jsonl", lambda rows: [row for row in rows if row["id"] != "test-0"])

    def fit(config: Values) -> None:
        config["samples_planned"] = left
        for task in config["tasks"]:
            task["examples"] = 1

    configure(run, fit)


def own_texts_as_references(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    texts = {(r["task"], r["sample_id"]): r["text"] for r in rows if r["method"] == "diversed"}

    def edit(examples: list[Values]) -> list[Values]:
        return [each | {"reference": texts[each["task"], each["id"]]} for each in examples]

    lines(run / "examples.jsonl", edit)


def with_worth(config: Values) -> None:
    for task in config["tasks"]:
        for cell in task["cells"]:
            if "head" in cell:
                cell["head"]["worth"] = "as good as the target"


def renamed(run: Path) -> None:
    configure(run, lambda config: config["pair"].update(name="llama"))
    records(run, lambda row: row.update(pair="llama"))


def halved(row: Values) -> None:
    for name in row:
        if name.endswith("_seconds"):
            row[name] /= 2
    row["tokens_per_second"] *= 2


def raised(row: Values) -> None:
    if row["expected_acceptance"] is not None:
        row["expected_acceptance"] += 0.0009


def blanked(row: Values) -> None:
    row.update(quality=None, scores=dict.fromkeys(row["scores"]))


def scored(**scores: float) -> Callable[[Path], object]:
    """Return an edit that adds scores to each record."""
    return lambda run: records(run, lambda row: row["scores"].update(scores))


def without_metrics(run: Path) -> None:
    """Name no metric, so that nothing seems to score the texts, and invent scores."""
    configure(run, lambda config: [task.update(metrics=[]) for task in config["tasks"]])
    records(run, lambda row: row.update(quality=1.0, scores=dict.fromkeys(row["scores"], 1.0)))


def with_longer_rounds(row: Values) -> None:
    emitted = row["per_round"]["emitted"]
    emitted[0] += 1
    row["acceptance_length"] = sum(emitted) / len(emitted) if row["draft_length"] else None


def with_column(run: Path) -> None:
    heading, *rows = (run / "samples.csv").read_text().splitlines()
    lines = [f"{heading},goodness", *(f"{row},1" for row in rows)]
    (run / "samples.csv").write_text("\n".join(lines) + "\n")


def replaced(run: Path, name: str, text: str, by: str) -> None:
    before = (run / name).read_text()
    assert text in before
    (run / name).write_text(before.replace(text, by))


def unlike_machine(run: Path) -> None:
    facts = json.loads((run / "environment.json").read_text())
    facts["cpu"]["model"], facts["packages"]["torch"] = "faster", "9.9"
    (run / "environment.json").write_text(json.dumps(facts))


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "prompts dropped of one method": (drop_of_one_method, "test-0: is missing"),
    "prompts dropped of all methods": (drop_of_all_methods, "is not an example of the plan"),
    "references": (own_texts_as_references, "examples are those of the task"),
    "samples_planned": (
        lambda run: configure(run, lambda config: config.update(samples_planned=7)),
        "samples_planned is 7, not 8",
    ),
    "data": (
        lambda run: configure(run, lambda c: c["tasks"][0]["data"].update(generator="gsm8k")),
        "data.generator is 'gsm8k'",
    ),
    "a head's worth": (lambda run: configure(run, with_worth), "worth is 'as good as"),
    "the pair's name": (renamed, "the pair is llama, but its models are those of mini"),
    "processor and versions": (unlike_machine, "not checked: times; the machine and its software"),
    "all times": (lambda run: records(run, halved), "not checked: times;"),
    "dtype": (
        lambda run: configure(run, lambda config: config["loading"].update(dtype="bfloat16")),
        "dtype is bfloat16 in the configuration and float32 in the environment",
    ),
    "engine": (
        lambda run: configure(run, lambda config: config["settings"].update(engine="compile")),
        "engine is 'eager', not 'compile'",
    ),
    "batch size": (
        lambda run: configure(run, lambda config: config["settings"].update(batch_size=8)),
        "batch_size is 1, not 8",
    ),
    "negative times": (
        lambda run: records(run, lambda row: row.update(latency_seconds=-1.5)),
        "latency_seconds is -1.5",
    ),
    "device": (
        lambda run: records(run, lambda row: row.update(device="node cuda:1")),
        "devices are `cuda` in samples and cpu in the environment",
    ),
    "samples of two runs": (
        lambda run: records(run, lambda row: row.update(run_id=row["method"])),
        "run_id has",
    ),
    "expected acceptance": (lambda run: records(run, raised), "expected_acceptance is"),
    "qualities left out": (lambda run: records(run, blanked), "scores.accuracy is None"),
    "a score named as a column": (scored(accepted=9.0), "accepted is not a metric of the run"),
    "quality named as a score": (scored(quality=1.0), "quality is not a metric of the run"),
    "scores of no metric": (scored(goodness=1.0), "goodness is not a metric of the run"),
    "metrics left out": (without_metrics, "quality_metric is"),
    "a category": (
        lambda run: records(run, lambda row: row.update(category="hard")),
        "category is 'hard', not None",
    ),
    "rounds longer than the text": (
        lambda run: records(run, with_longer_rounds),
        "counts follow from rounds",
    ),
    "rounds left out": (
        lambda run: records(run, lambda row: row.update(per_round={})),
        "counts follow from rounds",
    ),
    "a column more": (with_column, "goodness is not in samples.jsonl"),
    "the page": (lambda run: replaced(run, "summary.md", "sd", "gs"), "summary.md follows"),
    "temperature": (
        lambda run: configure(run, lambda config: config["settings"].update(temperature=0.5)),
        "is not planned",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_noticed_or_named(cli: Cli, one_task: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(one_task, tmp_path / "r"))
    edit, found = EDITS[name]
    edit(run)
    shown = cli("verify", "r", "-n", "0", "--json")
    findings = json.loads(shown.out)
    texts = [f"{f['verdict']}: {f['sentence']} ({f['name']})" for f in findings]
    assert any(found in text and not text.startswith("ok") for text in texts), texts
    assert (shown.code == 0) == found.startswith(NOT_CHECKED)


def test_the_samples_that_are_decoded_again_cannot_be_foreseen(
    cli: Cli, one_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "randbelow", lambda _: 4711)
    for options, seed in (((), 4711), (("--seed", "8"), 8)):
        shown = cli("verify", str(one_task), "-n", "1", *options)
        assert f"not decoded again (--seed {seed} chose the others)" in " ".join(shown.out.split())


def test_keys_that_no_sample_has_are_named(cli: Cli, finished: str, tmp_path: Path) -> None:
    """All files agree on a batch size, which the texts do not show."""
    run = Path(shutil.copytree(finished, tmp_path / "r"))
    configure(run, lambda config: config["settings"].update(batch_size=2))
    records(run, lambda row: row.update(batch_size=2))
    (run / "report.html").touch()
    shown = cli("verify", "r", "-n", "1")
    said = " ".join(shown.out.split())
    assert "keys of samples, since none matches: another version, or changed settings" in said
    assert "14 samples that were not decoded again (--seed " in said
    assert "other files: `report.html`" in said


@pytest.mark.parametrize("state", ["interrupted", "complete"])
def test_missing_samples_are_a_fault_only_of_a_complete_run(
    cli: Cli, one_task: Path, tmp_path: Path, state: str
) -> None:
    run = Path(shutil.copytree(one_task, tmp_path / "r"))
    drop(run, lambda row: row["place"][2] == 1)
    configure(run, lambda config: config["progress"].update(state=state))
    shown = cli("verify", "r", "-n", "0")
    assert shown.code == {"complete": 1, "interrupted": 3}[state]
    assert ("4 samples are missing" in " ".join(shown.out.split())) == (state == "interrupted")


def test_the_digest_of_the_data_is_compared() -> None:
    task = load_task("python-line")
    examples = {example.id: example for example in task.examples("test", 2, 1)}
    facts = copy.deepcopy(task.provenance())
    described = {"examples": 2, "data": facts, "version": task.version}
    assert (
        check_examples("python-line", described, Settings(seed=1), examples, task).verdict == "ok"
    )
    facts["splits"]["python-line-test"] |= {"sha256": "0"}
    found = check_examples("python-line", described, Settings(seed=1), examples, task)
    assert (found.verdict, "sha256 is '0'" in found.sentence) == ("FAILED", True)
