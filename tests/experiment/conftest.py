"""A finished run and a full disk."""

import errno
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from specbench.experiment.measurements import score_text
from specbench.experiment.store import Store
from specbench.runs.records import write_examples

from ..synthetic import sample_record
from .runs import EXAMPLES, TASKS, TEXTS, Run, brief_summary, measured


@pytest.fixture
def full_disk() -> Callable[..., Any]:
    return Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Callable[[bool], Path]:
    """Write a finished run, with or without executed code, once for all tests."""

    @cache
    def write(may_execute: bool) -> Path:
        tasks = [{"name": task, "metrics": list(metrics)} for task, metrics in TASKS.items()]
        config = {"samples_planned": 7, "tasks": tasks, "notes": ["kept"]}
        folder = tmp_path_factory.mktemp("runs") / "r"
        with Store.open(folder, "run", config, summarise=brief_summary) as store:
            write_examples(store.folder, EXAMPLES)
            for task, metrics in TASKS.items():
                for example, text in zip(EXAMPLES[task], TEXTS[task], strict=True):
                    record = measured(task, example.id, text)
                    scores = score_text(metrics, record, example, may_execute=may_execute)
                    metric = metrics[0] if metrics else None
                    store.append(record.filled(quality_metric=metric, **scores))
            names = {"task": "sums", "sample_id": "9", "key": "sums 9", "run_id": "r"}
            store.append(sample_record(**names, place=[0], status="error", error="broken"))
        return store.folder

    return write


@pytest.fixture
def make_run(tmp_path, written) -> Run:
    return lambda may_execute=True, name="r": shutil.copytree(written(may_execute), tmp_path / name)
