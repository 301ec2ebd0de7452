"""Exported pairs in llama.cpp: the same distributions, texts and samples as in PyTorch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from specbench.decoding.heads.head import Head, describe_models, load_head
from specbench.decoding.loop import DecodeOptions, Request, decode, decode_all
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import choose_dtype, load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec, get_pair
from specbench.engine.prompts import encode_prompt
from specbench.errors import RunError, UsageError
from specbench.methods.ensembles import diversed
from specbench.methods.strict import lossy, sd
from specbench.tasks.task import load_task
from specbench.training.rollouts import RolloutRequest, roll_out

from .conftest import needs_llamacpp

pytestmark = needs_llamacpp
CPU = Loading(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def files(mini_files) -> PairSpec:
    target, draft = (str(mini_files / f"{role}-f32.gguf") for role in ("target", "draft"))
    return PairSpec("files", target, draft)


@pytest.fixture(scope="module")
def exported(files) -> LoadedPair:
    return load_pair(files, CPU)


def test_the_record_has_file_size_and_quantisation(exported, files):
    size = Path(files.target).stat().st_size
    target = {"file": "target-f32.gguf", "bytes": size, "type": "F32"}
    assert exported.weights["target"] == target and exported.weights["draft"]["type"] == "F32"


def prompts(pair: LoadedPair, count: int) -> list[list[int]]:
    task = load_task("mini-math")
    examples = task.examples("test", count)
    return [encode_prompt(pair.tokenizer, e, task.prompt_format, 512).ids for e in examples]


def decoded(pair: LoadedPair, rule: Any, how: DecodeOptions, count: int) -> list[list[int]]:
    requests = [Request(ids, f"{n}") for n, ids in enumerate(prompts(pair, count))]
    texts = dict(decode_all(pair, rule, requests, how))
    return [texts[n].token_ids for n in range(count)]


def test_prompts_vocabulary_and_distributions_are_those_of_transformers(exported, mini):
    assert prompts(exported, 20) == prompts(mini, 20)
    assert exported.target.vocabulary == mini.target.vocabulary
    assert exported.eos_ids == mini.eos_ids and exported.context == mini.context
    assert exported.tokenizer.pad_token == mini.tokenizer.pad_token
    for prompt in prompts(mini, 3):
        for ours, theirs in zip((exported.target, exported.draft), mini.runners, strict=True):
            for last in (len(prompt), 3, 1):
                logits, hidden = ours.plain(torch.tensor([prompt]), last, hidden=True)
                expected, states = theirs.plain(torch.tensor([prompt]), last, hidden=True)
                difference = (logits.softmax(-1) - expected.softmax(-1)).abs().sum(-1) / 2
                assert difference.shape == (1, last) and difference.max() < 1e-5
                torch.testing.assert_close(hidden, states.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 3])
def test_taking_drafts_back_leaves_no_trace(exported, mini, rows):
    generator = torch.Generator().manual_seed(rows)

    def drawn(*shape):
        return torch.randint(3, 1189, shape, generator=generator)

    models = (exported.target, mini.target)
    lengths = torch.tensor([20 + 5 * row for row in range(rows)])
    for row, length in enumerate(lengths.tolist()):
        prompt = drawn(length)
        for model in models:
            model.reserve(rows, 100)
            model.prefill(prompt, row)
    for k in (1, 6, 2, 4, 6):
        tokens, at = drawn(rows, k), lengths[:, None] - 1 + torch.arange(k)
        (_, ours), (_, theirs) = (model.read(tokens, at) for model in models)
        difference = (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1) / 2
        assert difference.max() < 1e-5
        lengths = lengths + torch.randint(0, k + 1, (rows,), generator=generator)


def counted_passes(pair: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    passes: list[tuple[int, bool]] = []
    model_type: Any = type(pair.draft)
    decode = model_type._decode

    def counted(model: Any, items: Any, outputs: Any) -> None:
        passes.append((len(items), bool(outputs)))
        decode(model, items, outputs)

    monkeypatch.setattr(model_type, "_decode", counted)
    return passes


def test_tokens_in_the_cache_are_not_read_again(exported, mini, monkeypatch):
    """Of two tokens the second is needed; the first was read, unless it is another one now."""
    passes = counted_passes(exported, monkeypatch)
    models = (exported.draft, mini.draft)
    for model in models:
        model.reserve(1, 100)
        model.prefill(torch.arange(3, 15))
    steps = [([14, 30], 11), ([30, 31], 12), ([40, 41], 12), ([41, 42], 13), ([43, 44], 14)]
    for tokens, at in steps:  # 40 replaces 30, and 43 follows 42, which was read
        read = torch.tensor([tokens]), torch.tensor([[at, at + 1]])
        (_, ours), (_, theirs) = (model.read(*read, last=True) for model in models)
        assert (ours.softmax(-1) - theirs.softmax(-1)).abs().sum() / 2 < 1e-5
    assert [number for number, _ in passes] == [11, 2, 1, 2, 1, 2]


def test_a_prompt_in_the_cache_is_not_read_again(exported, monkeypatch):
    passes = counted_passes(exported, monkeypatch)
    prompts = [torch.arange(3, 15), torch.arange(3, 16), torch.arange(4, 16)]
    rules = (sd, None, partial(lossy, lenience=0.5))
    texts: dict[bool, list[Any]] = {}
    for again in (False, True):
        texts[again] = []
        for prompt in prompts:
            for rule in rules:
                if not again:
                    exported.drop_caches()
                options = DecodeOptions(Sampling(temperature=0), 5, 16)
                text = decode(exported, rule, Request(prompt.tolist(), ""), options)
                texts[again].append((text.token_ids, [r.accepted for r in text.rounds]))
    assert texts[True] == texts[False]
    alone = [n for n in (11, 12, 11) for models in (2, 1, 2) for _ in range(models)]
    read = [number for number, outputs in passes if not outputs]
    assert read == [*alone, *(n for n in (11, 12, 11) for _ in range(2))]
    exported.target.prefill(prompts[-1])
    assert exported.target.saved_seconds > 0
    exported.target.read(torch.tensor([[9]]), torch.tensor([[4]]))  # overwrites the prompt
    exported.target.prefill(prompts[-1])
    assert exported.target.saved_seconds == 0


def test_a_prompt_of_another_row_is_copied_and_its_time_counts(exported):
    model, prompt, token = exported.target, torch.arange(3, 15), torch.tensor([[14], [14]])
    model.drop_cache()
    model.reserve(2, 40)
    model.prefill(prompt, 0)
    assert model.saved_seconds == 0
    model.prefill(prompt, 1)
    assert model.saved_seconds == model._prompts[0][1] > 0
    at = torch.tensor([[11], [11]])
    first, second = model.read(token, at)[1]
    assert torch.equal(first, second)
    model.read(torch.tensor([[9]]), torch.tensor([[4]]))  # overwrites the prompt in row 0
    model.forget_prompts()
    model.prefill(prompt, 1)
    assert model.saved_seconds == 0
    assert (model.read(token[1:], at[1:], rows=[1])[1][0] - second).abs().max() < 1e-4


def test_a_decoded_text_is_read_again_without_its_prompt(exported, monkeypatch):
    model, prompt = exported.target, list(range(3, 15))
    model.drop_cache()
    assert model.reread([*prompt, 20, 21], 2) is None  # nothing is in the cache
    model.reserve(2, 40)
    model.prefill(torch.arange(30, 45), 0)
    model.prefill(torch.tensor(prompt), 1)
    text = [*prompt, 20, 21, 22, 1]
    expected = model.plain(torch.tensor([text[:-1]]), 4, hidden=False)[0][0]
    monkeypatch.setattr(type(model), "prefill", None)
    logits = model.reread(text, 4)
    assert logits.shape == expected.shape
    assert (logits.softmax(-1) - expected.softmax(-1)).abs().sum(-1).max() / 2 < 1e-4
    assert model.reread([9, *text[1:]], 4) is None


def test_a_prompt_longer_than_one_call_is_read_whole(exported, mini):
    prompt = torch.randint(3, 1189, (1200,), generator=torch.Generator().manual_seed(0))
    distributions = []
    for model in (exported.target, mini.target):
        model.reserve(1, 1300)
        model.prefill(prompt)
        distributions.append(model.read(prompt[None, -1:], torch.tensor([[1199]]))[1].softmax(-1))
    assert (distributions[0] - distributions[1]).abs().sum() / 2 < 1e-5


@pytest.mark.parametrize("batch_size", [1, 4])
def test_texts_are_those_of_pytorch(exported, mini, batch_size):
    greedy = DecodeOptions(Sampling(temperature=0.0), 5, 32, batch_size=batch_size)
    # With the same draws a text differs only where a draw is within rounding of a boundary.
    sampled = replace(greedy, sampling=Sampling())
    texts = [decoded(exported, sd, how, 3) for how in (greedy, sampled)]
    assert texts == [decoded(mini, sd, how, 3) for how in (greedy, sampled)]
    assert texts[0] != texts[1]


def test_a_head_of_the_original_serves_the_export(exported, mini):
    folder = Path(get_pair("mini").heads or "") / "mini-math"
    how, texts = DecodeOptions(Sampling(), 5, 48), []
    for pair in (exported, mini):
        head = load_head(folder, pair)
        texts.append(decoded(pair, partial(diversed, head=head.weigh), how, 4))
    assert texts[0] == texts[1]


def test_smaller_types_are_smaller_and_close(mini, files, tmp_path):
    from export_pair import export_pair

    sizes, prompt = [Path(files.target).stat().st_size], torch.tensor(prompts(mini, 1))
    expected = mini.target.plain(prompt, 20, hidden=False)[0].softmax(-1)
    for form, largest in (("f16", 0.02), ("q8_0", 0.2)):
        target, draft = export_pair(get_pair("mini"), tmp_path, form)
        sizes.append(target.stat().st_size)
        pair_spec = PairSpec("small", str(target), str(draft))
        pair = load_pair(pair_spec)
        probabilities = pair.target.plain(prompt, 20, hidden=False)[0].softmax(-1)
        assert mini.is_exact and not pair.is_exact
        assert describe_models(pair)["target_type"] == form.upper()
        assert choose_dtype(pair_spec, Loading(), torch.device("cuda")) is torch.float32
        assert 1e-6 < (probabilities - expected).abs().sum(-1).max() / 2 < largest
    assert sizes == sorted(sizes, reverse=True)


@pytest.fixture
def fresh(monkeypatch) -> Iterator[Any]:
    """Load the library anew in this test and after it."""
    from specbench.engine import llamacpp_library

    llamacpp_library.library.cache_clear()
    yield llamacpp_library
    llamacpp_library.library.cache_clear()


def test_a_missing_or_other_library_is_refused(files, fresh, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fresh, "BUILD", "2026.1.1")
        with pytest.raises(UsageError, match=r"another build of llama\.cpp: pip install"):
            load_pair(files, CPU)

    monkeypatch.setattr(fresh, "distribution", Mock(side_effect=PackageNotFoundError))
    with pytest.raises(UsageError, match=r"GGUF files need llama\.cpp: pip install"):
        load_pair(files, CPU)


def test_unusable_files_are_refused(files, tmp_path):
    junk, cut = tmp_path / "junk.gguf", tmp_path / "cut.gguf"
    junk.write_bytes(b"junk")
    cut.write_bytes(Path(files.target).read_bytes()[:-1000])
    mini = get_pair("mini")
    for target, draft, told in (
        (junk, junk, "junk.gguf .*GGUF"),
        (tmp_path / "none.gguf", junk, "no file"),
        (cut, cut, "cut.gguf"),
        (files.target, mini.draft, "two GGUF files or none"),
    ):
        with pytest.raises(UsageError, match=told):
            load_pair(PairSpec("bad", str(target), str(draft)), CPU)
    for how, told in (
        (Loading(dtype="bfloat16"), "omit --dtype bfloat16"),
        (Loading(quantization="8bit"), "omit --load-format"),
    ):
        with pytest.raises(UsageError, match=told):
            load_pair(files, how)


def test_files_of_a_pair_file_are_found_beside_it(files):
    target, draft = Path(files.target), Path(files.draft or "")
    table = target.with_name("my.toml")
    table.write_text(f'[small]\ntarget = "./{target.name}"\ndraft = "./{draft.name}"\n')
    spec = get_pair(f"{table}:small")
    assert spec.gguf
    assert load_pair(spec, CPU).target.fingerprint() == load_pair(files, CPU).target.fingerprint()


def test_other_architectures_and_vocabularies_are_refused(files, mini, tmp_path):
    from export_pair import finish, write_gguf
    from gguf import GGUFWriter

    finish(GGUFWriter(tmp_path / "other.gguf", "unheard-of"))
    words = mini.tokenizer.__class__.from_pretrained(get_pair("python").target)
    write_gguf(tmp_path / "words.gguf", mini.runners[1].model, words, "0", "f32")
    for draft, told in (
        ("other", "cannot read .*other.gguf .*architecture.*: give a complete GGUF file of an a"),
        ("words", "do not share a vocabulary: token .*choose a draft of the target's family"),
    ):
        with pytest.raises(UsageError, match=told):
            load_pair(PairSpec("bad", files.target, str(tmp_path / f"{draft}.gguf")), CPU)


@pytest.mark.parametrize("kind", ["linear", "features"])
def test_texts_to_train_on_are_those_of_pytorch(exported, mini, kind):
    """Each prompt is read once for three texts, and texts end at different times."""
    sizes, rows = (mini.target.hidden_size, mini.draft.hidden_size), prompts(mini, 2)
    heads = [Head(kind, sizes, weight) for weight in (0.9, 0.5, 0.1)]
    of_torch, of_file = (
        roll_out(pair, [RolloutRequest(heads, rows, torch.Generator().manual_seed(0))], 100)[0]
        for pair in (mini, exported)
    )
    assert len({*of_torch.texts}) == 6 and of_file.texts == of_torch.texts
    assert len(of_torch.row.unique(return_counts=True)[1].unique()) > 1
    for ours, theirs in zip(of_file[1:], of_torch[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_modules_that_need_pytorch_and_too_many_texts_are_refused(exported):
    with pytest.raises(UsageError, match="this needs PyTorch models"):
        exported.runners  # noqa: B018
    exported.target.reserve(1, 256)
    for rows, tokens in ((100_000, 256), (1, 25_600_000)):
        with pytest.raises(RunError, match="cannot allocate"):
            exported.target.reserve(rows, tokens)
    exported.target.reserve(1, 256)
    assert exported.target._context
