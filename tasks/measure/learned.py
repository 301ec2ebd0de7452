"""Where does a head rely on the target? Its weight by kind of token and by token.

    python tasks/measure/learned.py HEAD --output FOLDER [--limit TEXTS]

HEAD is the folder of a trained head. Held-out texts of its task are sampled with it, from the
distribution used in training. A head sets w before the token is drawn and never sees the token: the
weight of a token is the w it was drawn with. FOLDER gets ``weights-head.csv`` and its figure. Rows
are sorted by falling mean weight, and their 95 % intervals are over texts. The effective weight is
a mean weighted by TV(p, q): where the models agree, w has no effect.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from transformers import PreTrainedTokenizerBase

from specbench.analysis.figures import style
from specbench.analysis.statistics.intervals import mean_interval
from specbench.config import Filters
from specbench.decoding.heads.head import Head, load_head
from specbench.decoding.heads.registry import read_description
from specbench.decoding.sampling import Sampling
from specbench.engine.loading import load_pair
from specbench.engine.pair import LoadedPair
from specbench.engine.pairs import Loading, get_pair
from specbench.tasks.task import load_task
from specbench.training.material import split_material
from specbench.training.rollouts import PLAIN, RolloutRequest, roll_out
from specbench.training.verifier import HELD_OUT_SEED

KINDS = {
    "number": "#332288",
    "operator": "#CC6677",
    "punctuation": "#882255",
    "capitalised word": "#117733",
    "lower-case word": "#44AA99",
    "word piece": "#999933",
    "white space": "#88CCEE",
    "end of text": "#AA4499",
}
NUMBER, OPERATOR, PUNCTUATION, CAPITALISED, LOWER_CASE, PIECE, SPACE, END = KINDS
QUANTILES = {f"weight_q{percent:02}": percent / 100 for percent in (5, 25, 50, 75, 95)}
COLUMNS = ["n", "texts", "mean_weight", "ci_low", "ci_high", *QUANTILES, "mean_tv"]
RANGES, PER_RANGE, FEWEST = 12, 2, 10  # of w; tokens of each; occurrences of a token
OPERATORS = set("+-*/=<>%^|&~×÷")
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})


def kind_of(text: str, before: str = "") -> str:
    """Return the kind of a token; ``text`` includes its leading space, ``before`` precedes it."""
    core = text.strip()
    if not core:
        return SPACE
    if core[0].isdigit():
        return NUMBER
    if core[0].isalpha():
        if text[0].isalpha() and before[-1:].isalpha():
            return PIECE
        return CAPITALISED if core[0].isupper() else LOWER_CASE
    return OPERATOR if set(core) <= OPERATORS else PUNCTUATION


def readable(text: str) -> str:
    """Make white space visible and escape characters that cannot be printed."""
    visible = text.translate(VISIBLE)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in visible)


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text of a token in mid-sentence, including a leading space."""
    anchor = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    alone, after = str(tokenizer.decode(anchor)), str(tokenizer.decode([*anchor, token]))
    text = after.removeprefix(alone) if after.startswith(alone) else str(tokenizer.decode([token]))
    if not text or "\N{REPLACEMENT CHARACTER}" in text:  # part of a character
        return str(tokenizer.convert_ids_to_tokens(token))
    return text


@torch.no_grad()
def sample_tokens(
    pair: LoadedPair,
    head: Head,
    prompts: list[list[int]],
    max_new_tokens: int,
    seed: int,
    stop: Sequence[str] = (),
    sampling: Sampling = PLAIN,
) -> pd.DataFrame:
    """Sample a text per prompt; return a row per token: text, name, kind, weight and TV(p, q)."""
    generator = torch.Generator(pair.target.device).manual_seed(seed)
    part = RolloutRequest([head], prompts, generator)
    [rollouts] = roll_out(pair, [part], max_new_tokens, stop, sampling)
    order = rollouts.row.argsort(stable=True)  # roll-outs are ordered by step
    columns = (rollouts.row, rollouts.token, head(rollouts.inputs), rollouts.tv)
    text, token, weight, tv = (column[order].cpu().numpy() for column in columns)
    texts = {i: token_text(pair.tokenizer, i) for i in {*token.tolist()}}
    rows = pd.DataFrame({"text": text, "token": token, "weight": weight, "tv": tv}, dtype=float)
    rows["shown"] = rows["token"].map(texts)
    rows["before"] = rows.groupby("text")["shown"].shift(fill_value="")
    kinds = [
        END if token in pair.eos_ids else kind_of(shown, before)
        for token, shown, before in zip(token, rows["shown"], rows["before"], strict=True)
    ]
    return rows.assign(name=rows["shown"].map(readable), kind=kinds)


