"""Tools: schemas of Python functions, and what becomes of the calls in a reply."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsdk.adapters.tools import CallStatus, Tool, Toolbox, ToolError, ToolUnavailable, load_tool, tool
from envsdk.adapters.tools.python_code import execute_python_code
from envsdk.contracts.failures import ConfigurationError
from envsdk.rewards.sandbox import SandboxUnavailable
from envsdk.testing.strategies import AWKWARD_REPLIES

OK = CallStatus.OK


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    More about it, which the policy need not know.
    """
    return a + b


def pick(
    size: Literal["small", "large"], *, count: Annotated[int, pydantic.Field(ge=1, le=3)]
) -> dict[str, Any]:
    return {"size": size, "count": count}


def fail(how: str) -> str:
    if how == "politely":
        raise ToolError("not today")
    if how == "for good":
        raise ToolUnavailable("the server is gone")
    raise KeyError(how)


def echo(text: str) -> str:
    return text


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def told(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


BOX = Toolbox([add, pick, fail, echo])


def answered(reply: str, box: Toolbox = BOX, **options: Any) -> tuple[str, tuple[CallStatus, ...]]:
    answer = box.answer(reply, **options)
    assert answer is not None
    return answer.observation, answer.statuses


def test_a_function_is_described_by_its_name_docstring_and_annotations() -> None:
    assert tool(add).described() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


def test_a_parameter_named_title_is_kept() -> None:
    def find(title: str, properties: int) -> str:
        return title

    assert set(tool(find).parameters["properties"]) == {"title", "properties"}


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        (call("add", a=1, b=2), "3"),
        (call("add", a=1), "2"),
        ("First I add.\n" + call("add", a=2.0), "3"),
        (call("pick", size="large", count=2), '{"size": "large", "count": 2}'),
        (call("echo", text="é</tool_call"), "é</tool_call"),
    ],
)
def test_a_call_that_agrees_with_the_schema_is_carried_out(reply: str, output: str) -> None:
    assert answered(reply) == (told(output), (OK,))


def test_a_reply_without_a_call_is_not_the_toolboxs() -> None:
    assert BOX.answer("<answer>Left</answer>") is None


def test_several_calls_are_answered_in_their_order() -> None:
    reply = call("add", a=1) + "\n" + call("nope") + call("add", a=5)
    observation, statuses = answered(reply)
    assert statuses == (OK, CallStatus.UNKNOWN_TOOL, OK)
    assert observation.split("\n</tool_response>\n")[0] == "<tool_response>\n2"
    assert observation.endswith(told("6"))


@pytest.mark.parametrize(
    ("reply", "status", "says"),
    [
        (
            call("ad", a=1),
            CallStatus.UNKNOWN_TOOL,
            "no tool 'ad'. Did you mean 'add'? Tools: add, pick, fail",
        ),
        (call("add"), CallStatus.INVALID_ARGUMENTS, "add: 'a' is a required property"),
        (call("add", a="1"), CallStatus.INVALID_ARGUMENTS, "add: a: '1' is not of type 'integer'"),
        (call("add", a=1, c=2), CallStatus.INVALID_ARGUMENTS, "'c' was unexpected"),
        (call("pick", size="huge", count=1), CallStatus.INVALID_ARGUMENTS, "size: 'huge' is not one of"),
        (call("pick", size="small", count=9), CallStatus.INVALID_ARGUMENTS, "count: 9 is greater than"),
        (call("add", a=float("nan")), CallStatus.INVALID_ARGUMENTS, "NaN is no JSON number"),
        (call("fail", how="politely"), CallStatus.TOOL_FAILED, "Error: not today"),
        (call("fail", how="badly"), CallStatus.TOOL_FAILED, "Error: fail failed: KeyError: 'badly'"),
    ],
)
def test_what_is_wrong_with_a_call_is_its_answer(reply: str, status: CallStatus, says: str) -> None:
    observation, statuses = answered(reply)
    assert statuses == (status,)
    assert says in observation


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('<tool_call>{"name": "add"', "the reply ends inside a call"),
        ("<tool_call>add(1)</tool_call>", "is not JSON"),
        ("<tool_call>[1]</tool_call>", "a call must be an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'a call needs a "name"'),
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', '"arguments" must be an object'),
        (call("add", a=1) + " and so on", "nothing may follow the last call"),
        (call("add", a=1) + " and " + call("add", a=2), "or stand between two"),
        (call("add", a=1) + "<tool_call>", "the reply ends inside a call"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "is not JSON"),
    ],
)
def test_when_one_call_cannot_be_read_none_is_made(reply: str, says: str) -> None:
    observation, statuses = answered(reply)
    assert statuses == (CallStatus.UNREADABLE,)
    assert "no call was made" in observation
    assert says in observation
    assert len(observation) < 400


def test_a_broken_tool_is_no_answer() -> None:
    with pytest.raises(ToolUnavailable, match="the server is gone"):
        BOX.answer(call("fail", how="for good"))


