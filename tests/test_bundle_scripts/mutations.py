"""Ways to damage a bundle, by accident or in bad faith; and what must hold all the same.

`mutations.py N SEED BUNDLE FOLDER` tries N of them on what reads bundles, in a process
of its own which watches every file that is opened, and prints a line of JSON of what
it came to.
"""

import collections
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from recsys.bundles import bundle as bundles
from recsys.bundles.publishing import publish, rollback, versions
from recsys.errors import RecsysError
from recsys.serving.catalogue_search import CatalogueSearch

_LONGEST_S = 20
_NAMES = ["../outside/secret", "/etc/passwd", "a/../../outside/secret", "", ".", "..", "a//b",
          "\0", "manifest.json", "x" * 10_000, "\ud800", "variables"]  # fmt: skip
_JUNK = [None, True, -1, 10**30, 1.5, "", "x", "../x", "/etc/passwd", [], [1], {}, {"a": 1}, "\0"]


def files_of(bundle):
    return sorted(path for path in bundle.rglob("*") if path.is_file() and not path.is_symlink())


def load(bundle):
    return json.loads((bundle / "manifest.json").read_text())


def save(bundle, manifest):
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def reseal(bundle):
    """Makes the manifest agree with what is there, as somebody in bad faith would."""
    manifest = load(bundle)
    fields = {name: value for name, value in manifest.items() if name not in ("files", "format")}
    (bundle / "manifest.json").unlink()
    bundles.write_manifest(bundle, fields)


def flip_bits(bundle, rng):
    path = rng.choice(files_of(bundle))
    content = bytearray(path.read_bytes() or b"\0")
    for _ in range(rng.choice([1, 1, 8, 100])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def flip_and_reseal(bundle, rng):
    path = rng.choice([bundle / "titles.parquet", bundle / "vocabulary" / "users.parquet"])
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 8, 100])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    reseal(bundle)


def truncate(bundle, rng):
    path = rng.choice(files_of(bundle))
    os.truncate(path, rng.randrange(path.stat().st_size + 1))


def enlarge(bundle, rng):
    os.truncate(rng.choice(files_of(bundle)), rng.choice([1 << 16, 1 << 33, 1 << 40]))


def remove(bundle, rng):
    rng.choice(files_of(bundle)).unlink()


def remove_and_reseal(bundle, rng):
    rng.choice([path for path in files_of(bundle) if path.name != "manifest.json"]).unlink()
    reseal(bundle)


def add(bundle, rng):
    name = rng.choice(
        ["x", ".x", "a/b/c/d", "variables/x", "manifest.json/x", "ü", "\udcff", "a\nb"]
    )
    path = bundle / name
    if path.parent.is_file():
        path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rng.randbytes(rng.randrange(50)))


def link_out(bundle, rng):
    path = rng.choice([*files_of(bundle), bundle / "stray", bundle / "variables"])
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(rng.choice([bundle.parent / "outside", bundle.parent / "outside" / "secret",
                                "/etc/passwd", "/nowhere", "..", "/dev/zero", path]))  # fmt: skip


def special(bundle, rng):
    path = rng.choice([*files_of(bundle), bundle / "stray"])
    path.unlink(missing_ok=True)
    kind = rng.choice(["fifo", "device", "socket"])
    if kind == "device" and os.geteuid() == 0:
        os.mknod(path, 0o020666, os.makedev(1, rng.choice([3, 5, 7])))  # null, zero, full
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            here = Path.cwd()
            os.chdir(path.parent)  # The name of a socket is short.
            one.bind(path.name)
            os.chdir(here)
    else:
        os.mkfifo(path)


def name_in_manifest(bundle, rng):
    manifest = load(bundle)
    name = rng.choice(_NAMES)
    old = rng.choice(sorted(manifest["files"]))
    manifest["files"][name] = manifest["files"][old]
    if rng.random() < 0.5:
        del manifest["files"][old]
    save(bundle, manifest)


def wrong_type(bundle, rng):
    manifest = load(bundle)
    junk = rng.choice(_JUNK)
    where = rng.randrange(4)
    if where == 0:
        manifest[rng.choice(sorted(manifest))] = junk
    elif where == 1:
        manifest["files"][rng.choice(sorted(manifest["files"]))] = junk
    elif where == 2:
        rng.choice(list(manifest["files"].values()))[rng.choice(["size", "sha256", "x"])] = junk
    else:
        del manifest[rng.choice(sorted(manifest))]
    save(bundle, manifest)


def doubled_key(bundle, rng):
    text = (bundle / "manifest.json").read_text().lstrip()
    key = rng.choice(['"files": {}', '"k": 1', '"format": 1'])
    (bundle / "manifest.json").write_text("{" + key + ", " + text[1:])


def odd_manifest(bundle, rng):
    text = rng.choice(["", "null", "7", '"x"', "[]", "{}", "[" * 100_000, '{"a":' * 50_000, "NaN",
                       "1" * 100_000, '{"files": {}, "format": 1}', "\ufeff{}", "{" + " " * 999]
                      )  # fmt: skip
    (bundle / "manifest.json").write_text(text)


