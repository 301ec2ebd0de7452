"""``specbench transfer``: every head on every task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.measure import measure
from specbench.cli.options.cluster import Cluster
from specbench.cli.options.data import AllowCodeExecution, Tasks
from specbench.cli.options.groups import grouped
from specbench.cli.options.models import Models
from specbench.cli.options.results import Results
from specbench.cli.options.sampling import Sampling
from specbench.errors import UsageError
from specbench.experiment.plan import build_plan
from specbench.heads.registry import HeadFile, describe_heads, find_heads


@grouped
def transfer(
    data: Tasks,
    models: Models,
    sampling: Sampling,
    results: Results,
    cluster: Cluster,
    head: Annotated[
        Path | None,
        typer.Option(
            "--head",
            help="Folder with a head folder per task, or bundled or results.",
            show_default="the pair's heads: bundled, else trained here",
        ),
    ] = None,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """Measure every head on every task, with sd as the row without a head.

    The run's folder gets the matrix as transfer.csv, as transfer.md and as a figure.
    """
    spec, tasks, lengths = models.spec(), data.tasks(), sampling.draft_lengths()
    if len(lengths) > 1:
        raise UsageError("--draft-length takes one length here: a matrix is for one setting")
    found = find_heads(spec, None if head is None else str(head))
    # Tasks and their heads in one order, so that a head's own task is on the diagonal.
    heads = {t.name: found[t.name] for t in tasks if t.name in found} | found
    named = [HeadFile(trained_on, known.path) for trained_on, known in heads.items()]
    plan = build_plan(
        spec,
        tasks,
        [("sd", {}), *(("diversed", {"head": known}) for known in named)],
        lengths,
        sampling.settings(),
        loading=models.loading(),
        limit=sampling.chosen().limit,
        may_execute=allow_code_execution or spec.bundled,
    )
    # Every head serves every task, so it is enough to say once where each comes from.
    one = f"heads: {describe_heads(heads.items())}"
    plan = replace(plan, notes=(one, *(n for n in plan.notes if not n.startswith("heads: "))))
    measure(plan, "transfer", results, limit=sampling.chosen().limit, show=_show, cluster=cluster)


def _show(folder: Path) -> None:
    """Write the matrix beside the tables of a run, draw it and print it."""
    from specbench.analysis.transfer import transfer_markdown, transfer_table
    from specbench.cli.tables import print_transfer
    from specbench.figures.saving import save
    from specbench.figures.transfer import draw
    from specbench.files import digits, write_atomically
    from specbench.results import Results

    results = Results([folder])
    table = transfer_table(results.summary)
    write_atomically(folder / "transfer.csv", table.to_csv(index=False, float_format=digits))
    write_atomically(folder / "transfer.md", transfer_markdown(table))
    save(draw(results), folder / "figures", "transfer")
    print_transfer(table)
