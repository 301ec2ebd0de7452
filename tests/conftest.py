"""An isolated process for every test, and an engine that decodes at once, without models."""

import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from filelock import FileLock

from specbench.analysis.figures import style
from specbench.analysis.statistics import intervals
from specbench.decoding.records import Generation, RoundRecord
from specbench.engine.pair import Library
from specbench.experiment import environment

from .told import check

RESAMPLES = intervals.RESAMPLES
EXACT = [
    f"analysis/test_{name}" for name in ("intervals", "coverage", "pareto", "points", "main_table")
]
Once = Callable[[str, Callable[[Path], object]], Path]
LIBRARIES = ("datasets", "huggingface_hub", "transformers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if not torch.cuda.is_available() else ():
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and none among what imports have made: it stays and is much."""
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.fixture(autouse=True)
def process(monkeypatch) -> Iterator[None]:
    """Restore process-wide settings of a command after each test, on an idle machine."""
    monkeypatch.setattr("specbench.engine.limits.STAT", Path("unknown"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment, hook = dict(os.environ), sys.excepthook
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    sys.excepthook = hook
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("specbench").propagate = True


@pytest.fixture(scope="session")
def once(tmp_path_factory) -> Once:
    """Make a file or folder once per session, also if several processes share the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        path, finished = shared / name, shared / f"{name}.finished"
        with FileLock(shared / f"{name}.lock"):
            if not finished.exists():
                make(path)
                finished.touch()
        return path

    return make_once


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """Do not sync files: no test depends on the speed of the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session", autouse=True)
def few_resamples() -> Iterator[None]:
    """Use fewer resamples, also in runs that tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "RESAMPLES", 100)
        yield


@pytest.fixture(scope="session", autouse=True)
def environment_read_once() -> Iterator[None]:
    """Ask for versions and for the state of git once: it takes longer than a small run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("git_state", "_version"):
            patch.setattr(environment, name, cache(getattr(environment, name)))
        yield


@pytest.fixture(scope="session", autouse=True)
def few_pixels() -> Iterator[None]:
    """Draw pictures of low resolution, which is faster."""
    with pytest.MonkeyPatch.context() as patch:
        for name, page in style.PAGES.items():
            patch.setitem(style.PAGES, name, page._replace(dpi=50))
        before = style._page.set(style.PAGES["paper"])
        yield
        style._page.reset(before)


@pytest.fixture(autouse=True)
def all_resamples(request, monkeypatch) -> None:
    """Use the full number in tests of intervals, and where published numbers are compared."""
    if f"{request.path.parent.name}/{request.path.stem}" in EXACT:
        monkeypatch.setattr(intervals, "RESAMPLES", RESAMPLES)


@pytest.fixture
def stored(request, tmp_path) -> Callable[..., None]:
    """Compare texts with the stored ones of this test, but for the test's folder."""
    room = request.path.relative_to(Path(__file__).parent).with_suffix("")
    test = re.sub(r"[^\w.,=\[\]-]+", " ", request.node.name.removeprefix("test_"))

    def compare(*texts: object) -> None:
        text = "\n".join(map(str, texts)).replace(str(tmp_path), "FOLDER")
        check(f"{room.with_name(room.name.removeprefix('test_'))}/{test}", text)

    return compare


def generation(**changes: Any) -> Generation:
    """Return a sample of two rounds with five drafts each, with any fields replaced."""
    values: dict[str, Any] = {
        "token_ids": [5, 6, 7],
        "text": "so #### 7",
        **{"prompt_tokens": 4, "output_tokens": 8, "stopped_by": "eos", "prefill_seconds": 0.5},
        **{"decode_seconds": 1.5, "draft_seconds": 0.5, "verify_seconds": 0.75},
        **{"accept_seconds": 0.125, "latency_seconds": 2.0},
        "rounds": [
            RoundRecord(5, 5, 6, None, (True,) * 5, (1.0, 0.9, 0.8, 0.7, 0.6), (0.5,) * 5),
            RoundRecord(5, 1, 2, 9, (False,), (0.4, 0.2), (0.25, 0.25)),
        ],
    }
    return Generation(**(values | changes))


