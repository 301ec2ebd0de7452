"""What a check decodes: prompts, methods and heads, found before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from specbench.analysis.frames import PARAMETERS
from specbench.analysis.labels import method_label
from specbench.check.texts import Sampled
from specbench.decoding.sampling import Sampling
from specbench.example import Example
from specbench.experiment.plan import Cell, Plan, TaskPlan
from specbench.heads.registry import HeadFile

# Two ways to process logits, the second with everything that a loop may forget for one model.
SAMPLINGS = (Sampling(), Sampling(temperature=0.7, top_k=20, top_p=0.9))
CONTEXTS = 4  # prompts that rounds are sampled from; the fewer, the more texts of each
Place = tuple[TaskPlan, Example]


@dataclass(frozen=True)
class Check:
    """What is checked.

    Attributes:
        plan: Pair, loading, settings, tasks and methods.
        draft_length: Drafted tokens per round, N.
        texts: Sampled of each method and sampling, from all prompts together.
    """

    plan: Plan
    draft_length: int
    texts: int

    def places(self) -> list[Place]:
        """Return every prompt, the tasks in turns."""
        columns = ([(task, example) for example in task.examples] for task in self.plan.tasks)
        return [place for row in zip_longest(*columns) for place in row if place is not None]

    def methods(self) -> dict[str, list[tuple[Place, Cell]]]:
        """Return the methods by label, each with a few prompts and its cell there."""
        found: dict[str, list[tuple[Place, Cell]]] = {}
        for place in self.places():
            for cell in place[0].cells:
                found.setdefault(label_of(cell), []).append((place, cell))
        return {label: places[: min(CONTEXTS, self.texts)] for label, places in found.items()}

    def sampled(self, alpha: float, exact: bool) -> Sampled:
        """Return how rounds are sampled."""
        settings = self.plan.settings
        size = settings.batch_size
        return Sampled(self.texts, self.draft_length, size, settings.seed, alpha, exact)


def label_of(cell: Cell) -> str:
    """Return what tables call a method with its parameters."""
    values = {
        name: value.name if isinstance(value, HeadFile) else value
        for name, value in cell.parameters
    }
    return method_label({"method": cell.method, **dict.fromkeys(PARAMETERS), **values})
