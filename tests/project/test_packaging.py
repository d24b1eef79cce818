"""The package, its licence, and the wrapper that brings uv."""

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from places import ROOT

import recsys
from recsys.kernels import VARIANTS
from recsys.system.installation import EXACT_SET, NAME, WIDE_SET, install_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ["recsys", "components", "pipelines"]


@pytest.mark.parametrize("package", PACKAGES)
def test_we_own_our_top_level_names(package):
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin == str(ROOT / package / "__init__.py")
    claims = importlib.metadata.packages_distributions().get(package, [])
    assert set(claims) <= {NAME}


@pytest.mark.thorough
def test_the_wheel_holds_our_packages_whole_and_the_starter(tmp_path):
    subprocess.run([ROOT / "uvw", "build", "--quiet", "--out-dir", tmp_path, ROOT], check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    extra = {name for name in names if ".dist-info/" in name or name.startswith("recsys/starter/")}
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    libraries = {name for name in names if name.endswith(".so")}
    assert names - extra - libraries == sources
    assert not shutil.which("cc") or len(libraries) == len(VARIANTS)
    starter = {name.removeprefix("recsys/starter/") for name in extra}
    assert {
        "movielens_small.yaml",
        "ml-latest-small/README.txt",
        "movielens_small/items.pbtxt",
    } <= starter
    assert any(name.endswith("licenses/LICENSE") for name in extra)


def test_the_version_stands_in_one_place_for_each_reader():
    assert PROJECT["project"]["version"] == recsys.__version__
    assert importlib.metadata.version(NAME) == recsys.__version__


def texts():
    """Yields the path and the text of each file that people read or that prints to them."""
    folders = ("recsys", "components", "pipelines", "docs", "deploy", "configs", "benchmarks")
    suffixes = {".md", ".py", ".yaml", ".sh", ".toml", ".jinja", ".html", ".js", ".service"}
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*"), *inside]:
        if path.is_file() and (path.suffix in suffixes or path.name in ("uvw", "Dockerfile")):
            yield path, path.read_text()


def test_no_text_installs_a_distribution_of_another_name():
    assert PROJECT["project"]["name"] == NAME
    assert re.sub("[-_.]+", "-", NAME) != "recsys"  # On PyPI that is somebody else's.
    wrong = []
    for path, text in texts():
        for command in re.findall(r"pip3? (?:install|download) ([^\n`]*)", text):
            words = re.findall(r"[\w./-]*recsys[\w.-]*", command)
            wheel = NAME.replace("-", "_") + "-"
            wrong += [
                (path.name, w) for w in words if w != NAME and not w.startswith(f"dist/{wheel}")
            ]
        wrong += [(path.name, w) for w in re.findall(r"(?<![\w-])recsys\[[a-z,]+\]", text)]
    assert wrong == []


@pytest.mark.parametrize("extra", ["pipeline", "serve", "kubeflow"])
def test_the_cure_for_a_missing_extra_installs_from_the_clone(extra):
    text = install_extra(extra)
    assert "uv sync --all-extras" in text
    for requirement in re.findall(r"pip install '([^']*)'", text):
        assert requirement == f"{NAME}[{extra}] @ file:///path/to/clone"


def test_the_core_needs_no_tensorflow_tfx_or_beam():
    needed = {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert not needed & {"tensorflow", "tfx", "apache-beam", "ml-metadata", "tfx-bsl"}


def test_the_overrides_are_the_sets_that_the_doctor_explains():
    guarded = [line for line in PROJECT["tool"]["uv"]["override-dependencies"] if ";" in line]
    expected = [
        f"{name}=={version} ; python_version {guard}"
        for wheel_set, guard in ((WIDE_SET, "< '3.12'"), (EXACT_SET, ">= '3.12'"))
        for name, version in wheel_set.items()
    ]
    assert sorted(guarded) == sorted(expected)


def test_no_locked_package_needs_a_compiler_here():
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    without_wheel = {
        package["name"]
        for package in lock["package"]
        if "wheels" not in package and "registry" in package["source"]
    }
    # All are pure Python.
    assert without_wheel <= {"google-apitools", "kfp-server-api", "rouge-score"}


def test_ci_runs_the_test_command_of_the_readme():
    [command] = re.findall(r"exec (\./uvw .*)", (ROOT / ".ci" / "run").read_text())
    assert f"\n{command}\n" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda p: p.name
)
def test_the_links_between_our_pages_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", [*ROOT.glob("docs/*.md")], ids=lambda p: p.name)
def test_the_files_that_a_page_names_exist(path):
    code = r"`((?:recsys|components|pipelines|tests|benchmarks|examples)/[\w/]+\.\w+)`"
    missing = [name for name in re.findall(code, path.read_text()) if not (ROOT / name).exists()]
    assert not missing


PIP = """#!/bin/sh
echo "$@" >> "$0.calls"
[ "$3" = --version ] && exit {version_code}
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/bin"
while read -r line; do echo "$line"; done > "$2/bin/uv" << 'END'
#!/bin/sh
if [ "$1" = --version ]; then echo "uv 0.13.8"; else echo "own $*"; fi
END
chmod +x "$2/bin/uv"
exit {install_code}
"""


@pytest.fixture
def machine(tmp_path):
    """Returns a function that runs a copy of `uvw` on a machine with the given programs."""
    shutil.copy(ROOT / "uvw", tmp_path / "uvw")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for tool in ("sh", "dirname", "mkdir", "mv", "rm", "chmod"):
        (bin_ / tool).symlink_to(shutil.which(tool))

    def program(name, text):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)

    def run(*arguments):
        return subprocess.run(
            [tmp_path / "uvw", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={"PATH": str(bin_), "HOME": str(tmp_path)},
        )

    run.program = program
    run.calls = bin_ / "python3.calls"
    run.own = tmp_path / ".uv"
    return run


def uv_of_version(text):
    return f"""#!/bin/sh
if [ "$1" = --version ]; then echo '{text}'; exit 0; fi
echo "path $UV_PROJECT"
for word; do echo "<$word>"; done
exit 7
"""


@pytest.mark.parametrize("version", ["uv 0.13.8 (x86_64)", "uv 0.13.0", "uv 0.20.1", "uv 1.0.0"])
def test_a_recent_uv_on_the_path_gets_every_word_and_gives_its_exit_code(machine, version):
    machine.program("uv", uv_of_version(version))
    done = machine("run", "two words", "--flag=*")
    assert done.stdout.splitlines() == [
        f"path {machine.own.parent}", "<run>", "<two words>", "<--flag=*>",
    ]  # fmt: skip
    assert done.returncode == 7
    assert not machine.own.exists()


@pytest.mark.parametrize(
    "uv",
    [None, uv_of_version("uv 0.12.9"), uv_of_version("something"), "#!/bin/sh\nexit 127\n"],
    ids=["none", "old", "strange", "broken-shim"],
)
def test_without_a_recent_uv_pip_brings_the_pinned_one_once(machine, uv):
    if uv:
        machine.program("uv", uv)
    machine.program("python3", PIP.format(version_code=0, install_code=0))
    for _ in range(2):
        done = machine("run", "x")
        assert done.stdout == "own run x\n", done.stderr
    assert len([line for line in machine.calls.read_text().splitlines() if "install" in line]) == 1
    assert [path.name for path in machine.own.iterdir()] == ["0.13.8"]


def test_without_uv_and_pip_one_sentence_says_what_is_needed(machine):
    machine.program("python3", PIP.format(version_code=1, install_code=1))
    done = machine("run", "x")
    assert done.returncode == 1
    assert "apt-get install python3-pip" in done.stderr
    assert not machine.own.exists()


def test_an_installation_that_fails_leaves_nothing_half_done(machine):
    machine.program("python3", PIP.format(version_code=0, install_code=2))
    assert machine("run", "x").returncode == 2
    assert list(machine.own.iterdir()) == []


def python_with_pip():
    """Returns a python3 that has pip, which a virtual environment may lack."""
    for python in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3"):
        asked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return python
    return pytest.skip("needs a python3 with pip")


@pytest.fixture
def registry(machine, tmp_path):
    """Gives the machine a real pip that knows one wheel of uv; returns the wheel's sha256."""
    wheel = tmp_path / "wheels" / "uv-0.13.8-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "uv-0.13.8.dist-info"
    files = {
        "uv-0.13.8.data/scripts/uv": "#!/bin/sh\necho uv 0.13.8 of a stranger\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: uv\nVersion: 0.13.8\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    options = f"PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS={wheel.parent}"
    machine.program("python3", f'#!/bin/sh\n{options} exec {python_with_pip()} "$@"\n')
    (tmp_path / "bin" / "env").symlink_to(shutil.which("env"))
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_what_is_not_the_pinned_wheel_by_its_sha256_is_never_installed(machine, registry):
    done = machine("--version")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "sha256, and was not installed" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert not machine.own.exists() or list(machine.own.iterdir()) == []


def test_the_wheel_with_a_pinned_sha256_is_installed(machine, registry):
    wrapper = machine.own.parent / "uvw"
    pinned = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", wrapper.read_text())
    assert len(set(pinned)) == 4  # x86_64 and aarch64, of glibc and of musl
    wrapper.write_text(wrapper.read_text().replace(pinned[2], registry))
    done = machine("--version")
    assert done.stdout == "uv 0.13.8 of a stranger\n", done.stderr


def test_the_wrapper_pins_the_uv_that_is_tested():
    uv = os.environ.get("UV") or shutil.which("uv") or ROOT / "uvw"
    version = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout
    pinned = re.search(r"^pinned=(\S+)$", (ROOT / "uvw").read_text(), flags=re.MULTILINE)[1]
    assert tuple(map(int, version.split()[1].split("."))) >= tuple(map(int, pinned.split(".")))


def test_an_editable_install_is_found_from_the_parent_folder_and_hides_tests(tmp_path):
    clone, site = tmp_path / "recsys", tmp_path / "site"
    clone.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in [*PACKAGES, "tests", "examples"]:
        (clone / name).mkdir()
        (clone / name / "__init__.py").write_text("")
    (clone / "recsys" / "kernels").mkdir()
    (clone / "recsys" / "py.typed").touch()
    build = "from setuptools import build_meta; print(build_meta.build_editable('..'))"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True)
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (clone / "recsys" / "later.py").write_text("")
    code = (
        f"import site, sys; site.addsitedir({str(site)!r})\n"
        "import components, pipelines, recsys.later, importlib.util as u\n"
        "print(recsys.__file__, [u.find_spec(name) for name in ('tests', 'examples')])"
    )
    # Without the packages of this environment, and the folder of the clone first.
    run = [sys.executable, "-S", "-c", code]
    found = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert found.endswith("[None, None]\n")
    package = Path(found.split()[0]).parent
    assert package.resolve() == clone / "recsys"
    assert (package / "py.typed").exists()  # Type checkers follow the path too.
