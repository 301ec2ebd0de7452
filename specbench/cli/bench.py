"""``specbench bench``: time systems on random prompts, without task or metric."""

from __future__ import annotations

from specbench.cli.generate import grouped
from specbench.cli.methods import Methods
from specbench.cli.options import Models, NewFolder
from specbench.cli.output import new_folder, note, print_json, print_table
from specbench.experiment.bench.plan import BenchSettings, build_bench


@grouped
def bench(models: Models, methods: Methods, settings: BenchSettings, to: NewFolder) -> None:
    """Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit.

    The benchmark uses random prompts and answers of fixed length, and no task or metric. It
    interleaves all systems, including Transformers' own implementations of the same methods.
    """
    spec = models.spec()
    models.require_here(spec, *settings.engine)
    plan = build_bench(spec, methods.variants(), models.loading(), settings)
    note(*plan.notes)

    with new_folder(to.output, f"bench-{plan.pair.name}") as folder:
        from specbench.experiment.bench.tables import save_figures
        from specbench.experiment.bench.measure import measure, prepare
        from specbench.experiment.bench.tables import (
            bench_table,
            describe,
            ratio_table,
            shown,
            warnings,
        )
        from specbench.experiment.folders import as_json
        from specbench.experiment.progress import progress_bar, quiet_libraries
        from specbench.files import write_atomically
        from specbench.runs.run import ENVIRONMENT

        quiet_libraries(downloads=not to.no_progress)
        plan, pairs = prepare(plan)
        with progress_bar(len(plan), not to.no_progress) as report:
            measured = measure(plan, pairs, report)
        table, ratios = bench_table(measured), ratio_table(measured)
        tables = {"bench": table, "repeats": measured.repeats, "ratios": ratios}
        for name, content in tables.items():
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
