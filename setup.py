"""Builds the C kernels, one library for each kind of processor, and the starter of `recsys init`.

An editable install gets a folder with links to the packages, which is on Python's path.

All else is in pyproject.toml. A library that can't be built, for want of a compiler say, is
left out: recsys then computes the same on JAX, slower.
"""

import copy
import os
import platform
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

KERNELS = Path("recsys/kernels")
PACKAGES = "recsys", "components", "pipelines"
LINKS = Path(".importable")
STARTER = {
    "configs/movielens_small.yaml": "movielens_small.yaml",
    "configs/schemas/movielens_small": "movielens_small",
    "data/ml-latest-small": "ml-latest-small",
}
# Values must be those of IEEE arithmetic: NaN and infinity have to come through, so no
# -ffast-math. Two flags only say that nobody reads errno or the trap flags.
FLAGS = (
    "-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-pthread", "-fvisibility=hidden", "-fno-wrapv", "-g0",
)  # fmt: skip
# recsys.kernels.VARIANTS says which processor can run which.
LEVELS = {
    "avx512vnni": ("-march=x86-64-v4", "-mavx512vnni"),
    "avx512": ("-march=x86-64-v4",),
    "avxvnni": ("-march=x86-64-v3", "-mavxvnni"),
    "avx2": ("-march=x86-64-v3",),
}


def extensions() -> list[Extension]:
    """Returns a library for each kind of processor; none where JAX's headers are missing."""
    try:
        import jaxlib
    except ImportError:
        return []
    levels = LEVELS if platform.machine() == "x86_64" else {}
    return [
        Extension(
            f"recsys.kernels._{variant}",
            sorted(str(path) for path in KERNELS.glob("*.c")),
            depends=sorted(str(path) for path in KERNELS.glob("*.h")),
            include_dirs=[str(Path(jaxlib.__file__).parent / "include")],
            define_macros=[("RECSYS_VARIANT", variant)],
            extra_compile_args=[*FLAGS, *level],
            libraries=["m"],
            optional=True,
        )
        for variant, level in {**levels, "generic": ()}.items()
    ]


class BuildKernels(build_ext):
    """Compiles the libraries side by side."""

    def finalize_options(self) -> None:
        """Takes every core."""
        super().finalize_options()
        self.parallel = os.cpu_count()

    def build_extension(self, extension: Extension) -> None:
        """Builds one library; its objects lie apart, as every library has the same sources."""
        apart = copy.copy(self)
        apart.build_temp = str(Path(self.build_temp, extension.name))
        build_ext.build_extension(apart, extension)


class BuildWithStarter(build_py):
    """Puts what `recsys init` writes into a wheel; a checkout has it in `configs` and `data`."""

    def run(self) -> None:
        """Copies the packages, then the starter."""
        if self.editable_mode:
            super().run()
            return
        # Modules that an earlier build left there would go into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        for source, name in STARTER.items():
            target = Path(self.build_lib, "recsys/starter", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if Path(source).is_dir() else shutil.copyfile
            copy(source, target)


def package_dir() -> dict[str, str]:
    """Returns where the packages of an editable install are: behind links, and nothing else is.

    setuptools then puts that one folder on Python's path. Its import hook, which it takes for
    packages beside `tests` and `docs`, is unknown to type checkers, and comes after a folder
    named `recsys` in the current one, such as the clone itself.
    """
    if "editable_wheel" not in sys.argv:
        return {}
    LINKS.mkdir(exist_ok=True)
    for name in PACKAGES:
        (LINKS / name).unlink(missing_ok=True)
        (LINKS / name).symlink_to(Path("..", name))
    return {"": str(LINKS)}


setup(
    ext_modules=extensions(),
    package_dir=package_dir(),
    cmdclass={"build_ext": BuildKernels, "build_py": BuildWithStarter},
)
