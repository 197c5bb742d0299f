"""Harbor's task folders: what is read of them, and what is refused by file and key."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest
from harbor_folders import write_task
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envsdk.contracts.failures import ConfigurationError
from envsdk.envs.terminal.harbor.config import Artifact, Mode, NetworkMode, TaskConfig, odd_keys
from envsdk.envs.terminal.harbor.folder import find_folders, instruction_in, read_folder, strays
from envsdk.envs.terminal.harbor.inputs import inputs, packed
from envsdk.envs.terminal.harbor.support import refusals, remarks
from envsdk.envs.terminal.notes import notes
from envsdk.envs.terminal.task_list import task_list

OLD = """
version = "1.0"
[environment]
memory = "2G"
storage = "512M"
allow_internet = false
cpus = 0.5
"""


def test_a_task_of_schema_1_0_is_read_by_its_older_names(tmp_path: Path) -> None:
    task = read_folder(write_task(tmp_path, {"task.toml": OLD}))
    env = task.config.environment
    assert (task.config.schema_version, env.memory_mb, env.storage_mb, env.cpus) == ("1.0", 2048, 512, 0.5)
    (stage,) = task.stages
    assert stage.network == (NetworkMode.NO_NETWORK, ())
    assert (stage.name, stage.verifier.mode, stage.verifier.timeout_s) == ("", Mode.SHARED, 600.0)
    assert (task.id, refusals(task)) == (tmp_path.name, [])


STEPS = """
multi_step_reward_strategy = "final"
artifacts = ["/app/all"]
[agent]
timeout_sec = 60
user = "someone"
[verifier]
env = {A = "1", B = "2"}
timeout_sec = 5
[[verifier.collect]]
command = "first"
[[steps]]
name = "one"
min_reward = 0.5
artifacts = [{source = "/app/one", exclude = ["*.pyc"]}, "/app/all/inner"]
agent = {timeout_sec = 7}
[steps.verifier]
env = {B = "3"}
collect = [{command = "second"}]
[[steps]]
name = "two"
min_reward = {speed = 2}
verifier = {environment_mode = "separate", user = 0}
"""


def test_a_step_inherits_what_it_does_not_say(tmp_path: Path) -> None:
    step_files = {
        f"steps/{name}/{file}": text
        for name in ("one", "two")
        for file, text in (("instruction.md", f"Do {name}."), ("workdir/given", ""))
    }
    files = {"task.toml": STEPS, "steps/two/tests/Dockerfile": "FROM python:3.12", **step_files}
    task = read_folder(write_task(tmp_path, files))
    one, two = task.stages
    assert (task.strategy, one.instruction, two.instruction) == ("final", "Do one.\n", "Do two.\n")
    assert (one.timeout_s, two.timeout_s, one.user) == (7, 60, "someone")
    assert (one.gates, two.gates) == ({"reward": 0.5}, {"speed": 2})
    assert [hook.command for hook in one.collect] == ["first", "second"]
    # Of artifacts that overlap, the first is taken; Harbor's own folder is always one.
    assert [each.source for each in one.artifacts] == ["/logs/artifacts", "/app/all", "/app/one"]
    assert one.verifier.env == {"A": "1", "B": "3"}
    # A step's time limit has its own default, in Harbor too.
    assert (one.verifier.timeout_s, one.verifier.mode, one.verifier.box) == (600.0, Mode.SHARED, None)
    assert one.verifier.tests == (tmp_path / "tests",)
    assert two.verifier.box is not None
    assert two.verifier.box.context == tmp_path / "steps/two/tests"
    assert (two.verifier.tests, two.verifier.user) == ((), 0), "the image has the tests"
    assert not task.is_separate


@pytest.mark.parametrize(
    ("toml", "files", "image", "context", "tests"),
    [
        ('[verifier]\nenvironment_mode = "separate"', {}, None, "environment", ("tests",)),
        ("[verifier.environment]\nmemory_mb = 9", {}, None, "environment", ("tests",)),
        ('[verifier.environment]\ndocker_image = "v"', {}, "v", None, ()),
        ("[verifier.environment]", {"tests/Dockerfile": "FROM x"}, None, "tests", ()),
        (
            '[environment]\ndocker_image = "a"\n[verifier]\nenvironment_mode = "separate"',
            {"environment/Dockerfile": None, "environment/file": ""},
            "a",
            None,
            ("tests",),
        ),
    ],
)
def test_a_separate_verifier_has_the_first_image_that_is_named(
    tmp_path: Path,
    toml: str,
    files: dict[str, str | None],
    image: str | None,
    context: str | None,
    tests: tuple[str, ...],
) -> None:
    (stage,) = read_folder(write_task(tmp_path, {"task.toml": toml, **files})).stages
    box = stage.verifier.box
    assert box is not None
    assert (box.docker_image, box.context) == (image, None if context is None else tmp_path / context)
    assert stage.verifier.tests == tuple(tmp_path / name for name in tests)


@pytest.mark.parametrize(
    ("toml", "files", "said"),
    [
        ("[environment]\ngpus = 2", {}, "task.toml: environment.gpus: 2: sandboxes have no GPU"),
        (
            '[environment]\ntpu = {type = "v6e", topology = "2x4"}',
            {},
            "task.toml: environment.tpu: sandboxes have no TPU",
        ),
        ('artifacts = [{source = "/x", service = "db"}]', {}, "task.toml: artifacts.service: db"),
        (
            '[[verifier.collect]]\ncommand = "x"\nservice = "db"',
            {},
            "task.toml: verifier.collect.service: db",
        ),
        (
            "",
            {"environment/docker-compose.yaml": ""},
            "environment/docker-compose.yaml: services: cannot be read",
        ),
        ("[verifier.environment]\ngpus = 1", {}, "task.toml: verifier.environment.gpus: 1"),
        ("[agent]\ntimeout_sec = 0", {}, "task.toml: agent.timeout_sec: 0: nothing can be done"),
        ("[verifier]\ntimeout_sec = -1", {}, "task.toml: verifier.timeout_sec: -1: nothing can be done"),
        ("[environment]\nmemory_mb = -1", {}, "task.toml: environment.memory_mb: -1: is no size"),
        (
            f"[environment]\nstorage_mb = {10**15}",
            {},
            f"task.toml: environment.storage_mb: {10**15}: is no size",
        ),
        (
            "[environment]\nbuild_timeout_sec = 0",
            {},
            "task.toml: environment.build_timeout_sec: 0: nothing can be done",
        ),
        (
            "[environment.healthcheck]\ncommand = 'true'\ntimeout_sec = -1",
            {},
            "task.toml: environment.healthcheck.timeout_sec: -1: nothing can be done",
        ),
        ("[environment]\nworkdir = 'app'", {}, "task.toml: environment.workdir: app: is no absolute path"),
    ],
)
def test_what_no_sandbox_can_do_is_refused_by_file_and_key(
    tmp_path: Path, toml: str, files: dict[str, str], said: str
) -> None:
    (found,) = refusals(read_folder(write_task(tmp_path, {"task.toml": toml, **files})))
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task.toml": None}, "task.toml: [Errno 2] No such file"),
        ({"task.toml": "x ="}, "task.toml: Invalid value"),
        ({"task.toml": 'schema_version = "1.5"'}, "schema_version: '1.5': known are 1.0 to 1.4"),
        ({"task.toml": "[agent]\ntimeout_sec = 'long'"}, "agent.timeout_sec: must be a number, not 'long'"),
        ({"task.toml": "[verifier]\ntimeout_sec = nan"}, "verifier.timeout_sec: must be a finite number"),
        ({"task.toml": "[environment]\nmemory = '2'"}, "environment: '2' is no size such as '2G'"),
        ({"task.toml": "[environment]\nos = 'Windows'", "tests/test.sh": None}, "environment.os: windows"),
        ({"task.toml": "artifacts = ['/a/../b']"}, "artifacts[0]: source '/a/../b' must not hold `..`"),
        ({"task.toml": "[[steps]]\nname = '../x'"}, "steps[0].name: '../x' is no name of a folder"),
        ({"task.toml": "[[steps]]\nname = 'a'\n[[steps]]\nname = 'a'"}, "two are named 'a'"),
        ({"task.toml": "[[steps]]\nname = 'a'"}, "steps/a/instruction.md: is missing"),
        (
            {"task.toml": "[verifier]\nenvironment_mode = 'shared'\nenvironment = {}"},
            "environment_mode = 'shared' contradicts [verifier.environment]",
        ),
        ({"instruction.md": None}, "instruction.md: is missing"),
        ({"trajectory.json": "{}"}, "trajectory.json: is no ATIF document: KeyError('steps')"),
        ({"tests/test.sh": None}, "tests/test.sh: is missing"),
        ({"tests/.harborignore": "*.sh\n"}, "tests/test.sh: .harborignore beside it leaves it out"),
        ({"task.toml": "[agent]\ntimeout_sec = 1e400"}, "agent.timeout_sec: must be a finite number"),
        (
            {"environment/Dockerfile": None},
            "environment/Dockerfile: is missing, and [environment] docker_image",
        ),
    ],
)
def test_a_mistake_of_the_author_is_named(tmp_path: Path, files: dict[str, str | None], said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read_folder(write_task(tmp_path / "task", files))
    assert said in str(error.value)
    assert str(tmp_path / "task") in str(error.value)


def test_hosts_of_an_allowlist_are_not_reached_and_that_is_said(tmp_path: Path) -> None:
    toml = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["PyPI.org."]'
    task = read_folder(write_task(tmp_path, {"task.toml": toml}))
    said = "task.toml: agent.network_mode: allowlist: none is reached (PyPI.org.)"
    assert said in remarks(task, has_network=False)
    assert refusals(task) == []
    assert refusals(task, has_network=True) == []
    assert "task.toml: verifier: has a public network in Harbor, and none here" in remarks(
        task, has_network=True
    )


def test_a_verifier_in_place_cannot_have_less_of_a_network_than_its_agent(tmp_path: Path) -> None:
    task = read_folder(write_task(tmp_path, {"task.toml": '[verifier]\nnetwork_mode = "no-network"'}))
    assert refusals(task) == []
    (refused,) = refusals(task, has_network=True)
    assert refused.startswith("task.toml: verifier.network_mode: is less than the agent's")


@pytest.mark.parametrize("toml", ["version = '2.0'", "version = '2026.06'", "[task]\nname = 'x'"])
def test_a_task_of_others_is_read_whatever_its_version_and_name(tmp_path: Path, toml: str) -> None:
    task = read_folder(write_task(tmp_path, {"task.toml": toml}))
    assert task.config.schema_version == "1.4"
    assert [why.partition(":")[0] for why in task.odd] == (["version"] if "version" in toml else [])


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    folder = write_task(tmp_path / "task")
    (folder / "tests/link").symlink_to("../../secret")
    with pytest.raises(ConfigurationError, match="tests/link: is a link that leads out"):
        read_folder(folder)


HISTORY = """{"schema_version": "ATIF-v1.7", "steps": [
  {"source": "user", "message": "Look around."},
  {"source": "agent", "message": "", "tool_calls": [
    {"tool_call_id": "1", "function_name": "bash", "arguments": {"command": "ls"}}
  ], "observation": {"results": [{"content": [{"type": "text", "text": "a b"}, {"type": "image"}]}]}}
]}"""


def test_an_earlier_conversation_is_read_for_the_first_instruction_alone(tmp_path: Path) -> None:
    (stage,) = read_folder(write_task(tmp_path / "one", {"trajectory.json": HISTORY})).stages
    assert stage.history == '[user]\nLook around.\n\n[agent]\nbash({"command": "ls"})\na b\n(image)'
    steps = {f"steps/{name}/instruction.md": "Do it." for name in "ab"}
    files = {
        "trajectory.json": "of no step",
        "steps/a/trajectory.json": HISTORY,
        "steps/b/trajectory.json": "?",
    }
    toml = "[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'"
    one, two = read_folder(write_task(tmp_path / "two", {"task.toml": toml, **steps, **files})).stages
    assert (one.history, two.history) == (stage.history, "")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ('{name = "a", transport = "http", url = "u"}', ""),
        ('{name = "a", url = "u"}', ""),
        ('{name = "a", transport = "stdio", command = "c"}', ""),
        ('{name = "a", transport = "stdio", url = "u"}', "command: is missing"),
        ("{}", "name: is required and missing"),
        (
            '{name = "a", url = "u", transport = "ws"}',
            "transport: must be 'stdio', 'sse', 'streamable-http' or 'http', not 'ws'",
        ),
        ('{name = "a", url = 3}', "url: must be text, not 3"),
        ('{name = "a", url = ""}', "url: is missing"),
        ('{name = "a", url = "u", args = "x"}', "args: must be a list"),
    ],
)
def test_an_mcp_server_that_harbor_refuses_is_refused(tmp_path: Path, server: str, said: str) -> None:
    folder = write_task(tmp_path, {"task.toml": f"[environment]\nmcp_servers = [{server}]"})
    if not said:
        assert refusals(read_folder(folder)) == []
    else:
        with pytest.raises(ConfigurationError, match=re.escape(said)) as error:
            read_folder(folder)
        assert "environment.mcp_servers[0]" in str(error.value)


def test_what_harborignore_names_stays_out_of_the_box_by_gits_patterns(tmp_path: Path) -> None:
    files = {
        "tests/.harborignore": "*.pyc\n/data/\nkeep/*\n!keep/this\n# no pattern\n",
        **{f"tests/{name}": "" for name in ("a.pyc", "a.py", "data/x", "sub/data/x", "sub/b.pyc")},
        **{f"tests/{name}": "" for name in ("keep/this", "keep/that", "again/c.pyc")},
        "tests/again/.harborignore": "!c.pyc\n",
        "environment/.harborignore": "*\n",
        "environment/file": "",
    }
    folder = write_task(tmp_path, files)
    assert refusals(read_folder(folder)) == []
    assert [path.relative_to(folder / "tests").as_posix() for path in inputs(folder / "tests")] == [
        *("a.py", "again", "again/c.pyc", "keep", "keep/this", "sub", "sub/data", "sub/data/x", "test.sh"),
    ]
    assert [path.name for path in inputs(folder / "environment")] == ["Dockerfile", "file"]
    with tarfile.open(fileobj=io.BytesIO(packed(folder / "tests"))) as tar:
        assert {*tar.getnames()} == {
            ".",
            *(str(p.relative_to(folder / "tests")) for p in inputs(folder / "tests")),
        }


def test_a_harborignore_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "tests/.harborignore").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"tests/\.harborignore: it is no UTF-8"):
        packed(folder / "tests")


def test_no_key_is_ignored_in_silence(tmp_path: Path) -> None:
    toml = "[agent]\nretries = 3\n[metadata]\nall = 1\n[[artifacts]]\nsource = '/x'\nmode = 7\n[extra]\na = 1"
    task = read_folder(write_task(tmp_path, {"task.toml": toml}))
    named = [why.partition(":")[0] for why in task.odd]
    assert sorted(named) == ["agent.retries", "artifacts[0].mode", "extra"]
    said = remarks(task, has_network=False)
    assert "task.toml: agent.retries: is no key of Harbor's, and changes nothing" in said
    assert any("network_mode: is public" in line for line in said)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (
            "[agent]\ntimeout_sec = true",
            "agent.timeout_sec: true: is no number, and is read as 1, as in Harbor",
        ),
        ("[verifier]\nuser = false", "verifier.user: false: is no number, and is read as 0, as in Harbor"),
        ("[[steps]]\nname = 'a'\nmin_reward = true", "steps[0].min_reward: true: is no number"),
        ("[environment]\ndocker_image = ''", "environment.docker_image: '': is empty, or holds a zero byte"),
        ("[environment]\nmemory = 2048", "environment.memory: is no key of Harbor's"),
        ("[environment]\ncpus = -1", "environment.cpus: -1: is negative"),
        (
            '[environment]\nskills_dir = "a\\u0000"',
            "environment.skills_dir: 'a\\x00': is empty, or holds a zero byte",
        ),
    ],
)
def test_a_value_that_harbor_reads_and_nobody_means_is_named(tmp_path: Path, toml: str, said: str) -> None:
    task = read_folder(write_task(tmp_path, {"task.toml": toml, "steps/a/instruction.md": "Do it."}))
    assert any(line.startswith(f"task.toml: {said}") for line in remarks(task, has_network=False))
    assert refusals(task) == []


@pytest.mark.parametrize("toml", ["[environment]\nallow_internet = true", "[metadata]\na = ''\nx_sec = true"])
def test_what_may_stand_so_is_not_named(tmp_path: Path, toml: str) -> None:
    assert read_folder(write_task(tmp_path, {"task.toml": toml})).odd == ()


def test_a_file_that_belongs_to_no_task_is_named(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "upper", {"task.toml": None})
    (folder / "Task.toml").write_text("")
    write_task(tmp_path / "lacks", {"task.toml": None})
    write_task(tmp_path / "good", {"steps/one/instruction.md": "Do it."})
    assert [line.partition(":")[0] for line in strays(tmp_path)] == [
        *("lacks/instruction.md", "upper/Task.toml", "upper/instruction.md"),
    ]
    assert any("upper/Task.toml: belongs to no task" in line for line in notes(data=str(tmp_path)))
    with pytest.raises(
        ConfigurationError, match=r"no folder in it has a task\.toml[^$]*Task\.toml: belongs to no"
    ):
        task_list(str(tmp_path / "upper"))


def test_an_empty_image_is_none(tmp_path: Path) -> None:
    folder = write_task(tmp_path, {"task.toml": "[environment]\ndocker_image = ''"})
    assert read_folder(folder).box.context == folder / "environment"


def test_canary_lines_are_not_shown_to_agents() -> None:
    assert (
        instruction_in("<!-- a CANARY b -->\n# canary guid\n\n# Title\n# canary\n") == "# Title\n# canary\n"
    )


def test_folders_are_found_at_any_depth_but_not_inside_of_another(tmp_path: Path) -> None:
    for name in ("b/deep/two", "a", "a/tests/inner", ".hidden/x"):
        write_task(tmp_path / name)
    assert list(find_folders(tmp_path)) == [tmp_path / "a", tmp_path / "b/deep/two"]
    assert list(find_folders(tmp_path / "a")) == [tmp_path / "a"]


def test_a_folder_that_links_lead_to_is_one_task(tmp_path: Path) -> None:
    for name in ("data/b", "data/.hidden/c", "elsewhere/d"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "task.toml").touch()
    data = tmp_path / "data"
    for name, target in (("a", "b"), ("c", ".hidden/c"), ("d", "../elsewhere"), ("e", "."), ("f", "..")):
        (data / name).symlink_to(target)
    assert list(find_folders(data)) == [data / "b", data / "c", data / "d/d"]


names = st.sampled_from(["a", "b", "c"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


@given(st.lists(st.tuples(paths, paths | st.none())))
def test_no_two_artifacts_share_a_place(entries: list[tuple[str, str | None]]) -> None:
    named = [Artifact(source=f"/{source}", destination=destination) for source, destination in entries]
    taken = TaskConfig(artifacts=named).artifacts_of(None)
    places = [each.kept_at for each in taken]
    assert all(
        not one.is_relative_to(two) for i, one in enumerate(places) for j, two in enumerate(places) if i != j
    )
    # The first of them is always there, unless Harbor's own folder is in its way.
    assert not named or named[0] in taken


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
keys = st.sampled_from([*TaskConfig.model_fields, "version", "x"])


@given(st.dictionaries(keys, json_values, max_size=4))
def test_any_table_is_read_or_refused_with_its_key(table: dict[str, object]) -> None:
    try:
        config = TaskConfig.model_validate(table)
    except ValidationError:
        return
    assert ("x" in table) == any(why.startswith("x: is no key") for why in odd_keys(config))
