"""Roll-outs record the models' outputs for exactly the sampled tokens, also with a drafter."""

from functools import partial

import pytest
import torch

from specbench.config import DRAFT_LENGTH
from specbench.decoding import round as rounds
from specbench.decoding.drafters.registry import parse_kind
from specbench.decoding.heads.head import Head
from specbench.decoding.heads.kinds import KINDS
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.round import CACHED
from specbench.decoding.sampling import Sampling
from specbench.engine.cache import CAPACITY_STEP
from specbench.engine.pair import LoadedPair
from specbench.engine.runner import Runner
from specbench.errors import RunError, UsageError
from specbench.methods import laws
from specbench.methods.ensembles import static
from specbench.methods.strict import sd
from specbench.methods.verdict import Positions
from specbench.tasks.task import load_task
from specbench.training import rollouts as rollouts_module
from specbench.training.rollouts import RolloutRequest, Rollouts, drafted_rollouts, roll_out

from ..decoding.helpers import run

TASKS = ("mini-headline", "mini-headline", "mini-news", "mini-code")  # of different lengths
COPIES = 2
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def linear(mini, weight: float = 0.5) -> Head:
    return Head("linear", (mini.target.hidden_size, mini.draft.hidden_size), weight)


def seeded(heads: list[Head], prompts: list[list[int]], seed: int = 0) -> RolloutRequest:
    return RolloutRequest(heads, prompts, torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def prompts(mini) -> list[list[int]]:
    texts = [load_task(t).examples("test", i + 1)[i].prompt for i, t in enumerate(TASKS)]
    return [list(mini.tokenizer(text)["input_ids"]) for text in texts]


def rolled(mini, prompts: list[list[int]], kind: str = "linear") -> Rollouts:
    head = Head(kind, (mini.target.hidden_size, mini.draft.hidden_size), 0.7)
    return roll_out(mini, [seeded([head] * COPIES, prompts)], 64)[0]


@pytest.fixture(scope="module")
def rollouts(mini, prompts) -> Rollouts:
    return rolled(mini, prompts)


def fresh_read(mini, start: list[int], answer: list[int]) -> dict[str, torch.Tensor]:
    """Outputs of both models before each token of an answer, in one pass."""
    told = {}
    for name, runner in (("p", mini.target), ("q", mini.draft)):
        tokens = torch.tensor([start + answer])
        runner.reserve(1, tokens.shape[1])
        at = torch.arange(tokens.shape[1])[None]
        hidden = runner.forward(tokens, at, tokens.shape[1])[0]
        logits = runner.logits(hidden)
        told[name] = logits[len(start) - 1 : -1].softmax(-1)
        told[f"h_{name}"] = hidden[len(start) - 1 : -1]
    return told


@pytest.mark.parametrize(("kind", "at_once"), [*((kind, 128) for kind in KINDS), ("linear", 4)])
def test_records_equal_those_of_a_separate_pass(mini, prompts, monkeypatch, kind, at_once):
    """Whether all texts are in one batch or in two."""
    monkeypatch.setattr(rollouts_module, "AT_ONCE", at_once)
    rollouts = rolled(mini, prompts, kind)
    assert len(rollouts.texts) == len(TASKS) * COPIES
    lengths = rollouts.row.bincount(minlength=len(TASKS) * COPIES)
    assert lengths.min() < 0.8 * lengths.max()  # so finished rows were dropped
    head = Head(kind, (mini.target.hidden_size, mini.draft.hidden_size))
    for text in range(len(TASKS) * COPIES):
        mine = rollouts.row == text
        answer = rollouts.token[mine]
        told = fresh_read(mini, prompts[text // COPIES], answer.tolist())
        p, q = told["p"], told["q"]
        for name, wanted in (("p", p), ("q", q)):
            spoken = wanted.gather(-1, answer.unsqueeze(-1)).squeeze(-1)
            torch.testing.assert_close(getattr(rollouts, name)[mine], spoken, **CLOSE)
        torch.testing.assert_close(rollouts.tv[mine], (p - q).abs().sum(-1) / 2, **CLOSE)
        read = head.inputs(Positions(p, q, p, q, told["h_p"], told["h_q"], greedy=False))
        torch.testing.assert_close(rollouts.inputs[mine], read, rtol=1e-3, atol=1e-3)


def test_texts_are_the_tokens_up_to_the_end(mini, rollouts):
    for text, written in enumerate(rollouts.texts):
        answer = rollouts.token[rollouts.row == text].tolist()
        ends = [token in mini.eos_ids for token in answer]
        assert not any(ends[:-1])
        assert ends[-1] or len(answer) == 64
        assert rollouts.cut[text] == (not ends[-1])
        assert mini.tokenizer.decode(answer, skip_special_tokens=True) == written


def test_a_run_scores_the_same_part_of_a_text(mini, prompts, monkeypatch):
    """Thoughts are left out, whether the text begins them or the prompt has done so."""
    prompts = [prompts[0], mini.tokenizer("Go on: <think>")["input_ids"]]
    written = iter(["<think>It is 5.</think> 7", "It is 5.</think> 8", "<think>It is", "It is"])
    monkeypatch.setattr(LoadedPair, "text_of", lambda *_: next(written))
    for answers in (["7", "8"], ["", ""]):
        [rollouts] = roll_out(mini, [seeded([linear(mini)], prompts)], 2)
        assert rollouts.texts == answers


def test_the_same_draws_give_the_same_rollouts_and_copies_differ(mini, prompts, rollouts):
    """Also with a stop string that does not occur."""
    one, part = rollouts, seeded([linear(mini, 0.7)] * COPIES, prompts)
    [again] = roll_out(mini, [part], 64, ("\nQuestion:",))
    assert one.texts == again.texts and one.cut == again.cut
    assert all(torch.equal(a, b) for a, b in zip(one[2:], again[2:], strict=True))
    assert any(a != b for a, b in zip(one.texts[::2], one.texts[1::2], strict=True))


@pytest.mark.parametrize("at_once", [128, 8, 5])
def test_a_part_has_the_texts_that_it_would_have_alone(mini, prompts, monkeypatch, at_once):
    """Whatever shares its batch; parts may have other numbers of heads and prompts."""
    monkeypatch.setattr(rollouts_module, "AT_ONCE", at_once)
    low, high = (linear(mini, weight) for weight in (0.1, 0.9))
    sizes = (([low] * COPIES, prompts), ([high], prompts[2:]), ([low, high], prompts[:1] * 2))
    together = roll_out(mini, [seeded(*of, seed) for seed, of in enumerate(sizes)], 24)
    for seed, (heads, own_prompts) in enumerate(sizes):
        [alone] = roll_out(mini, [seeded(heads, own_prompts, seed)], 24)
        assert together[seed].texts == alone.texts and together[seed].cut == alone.cut
        assert len(alone.texts) == len(heads) * len(own_prompts)
        for shared, column in zip(together[seed][2:], alone[2:], strict=True):
            # Tokens of a text are in order, and texts by the position of their tokens.
            torch.testing.assert_close(shared, column, **CLOSE)


def test_what_a_part_draws_later_depends_on_no_other_part(mini, prompts):
    """Though the texts of the other end later."""
    heads, ends = [linear(mini, 1.0 - 1e-6)], prompts[:1]
    alone, first, other = (seeded(heads, ends, seed) for seed in (0, 0, 1))
    brief = roll_out(mini, [alone], 64)[0]
    long = roll_out(mini, [first, other._replace(prompts=prompts)], 64)[1]
    assert len(brief.row) < max(long.row.bincount())  # so the other's loop is longer
    assert torch.equal(alone.generator.get_state(), first.generator.get_state())


def test_tokens_are_drawn_from_the_mixture(mini):
    """The first tokens of many texts follow v = w p + (1 - w) q of their head, and no other."""
    copies, weights = 1000, (0.5, 0.1)
    prompt = mini.tokenizer("Question: Tom has 5")["input_ids"]
    heads = [linear(mini, weight) for weight in weights]
    [rollouts] = roll_out(mini, [seeded(heads, [prompt] * copies, 1)], 1)
    told = fresh_read(mini, prompt, [0])
    p, q = (told[name][0].double()[: mini.target.vocabulary] for name in "pq")

    def statistic(drawn, expected):
        """Chi-square per degree of freedom, with rare tokens pooled."""
        counts = drawn.bincount(minlength=mini.target.vocabulary).double()
        often = expected * copies >= 5
        pooled = torch.cat((expected[often], expected[~often].sum()[None])) * copies
        observed = torch.cat((counts[often], counts[~often].sum()[None]))
        return (((observed - pooled) ** 2 / pooled.clamp_min(1e-9)).sum() / len(pooled)).item()

    laws = [weight * p + (1 - weight) * q for weight in weights]
    for number, law in enumerate(laws):
        drawn = rollouts.taken(range(number, copies * len(heads), len(heads))).token
        assert statistic(drawn, law) < 2.0
        assert min(statistic(drawn, wrong) for wrong in (p, q, laws[1 - number])) > 5.0


def test_a_stop_string_ends_a_text_with_the_token_that_completes_it(mini, prompts):
    head, stop = linear(mini), (" and", ". The")
    [rollouts] = roll_out(mini, [seeded([head] * COPIES, prompts)], 64, stop)
    stopped = 0
    for text, written in enumerate(rollouts.texts):
        answer = rollouts.token[rollouts.row == text].tolist()
        whole, before = (mini.tokenizer.decode(part) for part in (answer, answer[:-1]))
        stops_in_text = [string for string in stop if string in whole]
        assert not any(string in before for string in stop)
        assert stops_in_text or answer[-1] in mini.eos_ids or len(answer) == 64
        if stops_in_text:
            stopped += 1
            assert any(whole.startswith(written + string) for string in stops_in_text)
        assert not any(string in written for string in stop)
    assert stopped


@pytest.mark.parametrize("decoded_first", [True, False])
def test_a_pair_decodes_and_rolls_out_in_any_order(mini, prompts, decoded_first):
    """Roll-outs work with a cache that decoding has grown."""
    runners = [Runner(r.model, r.vocabulary) for r in (mini.target, mini.draft)]
    pair = LoadedPair("fresh", *runners, mini.tokenizer, mini.eos_ids)
    long = prompts[0] * (1 + CAPACITY_STEP // len(prompts[0]))

    def decoded():
        return run(pair, long, sd, max_new_tokens=4).token_ids

    def rolled_out():
        rollouts = rolled(pair, prompts[:1])
        fresh_read(pair, prompts[0], rollouts.token[rollouts.row == 0].tolist())
        return rollouts.texts

    steps = (decoded, rolled_out) if decoded_first else (rolled_out, decoded)
    first = [step() for step in steps]
    assert pair.target.cache.capacity > CAPACITY_STEP  # grown by decoding
    assert [step() for step in steps] == first


def test_texts_beyond_the_context_are_refused(mini, prompts):
    long = prompts[0] * (mini.context // len(prompts[0]))
    with pytest.raises(RunError, match="exceed the context"):
        roll_out(mini, [seeded([linear(mini)], [long])], mini.context)


WEIGHTS, SEED, NEW_TOKENS = (0.3, 0.9), 3, 40
SAMPLING = Sampling(temperature=0.8)


@pytest.mark.parametrize(
    ("name", "cached"), [("eagle3", CACHED), ("greedy", CACHED), ("greedy", 1)]
)
def test_records_are_those_of_each_text_alone(mini, monkeypatch, name, cached):
    """With its head's weight, without the bonus tokens; also if texts are verified one by one."""
    monkeypatch.setattr(rounds, "CACHED", cached)
    drafter = parse_kind(name, mini.drafters).load(mini)
    examples = load_task("mini-math").examples("test", 2)
    prompts = [mini.tokenizer(example.prompt)["input_ids"] for example in examples]
    sizes = (mini.target.hidden_size, mini.draft.hidden_size)
    heads = [Head("features", sizes, weight) for weight in WEIGHTS]
    generator = torch.Generator().manual_seed(SEED)
    part = RolloutRequest(heads, prompts, generator)
    rollouts = drafted_rollouts(mini, part, NEW_TOKENS, (), SAMPLING, drafter)
    seed = int(torch.randint(2**31, (), generator=generator.manual_seed(SEED)))
    assert len(rollouts.texts) == len(prompts) * len(heads)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    for row, text in enumerate(rollouts.texts):
        weight, request = WEIGHTS[row % len(heads)], Request(prompts[row // len(heads)], str(row))
        law = partial(lambda weight, at, _: laws.static(at, weight), weight)
        options = DecodeOptions(SAMPLING, DRAFT_LENGTH, NEW_TOKENS, seed, drafter=drafter, law=law)
        alone = decode(mini, partial(static, weight=weight), request, options)
        assert text == alone.text and rollouts.cut[row] == (alone.stopped_by == "length")
        tokens = torch.tensor([*alone.token_ids, *mini.eos_ids])
        token, inputs, p, q, tv = (column[rollouts.row == row] for column in rollouts[3:])
        read, written = 0, 0
        for record in alone.rounds:
            drafted = len(record.expected)
            at = slice(read, read + drafted)
            assert torch.equal(token[at], tokens[written : written + drafted])
            close(1 - weight * tv[at], torch.tensor(record.expected))
            log_p, log_v = torch.tensor(record.laws[:drafted]).T
            close(p[at].log(), log_p)
            close((weight * p[at] + (1 - weight) * q[at]).log(), log_v)
            read, written = read + drafted, written + record.emitted
        assert read == len(token) == len(inputs) < written == alone.output_tokens


def test_a_drafter_must_be_able_to_read_all_of_a_text(mini, prompts, monkeypatch):
    monkeypatch.setattr(rollouts_module, "context_of", lambda *_: 60)
    drafter = parse_kind("greedy", mini.drafters).load(mini)
    part = seeded([linear(mini)], prompts)
    with pytest.raises(UsageError, match="60 tokens that the drafter can read: lower --max-prompt"):
        drafted_rollouts(mini, part, 60, (), SAMPLING, drafter)
