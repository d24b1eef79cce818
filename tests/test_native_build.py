"""How the C kernels are built, kept, refused and done without."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recsys import native
from recsys.errors import RecsysError, UsageError
from recsys.native import build, cache, compiler

REPORT = """
import json, sys
from recsys import native
from recsys.errors import RecsysError
assert "jax" not in sys.modules
try:
    found = native.status()
    out = {"available": found.available, "reason": found.reason, "compiler": found.compiler}
    out["library"] = found.library and str(found.library)
except RecsysError as error:
    out = {"error": error.code, "text": str(error)}
print(json.dumps(out))
"""

needs_compiler = pytest.mark.skipif(native.status().compiler is None, reason=native.status().reason)


def start(home, **changes):
    """Starts a process that asks for the kernels, with its cache in `home`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), **changes}
    environment.pop("CC", None) if "CC" not in changes else None
    environment.pop("RECSYS_NATIVE", None) if "RECSYS_NATIVE" not in changes else None
    return subprocess.Popen(
        [sys.executable, "-c", REPORT], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process):
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    return json.loads(stdout)


def ask(home, **changes):
    return finish(start(home, **changes))


@pytest.fixture
def program(tmp_path):
    """Returns a function that makes a shell script in a folder of its own."""

    def make(name, text):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
        return str(folder / name)

    return make


