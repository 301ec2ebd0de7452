"""Roll-outs by workers in this process, which die where a test asks them to."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench.cluster.bench import Bench
from specbench.cluster.crew import Facts, WorkerLost
from specbench.cluster.schedule import MOST_TRIES
from specbench.cluster.together import beside, together
from specbench.engine.loading import LoadedPair
from specbench.engine.settings import Loading
from specbench.errors import RunError, UsageError
from specbench.heads.files import fingerprints
from specbench.heads.head import Head
from specbench.heads.registry import DESCRIPTION, WEIGHTS, is_head
from specbench.pairs.registry import get_pair
from specbench.tasks.task import load_task
from specbench.training import material
from specbench.training.folder import CHECKPOINT
from specbench.training.parts import Decoded, Part, RollOut, decode, here
from specbench.training.recipe import HeadRecipe
from specbench.training.session import carry_out, prepare
from specbench.training.verifier import Progress

TASK = load_task("mini-headline")
RECIPE = HeadRecipe(
    steps=2,
    prompts_per_step=4,
    rollouts=2,
    rollout_parts=3,
    epochs_per_rollout=2,
    target_acceptance=0.85,
)
MODELS = {"target": "t", "draft": "d"}
Dies = Callable[[int, int], bool]  # worker, first token of a part


@pytest.fixture(autouse=True, scope="module")
def few_examples() -> Iterator[None]:
    """Score and settle on few texts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(material, "HELD_OUT", 4)
        patch.setattr(material, "SETTLING", 4)
        yield


class Pool:
    """Workers that share one pair, one at a time.

    Attributes:
        hired: Their numbers, again where one died.
        decoded: Who decoded how many parts.
    """

    def __init__(self, pair: LoadedPair | None = None, dies: Dies = lambda *_: False) -> None:
        self.pair, self.dies = pair, dies
        self.hired: list[int] = []
        self.decoded: Counter[int] = Counter()
        self.lock = threading.Lock()
        self.known: dict[int, Sampler] = {}

    def hire(self, number: int) -> "Sampler":
        if number not in self.known or self.known[number].dead:
            self.hired.append(number)
            self.known[number] = Sampler(self, number)
        return self.known[number]


class Sampler:
    """One of them."""

    def __init__(self, pool: Pool, number: int) -> None:
        self.pool, self.number = pool, number
        self.dead = False

    def start(self) -> Facts:
        models = MODELS if self.pool.pair is None else fingerprints(self.pool.pair)
        return {"device": f"here {self.number}", "models": models}

    def roll_out(self, head: Head, part: Part) -> Decoded:
        with self.pool.lock:
            if self.pool.dies(self.number, part.prompts[0][0]):
                self.dead = True
                raise WorkerLost("killed")
            self.pool.decoded[self.number] += 1
            return named(part) if self.pool.pair is None else decode(self.pool.pair, head, part)


def named(part: Part) -> Decoded:
    """Stands for what is sampled of a part."""
    return Decoded(part.prompts, torch.tensor(part.draws))  # type: ignore[arg-type]


def parts(number: int) -> list[Part]:
    return [Part([[place]], 100 + place, 1, 1, ()) for place in range(number)]


def train(pair: LoadedPair, folder: Path, roll_out: RollOut, resume: bool = False) -> list[int]:
    seen: list[Progress] = []
    carry_out(prepare(pair, TASK, RECIPE, folder, resume), seen.append, roll_out)
    return [progress.step for progress in seen]