def test_calls_beyond_the_limits_are_not_made() -> None:
    made: list[int] = []

    def count(n: int) -> str:
        made.append(n)
        return "done"

    box = Toolbox([count], max_calls_per_reply=3)
    reply = "".join(call("count", n=n) for n in range(6))
    observation, statuses = answered(reply, box)
    assert made == [0, 1, 2]
    assert statuses == (OK,) * 3 + (CallStatus.OVER_LIMIT,) * 3
    assert observation.count("<tool_response>") == 4
    assert "at most 3 calls fit into one reply" in observation
    observation, statuses = answered(reply, box, num_calls_left=0)
    assert statuses == (CallStatus.OVER_LIMIT,) * 6
    assert observation == told("Error: no calls are left")


@given(st.text(max_size=3000), st.integers(100, 500))
def test_an_output_is_cut_in_its_middle_and_can_always_be_stored(text: str, limit: int) -> None:
    box = Toolbox(
        [Tool(name="say", description="", parameters={"type": "object"}, call=lambda _: text)],
        max_output_chars=limit,
    )
    observation, _ = answered(call("say"), box)
    output = observation.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>")
    output.encode()
    assert len(output) <= limit
    if len(text) <= limit:
        assert output == text.encode("utf-8", "replace").decode()
    else:
        assert "characters left out" in output
        assert output[:10] == text[:10].encode("utf-8", "replace").decode()


@given(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from(AWKWARD_REPLIES),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
            ),
        ).map(json.dumps),
        st.fixed_dictionaries(
            {"name": st.sampled_from(["add", "pick", "echo"])},
            optional={
                "arguments": st.dictionaries(st.sampled_from(["a", "b", "size"]), st.integers() | st.text())
            },
        ).map(json.dumps),
    ),
    st.text(max_size=20),
)
def test_any_reply_has_an_answer_that_can_be_stored(body: str, around: str) -> None:
    for reply in (f"{around}<tool_call>{body}</tool_call>", f"<tool_call>{body}</tool_call>{around}"):
        observation, statuses = answered(reply)
        observation.encode()
        assert statuses
        assert observation.startswith("<tool_response>\n")


def test_the_policy_is_told_of_the_tools_in_text() -> None:
    lines = Toolbox([add]).as_text().splitlines()
    assert json.loads(lines[1])["name"] == "add"
    assert lines[-1].startswith("Call one: <tool_call>")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Toolbox([]), "needs a tool"),
        (lambda: Toolbox([add, add]), "two tools are named 'add'"),
        (lambda: Toolbox([add], max_calls_per_reply=0), "max_calls_per_reply"),
        (lambda: Toolbox([add], max_output_chars=5), "max_output_chars"),
        (lambda: tool(lambda *args: 0, name="f"), "cannot be given by name"),
        (lambda: tool(lambda x: 0), "tool '<lambda>': a name has"),
        (lambda: tool(no_schema), "tool 'no_schema'"),
        (lambda: Toolbox([named(parameters={"type": "array"})]), "must be that of an object"),
        (lambda: Toolbox([named(parameters={"type": "objekt"})]), "must be that of an object"),
        (lambda: Toolbox([named(parameters={"type": "object", "required": 3})]), "its schema is none"),
        (
            lambda: Toolbox([named(parameters={"$ref": "https://example.com/x"})]),
            "refers to https://example.com/x",
        ),
        (lambda: load_tool("json"), "'json' cannot be loaded: write package.module:attribute"),
        (lambda: load_tool("json:dump_it"), "cannot be loaded"),
        (lambda: load_tool("no_such_module:f"), "No module named 'no_such_module'"),
    ],
)
def test_what_is_wrong_with_a_tool_is_said(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert says in str(raised.value)


def no_schema(stream: pytest.Item) -> str:
    return str(stream)


def named(**options: Any) -> Tool:
    return Tool(**{"name": "t", "description": "", "parameters": {}, "call": str, **options})


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


def test_a_validator_of_an_annotation_is_told_like_a_schema() -> None:
    def halve(n: Annotated[int, pydantic.AfterValidator(even)]) -> int:
        return n // 2

    box = Toolbox([halve])
    assert answered(call("halve", n=4), box) == (told("2"), (OK,))
    assert "n: Value error, must be even" in answered(call("halve", n=3), box)[0]


def test_without_jsonschema_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(ConfigurationError, match=r"envsdk\[tools\]"):
        Toolbox([add])


def test_tools_are_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools_of_a_project.py").write_text(
        "def greet(name: str) -> str:\n    return f'hello {name}'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load_tool("tools_of_a_project:greet").name == "greet"


def test_python_runs_in_a_sandbox_whose_failures_are_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    toolbox = Toolbox([tool(execute_python_code)])

    def ask(code: str, **more: object) -> str:
        call = {"name": "execute_python_code", "arguments": {"code": code, **more}}
        answer = toolbox.answer(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert answer is not None
        return answer.observation

    assert ask("print(6 * 7)") == "<tool_response>\n42\n</tool_response>"
    assert "ZeroDivisionError: division by zero\n(exit code 1)" in ask("1 / 0")
    assert "(timeout reached)" in ask("while True: pass", timeout=0.5)
    assert "Network is unreachable" in ask("import socket; socket.create_connection(('192.0.2.1', 80))")
    assert "timeout: 1000000 is greater than the maximum" in ask("1", timeout=10**6)

    def no_backend(name: str) -> None:
        raise SandboxUnavailable(f"{name} is not installed")

    monkeypatch.setattr("envsdk.adapters.tools.python_code.open_backend", no_backend)
    with pytest.raises(ToolUnavailable, match="bubblewrap is not installed"):
        ask("print(1)")
