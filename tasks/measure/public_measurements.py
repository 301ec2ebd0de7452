"""Compare the formulas of ``decide --machine`` with published measurements, row by row.

    python tasks/measure/public_measurements.py FILE.csv --figure FILE.png --worst 10
    python tasks/measure/public_measurements.py FILE.csv --fit               # numbers of engines
    python tasks/measure/public_measurements.py FILE.csv --leave-out source  # fitted to others
    python tasks/measure/public_measurements.py FILE.csv --leave-out gpu --write

Columns of the file: source, engine, gpu, gpus, target, weights, weights_gb, kv, drafter, draft,
draft_length, prompt_tokens, new_tokens, batch, accepted_length, speedup, and for a fit
ms_per_token_without. Rows of machines, engines or models without figures are named, not predicted.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from scipy.optimize import least_squares

from specbench.analysis.figures import style
from specbench.analysis.statistics.intervals import Floats
from specbench.files import write_atomically
from specbench.pricing.formulas import Workload, seconds_per_token
from specbench.pricing.heads import DRAFT_MODEL, DraftPasses, drafting_of, kind_called
from specbench.pricing.machines import (
    Deployment,
    ServingEngine,
    devices_in,
    engines,
    known_engine,
    known_machine,
)
from specbench.pricing.shapes import Precision, ServedModel, bits_of, known_shape, precision_of
from specbench.pricing.source import ANSWER, SHORT
from specbench.pricing.tried import TRIED_FILE, batches_like

DIFFERS = 0.05  # a speed-up that differs from 1 by more has a sign
STARTS: dict[str, dict[str, float]] = {
    "vllm": {
        **{"share": 0.8, "compute": 0.6, "quantised": 0.6, "prefill": 0.5},
        **{"fixed": 5e-4, "layer": 5e-5, "step": 2e-4, "round": 5e-4},
    },
    "vllm-2026-01": {"round": 1e-3},  # the rest is that of vLLM
    "llama.cpp": {"share": 0.7, "few_rows": 0.3},
}
"""Numbers of ``engines.toml`` that are fitted, and where a fit begins."""
LOOKS = (("#0077BB", "o"), ("#EE7733", "s"), ("#228833", "^"), ("#AA3377", "D"), ("#555555", "v"))
OFFSET: dict[str, Any] = {"textcoords": "offset points", "fontsize": "small"}
HOLD = 0.3  # pulls the logarithm of a number to where it begins


class Setting(NamedTuple):
    """What a row was measured with."""

    server: Deployment
    target: ServedModel
    drafting: DraftPasses
    kind: str
    drafts: int
    accepted: float
    batch: int
    workload: Workload

    def seconds(self) -> tuple[float, float]:
        """Return the seconds per token without and with speculation."""
        args = (self.batch, self.workload)
        plain = seconds_per_token(self.server, self.target, None, 0, 1.0, *args)
        with_drafts = (self.drafting, self.drafts, self.accepted)
        return plain, seconds_per_token(self.server, self.target, *with_drafts, *args)


def text(value: object) -> str:
    """Return a cell as a text; empty if it is blank."""
    return "" if value is None or value != value else str(value)


def number(value: object, default: float) -> float:
    """Return a cell as a number, or the default if it is blank."""
    return float(text(value) or default)


def served(name: str, weights: str, cache: str, size: object) -> ServedModel | None:
    """Return a model with the precision of a row; None if its shape or a format is unknown."""
    shape = known_shape(name)
    if shape is None:
        return None
    cache = cache if bits_of(cache) else ""
    forms = (precision_of(form, cache) for form in (weights, name) if form)
    precision = next(filter(None, forms), Precision(shape.bits, cache=bits_of(cache) or 16))
    if text(size):
        bits = 8e9 * float(str(size)) / shape.stored
        precision = Precision(bits, bits, precision.cache)
    return ServedModel(name, shape, precision)


def setting_of(row: Any) -> Setting | str:
    """Return what a row was measured with, or what of it is unknown."""
    engine, machine = known_engine(text(row.engine)), known_machine(text(row.gpu))
    kind = kind_called(text(row.drafter))
    target = served(text(row.target), text(row.weights), text(row.kv), row.weights_gb)
    drafts, accepted = (number(n, 0.0) for n in (row.draft_length, row.accepted_length))
    draft = None
    if kind == DRAFT_MODEL:
        in_file = target.precision if target and target.precision.head < 16 else Precision()
        draft = served(text(row.draft), "", text(row.kv), None)
        if draft and precision_of(text(row.draft)) is None and draft.precision.layers == 16:
            draft = draft._replace(precision=in_file._replace(cache=draft.precision.cache))
    unknown = {
        f"engine {row.engine}": engine,
        f"machine {row.gpu}": machine,
        f"model {row.target}": target,
        f"drafter {row.drafter}": kind,
        f"draft model {row.draft}": draft or kind != DRAFT_MODEL,
        f"draft length {row.draft_length}": drafts > 0,
        f"accepted length {row.accepted_length}": accepted >= 1,
    }
    for name, value in unknown.items():
        if not value:
            return name
    assert engine and machine and target
    gpus = max(round(number(row.gpus, 1)), devices_in(text(row.gpu)))
    return Setting(
        Deployment(machine, engine, gpus),
        target,
        drafting_of(kind, target, draft),
        kind,
        round(drafts),
        accepted,
        round(number(row.batch, 1)),
        Workload(number(row.prompt_tokens, SHORT), number(row.new_tokens, ANSWER)),
    )


def line(measured: Floats, predicted: Floats) -> str:
    """Return the last line: the errors of the predicted speed-ups, relative to the measured."""
    size, has_sign = np.abs(predicted / measured - 1), np.abs(measured - 1) > DIFFERS
    signs = (predicted > 1) == (measured > 1)
    sign = f"{100 * signs[has_sign].mean():.1f}" if has_sign.any() else "-"
    median, ninth = 100 * np.quantile(size, [0.5, 0.9])
    return f"n {len(size)}, median {median:.1f} %, ninth decile {ninth:.1f} %, sign {sign} %"


def on(settings: Sequence[Setting], changed: Mapping[str, ServingEngine]) -> list[Setting]:
    """Return settings with other numbers for the engines, by their descriptions."""
    return [
        s._replace(server=s.server._replace(engine=changed[s.server.engine.description]))
        for s in settings
    ]


def fitted(settings: Sequence[Setting], rows: pd.DataFrame) -> dict[str, ServingEngine]:
    """Fit the numbers of the engines to rows, from round numbers; return them by description.

    The error of the speed-up counts fully, that of the time without speculation half. Rows of a
    source and machine weigh less, the more there are.
    """
    keys = [(engine, name) for engine, names in STARTS.items() for name in names]
    first = np.log([STARTS[engine][name] for engine, name in keys])
    count = rows.groupby(["source", "gpu"])["batch"].transform("size").to_numpy(float)
    weight = (count.max() / count) ** 0.25
    measured, plain = (rows[name].to_numpy(float) for name in ("speedup", "ms_per_token_without"))

    def changed(logs: Floats) -> dict[str, ServingEngine]:
        more: dict[str, dict[str, Any]] = {engine: {} for engine in engines()}
        for (engine, name), value in zip(keys, np.exp(logs).tolist(), strict=True):
            lanes = {**engines()[engine].few_rows, "cuda": value}
            more[engine][name] = lanes if name == "few_rows" else value
        more["vllm-2026-01"] = more["vllm"] | more["vllm-2026-01"]
        new = [old.model_copy(update=more[name]) for name, old in engines().items()]
        return {engine.description: engine for engine in new}

    def residuals(logs: Floats) -> Floats:
        seconds = np.array([setting.seconds() for setting in on(settings, changed(logs))])
        ratio = np.log(seconds[:, 0] / seconds[:, 1] / measured) * weight
        absolute = np.log(1e3 * seconds[:, 0] / plain) * weight / 2
        return np.concatenate([ratio, absolute[np.isfinite(absolute)], (logs - first) * HOLD])

    best = least_squares(residuals, first, loss="soft_l1", f_scale=0.05, max_nfev=20)
    return changed(best.x)


def main() -> None:
    """Predict every row, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--leave-out", choices=("source", "gpu"), help="fit to all others")
    parser.add_argument("--fit", action="store_true", help="print the numbers of a fit to all rows")
    parser.add_argument("--write", action="store_true", help=f"write {TRIED_FILE.name}")
    parser.add_argument("--figure", type=Path, metavar="FILE.png")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the worst rows")
    options = parser.parse_args()
    rows = pd.read_csv(options.file)
    found = [setting_of(row) for row in rows.itertuples()]
    unknown = Counter(one for one in found if isinstance(one, str))
    is_known = [not isinstance(one, str) for one in found]
    rows = rows[is_known].reset_index(drop=True)
    settings = [one for one in found if not isinstance(one, str)]
    if options.fit:
        for engine in fitted(settings, rows).values():
            print(engine.model_dump_json(exclude_defaults=True))
    if options.leave_out:
        parts = rows[options.leave_out].astype(str)
        predicted = np.zeros(len(rows))
        for part in parts.unique():
            others = np.flatnonzero(parts != part)
            engines_of_others = fitted([settings[i] for i in others], rows.iloc[others])
            for i in np.flatnonzero(parts == part):
                (moved,) = on([settings[i]], engines_of_others)
                plain, with_drafts = moved.seconds()
                predicted[i] = plain / with_drafts
    else:
        predicted = np.array([plain / drafts for plain, drafts in (s.seconds() for s in settings)])
    measured = rows["speedup"].to_numpy(float)
    table = rows.assign(
        predicted=predicted,
        error=predicted / measured - 1,
        size=np.abs(predicted / measured - 1),
        kind=[s.server.kind for s in settings],
        drafts_by=[s.kind for s in settings],
        batches=[batches_like(s.batch) for s in settings],
        pair=rows["target"] + " + " + rows["draft"].astype(str) + ", " + rows["gpu"],
    )
    print(by(table, ["source", "pair", "batches"]).to_string())
    if options.worst:
        shown = [
            "gpu",
            "target",
            "weights",
            "drafter",
            "draft_length",
            "batch",
            "speedup",
            "predicted",
        ]
        worst = table.sort_values("size", ascending=False).head(options.worst)
        print(worst[shown].to_string(index=False, float_format="%.2f"))
    if options.write:
        write_atomically(TRIED_FILE, tried_table(table).to_csv(float_format="%.3f"))
    if options.figure:
        draw(table, options.figure)
    names = "; ".join(f"{name} ({count})" for name, count in unknown.most_common())
    print(f"not predicted: {unknown.total()} rows{': ' * bool(names)}{names}")
    print(line(measured, predicted))