@pytest.fixture(scope="module")
def alone(mini: LoadedPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    train(mini, folder, here(mini))
    return folder


def scores(folder: Path) -> str:
    """What ``head.json`` says but for the seconds."""
    lines = (folder / DESCRIPTION).read_text().splitlines()
    return "\n".join(line for line in lines if '"seconds"' not in line)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_head_is_the_same_with_any_number_of_workers(
    mini: LoadedPair, alone: Path, tmp_path: Path, workers: int
) -> None:
    pool = Pool(mini)
    train(mini, tmp_path, together(pool.hire, workers, fingerprints(mini), pytest.fail))
    assert pool.hired == list(range(workers))  # each for all sets
    assert sum(pool.decoded.values()) == 3 * (RECIPE.steps + 3 + 1)  # settled thrice, scored once
    assert (tmp_path / WEIGHTS).read_bytes() == (alone / WEIGHTS).read_bytes()
    assert scores(tmp_path) == scores(alone)


def test_a_part_whose_worker_died_is_decoded_again(
    mini: LoadedPair, alone: Path, tmp_path: Path
) -> None:
    calls: list[int] = []
    told: list[str] = []

    def dies(worker: int, token: int) -> bool:
        calls.append(worker)
        return len(calls) in (2, 3, 7)

    pool = Pool(mini, dies)
    train(mini, tmp_path, together(pool.hire, 2, fingerprints(mini), told.append))
    assert len(pool.hired) == 2 + 3
    assert (tmp_path / WEIGHTS).read_bytes() == (alone / WEIGHTS).read_bytes()
    assert all("is lost, its part is decoded elsewhere: killed" in text for text in told)
    assert len(told) == len(set(told)) <= 2


def test_a_part_that_workers_keep_dying_of_ends_the_training_which_goes_on(
    mini: LoadedPair, alone: Path, tmp_path: Path
) -> None:
    poison: list[int] = []

    def dies(worker: int, token: int) -> bool:
        return bool(poison)

    pool = Pool(mini, dies)

    def report(progress: Progress) -> None:
        poison.append(progress.step)

    roll_out = together(pool.hire, 2, fingerprints(mini), lambda text: None)
    with pytest.raises(RunError) as caught:
        carry_out(prepare(mini, TASK, RECIPE, tmp_path), report, roll_out)
    said = str(caught.value)
    assert "of 3 of a set of roll-outs is given up after 3 workers died of it: killed" in said
    assert "--resume" in said
    assert (tmp_path / CHECKPOINT).exists()
    assert not is_head(tmp_path)
    healthy = together(Pool(mini).hire, 2, fingerprints(mini), pytest.fail)
    assert train(mini, tmp_path, healthy, resume=True) == [1, 2]
    assert (tmp_path / WEIGHTS).read_bytes() == (alone / WEIGHTS).read_bytes()


def test_only_the_part_at_fault_is_tried_thrice() -> None:
    tries: Counter[int] = Counter()

    def dies(worker: int, token: int) -> bool:
        tries[token] += 1
        return token == 2

    pool = Pool(dies=dies)
    with pytest.raises(RunError, match="part 3 of 4"):
        together(pool.hire, 1, MODELS, lambda text: None)(head(), parts(4))
    assert tries == {0: 1, 1: 1, 2: MOST_TRIES, 3: 1}


def head() -> Head:
    return Head("linear", (2, 2))


def test_parts_come_back_in_their_order() -> None:
    turn = threading.Barrier(3)

    class Backwards(Sampler):
        def roll_out(self, head: Head, part: Part) -> Decoded:
            turn.wait(5)
            for _ in range(part.prompts[0][0], 2):
                threading.Event().wait(0.01)  # the first part is the last to be found
            return named(part)

    pool = Pool()
    found = together(lambda n: Backwards(pool, n), 3, MODELS, pytest.fail)(head(), parts(3))
    assert [decoded.draws.item() for decoded in found] == [100, 101, 102]


def test_a_worker_that_is_still_loading_keeps_doing_so_and_helps_later() -> None:
    loaded, started = threading.Event(), threading.Event()

    class Slow(Sampler):
        def start(self) -> Facts:
            if self.number:
                started.set()
                loaded.wait(5)
            return super().start()

        def roll_out(self, head: Head, part: Part) -> Decoded:
            if loaded.is_set() and not self.number:
                threading.Event().wait(0.2)  # time for the other
            return super().roll_out(head, part)

    pool = Pool()
    samplers = [Slow(pool, number) for number in range(2)]
    roll_out = together(samplers.__getitem__, 2, MODELS, pytest.fail)
    before = threading.active_count()
    roll_out(head(), parts(4))
    assert started.wait(5)
    assert dict(pool.decoded) == {0: 4}
    loaded.set()
    roll_out(head(), parts(4))
    assert pool.decoded[1] > 0
    for _ in range(100):  # nobody waits for work any more
        if threading.active_count() <= before:
            break
        threading.Event().wait(0.02)
    assert threading.active_count() <= before


def test_workers_with_other_models_are_refused() -> None:
    roll_out = together(Pool().hire, 2, {"target": "another"}, pytest.fail)
    with pytest.raises(RunError, match=r"\(here [01]\) has other models than this process"):
        roll_out(head(), parts(2))


def test_a_worker_samples_what_this_process_samples(mini: LoadedPair) -> None:
    bench = Bench(Path.cwd())
    facts = bench.load(get_pair("mini"), Loading(device="cpu"), (8, 8, 2))
    assert facts["models"] == fingerprints(mini)
    sizes = (mini.target.hidden_size, mini.draft.hidden_size)
    part = Part([mini.tokenizer("Question:")["input_ids"]], 5, 8, 2, ())
    one = bench.roll_out(Head("linear", sizes), part)
    other = decode(mini, Head("linear", sizes), part)
    assert one.rollouts.texts == other.rollouts.texts
    tensors: Sequence[tuple[torch.Tensor, torch.Tensor]] = [
        *zip(one.rollouts[1:], other.rollouts[1:], strict=True),
        (one.draws, other.draws),
    ]
    assert all(torch.equal(a, b) for a, b in tensors)


def test_beside_workers_the_pair_is_on_the_cpu_in_their_number_format() -> None:
    spec = replace(get_pair("mini"), dtype="auto")
    assert beside(spec, Loading(), gpus=True) == Loading(device="cpu", dtype="bfloat16")
    assert beside(spec, Loading(), gpus=False) == Loading(device="cpu", dtype="float32")
    asked = Loading(device="cuda", dtype="float16", target_revision="v1")
    assert beside(spec, asked, gpus=True) == replace(asked, device="cpu")
    with pytest.raises(UsageError, match="--quantization needs a GPU"):
        beside(spec, Loading(quantization="8bit"), gpus=True)
