"""``specbench bench``: time systems on random prompts, without task or metric."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.bench.plan import Bench, build_bench
from specbench.cli.choices import choose_methods, parse_numbers
from specbench.cli.options import common as o
from specbench.cli.options.common import completer
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.rules import Rules, Weight
from specbench.cli.options.sampling import DraftLengths, Seed, Temperature
from specbench.cli.output import Interrupted, console, note
from specbench.engine.settings import AUTO, ENGINES
from specbench.experiment.settings import USUAL
from specbench.experiment.variants import method_variants

REPEATS, NEW_TOKENS = 10, 128  # fewer repeats have no intervals
_option: Any = partial(typer.Option, rich_help_panel="Sampling")


@grouped
def bench(
    models: Models,
    rules: Rules,
    method: o.Methods = None,
    weight: Weight = None,
    engine: Annotated[
        str,
        _option(
            "--engine",
            metavar="NAME[,NAME...]",
            help=f"Each of several is timed: {', '.join(ENGINES)}. auto is graph on a GPU, else "
            "eager.",
            autocompletion=completer(lambda: (AUTO, *ENGINES)),
        ),
    ] = AUTO,
    draft_length: DraftLengths = None,
    batch_size: Annotated[
        str,
        _option(
            "--batch-size",
            metavar="B[,B...]",
            help="Texts decoded side by side; each of several is timed.",
        ),
    ] = "1",
    acceptance: Annotated[
        str | None,
        _option(
            "--acceptance",
            metavar="RATE[,RATE...]",
            help="Accept every drafted token with this probability instead of the rule's, which "
            "is computed all the same; each of several is timed.",
            show_default="the rules' own, on random prompts",
        ),
    ] = None,
    temperature: Temperature = None,
    prompt_tokens: Annotated[
        int | None,
        _option(
            "--prompt-tokens",
            help="Length of the prompts, which are random.",
            show_default="512, or what the models take",
        ),
    ] = None,
    new_tokens: Annotated[
        int, _option("--new-tokens", help="Length of the answers; no token ends one before.")
    ] = NEW_TOKENS,
    repeats: Annotated[
        int, _option("--repeats", help="Times each system is timed, on fresh prompts.")
    ] = REPEATS,
    seed: Seed = 0,
    no_transformers: Annotated[
        bool,
        typer.Option(
            "--no-transformers",
            help="Leave out Transformers' own generate and assisted generation.",
        ),
    ] = False,
    output: o.Output = None,
    no_progress: o.NoProgress = False,
) -> None:
    """Time methods on engines: parts of a round, tokens/s, share of the bandwidth limit.

    No task and no metric: random prompts and answers of fixed length. All systems take turns, and
    beside them Transformers' own loops of the same methods.
    """
    chosen, _ = choose_methods(method)
    plan = build_bench(
        models.spec(),
        method_variants(chosen, {"weight": weight, **rules.given()}),
        loading=models.loading(),
        engines=[name.strip() for name in engine.split(",")],
        draft_lengths=parse_numbers("--draft-length", draft_length or USUAL.draft_length, int),
        acceptances=[] if acceptance is None else parse_numbers("--acceptance", acceptance, float),
        batch_sizes=parse_numbers("--batch-size", batch_size, int),
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=repeats,
        temperature=USUAL.temperature if temperature is None else temperature,
        seed=seed,
        transformers=not no_transformers,
    )
    for text in plan.notes:
        note(text)
    _carry_out(plan, output, progress=not no_progress)


def _carry_out(plan: Bench, output: Path | None, progress: bool) -> None:
    from specbench.bench.folder import write
    from specbench.bench.measure import measure, prepare
    from specbench.bench.show import ratios_table, setting, system_tables, warnings
    from specbench.bench.tables import bench_table, ratio_table
    from specbench.experiment.folders import choose_folder
    from specbench.experiment.progress import progress_bar, quiet_libraries
    from specbench.files import clear_errors

    folder = choose_folder(output, f"bench-{plan.pair.name}")
    quiet_libraries(downloads=progress and sys.stderr.isatty())
    try:
        ready = prepare(plan)
        with clear_errors(folder):  # now, not when all has been measured
            folder.mkdir(parents=True, exist_ok=True)
        with progress_bar(len(ready.bench), progress) as report:
            measured = measure(ready, report, note)
        table, ratios = bench_table(measured), ratio_table(measured)
        write(folder, measured, table, ratios)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was written") from error
    finally:
        with suppress(OSError):  # it is empty where nothing came of it
            folder.rmdir()
    out = console()
    print(setting(table))
    for shown in system_tables(table):
        out.print(shown)
    if len(ratios):
        out.print(ratios_table(ratios))
    for text in warnings(table):
        note(text)
    print(f"results: {folder}")
