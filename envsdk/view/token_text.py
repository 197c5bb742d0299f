"""The text of each token of a log: what it adds to the text before it.

A character may take several tokens, and the text of a token may depend on its neighbors (a leading space),
so each token is decoded together with those right before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from envsdk.base.store.hub import hub_folder, is_model_name, known_folder
from envsdk.base.store.shards import MANIFEST
from envsdk.contracts.failures import ConfigurationError
from envsdk.contracts.trajectory import Trajectory
from envsdk.view.sources import CONFIG_FILE, Kind, Source, read_config

TOKENIZER_FILE = "tokenizer.json"

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special tokens included."""

_INCOMPLETE = "\ufffd"
_MAX_CHARACTER_TOKENS = 8
"""Tokens that a single character may take; what is longer is no character but bytes."""
_MAX_VOCABULARY_BYTES = 64 * 1024**2


def pieces(decode: Decode, ids: Sequence[int]) -> list[str]:
    """The text that each token adds, `[num_tokens]`; a character's last token gets all of it.

    Joined they are `decode(ids)`, wherever decoding a token needs no more than those shown before it.
    """
    texts = [""] * len(ids)
    start = read = 0
    for end in range(1, len(ids) + 1):
        before, now = decode(ids[start:read]), decode(ids[start:end])
        if now.endswith(_INCOMPLETE) and end < len(ids) and end - read < _MAX_CHARACTER_TOKENS:
            continue
        texts[end - 1] = now[len(before) :]
        start, read = read, end
    return texts


def find_tokenizer(source: Source) -> Path | None:
    """The `tokenizer.json` that a run's or a data set's tokens were made with; None when none is found.

    Looked for in the folder itself, where a run keeps it, in a run's newest checkpoint, and in the model
    that a run started from or that played a data set.
    """
    folder = source.folder
    checkpoints = sorted(folder.glob(f"checkpoints/step_*/model/{TOKENIZER_FILE}"))
    is_run = source.kind is Kind.RUN
    model = read_config(folder / CONFIG_FILE)[0].get("pretrain") if is_run else _player(folder / MANIFEST)
    candidates = [folder / TOKENIZER_FILE, *checkpoints[-1:]]
    if isinstance(model, str) and model and (known := known_folder(model)) is not None:
        candidates.append(known / TOKENIZER_FILE)
    return next((path for path in candidates if path.is_file()), None)


def load_decoder(path: Path) -> Decode:
    """The decoder of a `tokenizer.json`, of the folder that holds it, or of the model of this name.

    Raises ConfigurationError when there is none or it cannot be read.
    """
    from tokenizers import Tokenizer

    path = hub_folder(str(path)) if is_model_name(str(path)) else path
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigurationError(f"there is no {file}: give a model's folder, name or {TOKENIZER_FILE}")
    if file.stat().st_size > _MAX_VOCABULARY_BYTES:
        raise ConfigurationError(f"{file} has more than {_MAX_VOCABULARY_BYTES // 1024**2} MB")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers library raises nothing narrower
        raise ConfigurationError(f"{file} is not a tokenizer file: {error}") from error
    num_ids = tokenizer.get_vocab_size(with_added_tokens=True)

    def decode(ids: Sequence[int]) -> str:
        known = [int(token) for token in ids if 0 <= token < num_ids]
        return str(tokenizer.decode(known, skip_special_tokens=False))

    return decode


def token_texts(trajectory: Trajectory, decode: Decode | None) -> list[str] | None:
    """Text of each token of a trajectory's log, `[num_tokens]`; None without tokens or tokenizer."""
    if trajectory.tokens is None or decode is None:
        return None
    return pieces(decode, trajectory.tokens.ids.tolist())


def _player(manifest: Path) -> Any:
    """The folder of the model that played a collection; None when there is none."""
    try:
        return json.loads(manifest.read_text(encoding="utf-8"))["config"]["model"]["folder"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
