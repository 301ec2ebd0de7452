"""What is sampled depends on the parts, never on who decodes them or after what."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch

from specbench.engine.loading import LoadedPair
from specbench.heads.head import Head
from specbench.tasks.task import load_task
from specbench.training.parts import Decoded, Part, RollOut, decode, here, sample
from specbench.training.rollouts import Rollouts, read_prompts, roll_out

TASK = load_task("mini-headline")
PROMPTS, COPIES = 5, 2
Assign = Callable[[int, Part], Part]  # what a worker makes of a part


@pytest.fixture(scope="module")
def prompts(mini: LoadedPair) -> list[list[int]]:
    return read_prompts(mini, TASK, TASK.examples("train", PROMPTS), 512)


@pytest.fixture(scope="module")
def head(mini: LoadedPair) -> Head:
    return Head("linear", (mini.target.hidden_size, mini.draft.hidden_size), 0.7)


def faithful(worker: int, part: Part) -> Part:
    return part


def scattered(pair: LoadedPair, order: int, assign: Assign = faithful) -> RollOut:
    """Decodes parts in any order by two workers, and some of them twice."""

    def roll_out(head: Head, parts: Sequence[Part]) -> list[Decoded]:
        chance = random.Random(order)
        places = [*range(len(parts)), chance.randrange(len(parts))]
        chance.shuffle(places)
        found = {
            place: decode(pair, head, assign(chance.randrange(2), parts[place])) for place in places
        }
        return [found[place] for place in range(len(parts))]

    return roll_out


def same(one: Rollouts, other: Rollouts) -> bool:
    tensors = zip(one[1:], other[1:], strict=True)
    return one.texts == other.texts and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in tensors
    )


def test_one_part_is_decoded_with_the_draws_of_the_training(
    mini: LoadedPair, head: Head, prompts: list[list[int]]
) -> None:
    generator = torch.Generator().manual_seed(3)
    draws: int | torch.Tensor = 3
    for _ in range(2):  # the second step goes on where the first ended
        expected = roll_out(mini, head, prompts, TASK.max_new_tokens, generator, COPIES)
        found, draws = sample(here(mini), head, prompts, TASK, draws, 1, COPIES)
        assert same(found, expected)
        assert isinstance(draws, torch.Tensor)
        assert torch.equal(draws, generator.get_state())


def test_who_decodes_a_part_and_when_changes_nothing(
    mini: LoadedPair, head: Head, prompts: list[list[int]]
) -> None:
    expected, after = sample(here(mini), head, prompts, TASK, 3, 3, COPIES)
    for order in range(4):
        found, ended = sample(scattered(mini, order), head, prompts, TASK, 3, 3, COPIES)
        assert same(found, expected), order
        assert torch.equal(torch.as_tensor(ended), torch.as_tensor(after)), order


def test_draws_that_depended_on_the_worker_would_be_seen(
    mini: LoadedPair, head: Head, prompts: list[list[int]]
) -> None:
    def partial(worker: int, part: Part) -> Part:
        assert isinstance(part.draws, int)
        return part._replace(draws=part.draws + worker)

    expected, _ = sample(here(mini), head, prompts, TASK, 3, 3, COPIES)
    found = [
        sample(scattered(mini, order, partial), head, prompts, TASK, 3, 3, COPIES)[0]
        for order in range(4)
    ]
    assert not all(same(each, expected) for each in found)


def test_parts_are_neighbours_and_join_in_the_order_of_the_prompts(
    mini: LoadedPair, head: Head, prompts: list[list[int]]
) -> None:
    asked: list[Part] = []

    def roll_out(head: Head, parts: Sequence[Part]) -> list[Decoded]:
        asked.extend(parts)
        return here(mini)(head, parts)

    rollouts, _ = sample(roll_out, head, prompts, TASK, 3, 3, COPIES)
    assert [prompt for part in asked for prompt in part.prompts] == prompts
    assert sorted(len(part.prompts) for part in asked) == [1, 2, 2]
    alone = [decode(mini, head, part).rollouts for part in asked]
    assert rollouts.texts == [text for each in alone for text in each.texts]
    for text in range(PROMPTS * COPIES):
        part = next(i for i in range(3) if text < sum(len(each.texts) for each in alone[: i + 1]))
        own = text - sum(len(each.texts) for each in alone[:part])
        token = alone[part].token[alone[part].row == own]
        assert torch.equal(rollouts.token[rollouts.row == text], token)


def test_every_part_of_every_step_has_other_draws(
    mini: LoadedPair, head: Head, prompts: list[list[int]]
) -> None:
    seeds: list[int] = []

    def roll_out(head: Head, parts: Sequence[Part]) -> list[Decoded]:
        seeds.extend(part.draws for part in parts if isinstance(part.draws, int))
        return here(mini)(head, parts)

    draws: int | torch.Tensor = 3
    for _ in range(3):
        _, draws = sample(roll_out, head, prompts[:2], TASK, draws, 4)
    assert len(set(seeds)) == len(seeds) == 3 * 2  # no more parts than prompts
