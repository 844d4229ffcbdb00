"""What pyproject.toml cannot say about Windows: the link `uag/adapters` is a text file; Zig compiles the kernels."""

import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext


class Kernels(build_ext):
    """Compile the kernels; on Windows by Zig, which pip installs for the build, since MSVC cannot."""

    def build_extension(self, ext):
        if sys.platform != "win32":
            super().build_extension(ext)
        elif sysconfig.get_platform() != "win-amd64":
            self.warn(
                "uag's kernels are not compiled for this processor on Windows; PyTorch's operations serve instead"
            )
        else:
            path = self.get_ext_fullpath(ext.name)
            built = str(Path(self.build_temp, Path(path).name))  # Zig leaves another file beside it
            zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared", "-s"]
            for folder in (Path(path).parent, self.build_temp):
                self.mkpath(str(folder))
            self.spawn([*zig, *ext.extra_compile_args, *ext.sources, "-o", built])
            self.copy_file(built, path)


packages = find_packages(include=["uag", "uag.*"])
package_dir = {"": "."}  # given, so that an editable install adds a path, which works beside a clone named `uag`, too
if not Path("uag/adapters").is_dir():
    packages.append("uag.adapters")
    package_dir["uag.adapters"] = "adapters"
setup(packages=packages, package_dir=package_dir, cmdclass={"build_ext": Kernels})
