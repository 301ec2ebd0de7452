"""Decode and score the samples of a plan with a loaded pair."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from specbench.decoding.drafters.policies import Online, get_policy
from specbench.decoding.drafting import context_of
from specbench.decoding.heads.bind import BoundMethod, bind
from specbench.decoding.heads.head import Head, describe_models
from specbench.decoding.heads.kinds import KINDS
from specbench.decoding.loop import DecodeOptions, Request, decode_all
from specbench.decoding.records import Generation
from specbench.decoding.sampling import Sampling
from specbench.engine.cache import SlotCache
from specbench.engine.device import require_working
from specbench.engine.hardware import free_memory
from specbench.engine.limits import busy_share
from specbench.engine.packing import packed_layers
from specbench.engine.pair import LoadedPair, Model
from specbench.engine.prompts import Encoded
from specbench.engine.recommended import unlike_recommended
from specbench.engine.sources import load_recommended
from specbench.errors import EngineError, UsageError, require
from specbench.experiment import measurements
from specbench.experiment.cells import Cell
from specbench.experiment.comparison import Comparison, compare_with_eager, rounding_of
from specbench.experiment.environment import describe_environment, other_processes
from specbench.experiment.plan import Plan, SampleIndex, Step, TaskPlan, own_sources
from specbench.experiment.prompts import EncodedPrompts
from specbench.experiment.rounding import Fork, Lead
from specbench.methods.control import DraftControl, warmup_lengths
from specbench.methods.strict import sd
from specbench.runs.model import ERROR, SampleRecord
from specbench.tasks.metrics.sandbox.launch import layers
from specbench.tasks.thoughts import answer_in, begins_thoughts

Ready = tuple[Step, Encoded]  # a step and its prompt

WARM_UP_TOKENS = 16  # enough for every part of a round to run
BUSY = 0.25  # share of the cores

log = logging.getLogger(__name__)


class SampleRunner:
    """Decodes and scores the samples of a plan with a loaded pair.

    ``models`` has plain values that identify the models and how they run.
    """

    def __init__(self, plan: Plan, pair: LoadedPair, device: str | None = None) -> None:
        self._plan, self._pair = plan, pair
        self._device = device or str(pair.target.device)  # device name in the records
        self._prompts = EncodedPrompts(plan, pair)
        self._warm_ups: dict[tuple[str, Cell], float] = {}  # seconds, not part of any sample's time
        self._warm: list[Model] = []  # models that have read a prompt
        # The target's own greedy texts of an example, one per turn.
        self._greedy: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        heads: dict[Path, Head] = {}
        self._bound = {  # bind all cells now, so that errors appear early
            cell: self._bind(cell, heads) for task in plan.tasks for cell in task.cells
        }
        if own_sources(plan.tasks) != plan.sources:
            files = ", ".join(plan.sources)
            raise UsageError(f"{files} changed while the run began: start it again")
        self.models = describe_models(pair)
        longest = self._prompts.longest_text()
        for drafter in dict.fromkeys(cell.drafter for cell in self._bound if cell.draft_length):
            context = context_of(drafter.kind.load(pair), pair)
            if context is not None and context < longest:
                log.warning(
                    f"the drafter {drafter} reads at most {context} tokens, and texts have up to "
                    f"{longest}: nothing is drafted beyond its context"
                )
        pair.reserve(longest, plan.settings.batch_size)
        is_compared = pair.engine.static and not plan.is_benchmark
        self._comparison = self._compare_engine() if is_compared else None

    @property
    def engine(self) -> str:
        """The current engine, which a fallback may change."""
        return self._pair.engine.name

    def _compare_engine(self) -> Comparison:
        """Compare the engine with eager on a cell that drafts, if there is one.

        A rule of the user's own may fail, which is for its samples to say: ``sd`` replaces it.
        """
        cell = max(self._bound, key=lambda cell: cell.draft_length > 0)
        rule = sd if cell.method in self._plan.sources else self._bound[cell].rule
        comparison = compare_with_eager(self._pair, rule, self._options(cell, 1))
        if comparison.difference is not None:
            self._pair.engine.give_up(
                f"engine {comparison.engine} is not the same as eager on {comparison.device} in "
                f"{comparison.dtype} ({comparison.difference})"
            )
        return comparison

    def run(self, steps: Sequence[Step]) -> Iterator[measurements.SampleResult]:
        """Decode steps of one cell together; yield each of their turns as soon as it is done.

        A step that raises, for example for lack of memory, has the status ``error``.
        """
        return measurements.by_turns(steps, self._run)

    def _run(
        self, steps: Sequence[Step], answers: measurements.Answers
    ) -> Iterator[measurements.SampleResult]:
        """Decode one turn of each step, after the answers to the turns before."""
        ready: list[Ready] = []
        for step in steps:
            try:
                earlier = measurements.earlier_answers(step, answers)
                ready.append((step, self._prompts.of(step.plan, step.example, earlier)))
            except Exception as error:
                yield step, self._failed(step, error)
        waiting = dict(enumerate(ready))
        try:
            if ready:
                self._add_greedy(ready)
                self._warm_up(ready)
                for number, generation in self._decode(ready):
                    record = self._scored(*waiting[number], generation)
                    step, _ = waiting.pop(number)  # only now: if scoring raises, the step fails
                    yield step, record
        except EngineError:
            raise  # not caused by a sample: all others would fail too
        except Exception as error:
            require_working(self._pair.target.device)
            for model in self._models_of(ready[0][0].cell) if ready else ():
                if isinstance(cache := getattr(model, "cache", None), SlotCache):
                    cache.clear()  # infinite states would reach texts that only mask them
            left = [step for step, _ in waiting.values()]
            failed = [(step, self._failed(step, error)) for step in left]
            del error  # it references tensors on the device
            free_memory()
            if len(left) == 1:
                yield from failed
            else:  # retry one by one, so that only the failing sample is lost
                retried = (self._run([step], answers) for step in left)
                for step, result in chain.from_iterable(retried):
                    yield step, result.filled(block=None)  # not decoded together

    def leads(self, forks: Iterable[tuple[Step, Fork]]) -> tuple[dict[Fork, Lead], float]:
        """Return the target's lead at each fork, and by how much rounding may change a logit.

        A fork for which the memory does not suffice has none.
        """
        target, ends = self._pair.target, sorted(self._pair.eos_ids)
        by_text: defaultdict[SampleIndex, list[tuple[Step, Fork]]] = defaultdict(list)
        for step, fork in forks:
            by_text[fork.place].append((step, fork))
        leads: dict[Fork, Lead] = {}
        for of_text in by_text.values():
            # A text without speculation begins with the tokens before each of its forks.
            lengths = [len(fork.shared) for _, fork in of_text]
            step, longest = of_text[lengths.index(max(lengths))]
            prompt = self._prompts.of(step.plan, step.example).ids
            tokens = torch.tensor([[*prompt, *longest.shared]], device=target.device)
            with suppress(RuntimeError), torch.inference_mode():
                (logits,), _ = target.plain(tokens, max(lengths) - min(lengths) + 1, False)
                for length, (_, fork) in zip(lengths, of_text, strict=True):
                    leads[fork] = Lead.of(logits[length - min(lengths)], fork.tokens, ends)
        return leads, rounding_of(self._pair)

    def opening_facts(self) -> dict[str, Any]:
        """Return the content of ``environment.json`` at the start of a run."""
        modules = [r.model for r in self._pair.runners] if self._pair.library.has_runners else []
        opening = {
            **describe_environment(),
            "engine": self.engine,
            "compared_with_eager": self._comparison and asdict(self._comparison),
            "models": self.models,
            "weights": self._pair.weights,
            "busy_share": busy_share(),
            "packed_weights": bool(packed_layers(*modules)),
            "fused_layers": self._pair.fused_layers,
            "sandbox": list(layers()) if self._plan.may_execute else [],
            "first_prompts": self._prompts.first(),
            "prompt_formats": self._prompts.formats,
        }
        recommended = load_recommended(self._plan.pair, self._plan.loading, local_files_only=True)
        if recommended:
            opening["recommended_sampling"] = recommended
        if sentence := unlike_recommended(recommended, self._plan.settings):
            log.warning(sentence)
        if foreign := other_processes():
            log.warning(
                "other processes use the GPUs (%d): measured times will be unreliable", len(foreign)
            )
            opening["other_gpu_processes"] = foreign
        if self._pair.target.device.type == "cpu" and opening["busy_share"] > BUSY:
            log.warning(
                "other processes use %.0f %% of the processor: measured times will be unreliable; "
                "stop them, or leave them cores with --threads",
                100 * opening["busy_share"],
            )
        return opening

    def closing_facts(self) -> dict[str, Any]:
        """Return the facts about the environment that are known only after all samples."""
        warm_ups = [
            {"task": task, **cell.describe(), "seconds": seconds}
            for (task, cell), seconds in self._warm_ups.items()
        ]
        return {"engine": self.engine, "warm_ups": warm_ups}

    def _add_greedy(self, ready: Sequence[Ready]) -> None:
        """Decode the target's own greedy texts of these prompts, once for all cells.

        A later turn of a conversation follows the greedy texts of the turns before.
        """
        new = []
        for step, _ in ready if ready[0][0].plan.needs_greedy else ():
            texts = self._greedy[step.place[0], step.example.id]
            if len(texts) < (step.turn or 1):
                new.append((step, self._prompts.of(step.plan, step.example, texts)))
        for number, generation in self._decode(new, greedy=True) if new else ():
            step, _ = new[number]
            self._greedy[step.place[0], step.example.id].append(generation.text)

    def _warm_up(self, ready: Sequence[Ready]) -> None:
        """Compile code, capture graphs and warm up kernels with a short decode.

        Engines that compile or capture do so for all cells before the first sample is timed, since
        a capture empties PyTorch's cache of free memory.

        If generated code is executed between samples, every sample gets a short warm-up of the
        processor's caches. Execution results are cached, so otherwise a sample's time would depend
        on whether code ran before it.
        """
        if self._plan.times == "none":
            return
        step = ready[0][0]
        first = ready[: self._plan.settings.batch_size]
        if (step.plan.task.name, step.cell) not in self._warm_ups:
            if self._pair.engine.static and not self._warm_ups:
                self._warm_up_all(first)
            self._warm_up_cell(first)
        elif self._plan.may_execute and step.plan.executed:
            list(self._decode(first, 2 * step.cell.draft_length + 2))

    def _warm_up_all(self, ready: Sequence[Ready]) -> None:
        """Warm up the cells of all tasks on these prompts."""
        for task in self._plan.tasks:
            for cell in task.cells:
                try:
                    self._warm_up_cell([(replace(s, plan=task, cell=cell), p) for s, p in ready])
                except EngineError:
                    raise
                except Exception as error:  # recorded with the cell's own samples, if it recurs
                    reason = measurements.describe_error(error)
                    log.debug(f"{cell.method} cannot be warmed up yet: {reason}")
                    require_working(self._pair.target.device)

    def _bind(self, cell: Cell, heads: dict[Path, Head]) -> BoundMethod:
        bound = bind(cell.method, cell.values, self._pair, heads)
        cell.drafter.kind.load(self._pair)  # a faulty file is told before anything is decoded
        reads_states = bound.head is not None and KINDS[bound.head.kind].width is None
        require(
            not (cell.drafter.kind.has_weights and reads_states),
            f"{cell.method} has a head that reads the draft model's hidden states, and --drafter "
            f"{cell.drafter} has others: leave out {cell.method}, or choose a head of kind "
            "features with --head",
        )
        policy = cell.drafter.policy
        control = Online(get_policy(policy)) if policy else bound.control
        if isinstance(control, Online):
            control.softmax = self._plan.settings.temperature == 0 or cell.drafter.kind.greedy
        return bound._replace(control=control)

    def _warm_up_cell(self, ready: Sequence[Ready]) -> None:
        """Warm up one cell, unless that is done, and note how long it takes."""
        step = ready[0][0]
        group = (step.plan.task.name, step.cell)
        if group in self._warm_ups:
            return
        began = time.perf_counter()
        control, static = self._bound[step.cell].control, self._pair_of(step.cell).engine.static
        for length in (*warmup_lengths(control, step.cell.draft_length, static), None):
            list(self._decode(ready, self._warm_up_tokens(step.plan), length))
        for model in self._models_of(step.cell):
            if model not in self._warm:  # read again, to time it with a warm processor
                if self._plan.times == "all":
                    model.forget_prompts()
                self._warm.append(model)
        self._warm_ups[group] = time.perf_counter() - began

    def _models_of(self, cell: Cell) -> list[Any]:
        """Return the models that a cell runs."""
        drafter = cell.drafter.kind.load(self._pair) if cell.draft_length else None
        return [self._pair.target, *(drafter.runners(self._pair) if drafter else ())]

    def _warm_up_tokens(self, task: TaskPlan) -> int:
        return WARM_UP_TOKENS

    def _decode(
        self,
        ready: Sequence[Ready],
        most: int | None = None,
        instead: DraftControl | None = None,
        *,
        greedy: bool = False,
    ) -> Iterator[tuple[int, Generation]]:
        step = ready[0][0]
        limit, method = step.plan.max_new_tokens, self._bound[step.cell]
        options = replace(
            self._options(step.cell, limit if most is None else min(limit, most)),
            batch_size=self._plan.batch_size(step.plan),
            stop=step.plan.task.stop,
            control=instead or method.control,
        )
        if greedy:
            options = replace(options, sampling=Sampling(temperature=0), draft_length=0)
        requests = [Request(prompt.ids, step.sample_key) for step, prompt in ready]
        rule = None if greedy else method.rule
        return decode_all(self._pair_of(step.cell), rule, requests, options)

    def _pair_of(self, cell: Cell) -> LoadedPair:
        return self._pair  # with the engine of the cell

    def _options(self, cell: Cell, max_new_tokens: int) -> DecodeOptions:
        """Return how a cell's texts are decoded, without stop strings and draft control."""
        settings = self._plan.settings
        return DecodeOptions(
            self._bound[cell].sampling(settings.part(Sampling)),
            cell.draft_length,
            max_new_tokens,
            seed=settings.seed,
            batch_size=settings.batch_size,
            drafter=cell.drafter.kind.load(self._pair),
        )

    def _scored(self, step: Step, prompt: Encoded, generation: Generation) -> SampleRecord:
        """Score a generation unless only its times count.

        If only a metric raises, keep the generation with status ``unscored``.
        """
        drafts = step.cell.draft_length > 0
        record = self._identity(step)
        if step.cell.timing:
            return record.filled(**measurements.times_of(generation, drafts))
        task, may_execute = step.plan.task, self._plan.may_execute
        fields = {**measurements.columns_of(generation, drafts), "prompt_cut": prompt.cut}
        fields["thought_tokens"] = measurements.thought_tokens(
            self._pair.tokenizer, prompt.ids, generation.token_ids, generation.output_tokens
        )
        if step.plan.needs_greedy:
            texts = self._greedy[step.place[0], step.example.id]
            begun = begins_thoughts(self._pair.tokenizer, prompt.ids)
            fields["greedy"] = answer_in(texts[(step.turn or 1) - 1], begun)
        record = record.filled(**fields)
        scores = measurements.score_text(
            task.metrics, record, step.example.scored(record), may_execute=may_execute
        )
        return record.filled(**scores)

    def _failed(self, step: Step, error: Exception) -> SampleRecord:
        return self._identity(step).filled(status=ERROR, error=measurements.describe_error(error))

    def _identity(self, step: Step) -> SampleRecord:
        return self._plan.identify(step, self.engine).filled(device=self._device)
