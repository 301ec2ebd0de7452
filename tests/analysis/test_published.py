"""The published numbers, and the measurements that they are compared with."""

import pandas as pd
import pytest

from specbench.analysis.main_table import main_table
from specbench.analysis.published import beside_published, published, published_table, remarks
from specbench.engine.pairs import pairs
from specbench.methods.registry import METHODS
from specbench.runs.frames import SAMPLES, SUMMARY, typed

CELL = {
    **{"pair": "llama", "task": "gsm8k", "method": "diversed", "head": "results"},
    **{"temperature": 1.0, "draft_length": 5, "metric": "accuracy"},
    **{"engine": "eager", "batch_size": 1, "session": 0, "n": 100},
}


def own(*cells):
    """Main tables of cells with 70 % accepted and a quality of 0.5, by figure."""
    rows = []
    for number, changes in enumerate(cells):
        cell = CELL | {"run_id": f"{number}"} | changes
        rate = 0.7 if cell["draft_length"] else None
        rows += [
            cell | {"metric": "draft_acceptance_rate", "value": rate, "unit": "fraction"},
            cell | {"metric": "quality", "value": 0.5, "unit": cell["metric"]},
            cell | {"metric": "speedup", "value": 1.5, "unit": "x"},
        ]
    summary = pd.DataFrame(rows).reindex(columns=list(SUMMARY))
    samples = typed(pd.DataFrame(columns=list(SAMPLES)), SAMPLES, "the test")
    table = beside_published(main_table(typed(summary, SUMMARY, "the test"), samples))
    found = dict(list(table.groupby("run_id")))
    return [found[f"{number}"].set_index("figure") for number in range(len(cells))]


def test_the_file_is_the_papers_tables():
    table = published()
    assert table.groupby("source").size().to_dict() == {
        **{"table1": 72, "finetuned_draft": 24, "transfer": 4}
    }
    key = ["pair", "trained_on", "task", "method", "temperature", "draft_length"]
    assert not table.duplicated(key).any()
    assert set(table["pair"]) <= set(pairs())
    assert set(table["method"]) - set(METHODS) == {"sd-finetuned-draft"}
    drafted = table["method"] != "autoregressive"
    assert (table["acceptance_rate_pct"].notna() == drafted).all()


def test_the_difference_is_between_the_displayed_numbers():
    alone = {"method": "autoregressive", "head": None, "draft_length": 0}
    found, *others = own({}, alone, alone | {"pair": "llama+gsm8k"})  # any draft and draft length
    rate, quality = found.loc["draft_acceptance_rate"], found.loc["quality"]
    assert (rate["published"], quality["published"]) == (72.61, 67)
    assert rate["difference"] == pytest.approx(70 - 72.61)
    assert quality["difference"] == pytest.approx(50 - 67)
    assert pd.isna(found.loc["speedup", "published"])  # the paper's table has no such value
    assert remarks(found.reset_index()) == []
    assert [other.loc["quality", "published"] for other in others] == [67, 67]


def test_measurements_are_matched_with_published_numbers():
    expected = (
        ({}, 72.61),
        ({"pair": "qwen3", "temperature": 0.1}, 90.26),
        ({"method": "sd", "head": None}, 44.60),
        ({"method": "static", "head": None, "weight": 0.9}, 69.49),
        # A head of another task, by name or folder, is the paper's transfer setting.
        ({"task": "cnndm", "head": "gsm8k"}, 51.07),
        ({"task": "cnndm", "head": "results/heads/llama/gsm8k/head.json"}, 51.07),
        ({"task": "cnndm", "head": "results/heads/llama/acceptance-0.9"}, 69.96),
        ({"task": "cnndm", "head": "xsum"}, None),
        ({"head": "untrained"}, None),
        # A draft fine-tuned on the task.
        ({"pair": "llama+gsm8k", "method": "sd", "head": None}, 66.44),
        ({"pair": "llama+gsm8k", "task": "xsum", "method": "sd", "head": None}, None),
        ({"pair": "llama+gsm8k"}, None),
        # Other settings, tasks and pairs.
        ({"draft_length": 7}, None),
        ({"pair": "mini"}, None),
    )
    for table, (cell, rate) in zip(own(*(cell for cell, _ in expected)), expected, strict=True):
        found = table.loc["draft_acceptance_rate"]
        assert found["published"] == rate if rate else pd.isna(found["published"]), cell
        assert pd.isna(found["source"]) == (rate is None), cell


def test_missing_comparisons_are_noted():
    xsum, xsum_32, mini, known, other = own(
        {"task": "xsum", "metric": "rouge2"},
        {"task": "xsum", "metric": "rouge2-32"},
        {"pair": "mini"},
        {},
        {"task": "humaneval", "metric": "pass@1"},
    )
    assert xsum.loc["draft_acceptance_rate", "published"] == 70.53
    assert pd.isna(xsum.loc["quality", "published"])
    (said,) = remarks(xsum.reset_index())
    assert "xsum is not compared: rouge2 here, rouge2-32 in the paper" in said
    assert xsum_32.loc["quality", "published"] == 7.23
    (said,) = remarks(mini.reset_index())
    assert "pairs are llama, qwen3, gemma3, its tasks gsm8k, cnndm, xsum, mbpp, T = 0.1, 1" in said
    (said,) = remarks(pd.concat([known, other]).reset_index())
    assert "humaneval" in said


def test_the_papers_table_has_all_its_numbers():
    table = published_table()
    numbers = published().query("source == 'table1'")
    shown = [cell.text if hasattr(cell, "text") else cell for row in table.rows for cell in row[2:]]
    wanted = pd.concat([numbers["acceptance_rate_pct"], numbers["quality"]]).dropna()
    assert sorted(map(float, filter(None, shown))) == pytest.approx(sorted(wanted))
    assert [row[:2] for row in table.rows[:2]] == [["llama", "autoregressive"], ["llama", "sd"]]
