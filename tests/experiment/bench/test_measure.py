"""The order in which systems are timed, with decoders that only record their calls."""

from typing import Any

import pytest
import torch

from specbench.config import AUTO, EAGER, GRAPH
from specbench.engine.pair import LoadedPair
from specbench.errors import RunError, UsageError
from specbench.experiment.bench import measure as measuring
from specbench.experiment.bench.decoders import MissingError, Timing
from specbench.experiment.bench.measure import measure, prepare
from specbench.experiment.bench.plan import Bench, System

from ...engine.tiny import tiny_pair
from .benches import AUTOREGRESSIVE, SD, bench_of, system_of

BENCH = bench_of(AUTOREGRESSIVE, SD, batch_size=[1, 3], new_tokens=40)
TIMING = Timing(8, 4, 4, 20, 10, 6, 0.5, 2.0, 1.0, 0.5, 0.25)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect reservations and decodes in order."""
    monkeypatch.setattr(measuring, "copy_bandwidth", lambda device, size: 1e9)
    return []


def noting(calls: list[Any]) -> measuring.MakeDecoders:
    def make_decoders(bench: Bench, system: System, pair: LoadedPair) -> Any:
        def decode(prompts: list[list[int]], limit: int, key: str) -> Timing:
            calls.append((len(prompts), system, key, limit, tuple(map(tuple, prompts))))
            return TIMING

        return decode, []

    return make_decoders


@pytest.fixture
def pairs(calls: list[Any]) -> dict[str, LoadedPair]:
    pair = tiny_pair("llama")

    class Watched(type(pair)):  # type: ignore[misc]
        def reserve(self, tokens: int, rows: int = 1) -> None:
            calls.append(("reserve", tokens, rows))
            super().reserve(tokens, rows)

    return {EAGER: Watched(pair.name, pair.target, pair.draft, pair.tokenizer, pair.eos_ids)}


def test_systems_warm_up_and_interleave_per_batch_size(
    pairs: dict[str, LoadedPair], calls: list[Any]
) -> None:
    measured = measure(BENCH, pairs, lambda row: None, noting(calls))
    expected: list[Any] = []
    for size in (1, 3):
        expected.append(("reserve", 4 + 40 + 5 + 1, size))
        for key, limit in (("warm-up", 40 // measuring.WARM_UP_SHARE), ("0", 40)):
            expected += [(size, system, key, limit) for system in (AUTOREGRESSIVE, SD)]
        expected += [(size, system, "1", 40) for system in (SD, AUTOREGRESSIVE)]
    assert [call[:4] if len(call) > 3 else call for call in calls] == expected
    assert len(measured.repeats) == 8  # without the warm-ups
    assert len(measured.systems) == 4
    assert (measured.systems["warm_up_seconds"] >= 0).all()
    # All systems of a repeat have the same prompts; repeats have different ones.
    decodes = [call for call in calls if len(call) > 3 and call[0] == 3]
    (first,), (second,) = ({call[4] for call in decodes if call[2] == key} for key in "01")
    assert first != second
    assert len(set(first)) == 3


def test_repeats_may_have_the_prompts_of_the_warm_up(
    pairs: dict[str, LoadedPair], calls: list[Any]
) -> None:
    measure(BENCH, pairs, lambda row: None, noting(calls), same_prompts=True)
    prompts = {call[4] for call in calls if len(call) > 3 and call[0] == 3}
    assert len(prompts) == 1


def test_a_system_that_transformers_lacks_is_skipped_with_a_note(
    pairs: dict[str, LoadedPair], calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def lacking(bench: Bench, system: System, pair: LoadedPair) -> Any:
        if system == SD:
            raise MissingError("decides elsewhere")
        return noting(calls)(bench, system, pair)

    measured = measure(BENCH, pairs, lambda row: None, lacking)
    assert set(measured.repeats["method"]) == set(measured.systems["method"]) == {"autoregressive"}
    assert caplog.messages == 2 * ["eager sd is skipped: decides elsewhere"]


def test_out_of_memory_is_one_line(pairs: dict[str, LoadedPair]) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RunError, match=r"a batch of 1 does not fit.*--batch-size"):
        measure(BENCH, pairs, lambda row: None, full)


def test_the_default_prompt_fits_and_a_longer_one_is_refused(mini: Any) -> None:
    def prompt(new: int, asked: int | None = None) -> int:
        return measuring._prompt_tokens(bench_of(SD, prompt_tokens=asked, new_tokens=new))

    context = mini.context
    assert prompt(128) == measuring.DEFAULT_PROMPT
    assert prompt(context - 100) == 100
    assert prompt(100, context - 100) == context - 100
    for new, asked in ((100, context - 99), (context, None)):
        with pytest.raises(UsageError, match=f"exceed the context of {context}"):
            prompt(new, asked)


def test_engines_are_those_of_the_device_and_each_is_timed_once(mini: Any) -> None:
    bench, pairs = prepare(bench_of(system_of("sd", 5, AUTO), SD), lambda spec, loading: mini)
    assert bench.systems == (SD,)
    assert pairs[EAGER].eos_ids == frozenset()
    for refused, place in (
        (bench_of(system_of("sd", 5, GRAPH)), "needs one CUDA device"),
        (bench_of(SD, batch_size=[10**7]), "batch-size"),
        (bench_of(SD, device="cuda:99"), "no device"),
    ):
        with pytest.raises(UsageError, match=place):
            prepare(refused)
