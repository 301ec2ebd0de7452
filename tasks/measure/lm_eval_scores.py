"""Score the texts of a run with lm-evaluation-harness, text by text, or let it decode itself.

    python tasks/measure/lm_eval_scores.py RUN TASK --data FOLDER [--model FOLDER]

It needs an environment with ``lm_eval``; specbench need not be there. RUN holds one task (gsm8k,
humaneval or mbpp), decoded with ``--temperature 0``; FOLDER is that of ``--data``. With --model,
the harness also decodes the first 100 prompts, worded and with worked examples as it has them, but
for those of more than 4,000 characters: it would pad all others to their length.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import evaluate


class CodeEval:
    """``code_eval`` without its download: each program runs in a process of its own."""

    def compute(self, references, predictions, k):
        passed = [
            self.passes(f"{program}\n{test}")
            for test, programs in zip(references, predictions, strict=True)
            for program in programs
        ]
        return {"pass@1": sum(passed) / len(passed)}, {}

    def passes(self, code):
        try:
            return not subprocess.run(
                [sys.executable, "-I", "-c", code], capture_output=True, timeout=5
            ).returncode
        except subprocess.TimeoutExpired:
            return False


evaluate.load = lambda name: CodeEval()

import lm_eval.tasks  # noqa: E402  # it loads code_eval at import
from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.task import ConfigurableTask  # noqa: E402
from lm_eval.tasks._yaml_loader import load_yaml  # noqa: E402

FILES = {
    "gsm8k": ("gsm8k/gsm8k.yaml", "test.jsonl"),
    "humaneval": ("humaneval/humaneval_instruct.yaml", "test.jsonl.gz"),
    "mbpp": ("mbpp/mbpp_instruct.yaml", "test.jsonl"),
}
METRICS = {"strict-match": "accuracy", "flexible-extract": "accuracy-flexible"}
PASS = "pass@1"
LONGEST = 4000  # characters of a prompt with its tests and answer
QUESTION = re.compile(r"Question: (.*?)\n\nReason step by step", re.DOTALL)


def task_of(name, data, test=None):
    """Return the harness's task, which reads local files instead of the hub."""
    definition, file = FILES[name]
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / definition, resolve_func=True)
    files = {"test": str(test or data / name / file)}
    if name == "gsm8k":
        files["train"] = str(data / name / "train.jsonl")
        config["generation_kwargs"]["max_gen_toks"] = 512  # its own 256 cut some answers
    config = {key: value for key, value in config.items() if key not in ("dataset_name", "tag")}
    return ConfigurableTask(
        config={**config, "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
    )


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def documents(run, name, task):
    """Return the run's samples, in the order of the examples, each with the harness's document."""
    docs = task.test_docs()
    prompts = {example["id"]: example["prompt"] for example in read(run / "examples.jsonl")}
    by_key = {
        str(doc["question"].strip() if name == "gsm8k" else doc["task_id"]): doc for doc in docs
    }
    samples = sorted(read(run / "samples.jsonl"), key=lambda sample: sample["place"])
    keys = [
        QUESTION.search(prompts[s["sample_id"]])[1].strip() if name == "gsm8k" else s["sample_id"]
        for s in samples
    ]
    return [(sample, by_key[key]) for sample, key in zip(samples, keys, strict=True)]


def answer(name, text):
    """Return an answer as the harness expects it: it opens the block of code itself."""
    if name == "gsm8k":
        return text
    _, fence, rest = text.partition("```" if name == "mbpp" else "```python\n")
    return rest if fence else text


def scores_of(task, texts, docs):
    """Return the harness's scores of texts for each of its filters, by our name of the metric."""
    instances = []
    for index, (text, doc) in enumerate(zip(texts, docs, strict=True)):
        instance = Instance(
            request_type="generate_until", doc=doc, arguments=("", {}), idx=0, doc_id=index
        )
        instance.resps = [text]
        instances.append(instance)
    task._instances = instances
    task.apply_filters()
    scores = {}
    for key in instances[0].filtered_resps:
        scores[METRICS.get(key, PASS)] = [
            float(value)
            for instance in instances
            for value in task.process_results(instance.doc, [instance.filtered_resps[key]]).values()
        ]
    return scores


def same_texts(name, task, pairs):
    """Print how many scores of the same texts differ, and each of these."""
    samples, docs = zip(*pairs, strict=True)
    texts = [answer(name, sample["text"]) for sample in samples]
    for metric, theirs in scores_of(task, texts, docs).items():
        ours = [sample["scores"][metric] for sample in samples]
        print(f"{metric}: {sum(ours) / len(ours):.3f}, lm_eval {sum(theirs) / len(theirs):.3f}")
        for sample, mine, other in zip(samples, ours, theirs, strict=True):
            if mine != other:
                end = sample["text"][-80:]
                print(f"  {sample['sample_id']}: {mine}, lm_eval {other}: ...{end!r}")


def own_texts(name, data, pairs, model):
    """Let the harness decode the same questions by its own prompts; print paired differences."""
    pairs = [(sample, doc) for sample, doc in pairs if len(json.dumps(doc)) <= LONGEST]
    test = Path(f"lm_eval-{name}.jsonl")
    test.write_text("".join(json.dumps(doc) + "\n" for _, doc in pairs), encoding="utf-8")
    task = task_of(name, data, test.resolve())
    results = simple_evaluate(
        model="hf",
        model_args={"pretrained": model, "dtype": "bfloat16"},
        tasks=[task],
        batch_size=50,
        device="cpu",
        apply_chat_template=True,
        fewshot_as_multiturn=name != "humaneval",
        confirm_run_unsafe_code=True,
    )
    (rows,) = results["samples"].values()
    by_document = {row["doc_id"]: row["resps"][0][0] for row in rows}
    texts = [by_document[index] for index in range(len(pairs))]
    test.with_suffix(".txt").write_text(json.dumps(texts), encoding="utf-8")
    if name == "mbpp":  # the harness takes the "def" at the start of a text for a language
        texts = ["\n" + text for text in texts]
    for metric, theirs in scores_of(task, texts, [doc for _, doc in pairs]).items():
        ours = [sample["scores"][metric] for sample, _ in pairs]
        deltas = [mine - other for mine, other in zip(ours, theirs, strict=True)]
        n, mean = len(deltas), sum(deltas) / len(deltas)
        half = 1.96 * (sum((delta - mean) ** 2 for delta in deltas) / (n - 1) / n) ** 0.5
        print(
            f"{metric}: {sum(ours) / n:.3f} minus that of lm_eval's own texts "
            f"{sum(theirs) / n:.3f}: {mean:+.3f} +- {half:.3f} (n = {n})"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("task", choices=FILES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--skip", type=int, default=0, help="prompts that are decoded already")
    options = parser.parse_args()
    task = task_of(options.task, options.data)
    pairs = documents(options.run, options.task, task)
    same_texts(options.task, task, pairs)
    if options.model:
        own_texts(options.task, options.data, pairs[options.skip : 100], options.model)


if __name__ == "__main__":
    main()
