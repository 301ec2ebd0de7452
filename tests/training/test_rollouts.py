"""Roll-outs record what the models say of the very tokens that were sampled."""

import pytest
import torch

from specbench.engine.heads import LinearHead
from specbench.tasks.task import load_task
from specbench.training.rollouts import roll_out


@pytest.fixture(scope="module")
def rolled(mini):
    tasks = ("mini-headline", "mini-headline", "mini-news", "mini-code")  # of different lengths
    prompts = [load_task(t).examples("test", i + 1)[i].prompt for i, t in enumerate(tasks)]
    head = LinearHead(mini.target.hidden_size, mini.draft.hidden_size, initial_weight=0.7)
    return prompts, roll_out(mini, head, prompts, 40, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("row", range(4))
def test_scalars_and_hidden_states_are_those_of_a_fresh_read(mini, rolled, row):
    prompts, rollouts = rolled
    prompt = mini.tokenizer(prompts[row])["input_ids"]
    answer = mini.tokenizer(rollouts.texts[row], add_special_tokens=False)["input_ids"]
    mine = rollouts.row == row
    told = {}
    for name, runner in (("p", mini.target), ("q", mini.draft)):
        tokens = torch.tensor(prompt + answer)
        runner.start(tokens[:1], len(tokens) + 1)
        logits, hidden = runner.forward(tokens)
        told[name] = logits[len(prompt) - 1 :].softmax(-1)
        told[f"h_{name}"] = hidden[len(prompt) - 1 :]
    # The end token, where there is one, is the last of the tokens recorded.
    length = min(len(answer), int(mine.sum()))
    assert length > 3
    sampled = torch.tensor(answer[:length])
    for name in "pq":
        expected = told[name][torch.arange(length), sampled]
        found = getattr(rollouts, name)[mine][:length]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        hidden = getattr(rollouts, f"h_{name}")[mine][:length]
        torch.testing.assert_close(hidden, told[f"h_{name}"][:length], rtol=1e-3, atol=1e-3)
    tv = (told["p"] - told["q"]).abs().sum(-1)[:length] / 2
    torch.testing.assert_close(rollouts.tv[mine][:length], tv, rtol=1e-3, atol=1e-5)


def test_tokens_are_drawn_from_the_mixture(mini):
    """Acceptance of a draft-only verifier is one: each token has the draft's probability."""
    prompts = ["Story:"] * 400
    shares = {}
    for weight in (0.001, 0.999):
        head = LinearHead(mini.target.hidden_size, mini.draft.hidden_size, weight)
        rollouts = roll_out(mini, head, prompts, 1, torch.Generator().manual_seed(1))
        shares[weight] = (rollouts.p.log().mean() - rollouts.q.log().mean()).item()
    # Mean log p/q is KL(p, q) > 0 when p draws and -KL(q, p) < 0 when q does.
    assert shares[0.001] < 0 < shares[0.999]


def test_a_limit_ends_every_text(mini):
    head = LinearHead(mini.target.hidden_size, mini.draft.hidden_size)
    rollouts = roll_out(mini, head, ["Question:"] * 3, 5, torch.Generator().manual_seed(0))
    assert rollouts.row.bincount().max() <= 5
