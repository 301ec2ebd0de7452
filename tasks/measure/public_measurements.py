"""Compare the formulas of ``decide --machine`` with published measurements, row by row.

    python tasks/measure/public_measurements.py FILE.csv --figure FILE.png --worst 10
    python tasks/measure/public_measurements.py FILE.csv --fit               # numbers of engines
    python tasks/measure/public_measurements.py FILE.csv --leave-out person  # fitted to others
    python tasks/measure/public_measurements.py FILE.csv --leave-out person --write

The bound of a row is that of the people other than its own: the owner of its repository, or who
wrote in its thread. A row that is not told has no number in ``decide`` either.

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
from scipy.optimize import least_squares

from specbench.analysis.figures import style
from specbench.analysis.statistics.intervals import Floats
from specbench.files import write_atomically
from specbench.pricing.bounds import ERRORS_FILE, LENGTHS_FILE, Kind, bound, errors
from specbench.pricing.formulas import Workload, most_texts, prompt_seconds, round_seconds
from specbench.pricing.heads import DRAFT_MODEL, HEADS, DraftPasses, drafting_of, kind_called
from specbench.pricing.machines import (
    Deployment,
    ServingEngine,
    devices_in,
    engines,
    known_machine,
)
from specbench.pricing.shapes import (
    Precision,
    ServedModel,
    bits_of,
    known_shape,
    nearest,
    precision_of,
)
from specbench.pricing.source import ANSWER, SHORT

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
NEAR = 1.0, 1.3  # computed speed-ups that are told with little to spare
MARKERS = "os^DvPX<*>"  # of people, beside as many colours
HOLD = 0.3  # pulls the logarithm of a number to where it begins


def seconds_per_token(
    server: Deployment,
    target: ServedModel,
    drafting: DraftPasses | None,
    drafts: int,
    accepted: float,
    batch: int,
    workload: Workload,
) -> float:
    """Return the seconds per token of one text while requests are served.

    Requests that do not fit the memory wait outside of the batch. A round emits ``accepted``
    tokens; without speculation, ``drafting`` is None, it emits one.
    """
    running = max(1.0, min(batch, most_texts(server, target, drafting, workload)))
    seconds, _ = round_seconds(server, target, drafting, drafts, running, workload)
    return seconds / accepted + prompt_seconds(server, target, running, workload)


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

    @property
    def speedup(self) -> float:
        """The computed speed-up."""
        plain, with_drafts = self.seconds()
        return plain / with_drafts


def text(value: object) -> str:
    """Return a cell as a text; empty if it is blank."""
    return "" if value is None or value != value else str(value)


def number(value: object, default: float) -> float:
    """Return a cell as a number, or the default if it is blank."""
    return float(text(value) or default)


def person_of(source: str) -> str:
    """Return who measured: the owner of a repository or card, or the writer of a thread."""
    name = source.removeprefix("huggingface ")
    return name if "#" in name else name.partition("/")[0]


def served(name: str, weights: str, cache: str, size: object) -> ServedModel | None:
    """Return a model with the precision of a row; None if its shape or a format is unknown."""
    shape = known_shape(name)
    if shape is None:
        return None
    forms = map(precision_of, filter(None, (weights, name)))
    precision = next(filter(None, forms), Precision(shape.bits))
    precision = precision._replace(cache=min(bits_of(cache) or 16, 16))
    if text(size):
        bits = 8e9 * float(str(size)) / shape.stored
        precision = Precision(bits, bits, precision.cache)
    return ServedModel(name, shape, precision)


def setting_of(row: Any) -> Setting | str:
    """Return what a row was measured with, or what of it is unknown."""
    engine, machine = nearest(text(row.engine), engines()), known_machine(text(row.gpu))
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
        drafting_of(kind, target) if kind in HEADS else DraftPasses(draft),
        kind,
        round(drafts),
        accepted,
        round(number(row.batch, 1)),
        Workload(number(row.prompt_tokens, SHORT), number(row.new_tokens, ANSWER)),
    )


def line(measured: Floats, predicted: Floats, is_inside: Floats, rows: int) -> str:
    """Return the last line: the errors of the predicted speed-ups, relative to the measured."""
    size, has_sign = np.abs(predicted / measured - 1), np.abs(measured - 1) > DIFFERS
    signs = (predicted > 1) == (measured > 1)
    sign = f"{100 * signs[has_sign].mean():.1f}" if has_sign.any() else "-"
    median, ninth = 100 * np.quantile(size, [0.5, 0.9])
    return (
        f"n {len(size)} of {rows} told, median {median:.1f} %, ninth decile {ninth:.1f} %, "
        f"sign {sign} %, inside the printed bound {100 * is_inside.mean():.1f} %"
    )


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


def predicted_without(settings: Sequence[Setting], rows: pd.DataFrame, column: str) -> Floats:
    """Predict every row by numbers that are fitted to those with another value of the column."""
    parts, predicted = rows[column].astype(str), np.zeros(len(rows))
    for part in parts.unique():
        others = np.flatnonzero(parts != part)
        engines_of_others = fitted([settings[i] for i in others.tolist()], rows.iloc[others])
        for i in np.flatnonzero(parts == part).tolist():
            (moved,) = on([settings[i]], engines_of_others)
            predicted[i] = moved.speedup
    return predicted


def main() -> None:
    """Predict every row, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--leave-out", choices=("person", "gpu"), help="fit to all others")
    parser.add_argument("--fit", action="store_true", help="print the numbers of a fit to all rows")
    parser.add_argument("--write", action="store_true", help="write the tables of `decide`")
    parser.add_argument("--figure", type=Path, metavar="FILE.png")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="print the worst rows")
    options = parser.parse_args()
    rows = pd.read_csv(options.file)
    rows["person"] = rows["source"].map(person_of)
    number_of_rows, read = len(rows), [setting_of(row) for row in rows.itertuples()]
    unknown = Counter(setting for setting in read if isinstance(setting, str))
    if options.write:
        write_atomically(LENGTHS_FILE, length_table(rows).to_csv(index=False, float_format="%.2f"))
    rows = rows[[not isinstance(setting, str) for setting in read]].reset_index(drop=True)
    settings = [setting for setting in read if not isinstance(setting, str)]
    if options.fit:
        for engine in fitted(settings, rows).values():
            print(engine.model_dump_json(exclude_defaults=True))
    predicted = (
        predicted_without(settings, rows, options.leave_out)
        if options.leave_out
        else np.array([setting.speedup for setting in settings])
    )
    kinds = [Kind.of(s.server, s.target, s.kind) for s in settings]
    table = rows.assign(
        **pd.DataFrame(kinds, columns=[*Kind._fields]).add_prefix("of_"),
        predicted=predicted,
        error=np.log(predicted / rows["speedup"]),
        size=np.abs(predicted / rows["speedup"] - 1),
    )
    if options.write:
        write_atomically(ERRORS_FILE, error_table(table).to_csv(index=False, float_format="%.3f"))
        errors.cache_clear()
    bounds = [bound(kind, person) for kind, person in zip(kinds, rows["person"], strict=True)]
    table["factor"] = [b.factor for b in bounds]
    table["inside"] = table["error"].abs() <= np.log(table["factor"])
    is_told = np.array([not b.is_open for b in bounds])
    print(by(table, ["person", "of_engine", "of_layers", "of_chip", "of_drafter"]).to_string())
    if options.worst:
        columns = ["gpu", "target", "weights", "drafter", "draft_length", "batch", "speedup"]
        columns += ["predicted"]
        worst = table.sort_values("size", ascending=False).head(options.worst)
        print(worst[columns].to_string(index=False, float_format="%.2f"))
    if options.figure:
        draw(table[is_told], options.figure)
    print(cost_of_choice(table))
    untold_kinds = (b.kind for b in bounds if b.is_open)
    untold = Counter(f"{k.engine} on {k.chip}, {k.layers}" for k in untold_kinds)
    for reason, counts in (("not computed", unknown), ("no number is told", untold)):
        names = "; ".join(f"{name} ({count})" for name, count in counts.most_common())
        print(f"{reason}: {counts.total()} rows{': ' * bool(names)}{names}")
    told = table[is_told]
    print(small_gains(told))
    of_people = told.groupby("person")["inside"].mean()
    print(
        f"{len(of_people)} people, each once: inside {100 * of_people.mean():.1f} %, "
        f"{(of_people >= 0.8).sum()} with eight of ten rows inside"
    )
    measured, predicted, inside = told[["speedup", "predicted", "inside"]].to_numpy(float).T
    print(line(measured, predicted, inside, number_of_rows))


