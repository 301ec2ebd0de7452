"""Memory is estimated without weights, and a shortage is reported in one line."""

from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from specbench.decoding.heads.head import Head
from specbench.engine import hardware, limits, loading, memory
from specbench.engine.loading import load_pair
from specbench.engine.memory import (
    GIB,
    check_memory,
    check_training_memory,
    estimate_tokens,
    model_need,
    training_need,
)
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.runner import Runner
from specbench.engine.sources import load_config
from specbench.errors import UsageError
from specbench.tasks.task import load_task
from specbench.training.rollouts import roll_out

from .tiny import VOCABULARY, build, config, tokenizer

MINI = get_pair("mini")
CPU = Loading(device="cpu")
SIZE = (900, 100, 5)  # prompt, new tokens, N


def held(tensors: Iterator[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def cached(runner: Runner) -> int:
    return held(iter([*runner.cache.keys, *runner.cache.values]))


@pytest.mark.parametrize(
    ("family", "tied", "dtype"),
    [
        ("llama", True, torch.float32),
        ("qwen3", False, torch.bfloat16),
        ("gemma3", True, torch.bfloat16),
    ],
)
def test_the_estimate_matches_a_loaded_model(family, tied, dtype):
    settings = config(family, tie_word_embeddings=tied)
    runner = Runner(build(settings, dtype=dtype), VOCABULARY)
    runner.reserve(1, sum(SIZE) + 1)
    need = model_need(settings, dtype, *SIZE)
    model = runner.model
    assert need.weights == pytest.approx(held(iter([*model.parameters(), *model.buffers()])), 0.02)
    assert need.cache == cached(runner)
    tables = held(table for pair in runner.rotary.values() for table in pair)
    masks = len(set(runner.kinds)) * SIZE[0] ** 2  # during prefill
    assert tables + masks < need.work < 3 * (tables + masks) + GIB / 100


def test_all_linear_layers_but_the_last_are_quantised():
    settings = config("llama")
    whole, small = (model_need(settings, torch.float32, *SIZE, bits=b) for b in (None, 8))
    linear = [m.weight for m in build(settings).model.modules() if isinstance(m, nn.Linear)]
    assert whole.weights - small.weights == 3 * sum(weights.numel() for weights in linear)
    assert whole[1:] == small[1:]


def test_a_quantised_checkpoint_declares_its_bits():
    settings = config("llama")
    for stored, bits in (
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "gptq", "bits": 4}, 4.5),
        ({"quant_method": "fp8"}, 8),
    ):
        settings.quantization_config = stored
        assert memory._bits(settings, None) == bits
        assert memory._bits(settings, "8bit") == 8
    assert memory._bits(config("llama"), None) is None


