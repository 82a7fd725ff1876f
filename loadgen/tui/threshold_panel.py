"""The thresholds on the screen: missed ones first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from loadgen.model.threshold import threshold_words
from loadgen.report.formatting import NONE_SUCCEEDED, NOT_MEASURED, TOO_FEW, bounded, worst
from loadgen.rules.thresholds import Checked
from loadgen.tui.draw import LABEL, REASON_MAX, cut_between_words, flow, label, measured, one_line, wrapped
from loadgen.tui.screen_state import ScreenState

PAGE_ENTRY_MAX = 8  # lines of one text on the page of thresholds


def thresholds(view: ScreenState, width: int, limit: int) -> list[Text]:
    """One entry per threshold with mark, word and number, so that colour is not the only sign; missed ones first, and
    a count of those without room."""
    checked = _missed_first(view)
    entries = [_entry(one) for one in checked]
    lines = flow(entries, width, indent=LABEL)
    if limit < 1 or not lines:
        return []
    if len(lines) > limit:
        lines = _some_entries(checked, entries, width, limit)
    return [Text.assemble(label("thresholds"), lines[0][LABEL:]), *lines[1:]]


def thresholds_page(view: ScreenState, width: int) -> list[Text]:
    """Every threshold on a separate line, with the reason if it cannot be judged."""
    lines = [] if view.checked else [Text(" the scenario has no thresholds")]
    for checked in _missed_first(view):
        lines += wrapped(Text.assemble(" ", _entry(checked)), width, indent=3, most=PAGE_ENTRY_MAX)
        if checked.unknown:
            reason = Text(f"   {one_line(checked.unknown, REASON_MAX)}", style="dim")
            lines += wrapped(reason, width, indent=3, most=PAGE_ENTRY_MAX)
    return lines


def _missed_first(view: ScreenState) -> list[Checked]:
    return sorted(view.checked, key=lambda one: not _is_missed(one))


def _some_entries(checked: Sequence[Checked], entries: Sequence[Text], width: int, limit: int) -> list[Text]:
    """The entries that fit together with the count of the others, at least one."""
    rest = _rest(checked[1:])
    lines = [Text.assemble(cut_between_words(entries[0], width - LABEL - 2 - rest.cell_len), "  ", rest)]
    lines = flow(lines, width, indent=LABEL)
    for shown in range(1, len(entries)):
        wanted = flow([*entries[:shown], _rest(checked[shown:])], width, indent=LABEL)
        if len(wanted) > limit:
            break
        lines = wanted
    return lines


def _rest(hidden: Sequence[Checked]) -> Text:
    text = Text(f"+{len(hidden)} more", style="dim")
    missed = sum(map(_is_missed, hidden))
    return text.append(f", {missed} MISSED", style="bold red") if missed else text


def _is_missed(checked: Checked) -> bool:
    return checked.value is not None and not checked.undecided and not checked.passed


def _entry(checked: Checked) -> Text:
    window_s = checked.window_s
    check = threshold_words(one_line(checked.check), window_s)
    if checked.unknown:
        return Text(f"○ {check}: {TOO_FEW if checked.too_few else NOT_MEASURED}, undecided", style="dim")
    if checked.none_succeeded:
        return Text(f"○ {check}: {NONE_SUCCEEDED}, undecided", style="bold yellow")
    if checked.value is None:
        return Text(f"○ {check}: not yet", style="dim")
    shown = bounded(measured(checked.check, checked.value), at_least=checked.at_least, at_most=checked.at_most)
    value = worst(shown, window_s)
    if checked.undecided:
        return Text.assemble(("○ ", "bold yellow"), check, (f": {value}, undecided", "yellow"))
    if _is_missed(checked):
        return Text.assemble(("✗ ", "bold red"), (check, "red"), (f": {value}, MISSED", "bold red"))
    return Text.assemble(("✓ ", "green"), check, (f": {value}", "dim"))
