"""The options of every command that measures, and the plan that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from specbench.cli import options as groups
from specbench.cli.generate import split
from specbench.cli.output import Interrupted, note
from specbench.config import Options, option
from specbench.decoding.drafters import registry
from specbench.decoding.drafters.policies import get_policy, require_predictable
from specbench.engine.pairs import PairSpec, get_pair, pairs, without_draft
from specbench.errors import RunError, SpecbenchError, UsageError, require
from specbench.experiment.cells import Variant, with_baselines
from specbench.experiment.plan import Plan
from specbench.experiment.planning import Systems, build_plan
from specbench.methods.registry import AUTOREGRESSIVE
from specbench.runs.configuration import Settings
from specbench.serving.arm import Arm


class RunFolder(groups.DryRun, groups.Progress):
    """Where a run goes, and whether it is executed."""

    output: Path | None = groups.output_option(
        "Output folder; a run with the same settings is resumed.",
        "the unfinished run of this plan, or results/<time>-<command>-<pair>",
    )
    fresh: bool = option(False, "Start a new run; an existing run in the folder is renamed.")


class Measurement(
    groups.Prompts,
    groups.Models,
    groups.RunSettings,
    groups.JsonOutput,
    RunFolder,
    groups.Workers,
    groups.CodeExecution,
):
    """The options of every command that measures."""

    drafter: list[str] | None = option(
        None,
        f"What proposes drafts: {', '.join(registry.DRAFTERS)}, or a folder with an EAGLE-3 or MTP "
        "module.",
        metavar="NAME[,NAME...]",
        shown=str(registry.MODEL),
        complete=lambda: registry.DRAFTERS,
        panel=Options.panel,
    )

    drafting: list[str] | None = option(
        None,
        "How many tokens a round drafts, up to N: fixed, confidence, p-min, svip, adaedl or "
        "adaptive, also as NAME:VALUE, or FILE.py:FUNCTION (page price).",
        metavar="NAME[,NAME...]",
        shown="fixed",
        panel="Sampling",
    )

    sampling: Literal["model"] | None = option(
        None,
        "model takes temperature, top-p, top-k and min-p from the target's generation_config.json "
        "or GGUF file; options override them.",
        metavar="NAME",
        shown="T = 1",
        panel="Sampling",
    )

    def drafters(self, spec: PairSpec) -> list[registry.DrafterSpec]:
        """Return the chosen drafters; a pair without a draft model has none that needs one."""
        chosen = [
            registry.parse_drafter(name, spec.drafters)
            for name in self.drafter or [str(registry.MODEL)]
        ]
        for policy in self.drafting or ():
            require_predictable(get_policy(policy))
        drafters = dict.fromkeys(
            drafter if policy == "fixed" or drafter.kind.copies else replace(drafter, policy=policy)
            for drafter in chosen
            for policy in self.drafting or ["fixed"]
        )
        registry.require_draft(spec.draft, (drafter.kind for drafter in drafters))
        return [*drafters]

    def plan(
        self,
        variants: Iterable[Variant],
        optional: Iterable[str] = (),
        arms: Sequence[Arm] = (),
        concurrency: Sequence[int] = (1,),
        a_a: bool = False,
    ) -> Plan:
        """Plan a run; ``optional`` methods are skipped on tasks without a head.

        ``a_a`` times sd twice. No speculation is measured too. Servers (``arms``) need no pair.
        """
        if self.sampling:  # that the target's authors recommend
            from specbench.engine.recommended import sampling_of
            from specbench.engine.sources import load_recommended

            spec = self.spec(alone=True)
            values = sampling_of(load_recommended(spec, self.loading()), spec.target)
            untyped = {name: values[name] for name in values.keys() - self.model_fields_set}
            options = self.updated(sampling=None, **untyped)
            return options.plan(variants, optional, arms, concurrency, a_a)
        chosen = list(variants)
        if arms and not chosen and not self.names_models:
            model = arms[0].model
            spec = PairSpec(model.rstrip("/").rpartition("/")[2], model, None)
        else:
            spec = self.spec(alone=True)
        if chosen and self.ray_address is None:
            self.require_here(spec, self.engine)
        drafters = [registry.MODEL]
        if any(method != AUTOREGRESSIVE for method, _ in chosen):
            drafters = self.drafters(spec)
            if all(drafter.kind.copies for drafter in drafters):
                spec = without_draft(spec)
        tasks, measured = self.tasks(), with_baselines(chosen) if chosen else []
        cells = (self.draft_length, drafters, set(optional), a_a, arms, concurrency)
        return build_plan(
            *(spec, tasks, Systems(measured, *cells), self.part(Settings)),
            loading=self.loading(),
            limit=self.limit,
            may_execute=self.allowed(spec),
        )


class PairsMeasurement(Measurement):
    """The options of a command that measures one pair after the other."""

    pair: str | None = option(
        None,
        f"Target and draft: {', '.join(pairs())}, or FILE.toml[:NAME]; several are measured one "
        "after the other, each in its own folder.",
        metavar="NAME[,NAME...]",
        shown=groups.DEFAULT_PAIR,
        complete=pairs,
        panel=Options.panel,
    )

    def measure_each(self, measure_pair: Callable[[Measurement], None]) -> None:
        """Measure each pair; after the failure of one, go on with the others.

        Raises:
            SpecbenchError: The first failure's kind of error, after all pairs.
        """
        names = list(dict.fromkeys(split("--pair", [self.pair]))) if self.pair else []
        if len(names) < 2:
            measure_pair(self.updated(pair=names[0]) if names else self)
            return
        for name in ("target", "draft"):
            require(
                getattr(self, name) is None,
                f"{self.flags(name)[0]} is about a model of one pair, and --pair names several: "
                "omit it, or measure one pair",
            )
        require(not self.as_json, "--json prints one run: measure one pair, or omit it")
        specs = {name: get_pair(name) for name in names}
        require(
            len({spec.name for spec in specs.values()}) == len(specs),
            "two pairs of --pair have one name, and so one folder: measure them apart",
        )
        failures: list[SpecbenchError] = []
        for name, spec in specs.items():
            try:
                # Runs are named after their folders, and names must differ between outputs.
                output = self.output and self.output / f"{self.output.name}-{spec.name}"
                measure_pair(self.updated(pair=name, output=output))
            except Interrupted:
                raise
            except SpecbenchError as error:
                # The error's own traceback would keep the models in memory.
                kind = UsageError if isinstance(error, UsageError) else RunError
                failures.append(kind(f"pair {name}: {error}"))
                note(str(failures[-1]))
        if failures:
            first = failures[0]
            number = f"{len(failures)} of {len(names)} pairs failed"
            raise type(first)(f"{number}, the first with: {first}")