def peak(work: Callable[[], object]) -> int:
    """Peak memory of a function's tensors, in bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(accumulate(sizes))


# Cases dominated by the prompts and by the vocabulary.
@pytest.mark.parametrize(
    ("prompt", "new", "texts", "words"), [(256, 4, 32, 99), (16, 16, 64, 9999)]
)
def test_training_memory_stays_within_the_estimate(prompt, new, texts, words):
    sizes = {"vocab_size": words, "hidden_size": 64, "intermediate_size": 224}
    settings = [config("llama", **{**sizes, "num_hidden_layers": layers}) for layers in (4, 2)]
    models = [Runner(build(one), words) for one in settings]
    pair = LoadedPair("t", *models, tokenizer(), frozenset())
    head = Head("linear", (64, 64)).requires_grad_(False)
    prompts = [[1 + i % 40 for i in range(prompt)] for _ in range(texts)]
    held = peak(lambda: roll_out(pair, [head], prompts, new, torch.Generator().manual_seed(0)))
    needs = [training_need(one, torch.float32, prompt, new, texts) for one in settings]
    expected = sum(need.cache for need in needs) + max(need.work for need in needs)
    assert 0.6 * expected < held < expected


# The check.


def with_free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda *_, **__: size)


def test_a_refusal_names_the_sizes_and_what_to_do(monkeypatch):
    with_free(monkeypatch, 20 * GIB)
    dummy = Loading(device="cpu", dtype="float32", load_format="dummy")
    with pytest.raises(UsageError) as caught:
        check_memory(get_pair("llama"), dummy, 2048, 128, 5)
    told = str(caught.value)
    assert "llama needs 36." in told and "GiB to decode (target 29.9, draft 4.6, caches 0.7" in told
    assert "cpu has 20.0 free: choose --dtype bfloat16, a smaller pair or shorter prompts" in told
    check_memory(get_pair("llama"), dummy.updated(dtype="bfloat16"), 2048, 128, 5)


def test_a_training_that_just_fits_is_accepted(monkeypatch):
    configs = [load_config(MINI, role, CPU) for role in ("target", "draft")]
    needs = [training_need(one, torch.float32, 512, 64, 128) for one in configs]
    # The models run one after the other and free their working memory.
    size = sum(n.weights + n.cache for n in needs) + max(n.work for n in needs)
    with_free(monkeypatch, size)
    check_training_memory(MINI, CPU, 512, 64, 128)
    with_free(monkeypatch, size - 1)
    with pytest.raises(UsageError, match=r"mini needs \d\.\d GiB to train a head \(target 0\.0"):
        check_training_memory(MINI, CPU, 512, 64, 128)


def test_a_pair_that_just_fits_is_accepted_and_prompts_end_at_the_context(monkeypatch):
    context = load_config(MINI, "target", CPU).max_position_embeddings
    configs = [load_config(MINI, role, CPU) for role in ("target", "draft")]
    for given, prompt in ((900, 900), (4_000_000, context - 106)):
        size = sum(sum(model_need(one, torch.float32, prompt, 100, 5)) for one in configs)
        with_free(monkeypatch, size)
        check_memory(MINI, CPU, given, 100, 5)
        with_free(monkeypatch, size - 1)
        with pytest.raises(UsageError, match=r"mini needs 0\.\d GiB to decode \(target 0\.0"):
            check_memory(MINI, CPU, given, 100, 5)


def test_prompt_tokens_are_overestimated(mini):
    prompts = [example.prompt for example in load_task("mini-news").examples("test", 20)]
    longest = max(len(mini.tokenizer(prompt)["input_ids"]) for prompt in prompts)
    assert longest <= estimate_tokens(prompts) < 3 * longest


def test_unknown_free_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(hardware, "MEMINFO", Path("/nothing"))
    monkeypatch.setattr(limits, "ROOT", Path("/nothing"))
    assert hardware.available_memory(torch.device("cpu")) is None
    check_memory(get_pair("gemma3"), Loading(device="cpu", load_format="dummy"), *SIZE)


def test_a_container_has_at_most_its_limit(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    (tmp_path / "memory.stat").write_text("anon 800000\ninactive_file 200000\n")
    monkeypatch.setattr(hardware, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    for limit, free in (
        ("max", 5000 * 1024),  # the machine's
        ("3000000", 3_000_000 - 1_000_000 + 200_000),  # the container's
        ("9000000000", 5000 * 1024),  # a limit beyond the machine's memory
    ):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert hardware.available_memory(torch.device("cpu")) == free


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_memory_stays_within_the_estimate():
    spec = get_pair("llama")
    loading = Loading(device="cuda", load_format="dummy")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    pair = load_pair(spec, loading)
    for runner in (pair.target, pair.draft):
        runner.reserve(1, sum(SIZE) + 1)
    configs = [load_config(spec, role, loading) for role in ("target", "draft")]
    needs = [model_need(config, torch.bfloat16, *SIZE) for config in configs]
    lasting = sum(need.weights + need.cache for need in needs)
    assert torch.cuda.memory_allocated() - before == pytest.approx(lasting, rel=0.03)


@pytest.mark.parametrize(("free", "stored"), [(None, 2**30), (2**36, 2**30), (2**30, 2**27)])
def test_prompts_are_stored_in_a_small_part_of_the_free_memory(free, stored, monkeypatch):
    monkeypatch.setattr(loading, "available_memory", lambda device: free)
    target, draft = load_pair(MINI, CPU).runners
    assert target.prompt_bytes == draft.prompt_bytes == stored
