"""Finished runs as data frames: ``specbench.load``, and acceptance by position."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import specbench
from specbench.analysis.results import Results
from specbench.analysis.statistics import positions
from specbench.analysis.tables.table import to_text
from specbench.errors import UsageError
from specbench.files import stored
from specbench.runs.tables import schema

from ..synthetic import RECORD, samples, write_samples
from ..told import refusals
from .figures.made import rounds_of

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
ROUNDS: dict[str, list[Any]] = {
    **{"proposed": [3, 3, 1], "accepted": [3, 1, 0], "emitted": [4, 2, 1]},
    "expected": [[1.0, 0.5, 0.75], [0.25, 0.75], []],
    **{"weights": [[0.5, 0.5, 0.5], [0.5, 0.5], []], "rejected": [None, 17, 9]},
    "agreed": [[True, False, True], [True], []],
}


def record(**changes: Any) -> dict[str, Any]:
    static = {"method": "static", "weight": 0.5, "draft_length": 3}
    return {**RECORD, **static, "token_ids": [], "per_round": ROUNDS, **changes}


def run_of(folder: Path, *records: dict[str, Any], packed: bool = False) -> Path:
    folder.mkdir()
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    if packed:
        (folder / "samples.jsonl.gz").write_bytes(gzip.compress(text))
    else:
        (folder / "samples.jsonl").write_bytes(text)
    return folder


@pytest.fixture(scope="module")
def reference() -> Results:
    """The reference run, whose tables are read once."""
    return specbench.load(REFERENCE)


def test_the_reference_run_as_frames(reference, stored):
    (run,) = reference.runs.to_dict("records")
    assert list(reference.runs) == list(schema("runs"))
    stored(*(f"{name}: {value}" for name, value in run.items() if name != "folder"))
    assert run["samples"] == len(reference.samples) == 24_000
    of_sd = "task == 'mini-math' and method == 'sd'"
    speedup = reference.summary.query(f"{of_sd} and metric == 'speedup'")
    assert reference.cells.query(of_sd)["speedup"].item() == speedup["value"].item()
    assert reference.samples is reference.samples


def test_each_round_is_a_row_that_identifies_its_sample(tmp_path, stored):
    run_of(tmp_path / "run", record(), record(sample_id="b", weight=None, method="sd"))
    rounds = specbench.load(tmp_path / "run").rounds
    assert list(rounds) == list(schema("rounds"))
    names = ["sample_id", "weight", *list(schema("rounds"))[-8:]]
    stored(rounds[names].to_csv(index=False))
    types = rounds[["round", "accepted", "rejected"]].dtypes.tolist()
    assert types == ["int64", "int64", "float64"]


def test_rounds_of_packed_records_and_without_the_rejected_tokens(tmp_path):
    per_round = {name: ROUNDS[name] for name in ROUNDS if name not in ("rejected", "agreed")}
    run_of(tmp_path / "old", record(run_id="old", per_round=per_round), packed=True)
    run_of(tmp_path / "new", record(run_id="new"))
    rounds = specbench.load([tmp_path]).rounds
    assert list(rounds["run_id"]) == ["new"] * 3 + ["old"] * 3
    assert rounds["agreed"].isna().tolist() == [False] * 3 + [True] * 3
    assert rounds["rejected"].isna().tolist() == [True, False, False] + [True] * 3


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_that_lack_a_list_are_blank_or_located(tmp_path, name):
    per_round = {other: ROUNDS[other] for other in ROUNDS if other != name}
    folder = run_of(tmp_path / "run", record(), record(per_round=per_round, turn=2))
    results = specbench.load(folder)
    column = {"expected": "expected_acceptance", "weights": "mean_weight"}.get(name, name)
    if name in ("proposed", "accepted", "emitted"):
        with pytest.raises(UsageError, match=rf"samples\.jsonl: {name} in data row 4 is blank"):
            _ = results.rounds
    else:
        assert results.rounds[column].isna().tolist()[3:] == [True] * 3


def test_only_the_last_attempt_of_a_sample_counts(tmp_path):
    failed = {name: value for name, value in record().items() if name != "per_round"}
    short = {name: values[:1] for name, values in ROUNDS.items()}
    tried = [failed | {"status": "error"}, record(), record(per_round=short)]
    run_of(tmp_path / "run", *(each | {"key": "k"} for each in tried))
    assert len(specbench.load(tmp_path / "run").rounds) == 1


def test_a_run_keeps_its_name_in_a_renamed_folder(tmp_path):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("samples.csv", "config.json"):
        shutil.copy(stored(REFERENCE / name), moved)
    (run,) = specbench.load(moved).runs.to_dict("records")
    assert run["run_id"] == "reference"
    assert Path(run["folder"]) == moved
    assert pd.isna(run["device"])


def test_tables_print_the_new_name_of_a_renamed_folder(tmp_path):
    """Not of two whose new names are equal, or equal to the old name of another."""
    folders = [tmp_path / place for place in ("a/one", "a/two", "b/two", "b/three")]
    recorded = ("first", "second", "third", "one")
    for folder, name in zip(folders, recorded, strict=True):
        write_samples(folder, samples({}, run_id=name))

    def printed(*paths):
        results = Results(paths, by_folder=True)
        assert {*results.summary["run_id"]} == {*results.decodes["run_id"]}
        return list(results.cells["run_id"])

    assert printed(folders[0]) == ["one"] and Results(folders[:1]).cells["run_id"][0] == "first"
    assert printed(*folders[:2]) == ["one", "two"]
    assert printed(*folders) == ["first", "second", "third", "three"]


def test_missing_data_is_one_line(tmp_path, stored):
    (tmp_path / "empty").mkdir()
    empty = specbench.load(tmp_path / "empty")
    without = specbench.load(run_of(tmp_path / "run"))
    asked = lambda: specbench.load([tmp_path / "nowhere"]), lambda: empty.rounds
    stored(refusals(*asked, lambda: without.positions))


def test_loaded_runs_draw_figures_and_display_themselves(reference):
    html = reference._repr_html_()
    assert html.count("<table") == 1 + 4
    assert html.count("<caption>") == html.count("aria-label") == 4  # that of the runs has no title
    assert "mini-math" in html and "24000" in html and "static w=0.5" in html
    figure = reference.plot("pareto", against=["acceptance"])
    assert len(figure.axes) == 4
    assert figure._repr_png_().startswith(b"\x89PNG")
    for name, style in (("training", "paper"), ("no", "paper"), ("pareto", "no")):
        with pytest.raises(UsageError):
            reference.plot(name, style=style)


def shares(table: pd.DataFrame, kind: str) -> list[tuple[int, int, float]]:
    rows = table[table["kind"] == kind]
    return list(zip(rows["position"], rows["rounds"], rows["value"], strict=True))


def test_by_hand_without_drafts_after_the_end_of_a_text():
    rounds = rounds_of({"sd": [[3, 0, 1], [2, 1]], "autoregressive": [[0, 0]]}).rounds
    rounds.loc[rounds["method"] == "autoregressive", "proposed"] = 0
    rounds.loc[4, "proposed"] = 1  # the last text ended with the draft that was accepted
    table = positions.acceptance_by_position(rounds)
    assert list(table) == list(schema("positions"))
    assert shares(table, positions.MARGINAL) == [(1, 5, 0.8), (2, 4, 0.5), (3, 4, 0.25)]
    assert shares(table, positions.CONDITIONAL) == [(1, 5, 0.8), (2, 3, 2 / 3), (3, 2, 0.5)]
    with pytest.raises(UsageError, match="drafts"):
        positions.acceptance_by_position(rounds[rounds["method"] == "autoregressive"])


def test_positions_pool_to_the_rates_of_the_summary():
    results = specbench.load(REFERENCE.parent / "published" / "humaneval-T0")
    table = results.positions.assign(accepted=lambda t: t["value"] * t["rounds"])
    names = ["task", "method", "weight", "head", "kind"]
    pooled = table.groupby(names, dropna=False)[["accepted", "rounds"]].sum()
    pooled = (pooled["accepted"] / pooled["rounds"]).unstack()
    cells = results.cells.set_index(names[:-1])
    for kind, metric in (
        (positions.MARGINAL, "draft_acceptance_rate"),
        (positions.CONDITIONAL, "conditional_acceptance_rate"),
    ):
        expected = cells[metric].dropna().sort_index()
        assert len(expected) == len(pooled) == 8
        assert pooled[kind].to_numpy() == pytest.approx(expected.to_numpy(), abs=1e-9)
    control = (pooled[positions.MARGINAL] - pooled[positions.CONDITIONAL]).abs()
    assert (control > 0.005).sum() == 6  # w = 0 accepts all, and so does one of the heads


def test_rounds_of_a_prompt_are_one_cluster():
    """Copies of each prompt's rounds carry no news of other prompts."""
    accepted = [[i % 4, (i * 7) % 4] for i in range(40)]
    few, many = (
        positions.acceptance_by_position(
            rounds_of({"sd": [sample * k for sample in accepted]}).rounds
        )
        for k in (1, 25)
    )
    width, same = (table["ci_high"] - table["ci_low"] for table in (few, many))
    independent = positions.acceptance_by_position(rounds_of({"sd": accepted * 25}).rounds)
    assert (same > 0.6 * width).all()
    narrow = (independent["ci_high"] - independent["ci_low"])[width > 0.05]
    assert (narrow < 0.3 * width[width > 0.05]).all()
    assert independent["n"].max() == 1000 and many["n"].max() == 40


def test_the_table_fits_80_columns_and_shows_intervals_on_request():
    results = rounds_of({m: [[3, 0, 1], [2, 1]] * 10 for m in ("sd", "diversed")})
    (plain,) = positions.position_tables(results.positions)
    (told,) = positions.position_tables(results.positions, intervals=True)
    assert [len(table.rows) for table in (plain, told)] == [4, 4]
    assert not any(cell.interval for cell in plain.rows[0][2:])
    assert all(cell.interval for cell in told.rows[0][2:])
    assert max(map(len, to_text(told, width=80).splitlines())) <= 80