def tabulate(tokens: pd.DataFrame) -> pd.DataFrame:
    """Return a row for all tokens, then one per kind, then one per token and kind."""
    levels = {
        "all": tokens.assign(name="all tokens", kind=""),
        "kind": tokens.assign(name=tokens["kind"]),
        "token": tokens,
    }
    tables = []
    for level, of_level in levels.items():
        rows = []
        for (name, kind), group in of_level.groupby(["name", "kind"]):
            weight, tv = group["weight"], group["tv"]
            mean = mean_interval(weight.to_numpy(), group["text"])
            quantiles = weight.quantile([*QUANTILES.values()])
            effective = np.average(weight, weights=tv) if tv.any() else np.nan
            figures = (len(group), mean.n, *mean[:3], *quantiles, tv.mean(), effective)
            rows.append((level, name, kind, *figures))
        table = pd.DataFrame(rows, columns=["level", "name", "kind", *COLUMNS, "effective_weight"])
        tables.append(table.sort_values("mean_weight", ascending=False, kind="stable"))
    return pd.concat(tables, ignore_index=True)


@style.paged
def draw(table: pd.DataFrame, heading: str) -> style.Drawing:
    """Draw w by kind of token, and the tokens on which the models disagree most, n TV(p, q).

    Left: boxes span the quartiles, whiskers the 5 % and 95 % quantiles; points are means, hollow
    ones weighted by TV. Right: two tokens of each twelfth of the range of w, with intervals.
    """
    frequent = table[table["n"] >= FEWEST]
    kinds, words = (frequent[frequent["level"] == level] for level in ("kind", "token"))
    disagreement = (words["n"] * words["mean_tv"]).sort_values(ascending=False, kind="stable")
    part = (RANGES * words["mean_weight"]).astype(int).clip(upper=RANGES - 1)
    words = words.loc[words.loc[disagreement.index].groupby(part).head(PER_RANGE).index]
    words = words.sort_values("mean_weight", ascending=False, kind="stable")
    figure, ((left, right),) = style.panels(1, 2, height=3.6, sharex=True)
    for height, (_, row) in enumerate(kinds.iterrows()):
        ends = zip(("whislo", "q1", "med", "q3", "whishi"), row[[*QUANTILES]], strict=True)
        line = {"color": KINDS[row["kind"]]}
        left.bxp(
            [dict(ends)], [height], widths=0.6, orientation="horizontal", showfliers=False,
            manage_ticks=False, boxprops=line, medianprops=line, whiskerprops=line, capprops=line,
        )  # fmt: skip
        hollow = {"marker": "D", "markerfacecolor": "white", "markersize": style.scaled(3.4)}
        left.plot(row["effective_weight"], height, zorder=5, **line, **hollow)
    _draw_means(left, kinds, [f"{row.kind}\nn = {row.n:,}" for row in kinds.itertuples()])
    _draw_means(right, words, [f"{row.name} ({row.n:,})" for row in words.itertuples(index=False)])
    for axes, title in ((left, "Kinds of token"), (right, "Single tokens")):
        axes.set_title(title)
        axes.axvline(
            table["mean_weight"].iloc[0], color=style.GREY, lw=style.scaled(0.8), ls="--", zorder=1
        )
        axes.set_xlabel("Weight on the target w")
        axes.set_xlim(-0.06, 1.06)
        axes.grid(axis="y", visible=False)
    figure.suptitle(heading, fontsize=style.scaled(8.5), parse_math=False)
    return style.Drawing(figure, table)


def _draw_means(axes: Axes, rows: pd.DataFrame, labels: list[str]) -> None:
    heights = np.arange(len(rows))
    rows = rows.assign(w=rows["mean_weight"], w_low=rows["ci_low"], w_high=rows["ci_high"])
    for kind, group in rows.assign(height=heights).groupby("kind", sort=False):
        mark: dict[str, Any] = {"color": KINDS[str(kind)], "marker": "o"}
        style.points(axes, group, "w", "height", markersize=style.scaled(4), zorder=4, **mark)
    axes.set_yticks(heights, labels, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)


def main() -> None:
    """Sample the texts and write the table and the figure."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("head", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=200)
    options = parser.parse_args()
    about = read_description(options.head)
    pair, task = load_pair(get_pair(about["pair"]), Loading()), load_task(about["task"])
    head = load_head(options.head, pair)
    recipe = about["recipe"]
    temperature = np.ravel(recipe.get("temperature", 1.0))[0]  # earlier heads could have several
    filters = {name: recipe.get(name) for name in Filters.model_fields}
    sampling = Sampling(temperature=float(temperature), **filters)
    longest = recipe["max_prompt_tokens"]
    material = split_material(pair, task, "held-out", options.limit, 0, longest)
    limit, seed = task.max_new_tokens, HELD_OUT_SEED
    tokens = sample_tokens(pair, head, material.prompts, limit, seed, task.stop, sampling)
    columns = {"pair": pair.name, "task": task.name, "trained_on": task.name}
    table = tabulate(tokens)
    for number, (name, value) in enumerate((columns | {"head_kind": head.kind}).items()):
        table.insert(number, name, value)
    drawing = draw(table, f"{task.name} ({pair.name}), {head.kind} head")
    for path in style.save(drawing, options.output, "weights-head"):
        print(path)


if __name__ == "__main__":
    main()
