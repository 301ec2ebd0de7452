"""Which systems a benchmark has, and in which order they take their turns."""

from typing import Any

import pytest

from specbench.bench.plan import TRANSFORMERS, Bench, System, build_bench, name_of
from specbench.engine.settings import COMPILE, EAGER, Loading
from specbench.errors import UsageError
from specbench.experiment.variants import method_variants
from specbench.heads.registry import HeadFile
from specbench.pairs.registry import get_pair

from .benches import AUTOREGRESSIVE, SD, bench_of


def build(*methods: str, pair: str = "mini", **changes: Any) -> Bench:
    settings: dict[str, Any] = {
        "loading": Loading("cpu"),
        "engines": [EAGER],
        "draft_lengths": [5],
        "acceptances": [],
        "batch_sizes": [1],
        "prompt_tokens": None,
        "new_tokens": 8,
        "repeats": 1,
        "temperature": 1.0,
        "seed": 0,
        "transformers": True,
    }
    return build_bench(get_pair(pair), method_variants(methods, {}), **(settings | changes))


def test_every_method_meets_every_engine_length_and_acceptance_and_drafting_none_of_them() -> None:
    bench = build(
        "autoregressive",
        "sd",
        engines=[EAGER, COMPILE],
        draft_lengths=[3, 5],
        acceptances=[0.5, 0.8],
        transformers=False,
    )
    expected = [
        System(engine, *rest)
        for engine in (EAGER, COMPILE)
        for rest in [
            ("autoregressive",),
            *(("sd", (), n, rate) for n in (3, 5) for rate in (0.5, 0.8)),
        ]
    ]
    assert list(bench.systems) == expected
    assert bench.draft_length == 5


def test_transformers_has_the_methods_that_it_knows_and_batches_of_one_of_them() -> None:
    bench = build("autoregressive", "sd", "lossy", "static", batch_sizes=[1, 4])
    theirs = [system for system in bench.systems if system.engine == TRANSFORMERS]
    names = [name_of(system.describe()) for system in theirs]
    assert names == ["generate", "assisted", "assisted w=0.5"]
    assert [s for s in bench.at(4) if s.engine == TRANSFORMERS] == theirs[:1]
    assert bench.at(1) == list(bench.systems)
    assert len(bench) == len(bench.systems) + len(bench.at(4))
    assert any("no batch" in text for text in bench.notes)


def test_what_cannot_be_forced_is_left_out_with_a_note() -> None:
    bench = build("autoregressive", "sd", acceptances=[0.5], temperature=0.0)
    theirs = [system.method for system in bench.systems if system.engine == TRANSFORMERS]
    assert theirs == ["autoregressive"]
    assert any("cannot be forced at temperature 0" in text for text in bench.notes)


def test_a_pair_with_heads_takes_one_of_them_and_random_weights_take_the_untrained_one() -> None:
    def head(bench: Bench) -> HeadFile:
        found: HeadFile = dict(bench.systems[0].parameters)["head"]
        return found

    assert head(build("diversed")).name == "bundled"
    dummy = build("diversed", loading=Loading("cpu", load_format="dummy"))
    assert head(dummy).name == "untrained"
    assert any("untrained" in text for text in dummy.notes)
    assert head(build("diversed", pair="llama")).name == "untrained"


def test_every_repeat_has_every_system_once_and_begins_with_another() -> None:
    third = System(EAGER, "sd", (), 3)
    systems = [AUTOREGRESSIVE, SD, third]
    turns = list(bench_of(*systems, repeats=4).turns(systems))
    orders = [[system for at, system in turns if at == repeat] for repeat in range(4)]
    assert [repeat for repeat, _ in turns] == sorted(3 * [0, 1, 2, 3])
    assert orders == [systems, [SD, third, AUTOREGRESSIVE], [third, AUTOREGRESSIVE, SD], systems]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"acceptances": [0.5, 1.2]}, "--acceptance must be from 0 to 1, not 1.2"),
        ({"acceptances": [float("nan")]}, "--acceptance"),
        ({"engines": ["eagre"]}, "--engine cannot be 'eagre'"),
        ({"engines": [TRANSFORMERS]}, "--engine cannot be 'transformers'"),
        ({"batch_sizes": [1, 0]}, "--batch-size must be 1 or more"),
        ({"draft_lengths": [0]}, "--draft-length must be 1 or more"),
        ({"new_tokens": 0}, "--new-tokens must be 1 or more"),
        ({"prompt_tokens": 0}, "--prompt-tokens must be 1 or more"),
        ({"repeats": 0}, "--repeats must be 1 or more"),
        ({"seed": -1}, "--seed must be 0 or more"),
        ({"temperature": float("nan")}, "--temperature must be 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        build("sd", **changes)
