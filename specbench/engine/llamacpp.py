"""Models in GGUF files, run by llama.cpp through its C interface.

A model here has the interface of ``pair.Model``, so the decoding loop does not know it. A row of
the batch is a sequence of llama.cpp's cache; tokens at positions that were written before replace
what follows them, which takes a rejected draft back.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig

from specbench.engine.cache import cache_bytes, capacity_for, context_length, require_context
from specbench.engine.gguf import FINGERPRINT_KEY
from specbench.engine.llamacpp_library import TokenBatch, last_error, library, load_file
from specbench.engine.pair import Library
from specbench.engine.pairs import shards, stored_bytes
from specbench.engine.sources import OTHER_MODEL
from specbench.engine.vocabulary import DraftTokens
from specbench.errors import RunError

FLOAT32 = 0  # ggml's number of the type
READ_AT_ONCE = 512  # tokens of a prompt in one call
MOST_TOKENS = 64  # of a text in one round
FINGERPRINT_BYTES = 1 << 20  # from the end of a file, where weights are


class LoadedFile:
    """The weights of a file, which llama.cpp frees with the last model that reads them."""

    def __init__(self, path: Path) -> None:
        self.pointer = load_file(path)
        # A finalizer runs before the modules are gone that the library calls.
        finalize(self, library().llama_model_free, self.pointer)


class LlamaCppModel:
    """A model in a GGUF file; see ``Model`` for the methods. All outputs are float32 on the CPU."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self,
        path: Path,
        config: PretrainedConfig,
        vocabulary: int,
        present: DraftTokens | None = None,
        loaded: LoadedFile | None = None,
    ) -> None:
        self.path, self.config, self.vocabulary, self.present = path, config, vocabulary, present
        self._other: LlamaCppModel | None = None  # see ``plain``
        self.hidden_size: int = config.hidden_size
        self.context = context_length(config)
        self.rows = self.capacity = self._size = 0
        self._cached: list[list[int]] = []  # the tokens of each row in the cache
        self._prompts: dict[int, tuple[list[int], float]] = {}  # see ``SlotCache.prompts``
        self.saved_seconds = 0.0
        self._batch = TokenBatch()
        self._free: Callable[[], object] = lambda: None
        self._library, self._context = library(), None
        self._loaded = loaded or LoadedFile(path)
        tokens = self._library.llama_model_get_vocab(self._loaded.pointer)
        self.layers: Sequence[int] = ()
        self._tokens: int = self._library.llama_vocab_n_tokens(tokens)

    def fingerprint(self) -> str:
        """The fingerprint of the weights before their export, else a hash of the file's end."""
        stored = self.metadata(FINGERPRINT_KEY)
        if stored is not None:
            return stored
        digest = hashlib.blake2b(digest_size=8)
        for path in shards(self.path):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - FINGERPRINT_BYTES))
                digest.update(file.read())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return the file's name, size and quantisation, for the record of a run."""
        from gguf import LlamaFileType

        number = int(self.metadata("general.file_type") or -1)
        names = {member.value: member.name for member in LlamaFileType}
        kind = names.get(number, "unknown").removeprefix("MOSTLY_").removeprefix("ALL_")
        return {"file": self.path.name, "bytes": self.weight_bytes(), "type": kind}

    def metadata(self, key: str) -> str | None:
        """Return a text in the file's metadata; None if it has none by this name."""
        get, name = self._library.llama_model_meta_val_str, key.encode()
        size = get(self._loaded.pointer, name, None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        get(self._loaded.pointer, name, buffer, len(buffer))
        return buffer.value.decode()

    def reserve(self, rows: int, capacity: int, at_once: int = MOST_TOKENS) -> int:
        """Allocate a cache; see ``Model.reserve``. A pass reads up to ``at_once`` of each row."""
        size = max(READ_AT_ONCE, rows * at_once)  # tokens of a pass
        if self.rows != rows or self.capacity < capacity or self._size < size:
            self.drop_cache()
            self.rows, self.capacity = rows, capacity_for(capacity)
            params = self._library.llama_context_default_params()
            params.n_ctx, params.n_seq_max = rows * self.capacity, rows
            params.n_batch = params.n_ubatch = size
            params.n_threads = params.n_threads_batch = torch.get_num_threads()
            # Flash attention rounds to float16, and so does the default cache.
            params.flash_attn_type, params.type_k, params.type_v = 0, FLOAT32, FLOAT32
            self._cached, self._prompts = [[] for _ in range(rows)], {}
            self._context = self._library.llama_init_from_model(self._loaded.pointer, params)
            if not self._context:
                size_of_texts = f"{rows} texts of {self.capacity} tokens"
                self.rows = self.capacity = 0  # so that nothing decodes without a cache
                raise RunError(
                    f"llama.cpp cannot allocate {size_of_texts} ({last_error()}): lower "
                    "--batch-size or --max-new-tokens"
                )
            self._size = params.n_batch
            self._batch = self._library.llama_batch_init(self._size, 0, 1)
            self._free = finalize(self, _free, self._library, self._batch, self._context)
        return self.capacity

    def drop_cache(self) -> None:
        """Free the cache."""
        self._free()
        self._context, self.rows, self.capacity = None, 0, 0

    def forget_prompts(self) -> None:
        """Read the next prompts even if the cache has them."""
        self._prompts.clear()

    def prefill(self, prompt: Tensor, row: int = 0) -> None:
        """Read all tokens of a prompt ``[T]`` except the last into a row that has others."""
        ids, began = self._inputs(prompt[:-1]).tolist(), time.perf_counter()
        read, seconds = self._prompts.get(row, ([], 0.0))
        has_all = ids == read == self._cached[row][: len(ids)]
        self.saved_seconds = seconds if has_all else 0.0
        self._remove(row, len(ids) if has_all else 0)
        self._cached[row] = ids if has_all else []
        if has_all:
            return
        for source, (others, seconds) in self._prompts.items():
            if ids and ids == others == self._cached[source][: len(ids)]:  # in another row
                self.copy_row(source, row)
                self._remove(row, len(ids))
                self._cached[row], self._prompts[row] = ids, (others, seconds)
                self.saved_seconds = seconds
                return
        for start in range(0, len(ids), READ_AT_ONCE):
            part = ids[start : start + READ_AT_ONCE]
            self._decode([(token, start + i, row) for i, token in enumerate(part)], outputs=False)
        self._cached[row] = ids
        self._prompts[row] = ([*ids], time.perf_counter() - began)

    def copy_row(self, source: int, row: int) -> None:
        """Copy the cache of a row to another row."""
        self._remove(row, 0)
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_seq_cp(memory, source, row, -1, -1)
        self._cached[row] = [*self._cached[source]]
        self._prompts.pop(row, None)

    def read(
        self,
        tokens: Tensor,
        at: Tensor,
        kv_length: int | None = None,
        last: bool = False,
        rows: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens`` at positions ``at``, both ``[B, k]``; see ``Model.read``.

        With ``last``, tokens before the last one that the cache has already are not read again: a
        draft has read the last but one, unless the round before accepted all drafts. ``rows`` of
        the cache are by default the first B.
        """
        (count, k), tokens = tokens.shape, self._inputs(tokens)
        items: list[tuple[int, int, int]] = []
        index = torch.empty(count, k, dtype=torch.long)
        texts = zip(rows or range(count), tokens.tolist(), at.tolist(), strict=True)
        for text, (row, ids, positions) in enumerate(texts):
            cached, first = self._cached[row], 0
            while last and first < k - 1 and cached[positions[first] :][:1] == [ids[first]]:
                first += 1
            self._remove(row, positions[first])
            del cached[positions[first] :]
            for i, (token, position) in enumerate(zip(ids, positions, strict=True)):
                # A text of one token gives it twice, at the same position.
                if i >= first and len(cached) == position:
                    items.append((token, position, row))
                    cached.append(token)
                index[text, i] = len(items) - 1
        self._decode(items, outputs=True)
        index = index[:, -1:] if last else index
        logits = _rows(self._library.llama_get_logits(self._context), index, self._tokens)
        states = self._library.llama_get_embeddings(self._context)
        hidden, logits = _rows(states, index, self.hidden_size), logits[..., : self.vocabulary]
        return hidden, logits if self.present is None else self.present.outputs(logits)

    def _inputs(self, tokens: Tensor) -> Tensor:
        return tokens if self.present is None else self.present.inputs(tokens)

    def plain(self, tokens: Tensor, last: int, hidden: bool) -> tuple[Tensor, Tensor]:
        """Run whole texts ``[B, T]``, each in an empty cache; see ``Model.plain``."""
        # Another object, since this one's cache may be in use.
        self._other = self._other or self.twin()
        before, states, logits = tokens.shape[1] - last, [], []
        for text in tokens:
            self._other.reserve(1, len(text), last)
            self._other.forget_prompts()
            self._other.prefill(text[: before + 1])
            at = torch.arange(before, len(text))
            state, text_logits = self._other.read(text[None, before:], at[None])
            states.append(state)
            logits.append(text_logits)
        return torch.cat(logits), torch.cat(states) if hidden else torch.empty(0)

    def reread(self, text: Sequence[int], last: int) -> Tensor | None:
        """Return logits ``[last, V]`` of a text, as ``plain``; None if no row has its prompt."""
        tokens, before = torch.tensor(text[:-1]), len(text) - 1 - last
        prompt, at = self._inputs(tokens[:before]).tolist(), torch.arange(before, len(tokens))
        has_prompt = (
            row for row, ids in enumerate(self._cached[: self.rows]) if prompt == ids[:before]
        )
        if last > self._size or (row := next(has_prompt, None)) is None:
            return None
        return self.read(tokens[None, before:], at[None], rows=[row])[1][0]

    def twin(self) -> LlamaCppModel:
        """Return the same weights with a cache of their own."""
        return LlamaCppModel(self.path, self.config, self.vocabulary, self.present, self._loaded)

    def weight_bytes(self) -> int:
        """Return the size of the files; a step reads all but most of the embedding table."""
        return stored_bytes(self.path)

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes of keys and values that a step reads for a text of so many tokens."""
        return cache_bytes(self.config, self.dtype, tokens)

    def _remove(self, row: int, position: int) -> None:
        """Forget a row from a position on."""
        memory = self._library.llama_get_memory(self._context)
        if not self._library.llama_memory_seq_rm(memory, row, position, -1):
            raise RunError(f"llama.cpp cannot take tokens of {self.path} back: {OTHER_MODEL}")

    def _decode(self, items: Sequence[tuple[int, int, int]], outputs: bool) -> None:
        """Read tokens at positions of rows; hidden states make llama.cpp output all of them."""
        if len(items) > self._size:
            raise RunError(f"{len(items)} tokens in one pass: lower --batch-size")
        batch = self._batch
        self._library.llama_set_embeddings(self._context, outputs)
        for i, (token, position, row) in enumerate(items):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, outputs
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row
        batch.n_tokens = len(items)
        if status := self._library.llama_decode(self._context, batch):
            raise RunError(f"llama.cpp failed with status {status} ({last_error()})")


def _free(loaded: Any, batch: TokenBatch, context: Any) -> None:
    loaded.llama_batch_free(batch)
    loaded.llama_free(context)


def _rows(numbers: Any, index: Tensor, width: int) -> Tensor:
    """Return a copy of rows of the library's numbers, which the next call overwrites."""
    rows = index.numpy()
    return torch.from_numpy(np.ctypeslib.as_array(numbers, (rows.max() + 1, width))[rows])


class SequenceBatch:
    """One model of llama.cpp and a cache of up to ``texts`` texts; see ``Lockstep``."""

    def __init__(
        self, model: LlamaCppModel, prompts: Sequence[Sequence[int]], new_tokens: int, texts: int
    ) -> None:
        longest = max(len(prompt) for prompt in prompts)
        require_context(model.context, longest, new_tokens)
        model.reserve(max(texts, len(prompts)), longest + new_tokens, at_once=1)
        self.model, self.prompts = model, prompts
        self.rows = list(range(len(prompts)))  # of the cache, by text
        self.read = torch.tensor([len(prompt) - 1 for prompt in prompts])  # tokens in the cache

    def start(self) -> tuple[Tensor, Tensor]:
        """Run the prompts; return logits ``[B, V]`` and states ``[B, hidden]`` as ``forward``."""
        self.model.forget_prompts()
        for row, prompt in enumerate(self.prompts):
            self.model.prefill(torch.tensor(prompt), row)
        return self.forward(torch.tensor([[prompt[-1]] for prompt in self.prompts]))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run the next k tokens of every row ``[B, k]``; see ``Lockstep.forward``."""
        positions = self.read[:, None] + torch.arange(tokens.shape[1])
        hidden, logits = self.model.read(tokens, positions, rows=self.rows)
        self.read = self.read + tokens.shape[1]
        return logits[:, -1], hidden[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows ``[B']``, in this order; rows may repeat."""
        chosen = [self.rows[row] for row in rows.tolist()]
        free = sorted({*range(self.model.rows)} - {*chosen}, reverse=True)
        self.rows = []
        for row in chosen:
            if row in self.rows:
                source, row = row, free.pop()
                self.model.copy_row(source, row)
            self.rows.append(row)
        self.read = self.read[rows]


LIBRARY = Library(
    has_runners=False, exact=False, lockstep=SequenceBatch, reread=LlamaCppModel.reread
)
