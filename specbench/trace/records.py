"""Finding samples in the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specbench.analysis.labels import method_labels
from specbench.errors import UsageError
from specbench.experiment.records import ERROR
from specbench.words import listed, meant, shown

Record = Mapping[str, Any]


def names(records: Sequence[Record]) -> list[str]:
    """Return what tells the methods of some records apart: label, and N where they differ in it."""
    labels = method_labels(records)
    several = len({record["draft_length"] for record in records} - {0}) > 1
    return [
        f"{label} N={record['draft_length']}" if several and record["draft_length"] else label
        for label, record in zip(labels, records, strict=True)
    ]


def find_sample(
    records: Iterable[Record],
    sample: str,
    *,
    task: str | None = None,
    method: str | None = None,
    repeat: int = 0,
) -> tuple[Record, str]:
    """Return one sample's record and its method's name.

    Args:
        records: One for each sample of a run.
        sample: Its id.
        task: Its task; may be left out where only one has the id.
        method: Its method, or what ``names`` calls it; may be left out where there is one only.
        repeat: Which of its repeats, from 0.

    Raises:
        UsageError: There is none, or several; the message names the choices.
    """
    found = [record for record in records if record["sample_id"] == sample]
    if not found:
        raise UsageError(f"no sample `{shown(sample)}` in this run: see sample_id in samples.csv")
    tasks = _only("--task", [r["task"] for r in found], lambda name: task in (None, name), task)
    found = [r for r in found if r["task"] in tasks]
    known = listed(str(number) for number in sorted({r["repeat"] for r in found}))
    found = [r for r in found if r["repeat"] == repeat]
    if not found:
        raise UsageError(f"the sample has no repeat {repeat}: choose from {known}")
    called = dict(zip(names(found), found, strict=True))
    chosen = _only(
        "--method",
        called,
        lambda name: method in (None, name, called[name]["method"], name.split(" N=")[0]),
        method,
    )
    record = called[chosen[0]]
    if record.get("status") == ERROR:
        raise UsageError(f"the sample could not be decoded ({record.get('error')}): run it again")
    return record, chosen[0]


def _only(
    option: str, known: Iterable[str], fits: Callable[[str], bool], given: str | None
) -> list[str]:
    """The one name that fits, as a list; several or none are refused."""
    known = list(dict.fromkeys(known))
    fitting = [name for name in known if fits(name)]
    if not fitting:
        raise UsageError(f"no such sample with {option} {given}; {meant(str(given), known)}")
    if len(fitting) > 1:
        raise UsageError(f"several samples match: choose with {option} from {listed(fitting)}")
    return fitting
