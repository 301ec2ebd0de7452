"""``specbench bench``: time systems on random prompts, without task or metric."""

from __future__ import annotations

from typing import Annotated

from specbench.cli.generate import grouped
from specbench.cli.measure import carry_out, start_workers
from specbench.cli.measurement import RunFolder
from specbench.cli.methods import Methods
from specbench.cli.options import JsonOutput, Models, Workers
from specbench.cli.output import note, print_json, print_table
from specbench.experiment.benchmark import BenchSettings, bench_cells, bench_plan
from specbench.experiment.folders import run_in
from specbench.files import write_atomically

Folder = Annotated[RunFolder, ("output", "fresh", "no_progress")]


@grouped
def bench(
    models: Models, methods: Methods, settings: BenchSettings, to: Folder, form: JsonOutput
) -> None:
    """Time methods on engines: time per round by part, tokens/s, share of the bandwidth limit.

    The benchmark uses random prompts and answers of fixed length, and no task or metric. It
    interleaves all systems, including Transformers' own implementations of the same methods. It
    writes a run with each text as it is measured, and the same command resumes it.
    """
    if to.output is not None and to.output.is_dir():
        run_in(to.output)  # before anything is loaded
    spec = models.spec()
    models.require_here(spec, *settings.engine)
    cells, notes = bench_cells(spec, methods.variants(), models.loading(), settings)
    note(*notes)
    plan = bench_plan(spec, models.loading(), settings, cells, notes)
    store = carry_out(plan, "bench", to, start_workers(Workers(), plan.loading, to))

    from specbench.analysis import benchmark
    from specbench.analysis.figures.benchmark import save_figures

    measured = benchmark.read_benchmark(store.folder)
    table, ratios = benchmark.bench_table(measured), benchmark.ratio_table(measured)
    for name, content in {"bench": table, "ratios": ratios}.items():
        text = content.to_csv(index=False, float_format="%.6g")
        write_atomically(store.folder / f"{name}.csv", text)
    save_figures(table, store.folder)
    if form.as_json:
        print_json({"results": str(store.folder), "systems": table, "ratios": ratios})
    else:
        print(benchmark.describe(table))
        print_table(*benchmark.tables(table, ratios))
        print(f"results: {store.folder}")
    note(*benchmark.warnings(table))
