"""`envsdk sft --data DATASET --out FOLDER`: fine-tune a policy on recorded conversations."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from envsdk.base.display.model_command import command_of
from envsdk.base.display.terminal import say
from envsdk.config.env_arguments import env_config_from
from envsdk.contracts.failures import ConfigurationError
from envsdk.trainers.warm_start.fine_tuning import SFTConfig as SFTConfig
from envsdk.trainers.warm_start.fine_tuning import fine_tune, load_sft_config

_TELL_EVERY_S = 5.0


def command(config: SFTConfig) -> None:
    """Fine-tune a policy on recorded conversations and show the loss on tasks it did not learn.

    FOLDER is an ordinary Hugging Face folder: `pretrain` of a run, `--model` of `evaluate` and `collect`.
    """
    told_at = time.monotonic()

    def on_step(step: int, num_steps: int, loss: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            say(f"step {step}/{num_steps}, loss {loss:.3f}", err=True)

    def on_epoch(epoch: int, train_loss: float | None, held_out_loss: float | None) -> None:
        parts = [
            f"{name} {value:.4f}"
            for name, value in (("loss", train_loss), ("held-out loss", held_out_loss))
            if value is not None
        ]
        if parts:
            say(f"epoch {epoch}/{config.epochs}: {', '.join(parts)}", flush=True)

    result = fine_tune(config, on_step=on_step, on_epoch=on_epoch)
    cut = f", {result.num_cut} cut after the last reply that fits" if result.num_cut else ""
    say(f"{result.num_learned} conversations learned, {result.num_held_out} held out{cut}: {result.folder}")


def _read_config(arguments: list[str], options: dict[str, Any]) -> SFTConfig:
    files = [argument for argument in arguments if "=" not in argument]
    if len(files) > 1:
        raise ConfigurationError(
            f"{files[1]!r} is neither an override (key=value) nor the only configuration"
        )
    overrides = env_config_from([each for each in arguments if "=" in each], called="override")
    return load_sft_config(Path(files[0]) if files else None, {**overrides, **options})


app, main = command_of(SFTConfig, command, name="envsdk sft", from_file=_read_config)

if __name__ == "__main__":
    sys.exit(main())
