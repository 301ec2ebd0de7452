"""Remarks say what a person would notice in a run, and nothing in an ordinary one."""

from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.statistics.summary import cells_of, summarise
from specbench.analysis.verdicts.remarks import measured_on, remarks
from specbench.runs.configuration import Environment, RunConfig
from specbench.runs.run import Run

from ..synthetic import samples

PLAIN = {"method": "autoregressive", "draft_length": 0, "drafter": None, "rounds": 20}
TASK = {"name": "mini-math", "max_new_tokens": 20, "examples": 40, "prompt_format": "chat"}


def run(environment: dict[str, Any] | None = None, failed: int = 0) -> Run:
    """Return a run of 40 prompts with an environment."""
    progress = {"state": "complete", "samples": 40, "failed": failed}
    models = {"name": "big+small", "target": "org/big", "draft": "org/small"}
    config = {"tasks": [TASK], "samples_planned": 40, "progress": progress, "pair": models}
    described = Run(Path("r"), RunConfig.model_validate(config))
    described.__dict__["environment"] = Environment.model_validate(environment or {})
    return described


def said(*cells: dict[str, Any], n: int = 40, of: Run | None = None) -> list[str]:
    """Return the remarks on cells of n prompts."""
    rows = [{"sample_id": f"p{i}", **cell} for cell in cells for i in range(n)]
    return remarks(cells_of(summarise(samples(*rows))), {"run": of or run()})


def test_an_ordinary_run_has_none():
    assert said({}, {**PLAIN, "decode_seconds": 2.0}) == []


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ([{"stopped_by": "length"}], "quality cannot be judged: all answers were cut at 20 tokens"),
        ([{"stopped_by": "length"}, PLAIN], "quality of sd cannot be judged: all answers"),
        ([{"quality": 0.0}, {**PLAIN, "quality": 0.0}], "every answer of every method scored 0"),
    ],
)
def test_scores_that_mean_nothing(cells, sentence):
    (remark,) = said(*cells)
    assert remark.startswith(f"mini-math: {sentence}")


def test_the_share_of_cut_answers_is_said():
    ended = ["length"] * 39 + ["eos"]
    rows = [{"sample_id": f"p{i}", "stopped_by": end} for i, end in enumerate(ended)]
    (remark,) = remarks(cells_of(summarise(samples(*rows))), {"run": run()})
    assert "98 % or more of answers were cut" in remark
    rows = [row | {"stopped_by": ("length", "eos")[i % 2]} for i, row in enumerate(rows)]
    said_of_half = remarks(cells_of(summarise(samples(*rows))), {"run": run()})
    assert said_of_half == [
        "mini-math: 50 % of the answers were cut at 20 tokens: see --max-new-tokens"
    ]
    rows = [row | {"stopped_by": "eos"} for row in rows]
    assert remarks(cells_of(summarise(samples(*rows))), {"run": run()}) == []
    assert said({"quality": 0.0}, PLAIN) == []  # a difference shows


@pytest.mark.parametrize(("n", "failed", "lost"), [(37, 3, "3 of 40"), (39, 1, "1 of 40")])
def test_failed_prompts_are_told_where_no_method_has_them(n, failed, lost):
    (remark,) = said({}, n=n, of=run(failed=failed))
    assert remark.startswith(f"mini-math: {lost} prompts of sd failed, and no figure contains them")
    assert said({}, n=n) == []  # the run is not complete, which is said elsewhere


def test_a_base_model_gets_plain_prompts():
    (remark,) = said({}, of=run({"prompt_formats": {"mini-math": "plain"}}))
    assert remark == "mini-math: prompts are plain text, since the target has no chat template"
    assert said({}, of=run({"prompt_formats": {"mini-math": "chat"}})) == []


def test_machine_weights_and_library():
    environment: dict[str, Any] = {
        "models": {"device": "cpu", "dtype": "float32"},
        "packages": {"torch": "2.13.0", "xllamacpp": "2026.10"},
        "cpu": {"model": "EPYC"},
        "torch": {"threads": 2},
    }
    assert measured_on(run(environment)) == (
        "Measured on EPYC, 2 threads: float32, PyTorch 2.13.0."
    )
    files = {"target": {"bytes": 2**30, "type": "Q4_K_M"}, "draft": {"type": "F16"}}
    assert measured_on(run({**environment, "weights": files})) == (
        "Measured on EPYC, 2 threads: target Q4_K_M of 1.00 GiB, draft F16, llama.cpp (xllamacpp "
        "2026.10)."
    )
    assert measured_on(run()) == ""
