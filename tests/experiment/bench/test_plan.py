"""The systems of a benchmark and their order."""

from typing import Any

import pytest

from specbench.config import COMPILE, EAGER, LLAMACPP
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.errors import UsageError
from specbench.experiment.bench.plan import TRANSFORMERS, Bench, BenchSettings, build_bench, name_of
from specbench.experiment.cells import method_variants

from .benches import AUTOREGRESSIVE, SD, bench_of, system_of


def build(*methods: str, pair: str = "mini", loading: Any = None, **changes: Any) -> Bench:
    settings = BenchSettings(**({"engine": [EAGER]} | changes))
    variants = method_variants(methods, {})
    return build_bench(get_pair(pair), variants, loading or Loading(device="cpu"), settings)


def test_every_method_is_combined_with_every_engine_length_and_acceptance() -> None:
    settings = {"draft_length": [3, 5], "acceptance": [0.5, 0.8], "no_transformers": True}
    bench = build("autoregressive", "sd", engine=[EAGER, COMPILE], **settings)
    assert list(bench.systems) == [
        system
        for engine in (EAGER, COMPILE)
        for system in (
            system_of("autoregressive", 0, engine),  # drafts nothing, so it is timed once
            *(system_of("sd", n, engine, rate) for n in (3, 5) for rate in (0.5, 0.8)),
        )
    ]
    assert bench.draft_length == 5


def test_transformers_has_some_methods_and_batches_of_one() -> None:
    bench = build("autoregressive", "sd", "lossy", "static", batch_size=[1, 4])
    theirs = [system for system in bench.systems if system.engine == TRANSFORMERS]
    names = [name_of(system.columns()) for system in theirs]
    assert names == ["generate", "assisted", "assisted w=0.5"]
    assert [s for s in bench.at(4) if s.engine == TRANSFORMERS] == theirs[:1]
    assert bench.at(1) == list(bench.systems)
    assert len(bench) == bench.settings.repeats * (len(bench.at(1)) + len(bench.at(4)))
    assert any("only batch 1" in text for text in bench.notes)


def test_transformers_is_skipped_for_gguf_files() -> None:
    settings = BenchSettings(engine=[LLAMACPP])
    pair = PairSpec("files", "a.gguf", "b.gguf")
    bench = build_bench(pair, method_variants(["sd"], {}), Loading(), settings)
    assert [system.engine for system in bench.systems] == [LLAMACPP]
    assert any("do not run GGUF files" in text for text in bench.notes)


def test_a_system_without_forced_acceptance_is_skipped_with_a_note() -> None:
    bench = build("autoregressive", "sd", acceptance=[0.5], temperature=0.0)
    theirs = [s.cell.method for s in bench.systems if s.engine == TRANSFORMERS]
    assert theirs == ["autoregressive"]
    assert any("cannot be forced at temperature 0" in text for text in bench.notes)


def test_random_weights_and_pairs_without_heads_use_an_untrained_head() -> None:
    def head(bench: Bench) -> str:
        return str(bench.systems[0].columns()["head"])

    assert head(build("diversed")) == "bundled"
    dummy = build("diversed", loading=Loading(device="cpu", load_format="dummy"))
    assert head(dummy) == "untrained"
    assert any("untrained" in text for text in dummy.notes)
    assert head(build("diversed", pair="llama")) == "untrained"


def test_every_repeat_has_every_system_once_and_begins_with_another() -> None:
    third = system_of("sd", 3)
    systems = [AUTOREGRESSIVE, SD, third]
    steps = list(bench_of(*systems, repeats=4).interleaved(systems))
    orders = [[system for at, system in steps if at == repeat] for repeat in range(4)]
    assert [repeat for repeat, _ in steps] == sorted(3 * [0, 1, 2, 3])
    assert orders == [systems, [SD, third, AUTOREGRESSIVE], [third, AUTOREGRESSIVE, SD], systems]


REFUSED: list[tuple[str, Any]] = [
    ("acceptance", [0.5, 1.2]),
    ("acceptance", [float("nan")]),
    ("engine", [TRANSFORMERS]),
    ("batch_size", [1, 0]),
    ("prompt_tokens", 0),
    ("temperature", 1e-46),
]


def test_values_out_of_range_are_refused_by_the_name_of_their_option() -> None:
    for name, value in REFUSED:
        with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
            BenchSettings(**{name: value})
