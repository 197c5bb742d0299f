"""Executes the program that is judged, in a process of its own."""

from __future__ import annotations

import builtins
import importlib
import os
import resource
import sys
import types

# Only what is there anyway is imported: each program starts this anew.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RECURSION_LIMIT = 600_000

BORROWED = {
    "typing": "Any Callable Dict Generator Iterable Iterator List NamedTuple Optional Sequence Set Tuple "
    "Type TypeVar Union",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice "
    "permutations product repeat starmap takewhile zip_longest",
    "math": "ceil comb cos factorial floor gcd inf isqrt lcm log log2 perm pi prod sin sqrt",
    "copy": "deepcopy",
    "datetime": "date timedelta",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits punctuation",
}
"""Names that programs use without importing them, as the sites with such exercises allow."""

BORROWED_MODULES = {*BORROWED, "json", "operator", "random", "re", "statistics", "sys"}


class AllPackages:
    """Last of `sys.meta_path`: makes installed packages importable when the first one is asked for."""

    def __init__(self) -> None:
        self.done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self.done or path is not None:
            return None
        self.done = True
        import importlib.util
        import site

        site.main()
        return importlib.util.find_spec(name)


def names_in(code: types.CodeType) -> set[str]:
    """Every name that code and the functions in it use, attributes included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant)
    return found


def lend(names: set[str], namespace: dict[str, Any]) -> None:
    """Put into `namespace` what `names` holds of BORROWED; what the code defines itself replaces it."""
    for module in names & BORROWED_MODULES:
        namespace[module] = importlib.import_module(module)
    for module, members in BORROWED.items():
        for name in names.intersection(members.split()):
            namespace[name] = getattr(importlib.import_module(module), name)


def execute(source: str, *, name: str) -> dict[str, Any]:
    """Run the program's text as module `name`; its namespace. Raises what it raises."""
    sys.setrecursionlimit(RECURSION_LIMIT)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    sys.meta_path.append(AllPackages())
    sys.argv = ["program.py"]
    # Python's own `exit` and `quit` come from `site`, which is imported with the first package only.
    for leaving in ("exit", "quit"):
        setattr(builtins, leaving, sys.exit)
    module = types.ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update(__file__="program.py", __builtins__=builtins)
    code = compile(source, "program.py", "exec", dont_inherit=True)
    lend(names_in(code), module.__dict__)
    exec(code, module.__dict__)
    return module.__dict__


def function_named(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """The program's function; a method of its class `Solution`, where it has none.

    Raises AttributeError: there is neither.
    """
    if name in namespace:
        found: Callable[..., Any] = namespace[name]
        return found
    if "Solution" in namespace:
        method: Callable[..., Any] = getattr(namespace["Solution"](), name)
        return method
    raise AttributeError(f"the program defines no {name}")


def limit(*, memory_mb: int, cpu_s: int = 0) -> None:
    """What this process may use; of CPU time, 0 is without a limit."""
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def standard_streams(stdin: int, stdout: int, stderr: int) -> None:
    """Make these descriptors the process's own, and close all others but 3."""
    for target, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, target)
    os.closerange(4, 1024)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - stays open
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def leave(code: int) -> None:
    """End as a Python program does, without giving control back."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - whatever the program has put there
        code = code or 1
    os._exit(code)
