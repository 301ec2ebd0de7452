"""What tables and sentences tell of made runs, compared with the texts in ``tests/data/told``.

After a change that is meant, ``SPECBENCH_REWRITE=1`` writes them again; read the difference.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specbench.analysis.statistics.summary import summarise
from specbench.analysis.tables.main_table import main_table, typeset
from specbench.analysis.tables.published import beside_published
from specbench.analysis.tables.table import to_text
from specbench.analysis.tables.verdict_tables import (
    comparison_tables,
    margin_tables,
    verdict_tables,
)
from specbench.analysis.verdicts.compare import by_task, compare, verdict_rows, verdicts
from specbench.analysis.verdicts.margin import margin_rows
from specbench.analysis.verdicts.sentences import OUTCOMES
from specbench.tasks.metrics import AGREEMENT

from ..synthetic import samples as synthetic
from ..told import check
from .conftest import timed_again, with_alone
from .test_main_table import five
from .test_margin import SERVER, answers

Run = Callable[..., pd.DataFrame]


def changed(run: pd.DataFrame, method: str, **columns: Any) -> pd.DataFrame:
    """A run with other values of one method."""
    is_method = run["method"] == method
    return run.assign(**{n: run[n].mask(is_method, value) for n, value in columns.items()})


def cooled(run: pd.DataFrame) -> pd.DataFrame:
    """A run with a lower temperature as a control, which gains as much as ``typical``."""
    setting = "both_temperature=0.5 both_min_p=0 cooled_weight=1"
    return pd.concat(
        [run, run[run["method"] == "typical"].assign(method="cooled", settings=setting)]
    )


def marked(run: pd.DataFrame, method: str) -> pd.DataFrame:
    """Of the tokens of one method, 5 of 20 are inside, with 9 of 10 drafts accepted."""
    inside = {"inside_emitted": 5.0, "inside_proposed": 10.0, "inside_accepted": 9.0}
    return run.join(pd.DataFrame(inside, run.index).where(run["method"] == method))


def longer(run: pd.DataFrame) -> pd.DataFrame:
    """Another draft length at nine tenths of the time."""
    return pd.concat([run, run.assign(draft_length=8, decode_seconds=0.9 * run["decode_seconds"])])


VERDICTS: dict[str, Callable[[Run], pd.DataFrame]] = {
    "speculation pays": lambda run: with_alone(run(times=1.3), 1.5),
    "speculation does not pay": lambda run: with_alone(run(times=1.3), 0.4),
    "speculation is open": lambda run: with_alone(run(times=1.3), 1 / 1.3),
    "texts of half the length": lambda run: with_alone(
        changed(run(times=1.75), "typical", output_tokens=10), 1.5
    ),
    "prompts that one method lacks": lambda run: run(n=50)[
        lambda rows: (rows["method"] != "typical") | (rows["sample_id"] >= "p020")
    ],
    "weights near sd": lambda run: run(front=(0.7, 0.8, 0.8)),
    "below weights near sd": lambda run: run(front=(0.7, 0.8, 0.8), better=-0.4),
    "faster and worse": lambda run: run(times=1.3, better=-0.3),
    "worse": lambda run: run(better=-0.3),
    "slower and better": lambda run: run(times=0.8, better=0.15),
    "slower": lambda run: run(times=0.8),
    "one speed": lambda run: run(),
    "faster without quality": lambda run: run(times=1.3).assign(quality=None, quality_metric=None),
    "one method without quality": lambda run: changed(run(n=30), "typical", quality=np.nan),
    "no quality": lambda run: run(n=30).assign(quality=np.nan),
    "a coarse front": lambda run: run(front=(0.0, 0.2, 0.72), better=-0.1),
    "a lower temperature": lambda run: cooled(run()),
    "agreement, sampled": lambda run: run().assign(quality_metric=AGREEMENT),
    "agreement, greedy": lambda run: run().assign(quality_metric=AGREEMENT, temperature=0.0),
    "weights below a coin": lambda run: run(front=(0.2, 0.3, 0.35)),
    "two draft lengths": lambda run: longer(run(times=1.3)),
    "two drafters": lambda run: pd.concat(
        [run(times=1.5), run(times=1.5)[lambda r: r["draft_length"] > 0].assign(drafter="lookup")],
        ignore_index=True,
    ),
    "within the noise": lambda run: pd.concat(
        [run(times=1.1), timed_again(run(times=1.1), "a-a", 1.2)]
    ),
    "batches without blocks": lambda run: with_alone(run(times=1.3, better=-0.3), 1.5).assign(
        batch_size=50
    ),
    "few prompts": lambda run: run(n=9, times=1.3),
    "one prompt": lambda run: run(n=1, times=1.3),
    "tokens between marks": lambda run: marked(run(n=20), "typical"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(planted, name):
    compared = compare(VERDICTS[name](planted))
    judged = verdicts(compared.rows)
    outcomes = judged[["label", *OUTCOMES]].to_csv(index=False)
    sentences = [line for lines in by_task(judged).items() for line in (lines[0], *lines[1])]
    tables = [*verdict_tables(compared.rows), *comparison_tables(compared.rows)]
    parts = [outcomes, *sentences, *compared.notes, to_text(*tables, width=120)]
    check(f"verdicts/{name}", "\n".join(parts))


def arms(**changes: Any) -> pd.DataFrame:
    """Forty answers of a plain server and of a fast one, of which some are other than usual."""
    plain, fast = (answers(np.ones(40), method=name, **SERVER) for name in ("plain", "fast"))
    return synthetic(*plain, *({**row, **changes} for row in fast))


def unusual() -> pd.DataFrame:
    """The fast arm writes less, at times nothing, refuses, and repeats requests."""
    run = arms(output_tokens=30)
    is_fast, number = run["method"] == "fast", np.arange(80)
    run.loc[is_fast & (number >= 77), "output_tokens"] = 1
    return run.assign(
        retries=np.where(is_fast, 1.0, 0.0),
        refused=np.where(is_fast & (number % 4 == 0), 1.0, 0.0),
        first_token_seconds=np.tile(np.arange(40) / 100, 2),
        inter_token_seconds=0.02,
    )


def wrong(missing_of: str, missing: int = 30, unscored: bool = False) -> pd.DataFrame:
    """600 right answers of two arms; of one of them, the first are missing or have no score."""
    rows = {n: answers(np.ones(600), method=n, **SERVER) for n in ("plain", "fast")}
    lost = [{**row, "quality": None} for row in rows[missing_of][:missing]]
    rows[missing_of][:missing] = lost if unscored else []
    return synthetic(*rows["plain"], *rows["fast"])


def in_blocks(prompts: int) -> pd.DataFrame:
    rows = [r for name in ("plain", "lossy") for r in answers(np.ones(prompts), method=name)]
    blocks = [*(i // 4 for i in range(prompts))] * 2
    return synthetic(*rows, batch_size=4).assign(block=blocks)


def at_loads() -> pd.DataFrame:
    """Both arms at concurrency 1; only one of them at 4 and at 16; ``sd`` with two lengths."""
    loads = {"plain": (1, 4), "fast": (1, 16)}
    rows = [
        row | {"settings": f"concurrency={load}"}
        for name, of_arm in loads.items()
        for load in of_arm
        for row in answers(np.ones(20), method=name, draft_length=0, drafter=None)
    ]
    lengths = [r for n in (3, 5) for r in answers(np.ones(20), method="sd", draft_length=n)]
    return synthetic(*rows, *lengths)


MARGINS: dict[str, Callable[[], pd.DataFrame]] = {
    "missing of the arm": lambda: wrong(missing_of="fast"),
    "missing of the baseline": lambda: wrong(missing_of="plain"),
    "five answers": lambda: wrong(missing_of="fast", missing=595),
    "30 without a score": lambda: wrong(missing_of="fast", unscored=True),
    "ties": lambda: synthetic(
        *(r for n in ("plain", "fast") for r in answers([1, 0] * 200, method=n, **SERVER))
    ),
    "unusual answers": unusual,
    "no counts and no times": lambda: unusual().assign(
        output_tokens=np.nan, prefill_seconds=np.nan
    ),
    "all wrong": lambda: arms().assign(quality=0.0),
    "no quality": lambda: arms().assign(quality=np.nan),
    "ten blocks": lambda: in_blocks(40),
    "nine blocks": lambda: in_blocks(36),
    "loads and lengths": at_loads,
    "a pooled baseline": lambda: synthetic(
        *(r for n in ("plain", "sd", "autoregressive") for r in answers(np.ones(20), method=n))
    ).replace({"method": {"plain": "typical"}}),
}


@pytest.mark.parametrize("name", MARGINS)
def test_verdicts_with_a_margin(name):
    baseline = "sd" if name == "a pooled baseline" else "plain"
    rows = margin_rows(MARGINS[name](), baseline, 2)
    outcomes = rows.reindex(columns=["label", "speed", "loss", "more_prompts"]).to_csv(index=False)
    tables = to_text(*margin_tables(rows), width=120)
    check(f"margins/{name}", "\n".join([outcomes, *rows["sentence"].dropna(), tables]))


def metrics() -> pd.DataFrame:
    """Two runs of one task by other metrics, and one of them of another task, too."""
    rows = [
        {"run_id": m, "quality_metric": m, "task": "xsum", "quality": q}
        for m, q in (("rouge2", 0.5), ("rouge2-32", 0.25))
    ]
    return synthetic(*rows, {"run_id": "rouge2", "task": "mini-code"})


def paper() -> pd.DataFrame:
    return synthetic(*({"task": t, "sample_id": i} for t in ("gsm8k", "humaneval") for i in "ab"))


MAIN: dict[str, Callable[[Run], pd.DataFrame]] = {
    "five methods": lambda run: five(),
    "tokens between marks": lambda run: marked(five(), "diversed"),
    "in batches": lambda run: five().assign(batch_size=8),
    "two draft lengths": lambda run: pd.concat(
        [five(), five().query("draft_length and task == 'mini-math'").assign(draft_length=3)]
    ),
    "nothing drafted": lambda run: five().query("draft_length == 0"),
    "several runs": lambda run: pd.concat([five(), five().assign(run_id="two", quality=0.5)]),
    "two metrics": lambda run: metrics(),
    "no weight accepts as much": lambda run: changed(
        run(n=40, better=-0.05), "typical", accepted=25
    )[lambda rows: rows["weight"] != 0],
    "two drafters": VERDICTS["two drafters"],
    "two tasks with verdicts": lambda run: pd.concat([run(n=40), run(n=20, task="mini-code")]),
    "published": lambda run: paper().assign(pair="llama"),
}


@pytest.mark.parametrize("name", MAIN)
def test_main_tables(name, planted):
    run = MAIN[name](planted)
    table = main_table(summarise(run), run, verdict_rows(run))
    table = beside_published(table) if name == "published" else table
    texts = [to_text(*typeset(table, intervals), width=120) for intervals in (False, True)]
    check(f"main/{name}", "\n".join(texts))
