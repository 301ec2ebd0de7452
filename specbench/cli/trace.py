"""``specbench trace``: one sample of a finished run, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.output import console
from specbench.errors import UsageError


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    sample: Annotated[
        str, typer.Option("--sample", metavar="ID", help="The sample's id, as in samples.csv.")
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            "-t",
            metavar="NAME",
            help="Its task, where several have such a sample.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            metavar="NAME",
            help="Its method, where there were several; with parameters as in tables, for instance "
            "'static w=0.4'.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="K", help="Which of its repeats, from 0.")
    ] = 0,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page for a browser instead.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show one sample token by token: agreed, mismatched, rejected and corrected tokens.

    A shade is the weight on the target. Without colours: {~mismatch~} [-rejected-] {+correction+}.
    """
    from specbench.experiment.records import TRACED, latest_records
    from specbench.trace.tokens import Unreadable
    from specbench.trace.trace import find_sample, run_decoder
    from specbench.trace.trace import trace as trace_of

    record, name = find_sample(
        latest_records(run, TRACED), sample, task=task, method=method, repeat=repeat
    )
    try:
        found = trace_of(record, name, run_decoder(run))
    except Unreadable as error:
        raise UsageError(f"{run} holds this sample incompletely ({error}): run again") from error
    if html is None:
        from specbench.trace.terminal import show

        show(found, console())
    else:
        from specbench.files import write_atomically
        from specbench.report.pages import trace_page

        write_atomically(html, trace_page(found))
        print(html)
