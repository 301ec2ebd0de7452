"""Load the pair of a plan, after checking that it fits in memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specbench.config import AUTO
from specbench.engine.choice import choose_engine
from specbench.engine.device import choose_device
from specbench.engine.engines import Engine
from specbench.engine.loading import Reader, choose_dtype, load_pair, load_reader
from specbench.engine.memory import check_memory, estimate_tokens
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, PairSpec
from specbench.experiment.plan import Plan
from specbench.experiment.prompts import EncodedPrompts
from specbench.tasks.random_prompts import RandomPrompts

log = logging.getLogger(__name__)


@dataclass
class Loader:
    """Loads the pair of a plan and keeps the last one; tests replace the load functions."""

    load_pair: Callable[[PairSpec, Loading], LoadedPair] = load_pair
    load_reader: Callable[[PairSpec, Loading], Reader] = load_reader
    check_memory: Callable[..., object] = check_memory
    _loaded: tuple[tuple[PairSpec, dict[str, Any]], LoadedPair] | None = None

    def load(self, plan: Plan) -> LoadedPair:
        """Check a plan's pair, and load it with its engine."""
        if self._loaded and self._loaded[0] == _as_read(plan.pair, plan.loading):
            pair = self._loaded[1]
            EncodedPrompts(plan, pair).require_decodable()
            engine = self._engine(plan)
            pair.drop_caches()
        else:
            self._loaded = None  # free its memory before loading another pair
            engine = self.prepare(plan)
            pair = self.pair(plan.pair, plan.loading)
        pair.engine = engine
        return pair

    def pair(self, spec: PairSpec, loading: Loading) -> LoadedPair:
        """Return a loaded pair; the one that was loaded last is not read again."""
        if self._loaded is None or self._loaded[0] != _as_read(spec, loading):
            self._loaded = None
            self._loaded = (_as_read(spec, loading), self.load_pair(spec, loading))
        return self._loaded[1]

    def prepare(self, plan: Plan) -> Engine:
        """Check without weights that a plan can be executed; return the engine."""
        engine = self._engine(plan)
        self.check_memory(plan.pair, plan.loading, *largest(plan))
        EncodedPrompts(plan, self.load_reader(plan.pair, plan.loading)).require_decodable()
        return engine

    def _engine(self, plan: Plan) -> Engine:
        settings, spread = plan.settings, plan.loading.device_map is not None
        device = str(choose_device(plan.loading.device))
        name = choose_engine(settings.engine, device, spread, plan.pair.gguf)
        return Engine(name, log.warning if settings.engine == AUTO else None)


def largest(plan: Plan) -> tuple[int, int, int, int]:
    """Return a plan's longest prompt (estimated), answer and draft in tokens, and batch size."""
    limit = plan.settings.max_prompt_tokens or math.inf
    examples = [example for task in plan.tasks for example in task.examples]
    longest = estimate_tokens("\n".join(example.texts) for example in examples)
    sources = (task.task.source for task in plan.tasks)
    longest = max([longest, *(s.tokens for s in sources if isinstance(s, RandomPrompts))])
    further = max((len(e.messages) - 1 for e in examples), default=0)  # answers in the prompt
    answers = further * max(task.max_new_tokens for task in plan.tasks)
    return (
        int(min(limit, longest + answers)),
        max(task.max_new_tokens for task in plan.tasks),
        max(task.longest_draft for task in plan.tasks),
        max(map(plan.batch_size, plan.tasks)),
    )


def _as_read(spec: PairSpec, loading: Loading) -> tuple[PairSpec, dict[str, Any]]:
    """Return what decides the weights in memory; ``auto`` is the dtype that it stands for."""
    dtype = choose_dtype(spec, loading, choose_device(loading.device))
    return spec, {**loading.model_dump(), "dtype": dtype}
