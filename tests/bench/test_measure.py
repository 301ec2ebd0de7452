"""The order in which systems are timed, with decoders that only say that they were called."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specbench.bench import measure as room
from specbench.bench.forced import CannotForceError
from specbench.bench.measure import Ready, measure, prepare
from specbench.bench.plan import System
from specbench.bench.turn import Turn
from specbench.engine.engines import Engine
from specbench.engine.settings import AUTO, EAGER, GRAPH, Loading
from specbench.errors import RunError, UsageError

from ..engine.tiny import tiny_pair
from .benches import AUTOREGRESSIVE, SD, bench_of

Call = tuple[int, System, str, int]
TURN = Turn(8, 4, 4, 20, 10, 6, 0.5, 2.0, 1.0, 0.5, 0.25)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What happens, in its order: rooms that are reserved, and decodes."""
    happened: list[Any] = []

    def decoder(ready: Ready, system: System) -> Callable[..., Turn]:
        def decode(prompts: list[list[int]], limit: int, key: str) -> Turn:
            happened.append((len(prompts), system, key, limit, tuple(map(tuple, prompts))))
            return TURN

        return decode

    monkeypatch.setattr(room, "_decoder", decoder)
    monkeypatch.setattr(room, "copy_bandwidth", lambda device, size: 1e9)
    return happened


@pytest.fixture
def ready(calls: list[Any]) -> Ready:
    bench = bench_of(AUTOREGRESSIVE, SD, batch_sizes=(1, 3), new_tokens=40)
    pair = tiny_pair("llama")

    class Watched(type(pair)):  # type: ignore[misc]
        def reserve(self, tokens: int, rows: int = 1) -> None:
            calls.append(("reserve", tokens, rows))
            super().reserve(tokens, rows)

    watched = Watched(pair.name, pair.target, pair.draft, pair.tokenizer, pair.eos_ids)
    return Ready(bench, 4, watched, {EAGER: Engine(EAGER)})


def test_room_then_warm_ups_then_turns_by_rotation_for_one_batch_size_after_another(
    ready: Ready, calls: list[Any]
) -> None:
    measured = measure(ready, lambda row: None, lambda text: None)
    expected: list[Any] = []
    for size in (1, 3):
        expected.append(("reserve", 4 + 40 + 5 + 1, size))
        for key, limit in (("warm-up", room.WARM_UP_TOKENS), ("0", 40)):
            expected += [(size, system, key, limit) for system in (AUTOREGRESSIVE, SD)]
        expected += [(size, system, "1", 40) for system in (SD, AUTOREGRESSIVE)]
    assert [call[:4] if len(call) > 3 else call for call in calls] == expected
    assert len(measured.repeats) == 8  # nothing of the warm-ups
    assert len(measured.systems) == 4
    assert (measured.systems["warm_up_seconds"] >= 0).all()


def test_systems_of_a_repeat_have_the_same_prompts_and_repeats_have_others(
    ready: Ready, calls: list[Any]
) -> None:
    measure(ready, lambda row: None, lambda text: None)
    decodes = [call for call in calls if len(call) > 3 and call[0] == 3]
    prompts = {key: {call[4] for call in decodes if call[2] == key} for key in ("0", "1")}
    assert [len(found) for found in prompts.values()] == [1, 1]
    (first,), (second,) = prompts.values()
    assert first != second
    assert len(set(first)) == 3  # three texts, none like another


def test_what_this_version_of_transformers_lacks_is_left_out_and_told(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = room._decoder

    def lacking(ready: Ready, system: System) -> Any:
        if system == SD:
            raise CannotForceError("decides elsewhere")
        return make(ready, system)

    monkeypatch.setattr(room, "_decoder", lacking)
    told: list[str] = []
    measured = measure(ready, lambda row: None, told.append)
    assert set(measured.repeats["method"]) == set(measured.systems["method"]) == {"autoregressive"}
    assert told == 2 * ["eager sd is left out: decides elsewhere"]


def test_memory_that_runs_out_is_told_in_a_line(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(room, "_decoder", full)
    with pytest.raises(RunError, match=r"a batch of 1 does not fit.*--batch-size"):
        measure(ready, lambda row: None, lambda text: None)


def test_the_default_prompt_is_what_fits_and_a_longer_one_is_refused(mini: Any) -> None:
    def prompt(new: int, asked: int | None = None) -> int:
        bench = bench_of(SD, prompt_tokens=asked, new_tokens=new)
        return room._prompt_tokens(bench)

    context = mini.context
    assert prompt(128) == room.USUAL_PROMPT
    assert prompt(context - 100) == 100
    assert prompt(100, context - 100) == context - 100
    for new, asked in ((100, context - 99), (context, None)):
        with pytest.raises(UsageError, match=f"exceed the context of {context}"):
            prompt(new, asked)


def test_engines_are_those_of_the_device_and_alike_ones_are_timed_once(
    monkeypatch: pytest.MonkeyPatch, mini: Any
) -> None:
    monkeypatch.setattr(room, "load_pair", lambda spec, loading: mini)
    ready = prepare(bench_of(replace(SD, engine=AUTO), SD))
    assert ready.bench.systems == (SD,)
    assert ready.pair.eos_ids == frozenset()
    with pytest.raises(UsageError, match="needs one CUDA device"):
        prepare(bench_of(replace(SD, engine=GRAPH)))
    with pytest.raises(UsageError, match="batch-size"):
        prepare(bench_of(SD, batch_sizes=(10**7,)))
    with pytest.raises(UsageError, match="no device"):
        prepare(bench_of(SD, loading=Loading("cuda:99")))
