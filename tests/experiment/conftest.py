"""A finished run's folder."""

from pathlib import Path

import pytest

from specbench.experiment.examples import write_examples
from specbench.experiment.scoring import score_text
from specbench.experiment.store import Store

from .runs import EXAMPLES, TASKS, TEXTS, Run, measured


@pytest.fixture
def make_run(tmp_path: Path) -> Run:
    """Write a run's folder as a run does, its programs run or not."""

    def make(may_execute: bool = True, name: str = "r") -> Path:
        tasks = [{"name": task, "metrics": list(metrics)} for task, metrics in TASKS.items()]
        config = {"samples_planned": 7, "tasks": tasks, "notes": ["kept"]}
        with Store.open(tmp_path / name, "run", config) as store:
            write_examples(store.folder, EXAMPLES)
            for task, metrics in TASKS.items():
                for example, text in zip(EXAMPLES[task], TEXTS[task], strict=True):
                    record = measured(task, example.id, text)
                    record["quality_metric"] = metrics[0] if metrics else None
                    record |= score_text(metrics, text, example, may_execute=may_execute)
                    store.append(record)
            failed = {"task": "sums", "sample_id": "9", "status": "error", "error": "broken"}
            store.append({"key": "sums 9", "place": 0, "run_id": "r", **failed})
        return store.folder

    return make
