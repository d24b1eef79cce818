"""A fingerprint changes with the code that a module may run, and with no other."""

import pytest

from recsys.fingerprint import code_fingerprint

_SOURCES = {
    "recsys/__init__.py": "",
    "recsys/deep.py": "VALUE = 1\n",
    "recsys/late.py": "VALUE = 1\n",
    "recsys/unused.py": "VALUE = 1\n",
    "recsys/pages/__init__.py": "from recsys import deep\n",
    "recsys/pages/page.html": "<p>\n",
    "components/__init__.py": "",
    "components/step.py": "import recsys.pages\ndef f():\n    from recsys.late import VALUE\n",
}


@pytest.fixture
def root(tmp_path):
    for name, text in _SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ("components/step.py", True),
        ("recsys/pages/__init__.py", True),
        ("recsys/deep.py", True),
        ("recsys/late.py", True),
        ("recsys/pages/page.html", True),
        ("recsys/__init__.py", True),
        ("recsys/unused.py", False),
    ],
)
def test_a_source_that_the_module_reaches_matters(root, changed, matters):
    before = code_fingerprint("components.step", root=root)
    (root / changed).write_text((root / changed).read_text() + "\n")
    assert (code_fingerprint("components.step", root=root) != before) is matters


def test_a_foreign_distribution_matters_by_its_version(root, monkeypatch):
    (root / "recsys/deep.py").write_text("import numpy\n")
    before = code_fingerprint("components.step", root=root)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99")
    assert code_fingerprint("components.step", root=root) != before
