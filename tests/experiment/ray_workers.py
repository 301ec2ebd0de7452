"""Workers that decode without models, and die or differ if a prompt or pair tells them to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.experiment.plan import Plan, Step
from specbench.experiment.ray_pool import RayWorker

POISON, ONCE, SLOW = "poison", "once:", "slow"  # prefixes of prompts
ABSENT, DEADLY, UNLIKE = "absent", "deadly", "unlike"  # names of pairs


class Runner:
    """Returns the same record for every sample."""

    engine = "eager"

    def __init__(self, plan: Plan, device: str) -> None:
        self._plan, self._device = plan, device
        self.models = {"target": str(os.getpid()) if plan.pair.name == UNLIKE else "t0"}

    def run(self, steps: Sequence[Step]) -> Iterator[tuple[Step, dict[str, Any]]]:
        for step in steps:
            prompt = step.example.prompt
            if prompt == POISON:
                os.kill(os.getpid(), signal.SIGKILL)
            if prompt.startswith(ONCE) and not (mark := Path(prompt.removeprefix(ONCE))).exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if prompt == SLOW:
                time.sleep(0.05)
            identity = self._plan.identify(step, self.engine)
            yield step, {**identity, "device": self._device, "status": "ok", "text": prompt}

    def opening_facts(self) -> dict[str, Any]:
        return {"models": self.models}

    def closing_facts(self) -> dict[str, Any]:
        return {"engine": self.engine, "warm_ups": [{"seconds": 1.0}]}


class Worker(RayWorker):
    """A worker with a bundled pair, or with a made-up pair that changes its behaviour."""

    def load(self, plan: Plan) -> Any:
        if plan.pair.bundled:
            return super().load(plan)
        if plan.pair.name == ABSENT:
            raise UsageError("no such model")
        if plan.pair.name == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return Runner(plan, str(self.device))