def small_gains(told: pd.DataFrame) -> str:
    """Say how often a computed speed-up a little above 1 was below 1 when measured."""
    near = told[told["predicted"].between(*NEAR)]
    computed = "computed at {:g} to {:g}".format(*NEAR)
    if near.empty:
        return f"no row is {computed}"
    people = near.groupby("person", sort=False)["speedup"]
    below = ", ".join(f"{name} {(rows < 1).sum()} of {len(rows)}" for name, rows in people)
    return f"{len(near)} rows {computed}: {(near['speedup'] < 1).sum()} were below 1 ({below})"


def by(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the errors of groups of rows."""
    groups = table.groupby(keys, sort=False)
    statistics = {
        "rows": groups.size(),
        "predicted/measured": np.exp(groups["error"].mean()).round(2),
        "median": groups["size"].median().round(3),
        "ninth decile": groups["size"].quantile(0.9).round(3),
        "bound": groups["factor"].max().round(2),
        "inside": groups["inside"].mean().round(2),
    }
    return pd.DataFrame(statistics)


def error_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the logarithmic errors of each person and kind."""
    kind = {f"of_{name}": name for name in Kind._fields}
    groups = table.groupby(["person", *kind], sort=False)["error"]
    statistics = {
        "rows": groups.size(),
        "median": groups.apply(lambda e: e.abs().median()),
        "ninth_decile": groups.apply(lambda e: e.abs().quantile(0.9)),
        "rms": groups.apply(lambda e: np.sqrt((e**2).mean())),
    }
    return pd.DataFrame(statistics).reset_index().rename(columns=kind)


def length_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the tokens per round that were measured, by drafter, source and workload."""
    rows = rows.assign(drafter=rows["drafter"].map(kind_called))
    rows["workload"] = rows["workload"].fillna("unnamed texts")
    groups = rows.dropna(subset=["accepted_length"]).groupby(["drafter", "source", "workload"])
    drafts = groups["draft_length"].agg(["min", "max"]).astype(int)
    lengths = groups["accepted_length"].agg(["size", "median", "min", "max"])
    lengths.columns = ["rows", "median", "least", "most"]
    lengths["drafts"] = [
        f"{a}" if a == b else f"{a} to {b}" for a, b in drafts.itertuples(index=False)
    ]
    return lengths.reset_index()


def cost_of_choice(table: pd.DataFrame) -> str:
    """Say what the computed best N loses against the measured one, over sweeps of N."""
    keys = ["source", "gpu", "target", "draft", "weights", "kv", "workload", "batch"]
    losses = [
        1 - sweep["speedup"].loc[sweep["predicted"].idxmax()] / sweep["speedup"].max()
        for _, sweep in table.groupby(keys, dropna=False)
        if sweep["draft_length"].nunique() > 2
    ]
    if not losses:
        return "no sweep of three N"
    median, ninth, most = 100 * np.quantile(losses, [0.5, 0.9, 1])
    return (
        f"the chosen N loses {median:.1f} % in the median, {ninth:.1f} % in nine of ten and "
        f"{most:.1f} % at most in {len(losses)} sweeps"
    )


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw predicted against measured speed-ups by source, with the line of equality."""
    figure = Figure(figsize=(5.2, 4.9), layout="constrained")
    axes = figure.subplots()
    ends = table[["speedup", "predicted"]].to_numpy().min(), table["speedup"].max() * 1.05
    axes.plot(ends, ends, color="black", lw=0.9)
    axes.text(0.93 * ends[1], ends[1], "equal", ha="right", fontsize="small")
    people = table.groupby("person", sort=False)
    for (person, rows), marker in zip(people, cycle(MARKERS), strict=False):
        look: dict[str, Any] = {"alpha": 0.6, "markersize": 4, "label": f"{person} ({len(rows)})"}
        axes.plot(rows["speedup"], rows["predicted"], marker, **look)
    axes.set(xscale="log", yscale="log", xlabel="Measured speed-up", ylabel="Computed speed-up")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0.7, 1, 1.4, 2, 3, 4])
        axis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="small", frameon=False)
    write_atomically(path, style.rendered(figure, "png"))


if __name__ == "__main__":
    main()
