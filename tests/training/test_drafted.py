"""Roll-outs by speculative decoding record what decoding each text by itself shows."""

from functools import partial
from typing import Any

import pytest
import torch

from specbench.config import DRAFT_LENGTH
from specbench.decoding.drafters.registry import parse_kind
from specbench.decoding.heads.head import Head
from specbench.decoding.loop import DecodeOptions, Request, decode
from specbench.decoding.sampling import Sampling
from specbench.methods import laws
from specbench.methods.ensembles import static
from specbench.methods.laws import Next, Split
from specbench.tasks.task import load_task
from specbench.training.rollouts import drafted_rollouts

WEIGHTS, SEED, NEW_TOKENS = (0.3, 0.9), 3, 40
SAMPLING = Sampling(temperature=0.8)


@pytest.mark.parametrize("name", ["eagle3", "greedy"])
def test_records_are_those_of_each_text_alone(mini: Any, name: str) -> None:
    """Each text has its head's weight, and all its tokens but the bonus tokens are recorded."""
    drafter = parse_kind(name, mini.drafters).load(mini)
    examples = load_task("mini-math").examples("test", 2)
    prompts = [mini.tokenizer(example.prompt)["input_ids"] for example in examples]
    sizes = (mini.target.hidden_size, mini.draft.hidden_size)
    heads = [Head("features", sizes, weight) for weight in WEIGHTS]
    generator = torch.Generator().manual_seed(SEED)
    options = (NEW_TOKENS, generator, (), SAMPLING, drafter)
    rollouts = drafted_rollouts(mini, heads, prompts, *options)
    seed = int(torch.randint(2**31, (), generator=generator.manual_seed(SEED)))
    assert len(rollouts.texts) == len(prompts) * len(heads)
    close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    for row, text in enumerate(rollouts.texts):
        weight, request = WEIGHTS[row % len(heads)], Request(prompts[row // len(heads)], str(row))
        law = partial(_static_law, weight)
        options = DecodeOptions(SAMPLING, DRAFT_LENGTH, NEW_TOKENS, seed, drafter=drafter, law=law)
        alone = decode(mini, partial(static, weight=weight), request, options)
        assert text == alone.text
        tokens = torch.tensor([*alone.token_ids, *mini.eos_ids])
        token, inputs, p, q, tv = (column[rollouts.row == row] for column in rollouts[2:])
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


def _static_law(weight: float, at: Next, _: torch.Tensor | None) -> Split:
    return laws.static(at, weight)
