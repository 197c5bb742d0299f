"""`python -m envsdk.sft`: a policy from a data set, that every command takes."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from envsdk.collect import collect
from envsdk.config import load_config
from envsdk.contracts.chat import ChatTokenizer
from envsdk.contracts.failures import ConfigurationError, StorageError
from envsdk.evaluate import evaluate
from envsdk.replay import replay
from envsdk.sft import main
from envsdk.trainers.warm_start.fine_tuning import RECORD, SFTConfig, fine_tune, load_sft_config
from tests.system.conftest import Refused
from tests.system.jobs import Job

pytestmark = pytest.mark.system

TINY = {"hidden_size": 32, "num_layers": 1, "num_heads": 4}
GAME = "envsdk/FrozenLake-v1"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft") / "demos"
    collect(GAME, folder, num_episodes=120, formats=["messages"])
    return folder


@pytest.fixture(scope="module")
def cloned(demos: Path) -> Path:
    out = demos.parent / "cloned"
    assert main(["--data", str(demos), "--out", str(out), "--epochs", "2",
                 *(f"{name}={value}" for name, value in TINY.items())]) == 0  # fmt: skip
    return out


def test_the_loss_on_tasks_that_were_not_learned_falls(cloned: Path) -> None:
    record = json.loads((cloned / RECORD).read_text())
    before, _, after = record["held_out_loss"]
    assert after < 0.7 * before
    assert record["train_loss"][1] < record["train_loss"][0]
    assert record["learned"] + record["held_out"] == 120
    assert record["held_out"] > 0
    assert record["cut"] == 0


def test_a_data_set_of_random_moves_alone_teaches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(GAME, tmp_path / "random", num_episodes=20, epsilon=1.0)
    assert main(["--data", str(tmp_path / "random"), "--out", str(tmp_path / "out")]) == 2
    assert "holds no conversation with a reply that can be learned" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_appears_meanwhile_stays_as_it_is(demos: Path, tmp_path: Path) -> None:
    config = SFTConfig.model_validate({"data": [demos], "out": tmp_path / "out", "epochs": 1, **TINY})

    def write(*_: object) -> None:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out/notes.txt").write_text("mine")

    with pytest.raises(ConfigurationError, match="out is there already"):
        fine_tune(config, on_epoch=write)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "notes.txt"]


def test_a_model_that_does_not_fit_on_the_disk_is_an_error_of_storage(demos: Path, tmp_path: Path) -> None:
    config = SFTConfig.model_validate({"data": [demos], "out": tmp_path / "out", "epochs": 0, **TINY})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))

    try:
        with pytest.raises(StorageError, match="cannot write a model into"):
            fine_tune(config, on_epoch=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any(tmp_path.iterdir())


def test_the_policy_plays_is_collected_from_and_can_be_trained(cloned: Path, tmp_path: Path) -> None:
    evaluation = evaluate(GAME, model=cloned, num_episodes=6)
    assert evaluation.total.num_failed == 0
    replies = collect(GAME, tmp_path / "replies", num_episodes=6, policy="model", model=cloned)
    assert replies.manifest.tally.num_failed == 0
    assert replay(tmp_path / "replies").difference is None
    config = load_config("agentic_async.yaml", [f"pretrain={cloned}"]).config
    assert Path(config.pretrain) == cloned


@pytest.mark.slow
def test_a_run_begins_with_it_and_its_folder_is_a_model_and_a_data_set(cloned: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, cloned, max_steps=2)
    code, output = job.finish()
    assert code == 0, output
    assert replay(job.run).difference is None
    result = fine_tune(
        SFTConfig(data=[job.run], model=str(job.run), out=tmp_path / "again", held_out=0.0, min_reward=-10.0)
    )
    assert result.num_learned >= 16  # it plays ahead
    assert evaluate(GAME, model=job.run, num_episodes=2).total.num_failed == 0


def test_messages_teach_what_the_collection_teaches_and_an_earlier_policy_goes_on(
    demos: Path, cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = []
    for name, data in (("one", demos), ("other", demos / "messages")):
        result = fine_tune(SFTConfig(data=[data], model=str(cloned), out=tmp_path / name, learning_rate=1e-3))
        earlier = json.loads((cloned / RECORD).read_text())["held_out_loss"][-1]
        assert result.held_out_loss[0] == pytest.approx(earlier, rel=1e-5)
        assert result.held_out_loss[1] < result.held_out_loss[0]
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert ChatTokenizer.load(tmp_path / "one").vocab_size == ChatTokenizer.load(cloned).vocab_size


def test_without_an_epoch_a_new_policy_knows_the_words_and_learned_nothing(
    demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(demos), *(f"{name}={value}" for name, value in TINY.items())]
    for name, epochs in (("new", 0), ("taught", 1)):
        assert main([*arguments, "--out", str(tmp_path / name), "--epochs", str(epochs)]) == 0
    new, taught = (json.loads((tmp_path / name / RECORD).read_text()) for name in ("new", "taught"))
    assert (new["learned"], new["train_loss"]) == (0, [])
    assert new["held_out_loss"] == taught["held_out_loss"][:1]
    chats = [ChatTokenizer.load(tmp_path / name) for name in ("new", "taught")]
    assert chats[0].encode("<answer>Down</answer>") == chats[1].encode("<answer>Down</answer>")
    assert "0 conversations learned" in capsys.readouterr().out


def test_a_file_gives_the_keys_and_options_go_over_it(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text("data: [demos]\nout: cloned\nepochs: 5\nseed: 7\n")
    config = load_sft_config(file, {"epochs": 2, "out": "other"})
    assert (config.data, config.out, config.epochs, config.seed) == ([Path("demos")], Path("other"), 2, 7)


def test_long_conversations_are_cut_after_a_whole_reply(demos: Path, tmp_path: Path) -> None:
    result = fine_tune(
        SFTConfig(data=[demos], out=tmp_path / "out", sequence_length=120, held_out=0.0, **TINY)
    )
    assert 0 < result.num_cut <= result.num_learned == 120
    assert result.held_out_loss == []


def test_one_that_is_interrupted_leaves_no_folder(demos: Path, tmp_path: Path) -> None:
    def interrupt(step: int, num_steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fine_tune(SFTConfig(data=[demos], out=tmp_path / "out", **TINY), on_step=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "data"),
        (["--data", "DEMOS"], "out"),
        (["--data", "DEMOS", "--out", "DEMOS"], "is there already"),
        (["--data", "nowhere", "--out", "x"], "there is no nowhere"),
        (["--data", "DEMOS", "--out", "x", "--model", "nowhere"], "there is no folder nowhere"),
        (["--data", "DEMOS", "--out", "x", "--epochs", "-1"], "epochs"),
        (["--data", "DEMOS", "--out", "x", "epoch=3"], "did you mean `epochs`"),
        (["--data", "DEMOS", "--out", "x", "--held-out", "0.99999"], "--held-out: a share of"),
        (["--data", "DEMOS", "--out", "x", "--sequence-length", "8"], "too few for the first reply"),
        (["--data", "DEMOS", "--out", "x", "--min-reward", "2"], "no conversation with a reply"),
        (["--data", "DEMOS", "--out", "x", "hidden_size=30"], "num_heads=4 does not divide hidden_size=30"),
        (["missing.yaml"], "cannot read missing.yaml"),
        (["one.yaml", "two.yaml"], "'two.yaml' is neither an override"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    demos: Path, tmp_path: Path, refused: Refused, arguments: list[str], expected: str
) -> None:
    refused(main, [str(demos) if argument == "DEMOS" else argument for argument in arguments], expected)
    assert list(tmp_path.iterdir()) == []
