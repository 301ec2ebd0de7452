"""Workers that load and measure the parts of a plan, in this process or in others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from specbench.engine.pairs import without_draft
from specbench.experiment.plan import Plan, SampleIndex
from specbench.experiment.rounding import Fork, Lead
from specbench.runs.labels import SERVERS
from specbench.serving.arm import TOKENS

if TYPE_CHECKING:
    from specbench.experiment.arms import ArmRunner
    from specbench.experiment.loader import Loader
    from specbench.experiment.runner import SampleRunner
    from specbench.serving.client import Client


class WorkerLostError(Exception):
    """A worker died or is unreachable; the message gives the known reason."""


class NotStartedError(Exception):
    """The worker was restarted and has not loaded a plan."""


class Worker:
    """Decodes samples of one plan after another, or has servers do so, and keeps the loaded pair.

    With ``downloads``, libraries may show their download bars.
    """

    device: str | None = None  # in the records; None names the device of the models

    def __init__(
        self, loader: Loader | None = None, downloads: bool = False, client: Client | None = None
    ) -> None:
        self._loader, self._downloads, self._client = loader, downloads, client
        self._work: tuple[Plan, SampleRunner | None, ArmRunner | None] | None = None

    def start(self, plan: Plan) -> dict[str, Any]:
        """Load a plan's pair; return the device, models, engine and environment."""
        self._work = None  # free its memory before loading another pair
        arms = self._load_arms(plan) if plan.arms else None
        pair_plan = plan.part(servers=False) if arms else plan
        runner = self.load(pair_plan) if len(pair_plan) else None
        self._work = (plan, runner, arms)
        models: dict[str, Any] = {}
        if arms:  # the other models that a server lists may change while a run goes on
            models[SERVERS] = {name: {**arms.models[name], "models": []} for name in arms.models}
        environment = arms.opening_facts() if arms else {}
        if runner:
            models |= runner.models
            environment |= runner.opening_facts()
        return {
            "device": self.device,
            "models": models,
            "engine": runner.engine if runner else "",
            "environment": environment,
        }

    def measure(self, indices: Sequence[SampleIndex]) -> Iterable[tuple[SampleIndex, Any]]:
        """Decode samples of one cell; yield the index and record of each."""
        plan, runner, arms = self._started()
        steps = [plan.step(index) for index in indices]
        if arms and runner:
            arms.engine = runner.engine  # which a fallback may change
        by = arms if steps[0].cell.server else runner
        assert by is not None
        return ((step.place, result) for step, result in by.run(steps))

    def end(self) -> dict[str, Any]:
        """Return the facts that are known only after all samples."""
        _, runner, _ = self._started()
        return runner.closing_facts() if runner else {"engine": "", "warm_ups": []}

    def leads(self, forks: Sequence[Fork]) -> tuple[dict[Fork, Lead], float]:
        """Return the target's lead at forks, see ``SampleRunner.leads``; none without a pair."""
        plan, runner, _ = self._started()
        steps = ((plan.step(fork.place), fork) for fork in forks)
        return runner.leads(steps) if runner else ({}, 0.0)

    def load(self, plan: Plan) -> SampleRunner:
        """Return a runner of a plan's samples, with its pair."""
        from specbench.experiment.bench_runner import BenchRunner
        from specbench.experiment.runner import SampleRunner

        kind = BenchRunner if plan.is_benchmark else SampleRunner
        return kind(plan, self._loads().load(plan), self.device)

    def prepare(self, plan: Plan) -> str:
        """Check a plan's pair without its weights; return the engine."""
        return self._loads().prepare(plan).name

    def _loads(self) -> Loader:
        from specbench.engine.hub import quiet_libraries
        from specbench.experiment.loader import Loader

        quiet_libraries(self._downloads)
        self._loader = self._loader or Loader()
        return self._loader

    def _load_arms(self, plan: Plan) -> ArmRunner:
        from specbench.experiment.arms import ArmRunner

        assert self._client is not None
        prompts = None
        if any(arm.prompts == TOKENS for arm in plan.arms):
            from specbench.engine.hub import quiet_libraries
            from specbench.engine.loading import load_reader
            from specbench.experiment.prompts import EncodedPrompts

            quiet_libraries(self._downloads)
            prompts = EncodedPrompts(plan, load_reader(without_draft(plan.pair), plan.loading))
            prompts.require_decodable()
        return ArmRunner(plan.part(servers=True), self._client, prompts)

    def _started(self) -> tuple[Plan, SampleRunner | None, ArmRunner | None]:
        if self._work is None:
            raise NotStartedError
        return self._work


class Pool:
    """Workers that are asked by number, from 0; here this process is the only one."""

    size = 1  # number of workers
    separate = False  # whether they are processes of their own, with devices of their own

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker or Worker()

    def share(self, plan: Plan) -> Any:
        """Return a plan in the form in which ``ask`` takes it."""
        return plan

    def ask(self, number: int, request: str, *values: Any, retry: bool = True) -> Any:
        """Ask a worker to call its method, with ``retry`` again if it dies; return a reference.

        This process makes the call when its answer is wanted.
        """
        return partial(getattr(self._worker, request), *values)

    def wait(self, references: Collection[Any]) -> list[Any]:
        """Return the references whose results are available, possibly none after a short wait."""
        return list(references)

    def answer(self, reference: Any) -> Any:
        """Return the result of a call, or raise its error; ``WorkerLostError`` if it died."""
        return reference()

    def dismiss(self, number: int) -> None:
        """Stop a worker that is another process."""
