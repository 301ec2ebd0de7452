"""``specbench bench``: time systems on random prompts, without task or metric."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from specbench.bench.plan import Bench, BenchSettings, build_bench
from specbench.cli.generate import grouped
from specbench.cli.options import Methods, Models, NoProgress, Output, Rules, choose_methods
from specbench.cli.output import Interrupted, note, print_table
from specbench.experiment.variants import method_variants


@grouped
def bench(
    models: Models,
    rules: Rules,
    settings: BenchSettings,
    method: Methods = None,
    output: Output = None,
    no_progress: NoProgress = False,
) -> None:
    """Time methods on engines: parts of a round, tokens/s, share of the bandwidth limit.

    No task and no metric: random prompts and answers of fixed length. All systems take turns, and
    so do Transformers' own loops of the same methods.
    """
    chosen, _ = choose_methods(method)
    variants = method_variants(chosen, rules.given())
    plan = build_bench(models.spec(), variants, models.loading(), settings)
    for text in plan.notes:
        note(text)
    _carry_out(plan, output, progress=not no_progress)


def _carry_out(bench: Bench, output: Path | None, progress: bool) -> None:
    from specbench.bench.figures import save_figures
    from specbench.bench.measure import measure, prepare
    from specbench.bench.tables import bench_table, describe, ratio_table, shown, warnings
    from specbench.experiment.folders import ENVIRONMENT, as_json, choose_folder
    from specbench.experiment.progress import progress_bar, quiet_libraries
    from specbench.files import clear_errors, write_atomically

    folder = choose_folder(output, f"bench-{bench.pair.name}")
    quiet_libraries(downloads=progress and sys.stderr.isatty())
    try:
        bench, pairs = prepare(bench)
        with clear_errors(folder):  # now, not when all has been measured
            folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(len(bench), progress) as report:
            measured = measure(bench, pairs, report)
        table, ratios = bench_table(measured), ratio_table(measured)
        tables = {"bench": table, "repeats": measured.repeats, "ratios": ratios}
        for name, content in tables.items():
            text = content.to_csv(index=False, float_format="%.6g")
            write_atomically(folder / f"{name}.csv", text)
        write_atomically(folder / ENVIRONMENT, as_json(measured.environment))
        save_figures(table, folder)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was written") from error
    finally:
        with suppress(OSError):  # not empty where something was written
            folder.rmdir()
    print(describe(table))
    print_table(*shown(table, ratios))
    for text in warnings(table):
        note(text)
    print(f"results: {folder}")
