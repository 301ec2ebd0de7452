"""Remarks say what a person would notice in a run, and nothing in an ordinary one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis.statistics.summary import cells_of, summarise
from specbench.analysis.verdicts.arm_remarks import contents_of
from specbench.analysis.verdicts.remarks import measured_on, remarks
from specbench.runs.columns import NOTHING
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


def said(*cells: dict[str, Any], n: int = 40, of: Run | None = None) -> str:
    rows = [{"sample_id": f"p{i}", **cell} for cell in cells for i in range(n)]
    return "\n".join(remarks(cells_of(summarise(samples(*rows))), {"run": of or run()}))


CUT = {"stopped_by": "length"}
FORMATS = [run({"prompt_formats": {"mini-math": name}}) for name in ("plain", "chat")]
REMARKS: dict[str, Callable[[], str]] = {
    "an ordinary run": lambda: said({}, {**PLAIN, "decode_seconds": 2.0}),
    **{"all cut": lambda: said(CUT), "all of one method cut": lambda: said(CUT, PLAIN)},
    "all wrong": lambda: said({"quality": 0.0}, {**PLAIN, "quality": 0.0}),
    "all of one method wrong": lambda: said({"quality": 0.0}, PLAIN),
    "most cut": lambda: ended(["length"] * 39 + ["eos"]),
    **{"half cut": lambda: ended(["length", "eos"] * 20), "none cut": lambda: ended(["eos"] * 40)},
    "three failed": lambda: said({}, n=37, of=run(failed=3)),
    "one failed": lambda: said({}, n=39, of=run(failed=1)),
    "incomplete": lambda: said({}, n=39),  # which is said elsewhere
    "plain prompts": lambda: said({}, of=FORMATS[0]),
    "chat prompts": lambda: said({}, of=FORMATS[1]),
}


def ended(ends: list[str]) -> str:
    rows = [{"sample_id": f"p{i}", "stopped_by": end} for i, end in enumerate(ends)]
    return "\n".join(remarks(cells_of(summarise(samples(*rows))), {"run": run()}))


def test_remarks_of_a_run_and_its_machine_weights_and_library(stored):
    environment: dict[str, Any] = {
        "models": {"device": "cpu", "dtype": "float32"},
        "packages": {"torch": "2.13.0", "xllamacpp": "2026.10"},
        "cpu": {"model": "EPYC"},
        "torch": {"threads": 2},
    }
    files = {"target": {"bytes": 2**30, "type": "Q4_K_M"}, "draft": {"type": "F16"}}
    said = (f"{name}: {remark()}" for name, remark in REMARKS.items())
    described = (environment, {**environment, "weights": files})
    stored(*said, *(measured_on(run(each)) for each in described))
    assert measured_on(run()) == ""


def test_prompts_that_repeat_others_are_not_called_failed(monkeypatch):
    repeated = {("mini-math", name): "p0" for name in ("p38", "p39")}
    monkeypatch.setattr("specbench.analysis.verdicts.remarks.prompts_of", lambda *_: repeated)
    assert "failed" not in said({}, n=38, of=run(failed=1))


def test_texts_are_empty_by_the_bytes_that_a_server_delivered_or_by_an_end_token_alone():
    texts = {"output_tokens": [5, 5, 1, 1, 0], "stopped_by": ["eos"] * 3 + ["length"] * 2}
    table = pd.DataFrame(texts | {"delivered_bytes": [0, 3, None, None, None]})
    assert contents_of(table) == {NOTHING: 3} and contents_of(table[1:]) == {NOTHING: 2}
    assert contents_of(table[["output_tokens", "stopped_by"]]) == {NOTHING: 2}
