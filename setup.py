"""For `colcon build`, which runs this file; what it installs stands in pyproject.toml."""

from typing import Any

from setuptools import Distribution, setup


class PlainDistribution(Distribution):
    """A package whose fields are plain values: colcon reads them by their `repr`."""

    def parse_config_files(self, *arguments: Any, **options: Any) -> None:
        """Read pyproject.toml, and keep the range of Python versions as text."""
        super().parse_config_files(*arguments, **options)
        self.python_requires = self.metadata.python_requires = str(self.python_requires)


setup(distclass=PlainDistribution)
