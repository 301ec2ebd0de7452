"""GGUF files: ends, shards, downloads, damage, and how llama.cpp splits a text."""

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from httpx2 import ConnectError
from huggingface_hub import constants
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from specbench.engine import hub
from specbench.engine import pairs as model_pairs
from specbench.engine.hub import download_bytes
from specbench.engine.loading import load_pair, load_reader
from specbench.engine.memory import decoding_needs
from specbench.engine.pairs import Loading, custom_pair, get_pair, shard_names
from specbench.engine.sources import decoder_config
from specbench.errors import UsageError
from specbench.methods.strict import sd

from ..decoding.helpers import GREEDY, run
from .conftest import needs_llamacpp

CPU = Loading(device="cpu", dtype="float32")
PADDING = 40


def rewrite(
    source: Path, path: Path, family: str = "llama", padding: int = 0, split: int = 0, **ids: int
) -> Path:
    """Copy a file with other end tokens, rows of padding, or in shards of so many tensors."""
    from export_pair import finish
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    writer = GGUFWriter(path, family, split_max_tensors=split)
    values = {f"tokenizer.ggml.{name}_token_id": number for name, number in ids.items()}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", *values):
            continue
        value = field.contents()
        if padding and name == "tokenizer.ggml.tokens":
            value += [f"[PAD{number}]" for number in range(padding)]
        elif padding and name == "tokenizer.ggml.token_type":
            value += [5] * padding
        elif padding and name == "llama.vocab_size":
            value += padding
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for name, number in values.items():
        writer.add_uint32(name, number)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = np.concatenate([data, data[len(data) - padding :]])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return path


@needs_llamacpp
@pytest.mark.parametrize(
    "ids",
    [{"eot": 9}, {"eos": 11, "eot": 9}, {"eom": 9}, {"eos": 0}, {"eos": 11, "eom": 0}],
    ids=str,
)
def test_all_ends_of_a_file_count(ids, mini_files, tmp_path):
    file = rewrite(mini_files / "target-f32.gguf", tmp_path / "ends.gguf", **ids)
    spec = custom_pair(str(file), None)
    pair = load_pair(spec, CPU)
    assert pair.eos_ids >= {*ids.values()}
    assert load_reader(spec, CPU).eos_ids == pair.eos_ids


@needs_llamacpp
@pytest.mark.parametrize("padded", ["target", "draft"])
def test_padding_is_no_token(padded, mini_files, tmp_path):
    files = {role: mini_files / f"{role}-f32.gguf" for role in ("target", "draft")}
    expected = load_pair(custom_pair(*map(str, files.values())), CPU)
    files[padded] = rewrite(files[padded], tmp_path / "padded.gguf", padding=PADDING)
    pair = load_pair(custom_pair(*map(str, files.values())), CPU)
    assert pair.target.vocabulary == pair.draft.vocabulary == expected.target.vocabulary
    assert len(pair.tokenizer) == len(expected.tokenizer)
    prompt = pair.tokenizer.encode("How many apples are left?")
    texts = [run(p, prompt, sd, sampling=GREEDY).token_ids for p in (pair, expected)]
    assert texts[0] == texts[1]


@pytest.fixture
def shards(once, mini_files, tmp_path) -> list[Path]:
    def make(folder: Path) -> None:
        folder.mkdir()
        rewrite(mini_files / "target-f32.gguf", folder / "model.gguf", split=30)

    return [Path(shutil.copy(f, tmp_path)) for f in sorted(once("gguf-shards", make).iterdir())]


@needs_llamacpp
def test_all_shards_count_and_none_may_be_missing(shards, mini_files):
    source = mini_files / "target-f32.gguf"
    first, second, third = shards
    whole, sharded = (load_pair(custom_pair(str(file), None), CPU) for file in (source, first))
    tokens = torch.tensor([[5, 6, 7]])
    logits = [pair.target.plain(tokens, 3, hidden=False)[0] for pair in (whole, sharded)]
    assert torch.equal(*logits)
    size = sum(file.stat().st_size for file in (first, second, third))
    assert model_pairs.stored_bytes(first) == sharded.target.weight_bytes() == size
    with pytest.raises(UsageError, match=rf"is not the first file .*give .*{first.name}"):
        load_reader(custom_pair(str(second), None), CPU)
    for lost, told in ((third, "is missing"), (second, "are missing")):
        lost.unlink()
        with pytest.raises(UsageError, match=rf"one of 3 files .*{lost.name}.* {told} beside it"):
            load_reader(custom_pair(str(first), None), CPU)


REPOSITORY, COMMIT = "org/files-GGUF", "a" * 40


