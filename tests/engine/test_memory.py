"""Memory that is needed, read and left, and cores that control groups and others leave."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from specbench.engine import hardware, limits, loading, memory
from specbench.engine.hardware import copy_bandwidth
from specbench.engine.loading import load_pair
from specbench.engine.pairs import Loading, get_pair
from specbench.engine.runner import Runner
from specbench.engine.sources import load_config
from specbench.errors import UsageError
from specbench.tasks.task import load_task

from ..told import listed
from .tiny import VOCABULARY, WINDOW, build, config, pair_of

MINI = get_pair("mini")
CPU = Loading(device="cpu")
SIZE = (900, 100, 5)  # prompt, new tokens, N


def held(tensors: Iterator[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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
    need = memory.model_need(settings, dtype, sum(SIZE) + 1)
    model = runner.model
    assert need.weights == pytest.approx(held(iter([*model.parameters(), *model.buffers()])), 0.02)
    assert need.cache == held(iter([*runner.cache.keys, *runner.cache.values]))
    assert memory.model_need(settings, dtype, sum(SIZE) + 1, rows=3).cache == 3 * need.cache


def test_all_linear_layers_but_the_last_are_quantised_with_the_bits_of_a_checkpoint():
    settings = config("llama")
    whole, small = (memory.model_need(settings, torch.float32, 100, bits=b) for b in (None, 8))
    linear = [m.weight for m in build(settings).model.modules() if isinstance(m, nn.Linear)]
    assert whole.weights - small.weights == 3 * sum(weights.numel() for weights in linear)
    assert whole.cache == small.cache
    settings = config("llama")
    for stored, bits in (
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "gptq", "bits": 4}, 4.5),
        ({"quant_method": "fp8"}, 8),
    ):
        settings.quantization_config = stored
        assert memory._bits(settings, None) == bits and memory._bits(settings, "8bit") == 8
    assert memory._bits(config("llama"), None) is None


def with_free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda *_, **__: size)


def test_a_refusal_names_the_sizes_and_what_to_do(monkeypatch):
    with_free(monkeypatch, 20 * memory.GIB)
    dummy = Loading(device="cpu", dtype="float32", load_format="dummy")
    with pytest.raises(UsageError) as caught:
        memory.check_memory(get_pair("llama"), dummy, 2048, 128, 5)
    told = str(caught.value)
    assert "llama needs 35." in told and "GiB to decode (target 29.9, draft 4.6, caches 0.7" in told
    assert "cpu has 20.0 free: choose --dtype bfloat16, a smaller pair or shorter prompts" in told
    memory.check_memory(get_pair("llama"), dummy.updated(dtype="bfloat16"), 2048, 128, 5)


def test_what_just_fits_is_accepted_and_prompts_end_at_the_context(monkeypatch):
    context = load_config(MINI, "target", CPU).max_position_embeddings
    configs = [load_config(MINI, role, CPU) for role in ("target", "draft")]
    training = {"rows": 128, "purpose": "to train a head"}
    for sizes, tokens, rows, how in (
        *(((900, 100, 5), 1006, 1, {}), ((4_000_000, 100, 5), context + 6, 1, {})),
        ((512, 64), 577, 128, training),
    ):
        size = sum(sum(memory.model_need(one, torch.float32, tokens, rows)) for one in configs)
        with_free(monkeypatch, size)
        assert memory.check_memory(MINI, CPU, *sizes, **how) == size
        with_free(monkeypatch, size - 1)
        purpose = how.get("purpose", "to decode")
        with pytest.raises(UsageError, match=rf"mini needs \d\.\d GiB {purpose} \(target 0\.0"):
            memory.check_memory(MINI, CPU, *sizes, **how)


def test_prompt_tokens_are_overestimated(mini):
    prompts = [example.prompt for example in load_task("mini-news").examples("test", 20)]
    longest = max(len(mini.tokenizer(prompt)["input_ids"]) for prompt in prompts)
    assert longest <= memory.estimate_tokens(prompts) < 3 * longest


def test_unknown_free_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(hardware, "MEMINFO", Path("/nothing"))
    monkeypatch.setattr(limits, "ROOT", Path("/nothing"))
    assert hardware.available_memory(torch.device("cpu")) is None
    memory.check_memory(get_pair("gemma3"), Loading(device="cpu", load_format="dummy"), *SIZE)


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
def test_gpu_memory_stays_within_the_estimate():
    spec = get_pair("llama")
    loading = Loading(device="cuda", load_format="dummy")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    pair = load_pair(spec, loading)
    for runner in (pair.target, pair.draft):
        runner.reserve(1, sum(SIZE) + 1)
    configs = [load_config(spec, role, loading) for role in ("target", "draft")]
    needs = [memory.model_need(config, torch.bfloat16, sum(SIZE) + 1) for config in configs]
    lasting = sum(need.weights + need.cache for need in needs)
    assert torch.cuda.memory_allocated() - before == pytest.approx(lasting, rel=0.03)


@pytest.mark.parametrize(("free", "stored"), [(None, 2**30), (2**36, 2**30), (2**30, 2**27)])
def test_prompts_are_stored_in_a_small_part_of_the_free_memory(free, stored, spec, monkeypatch):
    monkeypatch.setattr(loading, "available_memory", lambda device: free)
    target, draft = load_pair(spec, CPU).runners
    assert target.prompt_bytes == draft.prompt_bytes == stored


# From tiny.py: hidden 32, intermediate 64, 4 heads of width 8, 2 for keys and values.
ATTENTION = 32 * (4 + 2 + 2 + 4) * 8
LAYERS = 2 * (ATTENTION + 3 * 32 * 64 + 2 * 32)
HEAD = 32 * VOCABULARY
WEIGHTS = 4 * (LAYERS + 32 + HEAD)  # float32
STATES = 4 * 2 * 2 * 2 * 8  # two layers, keys and values, two heads of width 8


@pytest.mark.parametrize("tied", [False, True])
def test_the_bytes_of_a_pass(tied):
    runner = Runner(build(config("llama", tie_word_embeddings=tied)), VOCABULARY)
    assert runner.weight_bytes() == WEIGHTS
    whole = sum(w.numel() for w in runner.model.parameters())
    assert 4 * whole == WEIGHTS + (0 if tied else 4 * HEAD)
    runner = Runner(build(config("llama"), dtype=torch.bfloat16), VOCABULARY)
    assert runner.weight_bytes() == WEIGHTS / 2
    assert runner.cache_bytes(10) == 10 * STATES / 2
    runner = Runner(build(config("gemma3")), VOCABULARY)
    assert runner.cache_bytes(WINDOW) == WINDOW * STATES
    assert runner.cache_bytes(3 * WINDOW) == (WINDOW + 3 * WINDOW) * STATES / 2


def test_a_round_reads_the_target_once_and_the_draft_for_every_token():
    target, draft = build(config("llama")), build(config("llama", num_hidden_layers=1))
    pair = pair_of(target, draft)
    of_draft = WEIGHTS - 2 * LAYERS
    assert memory.bytes_per_round(pair, 0, 1, 10) == WEIGHTS + 10 * STATES
    expected = WEIGHTS + 4 * 10 * STATES + 3 * (of_draft + 4 * 10 * STATES / 2)
    assert memory.bytes_per_round(pair, 3, 4, 10) == expected


def test_a_copy_reads_and_writes(monkeypatch):
    """With a clock that counts copies: every byte takes a millisecond."""
    copied: list[int] = []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda _, source: copied.append(len(source)))
    monkeypatch.setattr(hardware, "now", lambda device: sum(copied) / 1000)
    assert copy_bandwidth(torch.device("cpu"), 500) == pytest.approx(2000)
    assert set(copied) == {500}
    copied.clear()
    monkeypatch.setattr(hardware, "available_memory", lambda device: 800)
    assert copy_bandwidth(torch.device("cpu"), 500) == pytest.approx(2000)
    assert set(copied) == {800 // hardware.FREE_SHARE}


MAX = "9223372036854771712"  # no limit in version 1
STAT = "anon 800000\ninactive_file 200000\ntotal_inactive_file 300000\n"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(limits, "ROOT", tmp_path)
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


def write(root: Path, membership: str, files: dict[str, str]) -> None:
    (root / "membership").write_text(membership)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content + "\n")


@pytest.mark.parametrize(("membership", "files", "quota"), listed("engine/quotas.txt"))
def test_the_least_quota_of_a_group_and_its_outer_ones_holds(membership, files, quota, root):
    write(root, membership, files)
    assert limits.cpu_quota() == quota


NEW = {"memory.max": "3000000", "memory.current": "1000000", "memory.stat": STAT}
OLD = {
    **{"memory.limit_in_bytes": MAX, "memory.usage_in_bytes": "5000000", "memory.stat": STAT},
    **{"a/memory.limit_in_bytes": "3000000", "a/memory.usage_in_bytes": "1000000"},
    "a/memory.stat": STAT,
}


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        ("0::/", NEW, 2.2e6),
        ("4:memory:/a", {f"memory/{name}": content for name, content in OLD.items()}, 2.3e6),
        ("0::/", {**NEW, "memory.max": "max", "memory.current": "1"}, None),
    ],
)
def test_the_least_memory_of_a_group_and_its_outer_ones_is_free(membership, files, free, root):
    write(root, membership, files)
    assert limits.free_memory() == free


@pytest.mark.parametrize(
    ("affinity", "quota", "busy", "threads", "width", "used", "noted"),
    [
        *((8, None, 0.0, None, 512, 8, False), (3, None, 0.0, None, 512, 3, False)),
        *((8, 1.0, 0.0, None, 512, 1, False), (8, 2.5, 0.0, None, 1024, 2, False)),
        *((8, 0.5, 0.0, None, 512, 1, False), (8, None, 0.5, None, 512, 4, True)),
        (8, None, 1.0, None, 512, 1, True),
        (8, 2.0, 0.5, None, 512, 2, False),  # four cores are idle
        (8, 1.0, 1.0, 6, 512, 6, False),
        (8, None, 1.0, None, 256, 1, False),
    ],
)
def test_cores_of_threads(affinity, quota, busy, threads, width, used, noted, monkeypatch, caplog):
    chosen = [8]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)), raising=False)
    monkeypatch.setattr(limits, "cpu_quota", lambda: quota)
    monkeypatch.setattr(loading, "busy_share", lambda: busy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1])
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    with caplog.at_level(logging.WARNING):
        loading.set_threads(Loading(threads=threads), width)
    assert chosen[-1] == used and ("--threads" in caplog.text) == noted
