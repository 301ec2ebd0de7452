"""Loading a pair from disk or the hub's cache, and one sentence for each failure."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load, save
from tokenizers import Tokenizer, models
from transformers import AddedToken, AutoModelForCausalLM, PreTrainedTokenizerFast

from specbench.engine import loading, sources, weights
from specbench.engine.loading import load_pair, load_reader
from specbench.engine.pairs import Loading, custom_pair
from specbench.engine.vocabulary import draft_tokens, vocabulary_size
from specbench.errors import RunError, UsageError
from specbench.methods.strict import sd
from specbench.validation.check import ends_finding

from ..decoding.helpers import GREEDY, run
from ..told import refusals
from .tiny import VOCABULARY, build, config, random_prompt

CPU = Loading(device="cpu")
HUB = custom_pair("org/big", "org/small")


def test_a_pair_is_loaded_in_its_dtype_and_cut_to_its_shared_vocabulary(spec):
    pair = load_pair(replace(spec, thinking=True), CPU)
    assert pair.name == "target+draft"
    assert pair.target.vocabulary == pair.draft.vocabulary == VOCABULARY
    assert pair.draft.output.weight.shape[0] == 72 and pair.eos_ids == {5, 7}
    assert pair.tokenizer.decode([0, 1, 62, 2]) == "ab c" and not pair.target.model.training
    assert len(run(pair, random_prompt(5), sd, max_new_tokens=4).rounds) > 0
    assert (pair.facts["load_format"], pair.facts["thinking"]) == ("auto", True)
    assert pair.facts["shared_vocabulary"] == VOCABULARY
    assert pair.facts["target_commit"] is None  # a folder has none
    json.dumps(pair.facts)
    with pytest.raises(RunError, match=f"token {VOCABULARY}, but the target has only"):
        run(pair, [1, VOCABULARY, 2], sd)
    double = replace(spec, dtype="float64")
    assert load_pair(double, CPU).target.dtype == torch.float64
    assert load_pair(double, CPU.updated(dtype="bfloat16")).draft.dtype == torch.bfloat16


HERE = str(Path(__file__).parent)  # contains no model
REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({}, {"device": "gpu"}, "no device gpu"),
    ({}, {"device": "cuda:99"}, "no device cuda:99"),
    ({}, {"dtype": "Tensor"}, "--dtype must be one of"),
    ({"target": "nothing"}, {}, "no model folder nothing"),
    ({"draft": "no/such/thing"}, {}, "no model folder no/such/thing"),
    ({"draft": HERE}, {}, "cannot load .*engine .*: give a folder with a model"),
    ({}, {"quantization": "8bit"}, "--quantization 8bit needs the package bitsandbytes"),
    ({}, {"device_map": "auto"}, "--device-map needs the package accelerate"),
]


def test_pairs_that_cannot_be_loaded_are_refused(spec, monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    for changes, given, told in REFUSED:
        with pytest.raises(UsageError, match=told):
            load_pair(replace(spec, **changes), Loading(**({"device": "cpu"} | given)))


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_attention_backends_are_chosen_on_a_gpu_before_models_are_loaded(spec, name, monkeypatch):
    happened: list[str] = []

    monkeypatch.setattr(loading, "choose_device", torch.device)
    monkeypatch.setattr(loading, "load_config", Mock(side_effect=UsageError("the next step")))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: happened.append("set"))
    monkeypatch.setattr(loading, "exclude_cudnn", lambda: happened.append("exclude"))
    with pytest.raises(UsageError, match="the next step"):
        load_pair(spec, Loading(device=name))
    assert happened == {"cpu": [], "cuda": ["exclude"], "cuda:1": ["set", "exclude"]}[name]


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def index_of(weight_map: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def without_tokenizer(folder: Path, family: str = "llama") -> None:
    """Transformers makes an empty tokenizer for models of some families."""
    for file in folder.glob("tokenizer*"):
        file.unlink()
    if family != "llama":
        build(config(family)).save_pretrained(folder)


def cut(name: str, part: float) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * part)])

    return damage


def of_another_model(folder: Path) -> None:
    build(config("llama", hidden_size=48)).save_pretrained(folder / "other")
    (folder / "other" / WEIGHTS).replace(folder / WEIGHTS)


def of_another_family(folder: Path) -> None:
    """Exchange two regular tokens."""
    file = folder / "tokenizer.json"
    stored = json.loads(file.read_text())
    words = stored["model"]["vocab"]
    first, second = list(words)[40:42]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(stored))


def with_file(name: str, content: object, **copies: str) -> Callable[[Path], object]:
    def add(folder: Path) -> None:
        for copy, file in copies.items():
            shutil.copy(folder / file, folder / f"{copy}.safetensors")
        (folder / name).write_text(json.dumps(content))

    return add


of_llama_3 = with_file("tokenizer_config.json", {"added_tokens_decoder": {}})


def adapter_alone(folder: Path) -> None:
    for file in folder.glob("*"):
        file.unlink()
    (folder / "adapter_config.json").write_text("{}")


def configure(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def quantised(settings: dict[str, Any]) -> Callable[[Path], object]:
    return lambda folder: configure(folder, quantization_config=settings)


DAMAGED: list[tuple[Callable[[Path], object], str]] = [
    (cut(WEIGHTS, 0.01), "cannot read .*draft/model.safetensors .*: download the model again"),
    (cut(WEIGHTS, 0.99), "cannot read .*draft/model.safetensors .*: download the model again"),
    (lambda f: (f / WEIGHTS).write_text("<html>404</html>"), "cannot read .*draft/model.safe"),
    (lambda f: (f / WEIGHTS).unlink(), "draft has no weights: download them"),
    (index_of({"model.norm.weight": "part-2.safetensors"}), "cannot read .*draft/part-2.safe"),
    (index_of([1]), "cannot read .*draft/model.safetensors.index.json"),
    (of_another_model, "holds another model than its config.json"),
    (without_tokenizer, "draft .*: give a folder with a model and its tokenizer"),
    (partial(without_tokenizer, family="qwen2"), "draft has no tokenizer: add tokenizer.json"),
    (cut("tokenizer.json", 0.5), "cannot load .*draft"),
    (lambda f: (of_llama_3(f), cut("tokenizer.json", 0.5)(f)), "cannot load .*draft"),
    (of_another_family, "the models do not share a vocabulary: token"),
    (
        with_file(INDEX, {"weight_map": {"a": "part.safetensors"}}, part=WEIGHTS),
        f"has {WEIGHTS} beside",
    ),
    (with_file("adapter_config.json", {"peft_type": "LORA"}), "an adapter .* beside its model"),
    (adapter_alone, r"draft holds an adapter \(adapter_config.json\), not a model: merge it"),
    *(
        (quantised({"quant_method": method}), f"with {name}, which needs {needs}, not installed")
        for method, name, needs in (
            ("gptq", "GPTQ", "`accelerate`, `gptqmodel`, `optimum`"),
            ("awq", "AWQ", "`accelerate`, `gptqmodel`"),
            ("fp8", "FP8", "`accelerate`"),
            ("compressed-tensors", "compressed-tensors", "`accelerate`, `compressed_tensors`"),
            ("bitsandbytes", "bitsandbytes", "`accelerate`, `bitsandbytes`"),
            ("mxfp4", "MXFP4", "`accelerate`"),
            ("torchao", "torchao", "`accelerate`"),
        )
    ),
    (quantised({"load_in_4bit": True}), "with bitsandbytes, which needs `accelerate`, `bitsandb"),
    (quantised({"quant_method": "modelopt"}), "with modelopt, which Transformers does not load:"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGED)
def test_damaged_models_are_refused_before_any_weights_are_loaded(damage, told, spec, monkeypatch):
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("weights are loaded"))
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    damage(Path(str(spec.draft)))
    with pytest.raises(UsageError, match=told) as caught:
        load_pair(spec, CPU)
    assert "\n" not in str(caught.value)


INNER = "model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([f"{INNER}q_proj.bias"], rf"has 1 weight that .*\(`{INNER}q_proj.bias`\)"),
        ([f"{INNER}k_proj.weight_scale", "lm_head.weight_scale_inv"], "`lm_head.weight_scale_inv"),
        ([f"{INNER}o_proj.lora_A.default.weight"], "lora_A.* adapters merged"),
        ([f"{INNER}q_norm.weight"], "q_norm"),
        ([f"model.layers.2.{n}.weight" for n in "abc"], "has 3 weights .*`model.layers.2.a.weigh"),
        (["model.norm.bias"], "`model.norm.bias`"),
        (["model.embed_positions.weight", "score.weight"], ""),
        (["model.vision_tower.x.weight", "vision_model.x.weight", "visual.blocks.0.weight"], None),
        (["mtp.layers.0.q_proj.weight", "model.audio_tower.weight", "model.mtp.norm.weight"], None),
        ([f"{INNER}rotary_emb.inv_freq", f"{INNER}masked_bias", f"{INNER}k_proj.k_scale"], None),
        (["model.mm_projector.0.bias"], None),
    ],
)
def test_weights_without_a_place_are_refused_unless_of_other_parts(names, told, spec, caplog):
    file = Path(spec.target) / WEIGHTS
    tensors = load(file.read_bytes()) | {name: torch.zeros(4) for name in names}
    file.write_bytes(save(tensors, metadata={"format": "pt"}))
    if told:
        with pytest.raises(UsageError, match=told):
            load_pair(spec, CPU)
    else:
        load_pair(spec, CPU)
        assert ("without use" in caplog.text) == (told == "")
        assert told is None or "has 2 weights without use" in caplog.text


def test_layers_that_predict_several_tokens_are_no_layers_of_the_decoder(spec):
    file = Path(spec.target) / WEIGHTS
    tensors = load(file.read_bytes()) | {"model.layers.2.enorm.weight": torch.zeros(4)}
    file.write_bytes(save(tensors, metadata={"format": "pt"}))
    configure(file.parent, num_nextn_predict_layers=1)
    load_pair(spec, CPU)


def test_missing_weights_and_foreign_code_are_refused(spec):
    file = Path(spec.target) / WEIGHTS
    whole = file.read_bytes()
    # Transformers would initialise missing weights.
    tensors = load(whole)
    renamed = {f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}
    file.write_bytes(save(renamed, metadata={"format": "pt"}))
    with pytest.raises(UsageError, match=r"are missing, lm_head\.weight first, and it has _or"):
        load_pair(spec, CPU)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    file.write_bytes(save(tensors, metadata={"format": "pt"}))
    with pytest.raises(UsageError, match=r"1 of its weights are missing, model\.layers\.1\.mlp"):
        load_pair(spec, CPU)
    configure(file.parent, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    with pytest.raises(UsageError, match=r"its own code: read it, then give --trust-remote"):
        load_pair(spec, CPU)


# Vocabularies are compared token by token, whatever their sizes.

WORDS = ["a", "b", "c", "d", "e"]


def words(tokens: Sequence[str], *added: str) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with special tokens after the words."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(tokens)}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in added])
    return tokenizer


def test_the_target_keeps_tokens_that_the_draft_lacks():
    for target, draft, missing in (
        (words(WORDS, *"x"), words(WORDS, *"x"), []),
        (words(WORDS), words(WORDS, *"xy"), []),  # a larger draft
        (words(WORDS, *"xy"), words(WORDS, *"x"), [6]),
        (words(WORDS, *"xy"), words(WORDS), [5, 6]),
        (words(WORDS), words(WORDS[:3]), [3, 4]),  # regular tokens that only the target has
        (words(WORDS, *"xy"), words(WORDS, *"zy"), [5]),  # another name of a reserved token
        (words(WORDS[:4], *"xy"), words(WORDS, *"y"), [4]),
    ):
        size = vocabulary_size(target, 100)  # the rest are rows of padding
        assert size == len(target)
        for rows in (len(draft), 90):
            tokens = draft_tokens(target, draft, size, rows)
            lacked = [] if tokens is None else (~tokens.present[:-1]).nonzero()[:, 0].tolist()
            assert lacked == missing
            if tokens is not None:
                read = tokens.inputs(torch.arange(size + 3)).tolist()
                assert read == [i if i < size and i not in missing else 0 for i in range(size + 3)]
                logits = tokens.outputs(torch.zeros(2, 1, rows))
                assert logits.shape == (2, 1, size)
                assert logits[0, 0].isneginf().nonzero()[:, 0].tolist() == missing


def test_the_first_difference_is_named(stored):
    drafts = (words(list(letters)) for letters in ("acbde", "abcdE"))
    stored(refusals(*(partial(draft_tokens, words(WORDS), draft, 5, 5) for draft in drafts)))


@pytest.mark.parametrize("ends", [0, [0, 7], [5, 64]])
def test_all_ends_of_a_folder_count(ends, spec):
    """Also with the id 0, from ``generation_config.json``, ``config.json`` and the tokenizer."""
    marked = PreTrainedTokenizerFast.from_pretrained(spec.target)
    marked.eos_token = "h"
    marked.save_pretrained(spec.target)
    file = Path(spec.target) / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": ends}))
    expected = {5, 7, *(ends if isinstance(ends, list) else [ends])}
    assert load_pair(spec, CPU).eos_ids == load_reader(spec, CPU).eos_ids == expected
    for broken in ("{", "[5]"):
        file.write_text(broken)
        with pytest.raises(UsageError, match=r"cannot read generation_config.json of .*correct it"):
            load_reader(spec, CPU)
    file.unlink()
    assert load_pair(spec, CPU).eos_ids == load_reader(spec, CPU).eos_ids == {5, 7}


@pytest.mark.parametrize("added", [["<|im_end|>"], ["<|im_start|>", "<|im_end|>", "<think>"]])
def test_a_target_ends_with_a_token_that_the_draft_lacks(added, spec):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(spec.target)
    tokenizer.add_special_tokens({"eos_token": added[-1], "additional_special_tokens": added[:-1]})
    model: Any = AutoModelForCausalLM.from_pretrained(spec.target)
    model.resize_token_embeddings(80, mean_resizing=False)  # and rows of padding
    end = tokenizer.eos_token_id
    weights, (first, *_) = model.get_output_embeddings().weight.data, random_prompt(8)
    prompt = [*random_prompt(8), tokenizer.convert_tokens_to_ids(added[0])]
    states = model.get_decoder()(torch.tensor([[*prompt, first]])).last_hidden_state[0]
    weights[end] = 10 * states[-1].detach() - 10 * states[-2].detach()
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    model.save_pretrained(spec.target)
    tokenizer.save_pretrained(spec.target)
    pair = load_pair(spec, CPU)
    assert pair.target.vocabulary == pair.draft.vocabulary == len(tokenizer)
    assert pair.facts["shared_vocabulary"] == VOCABULARY and pair.eos_ids == {end}
    for text in ([*prompt, first], [*prompt, end, *prompt]):
        alone, drafted = (run(pair, text, rule, sampling=GREEDY) for rule in (None, sd))
        assert alone.token_ids == drafted.token_ids
        assert alone.stopped_by == drafted.stopped_by
    assert run(pair, [*prompt, first], sd, sampling=GREEDY).stopped_by == "eos"
    assert not [*ends_finding(pair)]
    endless = replace(pair, eos_ids=frozenset({len(tokenizer)}))
    for wrong in (endless, replace(pair, eos_ids=frozenset())):
        assert [finding.verdict for finding in ends_finding(wrong)] == ["FAILED"]


def test_threads_are_as_many_as_the_user_says(spec, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for threads, expected in ((3, 3), (None, 1), (2, 2)):  # a small target takes one
        load_pair(spec, Loading(device="cpu", threads=threads))
        assert torch.get_num_threads() == expected