@pytest.fixture
def hub_files(shards, mini_files, tmp_path, monkeypatch) -> list[Any]:
    """Serve files as the hub does, into an empty cache; return the names that were asked for."""
    served, cache, asked = tmp_path / "served", tmp_path / "cache", list[Any]()
    served.mkdir()
    shutil.copy(mini_files / "target-f32.gguf", served / "target.gguf")
    for shard in shards:
        shutil.copy(shard, served / shard.name.replace("model", "big"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def snapshot(
        repository: str, revision: str | None, allow_patterns: list[str], dry_run: bool = False
    ) -> Any:
        folder = cache / f"models--{repository.replace('/', '--')}"
        place, blobs = folder / "snapshots" / COMMIT, folder / "blobs"
        files = [path for path in served.iterdir() if path.name in allow_patterns]
        if dry_run:
            new = [not (place / path.name).exists() for path in files]
            sizes = [path.stat().st_size for path in files]
            parts = zip(sizes, new, strict=True)
            return [SimpleNamespace(file_size=s, will_download=n) for s, n in parts]
        asked.append((repository, revision, sorted(path.name for path in files)))
        for path in (place, blobs, folder / "refs"):
            path.mkdir(parents=True, exist_ok=True)
        (folder / "refs" / (revision or "main")).write_text(COMMIT)
        for path in files:
            blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
            shutil.copy(path, blob)
            (place / path.name).symlink_to(blob)
        return str(place)

    hub._downloaded.cache_clear()
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    return asked


@needs_llamacpp
@pytest.mark.parametrize("file", ["target.gguf", "big-00001-of-00003.gguf"])
def test_a_file_of_the_hub_is_downloaded_once_with_its_shards(file, hub_files, tmp_path):
    pairs, model = tmp_path / "pairs.toml", f"{REPOSITORY}:{file}"
    pairs.write_text(f"[m]\ntarget = '{model}'\ndraft = '{model}'\ntarget_revision = 'v1'\n")
    spec, served = model_pairs.without_draft(get_pair(str(pairs))), tmp_path / "served"
    whole = sum((served / name).stat().st_size for name in shard_names(file))
    assert download_bytes(spec, CPU) == whole and not hub_files
    pair = load_pair(spec, CPU)
    assert hub_files == [(REPOSITORY, "v1", shard_names(file))]
    assert pair.facts["target_commit"] == COMMIT
    digest = hashlib.sha256((served / file).read_bytes()).hexdigest()
    assert pair.facts["target_sha256"] == digest
    assert decoding_needs(spec, CPU, 9, 9, 5)["target"].weights == whole
    assert pair.target.weight_bytes() == whole
    assert download_bytes(spec, CPU) == 0 and len(hub_files) == 1
    with pytest.raises(UsageError, match=rf"^{REPOSITORY} has no file other.gguf: check its name"):
        load_pair(custom_pair(f"{REPOSITORY}:other.gguf", None), CPU)


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("x"), ConnectError("no host")])
def test_a_file_that_the_hub_does_not_give_is_one_sentence(error, monkeypatch):
    monkeypatch.setattr(hub, "snapshot_download", Mock(side_effect=error))
    spec = custom_pair(f"{REPOSITORY}:failing.gguf", None)
    assert download_bytes(spec, CPU) == 0
    with pytest.raises(UsageError, match=rf"^cannot load {REPOSITORY}:failing.gguf from the hub"):
        load_pair(spec, CPU)


@needs_llamacpp
def test_a_file_is_read_once_until_it_changes(mini_files, tmp_path, monkeypatch):
    from specbench.engine import gguf

    parse = Mock(side_effect=gguf._parsed)
    file = rewrite(mini_files / "draft-f32.gguf", tmp_path / "a.gguf", eot=7)
    spec = custom_pair(str(file), None)
    monkeypatch.setattr(gguf, "_parsed", parse)
    ends = [load_reader(spec, CPU).eos_ids, load_pair(spec, CPU).eos_ids]
    assert parse.call_count == 1
    assert all(7 in ids for ids in ends)
    rewrite(mini_files / "draft-f32.gguf", tmp_path / "a.gguf", eot=8, padding=1)
    assert 8 in load_reader(spec, CPU).eos_ids


WHOLE = b"GGUF\3\0\0\0" + (2).to_bytes(8, "little") * 400
NESTED = struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"a", 9) + struct.pack("<IQ", 9, 1) * 3000


@pytest.mark.parametrize("content", [*(WHOLE[:n] for n in (0, 3, 20, 500, 3000)), NESTED])
def test_a_cut_file_is_refused(content, tmp_path):
    from specbench.engine.gguf import read_gguf

    path = tmp_path / "cut.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read .*cut.gguf .*give a complete GGUF file"):
        read_gguf(path)


DAMAGES: list[Callable[[Path], object]] = [
    lambda file: file.write_bytes(file.read_bytes()[:-1000]),
    lambda file: file.write_text("<html>404</html>"),
    Path.unlink,
]