def huge_manifest(bundle, rng):
    manifest = load(bundle)
    file = {"sha256": "0" * 64, "size": 1}
    manifest["files"].update((f"f{n}", file) for n in range(rng.choice([1_000, 20_000])))
    if rng.random() < 0.2:
        manifest["pad"] = "x" * (17 << 20)
    save(bundle, manifest)


def swap(bundle, rng):
    a, b = rng.sample(files_of(bundle), 2)
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


def folder_for_file(bundle, rng):
    path = rng.choice(files_of(bundle))
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "x").write_text("x")


def deep_folders(bundle, rng):
    path = bundle / "/".join("d" * rng.choice([1, 15]) for _ in range(60))
    path.mkdir(parents=True)
    if rng.random() < 0.5:
        (path / "x").write_text("x")


MUTATIONS = [flip_bits, flip_and_reseal, truncate, enlarge, remove, remove_and_reseal, add,
             link_out, special, name_in_manifest, wrong_type, doubled_key, odd_manifest,
             huge_manifest, swap, folder_for_file, deep_folders]  # fmt: skip

SMALL = [flip_bits, truncate, remove, add, swap, name_in_manifest, wrong_type, doubled_key]
"""Those after which another one can read all files."""


def mutate(bundle, seed):
    """Damages a bundle in one way, seldom in two; returns the names of the ways."""
    rng = random.Random(seed)
    ways = [rng.choice(MUTATIONS)]
    if rng.random() < 0.3:
        ways.insert(0, rng.choice(SMALL))
    done = []
    for way in ways:
        try:
            way(bundle, rng)
        except (OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, RecsysError):
            continue  # The first way left nothing for the second.
        done.append(way.__name__)
    return done


def read_contents(bundle):
    """Reads what an answer needs beside the SavedModel."""
    bundles.verify(bundle)
    CatalogueSearch.open(bundle)


def code_of(act):
    """Returns the code of the error that `act` raises; `ok` without one."""
    try:
        act()
    except RecsysError as error:
        str(error).encode("utf-8", "backslashreplace")
        return error.code
    return "ok"


def try_one(bundle, serving):
    """Reads and publishes what may be damaged; returns the code of each, by name."""
    codes = {
        "read_manifest": code_of(lambda: bundles.read_manifest(bundle)),
        "verify": code_of(lambda: bundles.verify(bundle)),
        "read_contents": code_of(lambda: read_contents(bundle)),
        "publish": code_of(lambda: publish(bundle, serving, keep=2)),
    }
    assert (codes["publish"] == "ok") == (codes["verify"] == "ok"), codes
    for version in versions(serving):
        bundles.verify(version)
    return codes


def try_as_version(bundle, serving):
    """Puts what may be damaged where the version before the newest is, and rolls back."""
    before = versions(serving)[-2]
    shutil.rmtree(before)
    shutil.copytree(bundle, before, symlinks=True, copy_function=_copy)
    codes = {name: code_of(lambda act=act: act(before)) for name, act in
             (("verify", bundles.verify), ("rollback", lambda _: rollback(serving)))}  # fmt: skip
    assert (codes["rollback"] == "ok") == (codes["verify"] == "ok"), codes
    return codes


def _copy(source, target):
    path = Path(source)
    if path.is_symlink() or not path.is_file():
        os.mkfifo(target)
    elif path.stat().st_size > 1 << 25:
        Path(target).touch()
        os.truncate(target, path.stat().st_size)
    else:
        shutil.copy2(source, target)


class Watch:
    """Notes each file that is opened outside of some folders while it is on."""

    def __init__(self, *folders):
        self.folders = tuple(os.path.realpath(folder) for folder in folders)
        self.is_on, self.outside = False, []
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.is_on and event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            # Relative ones are of `shutil.rmtree`, below a folder that it holds open.
            if Path(os.fsdecode(arguments[0])).is_absolute() and not path.startswith(self.folders):
                self.outside.append(path)


def main(n, seed, source, folder):
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    second = shutil.copytree(source, folder / "second")
    (second / "more").write_text("more")
    reseal(second)
    code_of(lambda: read_contents(source))  # What is imported late is by now.
    watch, ways, codes = Watch(folder / "bundle", folder / "serving"), [], collections.Counter()
    slowest = 0.0
    for at in range(n):
        bundle, serving = folder / "bundle", folder / "serving"
        shutil.copytree(source, bundle)
        publish(source, serving, keep=2)
        publish(second, serving, keep=2)
        done = mutate(bundle, f"{seed}-{at}")
        ways += done
        signal.alarm(_LONGEST_S)  # Who hangs is killed.
        watch.is_on, started = True, time.monotonic()
        for name, code in try_one(bundle, serving).items():
            codes[f"{name} {code}"] += 1
        watch.is_on, slowest = False, max(slowest, time.monotonic() - started)
        for name, code in try_as_version(bundle, serving).items():
            codes[f"as a version, {name} {code}"] += 1
        signal.alarm(0)
        assert [p.name for p in outside.iterdir()] == ["secret"], (done, at)
        assert (outside / "secret").read_text() == "secret"
        shutil.rmtree(bundle)
        shutil.rmtree(serving)
    found = {"tried": n, "ways": collections.Counter(ways), "codes": codes}
    found |= {"outside": watch.outside, "slowest_s": slowest}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
