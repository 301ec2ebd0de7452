"""``specbench verify`` notices edits of a run, or names what it cannot check."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from specbench.analysis.written import write_tables
from specbench.cli import runs
from specbench.runs.configuration import Settings, TaskConfig
from specbench.tasks.task import load_task
from specbench.validation.verification.plan import check_examples

from ..synthetic import records
from .made import Values, configure, edit_object, edit_records, edit_rows, lines

PLAN, EXAMPLES = "samples are those of the plan", "examples are those of the task"
SETTINGS, COUNTS = "settings are those of the plan", "counts follow from rounds"
SCORED, NOT_CHECKED, TEXTS = "texts scored again", "not checked", "texts follow from tokens"
SAMPLES, SUMMARY = (f"{name}.csv follows from samples.jsonl" for name in ("samples", "summary"))


def drop(run: Path, unwanted: Callable[[Values], bool]) -> int:
    """Drop records, and write tables and progress that follow."""
    lines(run / "samples.jsonl", lambda rows: [row for row in rows if not unwanted(row)])
    write_tables(run)
    left = len(records(run))
    configure(run, lambda config: config["progress"].update(samples=left))
    return left


def drop_of_one_method(run: Path) -> None:
    drop(run, lambda row: (row["method"], row["sample_id"]) == ("diversed", "test-0"))


def drop_of_all_methods(run: Path) -> None:
    left = drop(run, lambda row: row["sample_id"] == "test-0")
    lines(run / "examples.jsonl", lambda rows: [row for row in rows if row["id"] != "test-0"])

    def fit(config: Values) -> None:
        config["samples_planned"] = left
        for task in config["tasks"]:
            task["examples"] = 1

    configure(run, fit)


def own_texts_as_references(run: Path) -> None:
    texts = {(r["task"], r["sample_id"], r["method"]): r["text"] for r in records(run)}

    def edit(examples: list[Values]) -> list[Values]:
        return [
            each | {"reference": texts[each["task"], each["id"], "diversed"]} for each in examples
        ]

    lines(run / "examples.jsonl", edit)


def with_worth(config: Values) -> None:
    for task in config["tasks"]:
        for cell in task["cells"]:
            if "head" in cell:
                cell["head"]["worth"] = "as good as the target"


def renamed(run: Path) -> None:
    configure(run, lambda config: config["pair"].update(name="llama"))
    with_values(pair="llama")(run)


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


Edit = Callable[[Path], object]


def in_config(change: Callable[[Values], object]) -> Edit:
    return lambda run: configure(run, change)


def setting(**values: object) -> Edit:
    return in_config(lambda config: config["settings"].update(values))


def in_records(change: Callable[[Values], object]) -> Edit:
    return lambda run: edit_records(run, lambda rows: [change(row) for row in rows])


def in_one(change: Callable[[Values], object]) -> Edit:
    return lambda run: edit_records(run, lambda rows: change(rows[0]), "diversed")


def in_table(file: str, change: Callable[[list[Values]], object]) -> Edit:
    return lambda run: edit_rows(run / file, change)


def in_row(file: str, **values: object) -> Edit:
    return in_table(file, lambda rows: rows[0].update(values))


def with_values(**values: object) -> Edit:
    return in_records(lambda row: row.update(values))


def scored(**scores: float) -> Edit:
    return in_records(lambda row: row["scores"].update(scores))


def without_metrics(run: Path) -> None:
    """Name no metric, so that nothing seems to score the texts, and invent scores."""
    configure(run, lambda config: [task.update(metrics=[]) for task in config["tasks"]])
    in_records(lambda row: row.update(quality=1.0, scores=dict.fromkeys(row["scores"], 1.0)))(run)


def in_frame(file: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Edit:
    return lambda run: change(pd.read_csv(run / file, dtype="str")).to_csv(run / file, index=False)


def replaced_on_the_page(run: Path) -> None:
    before = (run / "summary.md").read_text()
    assert "sd" in before
    (run / "summary.md").write_text(before.replace("sd", "gs"))


def unlike_machine(run: Path) -> None:
    def change(facts: Values) -> None:
        facts["cpu"]["model"], facts["packages"]["torch"] = "faster", "9.9"

    edit_object(run / "environment.json", change)


FIRST = "mini-math, diversed, N = 3, test-0: "
# The edit, the one check that fails, and words of what ``verify`` says.
EDITS: dict[str, tuple[Edit, str, str]] = {
    "prompts dropped of one method": (drop_of_one_method, PLAN, "test-0: is missing"),
    "prompts dropped of all": (drop_of_all_methods, EXAMPLES, "is not an example of the plan"),
    "references": (own_texts_as_references, EXAMPLES, ""),
    "samples_planned": (in_config(lambda c: c.update(samples_planned=7)), PLAN, "is 7, not 6"),
    "data": (
        *(in_config(lambda c: c["tasks"][0]["data"].update(generator="gsm8k")), EXAMPLES),
        "data.generator is 'gsm8k'",
    ),
    "worth": (in_config(with_worth), "heads are those of the run", "worth is 'as good as"),
    "pair": (renamed, SETTINGS, "the pair is llama, but its models are those of mini"),
    "processor and versions": (unlike_machine, "", "times; the machine and its software"),
    "all times": (in_records(halved), "", "times;"),
    "dtype": (
        *(in_config(lambda config: config["loading"].update(dtype="bfloat16")), SETTINGS),
        "dtype is bfloat16 in the configuration and float32 in the environment",
    ),
    "engine": (setting(engine="compile"), SETTINGS, "engine is 'eager', not 'compile'"),
    "batch size": (setting(batch_size=8), SETTINGS, "batch_size is 1, not 8"),
    "temperature": (setting(temperature=0.5), PLAN, "is not planned"),
    "device": (
        *(with_values(device="node cuda:1"), SETTINGS),
        "devices are `cuda` in samples and cpu in the environment",
    ),
    "two runs": (in_records(lambda row: row.update(run_id=row["method"])), SETTINGS, "run_id has"),
    "expected acceptance": (in_records(raised), COUNTS, "expected_acceptance is"),
    "qualities left out": (in_records(blanked), SCORED, "scores.accuracy is None"),
    "a score named as a column": (scored(accepted=0.9), SCORED, "accepted is not a metric of"),
    "quality as a score": (scored(quality=1.0), SCORED, "quality is not a metric of the run"),
    "scores of no metric": (scored(goodness=1.0), SCORED, "goodness is not a metric of the run"),
    "metrics left out": (without_metrics, f"{SETTINGS}, {SCORED}", "quality_metric is"),
    "a category": (with_values(category="hard"), SETTINGS, "category is 'hard', not None"),
    "rounds left out": (with_values(per_round={}), COUNTS, ""),
    "drafts": (in_one(lambda row: row.update(accepted=99)), COUNTS, f"{FIRST}accepted is 99"),
    "weight": (in_one(lambda row: row.update(mean_weight=0.2)), COUNTS, f"{FIRST}mean_weight is"),
    "quality": (in_one(lambda row: row.update(quality=0.5)), SCORED, f"{FIRST}quality is 0.5"),
    "texts without tokens": (
        in_records(lambda r: r.update(text=r["text"] * 2, token_ids={"sd": [5]}.get(r["method"]))),
        *(f"{COUNTS}, {TEXTS}", "text is"),
    ),
    "a column more": (
        *(in_frame("samples.csv", lambda t: t.assign(goodness="1")), SAMPLES),
        "goodness is not in samples.jsonl",
    ),
    "a column less": (
        *(in_frame("samples.csv", lambda t: t.drop(columns="quality")), SAMPLES),
        "has no column quality",
    ),
    "a cell": (in_row("samples.csv", accepted="99"), SAMPLES, "test-0: accepted is 99"),
    "a row less": (in_table("samples.csv", list.pop), SAMPLES, "is missing from samples.csv"),
    "a row twice": (
        *(in_table("samples.csv", lambda rows: rows.append(rows[0])), SAMPLES),
        "test-0: repeats an earlier row",
    ),
    "half a row": (in_row("samples.csv", method="", sample_id=""), SAMPLES, "mini-math"),
    "an id": (in_row("samples.csv", sample_id="x"), SAMPLES, "x: is not in samples.jsonl"),
    "a value": (in_row("summary.csv", value="0.123"), SUMMARY, "quality: value is 0.123"),
    "no row": (in_table("samples.csv", list.clear), SAMPLES, "is missing from samples.csv"),
    "no figure": (in_table("summary.csv", list.clear), SUMMARY, "quality: is missing from"),
    "a task": (
        in_one(lambda row: row.update(task="other")),
        f"{PLAN}, {TEXTS}",
        "its task is not in config.json",
    ),
    "a length in words": (
        *(in_row("summary.csv", draft_length="many", settings="odd"), SUMMARY),
        "is not in samples.jsonl",
    ),
    "a value less": (in_table("summary.csv", list.pop), SUMMARY, "is missing from summary.csv"),
    "no page": (
        lambda run: (run / "summary.md").unlink(),
        "summary.md follows from samples.jsonl",
        "is missing: `specbench score RUN` writes it anew",
    ),
    "the page": (replaced_on_the_page, "summary.md follows from samples.jsonl", "score RUN"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_noticed_or_named(cli, run, name):
    edit, check, words = EDITS[name]
    edit(run)
    shown = cli("verify", "r", "-n", "0", "--json", code=1 if check else 0)
    findings = json.loads(shown.out)
    failed = sorted({f["name"] for f in findings if f["verdict"] == "FAILED"})
    assert ", ".join(failed) == check
    told = [f["sentence"] for f in findings if f["verdict"] == ("FAILED" if check else NOT_CHECKED)]
    assert any(words in sentence for sentence in told), told


def test_the_samples_that_are_decoded_again_cannot_be_foreseen(cli, one_task, monkeypatch):
    monkeypatch.setattr(runs, "randbelow", lambda _: 4711)
    for options, seed in (((), 4711), (("--seed", "8"), 8)):
        shown = cli("verify", str(one_task), "-n", "1", *options)
        assert f"not decoded again (--seed {seed} chose the others)" in " ".join(shown.out.split())


def test_a_task_of_another_version_is_named_in_the_answer(cli, run):
    assert "were not compared" not in cli("verify", "r", "-n", "0", code=0).out
    configure(run, lambda config: config["tasks"][0].update(version="99"))
    said = " ".join(cli("verify", "r", "-n", "0", code=0).out.split())
    assert "the data of mini-math were not compared" in said


def test_keys_that_no_sample_has_are_named(cli, run):
    """One sample has none; then all files agree on a batch size, which the texts do not show."""
    in_one(lambda row: row.update(key=""))(run)
    assert "made with another" in cli("verify", "r", "-n", "9", code=1).out
    configure(run, lambda config: config["settings"].update(batch_size=2))
    with_values(batch_size=2)(run)
    (run / "report.html").touch()
    said = " ".join(cli("verify", "r", "-n", "1").out.split())
    assert "keys of samples, since none matches: another version, or changed settings" in said
    assert "3 samples that were not decoded again (--seed " in said
    assert "other files: `report.html`" in said


def test_the_digest_of_the_data_is_compared():
    task = load_task("python-line")
    examples = {example.id: example for example in task.examples("test", 2, 1)}
    facts = copy.deepcopy(task.provenance())
    described = TaskConfig(name="t", examples=2, data=facts, version=task.version)
    found = check_examples("python-line", described, Settings(seed=1), examples, task)
    assert found.verdict == "ok"
    facts["splits"]["python-line-test"] |= {"sha256": "0"}
    finding = check_examples("python-line", described, Settings(seed=1), examples, task)
    assert (finding.verdict, "sha256 is '0'" in finding.sentence) == ("FAILED", True)