@needs_llamacpp
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_shard_is_refused_before_any_weights_are_loaded(damage, number, shards):
    damage(shards[number])
    with pytest.raises(UsageError, match=rf"{shards[0].name}.*: (give|download)") as caught:
        load_reader(custom_pair(str(shards[0]), None), CPU)
    assert "\n" not in str(caught.value)


SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
STATEFUL: list[Callable[..., Any]] = [
    transformers.MambaConfig,
    partial(transformers.Lfm2Config, layer_types=["conv", "full_attention"]),
    partial(transformers.Qwen3_5TextConfig, layer_types=["linear_attention", "full_attention"]),
    transformers.JambaConfig,
    transformers.FalconH1Config,
]


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_folder_of_a_model_with_a_state_is_refused_by_name(kind, tmp_path):
    config = kind(**SMALL)
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=rf"{config.model_type} model.* choose a model whose"):
        decoder_config(str(tmp_path))


@needs_llamacpp
@pytest.mark.parametrize("architecture", ["mamba", "lfm2", "jamba", "rwkv7"])
def test_a_file_of_a_model_with_a_state_is_refused_by_name(architecture, mini_files, tmp_path):
    """The vocabulary alone is read, so it does not matter which tensors the file has."""
    file = rewrite(mini_files / "target-f32.gguf", tmp_path / "state.gguf", architecture)
    spec = custom_pair(str(file), None)
    with pytest.raises(UsageError, match=f"{architecture} model, .* keep a state"):
        load_reader(spec, CPU)


pytestmark = needs_llamacpp
CORPUS = [
    "The quick brown fox jumps over the lazy dog. Isn't it 12345678 o'clock? HelloWorld!",
    "def add(x, y):\n    return x + y\n\n\ttabs, camelCase and XMLHttpRequest",
    "na\u00efve caf\u00e9 \u201cquoted\u201d \u2026 \u65e5\u672c\u8a9e \u0440\u0443\u0441",
] * 20
UNSEEN = "Whether 98765 or 4,321: it's naïve\n\n  to print(add(x, 3))  \U0001f642"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(digits: str, *, ignore_merges: bool) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer like those of Llama 3 and Qwen: a regular expression, then bytes."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    split = pre_tokenizers.Split(Regex("|".join((SHORT, WORD, digits, SYMBOLS))), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    ends = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    options = {"special_tokens": [*ends.values()], "show_progress": False, "vocab_size": 600}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)


def sentencepiece(prefix: bool, in_bytes: bool = True) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer like those of Llama 2 (with a prefix) and Gemma (without): marked spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    spaces = normalizers.Replace(" ", "\u2581")
    marked = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*marked, spaces])
    ends = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    special, options = [*ends.values()], {"vocab_size": 700, "show_progress": False}
    tokens = special + BYTES * in_bytes
    trainer = trainers.BpeTrainer(special_tokens=tokens, max_token_length=8, **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [t for t in stored["added_tokens"] if t["content"] in special]
    backend = Tokenizer.from_str(json.dumps(stored))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **ends)


def export(tokenizer: transformers.PreTrainedTokenizerFast, path: Path, *splits: tuple[str, ...]):
    from export_pair import finish, write_tokenizer
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    write_tokenizer(writer, tokenizer, *splits)
    finish(writer)
    return path


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(lambda: byte_level(r"\p{N}{1,3}", ignore_merges=True), id="Llama 3"),
        pytest.param(lambda: byte_level(r"\p{N}", ignore_merges=False), id="Qwen"),
        pytest.param(lambda: sentencepiece(prefix=True), id="Llama 2"),
        pytest.param(lambda: sentencepiece(prefix=False), id="Gemma"),
    ],
)
def test_llamacpp_splits_an_unseen_text_in_the_same_way(tokenizer, tmp_path):
    from specbench.engine.gguf_tokenizer import read_tokenizer, tokenize

    original = tokenizer()
    path = export(original, tmp_path / "vocabulary.gguf")
    expected = original.encode(UNSEEN, add_special_tokens=False)
    assert tokenize(path, [UNSEEN]) == [expected]
    assert read_tokenizer(path).encode(UNSEEN, add_special_tokens=False) == expected
    twin = Path(shutil.copy(path, tmp_path / "twin.gguf"))
    assert read_tokenizer(twin) is read_tokenizer(path)  # converting it takes seconds


def test_another_split_and_marked_spaces_without_byte_tokens_are_refused(tmp_path):
    """A negative control: the right name is not among those to try."""
    with pytest.raises(UsageError, match=r"would split .* into other tokens"):
        export(byte_level(r"\p{N}{1,3}", ignore_merges=True), tmp_path / "v.gguf", ("gpt-2",))
    with pytest.raises(UsageError, match="cannot export this tokenizer"):
        export(sentencepiece(prefix=True, in_bytes=False), tmp_path / "v.gguf")
