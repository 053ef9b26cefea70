"""The budget counts code and not its layout, and knows private members of foreign objects."""

import pytest

from tools import budget


def test_layout_and_documents_cost_nothing():
    short = "def f(x):\n    return f'{x!r} is {x + 1}'\n"
    long = '"""Module."""\n\n\ndef f(\n    x\n):\n    """Return x."""\n    # why\n    return f\'{x!r} is {x + 1}\'\n'
    assert budget.tokens(short) == budget.tokens(long) == 8
    assert budget.statements(short) == budget.statements(long) == 2


def test_foreign_members_are_named():
    source = (
        "class Mine(Base):\n"
        "    def __init__(self):\n"
        "        self._own = 0\n"
        "    def _over(self):\n"
        "        super()._over()\n"
        "    def use(self, other):\n"
        "        self._own += 1\n"
        "        self._theirs += 1\n"
        "        other._set = getattr(other, '_read', None)\n"
        "        os._exit(1)\n"
        "        self._known()\n"
    )
    assert budget.foreign_members(budget.nodes_of(source), {"_known"}) == {"_over", "_theirs", "_set", "_read"}


def test_ceiling_falls_and_rises_by_lines(monkeypatch: pytest.MonkeyPatch):
    gate = {"last": 1000, "rises": ["+200 vLLM: an engine", "+5 One: a reason"]}
    monkeypatch.setattr(budget, "size", lambda _: 1300)
    monkeypatch.setattr(budget, "members", list)
    now = {"lowered": "One", "members": [], "product": gate, "tests": gate}
    assert list(budget.gates(now)) == [("product", 1300, 1215), ("tests", 1300, 1215)]
    assert "last = 1205\nrises = []" in budget.lower(now, "Two")
    with pytest.raises(SystemExit):
        budget.lower(now, "One")
