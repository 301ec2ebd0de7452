"""Tables of made-up repeats, compared with numbers calculated by hand."""

from typing import Any

import pandas as pd
import pytest

from specbench.analysis.tables import benchmark
from specbench.config import EAGER
from specbench.methods.registry import to_columns

BANDWIDTH = 1e9
# Bytes per round and seconds per round, by system; a repeat has four rounds of two texts. Rounds
# with full rows take 0.8 of that.
COSTS = {"autoregressive": (3e8, 0.5), "sd": (4e8, 1.0), "diversed": (4e8, 1.1)}
TOKENS = {"autoregressive": 8, "sd": 24, "diversed": 24}


def measured(acceptances: tuple[str | None, ...] = (None,)) -> benchmark.Measured:
    """Ten repeats of every system at batch 1 and 2."""
    rows: list[dict[str, Any]] = []
    systems: list[dict[str, Any]] = []
    for size in (1, 2):
        for method, (read, seconds) in COSTS.items():
            n = 0 if method == "autoregressive" else 5
            for rate in acceptances if n else (None,):
                head = {"head": "untrained"} if method == "diversed" else {}
                forced = {"acceptance": rate} | ({"of": method} if head else {})
                system = {"batch_size": size, "engine": EAGER, "draft_length": n}
                system |= {"method": "synthetic" if rate else method}
                system |= to_columns(head | (forced if rate else {}))
                systems.append(
                    system
                    | {"warm_up_seconds": 2.0, "bytes_per_round": read, "pair": "mini"}
                    | {"device": "cpu", "dtype": "float32", "temperature": 1.0}
                    | {"prompt_tokens": 512, "new_tokens": 128}
                )
                for repeat in range(10):
                    texts = [_text(method, seconds)] * 2
                    rows += [system | {"block": repeat} | text for text in texts]
    return benchmark.Measured(
        benchmark.repeats_of(benchmark.with_forced(pd.DataFrame(rows))),
        benchmark.with_forced(pd.DataFrame(systems)),
        BANDWIDTH,
    )


def _text(method: str, seconds: float) -> dict[str, Any]:
    """One of two texts that share four rounds, of which the last two had an empty row."""
    whole, drafts = 2 * seconds, method != "autoregressive"
    return {
        **{"output_tokens": TOKENS[method] // 2, "rounds": 4, "shared_rounds": 2.0},
        "acceptance_length": TOKENS[method] / 8 if drafts else None,
        **{"full_rounds": 2, "full_seconds": 0.8 * whole / 2},
        **{"proposed": 20 * drafts, "judged": 10 if drafts else None},
        **{"accepted": 8 if drafts else None, "prefill_seconds": 0.125, "decode_seconds": whole},
        **{"draft_seconds": 0.5 * whole * drafts, "verify_seconds": 0.3 * whole},
        "accept_seconds": 0.1 * whole,
    }


def row(table: pd.DataFrame, engine: str, method: str, size: int = 1) -> pd.Series:
    rows = table.query("engine == @engine and method == @method and batch_size == @size")
    assert len(rows) == 1
    return rows.iloc[0]


WORKED = {  # of `sd`
    "tokens_per_second": 24 / 4 / 0.8,
    "tokens_per_second_low": 7.5,
    "tokens_per_second_high": 7.5,
    "tokens_per_second_with_prompts": 24 / (4 * 0.8 + 0.25),
    "tokens_per_second_of_all_rounds": 24 / 4,
    **{"acceptance_length": 3, "draft_acceptance_rate": 0.4, "position_acceptance": 0.8},
    **{"draft_step_seconds": 0.1, "draft_seconds": 0.5, "verify_seconds": 0.3},
    **{"accept_seconds": 0.1, "other_seconds": 0.1, "round_seconds": 1.0},
    **{"prefill_seconds": 0.125, "limit_seconds": 0.4, "limit_share": 0.4},
    "bytes_per_second": 4e8,
}


def test_figures_of_systems_are_blank_if_unknown():
    table, _ = benchmark.bench_tables(measured())
    sd, step = row(table, EAGER, "sd"), row(table, EAGER, "autoregressive")
    assert sd[list(WORKED)].to_dict() == pytest.approx(WORKED)
    assert step["limit_share"] == pytest.approx(0.6)
    assert step[["position_acceptance", "draft_step_seconds"]].isna().all()


RATIOS: list[tuple[str, str, str, int, float]] = [
    (benchmark.OVER_AUTOREGRESSIVE, EAGER, "sd", 1, (24 / 4) / (8 / 2)),
    (benchmark.ROUND_OVER_SD, EAGER, "diversed", 1, 1.1),
    (benchmark.OVER_ONE, EAGER, "sd", 2, 1.0),
]


def test_ratios_of_systems():
    _, ratios = benchmark.bench_tables(measured())
    for kind, engine, method, size, expected in RATIOS:
        ratio = row(ratios[ratios["ratio"] == kind], engine, method, size)
        assert ratio[["value", "low", "high"]].tolist() == pytest.approx([expected] * 3)
        assert ratio["n"] == 10
    labels = (
        ratios["engine"] + " " + ratios["method"] + ", batch " + ratios["batch_size"].astype(str)
    )
    assert not (labels == ratios["over"]).any()
    assert ratios["ratio"].value_counts().to_dict() == {
        benchmark.OVER_AUTOREGRESSIVE: 4,
        benchmark.ROUND_OVER_SD: 2,
        benchmark.OVER_ONE: 3,
    }


def test_a_forced_system_is_compared_with_one_of_the_same_acceptance():
    _, ratios = benchmark.bench_tables(measured(("0.5", "0.8")))
    over_one = ratios[ratios["ratio"] == benchmark.OVER_ONE].query("method == 'sd'")
    assert over_one["forced_acceptance"].tolist() == [0.5, 0.8]
    over = ratios[ratios["ratio"] == benchmark.OVER_AUTOREGRESSIVE]
    assert over.query("engine == 'eager' and method == 'sd' and batch_size == 1").shape[0] == 2


def test_systems_faster_than_memory_get_a_warning():
    table, _ = benchmark.bench_tables(measured())
    assert not list(benchmark.warnings(table))
    table.loc[0, ["limit_share", "bytes_per_second"]] = [1.5, 1.5e9]
    (text,) = benchmark.warnings(table)
    assert "eager autoregressive at batch 1 reads 1.50 GB/s, but copies reach only 1.00" in text


def test_there_is_a_table_per_batch_size_without_empty_columns():
    plain, two = measured(), measured(("0.5/0.25",))
    first, second, ratios = benchmark.tables(*benchmark.bench_tables(plain))
    assert (len(first.rows), len(second.rows)) == (3, 3)
    assert len(ratios.rows) == 9
    forced, *_ = benchmark.tables(*benchmark.bench_tables(two))
    headings = [[column.heading for column in table.columns] for table in (first, forced)]
    assert ["forced" in names for names in headings] == [False, True]