def by(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the errors of groups of rows."""
    groups = table.groupby(keys, sort=False)
    statistics = {
        "rows": groups.size(),
        "predicted/measured": (1 + groups["error"].mean()).round(2),
        "median": groups["size"].median().round(3),
        "ninth decile": groups["size"].quantile(0.9).round(3),
    }
    return pd.DataFrame(statistics)


def tried_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the errors by kind of machine, drafter and batch, and those of all rows."""
    columns = {"rows": "rows", "median": "median", "ninth decile": "ninth_decile"}
    every = pd.concat([table, table.assign(kind="all", drafts_by="all", batches="all")])
    keys = ["kind", "drafts_by", "batches"]
    errors = by(every, keys)[list(columns)].rename(columns=columns)
    names = every.groupby(keys, sort=False)["gpu"].unique().map(", ".join)
    return errors.assign(machines=names)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw predicted against measured speed-ups by source, with the line of equality."""
    figure = Figure(figsize=(5.2, 4.9), layout="constrained")
    axes = figure.subplots()
    ends = table[["speedup", "predicted"]].to_numpy().min(), table["speedup"].max() * 1.05
    axes.plot(ends, ends, color="black", lw=0.9)
    axes.annotate("equal", (ends[1], ends[1]), ha="right", xytext=(-8, 0), **OFFSET)
    for (source, rows), (colour, marker) in zip(
        table.groupby("source", sort=False), cycle(LOOKS), strict=False
    ):
        name = f"{source} ({len(rows)})"
        look: dict[str, Any] = {"color": colour, "alpha": 0.6, "markersize": 4, "label": name}
        axes.plot(rows["speedup"], rows["predicted"], marker, **look)
    axes.set(xscale="log", yscale="log", xlabel="Measured speed-up", ylabel="Computed speed-up")
    ticks = [0.7, 1, 1.4, 2, 3, 4]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="small", frameon=False)
    write_atomically(path, style.rendered(figure, "png"))


if __name__ == "__main__":
    main()
