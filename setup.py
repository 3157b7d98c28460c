"""Packaging, read from settings.ini: name, version and dependencies are written once."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="], interpolation=None)
parser.read(here / "settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]


def requirements(key: str) -> list[str]:
    """The requirements listed under a key, one a line; what follows a # is the reason."""
    lines = (line.split("#")[0].strip() for line in cfg.get(key, "").splitlines())
    return [line for line in lines if line]


class BuildWithExperiments(build_py):
    """Put the experiments and their parameters into the package, where `adaptmr run` finds them."""

    def run(self) -> None:
        super().run()
        for pattern in ("nbs/experiments/*.ipynb", "params/*.yaml"):
            for source in sorted(here.glob(pattern)):
                target = Path(self.build_lib) / "adaptmr" / "shipped" / source.relative_to(here)
                target.parent.mkdir(parents=True, exist_ok=True)
                self.copy_file(str(source), str(target))


setup(
    cmdclass={"build_py": BuildWithExperiments},
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    url=cfg["git_url"],
    author=cfg["author"],
    license="Apache-2.0",
    keywords=cfg["keywords"].split(),
    classifiers=[
        "Programming Language :: Python :: 3",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Natural Language :: Chinese (Simplified)",
    ],
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=["adaptmr", "adaptmr.*"]),
    package_data={
        "adaptmr": [
            "py.typed",
            "llm/prices.yaml",
            "retrieval/*.json",
            "retrieval/*.csv",
            "planning/*.json",
            "eval/analysis/*.csv",
            "eval/judges/*.json",
            "eval/report/*.html.j2",
            "eval/report/*.css",
            "eval/report/*.js",
            "store/*.csv",
            "training/*.tsv",
            "data/*.json",
            "data/*.bib",
            "data/demo/*.json",
            "data/demo_assistant/*.json",
            "data/demo_multihop/*.json",
        ]
    },
    install_requires=requirements("requirements"),
    extras_require={
        key.removesuffix("_requirements"): requirements(key) for key in cfg if key.endswith("_requirements")
    },
    entry_points={
        "console_scripts": ["adaptmr = adaptmr.cli:main"],
        "nbdev": [f"{cfg['lib_name']}={cfg['lib_path']}._modidx:d"],
    },
)
