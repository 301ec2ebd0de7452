"""``specbench bench``: time systems on random prompts, without task or metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import Models, NewFolder
from specbench.cli.output import new_folder, note, print_json, print_table
from specbench.experiment.bench.plan import BenchSettings, build_bench


@grouped
def bench(models: Models, methods: Methods, settings: BenchSettings, to: NewFolder) -> None:
    """Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit.

    The benchmark uses random prompts and answers of fixed length, and no task or metric. It
    interleaves all systems, including Transformers' own implementations of the same methods, and
    writes each repeat as it is measured.
    """
    spec = models.spec()
    models.require_here(spec, *settings.engine)
    plan = build_bench(spec, methods.variants(), models.loading(), settings)
    note(*plan.notes)

    with new_folder(to.output, f"bench-{plan.pair.name}") as folder:
        import pandas as pd

        from specbench.engine.hub import quiet_libraries
        from specbench.experiment.bench.measure import measure, prepare
        from specbench.experiment.bench.tables import (
            bench_table,
            describe,
            ratio_table,
            save_figures,
            shown,
            warnings,
        )
        from specbench.experiment.folders import as_json
        from specbench.experiment.progress import progress_bar, step_status
        from specbench.files import clear_errors, write_atomically
        from specbench.runs.run import ENVIRONMENT

        quiet_libraries(downloads=not to.no_progress)
        with step_status(not to.no_progress) as show:
            show("loading the models")
            plan, pairs = prepare(plan)
        repeats = folder / "repeats.csv"
        with progress_bar(len(plan), not to.no_progress, name="measurements") as report:

            def write_repeat(row: Mapping[str, Any]) -> None:
                frame = pd.DataFrame([row]).drop(columns="task")
                header = not repeats.exists()
                with clear_errors(repeats):
                    frame.to_csv(repeats, mode="a", index=False, header=header, float_format="%.6g")
                report(row)

            measured = measure(plan, pairs, write_repeat)
        table, ratios = bench_table(measured), ratio_table(measured)
        for name, content in {"bench": table, "ratios": ratios}.items():
            text = content.to_csv(index=False, float_format="%.6g")
            write_atomically(folder / f"{name}.csv", text)
        write_atomically(folder / ENVIRONMENT, as_json(measured.environment))
        save_figures(table, folder)
    if to.as_json:
        print_json({"results": str(folder), "systems": table, "ratios": ratios})
    else:
        print(describe(table))
        print_table(*shown(table, ratios))
        print(f"results: {folder}")
    note(*warnings(table))
