"""The input of a head, its weight and its files."""

import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.heads.bind import bind
from specbench.decoding.heads.head import Head, fingerprints, load_head, save_head
from specbench.decoding.heads.kinds import KINDS, features
from specbench.decoding.heads.registry import DESCRIPTION, MOST_BYTES, WEIGHTS, HeadFile
from specbench.decoding.sampling import Sampling
from specbench.engine.pair import LoadedPair
from specbench.errors import UsageError
from specbench.methods.exact import sd_adaptive
from specbench.methods.verdict import Positions
from specbench.runs.labels import UNTRAINED

from ...engine.tiny import build, config, pair_of

SIZES = (6, 4)


def positions(count: int = 5, vocabulary: int = 7, seed: int = 0) -> Positions:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, count, vocabulary, generator=generator).softmax(-1)
    h_p, h_q = (torch.randn(count, size, generator=generator) for size in SIZES)
    return Positions(p, q, p, q, h_p, h_q, greedy=False)


def random_head(kind: str = "linear", sizes: tuple[int, int] = (32, 16)) -> Head:
    head, generator = Head(kind, sizes), torch.Generator().manual_seed(0)
    for weights in head.parameters():
        weights.data = torch.randn(weights.shape, generator=generator)
    return head


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_head_gives_one_weight_and_its_seed_decides_the_hidden_layer(kind):
    for weight in (0.5, 0.9):
        head = Head(kind, SIZES, weight)
        torch.testing.assert_close(head.weigh(positions()), torch.full((5,), weight))
    state = torch.random.get_rng_state()
    one, same, other = (Head(kind, SIZES, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    hidden = [name for name in one if name.startswith("hidden")]
    assert bool(hidden) == (kind != "linear")
    assert all(not torch.equal(one[name], other[name]) for name in hidden)


def test_the_linear_weight_is_the_second_share_of_a_softmax_in_any_dtype():
    head, at = random_head("linear", SIZES), positions()
    scores = torch.cat([at.h_q, at.h_p], -1) @ head.summary.weight.T + head.summary.bias
    torch.testing.assert_close(head.weigh(at), scores.softmax(-1)[:, 1])
    halves = at._replace(h_p=at.h_p.bfloat16(), h_q=at.h_q.bfloat16())
    assert head.weigh(halves).dtype == torch.float32
    torch.testing.assert_close(head.weigh(halves), head.weigh(at), atol=0.05, rtol=0)


@pytest.mark.parametrize("vocabulary", [2, 7, 128, 129, 200, 5000])
def test_features_of_many_tokens_are_those_of_the_plain_formulas(vocabulary):
    logits = 3 * torch.randn(2, 40, vocabulary, generator=torch.Generator().manual_seed(3))
    logits[:, :, 1::2] -= 200  # probabilities that underflow to 0
    p, q = logits.softmax(-1)
    nothing = torch.zeros(40, 0)
    (p1, p2), (q1, q2) = (torch.sort(rows, descending=True)[0][:, :2].T for rows in (p, q))
    best_p, best_q = p.argmax(-1)[:, None], q.argmax(-1)[:, None]
    expected = (
        *(torch.special.entr(rows).sum(-1) for rows in (p, q)),
        *(p1, p2, q1, q2, p.gather(1, best_q)[:, 0], q.gather(1, best_p)[:, 0]),
        *((p - q).abs().sum(-1) / 2, (best_p == best_q)[:, 0].float()),
    )
    ours = features(Positions(q, p, p, q, nothing, nothing, greedy=False))
    torch.testing.assert_close(ours, torch.stack(expected, 1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_depends_only_on_its_own_position(kind):
    head, at = random_head(kind, SIZES), positions()
    both = zip(at[:6], positions(seed=9)[:6], strict=True)
    tampered = Positions(*(torch.cat((mine[:2], theirs[2:])) for mine, theirs in both), False)
    torch.testing.assert_close(head.weigh(tampered)[:2], head.weigh(at)[:2])
    assert not torch.allclose(head.weigh(tampered)[2:], head.weigh(at)[2:])


@cache
def pair() -> LoadedPair:
    return pair_of(build(config("llama")), build(config("llama", hidden_size=16), seed=1))


def description(pair: LoadedPair) -> dict[str, Any]:
    return {"pair": "tiny", "kind": "linear", "models": fingerprints(pair)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_survives_a_round_trip_to_disk(tmp_path, kind):
    head, folder = random_head(kind), tmp_path / "heads" / "task"
    save_head(head, folder, description(pair()) | {"kind": kind})
    assert sorted(file.name for file in folder.iterdir()) == [DESCRIPTION, WEIGHTS]
    loaded = load_head(folder, pair())
    inputs = torch.randn(7, 10 if kind == "features" else 48)
    assert torch.equal(loaded(inputs), head(inputs))
    assert not any(weights.requires_grad for weights in loaded.parameters())


def test_a_head_fits_its_pair_in_every_dtype_and_no_other_pair(tmp_path):
    save_head(random_head(), tmp_path, description(pair()))
    half, narrow = {"dtype": torch.float16}, config("llama", hidden_size=16)
    halves = pair_of(build(config("llama"), **half), build(narrow, seed=1, **half))
    assert load_head(tmp_path, halves).summary.weight.dtype == torch.float32
    save_head(random_head(), tmp_path, description(pair()) | {"pair": "neighbour"})
    for target, draft in ((0, 2), (2, 1)):
        narrow = build(config("llama", hidden_size=16), seed=draft)
        other = pair_of(build(config("llama"), seed=target), narrow)
        with pytest.raises(UsageError, match=r"other weights than .* names neighbour"):
            load_head(tmp_path, other)


BIAS = {"summary.bias": torch.zeros(2)}
WRONG_WEIGHTS = (torch.full((2, 48), torch.nan), torch.full((2, 48), torch.inf))
NOT_FINITE = [
    ({"summary.weight": wrong, **BIAS}, r"numbers in summary\.weight that are not finite")
    for wrong in (*WRONG_WEIGHTS, torch.ones(2, 48).int())
]


# A file of a head's folder, its new content (a number: its first bytes), and words of the refusal.
DAMAGED = [
    *(
        (name, content, "cannot read the head in .*: train it again")
        for name in (DESCRIPTION, WEIGHTS)
        for content in (b"\xff\xfe garbage", 20, None)
    ),
    *((DESCRIPTION, text, "train one") for text in (b"{}", b"[]", b"null", b'{"models": 3}')),
    *(
        (DESCRIPTION, text, None)
        for text in (
            *(b'{"kind": ["linear"]}', b'{"kind": "\\u001b[31m' + b"x" * 1000 + b'"}'),
            *(b'{"kind": "linear", "models": {"target": 3}}', b'{"kind": "linear", "pair": {}}'),
            b'{"kind": "linear", "recipe": []}',
            b'{"kind": "linear", "worth": {"better": false}}',
            b"[" * 100_000,
            b" " * (MOST_BYTES[DESCRIPTION] + 1),
        )
    ),
    *(
        (WEIGHTS, weights, "wrong shape for tiny .*: train one for this pair")
        for weights in (
            {"summary.weight": torch.zeros(2, 47), **BIAS},
            {"summary.weight": torch.zeros(2, 48)},
            {"other": torch.zeros(1)},
        )
    ),
    *((WEIGHTS, *row) for row in NOT_FINITE),
]


@pytest.mark.parametrize(("name", "content", "words"), DAMAGED)
def test_a_damaged_folder_is_one_sentence(tmp_path, name, content, words):
    save_head(random_head(), tmp_path, description(pair()))
    file = tmp_path / name
    if isinstance(content, dict):
        save_file(content, file)
    elif content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:content] if isinstance(content, int) else content)
    with pytest.raises(UsageError, match=words) as error:
        load_head(tmp_path, pair())
    message = str(error.value)
    assert str(tmp_path) in message and len(message) < 400 + len(str(tmp_path))
    assert message.isprintable()


NO_NAMES = "holds no named weights"
ODD = [
    *NOT_FINITE,
    *(
        ({**BIAS, **odd}, NO_NAMES)
        for odd in (
            {"summary.weight": torch.ones(2, 48).to_sparse()},
            {"summary.weight": torch.ones(2, 48, device="meta")},
            {1: torch.ones(2)},
        )
    ),
    ({"summary.weight": torch.ones(2, 6144), **BIAS}, r"\[2, 6144\].* instead of .*\[2, 48\]"),
    ([1, 2], NO_NAMES),
    ({"summary.weight": "text"}, NO_NAMES),
    *(
        (cut, f"head in|{NO_NAMES}")
        for cut in (
            *(slice(0), slice(100), slice(-30), slice(30, None)),
            *(b"\x80\x02.", b"PK\x03\x04" * 9),
        )
    ),
]


@pytest.mark.parametrize(("content", "words"), ODD)
def test_a_damaged_file_of_the_authors_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "head.bin"
    released(path)
    if isinstance(content, slice | bytes):
        whole = path.read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else whole[content])
    else:
        torch.save(content, path)
    with pytest.raises(UsageError, match=words):
        load_head(path, pair())


def test_a_head_without_hidden_states_serves_any_pair(tmp_path):
    other = pair_of(build(config("llama", hidden_size=48)), build(config("llama"), seed=1))
    head = random_head("features")
    save_head(head, tmp_path, description(pair()) | {"kind": "features"})
    inputs = torch.randn(5, 10)
    assert torch.equal(load_head(tmp_path, other)(inputs), head(inputs))


def released(path: Path, width: int = 48) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {
        "summary.weight": torch.randn(2, width, generator=generator).bfloat16(),
        "summary.bias": torch.zeros(2).bfloat16(),
    }
    torch.save(weights, path)
    return weights


def test_the_authors_file_loads(tmp_path):
    path = tmp_path / "ensemble_head.bin"
    weights = released(path)
    head, inputs = load_head(path, pair()), torch.randn(5, 48)
    scores = inputs @ weights["summary.weight"].float().T
    torch.testing.assert_close(head(inputs), scores.softmax(-1)[:, 1])


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


def test_a_file_with_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"summary.weight": Bomb()}, tmp_path / "head.bin")
    with pytest.raises(UsageError, match="cannot read the head in"):
        load_head(tmp_path / "head.bin", pair())
    assert not (tmp_path / "exploded").exists()


