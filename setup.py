"""The packages, which pyproject.toml cannot say: `uag/adapters` is a link, which Windows checks out as a text file."""

from pathlib import Path

from setuptools import find_packages, setup

packages = find_packages(include=["uag", "uag.*"])
package_dir = {"": "."}  # given, so that an editable install adds a path, which works beside a clone named `uag`, too
if not Path("uag/adapters").is_dir():
    packages.append("uag.adapters")
    package_dir["uag.adapters"] = "adapters"
setup(packages=packages, package_dir=package_dir)
