from __future__ import annotations

from pathlib import Path

from envsdk.tracking.run_record import flat, keep_run, known_run, name_of, settings_of


def test_the_services_run_is_known_to_the_process_that_continues(tmp_path: Path) -> None:
    assert known_run(tmp_path, "wandb") is None
    keep_run(tmp_path, "wandb", "abc")
    assert known_run(tmp_path, "wandb") == "abc"
    assert known_run(tmp_path, "mlflow") is None


def test_a_damaged_record_begins_a_run_of_its_own(tmp_path: Path) -> None:
    keep_run(tmp_path, "wandb", "abc")
    (tmp_path / "trackers" / "wandb.json").write_text("[")
    assert known_run(tmp_path, "wandb") is None


def test_settings_are_those_of_the_folder_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\nengine: {api_key: x, api_key_env: KEY, url: http://a}\n")
    assert settings_of(tmp_path) == {
        "seed": 1,
        "engine": {"api_key": "***", "api_key_env": "KEY", "url": "http://a"},
    }
    assert dict(flat(settings_of(tmp_path)))["engine.url"] == "http://a"
    assert name_of(tmp_path) == tmp_path.name
