"""Servers with OpenAI's completions API, and llama.cpp's own server in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import torch
from transformers import PreTrainedTokenizerBase

from specbench.audit.decoders import Completion
from specbench.errors import UsageError, require
from specbench.words import shown

LONGEST_PROMPT = 4096  # tokens of a text on llama.cpp's server
# Servers filter tokens by default; names that a server does not know are ignored.
UNFILTERED = {"top_p": 1, "top_k": 0, "min_p": 0, "repeat_penalty": 1, "return_token_ids": True}


@dataclass(frozen=True)
class Server:
    """A server at an address such as ``http://localhost:8080/v1``.

    Raises:
        UsageError: It does not answer as OpenAI's API does; the message says what to do.
    """

    url: str
    model: str | None = None  # the server's name of the model; None leaves it out
    timeout: float = 60.0  # seconds per request
    at_once: int = 1  # requests
    # Sends prompts as text by this tokenizer, else as token ids.
    tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def endpoint(self) -> str:
        """The address of completions."""
        base = self.url.rstrip("/")
        return f"{base if base.endswith('/v1') else f'{base}/v1'}/completions"

    def complete(
        self, prompt: Sequence[int], temperature: float, count: int, limit: int, seed: int
    ) -> list[Completion]:
        """Continue a prompt, one request per text; see ``Decoder.complete``."""
        body = UNFILTERED | {
            "prompt": list(prompt) if self.tokenizer is None else _text(self.tokenizer, prompt),
            "temperature": temperature,
            "max_tokens": limit,
        }
        if self.model is not None:
            body["model"] = self.model
        require(
            self.url.startswith(("http://", "https://")),
            f"--url must begin with http:// or https://, not {shown(self.url)!r}",
        )
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self._ask, repeat(body), range(seed, seed + count)))

    def _ask(self, body: Mapping[str, Any], seed: int) -> Completion:
        answer = self._post({**body, "seed": seed})
        try:
            choice = answer["choices"][0]
            text, ended = str(choice["text"]), choice["finish_reason"] == "stop"
            return Completion(text, choice.get("token_ids"), ended)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{self.endpoint} answers {shown(json.dumps(answer))} without choices, text and "
                "finish_reason: give the --url of a server with OpenAI's completions API"
            ) from error

    def _post(self, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        content = b""
        try:
            request = Request(self.endpoint, json.dumps(body).encode(), headers)
            with urlopen(request, timeout=self.timeout) as answer:
                content = answer.read()
            return json.loads(content)
        except HTTPError as error:
            says = shown(error.read().decode(errors="replace"))
            raise UsageError(
                f"{self.endpoint} answers {error.code} ({says}): {_advice(error)}"
            ) from error
        except TimeoutError as error:
            raise UsageError(self._late()) from error
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            says = f"no server answers at {self.endpoint} ({reason}): start it, or correct --url"
            raise UsageError(self._late() if isinstance(reason, TimeoutError) else says) from error
        except ValueError as error:
            found = f" but {shown(repr(content.decode(errors='replace')))}" if content else ""
            raise UsageError(
                f"{self.endpoint} answers no JSON{found}: give the --url of a server with OpenAI's "
                "completions API, such as http://localhost:8080/v1"
            ) from error

    def _late(self) -> str:
        return (
            f"{self.endpoint} did not answer within {self.timeout:g} seconds: raise --timeout, or "
            "lower --batch-size"
        )


def _advice(error: HTTPError) -> str:
    if error.code == 404:
        return "correct --url, or give --model one of the server's models"
    if error.code in (400, 422):
        return "add --text-prompts if the server takes no token ids, or correct --model"
    return "look into the server's log"


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return a prompt as text without its first special token, which servers add themselves."""
    tokens = list(prompt)
    if tokens and tokens[0] == tokenizer.bos_token_id:
        tokens = tokens[1:]
    return str(tokenizer.decode(tokens))


@contextmanager
def llamacpp_server(
    target: Path, draft: Path | None = None, *, draft_length: int, threads: int | None = None
) -> Iterator[Server]:
    """Start llama.cpp's server with GGUF files, and stop it at the end of the context.

    Flash attention and the cache in float16 are off, as in specbench's engine. Without ``draft``
    the server decodes with the target alone.

    Raises:
        UsageError: The library is missing, or cannot read the files.
    """
    from specbench.engine.llamacpp import library

    library()  # refuses a missing or another build
    import xllamacpp as cpp

    params = cpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(target), LONGEST_PROMPT, 1
    params.verbosity, params.warmup = -1, False
    params.flash_attn_type = cpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kinds = [params]
    if draft is not None:
        speculation = params.speculative
        speculation.types = [cpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        speculation.draft.mparams.path, speculation.draft.n_max = str(draft), draft_length
        kinds.append(speculation.draft)
    for each in kinds:
        each.cache_type_k = each.cache_type_v = cpp.ggml_type.GGML_TYPE_F32
        each.cpuparams.n_threads = each.cpuparams_batch.n_threads = (
            threads or torch.get_num_threads()
        )
    try:
        server = cpp.Server(params)
    except RuntimeError as error:
        raise UsageError(f"llama.cpp cannot serve {target} ({error}): give other files") from error
    yield Server(server.listening_address)
    del server
