"""The causal language model in a Hugging Face folder, beside towers for images and sound or alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from envsdk.base.store.model_files import hf_config, weight_names

_TOWERS = ("vision_config", "audio_config")
_INSIDE = "language_model."
_HEAD = "lm_head.weight"
_NAMES = {
    "language_model.": {r"^language_model.(.+)$": r"\1"},
    "model.language_model.": {r"^model.language_model.(.+)$": r"model.\1"},
}
"""How names begin in models with towers, and how the language model's own ones are made of them."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")


_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def language_config(folder: Path) -> tuple[Any, Any]:
    """The configuration in a folder, and its part for text, which are one where it has no others.

    ValueError says why there is no language model, OSError what cannot be read.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = hf_config(folder)
    text = config.get_text_config()
    if config.is_encoder_decoder or type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"transformers runs no decoder of text alone for model_type {config.model_type}, and encoders, "
            "images and sound are not supported; take a model that it has as ...ForCausalLM"
        )
    return config, text


def load_language_model(folder: Path, **options: Any) -> Any:
    """Only that, with the `options` of `from_pretrained`; errors as of `language_config`.

    A folder that lacks weights is refused: transformers would begin them at random.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    config, text = language_config(folder)
    if type(text) is not type(config):
        names = set(weight_names(folder))
        # The files show it: what a configuration says of the whole model may be missing in its part.
        text.tie_word_embeddings |= not any(name.endswith(_HEAD) for name in names)
        options |= {"config": text, "key_mapping": _own_names(names, text.model_type)}
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # what it says of weights that are missing or left over is said here
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, **_LOCAL, **options
        )
    finally:
        logging.set_verbosity(level)
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"its files lack {len(missing)} weights of {type(model).__name__}, such as {missing[0]}"
        )
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise ValueError(
            f"in {type(model).__name__} of model_type {config.model_type} tokens see those after them; take "
            "a decoder"
        )
    return model


def language_model_names(folder: Path, names: Iterable[str]) -> set[str]:
    """Those of `names`, of weights in a folder, that belong to its language model.

    Not those of towers, and not those of layers that predict several tokens ahead.
    """
    kept = set(names)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kept
    if any(config.get(tower) for tower in _TOWERS) and any(_INSIDE in name for name in kept):
        kept = {name for name in kept if _INSIDE in name or name.endswith(_HEAD)}
    num_layers = (config.get("text_config") or config).get("num_hidden_layers")
    return {name for name in kept if not _is_ahead(name, num_layers)}


def _is_ahead(name: str, num_layers: int | None) -> bool:
    layer = _LAYER.search(name)
    beyond = num_layers is not None and layer is not None and int(layer[1]) >= num_layers
    return beyond or name.startswith("mtp.")


def _own_names(names: set[str], model_type: str) -> dict[str, str] | None:
    """For `key_mapping`: `names` in a folder with towers to those of its language model, and back.

    None where transformers knows them.
    """
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    known = get_checkpoint_conversion_mapping(model_type) or []
    if any(isinstance(change, PrefixChange) for change in known):
        return None
    found = (change for begin, change in _NAMES.items() if any(name.startswith(begin) for name in names))
    return next(found, None)
