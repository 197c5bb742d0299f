"""Another project's keys as the page about its files shows them."""

from collections.abc import Sequence

from envsdk.config.foreign.row import Row


def table(rows: Sequence[Row], project: str, *, without: str = "") -> str:
    """Markdown, one line per row of the code's table; rows of one reason share a line.

    Keys that hold the text `without` are left out."""
    lines = [f"| key of {project}'s | here | |", "| --- | --- | --- |"]
    merged: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if without and without in row.key:
            continue
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
