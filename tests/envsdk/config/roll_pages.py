"""The table of ROLL's keys as the page shows it."""

from envsdk.config.roll.keys import ROWS
from envsdk.config.roll.row import Row


def table() -> str:
    """Markdown, one line per row of the code's table; rows of one reason share a line."""
    lines = ["| key of ROLL's | here | |", "| --- | --- | --- |"]
    merged: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        merged.setdefault((_here(row), row.reason), []).append(_key(row))
    lines += [f"| {', '.join(keys)} | {here} | {_cell(reason)} |" for (here, reason), keys in merged.items()]
    return "\n".join(lines)


def _key(row: Row) -> str:
    condition = f" ({row.condition})" if row.condition else ""
    return f"`{_cell(row.key)}`{_cell(condition)}"


def _here(row: Row) -> str:
    if row.is_refused:
        return "refused"
    if row.convert is None:
        return "no effect"
    return f"`{row.to}`" if row.to else "checked"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
