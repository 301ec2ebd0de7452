"""``specbench compare``: methods against plain SD and against the static front."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from specbench.cli.generate import grouped, one_of
from specbench.cli.options import Rows, Runs
from specbench.cli.output import note, print_table
from specbench.cli.runs import chosen_runs
from specbench.errors import UsageError

HELD_EQUAL = ("acceptance", "time", "quality", "hypervolume")
FORMATS = ("text", "markdown", "csv")


@grouped
def compare(
    rows: Rows,
    runs: Runs = None,
    at: Annotated[
        str | None,
        one_of(
            "--at",
            HELD_EQUAL,
            f"What is held equal; {HELD_EQUAL[-1]} is the area under each method's front.",
            metavar="WHAT",
            show_default="all four",
        ),
    ] = None,
    format: Annotated[str, one_of("--format", FORMATS)] = FORMATS[0],
) -> None:
    """Compare methods with SD, and with the static front at equal acceptance, time and quality."""
    from specbench.analysis.compare import ATS, compare
    from specbench.analysis.compare_tables import comparison_tables
    from specbench.analysis.frames import read_samples
    from specbench.experiment.tables import TABLE
    from specbench.table import to_markdown

    folders = chosen_runs(runs, TABLE)
    # --method chooses which methods are placed; all are compared with sd and static.
    samples = rows.updated(method=None).selection().of(read_samples(*folders))
    methods = rows.selection().methods
    _check_methods(methods or (), set(samples.loc[samples["draft_length"] > 0, "method"]))
    ats = [known for known in ATS if at in (None, known)]
    found = compare(samples, ats, methods)
    for reason in found.notes:
        note(reason)
    if "quality" in ats and samples.loc[samples["method"] == "sd", "draft_length"].nunique() == 1:
        note("sd was measured at one N; add --draft-length 3,5,7 to compare best N")
    if format == "csv":
        print(found.rows.to_csv(index=False), end="")
    elif format == "markdown":
        print(to_markdown(*comparison_tables(found.rows)), end="")
    else:
        print_table(*comparison_tables(found.rows))


def _check_methods(names: Collection[str], drafting: set[str]) -> None:
    """Refuse methods that the runs do not have, or that all others are compared with."""
    baselines = drafting & {"sd", "static"}
    placed = sorted(drafting - baselines)
    others = f"name one of {', '.join(placed)}" if placed else "these runs hold no other"
    for name in names:
        if name not in placed:
            is_baseline = name in baselines
            why = "is what methods are compared with" if is_baseline else "cannot be compared here"
            raise UsageError(f"--method {name!r} {why}: {others}")