@pytest.fixture
def one_compiler(tmp_path):
    """Returns a PATH with the first compiler under the name `cc`, and no second one."""
    folder = tmp_path / "one"
    folder.mkdir()
    [chosen, *_] = compiler.compilers()
    (folder / "cc").symlink_to(shutil.which(chosen.command[0]))
    for tool in ("as", "ld"):
        if path := shutil.which(tool):
            (folder / tool).symlink_to(path)
    return str(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns a folder in which the kernels have been built once."""
    home = tmp_path_factory.mktemp("built")
    assert ask(home)["available"]
    return home


@pytest.fixture
def home(built, tmp_path):
    """Returns a copy of a cache with the kernels in it."""
    shutil.copytree(built, tmp_path / "home")
    return tmp_path / "home"


def libraries(home):
    return list((home / "recsys" / "native").glob("*.so"))


# --- what can be missing


def test_without_a_compiler_the_reason_says_so(tmp_path):
    found = ask(tmp_path / "home", PATH=str(tmp_path))
    assert found == {
        "available": False, "reason": "no C compiler was found", "compiler": None, "library": None,
    }  # fmt: skip


def test_a_compiler_that_fails_is_named_with_its_complaint(tmp_path, program):
    program(
        "cc", '[ "$1" = --version ] && echo "cc 1.0" && exit; echo "cc: error: no disk" >&2; exit 1'
    )
    found = ask(tmp_path / "home", PATH=str(tmp_path / "bin"))
    assert not found["available"]
    assert found["compiler"] == "cc (cc 1.0)"
    assert found["reason"] == "cc exited with 1: cc: error: no disk"
    assert libraries(tmp_path / "home") == []


@needs_compiler
def test_the_next_compiler_is_tried_when_one_fails(tmp_path, program):
    broken = program("broken", '[ "$1" = --version ] && echo "broken 1.0" && exit; exit 1')
    found = ask(tmp_path / "home", CC=broken)
    assert found["available"]
    assert "broken" not in found["compiler"]


# Every name that the kernels' own libraries have, with one body for all self-checks.
SUBSTITUTE = """[ "$1" = --version ] && exec {cc} --version
while [ "$1" != -o ]; do shift; done
echo '{body}' | exec {cc} -xc -shared -fPIC - -o "$2"
"""


@needs_compiler
@pytest.mark.parametrize("statement", ["return 1;", "__builtin_trap();", "for (;;) {}"])
def test_a_library_that_fails_its_self_check_is_not_used(
    tmp_path, program, one_compiler, statement, monkeypatch
):
    body = " ".join(f"int {name}(void) {{ {statement} }}" for name in build._self_checks())
    program("cc", SUBSTITUTE.format(cc=f"{one_compiler}/cc", body=body))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{one_compiler}")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(build, "_CHECK_TIMEOUT_S", 2.0)
    compiler._version.cache_clear()
    found = build._load_once.__wrapped__()
    compiler._version.cache_clear()
    assert not found.available
    assert "fails its self-check" in found.reason
    assert found.library is None
    assert libraries(tmp_path / "home") == []


@needs_compiler
@pytest.mark.parametrize("name", ["self-checks", "none"])
def test_a_cached_library_that_is_wrong_is_not_used(home, tmp_path, one_compiler, name):
    assert ask(home, PATH=one_compiler)["available"]
    names = build._self_checks() if name == "self-checks" else ["other"]
    visible = '__attribute__((visibility("default"))) int'
    source = "".join(f"{visible} {name}(void) {{ return 1; }}" for name in names)
    (tmp_path / "wrong.c").write_text(source)
    [chosen, *_] = compiler.compilers()
    for library in libraries(home):
        cache.store(library, lambda out: chosen.build([tmp_path / "wrong.c"], "/", out))
    found = ask(home, PATH=one_compiler)
    assert not found["available"]
    assert "self_check" in found["reason"]


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    found = ask(tmp_path / "file")
    assert not found["available"]
    assert str(tmp_path / "file") in found["reason"]


@needs_compiler
def test_a_library_that_others_could_have_written_is_not_loaded(home, one_compiler):
    library = Path(ask(home, PATH=one_compiler)["library"])
    for path, mode in ((library, 0o777), (library.parent, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert "can be written by others" in ask(home, PATH=one_compiler)["reason"]
        path.chmod(before)
    assert ask(home, PATH=one_compiler)["available"]


# --- the switch


def test_the_switch_turns_the_kernels_off_before_anything_is_built(tmp_path):
    found = ask(tmp_path / "home", RECSYS_NATIVE="0")
    assert found["reason"] == "RECSYS_NATIVE=0"
    assert not found["available"]
    assert not (tmp_path / "home").exists()


def test_the_switch_makes_their_absence_an_error(tmp_path):
    found = ask(tmp_path / "home", RECSYS_NATIVE="1", PATH=str(tmp_path))
    assert found["error"] == "R340"
    assert "no C compiler was found" in found["text"]


@needs_compiler
def test_the_switch_changes_nothing_where_they_are(home):
    assert ask(home, RECSYS_NATIVE="1")["available"]


def test_the_switch_has_no_third_position(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "yes")
    with pytest.raises(UsageError, match="R341"):
        native.status()


def test_a_kernel_says_why_it_cannot_be_called(monkeypatch):
    import numpy as np

    from recsys.native import rows

    monkeypatch.setenv("RECSYS_NATIVE", "0")
    assert not native.available()
    with pytest.raises(RecsysError, match=r"R343.*RECSYS_NATIVE=0"):
        rows.pool(np.zeros((1, 1), np.float32), np.zeros(1, np.int32), None, None, 1)


@needs_compiler
def test_kernels_are_not_used_where_jax_computes_elsewhere(monkeypatch):
    import jax

    assert native.available()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not native.available()


# --- the cache


@needs_compiler
def test_it_is_built_once_and_kept(home, tmp_path, program):
    cc = shutil.which(next(compiler.compilers()).command[0])
    logged = program("logged", f'echo "$1" >> {tmp_path}/calls; exec {cc} "$@"')
    for _ in range(2):
        assert ask(home, CC=logged)["available"]
    calls = (tmp_path / "calls").read_text().split()
    assert calls.count("--version") == 2
    assert len(calls) == 3
    assert len(libraries(home)) == 2


@needs_compiler
def test_several_processes_may_build_at_once(tmp_path):
    processes = [start(tmp_path / "home") for _ in range(2)]
    found = [finish(process) for process in processes]
    assert all(f["available"] for f in found)
    folder = tmp_path / "home" / "recsys" / "native"
    assert [str(path) for path in folder.iterdir()] == [found[0]["library"]]
    assert cache.is_whole(Path(found[0]["library"]))


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:100] + b"?" + b[101:]],
    ids=["truncated", "empty", "changed"],
)
def test_damage_is_seen_before_a_library_is_loaded(tmp_path, damage):
    library = tmp_path / "cache" / "x.so"
    cache.store(library, lambda path: path.write_bytes(bytes(1000)))
    assert cache.is_whole(library)
    library.write_bytes(damage(library.read_bytes()))
    assert not cache.is_whole(library)


@needs_compiler
def test_a_truncated_library_is_built_anew(home):
    [library] = libraries(home)
    library.write_bytes(library.read_bytes()[:5000])
    assert ask(home) == {**ask(home), "available": True, "library": str(library)}
    assert cache.is_whole(library)


def test_a_build_that_fails_leaves_nothing_behind(tmp_path):
    def fail(path):
        path.write_text("half")
        raise compiler.CompileError("no")

    with pytest.raises(compiler.CompileError):
        cache.store(tmp_path / "cache" / "x.so", fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_folder_of_a_new_cache_is_ours_alone(tmp_path):
    cache.store(tmp_path / "cache" / "x.so", lambda path: path.write_bytes(b"x"))
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert cache.is_private(tmp_path / "cache" / "x.so")


def test_the_name_of_a_library_depends_on_all_that_makes_it(tmp_path):
    source = tmp_path / "a.c"
    source.write_text("int x;")
    keys = [cache.cache_key(parts, [source]) for parts in (["ab", "c"], ["a", "bc"], ["ab"])]
    source.write_text("int y;")
    keys.append(cache.cache_key(["ab", "c"], [source]))
    keys.append(cache.cache_key(["ab", "c"], [source.rename(tmp_path / "b.c")]))
    assert len(set(keys)) == 5


def test_headers_and_sources_are_part_of_the_name(monkeypatch, tmp_path):
    shutil.copytree(build.FOLDER, tmp_path / "native")
    monkeypatch.setattr(build, "FOLDER", tmp_path / "native")
    some = compiler.Compiler(("cc",), "1")
    before = build._key(some)
    header = tmp_path / "native" / "lanes.h"
    header.write_text(header.read_text() + "\n")
    assert build._key(some) != before
    assert build._key(compiler.Compiler(("cc",), "2")) != build._key(some)


@pytest.mark.parametrize("base", ["", "relative/path"])
def test_the_cache_is_in_the_home_folder_unless_xdg_names_another(monkeypatch, base):
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    assert cache.cache_folder() == Path("/somewhere/.cache/recsys/native")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache.cache_folder() == Path("/elsewhere/recsys/native")


# --- the compilers


def test_the_compiler_of_the_environment_comes_first_and_ziglang_last(monkeypatch):
    monkeypatch.setenv("CC", "ccache my-cc")
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: name == "ziglang")
    assert list(compiler._candidates()) == [
        ("ccache", "my-cc"), ("cc",), ("gcc",), ("clang",), (sys.executable, "-m", "ziglang", "cc"),
    ]  # fmt: skip


@needs_compiler
def test_a_compiler_that_does_not_know_this_processor_makes_code_for_any(tmp_path, program):
    cc = shutil.which(next(compiler.compilers()).command[0])
    old = program("old", f'for a; do [ "$a" = -march=native ] && exit 1; done; exec {cc} "$@"')
    assert ask(tmp_path / "home", CC=old)["compiler"].startswith(old)


def test_no_flag_lets_the_compiler_forget_nan():
    forbidden = ("-ffast-math", "-Ofast", "-ffinite-math-only", "-fassociative-math")
    assert not set(forbidden) & set(compiler.FLAGS)


@needs_compiler
def test_threads_that_ask_at_once_get_one_answer(monkeypatch):
    calls = []
    real = build._library
    monkeypatch.setattr(build, "_library", lambda c: calls.append(c) or real(c))
    build._load_once.cache_clear()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(native.status())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(answers) == 8
    assert all(answer is answers[0] for answer in answers)
    assert answers[0].available


@needs_compiler
def test_each_handler_in_the_sources_is_in_the_library():
    assert {"pool", "weight_grad", "update", "sum_squares"} <= set(build._handlers())
    assert {"recsys_rows_self_check", "recsys_update_self_check"} <= set(build._self_checks())
