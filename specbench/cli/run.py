"""``specbench run`` and ``sweep-weights``."""

from __future__ import annotations

from collections.abc import Callable

from specbench.cli.generate import grouped, split
from specbench.cli.measure import measure
from specbench.cli.methods import Methods, MethodsBesideFront
from specbench.cli.options import DEFAULT_PAIR, Measurement
from specbench.cli.output import Interrupted, note
from specbench.cli.servers import Servers
from specbench.config import Options, option
from specbench.engine.pairs import get_pair, pairs
from specbench.errors import RunError, SpecbenchError, UsageError, require
from specbench.experiment.cells import STATIC, method_variants
from specbench.methods.method import INSIDE


class PairsMeasurement(Measurement):
    """The options of a command that measures one pair after the other."""

    pair: str | None = option(
        None,
        f"Target and draft: {', '.join(pairs())}, or FILE.toml[:NAME]; several are measured one "
        "after the other, each in its own folder.",
        metavar="NAME[,NAME...]",
        shown=DEFAULT_PAIR,
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


@grouped
def run(measurement: PairsMeasurement, methods: Methods, servers: Servers) -> None:
    """Measure methods, servers or both on tasks, interleaved: quality, acceptance and speed."""

    def measure_pair(options: Measurement) -> None:
        arms = servers.arms(options.names_models or methods.method is not None)
        if arms and options.workers is not None:
            raise UsageError("--workers decode in other processes, and servers do not: omit it")
        variants = methods.variants() if methods.method or not arms else []
        plan = options.plan(variants, methods.optional, arms, servers.concurrency, methods.a_a)
        measure(plan, "run", options, servers.client if arms else None)

    measurement.measure_each(measure_pair)


class Weights(Options):
    """The weights of ``sweep-weights``."""

    weights: list[float] = option(
        [step / 10 for step in range(11)],
        "Weights on the target, from 0 to 1.",
        metavar="W[,W...]",
    )


@grouped
def sweep_weights(
    grid: Weights,
    measurement: PairsMeasurement,
    methods: MethodsBesideFront,
) -> None:
    """Measure the static ensemble at each weight, together with baseline methods.

    All of them are interleaved in one run, which yields the static front and the other methods'
    points.
    """
    # Only static is swept; other methods with a weight keep their own values.
    names = [name for name in methods.names if name != STATIC]
    variants = method_variants(names, methods.given(), front=True)
    # The front is confined to the same marks as the other methods.
    variants += method_variants([STATIC], {"weight": grid.weights, INSIDE: methods.inside})

    def measure_pair(options: Measurement) -> None:
        plan = options.plan(variants, methods.optional, a_a=methods.a_a)
        measure(plan, "sweep-weights", options)

    measurement.measure_each(measure_pair)