class FakeTokenizer:
    """Encodes a prompt as one token, its length."""

    chat_template: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __call__(self, prompt: str) -> dict[str, list[int]]:
        return {"input_ids": [len(prompt)]}

    def decode(self, tokens: list[int]) -> str:
        return ""


class FakeEngine:
    """Replaces the loader, the models and the decoding loop, and records the requests."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []  # warm-ups included
        self.loaded: tuple[str, str, str] | None = None
        self.reserved = (0, 0)
        self.heads: list[Path] = []
        self.failing: dict[int, BaseException] = {}  # raised in the place of the n-th call, from 0
        self.on_call: Callable[[int], object] = lambda number: None
        self.compared: list[Any] = []
        self.difference: str | None = None  # that every comparison with eager finds
        self.tokenizer: Any = FakeTokenizer()
        self.thinking = False
        self.context: int | None = None
        self.facts: dict[str, Any] = {}
        self.weights: dict[str, Any] = {}
        self.fused_layers: list[bool] = []
        self.library = Library(has_runners=False, exact=False)
        silent = {"context": None, "forget_prompts": lambda: None}
        placed = {"device": torch.device("cpu"), "dtype": "torch.float32"}
        self.target = SimpleNamespace(fingerprint=lambda: "t0", **placed, **silent)
        self.draft = SimpleNamespace(fingerprint=lambda: "d0", **silent)

    def load_pair(self, spec: Any, loading: Any) -> "FakeEngine":
        self.loaded = (spec.name, loading.device, loading.dtype)
        return self

    def reserve(self, tokens: int, rows: int) -> None:
        self.reserved = (tokens, rows)

    def load_reader(self, spec: Any, loading: Any) -> "FakeEngine":
        return self

    def check_memory(self, *_: Any) -> None:
        """Accept everything."""

    def drop_caches(self) -> None:
        """Do nothing."""

    def forget_prompts(self) -> None:
        """Do nothing."""

    def load_head(self, folder: Path, pair: Any) -> Any:
        self.heads.append(folder)
        return SimpleNamespace(kind="linear", weigh=lambda at: at.h_p)

    def compare_with_eager(self, pair: Any, rule: Any, options: Any) -> Any:
        from specbench.experiment.comparison import Comparison

        self.compared.append(options)
        return Comparison(pair.engine.name, "cpu", "float32", 4, 0.0, self.difference, 0.5)

    def decode_all(self, pair: Any, rule: Any, requests: list[Any], options: Any):
        for number, (prompt, key) in enumerate(requests):
            call = {"rule": rule, "prompt_ids": prompt, "sample_key": key, **vars(options)}
            self.calls.append(call)
            self.on_call(len(self.calls) - 1)
            if (at := len(self.calls) - 1) in self.failing:
                raise self.failing[at]
            autoregressive = generation(rounds=[RoundRecord(0, 0, 1)] * 8)
            yield number, generation() if options.draft_length else autoregressive


@pytest.fixture(scope="session")
def mini() -> Any:
    from specbench.engine.loading import load_pair
    from specbench.engine.pairs import Loading, get_pair

    return load_pair(get_pair("mini"), Loading(device="cpu"))


@pytest.fixture
def make_generation() -> Callable[..., Generation]:
    return generation


@pytest.fixture
def engine(monkeypatch) -> Iterator[FakeEngine]:
    from specbench.decoding.heads import bind
    from specbench.experiment import loader, runner

    fake = FakeEngine()
    real = loader.Loader.__init__
    # On the class, since a module that is imported meanwhile would keep another one.
    monkeypatch.setattr(
        loader.Loader,
        "__init__",
        lambda self: real(self, fake.load_pair, fake.load_reader, fake.check_memory),
    )
    monkeypatch.setattr(runner, "decode_all", fake.decode_all)
    monkeypatch.setattr(runner, "compare_with_eager", fake.compare_with_eager)
    monkeypatch.setattr(bind, "load_head", fake.load_head)
    yield fake
