"""What pyproject.toml cannot say about Windows: `uag/adapters`, a link, is a text file there; nor are there kernels."""

import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext


class Kernels(build_ext):
    """Compile the kernels, but not on Windows: MSVC cannot, and PyTorch's OpenMP lacks functions there."""

    def run(self):
        if sys.platform == "win32":
            self.warn("uag's kernels are not compiled on Windows; PyTorch's operations serve instead")
            self.extensions = []
        super().run()


packages = find_packages(include=["uag", "uag.*"])
package_dir = {"": "."}  # given, so that an editable install adds a path, which works beside a clone named `uag`, too
if not Path("uag/adapters").is_dir():
    packages.append("uag.adapters")
    package_dir["uag.adapters"] = "adapters"
setup(packages=packages, package_dir=package_dir, cmdclass={"build_ext": Kernels})
