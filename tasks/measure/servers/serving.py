"""Start and stop real servers of a bundled pair: vLLM's on the CPU, and llama.cpp's.

    python tasks/measure/servers/serving.py vllm [--pair mini] [--drafts drawn] [--unrepaired]
    python tasks/measure/servers/serving.py llamacpp [--pair mini] [--drafts drawn] [--threads 1]

serves until Ctrl-C. Both listen on a free port of this machine only, compute in float32 with one
thread, and take several requests at once. Prompts are not cached between requests. llama.cpp also
serves the GGUF files of a pair, such as qwen2.5-coder-gguf, from the folder of ``--models``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from specbench.engine.pairs import get_pair, in_folder
from specbench.serving.arm import VARIABLE

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from llamacpp_server import exported_files, llamacpp_server  # noqa: E402

PYTHON = Path(os.environ.get("SPECBENCH_VLLM_PYTHON", HERE.parents[2] / ".servers/bin/python"))
DRAFT_LENGTH, TEXTS = 5, 8
START_SECONDS, STOP_SECONDS = 900, 30
PLAIN, GREEDY, DRAWN, NGRAM = "plain", "greedy", "drawn", "ngram"
#: What drafts, by name; vLLM's and llama.cpp's own defaults are greedy drafts.
DRAFTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    GREEDY: {"method": "draft_model", "draft_sample_method": "greedy"},
    DRAWN: {"method": "draft_model", "draft_sample_method": "probabilistic"},
    NGRAM: {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3},
}
# vLLM looks for its version under another name than that of its package for CPUs.
NAMED, REPAIRED = HERE / "named", [HERE / "repaired", HERE.parents[2]]
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "",  # compiling its 4,000 modules takes longer than starting it
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork",  # imports them once
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # n-grams: a second thread would be waited for in every step
}
OPTIONS = [
    *("--host", "127.0.0.1", "--dtype", "float32", "--max-num-seqs", "16"),
    *("--enforce-eager", "--generation-config", "vllm", "--no-enable-prefix-caching"),
    "--enable-per-request-metrics",
    # On a CPU, vLLM 0.32 fails if it reads the prompt of a request with a seed in parts.
    *("--max-num-batched-tokens", "16384"),
]


@contextmanager
def vllm_server(
    pair: str,
    drafts: str = PLAIN,
    *,
    repaired: bool = True,
    rule: str = "",
    most_drafts: int = 0,
    python: Path = PYTHON,
) -> Iterator[str]:
    """Start vLLM with a bundled pair, yield its address and stop it.

    Args:
        pair: Name of the pair, which is also the name of the model.
        drafts: One of ``DRAFTS``.
        repaired: Whether the temperatures of drafts are repaired, by the plugin in ``repaired/``.
        rule: A rule of specbench that verifies, as ``specbench serve`` starts it; else vLLM's own.
        most_drafts: If given, an address that ends in /n3 has three drafts a round (``switched/``).
        python: Of vLLM's environment; another one than the default is for a GPU, with CUDA graphs.

    Raises:
        RuntimeError: vLLM is not installed, or does not start; the message ends with its log.
    """
    if not python.exists():
        raise RuntimeError(f"there is no {python}: run make servers, or set SPECBENCH_VLLM_PYTHON")
    spec, port = get_pair(pair), free_port()
    options = [*OPTIONS, "--port", f"{port}", "--served-model-name", pair]
    if speculation := DRAFTS[drafts]:
        speculation = speculation | {"num_speculative_tokens": most_drafts or DRAFT_LENGTH}
        if drafts != NGRAM:
            speculation |= {"model": spec.draft}
        if most_drafts:
            speculation["num_speculative_tokens_per_batch_size"] = [[1, 16, most_drafts]]
            options += ["--middleware", "drafts_switch.Switch"]
        options += ["--speculative-config", json.dumps(speculation)]
        options += ["--per-request-spec-decode-metrics", "detailed"]
    named = [NAMED] if python == PYTHON else []
    if not named:
        options.remove("--enforce-eager")
    switched = [HERE / "switched"] if most_drafts else []
    paths = os.pathsep.join(map(str, [*named, *switched, *(REPAIRED if repaired else ())]))
    chosen = {VARIABLE: rule, "VLLM_PLUGINS": "specbench"} if rule else {}
    with TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        if most_drafts:
            chosen["SPECBENCH_DRAFTS_FILE"] = f"{folder}/drafts"
            (Path(folder) / "drafts").touch()
        process = subprocess.Popen(
            [python.with_name("vllm"), "serve", spec.target, *options],
            env={**os.environ, **ENVIRONMENT, **chosen, "PYTHONPATH": paths},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _answers(f"{url}/health", process):
                raise RuntimeError(f"vLLM does not start: {Path(log.name).read_text()[-4000:]}")
            yield url
        finally:
            _stop(process)


@contextmanager
def llamacpp(
    pair: str, drafts: str = PLAIN, models: Path | None = None, threads: int = 1
) -> Iterator[str]:
    """Start llama.cpp's server with a pair in this process and yield its address."""
    spec = get_pair(pair)
    if models is not None:
        spec = in_folder(spec, models)
    with TemporaryDirectory() as folder:
        files = [Path(model) for model in spec.models.values()]
        if not all(file.suffix == ".gguf" for file in files):
            files = exported_files(pair, Path(folder))
        server = llamacpp_server(
            *files[: 1 if drafts == PLAIN else 2],
            draft_length=DRAFT_LENGTH,
            threads=threads,
            texts=TEXTS,
            drawn=drafts == DRAWN,
        )
        with server as started:
            yield started.url


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server answers; return False if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urlopen(url, timeout=5).close()
        except (URLError, OSError):
            time.sleep(1)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and the processes that it started, which share its session."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "llamacpp"])
    parser.add_argument("--pair", default="mini")
    parser.add_argument("--drafts", choices=[*DRAFTS], default=PLAIN)
    parser.add_argument("--models", type=Path, help="folder with the pair's GGUF files")
    parser.add_argument("--threads", type=int, default=1, help="threads of llama.cpp")
    parser.add_argument("--unrepaired", action="store_true", help="vLLM as it is shipped")
    options = parser.parse_args()
    if options.engine == "vllm":
        server = vllm_server(options.pair, options.drafts, repaired=not options.unrepaired)
    else:
        server = llamacpp(options.pair, options.drafts, options.models, options.threads)
    # Both end the context, which stops the server.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt), server as url:
        print(url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