def test_a_method_is_bound_to_its_parameters_and_a_cooled_one_to_its_sampling(mini):
    bound = bind("static", {"weight": 0.25}, mini)
    assert isinstance(bound.rule, partial) and bound.rule.keywords == {"weight": 0.25}
    assert bound[2:5] == (None, {"weight": 0.25}, None)
    # A control does not change the law.
    adaptive = ("sd-adaptive", sd_adaptive, Online(get_policy("adaptive:0.25")), {}, None)
    assert bind("sd-adaptive", {"cost": 0.25}, mini)[:5] == adaptive
    assert bind("autoregressive", {}, mini).rule is None
    run, given = Sampling(temperature=0.8, top_k=9, min_p=0.2), {"cooled_weight": 1.0}
    bound = bind("cooled", given | {"both_temperature": 0.5, "both_min_p": 0.1}, mini)
    assert bound.parameters == given
    assert bound.sampling(run) == Sampling(temperature=0.4, top_k=9, min_p=0.2)
    assert bound.sampling(Sampling()) == Sampling(temperature=0.5, min_p=0.1)
    greedy = Sampling(temperature=0)
    assert bound.sampling(greedy) is greedy
    assert bind("static", {"weight": 1.0}, mini).sampling(run) is run


def test_a_head_is_loaded_once_and_called_as_a_function(mini):
    heads: dict[Path, Head] = {}
    file = HeadFile(UNTRAINED, Path(UNTRAINED))
    for _ in range(2):
        bound = bind("diversed", {"head": file}, mini, heads)
        assert isinstance(bound.rule, partial) and bound.head is heads[Path(UNTRAINED)]
        assert bound.rule.keywords["head"] == bound.head.weigh
    assert len(heads) == 1
